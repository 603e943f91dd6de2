//! Enumeration, identity, lookups and versions.

// A table's columns.
#![allow(clippy::too_many_arguments)]

use std::ffi::CString;

use nvml_wrapper_sys::bindings::*;
use rstest::rstest;
use sim_nvml::Code;

use crate::driver::{Driver, code, get, string, text, version};

/// Board facts: product, device word, architecture, capability, memory in MiB, reserved MiB, default power in mW, top
/// graphics and memory clock.
#[rstest]
#[case("a100-sxm4-40gb", "NVIDIA A100-SXM4-40GB", 0x20B0_10DE, 7, (8, 0), 40960, 518, 400_000, 1410, 1215)]
#[case("h100-sxm5-80gb", "NVIDIA H100 80GB HBM3", 0x2330_10DE, 9, (9, 0), 81559, 480, 700_000, 1980, 2619)]
#[case("h200-sxm-141gb", "NVIDIA H200", 0x2335_10DE, 9, (9, 0), 143771, 614, 700_000, 1980, 3201)]
#[case("b200-180gb", "NVIDIA B200", 0x2901_10DE, 10, (10, 0), 183359, 728, 1_000_000, 1965, 3996)]
#[case("gb300-278gb", "NVIDIA GB300", 0x31C2_10DE, 10, (10, 3), 284208, 947, 1_400_000, 2070, 3996)]
#[case("l40s-48gb", "NVIDIA L40S", 0x26B9_10DE, 8, (8, 9), 46068, 609, 350_000, 2520, 9001)]
#[case("t4-16gb", "Tesla T4", 0x1EB8_10DE, 6, (7, 5), 15360, 448, 70_000, 1590, 5001)]
fn boards_report_what_the_hardware_reports(
    #[case] board: &str,
    #[case] product: &str,
    #[case] device_word: u32,
    #[case] architecture: u32,
    #[case] capability: (i32, i32),
    #[case] memory_mib: u64,
    #[case] reserved_mib: u64,
    #[case] power_mw: u32,
    #[case] graphics_mhz: u32,
    #[case] memory_mhz: u32,
) {
    let driver = Driver::with(board, 1);
    let gpu = driver.gpu(0);
    assert_eq!(text!(driver, nvmlDeviceGetName(gpu)).unwrap(), product);
    let pci = get!(driver, nvmlDeviceGetPciInfo_v3(gpu)).unwrap();
    assert_eq!(pci.pciDeviceId, device_word);
    assert_eq!(string(&pci.busId), "00000000:11:00.0");
    assert_eq!(string(&pci.busIdLegacy), "0000:11:00.0");
    assert_eq!(
        get!(driver, nvmlDeviceGetArchitecture(gpu)),
        Ok(architecture)
    );
    let (mut major, mut minor) = (0, 0);
    assert_eq!(
        code!(
            driver,
            nvmlDeviceGetCudaComputeCapability(gpu, &mut major, &mut minor)
        ),
        Code::SUCCESS
    );
    assert_eq!((major, minor), capability);
    let mut memory: nvmlMemory_v2_t = unsafe { std::mem::zeroed() };
    memory.version = version::<nvmlMemory_v2_t>(2);
    assert_eq!(
        code!(driver, nvmlDeviceGetMemoryInfo_v2(gpu, &mut memory)),
        Code::SUCCESS
    );
    assert_eq!(
        (memory.total >> 20, memory.reserved >> 20, memory.used),
        (memory_mib, reserved_mib, 0)
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetPowerManagementDefaultLimit(gpu)),
        Ok(power_mw)
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetMaxClockInfo(gpu, 0)),
        Ok(graphics_mhz)
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetMaxClockInfo(gpu, 2)),
        Ok(memory_mhz)
    );
    assert_eq!(get!(driver, nvmlDeviceGetBrand(gpu)), Ok(14));
}

