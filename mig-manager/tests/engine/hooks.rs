//! Hooks: the file, the order, the environment, the bounds.

use std::time::{Duration, Instant};

use mig_manager::engine::{Error, Event, Options};
use mig_manager::hooks::{HookFailure, Hooks, Point};
use rstest::rstest;

use super::{Node, OFF, all, request};

fn hooks(text: &str) -> Hooks {
    Hooks::parse("hooks.yaml", text.as_bytes()).unwrap()
}

/// Hooks that each append their name to a file.
fn recording(dir: &std::path::Path, points: &[&str]) -> Hooks {
    let log = dir.join("log");
    let entries: String = points
        .iter()
        .map(|p| {
            format!(
                "  {p}:\n  - command: sh\n    args: [-c, 'echo {p} >> {}']\n",
                log.display()
            )
        })
        .collect();
    hooks(&format!("version: v1\nhooks:\n{entries}"))
}

fn recorded(dir: &std::path::Path) -> Vec<String> {
    let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
    log.lines().map(str::to_owned).collect()
}

const ALL: [&str; 4] = [
    "apply-start",
    "pre-apply-mode",
    "pre-apply-config",
    "apply-exit",
];

fn apply_with(node: &Node, hooks: Hooks, specs: &str) -> Result<(), Error> {
    let options = Options {
        hooks,
        ..node.options()
    };
    node.engine_with(options)
        .apply(&request(specs), &|_| {})
        .map(drop)
}

#[test]
fn points_are_reached_in_order_and_only_when_needed() {
    let node = Node::of("h100-sxm5-80gb", 2);
    let dir = tempfile::tempdir().unwrap();
    let run = |specs: &str| {
        let _fresh = std::fs::remove_file(dir.path().join("log"));
        apply_with(&node, recording(dir.path(), &ALL), specs).unwrap();
        recorded(dir.path())
    };
    assert_eq!(run(&all("1g.10gb: 7")), ALL);
    // Mode is right already.
    assert_eq!(
        run(&all("7g.80gb: 1")),
        ["apply-start", "pre-apply-config", "apply-exit"]
    );
    // Nothing to do.
    assert_eq!(run(&all("7g.80gb: 1")), ["apply-start", "apply-exit"]);
    // MIG goes off, and with it the instances: no devices are configured.
    assert_eq!(run(OFF), ["apply-start", "pre-apply-mode", "apply-exit"]);
    assert_eq!(node.layouts(), ["off", "off"]);
}

#[test]
fn a_hook_can_free_the_gpu_that_the_change_needs() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let pid = node.workload(0, None);
    let options = Options {
        hooks: hooks("version: v1\nhooks: {pre-apply-mode: [{command: 'true'}]}"),
        ..node.options()
    };
    // The process ends while the hook runs, as if the hook had stopped its service.
    let stop = |event: &Event| {
        if let Event::Hook(Point::PreApplyMode) = event {
            node.sim.stop_workload(pid).unwrap();
        }
    };
    node.engine_with(options)
        .apply(&request(&all("7g.80gb: 1")), &stop)
        .unwrap();
    assert_eq!(node.layouts(), ["on 0@0/7"]);
}

#[test]
fn a_hook_that_does_not_free_the_gpu() {
    let node = Node::of("h100-sxm5-80gb", 1);
    node.workload(0, None);
    let hooks = hooks("version: v1\nhooks: {pre-apply-mode: [{command: 'true'}]}");
    node.forget_calls();
    let error = apply_with(&node, hooks, &all("7g.80gb: 1")).unwrap_err();
    assert_eq!(error.exit_code(), 4, "{error}");
    assert_eq!(node.changes(), [""; 0]);
}

#[test]
fn environment_is_the_hooks_own_with_the_flags_on_top_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("env");
    let mut hooks = hooks(&format!(
        "version: v1\nhooks:\n  apply-start:\n  - command: sh\n    workdir: {}\n    envs: {{OWN: mine, MIG_PARTED_SKIP_RESET: 'lost'}}\n    \
         args: [-c, 'env > {}; pwd >> {}']\n",
        dir.path().display(),
        out.display(),
        out.display(),
    ));
    hooks.env = [("MIG_PARTED_SKIP_RESET".to_owned(), "true".to_owned())].into();
    hooks.run(Point::ApplyStart).unwrap();
    let text = std::fs::read_to_string(out).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.contains(&"OWN=mine"), "{text}");
    assert!(lines.contains(&"MIG_PARTED_SKIP_RESET=true"), "{text}");
    assert!(
        lines.contains(&&*dir.path().canonicalize().unwrap().to_string_lossy()),
        "{text}"
    );
    // Cargo sets this for tests: it shows whether the process environment leaks.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    assert!(!text.contains("CARGO_MANIFEST_DIR"), "{text}");
}

