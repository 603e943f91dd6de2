//! `lathe mig` as scripts written for `nvidia-mig-parted` use it: flags, variables, lines on standard output, exit codes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use assert_cmd::Command;
use rstest::rstest;
use sim_nvml::admin::{SimulatedNode, WorkloadSpec};
use sim_nvml::model::faults::{Effect, Fault};
use sim_nvml::presets::NodeSpec;

const CONFIG: &str = "\
version: v1
mig-configs:
  all-disabled:
  - {devices: all, mig-enabled: false}
  all-1g.10gb:
  - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}
  impossible:
  - {devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}
";

struct Setup {
    sim: SimulatedNode,
    config: PathBuf,
    folder: tempfile::TempDir,
}

impl Setup {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let spec = NodeSpec::uniform("h100-sxm5-80gb", 2).unwrap();
        let sim = SimulatedNode::create(&folder.path().join("node"), &spec).unwrap();
        let config = folder.path().join("config.yaml");
        std::fs::write(&config, CONFIG).unwrap();
        Self {
            sim,
            config,
            folder,
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let lathe = Command::cargo_bin("lathe").unwrap();
        self.program(lathe.get_program(), &[&["mig"], arguments].concat())
    }

    fn program(&self, program: &std::ffi::OsStr, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .env("LATHE_ROOT", self.sim.root())
            .timeout(Duration::from_secs(120));
        command
    }

    /// Exit code, standard output, standard error.
    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        said(&mut self.command(arguments))
    }

    fn with_config(&self, verb: &str, name: &str) -> (i32, String, String) {
        self.run(&[verb, "-f", self.config.to_str().unwrap(), "-c", name])
    }
}

