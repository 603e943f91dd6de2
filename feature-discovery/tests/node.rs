//! Feature discovery on simulated nodes: the worked examples as files, and nodes that change and break while it runs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use feature_discovery::config::DEFAULT_OUTPUT;
use feature_discovery::duration::Interval;
use feature_discovery::{Config, Discovery, Error, Settings, discover};
use gpu::labels::{MigStrategy, Warning};
use nvml::{Driver, Options, Session};
use rstest::rstest;
use sim_nvml::admin::SimulatedNode;
use sim_nvml::model::DriverState;
use sim_nvml::presets::{DriverSpec, NodeSpec};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Longer than anything here takes on a busy machine; nothing waits for it when all is well.
const PATIENCE: Duration = Duration::from_secs(60);

fn create(mut spec: NodeSpec) -> (TempDir, SimulatedNode) {
    spec.driver = DriverSpec {
        version: "570.124.06".to_owned(),
        cuda: 12080,
    };
    let folder = tempfile::tempdir().unwrap();
    let node = SimulatedNode::create(folder.path(), &spec).unwrap();
    (folder, node)
}

fn config(strategy: MigStrategy) -> Config {
    Settings {
        strategy: Some(strategy),
        no_timestamp: Some(true),
        interval: Some(Interval::Infinite),
        ..Settings::default()
    }
    .finish()
}

fn session(node: &SimulatedNode) -> Arc<Session> {
    let pauses = (Duration::from_millis(50), Duration::from_millis(200));
    Arc::new(Session::with_pauses(&Options::at(node.root()), pauses.0, pauses.1).unwrap())
}

fn look(node: &SimulatedNode, strategy: MigStrategy) -> Discovery {
    let driver = Driver::open(&Options::at(node.root())).unwrap();
    discover(node.root(), &driver, &config(strategy), Some(1_755_600_000)).unwrap()
}

/// Cuts GPUs into `count` instances of one profile whose compute instances fill them.
fn cut(
    node: &SimulatedNode,
    gpus: std::ops::Range<u32>,
    (gpu_profile, compute_profile): (u32, u32),
    count: usize,
) {
    let driver = Driver::open(&Options::at(node.root())).unwrap();
    for gpu in gpus {
        let cut = move |device: &nvml::Device<'_>| {
            device.set_mig_mode(true)?;
            for _ in 0..count {
                let instance = device.create_gpu_instance(gpu_profile, None)?;
                device.create_compute_instance(instance.id, compute_profile, None)?;
            }
            Ok(())
        };
        driver.gpu(gpu).run(cut).unwrap();
    }
}

const ONE_G: (u32, u32) = (19, 0);
const THREE_G: (u32, u32) = (9, 2);

#[track_caller]
fn check_example(discovery: &Discovery, expected: &str) {
    assert_eq!(discovery.labels.to_feature_file(), expected);
    assert_eq!(discovery.labels.warnings, []);
    assert_eq!((discovery.failed.len(), &discovery.vgpu), (0, &None));
}

#[test]
fn eight_whole_a100() {
    let mut spec = NodeSpec::uniform("a100-sxm4-40gb", 8).unwrap();
    spec.machine.product = "DGXA100 920-23687-2530-000".to_owned();
    let (_folder, node) = create(spec);
    check_example(
        &look(&node, MigStrategy::None),
        include_str!("examples/a.txt"),
    );
}

#[test]
fn eight_h100_cut_alike_under_single() {
    let (_folder, node) = create(NodeSpec::preset("dgx-h100").unwrap());
    cut(&node, 0..8, ONE_G, 7);
    check_example(
        &look(&node, MigStrategy::Single),
        include_str!("examples/b.txt"),
    );
}

#[test]
fn eight_h100_cut_in_two_ways_under_mixed() {
    let (_folder, node) = create(NodeSpec::preset("dgx-h100").unwrap());
    cut(&node, 0..4, ONE_G, 7);
    cut(&node, 4..8, THREE_G, 2);
    check_example(
        &look(&node, MigStrategy::Mixed),
        include_str!("examples/c.txt"),
    );
}

fn value<'a>(discovery: &'a Discovery, key: &str) -> Option<&'a str> {
    discovery.labels.labels.get(key).map(String::as_str)
}