#[test]
fn a_gpu_is_found_by_everything_that_names_it() {
    let driver = Driver::preset("dgx-h100");
    assert_eq!(get!(driver, nvmlDeviceGetCount_v2()), Ok(8));
    // Bus numbers of the machine in index order, and the module ids that go with them.
    let expected = [
        (0x53, 7),
        (0x64, 5),
        (0x75, 6),
        (0x86, 8),
        (0x97, 1),
        (0xA8, 3),
        (0xB9, 4),
        (0xCA, 2),
    ];
    for (index, (bus, module)) in expected.into_iter().enumerate() {
        let gpu = driver.gpu(index as u32);
        assert_eq!(get!(driver, nvmlDeviceGetPciInfo_v3(gpu)).unwrap().bus, bus);
        assert_eq!(get!(driver, nvmlDeviceGetModuleId(gpu)), Ok(module));
        assert_eq!(get!(driver, nvmlDeviceGetIndex(gpu)), Ok(index as u32));
        let uuid = text!(driver, nvmlDeviceGetUUID(gpu)).unwrap();
        let serial = text!(driver, nvmlDeviceGetSerial(gpu)).unwrap();
        let [uuid_c, serial_c] = [uuid, serial].map(|text| CString::new(text).unwrap());
        assert_eq!(
            get!(driver, nvmlDeviceGetHandleByUUID(uuid_c.as_ptr())),
            Ok(gpu)
        );
        assert_eq!(
            get!(driver, nvmlDeviceGetHandleBySerial(serial_c.as_ptr())),
            Ok(gpu)
        );
        for form in [
            format!("00000000:{bus:02X}:00.0"),
            format!("0000:{bus:02x}:00.0"),
            format!("{bus:02x}:00.0"),
        ] {
            let form = CString::new(form).unwrap();
            assert_eq!(
                get!(driver, nvmlDeviceGetHandleByPciBusId_v2(form.as_ptr())),
                Ok(gpu)
            );
        }
    }
}

#[test]
fn what_names_nothing_is_told_apart_from_what_is_malformed() {
    let driver = Driver::with("t4-16gb", 1);
    assert_eq!(
        get!(driver, nvmlDeviceGetHandleByIndex_v2(1)),
        Err(Code::INVALID_ARGUMENT)
    );
    for (text, expected) in [
        ("GPU-00000000-0000-0000-0000-000000000000", 6),
        ("MIG-nonsense", 6),
        ("", 6),
    ] {
        let text_c = CString::new(text).unwrap();
        assert_eq!(
            get!(driver, nvmlDeviceGetHandleByUUID(text_c.as_ptr())),
            Err(Code(expected)),
            "{text}"
        );
    }
    assert_eq!(
        get!(
            driver,
            nvmlDeviceGetHandleByPciBusId_v2(c"0000:99:00.0".as_ptr())
        ),
        Err(Code::NOT_FOUND)
    );
    assert_eq!(
        get!(
            driver,
            nvmlDeviceGetHandleByPciBusId_v2(c"nonsense".as_ptr())
        ),
        Err(Code::INVALID_ARGUMENT)
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetHandleByUUID(std::ptr::null())),
        Err(Code::INVALID_ARGUMENT)
    );
}

#[test]
fn uuids_are_also_found_in_their_binary_form() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.gpu(0);
    let uuid = text!(driver, nvmlDeviceGetUUID(gpu)).unwrap();
    let digits: String = uuid
        .trim_start_matches("GPU-")
        .chars()
        .filter(|c| *c != '-')
        .collect();
    let mut bytes = [0_u8; 16];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).unwrap();
    }
    let mut named = nvmlUUID_t {
        version: version::<nvmlUUID_t>(1),
        type_: 2,
        value: nvmlUUIDValue_t { bytes },
    };
    assert_eq!(get!(driver, nvmlDeviceGetHandleByUUIDV(&named)), Ok(gpu));
    named.version += 1;
    assert_eq!(
        get!(driver, nvmlDeviceGetHandleByUUIDV(&named)),
        Err(Code::ARGUMENT_VERSION_MISMATCH)
    );
}

#[test]
fn texts_need_room_for_all_of_them() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.gpu(0);
    // "NVIDIA H100 80GB HBM3" has 21 letters.
    let mut buffer = [0; 22];
    assert_eq!(
        code!(driver, nvmlDeviceGetName(gpu, buffer.as_mut_ptr(), 21)),
        Code::INSUFFICIENT_SIZE
    );
    assert_eq!(
        code!(driver, nvmlDeviceGetName(gpu, buffer.as_mut_ptr(), 22)),
        Code::SUCCESS
    );
    assert_eq!(
        code!(driver, nvmlDeviceGetName(gpu, std::ptr::null_mut(), 22)),
        Code::INVALID_ARGUMENT
    );
}

