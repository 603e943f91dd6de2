//! The list of exported symbols, both ways.

use std::collections::BTreeSet;

use sim_nvml::{functions, library};

use crate::driver::{Driver, get};

fn listed() -> BTreeSet<String> {
    functions::all().map(str::to_owned).collect()
}

fn word(bytes: &[u8], offset: usize, length: usize) -> usize {
    bytes[offset..offset + length]
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | usize::from(*byte))
}

fn zero_terminated(bytes: &[u8], offset: usize) -> String {
    let end = bytes[offset..].iter().position(|byte| *byte == 0).unwrap();
    String::from_utf8(bytes[offset..offset + end].to_vec()).unwrap()
}

/// What an ELF64 file's section of a type holds, with the section that it links to: (contents, linked contents).
fn section(elf: &[u8], kind: usize) -> (&[u8], &[u8]) {
    let (table, size, count) = (word(elf, 0x28, 8), word(elf, 0x3A, 2), word(elf, 0x3C, 2));
    let header = |index: usize| &elf[table + index * size..table + (index + 1) * size];
    let contents = |header: &[u8]| {
        let (offset, length) = (word(header, 0x18, 8), word(header, 0x20, 8));
        offset..offset + length
    };
    let found = (0..count)
        .map(header)
        .find(|header| word(header, 4, 4) == kind)
        .unwrap();
    let linked = header(word(found, 0x28, 4));
    (&elf[contents(found)], &elf[contents(linked)])
}

const DYNAMIC: usize = 6;
const DYNAMIC_SYMBOLS: usize = 11;
const TAG_SONAME: usize = 14;

/// Functions that the library defines and exports.
fn exported(elf: &[u8]) -> BTreeSet<String> {
    let (symbols, names) = section(elf, DYNAMIC_SYMBOLS);
    let defined = symbols
        .chunks(24)
        .filter(|symbol| symbol[4] & 0xF == 2 && word(symbol, 6, 2) != 0);
    defined
        .map(|symbol| zero_terminated(names, word(symbol, 0, 4)))
        .collect()
}

#[test]
fn exactly_the_listed_functions_are_exported() {
    let elf = std::fs::read(library::locate().unwrap()).unwrap();
    let (exported, listed) = (exported(&elf), listed());
    assert_eq!(
        listed.difference(&exported).collect::<Vec<_>>(),
        [] as [&String; 0],
        "listed and missing"
    );
    assert_eq!(
        exported.difference(&listed).collect::<Vec<_>>(),
        [] as [&String; 0],
        "exported and not listed"
    );
}

#[test]
fn the_list_has_every_generation_of_the_header() {
    // 396 functions with header 13.0, the older versions of 23 of them included; 17 more by 13.3; 15 more by 13.4.
    assert_eq!(listed().len(), 396 + 17 + 15);
}

/// Functions of the bindings crate, made from the header 13.0, read from its source: beside this program lies the list of
/// the source files that each dependency was built from.
fn bound() -> BTreeSet<String> {
    let program = std::env::current_exe().unwrap();
    let sources = std::fs::read_dir(program.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "d"))
        .filter(|path| path.to_string_lossy().contains("/nvml_wrapper_sys-"))
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap())
        .unwrap();
    let sources = std::fs::read_to_string(sources).unwrap();
    let bindings = sources
        .lines()
        .find_map(|line| line.strip_suffix("/bindings.rs:"))
        .unwrap()
        .replace("\\ ", " ");
    std::fs::read_to_string(format!("{bindings}/bindings.rs"))
        .unwrap()
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub unsafe fn nvml"))
        .map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            format!("nvml{}", &rest[..end.unwrap()])
        })
        .collect()
}

#[test]
fn every_function_of_the_bindings_crate_is_listed() {
    let bound = bound();
    assert_eq!(bound.len(), 396);
    assert_eq!(
        bound.difference(&listed()).collect::<Vec<_>>(),
        [] as [&String; 0]
    );
}

/// What the header 13.3 has and the bindings crate has not.
#[test]
fn every_function_newer_than_the_bindings_is_listed() {
    const NEWER: [&str; 17] = [
        "nvmlDeviceGetAccountingStats_v2",
        "nvmlDeviceGetBBXTimeData_v1",
        "nvmlDeviceGetHostname_v1",
        "nvmlDeviceGetRemappedRows_v2",
        "nvmlDeviceGetUnrepairableMemoryFlag_v1",
        "nvmlDeviceGetVgpuSchedulerLog_v2",
        "nvmlDeviceGetVgpuSchedulerState_v2",
        "nvmlDeviceReadPRMCounters_v1",
        "nvmlDeviceSetHostname_v1",
        "nvmlDeviceSetRusdSettings_v1",
        "nvmlDeviceSetVgpuSchedulerState_v2",
        "nvmlDeviceVgpuForceGspUnload",
        "nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1",
        "nvmlGpuInstanceGetVgpuSchedulerLog_v2",
        "nvmlGpuInstanceGetVgpuSchedulerState_v2",
        "nvmlGpuInstanceSetVgpuSchedulerState_v2",
        "nvmlSystemGetCPER_v1",
    ];
    let listed = listed();
    for name in NEWER {
        assert!(listed.contains(name), "{name}");
    }
}

