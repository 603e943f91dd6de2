//! Container images without an engine: archives as `docker load`, `podman load`, `ctr images import` and `kind load
//! image-archive` read them.
//!
//! An image is one layer. It is the same, byte for byte, whenever its files are: no times, fixed order and owners.

mod archive;
mod libraries;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use clap::Args;

use archive::{Entry, Image};

/// Names that NVIDIA's images give their programs: a manifest's `command:` keeps working after an image swap.
const LINKS: [&str; 7] = [
    "nvidia-mig-parted",
    "nvidia-mig-manager",
    "gpu-feature-discovery",
    "dcgm-exporter",
    "nvidia-device-plugin",
    "config-manager",
    "mps-control-daemon",
];

/// The name of the project's image without its tag. Nothing is published: it never names a registry that could be asked.
const NAME: &str = "localhost/lathe";

/// The images of the end-to-end tests.
const WORKLOAD_IMAGE: &str = "localhost/lathe-e2e/workload:1";
pub(crate) const PAUSE_IMAGE: &str = "localhost/lathe-e2e/pause:1";

/// Build container image archives: Lathe's own, and with --tests those of the end-to-end tests
#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    /// The program to put into the image; without it the release build is made and taken
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,

    /// Where the archives go
    #[arg(long, value_name = "DIR", default_value = "target/image")]
    out: PathBuf,

    /// Also build the images that the end-to-end tests' pods use
    #[arg(long)]
    tests: bool,
}

pub(crate) fn run(root: &Path, args: &ImageArgs) -> anyhow::Result<()> {
    let out = root.join(&args.out);
    std::fs::create_dir_all(&out).with_context(|| format!("making {}", out.display()))?;
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => {
            cargo(root, &["build", "--release", "--locked", "-p", "lathe"])?;
            target(root).join("release/lathe")
        }
    };
    write(&lathe(&binary)?, &out.join("lathe.tar"))?;
    if args.tests {
        let program = workload(root)?;
        write(
            &single(WORKLOAD_IMAGE, &program, &[]),
            &out.join("workload.tar"),
        )?;
        write(
            &single(PAUSE_IMAGE, &program, &["pause"]),
            &out.join("pause.tar"),
        )?;
    }
    Ok(())
}

fn write(image: &Image, file: &Path) -> anyhow::Result<()> {
    let layer = image
        .write(file)
        .with_context(|| format!("writing {}", file.display()))?;
    println!(
        "{} {} ({:.1} MiB)",
        file.display(),
        image.name,
        layer as f64 / (1 << 20) as f64
    );
    Ok(())
}

/// Where cargo puts what it builds.
fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

fn cargo(root: &Path, args: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new("cargo");
    command.args(args).current_dir(root);
    // What cargo says of xtask to xtask: build scripts that look at it (ring's) would build all anew.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    let status = command.status().context("running cargo")?;
    if !status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    Ok(())
}

/// The project's image: the program, its links, and the libraries that it and a driver library need.
fn lathe(binary: &Path) -> anyhow::Result<Image> {
    let mut entries = vec![Entry::program("usr/bin/lathe", binary)];
    for link in LINKS {
        entries.push(Entry::link(&format!("usr/bin/{link}"), "lathe"));
    }
    for library in libraries::of(binary)? {
        entries.push(library);
    }
    // Empty mount points would be made by the runtime, but a read-only root file system has none to make.
    for folder in ["dev", "etc", "host", "proc", "sys", "tmp"] {
        entries.push(Entry::folder(folder));
    }
    Ok(Image {
        name: format!("{NAME}:{}", env!("CARGO_PKG_VERSION")),
        entrypoint: vec!["/usr/bin/lathe".to_owned()],
        entries,
    })
}

/// An image of one static program.
fn single(name: &str, program: &Path, arguments: &[&str]) -> Image {
    let mut entrypoint = vec!["/workload".to_owned()];
    entrypoint.extend(arguments.iter().map(|&argument| argument.to_owned()));
    let mut entries = vec![Entry::program("workload", program)];
    for folder in ["dev", "etc", "proc", "sys", "tmp"] {
        entries.push(Entry::folder(folder));
    }
    Image {
        name: name.to_owned(),
        entrypoint,
        entries,
    }
}

fn workload(root: &Path) -> anyhow::Result<PathBuf> {
    let build = [
        "rustc",
        "--release",
        "--locked",
        "-p",
        "e2e",
        "--bin",
        "e2e-workload",
        "--",
    ];
    let flags = ["-C", "target-feature=+crt-static", "-C", "strip=symbols"];
    cargo(root, &[&build[..], &flags[..]].concat())?;
    Ok(target(root).join("release/e2e-workload"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::collections::BTreeSet;
    use std::path::Path;

    use super::LINKS;

    fn read(path: &str) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        std::fs::read_to_string(root.join(path)).unwrap()
    }

    #[test]
    fn every_name_the_program_answers_to_is_a_link() {
        let source = read("lathe/src/name.rs");
        let table = source.split("ALIASES").nth(1).unwrap();
        let table = table.split("];").next().unwrap();
        let names: BTreeSet<&str> = table
            .lines()
            .filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').next())
            .collect();
        assert_eq!(names, BTreeSet::from(LINKS));
    }

    #[test]
    fn the_dockerfile_builds_with_the_pinned_toolchain() {
        let toolchain = read("rust-toolchain.toml");
        let version = toolchain.split("channel = \"").nth(1).unwrap();
        let version = version.split('"').next().unwrap();
        let dockerfile = read("Dockerfile");
        assert!(
            dockerfile.contains(&format!("FROM rust:{version}-")),
            "{version}"
        );
    }
}
