//! Health of a simulated node: what its driver says, read as a real one is.

use std::time::{Duration, Instant};

use nvml::{Driver, EventKind, EventMask, EventStream, Options};
use rstest::rstest;
use sim_nvml::Code;
use sim_nvml::admin::SimulatedNode;
use sim_nvml::model::health::{EccError, Throttle};
use sim_nvml::model::{Effect, Fault};
use sim_nvml::presets::NodeSpec;

use super::super::*;
use crate::hardware::{self, Inventory};
use crate::resources::Device;

/// A simulated node, its driver and what health makes of it, on a clock that the test moves.
struct Rig {
    node: SimulatedNode,
    driver: Driver,
    events: EventStream,
    inventory: Inventory,
    health: Health,
    now: Instant,
    _folder: tempfile::TempDir,
}

impl Rig {
    fn new(board: &str, gpus: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let spec = NodeSpec::uniform(board, gpus).unwrap();
        let node = SimulatedNode::create(folder.path(), &spec).unwrap();
        let options = Options {
            call_timeout: Duration::from_secs(60),
            ..Options::at(node.root())
        };
        let driver = Driver::open(&options).unwrap();
        let events = driver.watch(EventMask::ALL).unwrap();
        let mut rig = Self {
            node,
            driver,
            events,
            inventory: Inventory::default(),
            health: Health::new(Policy::default()),
            now: Instant::now(),
            _folder: folder,
        };
        rig.describe();
        for _ in 0..gpus {
            rig.until(|kind| *kind == EventKind::Watching);
        }
        rig.look();
        rig
    }

    /// Describes all GPUs anew, as the plugin does after events and failures.
    fn describe(&mut self) {
        let answers = self.driver.for_each_gpu(hardware::describe).unwrap();
        self.inventory.observe(hardware::Observation::Driver {
            version: "1".to_owned(),
            generation: 1,
        });
        for (answer, index) in answers.into_iter().zip(0..) {
            let gpu = hardware::Observation::Gpu { index, answer };
            self.inventory.observe(gpu);
        }
        let inventory = Observation::Inventory(&self.inventory);
        self.health.observe(inventory, self.now);
    }

    /// Passes events on until one of this kind has come.
    fn until(&mut self, wanted: impl Fn(&EventKind) -> bool) {
        for _ in 0..100 {
            let event = self.events.next_within(Duration::from_secs(60)).unwrap();
            let event = event.expect("an event within a minute");
            let observation = Observation::Event {
                gpu: &event.gpu,
                instance: event.gpu_instance.zip(event.compute_instance),
                kind: &event.kind,
            };
            self.health.observe(observation, self.now);
            if wanted(&event.kind) {
                return;
            }
        }
        panic!("a hundred events, and none of them");
    }

    fn read(&self, index: u32) -> Result<Readings, nvml::Error> {
        self.driver.gpu(index).run(Readings::read)
    }

    /// Asks the GPUs that are due.
    fn look(&mut self) {
        // Past the pause between looks.
        self.now += Duration::from_secs(1);
        for gpu in self.health.to_look_at(self.now) {
            let index = self.inventory.gpu(&gpu).unwrap().gpu.index;
            let looked = Observation::Looked {
                gpu: &gpu,
                asked: self.now,
                readings: self.read(index).ok(),
            };
            self.health.observe(looked, self.now);
        }
    }

    /// So much time passes in which the plugin does its part.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.health.due().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.look();
        }
        self.now = self.now.max(end);
    }

    fn devices(&self) -> Vec<Device> {
        let gpus = self.inventory.descriptions();
        let rules = crate::resources::Rules {
            strategy: gpu::labels::MigStrategy::Mixed,
            ..Default::default()
        };
        let offer = crate::resources(&gpus, &rules);
        let resources = offer.resources.into_iter();
        resources.flat_map(|resource| resource.devices).collect()
    }

    /// The causes of all devices, `GPU index: causes` for those that have some.
    fn unhealthy(&self) -> Vec<String> {
        let mut all = Vec::new();
        for device in self.devices() {
            if let Verdict::Unhealthy(reasons) = self.health.verdict(&device) {
                let reasons = reasons.iter().map(|reason| match reason.cause {
                    Cause::Xid(number) => format!("xid {number}"),
                    cause => cause.key().to_owned(),
                });
                let reasons: Vec<_> = reasons.collect();
                all.push(format!("{}: {}", device.index(), reasons.join(", ")));
            }
        }
        all
    }
}

#[test]
fn a_gpu_tells_all_that_it_knows() {
    let rig = Rig::new("h100-sxm5-80gb", 2);
    let readings = rig.read(0).unwrap();
    assert!(readings.energy_mj.is_some());
    assert_eq!(
        readings,
        Readings {
            recovery: Some(None),
            remap_pending: Some(false),
            remap_failure: Some(false),
            uncorrected: Some(0),
            thermal: Some(false),
            energy_mj: readings.energy_mj,
        }
    );
    rig.node.ecc(0, EccError::SramParity, 3).unwrap();
    rig.node.row_remap(0, 1).unwrap();
    let hot = Throttle {
        hw_thermal: true,
        ..Throttle::default()
    };
    rig.node.throttle(0, hot).unwrap();
    let readings = rig.read(0).unwrap();
    assert_eq!(readings.recovery, Some(Some(RecoveryAction::DrainAndReset)));
    assert_eq!(readings.remap_pending, Some(true));
    assert_eq!(readings.uncorrected, Some(3));
    assert_eq!(readings.thermal, Some(true));
    // The other one is well.
    assert_eq!(rig.read(1).unwrap().uncorrected, Some(0));
}

