//! The kubectl commands that the README shows work, and print what it shows.

use std::time::{Duration, Instant};

use sim_nvml::model::latency::Latency;

use crate::support::cluster::{LIMIT, cluster};
use crate::support::install::{repository, with_lathe};
use crate::support::tools::run;

const HEADING: &str = "### On a cluster";
/// The node and the namespace as the README calls them.
const NODE: &str = "node-0";

/// A command and the lines it prints.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    command: String,
    output: Vec<String>,
}

/// Commands in the console blocks below [`HEADING`].
fn commands(readme: &str) -> Vec<Shown> {
    let section = readme
        .split(HEADING)
        .nth(1)
        .expect("the README has the section");
    let section = section.split("\n## ").next().unwrap();
    let mut shown: Vec<Shown> = Vec::new();
    let mut inside = false;
    for line in section.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| inside) {
            shown.push(Shown {
                command: command.to_owned(),
                output: Vec::new(),
            });
        } else if inside && let Some(last) = shown.last_mut() {
            last.output.push(line.to_owned());
        }
    }
    shown
}

/// A line with blanks made one, and what differs from run to run replaced.
fn normal(line: &str, node: &str) -> String {
    let words = line.split_whitespace().map(|word| {
        let is_age = word.ends_with(['s', 'm', 'h', 'd'])
            && word.starts_with(|c: char| c.is_ascii_digit())
            && word
                .chars()
                .all(|c| c.is_ascii_digit() || "smhd".contains(c));
        let is_measured = word.contains('.') && word.parse::<f64>().is_ok();
        if is_age {
            "AGE".to_owned()
        } else if is_measured {
            "N".to_owned()
        } else if word.starts_with("v1.") {
            "VERSION".to_owned()
        } else {
            word.replace(node, NODE)
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn words_that_differ_from_run_to_run_are_replaced() {
    assert_eq!(
        normal("gpu-7   Ready  2m13s v1.36.1  success in 3.4 s", "gpu-7"),
        "node-0 Ready AGE VERSION success in N s"
    );
}

#[tokio::test]
async fn commands_print_what_the_readme_shows() {
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let shown: Vec<Shown> = commands(&readme)
        .into_iter()
        .filter(|shown| shown.command.starts_with("kubectl "))
        .collect();
    assert!(shown.len() >= 3, "{shown:?}");
    let Some(cluster) = cluster().await else {
        return;
    };
    with_lathe(
        &cluster,
        "dgx-h100",
        Latency::default(),
        |lathe| async move {
            for Shown { command, output } in shown {
                let command = command.replace(NODE, &lathe.node_name).replace(
                    "--namespace lathe",
                    &format!("--namespace {}", lathe.namespace),
                );
                let expected: Vec<String> = output.iter().map(|line| normal(line, NODE)).collect();
                let began = Instant::now();
                loop {
                    let printed = run("sh", &["-c", &command], "").await;
                    let printed: Vec<String> = printed
                        .lines()
                        .map(|line| normal(line, &lathe.node_name))
                        .collect();
                    // The Event is written beside the state label, not before it.
                    let may_come = command.starts_with("kubectl get ") && began.elapsed() < LIMIT;
                    if printed == expected || !may_come {
                        assert_eq!(printed, expected, "$ {command}");
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            }
        },
    )
    .await;
}
