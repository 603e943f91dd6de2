//! Conventions that neither rustc nor clippy can hold: what crates may depend on, where `unsafe` and NVML symbols may stand,
//! that each file says what it is for.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

/// Folders whose code may contain `unsafe` and NVML symbols.
const DRIVER_DOORS: [&str; 2] = ["nvml/", "sim/nvml/"];

/// Crates that the domain must stay free of: asynchronous runtimes, Kubernetes, the driver, I/O helpers.
const BANNED_IN_DOMAIN: [&str; 7] = [
    "tokio",
    "kube",
    "k8s-openapi",
    "nvml",
    "nvml-wrapper-sys",
    "rustix",
    "libloading",
];

/// Lines that a source file may have before it stops being one idea.
const LINES: usize = 900;

/// Markers that must not be left behind, spelled so that this file does not find itself.
const LEFTOVERS: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X:"),
];

pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let mut findings = domain_findings(root)?;
    for path in source_files(root)? {
        let text = std::fs::read_to_string(root.join(&path))
            .with_context(|| format!("reading {}", path.display()))?;
        findings.extend(file_findings(&path.to_string_lossy(), &text));
    }
    if findings.is_empty() {
        return Ok(());
    }
    for finding in &findings {
        eprintln!("{finding}");
    }
    bail!("{} findings", findings.len())
}

/// Rust files that git tracks.
fn source_files(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--", "*.rs"])
        .current_dir(root)
        .output()
        .context("running git ls-files")?;
    if !output.status.success() {
        bail!(
            "git ls-files failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    Ok(names
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(PathBuf::from)
        .filter(|path| root.join(path).exists())
        .collect())
}

/// Dependencies of the crate `gpu` that it must not have.
fn domain_findings(root: &Path) -> anyhow::Result<Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--package",
            "gpu",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ])
        .current_dir(root)
        .output()
        .context("running cargo tree")?;
    if !output.status.success() {
        bail!(
            "cargo tree failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let tree = String::from_utf8_lossy(&output.stdout);
    Ok(tree
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| BANNED_IN_DOMAIN.contains(name))
        .map(|name| format!("gpu: depends on {name}; the domain does no I/O"))
        .collect())
}

/// What is wrong with one file.
fn file_findings(path: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let is_crate_code = path.contains("/src/") && !path.contains("/tests/");
    if is_crate_code && !text.starts_with("//!") {
        findings.push(format!(
            "{path}:1: no module doc that says what the file is for"
        ));
    }
    let count = text.lines().count();
    if count > LINES {
        findings.push(format!(
            "{path}: {count} lines; a file is one idea (limit {LINES})"
        ));
    }
    let is_door = DRIVER_DOORS.iter().any(|door| path.starts_with(door));
    // Tests make the simulated driver's functions fail, by their names.
    let tests = text
        .lines()
        .position(|line| line.trim() == "#[cfg(test)]")
        .unwrap_or(count);
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if let Some(word) = LEFTOVERS.iter().find(|word| line.contains(**word)) {
            findings.push(format!("{path}:{number}: {word} left behind"));
        }
        if is_door || path.starts_with("xtask/") {
            continue;
        }
        let code = line.split("//").next().unwrap_or_default();
        if code.contains("allow(unsafe_code)") {
            findings.push(format!("{path}:{number}: unsafe outside nvml and sim/nvml"));
        }
        if code.contains("nvml_wrapper_sys") || code.contains("libloading::") {
            findings.push(format!(
                "{path}:{number}: only nvml opens the driver library"
            ));
        }
        if is_crate_code && index < tests && names_symbol(code) {
            findings.push(format!("{path}:{number}: only nvml names NVML's functions"));
        }
    }
    findings
}

/// Whether a line has a word such as `nvmlInit`.
fn names_symbol(code: &str) -> bool {
    code.match_indices("nvml").any(|(at, word)| {
        code[at + word.len()..].starts_with(|c: char| c.is_ascii_uppercase())
            && !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::file_findings;

    #[test]
    fn a_clean_file_has_no_findings() {
        assert!(file_findings("gpu/src/a.rs", "//! What it is.\nfn main() {}\n").is_empty());
    }

    #[test]
    fn each_convention_is_held() {
        let missing_doc = file_findings("gpu/src/a.rs", "fn main() {}\n");
        assert!(missing_doc[0].contains("no module doc"), "{missing_doc:?}");

        let long = format!("//! Doc.\n{}", "\n".repeat(1000));
        assert!(file_findings("gpu/src/a.rs", &long)[0].contains("one idea"));

        let leftover = format!("//! Doc.\n// {} later\n", concat!("TO", "DO"));
        assert!(file_findings("gpu/src/a.rs", &leftover)[0].contains("left behind"));

        let unsafe_code = "//! Doc.\n#![allow(unsafe_code)]\n";
        assert!(file_findings("gpu/src/a.rs", unsafe_code)[0].contains("unsafe outside"));
        assert!(file_findings("nvml/src/a.rs", unsafe_code).is_empty());

        let bindings = "//! Doc.\nuse nvml_wrapper_sys::bindings;\n";
        assert!(file_findings("cluster/src/a.rs", bindings)[0].contains("only nvml"));
        assert!(file_findings("sim/nvml/src/a.rs", bindings).is_empty());

        let symbol = "//! Doc.\nconst CALL: &str = \"nvmlInit_v2\";\n";
        assert!(file_findings("lathe/src/a.rs", symbol)[0].contains("only nvml names"));
        for (path, text) in [
            ("nvml/src/a.rs", symbol),
            ("lathe/tests/a.rs", symbol),
            (
                "lathe/src/a.rs",
                "//! Doc.\n/// See `nvmlInit_v2`.\nuse nvml::Driver;\n",
            ),
            (
                "lathe/src/a.rs",
                "//! Doc.\n#[cfg(test)]\nconst CALL: &str = \"nvmlInit_v2\";\n",
            ),
        ] {
            assert!(file_findings(path, text).is_empty(), "{path}: {text}");
        }
    }
}