#[test]
fn what_a_board_lacks_or_fails_to_tell_is_left_out() {
    let rig = Rig::new("t4-16gb", 1);
    let readings = rig.read(0).unwrap();
    assert_eq!(readings.remap_pending, None);
    assert_eq!(readings.remap_failure, None);
    let fail = |symbol: &str, code| {
        let fault = Fault::new(symbol, Effect::Fail(code));
        rig.node.inject(fault).unwrap();
    };
    fail("nvmlDeviceGetTotalEccErrors", Code::UNKNOWN);
    fail("nvmlDeviceGetTotalEnergyConsumption", Code::NOT_SUPPORTED);
    let readings = rig.read(0).unwrap();
    assert_eq!((readings.uncorrected, readings.energy_mj), (None, None));
    assert_eq!(readings.thermal, Some(false));
    rig.node.lose(0).unwrap();
    assert!(rig.read(0).unwrap_err().is_gpu_lost());
}

#[rstest]
#[case::recovery_action_done(95, None)]
#[case::counter_began_anew(48, Some(EccError::Dbe))]
fn fatal_until_the_gpu_is_reset(#[case] xid: u64, #[case] error: Option<EccError>) {
    let mut rig = Rig::new("h100-sxm5-80gb", 2);
    match error {
        Some(error) => rig.node.ecc(1, error, 1).unwrap(),
        None => rig.node.xid(1, xid, None).unwrap(),
    }
    rig.until(|kind| *kind == EventKind::Xid(xid));
    rig.pass(Duration::from_secs(3600));
    let unhealthy = rig.unhealthy();
    assert_eq!(unhealthy.len(), 1);
    assert!(
        unhealthy[0].starts_with(&format!("1: xid {xid}")),
        "{unhealthy:?}"
    );
    rig.node.reset(1).unwrap();
    rig.pass(Duration::from_secs(60));
    assert_eq!(rig.unhealthy(), [""; 0]);
}

#[test]
fn fatal_until_the_driver_is_loaded_anew() {
    let mut rig = Rig::new("a100-sxm4-80gb", 1);
    rig.node.step(Duration::from_secs(600)).unwrap();
    rig.node.xid(0, 74, None).unwrap();
    rig.until(|kind| *kind == EventKind::Xid(74));
    rig.pass(Duration::from_secs(60));
    assert_eq!(rig.unhealthy(), ["0: xid 74"]);
    rig.node.reload_driver().unwrap();
    rig.driver.reopen().unwrap();
    rig.describe();
    rig.pass(Duration::from_secs(60));
    assert_eq!(rig.unhealthy(), [""; 0]);
}

#[test]
fn rows_that_wait_keep_new_pods_away_until_the_reset() {
    let mut rig = Rig::new("a100-sxm4-80gb", 1);
    rig.node.row_remap(0, 2).unwrap();
    rig.until(|kind| *kind == EventKind::Xid(63));
    rig.pass(Duration::from_secs(3600));
    assert_eq!(
        rig.unhealthy(),
        ["0: xid 63, rowRemapPending, recoveryAction"]
    );
    // The same is found by a plugin that starts now.
    rig.health = Health::new(Policy::default());
    rig.describe();
    rig.look();
    assert_eq!(rig.unhealthy(), ["0: rowRemapPending, recoveryAction"]);
    rig.node.reset(0).unwrap();
    rig.pass(Duration::from_secs(60));
    assert_eq!(rig.unhealthy(), [""; 0]);
}

#[test]
fn an_xid_in_an_instance_costs_that_instance() {
    let mut rig = Rig::new("h100-sxm5-80gb", 2);
    let made = rig.driver.gpu(1).run(|device| {
        device.set_mig_mode(true)?;
        for _ in 0..2 {
            let instance = device.create_gpu_instance(19, None)?;
            device.create_compute_instance(instance.id, 0, None)?;
        }
        Ok(())
    });
    made.unwrap();
    rig.describe();
    let places: Vec<_> = rig
        .devices()
        .iter()
        .filter_map(|device| device.mig)
        .collect();
    let [first, second] = places.as_slice() else {
        panic!("{places:?}");
    };
    let hit = (second.gpu_instance, second.compute_instance);
    rig.node.xid(1, 94, Some(hit)).unwrap();
    rig.until(|kind| *kind == EventKind::Xid(94));
    rig.look();
    assert_eq!(rig.unhealthy(), [format!("1:{}: xid 94", second.index)]);
    rig.node.xid(1, 92, None).unwrap();
    rig.until(|kind| *kind == EventKind::Xid(92));
    assert_eq!(
        rig.unhealthy(),
        [
            format!("1:{}: xid 92", first.index),
            format!("1:{}: xid 94, xid 92", second.index)
        ]
    );
    rig.pass(Duration::from_secs(301));
    assert_eq!(rig.unhealthy(), [""; 0]);
}

#[test]
fn a_gpu_whose_events_cannot_be_read_is_the_only_one() {
    let mut rig = Rig::new("h100-sxm5-80gb", 2);
    let fault = Fault {
        gpu: Some(1),
        ..Fault::new("nvmlDeviceRegisterEvents", Effect::Fail(Code::UNKNOWN))
    };
    // Watching begins anew after a reset; then it fails.
    let id = rig.node.inject(fault).unwrap();
    rig.driver.reopen().unwrap();
    rig.until(|kind| matches!(kind, EventKind::Failed(_)));
    rig.pass(Duration::from_secs(60));
    assert_eq!(rig.unhealthy(), ["1: unwatched"]);
    rig.node.clear(id).unwrap();
    rig.until(|kind| *kind == EventKind::Watching);
    rig.pass(Duration::from_secs(60));
    while rig.unhealthy() != [""; 0] {
        // The other GPU's came first.
        rig.until(|kind| *kind == EventKind::Watching);
        rig.pass(Duration::from_secs(60));
    }
}
