//! What the benchmarks of parts as processes share: a simulated node, processes that end, times that are told.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

/// How long a process may take to answer for the first time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A part unmaps what only its start needed ten seconds after it; what it holds then and works with from then on is what counts.
pub(crate) const SETTLED: Duration = Duration::from_secs(12);

const LAYOUT: &str = "\
version: v1
mig-configs:
  bench:
    - devices: all
      mig-enabled: true
      mig-devices: {1g.10gb: 7}
  whole:
    - devices: all
      mig-enabled: false
";

/// Which program is measured.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Program {
    /// The program to measure
    #[arg(long, default_value = "target/release/lathe", value_name = "FILE")]
    lathe: PathBuf,
}

impl Program {
    /// # Errors
    /// It is not there.
    pub(crate) fn find(&self, root: &Path) -> anyhow::Result<PathBuf> {
        let lathe = root.join(&self.lathe);
        ensure!(
            lathe.is_file(),
            "{} is not there: build it with `cargo build --release`",
            lathe.display()
        );
        Ok(lathe)
    }
}

/// Prints what a process holds of the machine's memory.
pub(crate) fn print_memory(when: &str, process: &Process) -> anyhow::Result<()> {
    println!(
        "{when}: {} KiB resident, {} KiB of it its own; at most {} KiB resident",
        process.memory("VmRSS")?,
        process.memory("RssAnon")?,
        process.memory("VmHWM")?
    );
    Ok(())
}

/// Prints what a distribution of times is told by.
pub(crate) fn print_times(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| {
        let place = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
        times.get(place).copied().unwrap_or_default()
    };
    println!(
        "{what}: p50 {:?}, p99 {:?}, max {:?} of {}",
        at(0.5),
        at(0.99),
        at(1.0),
        times.len()
    );
}

pub(crate) fn call(command: &mut Command) -> anyhow::Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

pub(crate) fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        ensure!(begun.elapsed() < PATIENCE, "a process did not become ready");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A process that ends with this value.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    /// A line of `/proc/PID/status`, in KiB.
    pub(crate) fn memory(&self, name: &str) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let value = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = value.with_context(|| format!("no {name} in /proc/PID/status"))?;
        Ok(value.trim().trim_end_matches("kB").trim().parse()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How GPUs are cut.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Layout {
    /// Into seven instances each.
    Sevenths,
    /// Not at all: MIG is off.
    Whole,
}

/// A simulated DGX H100; it ends with this value.
pub(crate) struct Node(Folder);

impl Node {
    pub(crate) fn create(lathe: &Path, layout: Layout) -> anyhow::Result<Self> {
        let folder = Folder::create()?;
        let node = Self(folder);
        call(
            Command::new(lathe)
                .args(["sim", "create", "--preset", "dgx-h100", "--root"])
                .arg(node.root()),
        )?;
        fs::write(node.layouts(), LAYOUT)?;
        node.cut(lathe, layout)?;
        Ok(node)
    }

    /// Cuts all GPUs anew.
    pub(crate) fn cut(&self, lathe: &Path, layout: Layout) -> anyhow::Result<()> {
        let name = match layout {
            Layout::Sevenths => "bench",
            Layout::Whole => "whole",
        };
        call(
            Command::new(lathe)
                .args(["mig", "apply", "-c", name, "-f"])
                .arg(self.layouts())
                .env("LATHE_ROOT", self.root()),
        )
    }

    /// Lets calls take longer by so many seconds; a trailing `*` of a function's name matches any rest.
    pub(crate) fn delay(&self, lathe: &Path, function: &str, seconds: u32) -> anyhow::Result<()> {
        call(
            Command::new(lathe)
                .args(["sim", "inject", "call", function])
                .arg(format!("--delay={seconds}s"))
                .arg("--root")
                .arg(self.root()),
        )
    }

    fn layouts(&self) -> PathBuf {
        self.folder().join("layout.yaml")
    }

    /// A folder for what else is needed.
    pub(crate) fn folder(&self) -> &Path {
        &self.0.0
    }

    /// The node's root.
    pub(crate) fn root(&self) -> PathBuf {
        self.0.0.join("node")
    }
}

/// A folder that ends with this value.
struct Folder(PathBuf);

impl Folder {
    fn create() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("lathe-bench-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
