//! Many things in a row on one node: applies that succeed, fail and are killed, workloads that come and go, reboots. What
//! each leaves must be fit for the next.

use std::collections::BTreeMap;

use mig_manager::engine::{Applied, Error};
use rstest::rstest;
use sim_nvml::Code;
use sim_nvml::model::Personality;
use sim_nvml::model::faults::{Effect, Fault};
use sim_nvml::presets::NodeSpec;

use super::kill::killed;
use super::{Node, all};

const GPUS: usize = 2;
const EVENTS: usize = 30;

/// Calls that fail now and then: changes, and looks.
const FAILING: [&str; 7] = [
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
    "nvmlGpuInstanceDestroy",
    "nvmlComputeInstanceDestroy",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetGpuInstances",
];

/// Numbers that look random and are the same each time (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        for shift in [13, -7, 17_i32] {
            self.0 ^= if shift > 0 {
                self.0 << shift
            } else {
                self.0 >> -shift
            };
        }
        (self.0 % end as u64) as usize
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

struct History {
    dice: Dice,
    node: Node,
    layouts: &'static [&'static str],
    /// Running processes, and the GPU and GPU instance of each.
    workloads: BTreeMap<u32, (usize, u32)>,
    /// What happened, for whoever reads a failure.
    log: Vec<String>,
}

impl History {
    /// A request for some of the GPUs.
    fn specs(&mut self) -> String {
        let mut specs = String::new();
        for gpu in 0..GPUS {
            let devices = self.dice.one(self.layouts);
            specs.push_str(&match self.dice.below(4) {
                0 if gpu > 0 => continue,
                0 | 1 => format!("- {{devices: [{gpu}], mig-enabled: false}}\n"),
                _ => format!(
                    "- {{devices: [{gpu}], mig-enabled: true, mig-devices: {{{devices}}}}}\n"
                ),
            });
        }
        specs
    }

    fn apply(&mut self) {
        let specs = self.specs();
        let (before, interrupted) = (self.node.layouts(), self.node.journal().is_some());
        let result = self.node.apply(&specs);
        self.log.push(format!("apply {specs:?}: {result:?}"));
        self.judge(&specs, &before, interrupted, &result);
    }

    fn judge(
        &self,
        specs: &str,
        before: &[String],
        interrupted: bool,
        result: &Result<Applied, Error>,
    ) {
        let log = &self.log;
        let journal = self.node.journal();
        match result {
            Ok(applied) => {
                self.node.sim.clear_all().unwrap();
                assert!(self.node.equal(specs), "not as asked for: {log:#?}");
                assert_eq!(
                    journal.is_some(),
                    !applied.unrecovered.is_empty(),
                    "{log:#?}"
                );
            }
            Err(error) if error.exit_code() == 8 => assert!(journal.is_some(), "{log:#?}"),
            // What an interrupted apply left may be finished, or undone, all the same.
            Err(_) if interrupted => {}
            Err(_) => {
                assert_eq!(self.node.layouts(), before, "not as before: {log:#?}");
                assert_eq!(journal, None, "{log:#?}");
            }
        }
    }

    /// Workloads would end it before its first step, and a fault would make it fail, not die.
    fn kill(&mut self) {
        if !self.workloads.is_empty() {
            return;
        }
        self.node.sim.clear_all().unwrap();
        let (specs, at) = (self.specs(), 1 + self.dice.below(12));
        let was = killed(&self.node, &specs, at);
        self.log
            .push(format!("killed at event {at}, {was}: {specs:?}"));
    }

    fn inject(&mut self) {
        let fault = Fault {
            gpu: Some(self.dice.below(GPUS)),
            after: self.dice.below(3) as u64,
            times: Some(1 + self.dice.below(3) as u64),
            ..Fault::new(self.dice.one(&FAILING), Effect::Fail(Code::UNKNOWN))
        };
        self.log.push(format!("{fault:?}"));
        self.node.sim.inject(fault).unwrap();
    }

    fn begin_work(&mut self) {
        let gpu = self.dice.below(GPUS);
        let state = self.node.sim.state().unwrap();
        let instances = state.gpus[gpu].mig.instances.iter();
        let usable = instances.filter(|i| i.compute.iter().any(|c| c.id == 0));
        let usable: Vec<u32> = usable.map(|i| i.id).collect();
        if !usable.is_empty() {
            let instance = self.dice.one(&usable);
            let pid = self.node.workload(gpu, Some(instance));
            self.log
                .push(format!("process {pid} on GPU {gpu} in {instance}"));
            self.workloads.insert(pid, (gpu, instance));
        }
    }

    fn end_work(&mut self) {
        self.log.push("no process any more".to_owned());
        for pid in std::mem::take(&mut self.workloads).into_keys() {
            self.node.sim.stop_workload(pid).unwrap();
        }
    }

    fn reboot(&mut self) {
        if self.workloads.is_empty() {
            self.log.push("reboot".to_owned());
            self.node.sim.reboot().unwrap();
        }
    }

    fn work_goes_on(&self) {
        let state = self.node.sim.state().unwrap();
        for (gpu, instance) in self.workloads.values() {
            let mut instances = state.gpus[*gpu].mig.instances.iter();
            assert!(instances.any(|i| i.id == *instance), "{:#?}", self.log);
        }
    }
}

#[rstest]
#[case::hopper("h100-sxm5-80gb", false,
    &["1g.10gb: 3", "3g.40gb: 2", "7g.80gb: 1", "1c.3g.40gb: 2, 1g.10gb: 1", "2g.20gb: 1, 1g.20gb: 1", ""])]
#[case::passed_through_ampere("a100-sxm4-40gb", true,
    &["1g.5gb: 3", "3g.20gb: 2", "7g.40gb: 1", "1c.3g.20gb: 2, 1g.5gb: 1", ""])]
#[case::ampere("a30-24gb", false, &["1g.6gb: 2", "2g.12gb: 2", "4g.24gb: 1", ""])]
fn every_end_is_a_beginning(
    #[case] board: &str,
    #[case] passthrough: bool,
    #[case] layouts: &'static [&'static str],
    #[values(7, 7919)] seed: u64,
) {
    let spec = NodeSpec {
        personality: Some(Personality {
            passthrough,
            ..Personality::default()
        }),
        ..NodeSpec::uniform(board, GPUS).unwrap()
    };
    let mut history = History {
        dice: Dice(seed),
        node: Node::new(&spec),
        layouts,
        workloads: BTreeMap::new(),
        log: Vec::new(),
    };
    for _ in 0..EVENTS {
        match history.dice.below(10) {
            0..=3 => history.apply(),
            4..=5 => history.kill(),
            6 => history.inject(),
            7 => history.begin_work(),
            8 => history.end_work(),
            _ => history.reboot(),
        }
        history.work_goes_on();
    }
    history.node.sim.clear_all().unwrap();
    history.end_work();
    let last = all(layouts[0]);
    let applied = history.node.apply(&last);
    assert!(
        applied.is_ok() && history.node.equal(&last),
        "{applied:?} {:#?}",
        history.log
    );
    assert_eq!(history.node.journal(), None);
}
