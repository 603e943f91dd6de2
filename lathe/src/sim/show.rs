//! `lathe sim show`: a node at one moment, for people and for programs.

use serde::Serialize;
use sim_nvml::{
    model::{Fault, Gpu, Node, Workload},
    store::now_us,
};

use super::table;

/// What is shown of a node.
#[derive(Debug, Serialize)]
pub(super) struct View {
    name: String,
    root: String,
    driver: DriverView,
    gpus: Vec<GpuView>,
    workloads: Vec<Workload>,
    /// Processes that initialised the library.
    clients: Vec<u32>,
    faults: Vec<Fault>,
}

#[derive(Debug, Serialize)]
struct DriverView {
    version: String,
    cuda: u32,
    state: sim_nvml::model::DriverState,
}

#[derive(Debug, Serialize)]
struct GpuView {
    position: usize,
    /// NVML index; absent when the driver does not show the GPU.
    index: Option<usize>,
    name: String,
    board: String,
    uuid: String,
    pci: String,
    minor: u32,
    /// Absent on boards without MIG.
    mig: Option<MigView>,
    memory_total_mib: u64,
    memory_used_mib: u64,
    utilization_percent: u32,
    power_watts: f64,
    temperature: u32,
    troubles: Vec<String>,
}

#[derive(Debug, Serialize)]
struct MigView {
    current: bool,
    pending: bool,
    instances: Vec<InstanceView>,
}

#[derive(Debug, Serialize)]
struct InstanceView {
    id: u32,
    profile_id: u32,
    profile: String,
    start: u32,
    size: u32,
    compute: Vec<ComputeView>,
}

#[derive(Debug, Serialize)]
struct ComputeView {
    id: u32,
    profile_id: u32,
    profile: String,
    start: u32,
    size: u32,
    uuid: String,
}

impl View {
    /// The node as it is now.
    pub(super) fn of(node: &Node) -> View {
        View {
            name: node.name.clone(),
            root: node.root.display().to_string(),
            driver: DriverView {
                version: node.driver.version.clone(),
                cuda: node.driver.cuda,
                state: node.driver.state,
            },
            gpus: (0..node.gpus.len())
                .map(|position| gpu(node, position))
                .collect(),
            workloads: node.workloads.clone(),
            clients: node.clients.iter().map(|client| client.pid).collect(),
            faults: node.faults.clone(),
        }
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{}: driver {} ({:?}), CUDA {}.{}, {}\n\n",
            self.name,
            self.driver.version,
            self.driver.state,
            self.driver.cuda / 1000,
            self.driver.cuda % 1000 / 10,
            self.root
        );
        let header = [
            "GPU", "INDEX", "NAME", "PCI", "MIG", "MEMORY", "UTIL", "POWER", "TEMP", "TROUBLES",
        ]
        .map(str::to_owned);
        let mut rows = vec![header.to_vec()];
        for gpu in &self.gpus {
            rows.push(vec![
                gpu.position.to_string(),
                gpu.index
                    .map_or_else(|| "-".to_owned(), |index| index.to_string()),
                gpu.name.clone(),
                gpu.pci.clone(),
                gpu.mig
                    .as_ref()
                    .map_or_else(|| "-".to_owned(), MigView::mode),
                format!("{}/{} MiB", gpu.memory_used_mib, gpu.memory_total_mib),
                format!("{}%", gpu.utilization_percent),
                format!("{:.0} W", gpu.power_watts),
                format!("{} C", gpu.temperature),
                gpu.troubles.join(", "),
            ]);
        }
        text += &table::aligned(&rows);
        let cut = self
            .gpus
            .iter()
            .filter_map(|gpu| Some((gpu, gpu.mig.as_ref()?)));
        for (gpu, mig) in cut.filter(|(_, mig)| !mig.instances.is_empty()) {
            text += &format!("\nGPU {} {}\n", gpu.position, gpu.uuid);
            text += &table::aligned(&mig.rows());
        }
        if !self.workloads.is_empty() {
            let mut rows = vec![
                ["PID", "GPU", "INSTANCE", "MEMORY", "COMMAND"]
                    .map(str::to_owned)
                    .to_vec(),
            ];
            rows.extend(self.workloads.iter().map(workload_row));
            text += &format!("\n{}", table::aligned(&rows));
        }
        if !self.faults.is_empty() {
            let mut rows = vec![
                ["FAULT", "FUNCTION", "GPU", "EFFECT", "CALLS"]
                    .map(str::to_owned)
                    .to_vec(),
            ];
            rows.extend(self.faults.iter().map(fault_row));
            text += &format!("\n{}", table::aligned(&rows));
        }
        text
    }
}

