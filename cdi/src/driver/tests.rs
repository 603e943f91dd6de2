//! Drivers as different distributions install them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;

use rstest::rstest;

use super::*;

const VERSION: &str = "570.124.06";

struct Rig {
    folder: tempfile::TempDir,
}

impl Rig {
    /// A root with these files; `a -> b` is a link.
    fn new(entries: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for entry in entries {
            let (path, target) = match entry.split_once(" -> ") {
                None => (*entry, None),
                Some((path, target)) => (path, Some(target)),
            };
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match target {
                None => fs::write(path, "").unwrap(),
                Some(target) => symlink(target, path).unwrap(),
            }
        }
        Self { folder }
    }

    fn discover(&self, host: &str) -> Result<DriverFiles, Error> {
        let root = Root::new(self.folder.path(), host);
        DriverFiles::discover(&root, &root, VERSION)
    }

    fn hooks(&self, program: &str, disabled: &[&str]) -> Hooks {
        let path = self.folder.path().join(program.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
        Hooks::find(
            &Root::new(self.folder.path(), "/"),
            Path::new(program),
            disabled.iter().map(|hook| (*hook).to_owned()),
        )
        .unwrap()
        .unwrap()
    }
}

fn mounts(edits: &ContainerEdits) -> BTreeSet<String> {
    let line = |mount: &Mount| format!("{} {}", mount.host_path, mount.container_path);
    let lines: BTreeSet<String> = edits.mounts.iter().map(line).collect();
    assert_eq!(lines.len(), edits.mounts.len(), "a mount is there twice");
    lines
}

fn set(lines: &[&str]) -> BTreeSet<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

#[rstest]
#[case::debian("usr/lib/x86_64-linux-gnu")]
#[case::debian_arm("usr/lib/aarch64-linux-gnu")]
#[case::red_hat("usr/lib64")]
#[case::gke("lib64")]
#[case::nixos("run/opengl-driver/lib")]
fn without_hooks_a_container_looks_the_same_wherever_the_library_lies(#[case] folder: &str) {
    let link = format!("{folder}/libcuda.so.1 -> libcuda.so.{VERSION}");
    let rig = Rig::new(&[&format!("{folder}/libcuda.so.{VERSION}"), &link]);
    let edits = rig.discover("/").unwrap().edits(None);
    let at: BTreeSet<String> = edits
        .mounts
        .iter()
        .map(|mount| mount.container_path.clone())
        .collect();
    let debian = LOADER_FOLDERS[0];
    assert_eq!(
        at,
        set(&[
            &format!("{debian}/libcuda.so.1"),
            &format!("{debian}/libcuda.so.{VERSION}"),
            "/usr/lib64/libcuda.so.1",
            &format!("/usr/lib64/libcuda.so.{VERSION}"),
            "/usr/local/nvidia/lib64/libcuda.so.1",
        ])
    );
    for mount in &edits.mounts {
        assert_eq!(mount.host_path, format!("/{folder}/libcuda.so.{VERSION}"));
    }
    assert_eq!(edits.env[0], format!("NVIDIA_CTK_LIBCUDA_DIR={debian}"));
}

#[test]
fn names_of_all_kinds() {
    let rig = Rig::new(&[
        "usr/lib64/libcuda.so.570.124.06",
        "usr/lib64/libcuda.so.1 -> libcuda.so.570.124.06",
        "usr/lib64/libcuda.so -> /usr/lib64/libcuda.so.1",
        "usr/lib64/libnvidia-allocator.so.570.124.06",
        "usr/lib64/gbm/nvidia-drm_gbm.so -> ../libnvidia-allocator.so.570.124.06",
        "usr/lib64/vdpau/libvdpau_nvidia.so.570.124.06",
        "usr/lib64/libnvidia-egl-gbm.so.1.1.2",
        "usr/lib64/libnvidia-nvvm70.so.4",
        // None of the driver's: another version, other software, a name that only ends alike, a link to nowhere, a folder.
        "usr/lib64/libnvidia-ml.so.565.57.01",
        "usr/lib64/libnvidia-container.so.1.17.8",
        "usr/lib64/libc.so.6",
        "usr/lib64/libotherso.570.124.06",
        "usr/lib64/libother.so.1570.124.06",
        "usr/lib64/libcudadebugger.so.1 -> libcudadebugger.so.570.124.06",
        "usr/lib64/libfolder.so.570.124.06/file",
    ]);
    let hooks = rig.hooks("/usr/bin/nvidia-ctk", &[]);
    let edits = rig.discover("/").unwrap().edits(Some(&hooks));
    assert_eq!(
        mounts(&edits),
        set(&[
            "/usr/lib64/libcuda.so.570.124.06 /usr/lib64/libcuda.so.570.124.06",
            "/usr/lib64/libnvidia-allocator.so.570.124.06 /usr/lib64/libnvidia-allocator.so.570.124.06",
            "/usr/lib64/vdpau/libvdpau_nvidia.so.570.124.06 /usr/lib64/vdpau/libvdpau_nvidia.so.570.124.06",
            "/usr/lib64/libnvidia-egl-gbm.so.1.1.2 /usr/lib64/libnvidia-egl-gbm.so.1.1.2",
            "/usr/lib64/libnvidia-nvvm70.so.4 /usr/lib64/libnvidia-nvvm70.so.4",
        ])
    );
    let arguments: Vec<&[String]> = edits
        .hooks
        .iter()
        .map(|hook| hook.args.as_slice())
        .collect();
    assert_eq!(
        arguments,
        [
            &[
                "nvidia-ctk",
                "hook",
                "create-symlinks",
                "--link",
                "libcuda.so.570.124.06::/usr/lib64/libcuda.so",
                "--link",
                "../libnvidia-allocator.so.570.124.06::/usr/lib64/gbm/nvidia-drm_gbm.so",
            ][..],
            &[
                "nvidia-ctk",
                "hook",
                "update-ldcache",
                "--folder",
                "/usr/lib64",
                "--folder",
                "/usr/lib64/vdpau",
            ][..],
        ]
    );
    assert_eq!(edits.env[0], "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64");
}

#[rstest]
#[case("/usr/bin/nvidia-ctk", &[], &["create-symlinks", "update-ldcache"])]
#[case(
    "/usr/bin/nvidia-cdi-hook",
    &[],
    &["create-symlinks", "update-ldcache", "disable-device-node-modification"]
)]
#[case("/usr/bin/nvidia-cdi-hook", &["create-symlinks", "disable-device-node-modification"], &["update-ldcache"])]
#[case("/usr/bin/nvidia-cdi-hook", &["update-ldcache"], &["disable-device-node-modification"])]
#[case("/usr/bin/nvidia-cdi-hook", &["all"], &[])]
fn hooks_that_may_be_used(
    #[case] program: &str,
    #[case] disabled: &[&str],
    #[case] wanted: &[&str],
) {
    let rig = Rig::new(&[
        "usr/lib64/libcuda.so.570.124.06",
        "usr/lib64/libcuda.so -> libcuda.so.570.124.06",
    ]);
    let edits = rig
        .discover("/")
        .unwrap()
        .edits(Some(&rig.hooks(program, disabled)));
    let known = [
        "create-symlinks",
        "update-ldcache",
        "disable-device-node-modification",
    ];
    let used: Vec<&str> = edits
        .hooks
        .iter()
        .flat_map(|hook| hook.args.iter().map(String::as_str))
        .filter(|argument| known.contains(argument))
        .collect();
    assert_eq!(used, wanted);
    for hook in &edits.hooks {
        assert_eq!(
            (hook.hook_name.as_str(), hook.path.as_str()),
            ("createContainer", program)
        );
    }
    // Without a cache, only the names that are mounted are found.
    let found = edits
        .mounts
        .iter()
        .any(|mount| mount.container_path == "/usr/lib64/libcuda.so");
    assert_eq!(found, !wanted.contains(&"update-ldcache"));
}