#[test]
fn the_display_gpu_of_a_station_is_left_out() {
    let (_folder, node) = create(NodeSpec::preset("dgx-station-a100").unwrap());
    let discovery = look(&node, MigStrategy::None);
    assert_eq!(value(&discovery, "nvidia.com/gpu.count"), Some("4"));
    assert_eq!(discovery.labels.warnings, [], "one model");
}

#[test]
fn two_models_are_labelled_as_the_first_of_equals() {
    let (_folder, node) = create(NodeSpec::preset("mixed").unwrap());
    let discovery = look(&node, MigStrategy::None);
    assert_eq!(
        value(&discovery, "nvidia.com/gpu.product"),
        Some("NVIDIA-A100-PCIE-40GB")
    );
    assert!(matches!(
        discovery.labels.warnings[..],
        [Warning::SeveralModels { .. }]
    ));
}

#[test]
fn a_lost_gpu_is_left_out_and_the_rest_is_labelled() {
    let (_folder, node) = create(NodeSpec::uniform("t4-16gb", 3).unwrap());
    node.lose(1).unwrap();
    let discovery = look(&node, MigStrategy::None);
    assert_eq!(value(&discovery, "nvidia.com/gpu.count"), Some("2"));
    assert!(matches!(&discovery.failed[..], [error] if error.is_gpu_lost()));
}

#[test]
fn a_rack_gpu_has_a_clique() {
    let (_folder, node) = create(NodeSpec::preset("gb200-tray").unwrap());
    let discovery = look(&node, MigStrategy::None);
    let fabric = node.state().unwrap().gpus[0].fabric.clone();
    let clique = value(&discovery, "nvidia.com/gpu.clique").unwrap();
    let (cluster, number) = clique.rsplit_once('.').unwrap();
    assert_eq!(number, fabric.clique.to_string());
    assert_eq!(cluster.len(), 36);
}

struct Running {
    _folder: TempDir,
    node: SimulatedNode,
    file: PathBuf,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), Error>>,
}

impl Running {
    fn start(node: (TempDir, SimulatedNode), config: Config) -> Self {
        let session = session(&node.1);
        Self::with_session(node, config, session)
    }

    fn with_session(
        (folder, node): (TempDir, SimulatedNode),
        config: Config,
        session: Arc<Session>,
    ) -> Self {
        let file = node.root().join(DEFAULT_OUTPUT.trim_start_matches('/'));
        let shutdown = CancellationToken::new();
        let running =
            feature_discovery::run(node.root().to_owned(), config, session, shutdown.clone());
        Self {
            _folder: folder,
            node,
            file,
            shutdown,
            task: tokio::spawn(running),
        }
    }

