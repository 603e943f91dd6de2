//! Every transition as a table, and a property: the last label wins.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;

use super::*;

fn node(config: &str, shown: &str) -> Input {
    let some = |text: &str| (text != "-").then(|| text.to_owned());
    Input::Node {
        config: some(config),
        shown: some(shown),
    }
}

fn fails(message: &str) -> Failure {
    Failure {
        driver_missing: false,
        message: message.to_owned(),
        holders: vec![7],
    }
}

fn no_driver() -> Failure {
    Failure {
        driver_missing: true,
        message: "the driver is not loaded".to_owned(),
        holders: Vec::new(),
    }
}

fn in_place() -> Input {
    Input::Checked(Verdict::InPlace)
}

fn differs() -> Input {
    Input::Checked(Verdict::Differs("1 GPU".to_owned()))
}

fn refused(failure: Failure) -> Input {
    Input::Checked(Verdict::Refused(failure))
}

fn done() -> Input {
    Input::Applied(Ok("1 GPU".to_owned()))
}

/// Actions in short: `check a`, `apply a`, `show failed`, `say MigConfigFailed a: text`, `retry 5`.
fn short(actions: &[Action]) -> Vec<String> {
    actions
        .iter()
        .map(|action| match action {
            Action::Check(name) => format!("check {name}"),
            Action::Apply(name) => format!("apply {name}"),
            Action::Show(progress) => format!("show {}", progress.as_str()),
            Action::Say(note) => format!(
                "{} {} {}",
                if note.warning { "warn" } else { "say" },
                note.reason,
                note.text
            ),
            Action::RetryIn { delay, holders, .. } => format!(
                "retry {}{}",
                delay.as_secs(),
                if holders == &[7] {
                    " or when 7 is gone"
                } else {
                    ""
                }
            ),
        })
        .collect()
}

/// Runs the inputs through a new state and compares the actions after each.
fn check(steps: Vec<(Input, &[&str])>) -> State {
    let mut state = State::new(Retries::default());
    for (number, (input, expected)) in steps.into_iter().enumerate() {
        let text = format!("step {number}: {input:?}");
        assert_eq!(short(&state.step(input)), expected, "{text}");
    }
    state
}

const STARTED: &[&str] = &["show pending", "say MigConfigStarted a: 1 GPU", "apply a"];
const APPLIED: &[&str] = &["say MigConfigApplied a: 1 GPU", "show success"];

#[test]
fn a_label_is_checked_then_applied() {
    check(vec![
        (node("-", "-"), &[]),
        (node("a", "-"), &["check a"]),
        (differs(), STARTED),
        (node("a", "pending"), &[]),
        (done(), APPLIED),
        (node("a", "success"), &[]),
    ]);
}

#[test]
fn what_is_in_place_after_a_restart_is_not_said_again() {
    check(vec![
        (node("a", "success"), &["check a"]),
        (in_place(), &["show success"]),
        (node("a", "success"), &[]),
    ]);
}

#[test]
fn what_is_in_place_without_the_label_saying_so_is_said() {
    check(vec![
        (node("a", "failed"), &["check a"]),
        (
            in_place(),
            &[
                "say MigConfigApplied a: already in place, nothing changed",
                "show success",
            ],
        ),
    ]);
}

#[test]
fn a_restart_during_a_change_runs_it_again() {
    check(vec![
        (node("a", "pending"), &["check a"]),
        (differs(), STARTED),
        (done(), APPLIED),
    ]);
}

#[test]
fn an_unknown_name_fails_without_pending_and_is_tried_again_ever_later() {
    let failed = ["warn MigConfigFailed a: no such config", "show failed"];
    let mut state = check(vec![(node("a", "-"), &["check a"])]);
    for delay in [5, 10, 20, 40, 80, 160, 300, 300] {
        let actions = state.step(refused(fails("no such config")));
        let [
            said,
            shown,
            Action::RetryIn {
                turn, delay: got, ..
            },
        ] = actions.as_slice()
        else {
            panic!("{actions:?}")
        };
        assert_eq!(short(&[said.clone(), shown.clone()]), failed);
        assert_eq!(got.as_secs(), delay);
        assert_eq!(
            short(&state.step(Input::RetryDue { turn: *turn })),
            ["check a"]
        );
    }
}