#[test]
fn the_soname_is_the_drivers() {
    let elf = std::fs::read(library::locate().unwrap()).unwrap();
    let (entries, names) = section(&elf, DYNAMIC);
    let soname = entries
        .chunks(16)
        .find(|entry| word(entry, 0, 8) == TAG_SONAME)
        .unwrap();
    assert_eq!(
        zero_terminated(names, word(soname, 8, 8)),
        "libnvidia-ml.so.1"
    );
}

#[test]
fn every_function_but_two_wants_an_initialised_library() {
    let root = tempfile::tempdir().unwrap();
    let spec = sim_nvml::presets::NodeSpec::uniform("t4-16gb", 1).unwrap();
    let node = sim_nvml::admin::SimulatedNode::create(root.path(), &spec).unwrap();
    // SAFETY: the library runs no code when it is loaded.
    let library =
        unsafe { libloading::Library::new(node.library_folder().join("libnvidia-ml.so.1")) }
            .unwrap();
    for name in listed() {
        if name.starts_with("nvmlInit") || name == "nvmlErrorString" {
            continue;
        }
        // SAFETY: the library is not initialised, so that no function looks at an argument; integers and pointers beyond
        // those declared are ignored by the calling convention.
        let result = unsafe {
            let function: libloading::Symbol<
                '_,
                unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> u32,
            > = library.get(name.as_bytes()).unwrap();
            function(0, 0, 0, 0, 0, 0)
        };
        assert_eq!(result, 1, "{name}");
    }
}

/// Null where a pointer belongs, zero where a number does, and as the first argument every kind of handle there is.
#[test]
fn no_function_crashes_on_nulls() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    // SAFETY: the library is loaded; it is the node's, so handles of this driver are good there.
    let library =
        unsafe { libloading::Library::new(driver.node.library_folder().join("libnvidia-ml.so.1")) }
            .unwrap();
    let gpu = driver.partitioned(0);
    let instance = get!(driver, nvmlDeviceCreateGpuInstance(gpu, 19)).unwrap();
    let compute = get!(driver, nvmlGpuInstanceCreateComputeInstance(instance, 0)).unwrap();
    let mig = get!(driver, nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)).unwrap();
    let set = get!(driver, nvmlEventSetCreate()).unwrap();
    let sample = get!(driver, nvmlGpmSampleAlloc()).unwrap();
    let handles = [
        0,
        gpu.addr(),
        mig.addr(),
        compute.addr(),
        instance.addr(),
        set.addr(),
        sample.addr(),
    ];
    for name in listed() {
        if name.starts_with("nvmlInit") || name == "nvmlShutdown" || name == "nvmlErrorString" {
            continue;
        }
        for handle in handles {
            // A handle where the function wants a pointer would be an address that nobody gave: no caller's contract.
            let takes_handle = [
                "nvmlDevice",
                "nvmlGpuInstance",
                "nvmlComputeInstance",
                "nvmlEventSet",
                "nvmlGpmSample",
            ];
            let takes_pointer = [
                "Drain",
                "RemoveGpu",
                "Discover",
                "GetCount",
                "HandleBy",
                "SetCreate",
                "SampleAlloc",
            ];
            let wants = |words: &[&str], test: fn(&str, &str) -> bool| {
                words.iter().any(|word| test(&name, word))
            };
            let fits = wants(&takes_handle, |name, word| name.starts_with(word))
                && !wants(&takes_pointer, |name, word| name.contains(word));
            if handle != 0 && !fits {
                continue;
            }
            // SAFETY: handles are numbers, pointers are null, and what is beyond the arguments is ignored.
            let result = unsafe {
                let function: libloading::Symbol<
                    '_,
                    unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> u32,
                > = library.get(name.as_bytes()).unwrap();
                function(handle, 0, 0, 0, 0, 0)
            };
            // UNKNOWN is what a panic turns into.
            let code = sim_nvml::Code(result);
            assert!(
                code.name().is_some() && result != 999,
                "{name} with {handle:#x}: {code}"
            );
        }
    }
}

#[test]
fn error_texts_need_no_initialisation() {
    let root = tempfile::tempdir().unwrap();
    let spec = sim_nvml::presets::NodeSpec::uniform("t4-16gb", 1).unwrap();
    let node = sim_nvml::admin::SimulatedNode::create(root.path(), &spec).unwrap();
    let lib = crate::driver::load(node.library_folder());
    // SAFETY: the function takes any number and answers a static text.
    let text = |code| {
        unsafe { std::ffi::CStr::from_ptr(lib.nvmlErrorString(code)) }
            .to_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(text(19), "In use by another client");
    assert_eq!(text(23), "Insufficient Resources");
    assert_eq!(text(4711), "Unknown Error");
}
