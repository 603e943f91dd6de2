//! Resources and options for tests.

#![allow(clippy::unwrap_used)]

use configuration::plugin::PluginFile;

use super::Options;
use crate::resources::{Device, Gpu, MigDevice, MigPlace, Resource};

/// Options of a file.
pub(super) fn options(yaml: &str) -> Options {
    Options::new(&PluginFile::parse("test", yaml.as_bytes()).unwrap().0).unwrap()
}

/// Devices, separated by spaces: `0` a GPU, `0:1` a MIG device, either with `*4` for four shares.
pub(super) fn resource(name: &str, devices: &str) -> Resource {
    Resource {
        name: name.parse().unwrap(),
        devices: devices.split_whitespace().map(device).collect(),
    }
}

fn device(text: &str) -> Device {
    let (place, shares) = match text.split_once('*') {
        Some((place, shares)) => (place, Some(shares.parse().unwrap())),
        None => (text, None),
    };
    let (gpu, mig) = match place.split_once(':') {
        Some((gpu, mig)) => (gpu, Some(mig.parse::<u32>().unwrap())),
        None => (place, None),
    };
    let gpu_uuid = format!("GPU-{gpu}");
    Device {
        uuid: mig.map_or(gpu_uuid.clone(), |mig| format!("MIG-{gpu}-{mig}")),
        gpu_index: gpu.parse().unwrap(),
        gpu_uuid,
        numa_node: None,
        mig: mig.map(|index| MigPlace {
            index,
            gpu_instance: index + 1,
            compute_instance: 0,
        }),
        shares,
    }
}

/// GPUs, each followed by its MIG devices: `0 0:0 0:1 1`.
pub(super) fn gpus(text: &str) -> Vec<Gpu> {
    let mut gpus = Vec::<Gpu>::new();
    for device in text.split_whitespace().map(device) {
        match device.mig {
            None => gpus.push(Gpu {
                index: device.gpu_index,
                uuid: device.uuid,
                minor: Some(device.gpu_index),
                ..Gpu::default()
            }),
            Some(place) => gpus.last_mut().unwrap().mig.push(MigDevice {
                index: place.index,
                uuid: device.uuid,
                gpu_instance: place.gpu_instance,
                compute_instance: place.compute_instance,
                profile: None,
                attributes: None,
            }),
        }
    }
    gpus
}

/// Ids, separated by spaces.
pub(super) fn ids(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
