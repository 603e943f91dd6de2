//! Finding and loading the library.

use std::process::Command;
use std::time::Duration;

use nvml::{Code, Driver, Error, Options, Session};

use crate::Node;

/// A library that exists everywhere and has none of NVML's functions.
const LIBC: &str = "libc.so.6";

#[test]
fn without_a_driver_the_error_says_where_it_was_looked_for() {
    let root = tempfile::tempdir().unwrap();
    let error = Driver::open(&Options::at(root.path())).unwrap_err();
    assert!(error.is_driver_gone() && error.is_transient());
    let text = error.to_string();
    assert!(text.contains("libnvidia-ml.so.1"), "{text}");
    assert!(
        text.contains(&root.path().join("usr/lib64").display().to_string()),
        "{text}"
    );
}

#[test]
fn a_file_that_is_no_library_is_a_load_error() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("usr/lib64");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("libnvidia-ml.so.1");
    std::fs::write(&file, "not an ELF file").unwrap();
    match Driver::open(&Options::at(root.path())) {
        Err(Error::Load { path, reason }) => {
            assert_eq!(path, file);
            assert_eq!(reason, "file too short");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_library_without_the_functions_is_an_error_not_a_crash() {
    let options = Options {
        library: Some(LIBC.into()),
        ..Options::default()
    };
    let error = Driver::open(&options).unwrap_err();
    assert_eq!(error.call(), Some("nvmlInit_v2"));
    assert_eq!(error.code(), Some(Code::FUNCTION_NOT_FOUND));
    assert!(error.is_absent());
}

/// With `/` as root the dynamic loader searches, so `LD_LIBRARY_PATH` counts. It reads that once, at the start of a
/// process: the test needs one of its own.
#[test]
fn the_loaders_own_search_counts() {
    let node = Node::of("t4-16gb", 1);
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "library::prints_the_gpus_of_this_machine",
            "--nocapture",
        ])
        .env("LD_LIBRARY_PATH", node.sim.library_folder())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let uuid = &node.sim.state().unwrap().gpus[0].uuid;
    assert!(said.contains(uuid.as_str()), "{said}");
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn prints_the_gpus_of_this_machine() {
    let driver = Driver::open(&Options::default()).unwrap();
    for info in driver.snapshot().unwrap().present() {
        println!("{}", info.uuid);
    }
}

#[test]
fn a_session_without_a_driver_pauses_longer_and_longer() {
    let root = tempfile::tempdir().unwrap();
    let first = Duration::from_secs(1000);
    let session = Session::with_pauses(&Options::at(root.path()), first, first * 4).unwrap();
    assert_eq!(session.next_attempt(), Duration::ZERO);
    let error = session.driver().unwrap_err();
    let pause = session.next_attempt();
    assert!(pause > first / 2 && pause <= first, "{pause:?}");
    // During the pause the same error comes back without another attempt: the pause does not grow.
    assert_eq!(session.driver().unwrap_err(), error);
    assert!(session.next_attempt() <= pause);
    assert_eq!(session.wait(Duration::from_millis(20)).unwrap_err(), error);
}
