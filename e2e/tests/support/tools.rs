//! The programs users have: kubectl, helm, promtool. Each run is bounded.

use std::process::{Output, Stdio};

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::cluster::LIMIT;

/// Whether a program is on the PATH.
pub(crate) fn exists(program: &str) -> bool {
    std::env::var_os("PATH")
        .iter()
        .flat_map(std::env::split_paths)
        .any(|folder| folder.join(program).is_file())
}

/// Runs a program with `input` and returns what came of it, whatever it was.
pub(crate) async fn outcome(program: &str, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| panic!("{program} is needed: {error}"));
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let feed = tokio::spawn(async move {
        // A program that does not read its input closes it.
        let _ = stdin.write_all(input.as_bytes()).await;
    });
    let output = tokio::time::timeout(LIMIT, child.wait_with_output())
        .await
        .unwrap_or_else(|_| panic!("{program} {} does not end", arguments.join(" ")))
        .unwrap();
    feed.await.unwrap();
    output
}

/// Runs a program that must succeed; returns what it printed.
pub(crate) async fn run(program: &str, arguments: &[&str], input: &str) -> String {
    let output = outcome(program, arguments, input).await;
    assert!(
        output.status.success(),
        "{program} {}: {}{}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) async fn kubectl(arguments: &[&str]) -> String {
    run("kubectl", arguments, "").await
}
