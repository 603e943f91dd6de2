//! The exporter over HTTP, on simulated nodes that change, break and come back while it runs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "serve/pods.rs"]
mod pods;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dcgm_exporter::counters::Counters;
use dcgm_exporter::labels::LabelStyle;
use dcgm_exporter::{Config, Error, Exporter};
use nvml::{Driver, Options, Session};
use rstest::rstest;
use sim_nvml::admin::{SimulatedNode, WorkloadSpec};
use sim_nvml::model::faults::Effect;
use sim_nvml::model::{Fault, Load};
use sim_nvml::presets::NodeSpec;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longer than anything here takes on a busy machine; nothing waits for it when all is well.
const PATIENCE: Duration = Duration::from_secs(60);

struct Running {
    _folder: TempDir,
    node: SimulatedNode,
    address: SocketAddr,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), Error>>,
}

fn node(spec: &NodeSpec) -> (TempDir, SimulatedNode) {
    let folder = tempfile::tempdir().unwrap();
    let node = SimulatedNode::create(folder.path(), spec).unwrap();
    (folder, node)
}

fn config(selector: &str) -> Config {
    Config {
        address: "127.0.0.1:0".to_owned(),
        interval: Duration::from_millis(200),
        selector: selector.parse().unwrap(),
        counters: Counters::default(),
        style: LabelStyle::default(),
        health_requires_gpus: false,
        pods: None,
    }
}

/// Longer than a call takes on a busy machine: one that takes longer counts as hanging, and costs the GPU's series.
const CALL: Duration = Duration::from_secs(30);

/// A driver that is gone is tried again soon.
fn session(node: &SimulatedNode, call_timeout: Duration) -> Arc<Session> {
    let options = Options {
        call_timeout,
        ..Options::at(node.root())
    };
    Arc::new(
        Session::with_pauses(
            &options,
            Duration::from_millis(50),
            Duration::from_millis(200),
        )
        .unwrap(),
    )
}

impl Running {
    async fn start(spec: NodeSpec) -> Self {
        let (folder, node) = node(&spec);
        Self::start_on(folder, node, config("f")).await
    }

    async fn start_on(folder: TempDir, node: SimulatedNode, config: Config) -> Self {
        let session = session(&node, CALL);
        Self::start_with(folder, node, config, session).await
    }

    async fn start_with(
        folder: TempDir,
        node: SimulatedNode,
        config: Config,
        session: Arc<Session>,
    ) -> Self {
        let exporter = Exporter::bind(config).await.unwrap();
        let address = exporter.address().unwrap();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(exporter.run(session, shutdown.clone()));
        Self {
            _folder: folder,
            node,
            address,
            shutdown,
            task,
        }
    }

    async fn page(&self) -> String {
        let (status, body) = get(self.address, "GET", "/metrics").await;
        assert!(status.contains("200"), "{status}");
        assert!(
            status.contains("text/plain; version=0.0.4; charset=utf-8"),
            "{status}"
        );
        body
    }

