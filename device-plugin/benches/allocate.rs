//! What the kubelet waits for when it starts a container: the preferred devices of the largest machine, and the answer to
//! Allocate. `cargo bench -p device-plugin --bench allocate`.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::collections::BTreeMap;
use std::hint::black_box;

use configuration::plugin::{AllocationPolicy, PluginFile};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use device_plugin::allocation::{Options, Ready, check, prefer, response};
use device_plugin::resources::{Device, MigPlace, Resource};
use gpu::{Path, PcieRelation, Topology};
use kubelet::device_plugin::ContainerPreferredAllocationRequest;

fn uuid(kind: &str, number: u32) -> String {
    format!("{kind}-{number:08x}-04cf-1ccf-9e70-f139a9b1e23c")
}

/// So many GPUs with so many MIG devices each (0: whole GPUs), each shared so often.
fn resource(gpus: u32, mig: u32, shares: Option<u32>) -> Resource {
    let device = |gpu: u32, instance: Option<u32>| Device {
        uuid: instance.map_or(uuid("GPU", gpu), |instance| {
            uuid("MIG", gpu << 8 | instance)
        }),
        gpu_index: gpu,
        gpu_uuid: uuid("GPU", gpu),
        numa_node: None,
        mig: instance.map(|index| MigPlace {
            index,
            gpu_instance: index,
            compute_instance: 0,
        }),
        shares,
    };
    let of = |gpu| match mig {
        0 => vec![device(gpu, None)],
        mig => (0..mig).map(|index| device(gpu, Some(index))).collect(),
    };
    Resource {
        name: "gpu".parse().unwrap(),
        devices: (0..gpus).flat_map(of).collect(),
    }
}

fn ids(resource: &Resource) -> Vec<String> {
    let ids = resource.devices.iter().flat_map(Device::ids);
    ids.map(|id| id.to_string()).collect()
}

fn nvswitch(_: u32, _: u32) -> u32 {
    18
}

/// A cube of links, two of some, and none across the machine's halves.
fn mesh(a: u32, b: u32) -> u32 {
    if a / 8 == b / 8 {
        (a ^ b).count_ones() % 3
    } else {
        0
    }
}

/// No two pairs alike: nothing can be left out by symmetry.
fn odd(a: u32, b: u32) -> u32 {
    (a.min(b).wrapping_mul(2_654_435_761) ^ a.max(b).wrapping_mul(40_503)) >> 9 & 15
}

fn topology(links: fn(u32, u32) -> u32) -> Topology {
    let pairs = (0..16).flat_map(|a| (0..16).map(move |b| (a, b)));
    let paths = pairs.map(|(a, b)| {
        let path = Path {
            pcie: Some(match (a / 4 == b / 4, a / 8 == b / 8) {
                (true, _) => PcieRelation::SingleSwitch,
                (_, true) => PcieRelation::SameCpu,
                _ => PcieRelation::CrossCpu,
            }),
            nvlinks: links(a, b),
        };
        ((uuid("GPU", a), uuid("GPU", b)), path)
    });
    Topology::new(&paths.collect(), &BTreeMap::new())
}

fn request(resource: &Resource, size: i32) -> ContainerPreferredAllocationRequest {
    ContainerPreferredAllocationRequest {
        available_device_ids: ids(resource),
        must_include_device_ids: Vec::new(),
        allocation_size: size,
    }
}

type Links = fn(u32, u32) -> u32;

fn preferred(criterion: &mut Criterion) {
    let boards: [(&str, Links); 3] = [("nvswitch", nvswitch), ("mesh", mesh), ("odd", odd)];
    let whole = resource(16, 0, None);
    for (name, links) in boards {
        let topology = topology(links);
        let mut group = criterion.benchmark_group(format!("prefer of 16 GPUs, {name}"));
        group.sample_size(20);
        for size in [1, 2, 4, 7, 8, 12] {
            let request = request(&whole, size);
            group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
                let policy = AllocationPolicy::Distributed;
                bencher.iter(|| prefer(&whole, &topology, policy, &[], black_box(&request)));
            });
        }
        group.finish();
    }
    let mut group = criterion.benchmark_group("prefer 2");
    let parts = [
        ("of 16 x 7 MIG devices", resource(16, 7, None)),
        ("of 16 x 48 shares", resource(16, 0, Some(48))),
    ];
    for (name, resource) in parts {
        let request = request(&resource, 2);
        for policy in [AllocationPolicy::Distributed, AllocationPolicy::Packed] {
            group.bench_function(BenchmarkId::new(name, policy.word()), |bencher| {
                let topology = Topology::default();
                bencher.iter(|| prefer(&resource, &topology, policy, &[], black_box(&request)));
            });
        }
    }
    group.finish();
}

fn allocate(criterion: &mut Criterion) {
    let yaml = "flags: {plugin: {deviceListStrategy: [envvar, cdi-annotations, cdi-cri], passDeviceSpecs: true}}";
    let (file, _) = PluginFile::parse("bench", yaml.as_bytes()).unwrap();
    let options = Options::new(&file).unwrap();
    let resource = resource(8, 7, None);
    let nodes = [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia-caps/nvidia-cap13",
    ];
    let nodes: Vec<_> = nodes.map(Into::into).into();
    let ready = Ready {
        control_nodes: vec!["/dev/nvidiactl".into(), "/dev/nvidia-uvm".into()],
        device_nodes: (resource.devices.iter())
            .map(|device| (device.uuid.clone(), nodes.clone()))
            .collect(),
        ..Ready::default()
    };
    let asked: Vec<String> = ids(&resource).into_iter().rev().take(1).collect();
    criterion.bench_function("check and answer, 1 of 8 x 7 MIG devices", |bencher| {
        bencher.iter(|| {
            let request = check(&options, &resource, black_box(&asked), |_| None).unwrap();
            response(&options, &ready, &resource.name, &request.devices)
        });
    });
}

criterion_group!(benches, preferred, allocate);
criterion_main!(benches);
