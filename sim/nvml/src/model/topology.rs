//! How far apart two GPUs are, and which CPUs are near one.

use super::{Node, gpu::Gpu};

/// `nvmlGpuTopologyLevel_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// 0: the same board.
    Internal,
    /// 10: one PCIe switch (PIX).
    Single,
    /// 40: one NUMA node (NODE).
    Node,
    /// 50: across NUMA nodes (SYS).
    System,
}

impl Level {
    /// The header's number.
    pub fn number(self) -> u32 {
        match self {
            Level::Internal => 0,
            Level::Single => 10,
            Level::Node => 40,
            Level::System => 50,
        }
    }
}

/// CPUs of a list such as `0-55,112-167`; parts that are no range are skipped.
pub fn cpus(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part
            .trim()
            .split_once('-')
            .unwrap_or((part.trim(), part.trim()));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

impl Node {
    /// How far apart two GPUs are by PCIe.
    pub fn level(&self, one: usize, other: usize) -> Level {
        let (Some(a), Some(b)) = (self.gpus.get(one), self.gpus.get(other)) else {
            return Level::System;
        };
        if one == other {
            Level::Internal
        } else if a.pcie_switch.is_some() && a.pcie_switch == b.pcie_switch {
            Level::Single
        } else if a.numa == b.numa {
            Level::Node
        } else {
            Level::System
        }
    }

    /// CPUs near a GPU: those of its NUMA node, or those of the node's whole socket.
    pub fn near_cpus(&self, gpu: &Gpu, whole_socket: bool) -> Vec<u32> {
        let Some(near) = gpu
            .numa
            .and_then(|numa| self.machine.numa.get(numa as usize))
        else {
            return Vec::new();
        };
        let nodes = self.machine.numa.iter().filter(|node| {
            if whole_socket {
                node.socket == near.socket
            } else {
                std::ptr::eq(*node, near)
            }
        });
        nodes.flat_map(|node| cpus(&node.cpus)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(cpus("0-2,8,10-11"), [0, 1, 2, 8, 10, 11]);
        assert_eq!(cpus(""), [] as [u32; 0]);
        assert_eq!(cpus("x,3"), [3]);
    }
}