fn said(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn upstream_lines_on_standard_output() {
    let setup = Setup::new();
    let out = |verb, name| {
        let (code, out, error) = setup.with_config(verb, name);
        assert_eq!(code, 0, "{error}");
        out
    };
    assert_eq!(
        out("apply", "all-1g.10gb"),
        "MIG configuration applied successfully\n"
    );
    assert_eq!(
        out("assert", "all-1g.10gb"),
        "Selected MIG configuration currently applied\n"
    );
    let config = setup.config.to_str().unwrap();
    let mode = setup.run(&["assert", "-mf", config, "-c", "all-1g.10gb"]);
    assert_eq!(
        mode.1,
        "Selected MIG mode settings from configuration currently applied\n"
    );
    let valid = setup.run(&["assert", "-a", "-f", config, "-c", "impossible"]);
    assert_eq!(valid.1, "Selected MIG configuration is valid\n");

    let file = setup.folder.path().join("checkpoint.json");
    let file = file.to_str().unwrap();
    let saved = setup.run(&["checkpoint", "-f", file]);
    assert_eq!(
        (saved.0, &*saved.1),
        (0, "MIG configuration checkpointed successfully\n")
    );
    out("apply", "all-disabled");
    let restored = setup.run(&["restore", "-f", file]);
    assert_eq!(
        (restored.0, &*restored.1),
        (0, "MIG configuration restored successfully\n"),
        "{}",
        restored.2
    );
    assert_eq!(
        setup.run(&["export", "-l", "now"]).1,
        "version: v1\nmig-configs:\n  now:\n  - devices: all\n    mig-enabled: true\n    mig-devices:\n      1g.10gb: 7\n"
    );
}

#[test]
fn differs_is_1_and_says_how() {
    let setup = Setup::new();
    let (code, out, error) = setup.with_config("assert", "all-1g.10gb");
    assert_eq!((code, &*out), (1, ""));
    assert!(
        error.contains("GPU 1 has MIG off; wanted: 7 × 1g.10gb"),
        "{error}"
    );
    // Hardware that cannot be read back as wanted is another matter than a difference.
    assert_eq!(setup.with_config("assert", "all-disabled").0, 0);
}

#[rstest]
#[case::no_config(&["apply"], "--config-file")]
#[case::unknown_flag(&["apply", "--force"], "--force")]
#[case::unknown_format(&["export", "-o", "xml"], "xml")]
#[case::no_subcommand(&[], "")]
#[case::no_checkpoint_file(&["checkpoint"], "--checkpoint-file")]
#[case::missing_file(&["apply", "-f", "/nonexistent", "-c", "x"], "/nonexistent")]
fn usage_is_2(#[case] arguments: &[&str], #[case] says: &str) {
    let setup = Setup::new();
    let (code, out, error) = setup.run(arguments);
    assert_eq!((code, &*out), (2, ""), "{error}");
    assert!(error.contains(says), "{error}");
}

#[rstest]
#[case::unknown_name("all-1g.10g", "did you mean all-1g.10gb?")]
#[case::no_name("", "name one of the 3 configs")]
fn unknown_config_is_2(#[case] name: &str, #[case] says: &str) {
    let setup = Setup::new();
    for verb in ["plan", "apply", "assert"] {
        let (code, _, error) = setup.with_config(verb, name);
        assert_eq!(code, 2, "{error}");
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn bad_file_is_2_with_line_and_column() {
    let setup = Setup::new();
    std::fs::write(
        &setup.config,
        "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: maybe\n",
    )
    .unwrap();
    let (code, _, error) = setup.with_config("apply", "a");
    assert_eq!(code, 2);
    assert!(error.contains("config.yaml:5:18: "), "{error}");
}

/// `lathe mig export > config.yaml`: no error may end up in the file.
#[rstest]
fn a_config_that_cannot_be_made_is_no_output(
    #[values("export", "generate-config")] command: &str,
    #[values("json", "yaml")] format: &str,
) {
    let setup = Setup::new();
    setup.sim.unload_driver().unwrap();
    let (code, out, error) = setup.run(&[command, "-o", format]);
    assert_eq!((code, &*out), (6, ""), "{error}");
    assert!(error.starts_with("error: "), "{error}");
}

#[test]
fn impossible_is_3_in_plan_and_apply() {
    let setup = Setup::new();
    let (code, out, error) = setup.with_config("plan", "impossible");
    assert_eq!(code, 3, "{error}");
    assert!(
        out.contains("impossible this GPU has no profile 1g.5gb; nearest: 1g.10gb"),
        "{out}"
    );
    let (code, out, error) = setup.with_config("apply", "impossible");
    assert_eq!((code, &*out), (3, ""));
    assert!(
        error.contains("GPUs 0-1: this GPU has no profile 1g.5gb"),
        "{error}"
    );
}

#[test]
fn in_use_is_4_with_pid_and_command() {
    let setup = Setup::new();
    let workload = WorkloadSpec {
        name: "train".to_owned(),
        ..WorkloadSpec::default()
    };
    let pid = setup.sim.run_workload(workload).unwrap();
    for verb in ["plan", "apply"] {
        let (code, _, error) = setup.with_config(verb, "all-1g.10gb");
        assert_eq!(code, 4, "{error}");
        assert!(
            error.contains(&format!("GPU 0 is in use by process {pid} (train)")),
            "{error}"
        );
    }
}

#[test]
fn driver_trouble_is_6() {
    let setup = Setup::new();
    setup.sim.unload_driver().unwrap();
    let (code, _, error) = setup.with_config("apply", "all-1g.10gb");
    assert_eq!(code, 6, "{error}");
    let empty = tempfile::tempdir().unwrap();
    let (code, _, error) = said(setup.command(&["export"]).env("LATHE_ROOT", empty.path()));
    assert_eq!(code, 6, "{error}");
    assert!(error.contains("libnvidia-ml.so.1"), "{error}");
}

#[test]
fn failed_is_7_when_undone_and_8_when_not() {
    let setup = Setup::new();
    let fault = Fault {
        gpu: Some(1),
        ..Fault::new(
            "nvmlDeviceCreateGpuInstanceWithPlacement",
            Effect::Fail(sim_nvml::Code::UNKNOWN),
        )
    };
    setup.sim.inject(fault).unwrap();
    let (code, _, error) = setup.with_config("apply", "all-1g.10gb");
    assert_eq!(code, 7, "{error}");
    let config = setup.config.to_str().unwrap();
    let (code, out, error) = setup.run(&[
        "apply",
        "-f",
        config,
        "-c",
        "all-1g.10gb",
        "--on-failure",
        "keep",
        "-o",
        "json",
    ]);
    assert_eq!(code, 8, "{error}");
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["exit_code"], 8);
    assert!(
        report["error"].as_str().unwrap().contains("GPU 1"),
        "{report}"
    );
}

#[test]
fn variables_stand_in_for_flags() {
    let setup = Setup::new();
    let (code, out, error) = said(
        setup
            .command(&["apply"])
            .env("MIG_PARTED_CONFIG_FILE", &setup.config)
            .env("MIG_PARTED_SELECTED_CONFIG", "all-1g.10gb")
            .env("MIG_PARTED_HOOKS_FILE", "")
            .env("MIG_PARTED_DEBUG", "true")
            .env("MIG_PARTED_SKIP_RESET", "false")
            .env("MIG_PARTED_MODE_CHANGE_ONLY", "1"),
    );
    assert_eq!(
        (code, &*out),
        (0, "MIG configuration applied successfully\n"),
        "{error}"
    );
    // Only the mode was changed.
    assert_eq!(setup.sim.state().unwrap().gpus[0].mig.instances.len(), 0);
    assert!(setup.sim.state().unwrap().gpus[0].mig.current);
    let exported = said(
        setup
            .command(&["export"])
            .env("MIG_PARTED_OUTPUT_FORMAT", "json")
            .env("MIG_PARTED_CONFIG_LABEL", "here"),
    );
    let exported: serde_json::Value = serde_json::from_str(&exported.1).unwrap();
    assert_eq!(exported["mig-configs"]["here"][0]["mig-enabled"], true);
}

/// Neither on nor off: a typo must not leave devices as they are, or skip a reset.
#[rstest]
#[case("MIG_PARTED_MODE_CHANGE_ONLY", "--mode-only")]
#[case("MIG_PARTED_SKIP_RESET", "--skip-reset")]
fn a_switch_that_is_neither_on_nor_off_is_2(#[case] variable: &str, #[case] flag: &str) {
    let setup = Setup::new();
    let mut command = setup.command(&["apply"]);
    command.env("MIG_PARTED_CONFIG_FILE", &setup.config);
    let (code, _, error) = said(command.env(variable, "flase"));
    assert!(
        code == 2 && error.contains("flase") && error.contains(flag),
        "{error}"
    );
    assert!(!setup.sim.state().unwrap().gpus[0].mig.current);
}

#[test]
fn hooks_see_the_flags() {
    let setup = Setup::new();
    let out = setup.folder.path().join("env");
    let hooks = setup.folder.path().join("hooks.yaml");
    let text = format!(
        "version: v1\nhooks:\n  apply-start:\n  - {{command: /bin/sh, args: [-c, 'env > {}']}}\n",
        out.display()
    );
    std::fs::write(&hooks, text).unwrap();
    let (config, hooks) = (setup.config.to_str().unwrap(), hooks.to_str().unwrap());
    let (code, _, error) = setup.run(&[
        "apply",
        "-f",
        config,
        "-c",
        "all-disabled",
        "-k",
        hooks,
        "-m",
    ]);
    assert_eq!(code, 0, "{error}");
    let env = std::fs::read_to_string(out).unwrap();
    for line in [
        format!("MIG_PARTED_CONFIG_FILE={config}"),
        "MIG_PARTED_SELECTED_CONFIG=all-disabled".to_owned(),
        format!("MIG_PARTED_HOOKS_FILE={hooks}"),
        "MIG_PARTED_SKIP_RESET=false".to_owned(),
        "MIG_PARTED_MODE_CHANGE_ONLY=true".to_owned(),
    ] {
        assert!(env.lines().any(|l| l == line), "{line} not in\n{env}");
    }
    assert!(!env.contains("LATHE_ROOT"), "{env}");
}

#[test]
fn config_from_standard_input() {
    let setup = Setup::new();
    let (code, _, error) = said(
        setup
            .command(&["apply", "-f", "-", "-c", "all-1g.10gb"])
            .write_stdin(CONFIG),
    );
    assert_eq!(code, 0, "{error}");
}

#[test]
fn under_the_upstream_name() {
    let setup = Setup::new();
    let link = setup.folder.path().join("nvidia-mig-parted");
    let program = Command::cargo_bin("lathe")
        .unwrap()
        .get_program()
        .to_owned();
    std::os::unix::fs::symlink(program, &link).unwrap();
    let config = setup.config.to_str().unwrap();
    let (code, out, error) = said(&mut setup.program(
        link.as_os_str(),
        &["-d", "apply", "-f", config, "-c", "all-1g.10gb"],
    ));
    assert_eq!(
        (code, &*out),
        (0, "MIG configuration applied successfully\n"),
        "{error}"
    );
    assert!(error.contains("DEBUG"), "{error}");
}

#[test]
fn generated_config_goes_to_a_file_and_back_in() {
    let setup = Setup::new();
    let file = setup.folder.path().join("generated.yaml");
    let file = file.to_str().unwrap();
    let (code, out, error) = setup.run(&["generate-config", "-f", file]);
    assert_eq!((code, &*out), (0, ""), "{error}");
    assert_eq!(setup.run(&["apply", "-f", file, "-c", "all-balanced"]).0, 0);
    let plan = setup.run(&["plan", "-f", file, "-c", "all-balanced", "-o", "json"]);
    let plan: serde_json::Value = serde_json::from_str(&plan.1).unwrap();
    assert_eq!(plan["gpus"][0]["verdict"], "unchanged");
    let folder: &Path = setup.folder.path();
    let (code, _, error) = setup.run(&[
        "generate-config",
        "-f",
        folder.join("no/such").to_str().unwrap(),
    ]);
    assert_eq!(code, 2, "{error}");
}