#[rstest]
#[case("apply-start", 7, "off")]
#[case("pre-apply-mode", 7, "off")]
#[case("pre-apply-config", 7, "off")]
#[case("apply-exit", 8, "on 0@0/7")]
fn failing_hook_stops_and_undoes_and_apply_exit_still_runs(
    #[case] failing: &str,
    #[case] code: u8,
    #[case] layout: &str,
) {
    let node = Node::of("h100-sxm5-80gb", 1);
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let entries: String = ALL
        .iter()
        .map(|p| {
            let end = if *p == failing {
                "echo out of luck >&2; exit 3"
            } else {
                "true"
            };
            format!(
                "  {p}:\n  - {{command: sh, args: [-c, 'echo {p} >> {}; {end}']}}\n",
                log.display()
            )
        })
        .collect();
    let hooks = hooks(&format!("version: v1\nhooks:\n{entries}"));
    let error = apply_with(&node, hooks, &all("7g.80gb: 1")).unwrap_err();
    assert_eq!(error.exit_code(), code, "{error}");
    let text = error.to_string();
    assert!(
        text.contains(failing) && text.contains("out of luck") && text.contains('3'),
        "{text}"
    );
    assert_eq!(
        recorded(dir.path()).last().map(String::as_str),
        Some("apply-exit")
    );
    assert_eq!(node.layouts(), [layout]);
    assert_eq!(node.journal(), None);
}

#[test]
fn apply_exit_runs_after_an_impossible_request() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let dir = tempfile::tempdir().unwrap();
    let error = apply_with(&node, recording(dir.path(), &ALL), &all("1g.5gb: 7")).unwrap_err();
    assert_eq!(error.exit_code(), 3);
    assert_eq!(recorded(dir.path()), ["apply-start", "apply-exit"]);
}

#[test]
fn what_a_failed_hook_printed_is_one_harmless_line() {
    let hooks = hooks(
        "version: v1\nhooks:\n  apply-start:\n  - {command: sh, args: [-c, 'printf \"one\\n\\033[2Jtwo\\007\"; exit 3']}\n",
    );
    let error = hooks.run(Point::ApplyStart).unwrap_err().to_string();
    assert!(error.ends_with("; it printed: one |  [2Jtwo "), "{error:?}");
}

#[test]
fn hook_that_does_not_end_is_killed_with_its_children() {
    let dir = tempfile::tempdir().unwrap();
    let pid = dir.path().join("pid");
    let mut hooks = hooks(&format!(
        "version: v1\nhooks:\n  apply-start:\n  - {{command: sh, args: [-c, 'echo started; sleep 600 & echo $! > {}; wait']}}\n",
        pid.display()
    ));
    // Long enough that it has started its child by then on any machine.
    hooks.timeout = Duration::from_secs(10);
    let error = hooks.run(Point::ApplyStart).unwrap_err();
    assert!(
        matches!(error.failure, HookFailure::Timeout { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("started"), "{error}");
    let child = std::fs::read_to_string(pid).unwrap();
    let stat = format!("/proc/{}/stat", child.trim());
    let deadline = Instant::now() + Duration::from_secs(30);
    let ended = || std::fs::read_to_string(&stat).map_or(true, |s| s.contains(") Z "));
    while !ended() {
        assert!(Instant::now() < deadline, "the hook's child outlived it");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn hook_that_leaves_a_child_behind_does_not_hold_the_apply_up() {
    let hooks = hooks(
        "version: v1\nhooks:\n  apply-start:\n  - {command: sh, args: [-c, 'sleep 60 & echo left it']}\n",
    );
    let began = Instant::now();
    hooks.run(Point::ApplyStart).unwrap();
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn unknown_command() {
    let hooks = hooks("version: v1\nhooks: {apply-start: [{command: no-such-command-here}]}");
    let error = hooks.run(Point::ApplyStart).unwrap_err();
    assert_eq!(
        error.to_string(),
        "hook apply-start: no-such-command-here: no such command in PATH"
    );
}

#[rstest]
#[case::version("version: v2\nhooks: {}", "hooks.yaml:1:10: unknown version")]
#[case::point(
    "version: v1\nhooks:\n  pre-aply-mode: []\n",
    "hooks.yaml:3:3: unknown hook \"pre-aply-mode\": did you mean pre-apply-mode?"
)]
#[case::key(
    "version: v1\nhooks:\n  apply-start:\n  - {command: a, arg: [b]}\n",
    "arg"
)]
#[case::no_command("version: v1\nhooks:\n  apply-start:\n  - {args: [b]}\n", "command")]
#[case::empty_command(
    "version: v1\nhooks:\n  apply-start:\n  - {command: ''}\n",
    "hooks.yaml:4:5: a hook needs a command"
)]
#[case::duplicate(
    "version: v1\nhooks:\n  apply-start: []\n  apply-start: []\n",
    "duplicate"
)]
#[case::binary("\u{0}\u{1}\u{2}", "hooks.yaml:1:")]
fn bad_file(#[case] text: &str, #[case] says: &str) {
    let error = Hooks::parse("hooks.yaml", text.as_bytes())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(says) && error.starts_with("hooks.yaml:"),
        "{error}"
    );
}

#[test]
fn empty_hooks_are_fine() {
    for text in [
        "version: v1",
        "version: v1\nhooks:\n",
        "version: v1\nhooks: {apply-start: }",
    ] {
        assert!(!hooks(text).has(Point::ApplyStart));
    }
}