impl MigView {
    fn mode(&self) -> String {
        let word = |on| if on { "on" } else { "off" };
        if self.current == self.pending {
            word(self.current).to_owned()
        } else {
            format!("{}, {} pending", word(self.current), word(self.pending))
        }
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for instance in &self.instances {
            rows.push(vec![
                format!("  GI {}", instance.id),
                instance.profile.clone(),
                format!("{}:{}", instance.start, instance.size),
            ]);
            rows.extend(instance.compute.iter().map(|compute| {
                vec![
                    format!("    CI {}", compute.id),
                    compute.profile.clone(),
                    format!("{}:{}", compute.start, compute.size),
                    compute.uuid.clone(),
                ]
            }));
        }
        rows
    }
}

fn workload_row(workload: &Workload) -> Vec<String> {
    let instance = match (workload.instance, workload.compute) {
        (Some(instance), Some(compute)) => format!("{instance}/{compute}"),
        _ => "-".to_owned(),
    };
    vec![
        workload.pid.to_string(),
        workload.gpu.to_string(),
        instance,
        format!("{} MiB", workload.memory_mib),
        workload.name.clone(),
    ]
}

fn fault_row(fault: &Fault) -> Vec<String> {
    vec![
        fault.id.to_string(),
        fault.symbol.clone(),
        fault
            .gpu
            .map_or_else(|| "all".to_owned(), |gpu| gpu.to_string()),
        format!("{:?}", fault.effect),
        fault.calls.to_string(),
    ]
}

fn gpu(node: &Node, position: usize) -> GpuView {
    let gpu = &node.gpus[position];
    let reading = node.reading(position, now_us(node));
    GpuView {
        position,
        index: node
            .visible(node.sequence)
            .position(|visible| visible == position),
        name: gpu.board.product.clone(),
        board: gpu.board_name.clone(),
        uuid: gpu.uuid.clone(),
        pci: gpu.pci.sysfs(),
        minor: gpu.minor,
        mig: gpu.board.mig.as_ref().map(|_| mig(gpu)),
        memory_total_mib: gpu.board.memory.total_mib,
        memory_used_mib: node.workload_memory_mib(position, None),
        utilization_percent: reading.gpu_percent,
        power_watts: f64::from(reading.power_mw) / 1000.0,
        temperature: reading.temperature,
        troubles: troubles(gpu),
    }
}

fn mig(gpu: &Gpu) -> MigView {
    let instances = gpu.mig.instances.iter().map(|instance| InstanceView {
        id: instance.id,
        profile_id: instance.profile,
        profile: gpu
            .profile_of(instance)
            .map(|profile| profile.name.clone())
            .unwrap_or_default(),
        start: instance.placement.start,
        size: instance.placement.size,
        compute: instance
            .compute
            .iter()
            .map(|compute| ComputeView {
                id: compute.id,
                profile_id: compute.profile,
                profile: gpu.device_profile_name(instance, compute),
                start: compute.placement.start,
                size: compute.placement.size,
                uuid: gpu.mig_uuid(instance, compute),
            })
            .collect(),
    });
    MigView {
        current: gpu.mig.current,
        pending: gpu.mig.pending,
        instances: instances.collect(),
    }
}

fn troubles(gpu: &Gpu) -> Vec<String> {
    let health = &gpu.health;
    let said = [
        (health.fallen_at.is_some(), "fallen off the bus"),
        (health.lost, "lost"),
        (health.reset_required, "reset required"),
        (health.reset_refused, "refuses resets"),
        (health.inforom_corrupt, "InfoROM corrupt"),
        (gpu.removed, "removed"),
        (gpu.mig.stuck, "MIG mode stuck"),
        (gpu.throttle.any(), "throttled"),
        (gpu.remap.pending > 0, "row remap pending"),
        (gpu.remap.failure, "row remap failed"),
        (gpu.ecc.volatile.uncorrected() > 0, "uncorrected ECC errors"),
    ];
    let mut troubles: Vec<String> = said
        .iter()
        .filter(|(holds, _)| *holds)
        .map(|(_, trouble)| (*trouble).to_owned())
        .collect();
    troubles.extend(health.last_xid.map(|xid| format!("XID {xid}")));
    troubles
}