#[test]
fn a_failed_change_is_retried_and_can_succeed() {
    let mut state = check(vec![
        (node("a", "success"), &["check a"]),
        (differs(), STARTED),
        (
            Input::Applied(Err(fails("GPU 0 is in use by pid 7"))),
            &[
                "warn MigConfigFailed a: GPU 0 is in use by pid 7",
                "show failed",
                "retry 5 or when 7 is gone",
            ],
        ),
    ]);
    let turn = state.turn;
    assert_eq!(short(&state.step(Input::RetryDue { turn })), ["check a"]);
    assert_eq!(short(&state.step(differs())), STARTED);
    assert_eq!(short(&state.step(done())), APPLIED);
    // The next failure begins with the short pause again.
    assert_eq!(short(&state.step(Input::Reconsider)), ["check a"]);
    assert_eq!(
        short(&state.step(refused(fails("x")))).last().unwrap(),
        "retry 5 or when 7 is gone"
    );
}

#[test]
fn another_label_is_tried_at_once_and_the_armed_retry_is_void() {
    let mut state = check(vec![
        (node("a", "-"), &["check a"]),
        (
            refused(fails("x")),
            &[
                "warn MigConfigFailed a: x",
                "show failed",
                "retry 5 or when 7 is gone",
            ],
        ),
        (node("b", "failed"), &["check b"]),
        (
            in_place(),
            &[
                "say MigConfigApplied b: already in place, nothing changed",
                "show success",
            ],
        ),
    ]);
    assert_eq!(state.step(Input::RetryDue { turn: 1 }), []);
    assert_eq!(state.step(Input::RetryDue { turn: 2 }), []);
}

#[test]
fn labels_that_come_and_go_during_a_change_count_as_the_last() {
    check(vec![
        (node("a", "-"), &["check a"]),
        (differs(), STARTED),
        (node("b", "pending"), &[]),
        (node("c", "pending"), &[]),
        (done(), &["say MigConfigApplied a: 1 GPU", "check c"]),
        (
            in_place(),
            &[
                "say MigConfigApplied c: already in place, nothing changed",
                "show success",
            ],
        ),
    ]);
}

#[test]
fn a_label_that_comes_back_during_a_change_is_no_change() {
    check(vec![
        (node("a", "-"), &["check a"]),
        (differs(), STARTED),
        (node("b", "pending"), &[]),
        (node("a", "pending"), &[]),
        (done(), APPLIED),
    ]);
}

#[test]
fn labels_that_change_during_a_check_count_as_the_last() {
    check(vec![
        (node("a", "-"), &["check a"]),
        (node("b", "-"), &[]),
        (differs(), &["check b"]),
        (
            refused(fails("x")),
            &[
                "warn MigConfigFailed b: x",
                "show failed",
                "retry 5 or when 7 is gone",
            ],
        ),
    ]);
}

#[test]
fn a_superseded_change_that_failed_is_told_but_not_shown() {
    check(vec![
        (node("a", "-"), &["check a"]),
        (differs(), STARTED),
        (node("b", "pending"), &[]),
        (
            Input::Applied(Err(fails("x"))),
            &["warn MigConfigFailed a: x", "check b"],
        ),
    ]);
}

#[test]
fn a_removed_label_does_nothing() {
    let mut state = check(vec![
        (node("a", "-"), &["check a"]),
        (
            refused(fails("x")),
            &[
                "warn MigConfigFailed a: x",
                "show failed",
                "retry 5 or when 7 is gone",
            ],
        ),
        (node("-", "failed"), &[]),
        (Input::Reconsider, &[]),
    ]);
    for turn in 0..5 {
        assert_eq!(state.step(Input::RetryDue { turn }), []);
    }
}

#[test]
fn an_empty_label_is_no_label() {
    check(vec![
        (node("", "-"), &[]),
        (node("a", "-"), &["check a"]),
        (node("", "-"), &[]),
        (differs(), &[]),
    ]);
}

