//! `lathe demo` as people end it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use rstest::rstest;
use rustix::process::{Pid, Signal, kill_process};

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
