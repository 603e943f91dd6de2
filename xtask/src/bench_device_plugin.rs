//! Measures the device plugin as the process it is: its memory, how soon it is registered with a kubelet that has just started,
//! and how long the kubelet waits for an allocation. The node is a simulated DGX H100 whose GPUs are cut into seven instances, and
//! then one whose GPUs are whole and whose links take long to ask.
//!
//! It needs the release build of `lathe`, beside which the simulated driver library lies.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use kubelet::api::device_plugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest,
    PreferredAllocationRequest,
};
use sim_kubelet::{DeviceManager, Seen};

use crate::bench_node::{
    Layout, Node, PATIENCE, Process, Program, SETTLED, print_memory, print_times,
};

/// What a node offers that is cut: seven instances of eight GPUs.
const DEVICES: usize = 56;

/// GPUs of the node, and how many of them a container wants.
const WHOLE: (usize, usize) = (8, 7);

/// How long one link takes to ask, in seconds.
const SLOW_LINK: u32 = 3;

/// Starts of the plugin beside slow links: only its first answer is given before anything is known of them.
const SLOW_STARTS: usize = 10;

/// Measure the device plugin as a process
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    program: Program,

    #[command(flatten)]
    numbers: DevicePluginNumbers,
}

/// How often.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DevicePluginNumbers {
    /// Starts of the kubelet to measure
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    restarts: u32,

    /// Allocations to measure
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    allocations: u32,
}

/// # Errors
/// The process cannot be started, does not register, or answers wrongly.
pub(crate) fn run(root: &Path, args: &Args) -> anyhow::Result<()> {
    measure(&args.program.find(root)?, &args.numbers)
}

/// # Errors
/// As [`run`].
pub(crate) fn measure(lathe: &Path, numbers: &DevicePluginNumbers) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(instances(lathe, numbers))?;
    runtime.block_on(slow_links(lathe))
}

/// Starts the plugin.
fn start(lathe: &Path, node: &Node, kubelet: &Path) -> anyhow::Result<Process> {
    let started = Command::new(lathe)
        .args([
            "device-plugin",
            "--mig-strategy=mixed",
            "--device-list-strategy=cdi-cri",
            "--metrics-address=127.0.0.1:0",
            "--root",
        ])
        .arg(node.root())
        .arg("--kubelet-socket")
        .arg(kubelet.join("kubelet.sock"))
        .env_remove("NODE_NAME")
        .stderr(Stdio::null())
        .spawn();
    Ok(Process(started.context("starting the device plugin")?))
}

async fn instances(lathe: &Path, numbers: &DevicePluginNumbers) -> anyhow::Result<()> {
    let node = Node::create(lathe, Layout::Sevenths)?;
    let folder = &node.folder().join("kubelet");
    fs::create_dir(folder)?;
    let mut kubelet = DeviceManager::start(folder);
    let begun = Instant::now();
    let process = start(lathe, &node, folder)?;
    let mut socket = registered(&mut kubelet, DEVICES).await?;
    println!(
        "device plugin: registered {:?} after its start",
        begun.elapsed()
    );

    tokio::time::sleep_until((begun + SETTLED).into()).await;
    print_memory("device plugin: settled", &process)?;

    let mut times = Vec::new();
    for _ in 0..numbers.restarts {
        drop(kubelet);
        // It notices the end first, as in life.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let begun = Instant::now();
        kubelet = DeviceManager::start(folder);
        socket = registered(&mut kubelet, DEVICES).await?;
        times.push(begun.elapsed());
    }
    print_times(
        "device plugin: from the kubelet's socket to its list of devices",
        times,
    );

    let list = kubelet.devices();
    let ids: Vec<&String> = list.values().flat_map(|one| one.list.keys()).collect();
    ensure!(ids.len() == DEVICES, "{} devices are offered", ids.len());
    let mut client = kubelet.plugin(&socket).await;
    let mut times = Vec::new();
    for id in ids.iter().cycle().take(numbers.allocations as usize) {
        let request = AllocateRequest {
            container_requests: vec![ContainerAllocateRequest {
                device_ids: vec![(*id).clone()],
            }],
        };
        let begun = Instant::now();
        let answer = client.allocate(request).await?.into_inner();
        times.push(begun.elapsed());
        ensure!(
            answer
                .container_responses
                .iter()
                .any(|one| !one.cdi_devices.is_empty()),
            "{id} is answered with {answer:?}"
        );
    }
    print_times("device plugin: allocation", times);
    print_memory("device plugin: after all of this", &process)
}

/// Which GPUs to take, and taking them, while nobody knows yet how they are connected.
async fn slow_links(lathe: &Path) -> anyhow::Result<()> {
    let node = Node::create(lathe, Layout::Whole)?;
    for function in [
        "nvmlDeviceGetNvLink*",
        "nvmlDeviceGetTopology*",
        "nvmlDeviceGetP2PStatus",
    ] {
        node.delay(lathe, function, SLOW_LINK)?;
    }
    let folder = &node.folder().join("kubelet");
    fs::create_dir(folder)?;
    let (gpus, wanted) = WHOLE;
    let mut times = Vec::new();
    for _ in 0..SLOW_STARTS {
        let mut kubelet = DeviceManager::start(folder);
        let process = start(lathe, &node, folder)?;
        let socket = registered(&mut kubelet, gpus).await?;
        let list = kubelet.devices();
        let ids = list.values().flat_map(|one| one.list.keys().cloned());
        let question = PreferredAllocationRequest {
            container_requests: vec![ContainerPreferredAllocationRequest {
                available_device_ids: ids.collect(),
                must_include_device_ids: Vec::new(),
                allocation_size: i32::try_from(wanted)?,
            }],
        };
        let mut client = kubelet.plugin(&socket).await;
        let begun = Instant::now();
        let answer = client.get_preferred_allocation(question).await?;
        let answer = answer.into_inner().container_responses.into_iter().next();
        let device_ids = answer.context("no preferred devices")?.device_ids;
        ensure!(device_ids.len() == wanted, "preferred: {device_ids:?}");
        let request = AllocateRequest {
            container_requests: vec![ContainerAllocateRequest { device_ids }],
        };
        client.allocate(request).await?;
        times.push(begun.elapsed());
        drop(process);
    }
    print_times(
        &format!(
            "device plugin: {wanted} of {gpus} GPUs whose links take {SLOW_LINK} s each, preferred and allocated"
        ),
        times,
    );
    Ok(())
}

/// Waits until the plugin's list has so many devices; its socket.
async fn registered(kubelet: &mut DeviceManager, devices: usize) -> anyhow::Result<String> {
    let mut socket = None;
    let complete = async {
        loop {
            match kubelet.next().await {
                Seen::Registered { socket: name, .. } => socket = Some(name),
                Seen::List(ids) if ids.len() == devices => break,
                Seen::List(_) => {}
                Seen::Refused | Seen::Ended => bail!("the plugin was refused, or went away"),
            }
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, complete)
        .await
        .context("the plugin did not register")??;
    socket.context("a list came before the registration")
}
