//! Measures the two parts that run on every node, as the processes they are: the exporter's scrape times over loopback and
//! its memory, and what one feature file costs. The node is a simulated DGX H100 whose GPUs are cut into seven instances.
//!
//! It needs the release build of `lathe`, beside which the simulated driver library lies.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

/// How long a process may take to answer for the first time.
const PATIENCE: Duration = Duration::from_secs(60);

const LAYOUT: &str = "\
version: v1
mig-configs:
  bench:
    - devices: all
      mig-enabled: true
      mig-devices: {1g.10gb: 7}
";

/// Measure the exporter and feature discovery as processes
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The program to measure
    #[arg(long, default_value = "target/release/lathe", value_name = "FILE")]
    lathe: PathBuf,

    /// Scrapes to measure
    #[arg(long, default_value_t = 2000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    scrapes: u32,

    /// Feature files to measure
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    files: u32,
}

/// # Errors
/// A process cannot be started, does not answer, or answers wrongly.
pub(crate) fn run(root: &Path, args: &Args) -> anyhow::Result<()> {
    let lathe = root.join(&args.lathe);
    ensure!(
        lathe.is_file(),
        "{} is not there: build it with `cargo build --release`",
        lathe.display()
    );
    let folder = Folder::create()?;
    let node = folder.0.join("node");
    call(
        Command::new(&lathe)
            .args(["sim", "create", "--preset", "dgx-h100", "--root"])
            .arg(&node),
    )?;
    let layout = folder.0.join("layout.yaml");
    fs::write(&layout, LAYOUT)?;
    call(
        Command::new(&lathe)
            .args(["mig", "apply", "-c", "bench", "-f"])
            .arg(&layout)
            .env("LATHE_ROOT", &node),
    )?;
    exporter(&lathe, &node, args.scrapes)?;
    feature_files(&lathe, &node, args.files)
}

fn exporter(lathe: &Path, node: &Path, scrapes: u32) -> anyhow::Result<()> {
    let address = free_address()?;
    let started = Command::new(lathe)
        .args([
            "dcgm-exporter",
            "--collect-interval",
            "1000",
            "--address",
            &address.to_string(),
            "--root",
        ])
        .arg(node)
        .stderr(Stdio::null())
        .spawn();
    let process = Process(started.context("starting the exporter")?);
    let mut connection = wait_for(|| TcpStream::connect(address).ok())?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut body = Vec::new();
    // Past the second reading, so that the page has everything.
    let begun = Instant::now();
    loop {
        scrape(&mut connection, &mut reader, &mut body)?;
        if String::from_utf8_lossy(&body).contains("DCGM_FI_PROF_") {
            break;
        }
        ensure!(
            begun.elapsed() < PATIENCE,
            "the profiling families never came"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut times = Vec::new();
    for _ in 0..scrapes {
        let begun = Instant::now();
        scrape(&mut connection, &mut reader, &mut body)?;
        times.push(begun.elapsed());
    }
    let page = String::from_utf8_lossy(&body);
    let samples = page.lines().filter(|line| !line.starts_with('#')).count();
    println!("exporter: page of {} bytes, {samples} samples", body.len());
    print_times("exporter: scrape", times);
    println!(
        "exporter: {} KiB resident, {} KiB of it its own; at most {} KiB resident",
        process.memory("VmRSS")?,
        process.memory("RssAnon")?,
        process.memory("VmHWM")?
    );
    Ok(())
}

fn feature_files(lathe: &Path, node: &Path, files: u32) -> anyhow::Result<()> {
    let file = node.join("etc/kubernetes/node-feature-discovery/features.d/gfd");
    let command = || {
        let mut command = Command::new(lathe);
        command
            .args(["feature-discovery", "--mig-strategy", "mixed", "--root"])
            .arg(node)
            .stderr(Stdio::null());
        command
    };
    let mut times = Vec::new();
    for _ in 0..files {
        let _ = fs::remove_file(&file);
        let begun = Instant::now();
        call(command().arg("--oneshot"))?;
        times.push(begun.elapsed());
        ensure!(file.is_file(), "no feature file was written");
    }
    print_times("feature file: process from start to end", times);
    // The same work in a process that stays, so that its peak can be read.
    let _ = fs::remove_file(&file);
    let process = Process(command().args(["--sleep-interval", "infinite"]).spawn()?);
    wait_for(|| file.is_file().then_some(()))?;
    println!(
        "feature file: at most {} KiB resident",
        process.memory("VmHWM")?
    );
    Ok(())
}

fn print_times(what: &str, mut times: Vec<Duration>) {
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

fn scrape(
    connection: &mut TcpStream,
    reader: &mut BufReader<TcpStream>,
    body: &mut Vec<u8>,
) -> anyhow::Result<()> {
    connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")?;
    let mut line = String::new();
    reader.read_line(&mut line)?;
    ensure!(
        line.starts_with("HTTP/1.1 200"),
        "the exporter answers {line:?}"
    );
    let mut length = 0;
    loop {
        line.clear();
        ensure!(
            reader.read_line(&mut line)? > 0,
            "the exporter closed the connection"
        );
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
    }
    body.resize(length, 0);
    reader.read_exact(body)?;
    Ok(())
}

fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn call(command: &mut Command) -> anyhow::Result<()> {
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

fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
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
struct Process(Child);

impl Process {
    /// A line of `/proc/PID/status`, in KiB.
    fn memory(&self, name: &str) -> anyhow::Result<u64> {
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