#[test]
fn a_hook_program_that_is_not_there_is_told_of() {
    let rig = Rig::new(&[]);
    let root = Root::new(rig.folder.path(), "/");
    let found = Hooks::find(&root, Path::new("/usr/bin/nvidia-ctk"), []).unwrap();
    assert_eq!(
        found,
        Err(crate::Skipped::NoHook {
            path: rig.folder.path().join("usr/bin/nvidia-ctk"),
        })
    );
}

#[test]
fn the_host_has_the_driver_elsewhere() {
    let rig = Rig::new(&[
        "usr/lib64/libcuda.so.570.124.06",
        "lib -> usr/lib",
        "usr/lib/firmware/nvidia/570.124.06/gsp_ga10x.bin",
        "usr/bin/nvidia-smi",
    ]);
    let edits = rig.discover("/run/nvidia/driver").unwrap().edits(None);
    assert!(mounts(&edits).is_superset(&set(&[
        "/run/nvidia/driver/usr/lib64/libcuda.so.570.124.06 /usr/lib64/libcuda.so.570.124.06",
        "/run/nvidia/driver/usr/bin/nvidia-smi /usr/bin/nvidia-smi",
        // The path in the container is the one that is looked for, the path on the host the one behind its links.
        "/run/nvidia/driver/usr/lib/firmware/nvidia/570.124.06/gsp_ga10x.bin /lib/firmware/nvidia/570.124.06/gsp_ga10x.bin",
    ])));
}

