//! `lathe sim` as people and scripts use it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use assert_cmd::Command;
use rstest::rstest;

/// Runs `lathe sim` on a node and returns exit code, output and error output.
fn sim(root: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = Command::cargo_bin("lathe")
        .unwrap()
        .arg("sim")
        .args(arguments)
        .env("LATHE_ROOT", root)
        .timeout(std::time::Duration::from_secs(60))
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn ok(root: &Path, arguments: &[&str]) -> String {
    let (code, out, error) = sim(root, arguments);
    assert_eq!(code, 0, "{arguments:?}: {error}");
    out
}

fn shown(root: &Path) -> serde_json::Value {
    serde_json::from_str(&ok(root, &["show", "-o", "json"])).unwrap()
}

#[test]
fn a_node_from_the_cradle_to_a_reboot() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("node");
    let made = ok(
        &root,
        &[
            "create",
            "--board",
            "h100-sxm5-80gb",
            "--gpus",
            "2",
            "--name",
            "one",
            "--latency",
            "zero",
        ],
    );
    assert!(
        made.contains("node one with 2 GPUs") && made.contains("LD_LIBRARY_PATH="),
        "{made}"
    );

    let pid = ok(
        &root,
        &[
            "run-workload",
            "--gpu",
            "1",
            "--memory",
            "2000",
            "--utilization",
            "100",
            "--name",
            "train",
        ],
    );
    let pid = pid.trim();
    let node = shown(&root);
    assert_eq!(node["gpus"][1]["memory_used_mib"], 2000);
    assert_eq!(node["gpus"][1]["utilization_percent"], 100);
    assert_eq!(node["gpus"][0]["utilization_percent"], 0);
    assert_eq!(node["workloads"][0]["name"], "train");
    ok(&root, &["stop-workload", pid]);

    ok(&root, &["inject", "xid", "79", "--gpu", "0"]);
    let node = shown(&root);
    assert_eq!(
        (&node["gpus"][0]["index"], &node["gpus"][1]["index"]),
        (&serde_json::Value::Null, &0.into())
    );
    let (code, _, error) = sim(&root, &["reset", "0"]);
    assert_eq!(code, 1);
    assert!(error.contains("reboot"), "{error}");
    ok(&root, &["reboot"]);
    assert_eq!(shown(&root)["gpus"][0]["index"], 0);
    let text = ok(&root, &["show"]);
    assert!(
        text.contains("NVIDIA H100 80GB HBM3") && text.contains("0000:11:00.0"),
        "{text}"
    );
}

#[test]
fn faults_of_calls_come_and_go_by_their_ids() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("node");
    ok(&root, &["create", "--preset", "a30x4", "--seed", "7"]);
    let call = [
        "inject",
        "call",
        "nvmlDeviceCreate*",
        "--fail",
        "INSUFFICIENT_RESOURCES",
        "--gpu",
        "2",
        "--after",
        "1",
    ];
    assert_eq!(ok(&root, &call), "1\n");
    assert_eq!(
        ok(
            &root,
            &["inject", "call", "nvmlDeviceGetName", "--delay", "20ms"]
        ),
        "2\n"
    );
    let faults = shown(&root)["faults"].clone();
    assert_eq!(faults[0]["effect"]["fail"], 23);
    assert_eq!(faults[1]["effect"]["delay"], 20_000);
    ok(&root, &["clear", "1"]);
    assert_eq!(shown(&root)["faults"].as_array().unwrap().len(), 1);
    assert_eq!(sim(&root, &["clear", "1"]).0, 1);
    ok(&root, &["clear"]);
    assert_eq!(shown(&root)["faults"].as_array().unwrap().len(), 0);
}

