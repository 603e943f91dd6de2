//! Who uses the GPUs: processes that initialised the library, and simulated workloads.
//!
//! Knows which of them stand in the way of which change. Whether a process still lives is asked through a function, so
//! that nothing here reads `/proc`.

use serde::{Deserialize, Serialize};

use super::{Node, load::Load};

/// A process that has the library initialised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot (field 22 of `/proc/PID/stat`), which tells a reused pid apart.
    pub start: u64,
    /// Whether it holds the GPUs open like a monitoring daemon with contexts, so that mode changes answer IN_USE.
    #[serde(default)]
    pub holder: bool,
}

/// A process that computes on a GPU or an instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Process id.
    pub pid: u32,
    /// Start time of a real process, as in `Client`; absent for a process that exists only in the simulation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u64>,
    /// Command.
    pub name: String,
    /// Position of the GPU in `Node::gpus`.
    pub gpu: usize,
    /// GPU instance; absent when it uses the whole GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<u32>,
    /// Compute instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<u32>,
    /// Device memory it holds, MiB.
    pub memory_mib: u64,
    /// What it does.
    pub load: Load,
    /// Whether it is a graphics client instead of a compute client.
    #[serde(default)]
    pub graphics: bool,
    /// Whether it runs through MPS.
    #[serde(default)]
    pub mps: bool,
    /// When it began, microseconds of the node's clock.
    pub since_us: u64,
}

impl Node {
    /// Workloads on a GPU, those of instances included.
    pub fn workloads_on(&self, gpu: usize) -> impl Iterator<Item = &Workload> {
        self.workloads
            .iter()
            .filter(move |workload| workload.gpu == gpu)
    }

    /// Workloads in a GPU instance, or in one compute instance of it.
    pub fn workloads_in(
        &self,
        gpu: usize,
        instance: u32,
        compute: Option<u32>,
    ) -> impl Iterator<Item = &Workload> {
        self.workloads_on(gpu).filter(move |workload| {
            workload.instance == Some(instance)
                && (compute.is_none() || workload.compute == compute)
        })
    }

    /// Whether a client other than `caller` keeps the library open in a way that holds the GPUs.
    pub fn has_holder(&self, caller: u32) -> bool {
        let all = self.personality.clients_hold;
        self.clients
            .iter()
            .any(|client| client.pid != caller && (all || client.holder))
    }

    /// Whether a GPU is in use by anything that a mode change or a reset must not interrupt.
    pub fn is_held(&self, gpu: usize, caller: u32) -> bool {
        self.has_holder(caller) || self.workloads_on(gpu).next().is_some()
    }

    /// Registers a process that initialised the library or holds the GPUs. A process that holds them goes on to, whatever it
    /// registers as later.
    pub fn register(&mut self, pid: u32, start: u64, holder: bool) {
        match self.clients.iter_mut().find(|client| client.pid == pid) {
            Some(client) => {
                let held = client.holder && client.start == start;
                *client = Client {
                    pid,
                    start,
                    holder: holder || held,
                };
            }
            None => self.clients.push(Client { pid, start, holder }),
        }
    }

    /// Forgets a process that shut the library down.
    pub fn unregister(&mut self, pid: u32) {
        self.clients.retain(|client| client.pid != pid);
    }

    /// Forgets clients and workloads of processes that ended; `alive` tells by pid and start time.
    pub fn reap(&mut self, alive: impl Fn(u32, u64) -> bool) {
        self.clients
            .retain(|client| alive(client.pid, client.start));
        self.workloads.retain(|workload| {
            workload
                .start
                .is_none_or(|start| alive(workload.pid, start))
        });
    }

    /// Memory in use, MiB: the driver's reservation for a whole GPU, plus what workloads hold.
    pub fn workload_memory_mib(&self, gpu: usize, instance: Option<u32>) -> u64 {
        self.workloads_on(gpu)
            .filter(|workload| instance.is_none() || workload.instance == instance)
            .map(|workload| workload.memory_mib)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(pid: u32, start: Option<u64>, instance: Option<u32>) -> Workload {
        Workload {
            pid,
            start,
            name: "train".into(),
            gpu: 0,
            instance,
            compute: instance.map(|_| 0),
            memory_mib: 100,
            load: Load::default(),
            graphics: false,
            mps: false,
            since_us: 0,
        }
    }

    #[test]
    fn plain_clients_hold_nothing_unless_the_driver_says_so() {
        let mut node = Node::default();
        node.register(10, 1, false);
        assert!(!node.is_held(0, 99));
        node.personality.clients_hold = true;
        assert!(node.is_held(0, 99));
        assert!(
            !node.is_held(0, 10),
            "the caller does not hold against itself"
        );
    }

    #[test]
    fn holders_hold_every_gpu_and_workloads_their_own() {
        let mut node = Node::default();
        node.workloads.push(workload(5, None, None));
        assert!(node.is_held(0, 99) && !node.is_held(1, 99));
        node.register(10, 1, true);
        assert!(node.is_held(1, 99));
    }

    #[test]
    fn a_holder_that_registers_again_still_holds_and_a_reused_pid_does_not() {
        let mut node = Node::default();
        node.register(10, 1, true);
        node.register(10, 1, false);
        assert!(node.has_holder(99));
        node.register(10, 2, false);
        assert!(!node.has_holder(99));
    }

    #[test]
    fn the_dead_are_reaped_and_simulated_processes_are_not() {
        let mut node = Node::default();
        node.register(10, 1, true);
        node.register(11, 7, true);
        node.workloads = vec![
            workload(11, Some(7), None),
            workload(12, None, Some(3)),
            workload(13, Some(1), None),
        ];
        node.reap(|pid, start| (pid, start) == (11, 7));
        assert_eq!(
            node.clients
                .iter()
                .map(|client| client.pid)
                .collect::<Vec<_>>(),
            [11]
        );
        assert_eq!(
            node.workloads
                .iter()
                .map(|workload| workload.pid)
                .collect::<Vec<_>>(),
            [11, 12]
        );
        assert_eq!(node.workload_memory_mib(0, Some(3)), 100);
        assert_eq!(node.workload_memory_mib(0, None), 200);
    }
}
