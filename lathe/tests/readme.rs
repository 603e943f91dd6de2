//! The README's commands for one machine do what it says when they are typed as they stand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::time::Duration;

use assert_cmd::Command;

const README: &str = include_str!("../../README.md");

/// The text below a heading, up to the next one of any level.
fn section(heading: &str) -> &'static str {
    let (_, below) = README.split_once(heading).expect(heading);
    below.split("\n#").next().unwrap()
}

/// The first fenced block of a language.
fn block<'a>(text: &'a str, language: &str) -> &'a str {
    let (_, from) = text.split_once(&format!("```{language}\n")).unwrap();
    from.split("```").next().unwrap()
}

fn commands(text: &str) -> impl Iterator<Item = &str> {
    block(text, "console")
        .lines()
        .filter_map(|line| line.strip_prefix("$ "))
}

#[test]
fn a_practice_node_and_a_change_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let by_hand = section("### Cutting GPUs by hand\n");
    std::fs::write(folder.path().join("config.yaml"), block(by_hand, "yaml")).unwrap();

    let practice = section("### A node to practise on\n");
    let lines: Vec<String> = commands(practice)
        .chain(commands(by_hand))
        .map(|line| line.replace("/tmp/node", folder.path().join("node").to_str().unwrap()))
        .collect();
    assert!(lines.iter().any(|line| line.starts_with("lathe mig plan")));
    assert!(lines.iter().any(|line| line.starts_with("lathe mig apply")));

    let lathe = Path::new(env!("CARGO_BIN_EXE_lathe")).parent().unwrap();
    let path = format!("{}:{}", lathe.display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh")
        .args(["-ec", &lines.join("\n")])
        .current_dir(folder.path())
        .env("PATH", path)
        .timeout(Duration::from_secs(120))
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{out}{error}");
    // Of `all-balanced`, the one 3g.40gb of each GPU stays, and `training` wants a second.
    for change in ["keep       1 × 3g.40gb", "create     3g.40gb at 0:4"] {
        assert_eq!(out.matches(change).count(), 4, "{out}");
    }
    let done = out
        .matches("MIG configuration applied successfully")
        .count();
    assert_eq!(done, 2, "{out}");
}
