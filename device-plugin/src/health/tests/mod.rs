//! Health by tables, random sequences and the simulated node. Here: the bench that the tests of the state machine share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod events;
mod hardware;
mod looks;
mod random;
mod rules;
mod simulated;

use std::time::{Duration, Instant};

use nvml::{Code, Error, EventKind, GpuRef};

use super::*;
use crate::hardware::{self as hw, Inventory, KnownGpu};
use crate::resources::{Device, Gpu, MigDevice, MigPlace};

const A: &str = "GPU-a";
const B: &str = "GPU-b";
const DAY: u64 = 24 * 3600;

fn gpu(uuid: &str, bus: u32, instances: &[(u32, u32)]) -> KnownGpu {
    let mig = instances.iter().zip(0..);
    let mig = mig.map(|(&(gpu_instance, compute_instance), index)| MigDevice {
        index,
        uuid: format!("MIG-{uuid}-{gpu_instance}-{compute_instance}"),
        gpu_instance,
        compute_instance,
        profile: None,
        attributes: None,
    });
    KnownGpu {
        gpu: Gpu {
            index: bus,
            uuid: uuid.to_owned(),
            bus_id: format!("00000000:0{bus}:00.0"),
            mig: mig.collect(),
            ..Gpu::default()
        },
        ..KnownGpu::default()
    }
}

fn device(uuid: &str, instance: Option<(u32, u32)>) -> Device {
    Device {
        uuid: "any".to_owned(),
        gpu_index: 0,
        gpu_uuid: uuid.to_owned(),
        numa_node: None,
        mig: instance.map(|(gpu_instance, compute_instance)| MigPlace {
            index: 0,
            gpu_instance,
            compute_instance,
        }),
        shares: Some(4),
    }
}

fn named(index: u32, uuid: &str) -> GpuRef {
    GpuRef {
        index,
        uuid: Some(uuid.into()),
    }
}

fn failed(index: u32, code: Code) -> Error {
    Error::Call {
        gpu: Some(GpuRef { index, uuid: None }),
        call: "a call",
        code,
    }
}

/// All that a GPU can tell, and all well.
fn well() -> Readings {
    Readings {
        recovery: Some(None),
        remap_pending: Some(false),
        remap_failure: Some(false),
        uncorrected: Some(0),
        thermal: Some(false),
        energy_mj: Some(1_000_000),
    }
}

/// Health, its inventory and a clock.
struct Bench {
    health: Health,
    inventory: Inventory,
    zero: Instant,
    now: Instant,
}

impl Bench {
    /// GPU a whole; on GPU b the instances 1/0, 1/1 and 2/0. Both were looked at and are well.
    fn new(policy: &str) -> Self {
        let zero = Instant::now();
        let policy = Policy::parse("policy", policy.as_bytes()).unwrap();
        let mut bench = Self {
            health: Health::new(policy),
            inventory: Inventory::default(),
            zero,
            now: zero,
        };
        bench.hardware(hw::Observation::Driver {
            version: "1".to_owned(),
            generation: 1,
        });
        bench.answers(gpu(A, 1, &[]));
        bench.answers(gpu(B, 2, &[(1, 0), (1, 1), (2, 0)]));
        assert_eq!(bench.looks(), [A, B]);
        assert_eq!(bench.look(A, well()), [""; 0]);
        assert_eq!(bench.look(B, well()), [""; 0]);
        assert_eq!(bench.health.due(), None);
        bench
    }

    fn built_in() -> Self {
        Self::new("version: v1")
    }

    fn at(&mut self, seconds: u64) -> &mut Self {
        self.now = self.zero + Duration::from_secs(seconds);
        self
    }

    fn observe(&mut self, observation: Observation<'_>) -> Vec<String> {
        let notices = self.health.observe(observation, self.now);
        let short = |notice: Notice| {
            let subject = match notice.subject {
                Subject::Driver => "all".to_owned(),
                Subject::Unknown { index } => format!("GPU at {index}"),
                Subject::Gpu { uuid, instance, .. } => match instance {
                    None => uuid,
                    Some((gpu, compute)) => format!("{uuid} {gpu}/{compute}"),
                },
            };
            let xid = match notice.cause {
                Cause::Xid(number) => format!(" {number}"),
                _ => String::new(),
            };
            let sign = if notice.over { '-' } else { '+' };
            format!(
                "{sign}{subject}: {}{xid} x{}",
                notice.cause.key(),
                notice.count
            )
        };
        notices.into_iter().map(short).collect()
    }

    fn hardware(&mut self, observation: hw::Observation) -> Vec<String> {
        self.inventory.observe(observation);
        let inventory = self.inventory.clone();
        self.observe(Observation::Inventory(&inventory))
    }

    fn answers(&mut self, known: KnownGpu) -> Vec<String> {
        let index = known.gpu.index;
        let answer = Ok(Some(known));
        self.hardware(hw::Observation::Gpu { index, answer })
    }

    fn fails(&mut self, index: u32, code: Code) -> Vec<String> {
        let error = failed(index, code);
        let gpu = GpuRef { index, uuid: None };
        self.hardware(hw::Observation::Trouble { gpu, error })
    }

    fn event(&mut self, uuid: &str, instance: Option<(u32, u32)>, kind: &EventKind) -> Vec<String> {
        // The UUID decides: the place in the list may be another by now.
        let gpu = named(9, uuid);
        let gpu = &gpu;
        self.observe(Observation::Event {
            gpu,
            instance,
            kind,
        })
    }

    fn xid(&mut self, gpu: &str, number: u64) -> Vec<String> {
        self.event(gpu, None, &EventKind::Xid(number))
    }

    fn look(&mut self, gpu: &str, readings: Readings) -> Vec<String> {
        self.observe(Observation::Looked {
            gpu,
            asked: self.now,
            readings: Some(readings),
        })
    }

    fn no_answer(&mut self, gpu: &str) -> Vec<String> {
        self.observe(Observation::Looked {
            gpu,
            asked: self.now,
            readings: None,
        })
    }

    fn looks(&self) -> Vec<String> {
        self.health.to_look_at(self.now)
    }

    /// Seconds since the start.
    fn due(&self) -> Option<u64> {
        let due = self.health.due()?;
        Some(due.duration_since(self.zero).as_secs())
    }

    fn is_healthy(&self, gpu: &str) -> bool {
        self.health.verdict(&device(gpu, None)).is_healthy()
    }

    /// Of GPU a, and of b's 1/0, 1/1, 2/0.
    fn healthy(&self) -> [bool; 4] {
        [
            device(A, None),
            device(B, Some((1, 0))),
            device(B, Some((1, 1))),
            device(B, Some((2, 0))),
        ]
        .map(|device| self.health.verdict(&device).is_healthy())
    }
}
