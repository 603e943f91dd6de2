//! What the pods of the end-to-end tests run: prints what its container sees, as one line of JSON, and waits to be ended.
//!
//! As `pause` it prints nothing: then it is the container that holds a pod's namespaces. It is linked statically, so that
//! its image has one file; it reads `/proc` and `/dev` and nothing else.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mode = std::env::args().nth(1);
    match mode.as_deref() {
        None => println!("{}", view()),
        Some("once") => {
            println!("{}", view());
            return ExitCode::SUCCESS;
        }
        Some("pause") => {}
        Some(other) => {
            eprintln!("unknown mode {other:?}: give none, `once` or `pause`");
            return ExitCode::from(2);
        }
    }
    wait().await
}

/// The first process of a container has no default action for signals: without a handler it lives until it is killed.
async fn wait() -> ExitCode {
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        eprintln!("the system takes no signal handlers");
        return ExitCode::FAILURE;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    ExitCode::SUCCESS
}

/// Environment, device nodes and mount points of this container.
fn view() -> Value {
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .map(|(name, value)| {
            let text = |part: std::ffi::OsString| part.to_string_lossy().into_owned();
            (text(name), text(value))
        })
        .collect();
    json!({
        "environment": environment,
        "devices": devices(Path::new("/dev")),
        "mounts": mounts(&std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()),
    })
}

/// Everything below `folder` that is neither a folder nor a link, in order.
fn devices(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else {
        return found;
    };
    for entry in entries.flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(devices(&entry.path())),
            Ok(kind) if !kind.is_symlink() => found.push(entry.path().display().to_string()),
            _ => {}
        }
    }
    found.sort();
    found
}

/// Mount points, the fifth field of each line (proc(5)).
fn mounts(table: &str) -> Vec<&str> {
    table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .collect()
}
