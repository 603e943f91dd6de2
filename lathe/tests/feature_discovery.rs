//! `lathe feature-discovery` as a manifest of NVIDIA's program starts it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::time::Duration;

use assert_cmd::Command;
use rstest::rstest;
use sim_nvml::admin::SimulatedNode;
use sim_nvml::presets::NodeSpec;
use tempfile::TempDir;

fn node() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    SimulatedNode::create(
        folder.path(),
        &NodeSpec::uniform("h100-sxm5-80gb", 2).unwrap(),
    )
    .unwrap();
    folder
}

fn command(root: &Path) -> Command {
    let mut command = Command::cargo_bin("lathe").unwrap();
    command
        .arg("feature-discovery")
        .env("LATHE_ROOT", root)
        .timeout(Duration::from_secs(60));
    command
}

/// The labels on standard output.
fn labels(command: &mut Command) -> String {
    let output = command
        .args(["--oneshot", "--output-file", ""])
        .assert()
        .success()
        .get_output()
        .clone();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn once_writes_the_feature_file_under_the_root() {
    let node = node();
    command(node.path())
        .arg("--oneshot")
        .assert()
        .success()
        .stdout("");
    let file = node
        .path()
        .join("etc/kubernetes/node-feature-discovery/features.d/gfd");
    let text = std::fs::read_to_string(file).unwrap();
    assert!(
        text.contains("nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3\n"),
        "{text}"
    );
    assert!(text.contains("nvidia.com/gfd.timestamp="), "{text}");
}

/// Flag before environment before file before default; the program's own variable before the shared one.
#[rstest]
#[case::default(&[], &[], None)]
#[case::file(&[], &[("CONFIG_FILE", "FILE")], Some("single"))]
#[case::shared_variable(&[], &[("CONFIG_FILE", "FILE"), ("MIG_STRATEGY", "mixed")], Some("mixed"))]
#[case::own_variable(&[], &[("MIG_STRATEGY", "single"), ("GFD_MIG_STRATEGY", "mixed")], Some("mixed"))]
#[case::flag(&["--mig-strategy", "single"], &[("GFD_MIG_STRATEGY", "mixed")], Some("single"))]
fn who_decides_the_strategy(
    #[case] flags: &[&str],
    #[case] environment: &[(&str, &str)],
    #[case] wanted: Option<&str>,
) {
    let node = node();
    let file = node.path().join("config.yaml");
    std::fs::write(&file, "version: v1\nflags: {migStrategy: single}\n").unwrap();
    let mut command = command(node.path());
    command.args(flags);
    for (name, value) in environment {
        command.env(
            name,
            if *value == "FILE" {
                file.as_os_str()
            } else {
                value.as_ref()
            },
        );
    }
    let labels = labels(&mut command);
    let found = labels
        .lines()
        .find_map(|line| line.strip_prefix("nvidia.com/mig.strategy="));
    assert_eq!(found, wanted, "{labels}");
}

#[test]
fn sharing_of_the_configuration_file_shows() {
    let node = node();
    let file = node.path().join("config.yaml");
    let text =
        "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n";
    std::fs::write(&file, text).unwrap();
    let labels = labels(
        command(node.path())
            .arg("--config-file")
            .arg(&file)
            .arg("--no-timestamp"),
    );
    assert!(
        labels.contains("nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3-SHARED\n"),
        "{labels}"
    );
    assert!(
        labels.contains("nvidia.com/gpu.replicas=4\n") && !labels.contains("timestamp"),
        "{labels}"
    );
}

#[rstest]
#[case::strategy(&["--mig-strategy", "both"], "use none, single or mixed")]
#[case::interval(&["--sleep-interval", "often"], "write it like 60s")]
#[case::file(&["--config-file", "/no/such/file"], "/no/such/file")]
fn what_is_wrong_is_said(#[case] flags: &[&str], #[case] message: &str) {
    let node = node();
    let output = command(node.path())
        .arg("--oneshot")
        .args(flags)
        .assert()
        .failure()
        .get_output()
        .clone();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(message), "{error}");
}

#[test]
fn without_a_driver_it_fails_unless_told_not_to() {
    let folder = tempfile::tempdir().unwrap();
    let output = command(folder.path())
        .arg("--oneshot")
        .assert()
        .failure()
        .get_output()
        .clone();
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("cannot ask the GPU driver")
    );
    let mut command = command(folder.path());
    command.args(["--fail-on-init-error=false", "--no-timestamp"]);
    assert_eq!(labels(&mut command), "", "not even PCI devices are there");
}

#[test]
fn once_can_be_asked_to_end() {
    let node = node();
    // A pipe that nobody writes: reading the machine type waits for ever.
    let pipe = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        node.path().join("pipe"),
        pipe,
        0o600.into(),
        0,
    )
    .unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_lathe"))
        .args([
            "feature-discovery",
            "--oneshot",
            "--machine-type-file",
            "/pipe",
        ])
        .env("LATHE_ROOT", node.path())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let begun = std::time::Instant::now();
    // Whether it listens by then or not, it has to end.
    std::thread::sleep(Duration::from_millis(500));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(30) {
            child.kill().unwrap();
            panic!("it did not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!child.wait().unwrap().success());
}
