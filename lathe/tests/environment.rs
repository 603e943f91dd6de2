//! Variables that a manifest sets to nothing count as not set, whichever they are.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use assert_cmd::Command;
use rstest::rstest;
use sim_nvml::admin::SimulatedNode;
use sim_nvml::presets::NodeSpec;

/// The program with every variable empty that the command's help names, but those in `besides`.
fn lathe(arguments: &[&str], besides: &[&str]) -> Command {
    let program = || {
        let mut command = Command::cargo_bin("lathe").unwrap();
        command.args(arguments).timeout(Duration::from_secs(60));
        command
    };
    let help = program().arg("--help").output().unwrap().stdout;
    let help = String::from_utf8(help).unwrap();
    let variables: Vec<&str> = help
        .split("[env: ")
        .skip(1)
        .map(|rest| rest.split(['=', ']']).next().unwrap())
        .filter(|name| !besides.contains(name))
        .collect();
    assert!(variables.len() > 2, "{help}");
    let mut command = program();
    command.envs(variables.iter().map(|name| (name, "")));
    command
}

#[rstest]
#[case(&["mig", "export"], "mig-enabled: false")]
#[case(&["mig", "generate-config"], "all-balanced")]
#[case(&["sim", "show"], "NVIDIA H100 80GB HBM3")]
#[case(&["feature-discovery"], "")]
fn empty_variables_change_nothing(#[case] arguments: &[&str], #[case] says: &str) {
    let folder = tempfile::tempdir().unwrap();
    let spec = NodeSpec::uniform("h100-sxm5-80gb", 1).unwrap();
    SimulatedNode::create(folder.path(), &spec).unwrap();
    // An empty value of this one is standard output.
    let mut command = lathe(arguments, &["GFD_OUTPUT_FILE"]);
    if arguments == ["feature-discovery"] {
        command.arg("--oneshot");
    }
    let output = command.arg("--root").arg(folder.path()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(says), "{text}");
}

#[rstest]
#[case(&["dcgm-exporter"], &["--collect-interval", "never"], "--collect-interval")]
#[case(&["mig-manager"], &[], "--node-name")]
#[case(&["mig", "apply"], &[], "--config-file")]
fn only_what_is_really_wrong_is_complained_about(
    #[case] command: &[&str],
    #[case] arguments: &[&str],
    #[case] says: &str,
) {
    let output = lathe(command, &[]).args(arguments).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains(says), "{errors}");
    assert!(!errors.contains("none was supplied"), "{errors}");
}

#[rstest]
#[case(&["device-plugin"], "MIG_STRATEGY")]
#[case(&["mig-manager"], "NODE_NAME")]
#[case(&["dcgm-exporter"], "LATHE_LOG")]
fn a_variable_that_is_no_text_is_named(#[case] command: &[&str], #[case] variable: &str) {
    use std::os::unix::ffi::OsStrExt as _;
    let no_text = std::ffi::OsStr::from_bytes(b"\xff");
    let mut program = Command::cargo_bin("lathe").unwrap();
    program.timeout(Duration::from_secs(60)).args(command);
    let output = program.env(variable, no_text).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains(variable), "{errors}");
}