    async fn file_with(&self, line: &str) -> String {
        let begun = Instant::now();
        loop {
            let text = fs::read_to_string(&self.file).unwrap_or_default();
            if text.lines().any(|found| found == line) {
                return text;
            }
            assert!(begun.elapsed() < PATIENCE, "{line} never came:\n{text}");
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
        assert!(self.file.exists(), "labels outlive the program");
    }
}

#[tokio::test]
async fn a_changed_layout_is_written_at_once() {
    let node = create(NodeSpec::uniform("h100-sxm5-80gb", 1).unwrap());
    let running = Running::start(node, config(MigStrategy::Mixed));
    running.file_with("nvidia.com/gpu.replicas=1").await;
    cut(&running.node, 0..1, THREE_G, 1);
    let text = running.file_with("nvidia.com/mig-3g.40gb.count=1").await;
    assert!(text.lines().is_sorted());
    running.stop().await;
}

#[tokio::test]
async fn the_file_is_not_written_again_when_nothing_changed() {
    let node = create(NodeSpec::uniform("t4-16gb", 1).unwrap());
    let every = Interval::Every(Duration::from_millis(20));
    let running = Running::start(
        node,
        Config {
            interval: every,
            ..config(MigStrategy::None)
        },
    );
    running.file_with("nvidia.com/gpu.count=1").await;
    let first = fs::metadata(&running.file).unwrap();
    running.node.set_trace(true).unwrap();
    // Looks go on: each asks for the driver's version.
    let begun = Instant::now();
    while running
        .node
        .trace()
        .unwrap()
        .iter()
        .filter(|call| call.symbol == "nvmlSystemGetDriverVersion")
        .count()
        < 3
    {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let last = fs::metadata(&running.file).unwrap();
    assert_eq!(
        (first.ino(), first.mtime_nsec()),
        (last.ino(), last.mtime_nsec())
    );
    running.stop().await;
}

/// Also by a machine that takes longer to label the node than to the next attempt at the driver.
#[rstest]
#[case::fast(Duration::from_millis(50))]
#[case::slow(Duration::ZERO)]
#[tokio::test]
async fn a_late_driver_is_noticed_where_that_is_no_error(#[case] pause: Duration) {
    let (folder, node) = create(NodeSpec::uniform("t4-16gb", 1).unwrap());
    node.unload_driver().unwrap();
    let config = Config {
        fail_on_init_error: false,
        ..config(MigStrategy::None)
    };
    let session = Session::with_pauses(&Options::at(node.root()), pause, pause).unwrap();
    let running = Running::with_session((folder, node), config, Arc::new(session));
    let text = running.file_with("nvidia.com/vgpu.present=false").await;
    assert_eq!(text.lines().count(), 1, "{text}");
    running.node.load_driver().unwrap();
    running.file_with("nvidia.com/gpu.count=1").await;
    running.stop().await;
}

#[tokio::test]
async fn labels_stay_while_the_driver_is_gone() {
    let node = create(NodeSpec::uniform("t4-16gb", 1).unwrap());
    let every = Interval::Every(Duration::from_millis(20));
    let running = Running::start(
        node,
        Config {
            interval: every,
            ..config(MigStrategy::None)
        },
    );
    let before = running.file_with("nvidia.com/gpu.count=1").await;
    running
        .node
        .store()
        .update(|node| node.driver.state = DriverState::Unloaded)
        .unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(fs::read_to_string(&running.file).unwrap(), before);
    assert!(!running.task.is_finished());
    running.node.load_driver().unwrap();
    running.stop().await;
}

/// The engine's journal is there while it changes GPUs, which nobody may hold then.
#[tokio::test]
async fn the_gpus_are_let_go_while_their_layout_is_changed() {
    let node = create(NodeSpec::uniform("a100-sxm4-40gb", 1).unwrap());
    let folder = node.1.root().join("var/lib/lathe/mig");
    let journal = folder.join("journal");
    fs::create_dir_all(&folder).unwrap();
    fs::write(&journal, "x").unwrap();
    // Also by one that starts meanwhile, and for which no driver would be an error.
    let running = Running::start(node, config(MigStrategy::Mixed));
    for _ in 0..2 {
        let begun = Instant::now();
        while !running.node.state().unwrap().clients.is_empty() {
            assert!(begun.elapsed() < PATIENCE, "it holds the GPUs");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        fs::remove_file(&journal).unwrap();
        running.file_with("nvidia.com/gpu.count=1").await;
        fs::write(&journal, "x").unwrap();
    }
    assert!(!running.task.is_finished());
    running.stop().await;
}

#[tokio::test]
async fn no_driver_at_the_start_is_an_error() {
    let (folder, node) = create(NodeSpec::uniform("t4-16gb", 1).unwrap());
    node.unload_driver().unwrap();
    let root = node.root().to_owned();
    let running = feature_discovery::run(
        root,
        config(MigStrategy::None),
        session(&node),
        CancellationToken::new(),
    );
    let error = tokio::time::timeout(PATIENCE, running)
        .await
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, Error::Driver(_)), "{error}");
    drop(folder);
}

#[test]
fn once_writes_and_says_what_became_of_the_file() {
    let (_folder, node) = create(NodeSpec::uniform("t4-16gb", 1).unwrap());
    let once = |config: &Config| feature_discovery::once(node.root(), config, &session(&node));
    let config = Config {
        oneshot: true,
        ..config(MigStrategy::None)
    };
    assert_eq!(once(&config).unwrap(), feature_discovery::Written::Replaced);
    assert_eq!(
        once(&config).unwrap(),
        feature_discovery::Written::Unchanged
    );
    let elsewhere = Config {
        output: Some(Path::new("/no/such/folder/gfd").to_owned()),
        ..config
    };
    assert!(matches!(once(&elsewhere), Err(Error::Write(_))));
}
