//! What a process still holds once it has shut the library down and unloaded it.

use std::path::{Path, PathBuf};

use sim_nvml::{Code, admin::SimulatedNode, model::DriverState, presets::NodeSpec};

use crate::driver::{code, get, load};

/// Loads the library of a node and gives it what `code!` and `get!` want.
struct Loaded {
    lib: nvml_wrapper_sys::bindings::NvmlLib,
}

/// Files and folders of the node that this process has open. Other tests run in the same process, on nodes of their own.
fn open_files(root: &Path) -> Vec<PathBuf> {
    let root = root.canonicalize().unwrap();
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|path| path.starts_with(&root))
        .collect()
}

fn node() -> (tempfile::TempDir, SimulatedNode) {
    let folder = tempfile::tempdir().unwrap();
    let spec = NodeSpec::uniform("h100-sxm5-80gb", 1).unwrap();
    let node = SimulatedNode::create(folder.path(), &spec).unwrap();
    (folder, node)
}

#[test]
fn shutting_down_closes_what_was_opened() {
    let (folder, node) = node();
    let library = node.library_folder().to_owned();
    // It has the state open itself.
    drop(node);
    for _ in 0..3 {
        let loaded = Loaded {
            lib: load(&library),
        };
        for _ in 0..2 {
            assert_eq!(code!(loaded, nvmlInit_v2()), Code::SUCCESS);
        }
        // Taking a handle looks at the files by which a reset is asked for, which opens their folder.
        assert!(get!(loaded, nvmlDeviceGetHandleByIndex_v2(0)).is_ok());
        assert_eq!(code!(loaded, nvmlShutdown()), Code::SUCCESS);
        assert!(
            !open_files(folder.path()).is_empty(),
            "one of two has left: the node is still in use"
        );
        assert_eq!(code!(loaded, nvmlShutdown()), Code::SUCCESS);
        assert_eq!(open_files(folder.path()), [] as [PathBuf; 0]);
        assert_eq!(
            get!(loaded, nvmlDeviceGetCount_v2()),
            Err(Code::UNINITIALIZED)
        );
    }
}

#[test]
fn an_initialisation_that_fails_leaves_nothing_open() {
    let (folder, node) = node();
    let library = node.library_folder().to_owned();
    node.store()
        .update(|node| node.driver.state = DriverState::Unloaded)
        .unwrap();
    drop(node);
    let loaded = Loaded {
        lib: load(&library),
    };
    assert_eq!(code!(loaded, nvmlInit_v2()), Code::DRIVER_NOT_LOADED);
    assert_eq!(open_files(folder.path()), [] as [PathBuf; 0]);
}