#[test]
fn the_other_files() {
    let rig = Rig::new(&[
        "usr/lib64/libcuda.so.570.124.06",
        "usr/local/nvidia/bin/nvidia-cuda-mps-control",
        "usr/sbin/nvidia-imex",
        "usr/bin/nvidia-bug-report.sh",
        "lib/firmware/nvidia/570.124.06/gsp_tu10x.bin",
        "lib/firmware/nvidia/570.124.06/ucodes_a.bin",
        "lib/firmware/nvidia/570.124.06/README",
        "lib/firmware/nvidia/565.57.01/gsp_tu10x.bin",
        "etc/glvnd/egl_vendor.d/10_nvidia.json",
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "usr/share/nvidia/nvoptix.bin",
        "vulkan/icd.d/nvidia_icd.json",
        "var/run -> /run",
        "run/nvidia-fabricmanager/socket",
        "tmp/nvidia-mps/control",
    ]);
    let edits = rig.discover("/").unwrap().edits(None);
    let others: BTreeSet<String> = mounts(&edits)
        .into_iter()
        .filter(|line| !line.contains("libcuda"))
        .collect();
    assert_eq!(
        others,
        set(&[
            "/usr/local/nvidia/bin/nvidia-cuda-mps-control /usr/bin/nvidia-cuda-mps-control",
            "/usr/sbin/nvidia-imex /usr/bin/nvidia-imex",
            "/lib/firmware/nvidia/570.124.06/gsp_tu10x.bin /lib/firmware/nvidia/570.124.06/gsp_tu10x.bin",
            "/lib/firmware/nvidia/570.124.06/ucodes_a.bin /lib/firmware/nvidia/570.124.06/ucodes_a.bin",
            "/etc/glvnd/egl_vendor.d/10_nvidia.json /etc/glvnd/egl_vendor.d/10_nvidia.json",
            "/usr/share/nvidia/nvoptix.bin /usr/share/nvidia/nvoptix.bin",
            "/vulkan/icd.d/nvidia_icd.json /etc/vulkan/icd.d/nvidia_icd.json",
            "/run/nvidia-fabricmanager/socket /run/nvidia-fabricmanager/socket",
            "/tmp/nvidia-mps /tmp/nvidia-mps",
        ])
    );
    let writable: Vec<&str> = edits
        .mounts
        .iter()
        .filter(|mount| !mount.options.contains(&"ro".to_owned()))
        .map(|mount| mount.container_path.as_str())
        .collect();
    assert_eq!(
        writable,
        ["/run/nvidia-fabricmanager/socket", "/tmp/nvidia-mps"]
    );
}

#[test]
fn firmware_where_the_kernel_is_told_to_look() {
    let rig = Rig::new(&[
        "usr/lib64/libcuda.so.570.124.06",
        "lib/firmware/nvidia/570.124.06/gsp_tu10x.bin",
        "opt/firmware/nvidia/570.124.06/gsp_tu10x.bin",
    ]);
    let parameters = rig
        .folder
        .path()
        .join("sys/module/firmware_class/parameters");
    fs::create_dir_all(&parameters).unwrap();
    fs::write(parameters.join("path"), "/opt/firmware\n").unwrap();
    let edits = rig.discover("/").unwrap().edits(None);
    let firmware: Vec<&str> = edits
        .mounts
        .iter()
        .map(|mount| mount.host_path.as_str())
        .filter(|path| path.contains("gsp"))
        .collect();
    assert_eq!(firmware, ["/opt/firmware/nvidia/570.124.06/gsp_tu10x.bin"]);
}

#[test]
fn a_driver_that_is_loaded_but_not_installed() {
    let rig = Rig::new(&[
        "usr/lib64/libcuda.so.565.57.01",
        "usr/lib64/libnvidia-ml.so.565.57.01",
    ]);
    let error = rig.discover("/").unwrap_err();
    assert!(matches!(&error, Error::NoDriver { version, .. } if version == VERSION));
    let text = error.to_string();
    assert!(
        text.contains("libcuda.so.570.124.06") && text.contains("reboot") && !text.contains('\n'),
        "{text}"
    );
}

#[test]
fn a_driver_without_libcuda_is_found_by_its_other_library() {
    let rig = Rig::new(&["usr/lib64/libnvidia-ml.so.570.124.06"]);
    let edits = rig.discover("/").unwrap().edits(None);
    assert_eq!(edits.mounts.len(), LOADER_FOLDERS.len());
}
