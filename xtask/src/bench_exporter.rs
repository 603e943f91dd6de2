//! Measures the two parts that run on every node, as the processes they are: the exporter's scrape times over loopback and
//! its memory, and what one feature file costs. The node is a simulated DGX H100 whose GPUs are cut into seven instances.
//!
//! It needs the release build of `lathe`, beside which the simulated driver library lies.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};

use crate::bench_node::{
    Layout, Node, PATIENCE, Process, Program, SETTLED, call, print_memory, print_times, wait_for,
};

/// Eight GPUs of seven instances.
const INSTANCES: usize = 56;

/// Measure the exporter and feature discovery as processes
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    program: Program,

    #[command(flatten)]
    numbers: ExporterNumbers,
}

/// How often.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ExporterNumbers {
    /// Scrapes to measure
    #[arg(long, default_value_t = 2000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    scrapes: u32,

    /// Times that all GPUs are made whole and cut anew before the exporter's memory is read again
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000))]
    recuts: u32,

    /// Feature files to measure
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    files: u32,
}

/// # Errors
/// A process cannot be started, does not answer, or answers wrongly.
pub(crate) fn run(root: &Path, args: &Args) -> anyhow::Result<()> {
    measure(&args.program.find(root)?, &args.numbers)
}

/// # Errors
/// As [`run`].
pub(crate) fn measure(lathe: &Path, numbers: &ExporterNumbers) -> anyhow::Result<()> {
    let node = Node::create(lathe, Layout::Sevenths)?;
    exporter(lathe, &node, numbers)?;
    feature_files(lathe, &node.root(), numbers.files)
}

fn exporter(lathe: &Path, node: &Node, numbers: &ExporterNumbers) -> anyhow::Result<()> {
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
        .arg(node.root())
        .stderr(Stdio::null())
        .spawn();
    let process = Process(started.context("starting the exporter")?);
    let mut connection = wait_for(|| TcpStream::connect(address).ok())?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut body = Vec::new();
    let mut complete = |body: &mut Vec<u8>| -> anyhow::Result<()> {
        let (begun, now) = (Instant::now(), SystemTime::now());
        let now = now.duration_since(UNIX_EPOCH)?.as_secs_f64();
        loop {
            scrape(&mut connection, &mut reader, body)?;
            // Past the second reading, which brings the profiling families, and not the page of the layout before, which stays
            // while the GPUs are cut.
            let page = String::from_utf8_lossy(body);
            let found = |family| samples(&page, family).count();
            if read_at(&page).is_some_and(|read| read > now)
                && found("DCGM_FI_DEV_FB_USED") == INSTANCES
                && found("DCGM_FI_PROF_GR_ENGINE_ACTIVE") == INSTANCES
            {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "the page never was complete");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    complete(&mut body)?;
    std::thread::sleep(SETTLED);
    complete(&mut body)?;
    print_memory("exporter: fresh", &process)?;
    for _ in 0..numbers.recuts {
        node.cut(lathe, Layout::Whole)?;
        node.cut(lathe, Layout::Sevenths)?;
        complete(&mut body)?;
    }
    print_memory(
        &format!("exporter: after {} re-cuts", numbers.recuts),
        &process,
    )?;
    let mut times = Vec::new();
    for _ in 0..numbers.scrapes {
        let begun = Instant::now();
        scrape(&mut connection, &mut reader, &mut body)?;
        times.push(begun.elapsed());
    }
    let page = String::from_utf8_lossy(&body);
    let samples = page.lines().filter(|line| !line.starts_with('#')).count();
    println!("exporter: page of {} bytes, {samples} samples", body.len());
    print_times("exporter: scrape", times);
    print_memory("exporter: after the scrapes", &process)
}

/// When the values of a page were read, in seconds of Unix time.
fn read_at(page: &str) -> Option<f64> {
    let mut lines = page.lines();
    lines.find_map(|line| {
        line.strip_prefix("lathe_exporter_collect_timestamp_seconds ")?
            .parse()
            .ok()
    })
}

/// The samples of a family.
fn samples<'a>(page: &'a str, family: &'a str) -> impl Iterator<Item = &'a str> {
    page.lines().filter(move |line| {
        line.strip_prefix(family)
            .is_some_and(|rest| rest.starts_with('{'))
    })
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