#[rstest]
#[case::a_letter_too_few("nvmlDeviceGetPowerUsag", "did you mean nvmlDeviceGetPowerUsage,")]
#[case::wrong_case("nvmldevicegetname", "did you mean nvmlDeviceGetName,")]
#[case::a_prefix_of_nothing("nvmlDeviceCraete*", "did you mean nvmlDeviceCreate*,")]
#[case::nothing_like_it("x", "names are those of NVIDIA's header")]
fn a_function_that_does_not_exist_is_refused(#[case] name: &str, #[case] advice: &str) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("node");
    ok(&root, &["create", "--preset", "a30x4"]);
    let (code, out, error) = sim(&root, &["inject", "call", name, "--hang"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(
        error.contains(&format!("no function {name:?}")) && error.contains(advice),
        "{error}"
    );
    assert_eq!(shown(&root)["faults"].as_array().unwrap().len(), 0);
    // What matches something is taken: every function, and a whole name with a star.
    ok(&root, &["inject", "call", "*", "--delay", "1ms"]);
    ok(&root, &["inject", "call", "nvmlInit_v2*", "--delay", "1ms"]);
}

/// A call that succeeds without having written its answer would hand the caller whatever was in memory.
#[test]
fn success_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("node");
    ok(&root, &["create", "--preset", "a30x4"]);
    for code in ["0", "success"] {
        let arguments = ["inject", "call", "nvmlDeviceGetName", "--fail", code];
        let (status, out, error) = sim(&root, &arguments);
        assert_eq!((status, out.as_str()), (1, ""));
        assert!(error.contains("SUCCESS is no failure"), "{error}");
    }
    assert_eq!(shown(&root)["faults"].as_array().unwrap().len(), 0);
}

#[test]
fn the_nodes_nvidia_smi_lists_and_resets() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("it's a node");
    ok(&root, &["create", "--preset", "a30x4"]);
    ok(&root, &["inject", "lost", "--gpu", "3"]);
    let smi = |arguments: &[&str]| {
        let output = std::process::Command::new(root.join("usr/bin/nvidia-smi"))
            .args(arguments)
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    let (code, list) = smi(&["-L"]);
    assert_eq!((code, list.lines().count()), (Some(0), 4));
    assert!(list.starts_with("GPU 0: NVIDIA A30 (UUID: GPU-"), "{list}");
    assert_eq!(shown(&root)["gpus"][3]["troubles"][0], "lost");
    let (code, said) = smi(&["--gpu-reset", "-i", "0000:e3:00.0"]);
    assert_eq!(
        (code, said.as_str()),
        (
            Some(0),
            "GPU 00000000:E3:00.0 was successfully reset.\nAll done.\n"
        )
    );
    assert_eq!(
        shown(&root)["gpus"][3]["troubles"]
            .as_array()
            .unwrap()
            .len(),
        0
    );
    ok(&root, &["run-workload", "--gpu", "0"]);
    assert_eq!(smi(&["-r", "-i", "0"]).0, Some(19));
    ok(&root, &["stop-workload", "5000000"]);
    ok(&root, &["unload"]);
    assert_eq!(smi(&["-L"]).0, Some(9));
}

#[test]
fn mistakes_are_named_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("node");
    for (arguments, reason) in [
        (vec!["show"], "no simulated node"),
        (
            vec!["create", "--board", "h100"],
            "there is no board `h100`",
        ),
        (
            vec!["create", "--board", "t4-16gb", "--gpus", "17"],
            "1 to 16",
        ),
        (
            vec!["create", "--preset", "dgx"],
            "there is no preset `dgx`",
        ),
        (vec!["create", "--node", "/nonexistent"], "/nonexistent"),
        (
            vec!["create", "--node", "/dev/zero"],
            "/dev/zero:1:1048577: larger than",
        ),
        (vec!["create", "--node", "/dev/null"], "/dev/null:1:1: "),
        (
            vec![
                "create",
                "--board",
                "t4-16gb",
                "--driver-version",
                "../../580",
            ],
            "`../../580` is no driver version",
        ),
        (
            vec!["create", "--board", "t4-16gb", "--driver-version="],
            "`` is no driver version",
        ),
        (vec!["create"], "--board"),
        (
            vec!["create", "--board", "t4-16gb", "--preset", "mixed"],
            "cannot be used with",
        ),
        (
            vec!["create", "--preset", "mixed", "--latency", "slow"],
            "slow",
        ),
    ] {
        let (code, _, error) = sim(&root, &arguments);
        assert!(
            code != 0 && error.contains(reason),
            "{arguments:?}: {error}"
        );
        assert!(!root.exists(), "{arguments:?}");
    }
    std::fs::write(&root, "").unwrap();
    let (code, _, error) = sim(&root, &["create", "--board", "t4-16gb"]);
    let named = format!("cannot make a node at {}: ", root.display());
    assert!(code == 1 && error.contains(&named), "{error}");
}

#[test]
fn boards_and_presets_are_listed() {
    let root = Path::new("/nonexistent");
    assert_eq!(ok(root, &["boards"]).lines().count(), 19);
    let presets: Vec<String> = serde_json::from_str(&ok(root, &["presets", "-o", "json"])).unwrap();
    assert_eq!((presets.len(), presets[1].as_str()), (8, "dgx-h100"));
}

/// Runs `lathe` with a standard output whose reader has gone.
fn unread(root: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let program = assert_cmd::cargo::cargo_bin("lathe");
    let output = std::process::Command::new(program)
        .args(arguments)
        .env("LATHE_ROOT", root)
        .stdout(writer)
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), errors)
}

#[test]
fn a_reader_that_has_gone_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("node");
    let create = ["sim", "create", "--preset", "a30x4"];
    assert_eq!(unread(&root, &create), (Some(0), String::new()));
    let config = folder.path().join("config.yaml");
    let spec = "[{devices: all, mig-enabled: true, mig-devices: {4g.96gb: 1}}]";
    std::fs::write(
        &config,
        format!("{{version: v1, mig-configs: {{x: {spec}}}}}"),
    )
    .unwrap();
    for arguments in [
        "sim show",
        "sim show -o json",
        "sim show -o yaml",
        "sim boards",
        "sim presets",
        "sim trace",
        "sim run-workload --gpu 0",
        "sim inject call nvmlDeviceGetName --delay 1ms",
        "sim nvidia-smi -L",
        "sim nvidia-smi -r -i 3",
        "mig export",
        "mig generate-config",
        "feature-discovery --oneshot --output-file=",
        "demo --latency zero",
    ] {
        let words: Vec<&str> = arguments.split(' ').collect();
        assert_eq!(
            unread(&root, &words),
            (Some(0), String::new()),
            "{arguments}"
        );
    }
    // The answer is in the exit code, as always.
    let plan = ["mig", "plan", "-f", config.to_str().unwrap()];
    let (code, errors) = unread(&root, &plan);
    assert!(
        code == Some(3) && errors.contains("4g.24gb"),
        "{code:?} {errors}"
    );
}

#[test]
fn output_that_cannot_be_written_is_a_failure_and_no_crash() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full");
    let program = assert_cmd::cargo::cargo_bin("lathe");
    for arguments in [
        &["sim", "boards"][..],
        &["demo", "--once", "--latency", "zero"],
    ] {
        let mut command = std::process::Command::new(&program);
        let output = command
            .args(arguments)
            .stdout(full().unwrap())
            .output()
            .unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(
            errors.starts_with("error: ") && errors.lines().count() == 1,
            "{errors}"
        );
        let mut command = std::process::Command::new(&program);
        let output = command
            .args(["sim", "show", "--root", "/nonexistent"])
            .stderr(full().unwrap());
        assert_eq!(
            output.status().unwrap().code(),
            Some(1),
            "a full error output"
        );
    }
}
