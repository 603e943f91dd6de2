//! `lathe demo`: its story, and how it ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use rstest::rstest;
use rustix::process::{Pid, Signal, kill_process};

/// All parts at work together: a layout is applied, shows in labels and metrics, and goes again.
#[test]
fn the_story_comes_out_as_told() {
    let folder = tempfile::tempdir().unwrap();
    let told = assert_cmd::Command::cargo_bin("lathe")
        .unwrap()
        .args(["demo", "--once", "--latency", "zero"])
        .env("TMPDIR", folder.path())
        .timeout(Duration::from_secs(240))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&told.stdout), text(&told.stderr));
    assert!(told.status.success(), "{out}\n{error}");
    assert!(
        out.contains("metrics show the 32 instances") && out.contains("8 whole GPUs"),
        "{out}"
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[rstest]
#[case::interrupted(Signal::INT)]
#[case::terminated(Signal::TERM)]
#[case::terminal_closed(Signal::HUP)]
fn however_it_ends_nothing_stays_behind(#[case] signal: Signal) {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = Command::new(assert_cmd::cargo::cargo_bin("lathe"))
        .args(["demo", "--preset", "a30x4", "--latency", "zero"])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let left = || std::fs::read_dir(folder.path()).unwrap().count();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("KUBECONFIG=")));
    assert_eq!(left(), 1);
    let pid = Pid::from_raw(demo.id().try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
    lines.for_each(drop);
    assert_eq!(demo.wait().unwrap().code(), Some(0));
    assert_eq!(left(), 0);
}
