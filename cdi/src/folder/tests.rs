//! Files on disk: what is written, what is left alone, what is left behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::spec::{ContainerEdits, Device, DeviceNode};

const VENDOR: &str = "k8s.device-plugin.nvidia.com";
const GPU_FILE: &str = "k8s.device-plugin.nvidia.com-gpu.json";

fn spec(class: &str, device: &str) -> Spec {
    let node = DeviceNode {
        path: format!("/dev/{device}"),
        ..DeviceNode::default()
    };
    let device = Device {
        name: device.into(),
        container_edits: ContainerEdits {
            device_nodes: vec![node],
            ..ContainerEdits::default()
        },
        ..Device::default()
    };
    Spec::new(
        Kind::new(VENDOR, class).unwrap(),
        vec![device],
        ContainerEdits::default(),
    )
    .unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn specs_come_change_and_go() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("var/run/cdi");
    let folder = SpecFolder::open(&path).unwrap();
    let (gpu, mofed) = (spec("gpu", "nvidia0"), spec("mofed", "all"));
    let changes = folder
        .replace(VENDOR, &[gpu.clone(), mofed.clone()])
        .unwrap();
    let mofed_file = "k8s.device-plugin.nvidia.com-mofed.json";
    assert_eq!(changes.written, [GPU_FILE, mofed_file]);
    assert_eq!(names(&path), [GPU_FILE, mofed_file]);
    assert_eq!(fs::read(path.join(GPU_FILE)).unwrap(), gpu.to_json());

    let inode = || fs::metadata(path.join(GPU_FILE)).unwrap().ino();
    let before = inode();
    assert!(
        folder
            .replace(VENDOR, &[gpu, mofed.clone()])
            .unwrap()
            .is_empty()
    );
    assert_eq!(inode(), before, "what has not changed is not written");

    let other = spec("gpu", "nvidia1");
    let changes = folder
        .replace(VENDOR, std::slice::from_ref(&other))
        .unwrap();
    assert_eq!(
        changes,
        Changes {
            written: vec![GPU_FILE.into()],
            removed: vec![mofed_file.into()],
        }
    );
    assert_eq!(fs::read(path.join(GPU_FILE)).unwrap(), other.to_json());
    folder.replace(VENDOR, &[]).unwrap();
    assert_eq!(names(&path), Vec::<String>::new());
}

#[test]
fn files_of_others_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let others = [
        "k8s.device-plugin.nvidia.com-gpu.yaml",
        "k8s.device-plugin.nvidia.com-other.json",
        "k8s.gpu.nvidia.com-claim_a.json",
        "management.nvidia.com-gpu.yaml",
        "spec.123.tmp",
    ];
    for name in others {
        fs::write(folder.path().join(name), "a").unwrap();
    }
    let specs = SpecFolder::open(folder.path()).unwrap();
    assert!(specs.replace(VENDOR, &[]).unwrap().is_empty());
    assert_eq!(names(folder.path()), others);
}

#[test]
fn a_file_that_somebody_changed_is_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let specs = SpecFolder::open(folder.path()).unwrap();
    let gpu = [spec("gpu", "nvidia0")];
    let path = folder.path().join(GPU_FILE);
    let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
    specs.replace(VENDOR, &gpu).unwrap();
    assert_eq!(mode(), 0o644);

    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert!(!specs.replace(VENDOR, &gpu).unwrap().is_empty());
    assert_eq!(mode(), 0o644);

    // The same length: only the content tells.
    let mut content = gpu[0].to_json();
    content[0] = b'[';
    fs::write(&path, content).unwrap();
    assert!(!specs.replace(VENDOR, &gpu).unwrap().is_empty());
    assert_eq!(fs::read(&path).unwrap(), gpu[0].to_json());

    fs::remove_dir_all(folder.path()).unwrap();
    assert!(!specs.replace(VENDOR, &gpu).unwrap().is_empty());
    assert_eq!(names(folder.path()), [GPU_FILE], "the folder came back");
}

#[test]
fn what_a_killed_writer_left_goes_and_what_a_living_one_writes_stays() {
    let folder = tempfile::tempdir().unwrap();
    let left = folder.path().join(format!(".{GPU_FILE}.0{TEMPORARY}"));
    fs::write(&left, "{").unwrap();
    let written = folder.path().join(format!(".{GPU_FILE}.1{TEMPORARY}"));
    let file = locked(&written).unwrap().unwrap();
    let specs = SpecFolder::open(folder.path()).unwrap();
    assert!(!left.exists() && written.exists());
    // The living one keeps its file; this one takes another name.
    assert!(specs.put(GPU_FILE, &spec("gpu", "nvidia0")).unwrap());
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    drop(file);
    SpecFolder::open(folder.path()).unwrap();
    assert_eq!(names(folder.path()), [GPU_FILE]);
}

#[test]
fn a_folder_that_cannot_be_made() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let path = folder.path().join("file/cdi");
    let error = SpecFolder::open(&path).unwrap_err();
    assert!(matches!(&error, Error::Write { path: at, .. } if *at == path));
    let text = error.to_string();
    assert!(
        text.contains("cannot make the folder") && text.contains("is the folder mounted writable?"),
        "{text}"
    );
}

#[test]
fn a_file_that_cannot_be_replaced_leaves_nothing_half_done() {
    let folder = tempfile::tempdir().unwrap();
    let specs = SpecFolder::open(folder.path()).unwrap();
    // A folder in its place can be neither replaced nor removed by a file's rename.
    fs::create_dir(folder.path().join(GPU_FILE)).unwrap();
    let error = specs.put(GPU_FILE, &spec("gpu", "nvidia0")).unwrap_err();
    assert!(
        error.to_string().contains("cannot write the file"),
        "{error}"
    );
    assert_eq!(
        names(folder.path()),
        [GPU_FILE],
        "no temporary file is left"
    );
    let error = specs.replace(VENDOR, &[]).unwrap_err();
    assert!(
        error.to_string().contains("cannot remove the file"),
        "{error}"
    );
}
