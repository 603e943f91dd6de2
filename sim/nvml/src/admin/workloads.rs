//! Workloads and holders: what keeps a simulated node busy.

use super::{Error, SimulatedNode};
use crate::{
    model::{ComputeMode, DriverState, Gpu, Load, Node, Workload},
    store::start_time,
};

/// Simulated processes get ids from here on, above what Linux gives out by default.
const FIRST_SIMULATED_PID: u32 = 5_000_000;

/// What a workload is to be.
#[derive(Clone, Debug, Default)]
pub struct WorkloadSpec {
    /// Position of the GPU.
    pub gpu: usize,
    /// GPU instance and compute instance; absent for the whole GPU.
    pub instance: Option<(u32, u32)>,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// What it does.
    pub load: Load,
    /// Command; `workload` when empty.
    pub name: String,
    /// A real process: the workload ends with it. Absent for a process that exists only in the simulation.
    pub pid: Option<u32>,
    /// Whether it is a graphics client.
    pub graphics: bool,
    /// Whether it runs through MPS.
    pub mps: bool,
}

impl SimulatedNode {
    /// Runs a workload and returns its process id.
    pub fn run_workload(&self, spec: WorkloadSpec) -> Result<u32, Error> {
        let start = match spec.pid {
            Some(pid) => Some(start_time(pid).ok_or(Error::NoProcess(pid))?),
            None => None,
        };
        self.on_gpu(spec.gpu, |node, now| {
            let gpu = &node.gpus[spec.gpu];
            if let Some(reason) = unreachable(node, gpu) {
                return Err(Error::Unreachable {
                    gpu: spec.gpu,
                    reason,
                });
            }
            match spec.instance {
                Some((instance, compute)) => {
                    let found = gpu
                        .instance(instance)
                        .and_then(|found| found.compute_by_id(compute));
                    found.ok_or(Error::NoInstance {
                        gpu: spec.gpu,
                        instance,
                        compute,
                    })?;
                }
                None if gpu.mig.current => return Err(Error::Partitioned(spec.gpu)),
                None => {}
            }
            admit(node, &spec)?;
            let taken = |pid: u32| node.workloads.iter().any(|workload| workload.pid == pid);
            let pid = match spec.pid {
                Some(pid) => pid,
                None => (FIRST_SIMULATED_PID..)
                    .find(|pid| !taken(*pid))
                    .unwrap_or(u32::MAX),
            };
            node.workloads.push(Workload {
                pid,
                start,
                name: if spec.name.is_empty() {
                    "workload".to_owned()
                } else {
                    spec.name
                },
                gpu: spec.gpu,
                instance: spec.instance.map(|(instance, _)| instance),
                compute: spec.instance.map(|(_, compute)| compute),
                memory_mib: spec.memory_mib,
                load: spec.load,
                graphics: spec.graphics,
                mps: spec.mps,
                since_us: now,
            });
            Ok(pid)
        })?
    }

    /// Stops the workloads of a process.
    pub fn stop_workload(&self, pid: u32) -> Result<(), Error> {
        let stopped = self.store.update(|node| {
            let before = node.workloads.len();
            node.workloads.retain(|workload| workload.pid != pid);
            node.workloads.len() != before
        })?;
        if stopped {
            Ok(())
        } else {
            Err(Error::NoProcess(pid))
        }
    }

    /// Registers a running process as one that holds the GPUs, like a monitoring daemon.
    pub fn hold(&self, pid: u32) -> Result<(), Error> {
        let start = start_time(pid).ok_or(Error::NoProcess(pid))?;
        Ok(self.store.update(|node| node.register(pid, start, true))?)
    }

    /// Ends the hold of a process.
    pub fn release(&self, pid: u32) -> Result<(), Error> {
        Ok(self.store.update(|node| node.unregister(pid))?)
    }
}

/// Why no process can begin to use a GPU, if so.
fn unreachable(node: &Node, gpu: &Gpu) -> Option<&'static str> {
    if node.driver.state != DriverState::Loaded {
        Some("the driver does not answer")
    } else if gpu.removed {
        Some("it was removed from the driver")
    } else if gpu.is_lost() {
        Some("it is lost")
    } else if gpu.modes.drain {
        Some("it is being drained")
    } else {
        None
    }
}

/// Whether the compute mode and the free memory of where it is to run let a workload in.
fn admit(node: &Node, spec: &WorkloadSpec) -> Result<(), Error> {
    let gpu = &node.gpus[spec.gpu];
    let instance = spec.instance.map(|(instance, _)| instance);
    let mode = match spec.instance {
        Some((instance, compute)) => gpu
            .modes
            .mig_compute
            .get(&format!("{instance}/{compute}"))
            .copied()
            .unwrap_or_default(),
        None => gpu.modes.compute,
    };
    let taken = match spec.instance {
        Some((instance, compute)) => node
            .workloads_in(spec.gpu, instance, Some(compute))
            .next()
            .is_some(),
        None => node.workloads_on(spec.gpu).next().is_some(),
    };
    if mode == ComputeMode::Prohibited || (mode == ComputeMode::ExclusiveProcess && taken) {
        return Err(Error::ComputeMode {
            gpu: spec.gpu,
            mode,
        });
    }
    let profile = instance
        .and_then(|id| gpu.instance(id))
        .and_then(|found| gpu.profile_of(found));
    let memory = &gpu.board.memory;
    let room = profile.map_or(
        memory.total_mib.saturating_sub(memory.reserved_mib),
        |profile| profile.memory_mib,
    );
    let free_mib = room.saturating_sub(node.workload_memory_mib(spec.gpu, instance));
    if spec.memory_mib > free_mib {
        return Err(Error::Memory {
            gpu: spec.gpu,
            wanted_mib: spec.memory_mib,
            free_mib,
        });
    }
    Ok(())
}