#[test]
fn a_label_removed_during_a_change_leaves_its_result_and_no_retry() {
    check(vec![
        (node("a", "-"), &["check a"]),
        (differs(), STARTED),
        (node("-", "pending"), &[]),
        (done(), APPLIED),
        (node("-", "success"), &[]),
    ]);
    check(vec![
        (node("a", "-"), &["check a"]),
        (differs(), STARTED),
        (node("-", "pending"), &[]),
        (
            Input::Applied(Err(fails("x"))),
            &["warn MigConfigFailed a: x", "show failed"],
        ),
        (Input::RetryDue { turn: 1 }, &[]),
    ]);
}

#[test]
fn a_missing_driver_is_said_once_and_waited_for() {
    let waiting = "warn MigConfigWaiting a: the driver is not loaded";
    let mut state = check(vec![
        (node("a", "success"), &["check a"]),
        (refused(no_driver()), &[waiting, "show pending", "retry 1"]),
    ]);
    for delay in [
        "retry 2", "retry 4", "retry 8", "retry 16", "retry 30", "retry 30",
    ] {
        let turn = state.turn;
        assert_eq!(short(&state.step(Input::RetryDue { turn })), ["check a"]);
        assert_eq!(
            short(&state.step(refused(no_driver()))),
            ["show pending", delay]
        );
    }
    assert_eq!(short(&state.step(Input::Reconsider)), ["check a"]);
    assert_eq!(short(&state.step(differs())), STARTED);
    // Gone again in the middle: another absence, so it is said again.
    assert_eq!(
        short(&state.step(Input::Applied(Err(no_driver())))),
        [waiting, "show pending", "retry 1"]
    );
    let turn = state.turn;
    state.step(Input::RetryDue { turn });
    assert_eq!(
        short(&state.step(in_place())),
        [
            "say MigConfigApplied a: already in place, nothing changed",
            "show success"
        ]
    );
}

#[test]
fn a_failure_after_the_drivers_absence_begins_with_the_short_pause() {
    let mut state = check(vec![(node("a", "-"), &["check a"])]);
    for _ in 0..4 {
        state.step(refused(no_driver()));
        let turn = state.turn;
        state.step(Input::RetryDue { turn });
    }
    assert_eq!(
        short(&state.step(refused(fails("x")))),
        [
            "warn MigConfigFailed a: x",
            "show failed",
            "retry 5 or when 7 is gone"
        ]
    );
}

#[test]
fn a_changed_config_file_is_looked_at_again() {
    check(vec![
        (node("a", "-"), &["check a"]),
        (
            refused(fails("x")),
            &[
                "warn MigConfigFailed a: x",
                "show failed",
                "retry 5 or when 7 is gone",
            ],
        ),
        (Input::Reconsider, &["check a"]),
        // Changed once more while the check runs: its answer may be old.
        (Input::Reconsider, &[]),
        (in_place(), &["check a"]),
        (
            in_place(),
            &[
                "say MigConfigApplied a: already in place, nothing changed",
                "show success",
            ],
        ),
        // In place before and after: nothing to tell.
        (Input::Reconsider, &["check a"]),
        (in_place(), &["show success"]),
    ]);
}

#[test]
fn what_was_decided_before_the_gpus_are_watched_is_looked_at_again() {
    check(vec![
        (node("a", "-"), &["check a"]),
        (differs(), STARTED),
        (done(), APPLIED),
        // Undone by a driver that was reloaded before anybody watched it again.
        (Input::Watched, &["check a"]),
        (Input::Watched, &[]),
        (differs(), &["check a"]),
        (differs(), STARTED),
        (done(), APPLIED),
        (Input::Watched, &["check a"]),
        (in_place(), &["show success"]),
    ]);
}

#[test]
fn a_watch_that_begins_shortens_no_pause() {
    check(vec![
        (Input::Watched, &[]),
        (node("a", "-"), &["check a"]),
        (
            refused(fails("x")),
            &[
                "warn MigConfigFailed a: x",
                "show failed",
                "retry 5 or when 7 is gone",
            ],
        ),
        (Input::Watched, &[]),
    ]);
}

