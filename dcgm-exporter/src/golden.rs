//! Whole pages, byte for byte, of simulated nodes whose clock stands still.
//!
//! Expected values are worked out by hand from the boards' data and the load put on them. Time: the load runs for 600 s
//! until the first reading and for 10 s more until the second, so energy is 610 s of the power drawn.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nvml::{Driver, Options, Session};
use sim_nvml::admin::{SimulatedNode, WorkloadSpec};
use sim_nvml::model::Load;
use sim_nvml::presets::NodeSpec;
use tempfile::TempDir;

use crate::collector::Collector;
use crate::counters::Counters;
use crate::labels::LabelStyle;
use crate::page;
use crate::read::Plan;
use crate::selector::Selector;

/// Any moment will do.
const START_US: u64 = 1_755_600_000_000_000;

struct Golden {
    _folder: TempDir,
    node: SimulatedNode,
}

impl Golden {
    /// A node with one GPU whose clock stands still, with MIG mode on when `mig`.
    fn new(board: &str, mig: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node =
            SimulatedNode::create(folder.path(), &NodeSpec::uniform(board, 1).unwrap()).unwrap();
        let freeze = |node: &mut sim_nvml::model::Node| {
            node.clock_frozen_us = Some(START_US);
            let gpu = &mut node.gpus[0];
            gpu.uuid = "GPU-golden".to_owned();
            gpu.meters.at_us = START_US;
            gpu.mig.current = mig;
            gpu.mig.pending = mig;
        };
        node.store().update(freeze).unwrap();
        Self {
            _folder: folder,
            node,
        }
    }

    /// Makes instances of these profile ids, each with a compute instance that fills it, where the driver puts them.
    fn cut(&self, profiles: &'static [(u32, u32)]) {
        let driver = Driver::open(&Options::at(self.node.root())).unwrap();
        let cut = move |device: &nvml::Device<'_>| {
            for &(gpu_profile, compute_profile) in profiles {
                let instance = device.create_gpu_instance(gpu_profile, None)?;
                device.create_compute_instance(instance.id, compute_profile, None)?;
            }
            Ok(())
        };
        driver.gpu(0).run(cut).unwrap();
    }

    fn load(&self, instance: Option<(u32, u32)>, memory_mib: u64, load: Load) {
        let spec = WorkloadSpec {
            instance,
            memory_mib,
            load,
            ..WorkloadSpec::default()
        };
        self.node.run_workload(spec).unwrap();
    }

    /// The families after two readings.
    fn page(&self) -> String {
        let style = LabelStyle {
            hostname: Some("node-1".to_owned()),
            ..LabelStyle::default()
        };
        let session = Arc::new(Session::new(&Options::at(self.node.root())).unwrap());
        let (wake, _wakes) = mpsc::channel();
        let plan = Plan::new(Counters::default(), style);
        let mut collector = Collector::new(
            session,
            plan,
            Selector::Flex,
            Duration::from_secs(30),
            None,
            wake,
        );
        let first = Instant::now();
        self.node.step(Duration::from_secs(600)).unwrap();
        collector.collect(first).unwrap();
        self.node.step(Duration::from_secs(10)).unwrap();
        let readings = collector
            .collect(first + Duration::from_secs(10))
            .unwrap()
            .readings;
        assert_eq!(readings.failures, []);
        let mut text = String::new();
        page::families(&Counters::default(), &readings.entities, &mut text);
        text
    }
}

fn expected(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/golden")
        .join(name)
        .with_extension("txt");
    std::fs::read_to_string(path).unwrap()
}

#[track_caller]
fn check(page: &str, expected: &str) {
    for (got, wanted) in page.lines().zip(expected.lines()) {
        assert_eq!(got, wanted);
    }
    assert_eq!(page.len(), expected.len(), "one page is longer:\n{page}");
}

fn full() -> Load {
    Load {
        sm: 1.0,
        dram: 1.0,
        ..Load::default()
    }
}

#[test]
fn a_whole_h100() {
    let golden = Golden::new("h100-sxm5-80gb", false);
    golden.load(
        None,
        20_000,
        Load {
            tensor: 0.5,
            decoder: 1.0,
            // 100 MiB/s and 50 MiB/s.
            pcie_tx: 104.8576,
            pcie_rx: 52.4288,
            // Together 1024 MB/s, which are 1 000 000 KiB/s.
            nvlink_tx: 512.0,
            nvlink_rx: 512.0,
            ..full()
        },
    );
    check(&golden.page(), &expected("h100"));
}

#[test]
fn an_h100_cut_all_balanced() {
    let golden = Golden::new("h100-sxm5-80gb", true);
    golden.cut(&[(9, 2), (14, 1), (19, 0), (19, 0)]);
    // 60 of 132 multiprocessors at 80 % of the power span: 70 W + 0.8 × 60/132 × 630 W, cut to whole milliwatts.
    golden.load(
        Some((2, 0)),
        12_345,
        Load {
            sm: 1.0,
            tensor: 0.25,
            ..Load::default()
        },
    );
    check(&golden.page(), &expected("h100-mig"));
}

#[test]
fn a_whole_t4() {
    let golden = Golden::new("t4-16gb", false);
    golden.load(None, 1000, full());
    check_but_for_noise(&golden.page(), "t4", 70.0);
}

#[test]
fn an_a100_cut_in_halves() {
    let golden = Golden::new("a100-sxm4-40gb", true);
    golden.cut(&[(9, 2), (9, 2)]);
    check_but_for_noise(&golden.page(), "a100-mig", 55.0);
}

/// Boards up to Ampere report the power of the moment, which wobbles by one percent: `55 W` in the expected page stands for
/// that, with six decimals, the same on each sample.
#[track_caller]
fn check_but_for_noise(page: &str, name: &str, watts: f64) {
    let sample = page
        .lines()
        .find(|line| line.starts_with("DCGM_FI_DEV_POWER_USAGE{"))
        .unwrap();
    let (_, power) = sample.rsplit_once(' ').unwrap();
    assert!(
        (power.parse::<f64>().unwrap() / watts - 1.0).abs() <= 0.01,
        "{power} W"
    );
    assert_eq!(power.split_once('.').unwrap().1.len(), 6);
    check(page, &expected(name).replace(&format!("{watts} W"), power));
}