    /// Waits for a page of which `is_right` holds.
    async fn page_with(&self, is_right: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let page = self.page().await;
            if is_right(&page) {
                return page;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "the page never became right:\n{page}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

/// Head and body of an answer.
async fn get(address: SocketAddr, method: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// The samples of a family.
fn samples<'a>(page: &'a str, family: &str) -> Vec<&'a str> {
    page.lines()
        .filter(|line| {
            line.strip_prefix(family)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        })
        .collect()
}

/// Cuts a GPU into one instance of this profile whose compute instance fills it.
async fn cut(node: &SimulatedNode, gpu: u32, gpu_profile: u32, compute_profile: u32) {
    let options = Options::at(node.root());
    let work = move || {
        let driver = Driver::open(&options).unwrap();
        let cut = move |device: &nvml::Device<'_>| {
            device.set_mig_mode(true)?;
            let instance = device.create_gpu_instance(gpu_profile, None)?;
            device
                .create_compute_instance(instance.id, compute_profile, None)
                .map(drop)
        };
        driver.gpu(gpu).run(cut).unwrap();
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}

#[tokio::test]
async fn paths() {
    let running = Running::start(NodeSpec::uniform("t4-16gb", 1).unwrap()).await;
    assert_eq!(
        samples(&running.page().await, "DCGM_FI_DEV_GPU_TEMP").len(),
        1
    );
    let (head, body) = get(running.address, "GET", "/health").await;
    assert!(head.contains("200") && body == "ok", "{head} {body}");
    let (head, body) = get(running.address, "GET", "/").await;
    assert!(
        head.contains("text/html") && body.contains("/metrics"),
        "{head} {body}"
    );
    let (head, _) = get(running.address, "GET", "/nothing").await;
    assert!(head.contains("404"), "{head}");
    let (head, _) = get(running.address, "POST", "/metrics").await;
    assert!(head.contains("405"), "{head}");
    running.stop().await;
}

#[tokio::test]
async fn a_changed_layout_shows_without_a_restart() {
    let running = start_without_clock(NodeSpec::uniform("h100-sxm5-80gb", 2).unwrap()).await;
    running
        .page_with(|page| samples(page, "DCGM_FI_DEV_FB_FREE").len() == 2)
        .await;
    cut(&running.node, 1, 9, 2).await;
    let page = running
        .page_with(|page| page.contains("GPU_I_PROFILE"))
        .await;
    let temperatures = samples(&page, "DCGM_FI_DEV_GPU_TEMP");
    assert_eq!(temperatures.len(), 2);
    assert!(
        !temperatures[0].contains("GPU_I_ID"),
        "GPU 0 is whole: {}",
        temperatures[0]
    );
    // The first 3g goes to the upper half, which is instance 2.
    assert!(
        temperatures[1].contains(r#"gpu="1""#)
            && temperatures[1].contains(r#"GPU_I_PROFILE="3g.40gb",GPU_I_ID="2""#)
    );
    running.stop().await;
}

#[tokio::test]
async fn profiling_comes_with_the_second_reading() {
    let running = Running::start(NodeSpec::uniform("h100-sxm5-80gb", 1).unwrap()).await;
    let load = Load {
        sm: 1.0,
        tensor: 0.5,
        ..Load::default()
    };
    running
        .node
        .run_workload(WorkloadSpec {
            load,
            ..WorkloadSpec::default()
        })
        .unwrap();
    let page = running
        .page_with(|page| {
            samples(page, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")
                .iter()
                .any(|line| line.ends_with(" 0.500000"))
        })
        .await;
    assert_eq!(samples(&page, "DCGM_FI_PROF_GR_ENGINE_ACTIVE").len(), 1);
    assert_eq!(
        samples(&page, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL").len(),
        1
    );
    running.stop().await;
}

#[tokio::test]
async fn a_lost_gpu_loses_only_its_own_series() {
    let running = Running::start(NodeSpec::uniform("h100-sxm5-80gb", 3).unwrap()).await;
    running
        .page_with(|page| samples(page, "DCGM_FI_DEV_GPU_TEMP").len() == 3)
        .await;
    running.node.lose(1).unwrap();
    let page = running
        .page_with(|page| samples(page, "DCGM_FI_DEV_GPU_TEMP").len() == 2)
        .await;
    let failed = samples(&page, "lathe_exporter_gpu_failed");
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(
        failed[0].contains(r#"gpu="1""#) && failed[0].contains("GPU_IS_LOST"),
        "{}",
        failed[0]
    );
    assert_eq!(
        samples(&page, "lathe_exporter_driver_up"),
        ["lathe_exporter_driver_up 1"]
    );
    running.stop().await;
}

#[tokio::test]
async fn a_call_that_fails_costs_one_value() {
    let running = Running::start(NodeSpec::uniform("t4-16gb", 2).unwrap()).await;
    running
        .page_with(|page| samples(page, "DCGM_FI_DEV_GPU_TEMP").len() == 2)
        .await;
    let fails = Effect::Fail(sim_nvml::Code::UNKNOWN);
    running
        .node
        .inject(Fault {
            gpu: Some(0),
            ..Fault::new("nvmlDeviceGetPowerUsage", fails)
        })
        .unwrap();
    let page = running
        .page_with(|page| samples(page, "DCGM_FI_DEV_POWER_USAGE").len() == 1)
        .await;
    assert_eq!(samples(&page, "DCGM_FI_DEV_GPU_TEMP").len(), 2);
    let failed = samples(&page, "lathe_exporter_gpu_failed");
    assert!(
        failed.len() == 1 && failed[0].contains(r#"call="nvmlDeviceGetPowerUsage",code="UNKNOWN""#),
        "{failed:?}"
    );
    running.stop().await;
}

/// Prometheus drops one of two equal series and warns.
#[rstest]
#[case::two_values_of_a_gpu("nvmlDeviceGetClockInfo")]
#[case::a_value_of_each_instance("nvmlDeviceGetMemoryInfo_v2")]
#[tokio::test]
async fn a_call_that_fails_several_times_is_told_once(#[case] call: &str) {
    let (folder, node) = node(&NodeSpec::uniform("h100-sxm5-80gb", 1).unwrap());
    cut(&node, 0, 9, 2).await;
    cut(&node, 0, 19, 0).await;
    node.inject(Fault::new(call, Effect::Fail(sim_nvml::Code::UNKNOWN)))
        .unwrap();
    let running = Running::start_on(folder, node, config("f")).await;
    let page = running.page().await;
    let failed = samples(&page, "lathe_exporter_gpu_failed");
    assert!(
        failed.len() == 1 && failed[0].contains(&format!(r#"call="{call}",code="UNKNOWN""#)),
        "{failed:?}"
    );
    running.stop().await;
}

#[tokio::test]
async fn a_hanging_gpu_does_not_hold_up_the_others() {
    let (folder, node) = node(&NodeSpec::uniform("t4-16gb", 2).unwrap());
    let session = session(&node, Duration::from_secs(2));
    let running = Running::start_with(folder, node, config("f"), session).await;
    running
        .page_with(|page| samples(page, "DCGM_FI_DEV_GPU_TEMP").len() == 2)
        .await;
    let hangs = Fault {
        gpu: Some(1),
        ..Fault::new("nvmlDeviceGetPowerUsage", Effect::Hang)
    };
    let id = running.node.inject(hangs).unwrap();
    let has_hung = |gpu: u32, page: &str| {
        let failed = samples(page, "lathe_exporter_gpu_failed");
        let gpu = format!("gpu=\"{gpu}\"");
        let mut failed = failed.into_iter();
        failed.any(|line| line.contains(&gpu) && line.contains(r#"code="HUNG""#))
    };
    let page = running
        .page_with(|page| has_hung(1, page) && !has_hung(0, page))
        .await;
    assert_eq!(samples(&page, "DCGM_FI_DEV_GPU_TEMP").len(), 1);
    running.node.clear(id).unwrap();
    running
        .page_with(|page| samples(page, "DCGM_FI_DEV_GPU_TEMP").len() == 2)
        .await;
    running.stop().await;
}

#[tokio::test]
async fn a_driver_that_goes_takes_the_series_along_and_brings_them_back() {
    let running = Running::start(NodeSpec::uniform("h100-sxm5-80gb", 1).unwrap()).await;
    running
        .page_with(|page| samples(page, "DCGM_FI_PROF_GR_ENGINE_ACTIVE").len() == 1)
        .await;
    running
        .node
        .store()
        .update(|node| node.driver.state = sim_nvml::model::DriverState::Unloaded)
        .unwrap();
    let page = running
        .page_with(|page| page.contains("lathe_exporter_driver_up 0"))
        .await;
    assert!(!page.contains("DCGM_FI_"), "{page}");
    running.node.load_driver().unwrap();
    running
        .page_with(|page| {
            // The GPM sample from before is not held against the one after.
            assert!(!page.contains("lathe_exporter_gpu_failed{"), "{page}");
            samples(page, "DCGM_FI_PROF_GR_ENGINE_ACTIVE").len() == 1
        })
        .await;
    // The event stream survived.
    let page = raise_xid(&running, 0, 31, None).await;
    assert_eq!(samples(&page, "DCGM_FI_DEV_XID_ERRORS").len(), 1);
    running.stop().await;
}

/// Raises an XID until it is on the page: watchers need a moment to register, and NVML tells no history.
async fn raise_xid(
    running: &Running,
    gpu: usize,
    xid: u64,
    instance: Option<(u32, u32)>,
) -> String {
    let begun = Instant::now();
    loop {
        running.node.xid(gpu, xid, instance).unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        let page = running.page().await;
        if page.contains("DCGM_FI_DEV_XID_ERRORS") {
            return page;
        }
        assert!(begun.elapsed() < PATIENCE);
    }
}

/// A GPU falls off the bus, once it is watched: nothing is heard of a GPU that is lost before.
async fn lose(running: &Running, gpu: usize, is_right: impl Fn(&str) -> bool) -> String {
    raise_xid(running, gpu, 13, None).await;
    running.node.xid(gpu, 79, None).unwrap();
    running
        .page_with(|page| is_right(page) && page.contains(r#"err_code="79""#))
        .await
}

/// An exporter that only the driver's events can make look.
async fn start_without_clock(spec: NodeSpec) -> Running {
    let mut config = config("f");
    config.interval = Duration::from_secs(3600);
    let (folder, node) = node(&spec);
    Running::start_on(folder, node, config).await
}

#[tokio::test]
async fn an_xid_of_an_instance_is_its_own() {
    let (folder, node) = node(&NodeSpec::uniform("h100-sxm5-80gb", 1).unwrap());
    cut(&node, 0, 9, 2).await;
    cut(&node, 0, 19, 0).await;
    let running = Running::start_on(folder, node, config("f")).await;
    assert!(!running.page().await.contains("DCGM_FI_DEV_XID_ERRORS"));
    let page = raise_xid(&running, 0, 31, Some((2, 0))).await;
    let xids = samples(&page, "DCGM_FI_DEV_XID_ERRORS");
    assert_eq!(xids.len(), 1, "{xids:?}");
    assert!(xids[0].contains(r#"GPU_I_ID="2""#), "{}", xids[0]);
    assert!(
        xids[0].ends_with(r#",err_code="31",err_msg="GPU memory page fault"} 31"#),
        "{}",
        xids[0]
    );
    running.stop().await;
}

#[tokio::test]
async fn the_xid_of_a_gpu_that_fell_off_the_bus_outlives_its_other_series() {
    let running = start_without_clock(NodeSpec::uniform("t4-16gb", 2).unwrap()).await;
    running
        .page_with(|page| samples(page, "DCGM_FI_DEV_GPU_TEMP").len() == 2)
        .await;
    let page = lose(&running, 1, |page| {
        samples(page, "DCGM_FI_DEV_GPU_TEMP").len() == 1
    })
    .await;
    let xids = samples(&page, "DCGM_FI_DEV_XID_ERRORS");
    assert_eq!(xids.len(), 1, "{xids:?}");
    assert!(
        xids[0].contains(r#"gpu="1""#)
            && xids[0].ends_with(r#"err_msg="GPU has fallen off the bus"} 79"#),
        "{}",
        xids[0]
    );
    running.stop().await;
}

#[tokio::test]
async fn a_lost_gpu_keeps_to_the_selection() {
    let (folder, node) = node(&NodeSpec::uniform("h100-sxm5-80gb", 1).unwrap());
    cut(&node, 0, 9, 2).await;
    cut(&node, 0, 19, 0).await;
    let running = Running::start_on(folder, node, config("i:0")).await;
    running
        .page_with(|page| samples(page, "DCGM_FI_DEV_GPU_TEMP").len() == 1)
        .await;
    let page = lose(&running, 0, |page| {
        samples(page, "DCGM_FI_DEV_GPU_TEMP").is_empty()
    })
    .await;
    let xids = samples(&page, "DCGM_FI_DEV_XID_ERRORS");
    assert!(
        xids.len() == 1 && xids[0].contains(r#"GPU_I_ID="2""#),
        "{xids:?}"
    );
    running.stop().await;
}

/// GPU 0 has the instance 2, GPU 1 is whole. Each wanted part belongs to one sample, in order.
#[rstest]
#[case::flex("f", &["GPU_I_ID=\"2\"", "gpu=\"1\""])]
#[case::a_gpu("g:1", &["gpu=\"1\""])]
#[case::instances("i", &["GPU_I_ID=\"2\""])]
#[case::one_instance("i:0", &["GPU_I_ID=\"2\""])]
#[case::both("g:0-1+i:0", &["modelName=\"NVIDIA H100 80GB HBM3\",DCGM", "GPU_I_ID=\"2\"", "gpu=\"1\""])]
#[tokio::test]
async fn selectors(#[case] selector: &str, #[case] wanted: &[&str]) {
    let (folder, node) = node(&NodeSpec::uniform("h100-sxm5-80gb", 2).unwrap());
    cut(&node, 0, 9, 2).await;
    let running = Running::start_on(folder, node, config(selector)).await;
    let page = running.page().await;
    let found = samples(&page, "DCGM_FI_DEV_GPU_TEMP");
    assert_eq!(found.len(), wanted.len(), "{found:?}");
    assert!(
        found
            .iter()
            .zip(wanted)
            .all(|(line, part)| line.contains(part)),
        "{found:?}"
    );
    running.stop().await;
}

#[rstest]
#[case("g:0,2", "there is no GPU 2, only 2 GPUs")]
#[case("i:8", "there is no instance 8 (GPU 1")]
#[tokio::test]
async fn a_named_device_must_exist(#[case] selector: &str, #[case] message: &str) {
    let (_folder, node) = node(&NodeSpec::uniform("t4-16gb", 2).unwrap());
    let session = session(&node, CALL);
    let running = dcgm_exporter::run(config(selector), session, CancellationToken::new());
    let error = tokio::time::timeout(PATIENCE, running)
        .await
        .unwrap()
        .unwrap_err();
    assert!(error.to_string().contains(message), "{error}");
}

#[tokio::test]
async fn health_may_require_gpus() {
    let (folder, node) = node(&NodeSpec::uniform("t4-16gb", 1).unwrap());
    node.unload_driver().unwrap();
    let config = Config {
        health_requires_gpus: true,
        ..config("f")
    };
    let running = Running::start_on(folder, node, config).await;
    running.page().await;
    assert!(
        get(running.address, "GET", "/health")
            .await
            .0
            .contains("503")
    );
    running.node.load_driver().unwrap();
    running
        .page_with(|page| samples(page, "DCGM_FI_DEV_GPU_TEMP").len() == 1)
        .await;
    assert!(
        get(running.address, "GET", "/health")
            .await
            .0
            .contains("200")
    );
    running.stop().await;
}

/// The engine's journal is there while it changes GPUs, which nobody may hold then.
#[tokio::test]
async fn the_page_stays_while_the_gpus_are_let_go_for_a_change() {
    let running = start_without_clock(NodeSpec::uniform("a100-sxm4-40gb", 2).unwrap()).await;
    let before = running
        .page_with(|page| samples(page, "DCGM_FI_DEV_GPU_TEMP").len() == 2)
        .await;
    let folder = running.node.root().join("var/lib/lathe/mig");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("journal"), "x").unwrap();
    let begun = Instant::now();
    while !running.node.state().unwrap().clients.is_empty() {
        assert!(begun.elapsed() < PATIENCE, "it holds the GPUs");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let meanwhile = running.page().await;
    let temperatures = |page: &str| samples(page, "DCGM_FI_DEV_GPU_TEMP").len();
    assert_eq!(temperatures(&meanwhile), 2, "{meanwhile}");
    assert!(meanwhile.contains("lathe_exporter_driver_up 1"));
    std::fs::remove_file(folder.join("journal")).unwrap();
    let time = |page: &str| samples(page, "lathe_exporter_collect_timestamp_seconds")[0].to_owned();
    running
        .page_with(|page| time(page) != time(&before) && temperatures(page) == 2)
        .await;
    running.stop().await;
}

#[tokio::test]
async fn a_late_driver_is_noticed() {
    let (folder, node) = node(&NodeSpec::uniform("t4-16gb", 1).unwrap());
    node.unload_driver().unwrap();
    let running = Running::start_on(folder, node, config("f")).await;
    assert!(running.page().await.contains("lathe_exporter_driver_up 0"));
    running.node.load_driver().unwrap();
    running
        .page_with(|page| samples(page, "DCGM_FI_DEV_GPU_TEMP").len() == 1)
        .await;
    running.stop().await;
}