#[test]
fn a_config_file_that_changes_during_a_change_is_looked_at_after_it() {
    check(vec![
        (node("a", "-"), &["check a"]),
        (differs(), STARTED),
        (Input::Reconsider, &[]),
        (done(), &["say MigConfigApplied a: 1 GPU", "check a"]),
        (in_place(), &["show success"]),
    ]);
}

#[test]
fn a_lost_state_label_is_written_again_and_a_foreign_one_is_left() {
    check(vec![
        (node("a", "success"), &["check a"]),
        (in_place(), &["show success"]),
        (node("a", "failed"), &[]),
        (node("a", "-"), &["show success"]),
    ]);
}

#[test]
fn answers_nobody_asked_for_are_ignored() {
    check(vec![
        (in_place(), &[]),
        (done(), &[]),
        (Input::RetryDue { turn: 0 }, &[]),
        (Input::Reconsider, &[]),
        (node("a", "-"), &["check a"]),
        (done(), &[]),
    ]);
}

fn any_input() -> impl Strategy<Value = Input> {
    let label = prop_oneof![
        Just(None),
        Just(Some("a".to_owned())),
        Just(Some("b".to_owned()))
    ];
    prop_oneof![
        4 => label.prop_map(|config| Input::Node { config, shown: None }),
        2 => Just(Input::Reconsider),
        2 => Just(Input::Watched),
        2 => (0..6_u64).prop_map(|turn| Input::RetryDue { turn }),
    ]
}

proptest! {
    /// Whatever happens in whatever order: one job at a time, and once the labels stand still and the jobs succeed, the
    /// last wanted configuration is in place and shown.
    #[test]
    fn the_last_label_wins(
        inputs in prop::collection::vec((any_input(), any::<bool>(), 0..3_u8), 1..40),
        last in prop_oneof![Just("a"), Just("b")],
    ) {
        let mut state = State::new(Retries::default());
        let mut job: Option<Action> = None;
        let mut shown = None;
        let mut applied = String::new();
        let take = |actions: Vec<Action>, job: &mut Option<Action>, shown: &mut Option<Progress>| {
            for action in actions {
                match action {
                    Action::Check(_) | Action::Apply(_) => {
                        assert!(job.is_none(), "two jobs at once");
                        *job = Some(action);
                    }
                    Action::Show(progress) => *shown = Some(progress),
                    Action::Say(_) | Action::RetryIn { .. } => {}
                }
            }
        };
        for (input, finish, how) in inputs {
            take(state.step(input), &mut job, &mut shown);
            if finish && let Some(done) = job.take() {
                let answer = match (done, how) {
                    (Action::Check(_), 0) => Input::Checked(Verdict::Differs(String::new())),
                    (Action::Check(name), 1) if name == applied => Input::Checked(Verdict::InPlace),
                    (Action::Check(_), _) => refused(fails("x")),
                    (Action::Apply(name), 0) => {
                        applied = name;
                        Input::Applied(Ok(String::new()))
                    }
                    (_, _) => Input::Applied(Err(fails("x"))),
                };
                take(state.step(answer), &mut job, &mut shown);
            }
            prop_assert_eq!(state.is_busy(), job.is_some());
        }
        take(state.step(node(last, "-")), &mut job, &mut shown);
        take(state.step(Input::Reconsider), &mut job, &mut shown);
        for _ in 0..6 {
            let Some(done) = job.take() else { break };
            let answer = match done {
                Action::Apply(name) => {
                    applied = name;
                    Input::Applied(Ok(String::new()))
                }
                Action::Check(name) if name == applied => Input::Checked(Verdict::InPlace),
                _ => Input::Checked(Verdict::Differs(String::new())),
            };
            take(state.step(answer), &mut job, &mut shown);
        }
        prop_assert!(!state.is_busy());
        prop_assert_eq!(applied.as_str(), last);
        prop_assert_eq!(shown, Some(Progress::Success));
    }
}