#[test]
fn init_is_counted() {
    let driver = Driver::with("t4-16gb", 1);
    assert_eq!(code!(driver, nvmlInit_v2()), Code::SUCCESS);
    assert_eq!(code!(driver, nvmlInitWithFlags(1)), Code::SUCCESS);
    assert_eq!(code!(driver, nvmlInitWithFlags(8)), Code::INVALID_ARGUMENT);
    let own = |driver: &Driver| {
        driver
            .node
            .state()
            .unwrap()
            .clients
            .iter()
            .any(|client| client.pid == std::process::id())
    };
    for _ in 0..2 {
        assert_eq!(code!(driver, nvmlShutdown()), Code::SUCCESS);
        assert!(own(&driver));
        assert_eq!(get!(driver, nvmlDeviceGetCount_v2()), Ok(1));
    }
    assert_eq!(code!(driver, nvmlShutdown()), Code::SUCCESS);
    assert!(
        !own(&driver),
        "the last shutdown takes the process off the node"
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetCount_v2()),
        Err(Code::UNINITIALIZED)
    );
    assert_eq!(code!(driver, nvmlShutdown()), Code::UNINITIALIZED);
}

#[test]
fn versioned_structs_are_refused_in_other_versions() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.gpu(0);
    let mut memory: nvmlMemory_v2_t = unsafe { std::mem::zeroed() };
    for wrong in [0, version::<nvmlMemory_v2_t>(1), 0x0200_0018] {
        memory.version = wrong;
        assert_eq!(
            code!(driver, nvmlDeviceGetMemoryInfo_v2(gpu, &mut memory)),
            Code::ARGUMENT_VERSION_MISMATCH
        );
    }
    assert_eq!(memory.total, 0, "nothing written");
}

/// Symbols of earlier drivers write the structs of their time, and nothing behind them.
#[test]
fn earlier_symbols_write_earlier_structs() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.gpu(0);
    // SAFETY: the library is loaded, and the symbols are those functions; the buffers are larger than any version.
    unsafe {
        let library =
            libloading::Library::new(driver.node.library_folder().join("libnvidia-ml.so.1"))
                .unwrap();
        for (name, written) in [
            (&b"nvmlDeviceGetPciInfo"[..], 32),
            (b"nvmlDeviceGetPciInfo_v2", 36),
        ] {
            let function: libloading::Symbol<
                '_,
                unsafe extern "C" fn(nvmlDevice_t, *mut u8) -> u32,
            > = library.get(name).unwrap();
            let mut buffer = [0xAA_u8; 80];
            assert_eq!(function(gpu, buffer.as_mut_ptr()), 0);
            assert_eq!(&buffer[..12], b"0000:11:00.0");
            assert_eq!(
                u32::from_le_bytes(buffer[28..32].try_into().unwrap()),
                0x2330_10DE
            );
            assert!(
                buffer[written..].iter().all(|byte| *byte == 0xAA),
                "{name:?}"
            );
        }
    }
}

#[test]
fn the_driver_says_which_it_is() {
    let driver = Driver::preset("dgx-h100");
    assert_eq!(
        text!(driver, nvmlSystemGetDriverVersion()).unwrap(),
        "580.105.08"
    );
    assert_eq!(
        text!(driver, nvmlSystemGetNVMLVersion()).unwrap(),
        "13.580.105.08"
    );
    assert_eq!(get!(driver, nvmlSystemGetCudaDriverVersion_v2()), Ok(13000));
    let gpu = driver.gpu(0);
    let mut firmware = [0; 64];
    assert_eq!(
        code!(
            driver,
            nvmlDeviceGetGspFirmwareVersion(gpu, firmware.as_mut_ptr())
        ),
        Code::SUCCESS
    );
    assert_eq!(string(&firmware), "580.105.08");
    assert_eq!(
        text!(driver, nvmlDeviceGetVbiosVersion(gpu)).unwrap(),
        "96.00.99.00.01"
    );
}
