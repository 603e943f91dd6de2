//! A writer is killed at any moment: runtimes see a whole file, and the next writer cleans up.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cdi::spec::{ContainerEdits, Device, DeviceNode, Spec};
use cdi::{Kind, SpecFolder};

/// Set for the process that writes: the folder.
const FOLDER: &str = "LATHE_TEST_CDI_FOLDER";

/// How many writers are killed, each a little later after its start than the one before.
const KILLS: u64 = 40;

fn spec(devices: usize) -> Spec {
    let device = |number: usize| Device {
        name: format!("GPU-{number}"),
        container_edits: ContainerEdits {
            device_nodes: vec![DeviceNode {
                path: format!("/dev/nvidia{number}"),
                ..DeviceNode::default()
            }],
            ..ContainerEdits::default()
        },
        ..Device::default()
    };
    let kind = Kind::new("vendor.com", "gpu").unwrap();
    Spec::new(
        kind,
        (0..devices).map(device).collect(),
        ContainerEdits::default(),
    )
    .unwrap()
}

/// Not a test of its own: what the killed process does.
#[test]
fn writer() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let folder = SpecFolder::open(Path::new(&folder)).unwrap();
    let specs = [spec(1), spec(500)];
    // The bound is far above what is written before the kill.
    for spec in specs.iter().cycle().take(1_000_000) {
        folder.put("a.json", spec).unwrap();
        println!("written");
    }
}

#[test]
fn killed_writers_leave_whole_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cdi");
    let whole = [spec(1).to_json(), spec(500).to_json()];
    let mut leftovers = 0;
    for kill in 0..KILLS {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writer", "--nocapture"])
            .env(FOLDER, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // It has started to write when it has said something of its own.
        let mut said = [0; 64];
        let mut output = writer.stdout.take().unwrap();
        let mut text = String::new();
        while !text.contains("written") {
            let count = output.read(&mut said).unwrap();
            assert!(count > 0, "the writer ended: {text}");
            text += &String::from_utf8_lossy(&said[..count]);
        }
        std::thread::sleep(Duration::from_micros(kill * 97));
        writer.kill().unwrap();
        writer.wait().unwrap();
        let found = fs::read(path.join("a.json")).unwrap();
        assert!(whole.contains(&found), "half a file: {} bytes", found.len());
        let names = || fs::read_dir(&path).unwrap().count();
        leftovers += usize::from(names() > 1);
        SpecFolder::open(&path).unwrap();
        assert_eq!(names(), 1, "what the killed one left is still there");
    }
    println!("{leftovers} of {KILLS} left a temporary file");
}
