//! What the kubelet is to be shown: the resources of the GPUs that are known, and what is wrong with their devices.

use std::collections::BTreeMap;

use configuration::plugin::ResourceName;
use kubelet::device_plugin as api;

use crate::hardware::KnownGpu;
use crate::resources::{Device, Gpu, Resource, Rules, Warning, resources};

/// A resource with the health of its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    /// Its devices.
    pub(super) resource: Resource,
    /// Why a device cannot be given to containers now, by UUID; devices that can are not in it.
    pub(super) trouble: BTreeMap<String, String>,
}

/// The resources of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    pub(super) resources: BTreeMap<ResourceName, Shown>,
    /// What is not offered as configured.
    pub(super) warnings: Vec<Warning>,
}

impl Shown {
    /// The list that the kubelet gets: every share of every device.
    pub(super) fn list(&self) -> Vec<api::Device> {
        let of = |device: &Device| {
            let healthy = !self.trouble.contains_key(&device.uuid);
            let numa_nodes: Vec<u32> = device.numa_node.into_iter().collect();
            let ids: Vec<String> = device.ids().map(|id| id.to_string()).collect();
            ids.into_iter().map(move |id| api::Device {
                id,
                healthy,
                numa_nodes: numa_nodes.clone(),
            })
        };
        self.resource.devices.iter().flat_map(of).collect()
    }
}

/// The resources of `gpus` under `rules`. A GPU in trouble keeps its place, unhealthy; `fault` says what else is wrong with a
/// device of a resource.
pub(super) fn view(
    gpus: &[KnownGpu],
    rules: &Rules,
    fault: impl Fn(&ResourceName, &Device) -> Option<String>,
) -> View {
    let known: Vec<Gpu> = gpus.iter().map(|known| known.gpu.clone()).collect();
    let lost: BTreeMap<&str, String> = gpus
        .iter()
        .filter_map(|known| Some((known.gpu.uuid.as_str(), known.trouble.as_ref()?.to_string())))
        .collect();
    let offer = resources(&known, rules);
    let shown = offer.resources.into_iter().map(|resource| {
        let name = resource.name.clone();
        let trouble = resource.devices.iter().filter_map(|device| {
            let lost = lost.get(device.gpu_uuid.as_str()).cloned();
            Some((device.uuid.clone(), lost.or_else(|| fault(&name, device))?))
        });
        let trouble = trouble.collect();
        (name, Shown { resource, trouble })
    });
    View {
        resources: shown.collect(),
        warnings: offer.warnings,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use configuration::plugin::PluginFile;

    use super::*;
    use crate::hardware::{Cause, Trouble};

    fn gpu(index: u32, lost: bool) -> KnownGpu {
        KnownGpu {
            gpu: Gpu {
                index,
                uuid: format!("GPU-{index}"),
                model: "T4".to_owned(),
                numa_node: (index > 0).then_some(index),
                ..Gpu::default()
            },
            trouble: lost.then(|| Trouble {
                cause: Cause::Lost,
                text: "lost".to_owned(),
            }),
            ..KnownGpu::default()
        }
    }

    fn list(view: &View, name: &str) -> Vec<(String, bool, Vec<u32>)> {
        let list = view.resources[&name.parse().unwrap()].list().into_iter();
        list.map(|device| (device.id, device.healthy, device.numa_nodes))
            .collect()
    }

    #[test]
    fn a_lost_gpu_keeps_its_place_and_others_do_not_notice() {
        let view = view(&[gpu(0, false), gpu(1, true)], &Rules::default(), |_, _| {
            None
        });
        assert_eq!(
            list(&view, "gpu"),
            [
                ("GPU-0".to_owned(), true, vec![]),
                ("GPU-1".to_owned(), false, vec![1])
            ]
        );
    }

    #[test]
    fn all_shares_of_a_faulty_device_are_unhealthy() {
        let text = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}";
        let (file, _) = PluginFile::parse("f", text.as_bytes()).unwrap();
        let rules = Rules::new(None, file);
        let view = view(&[gpu(0, false), gpu(1, false)], &rules, |name, device| {
            (name.base() == "gpu" && device.gpu_index == 0).then(|| "XID 79".to_owned())
        });
        let health: Vec<_> = list(&view, "gpu")
            .into_iter()
            .map(|(id, healthy, _)| (id, healthy))
            .collect();
        let wanted = [
            ("GPU-0::0", false),
            ("GPU-0::1", false),
            ("GPU-1::0", true),
            ("GPU-1::1", true),
        ];
        assert_eq!(health, wanted.map(|(id, healthy)| (id.to_owned(), healthy)));
        let shown = &view.resources[&"gpu".parse().unwrap()];
        assert_eq!(
            shown.trouble,
            [("GPU-0".to_owned(), "XID 79".to_owned())].into()
        );
    }
}
