//! From the kubelet's words for what containers hold to the ledger's.

use gpu::ledger::{Container, Device, Listed, MigDevice, Owner};
use kubelet::pod_resources::{ClaimResource, ContainerResources, PodResources};

use crate::DeviceId;
use crate::resources::Gpu;

/// Resources with other names are somebody else's.
const VENDOR: &str = "nvidia.com/";

/// The DRA driver of the same GPUs.
pub(super) const DRA_DRIVER: &str = "gpu.nvidia.com";

/// The device of a GPU or MIG device, as the ledger keeps it.
pub(super) fn place(gpus: &[Gpu], uuid: &str) -> Option<Device> {
    for gpu in gpus {
        let mig = gpu.mig.iter().find(|device| device.uuid == uuid);
        if gpu.uuid == uuid || mig.is_some() {
            return Some(Device {
                gpu: gpu.uuid.clone(),
                mig: mig.map(|device| MigDevice {
                    uuid: device.uuid.clone(),
                    gpu_instance: device.gpu_instance,
                    compute_instance: device.compute_instance,
                }),
            });
        }
    }
    None
}

/// What the containers of `pods` have of the node's GPUs.
pub(super) fn listed(pods: &[PodResources], gpus: &[Gpu]) -> Vec<Listed> {
    let mut all = Vec::new();
    for pod in pods {
        for held_by in &pod.containers {
            let container = Container {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                name: held_by.name.clone(),
            };
            resources(held_by, &container, &mut all);
            claims(held_by, &container, gpus, &mut all);
        }
    }
    all
}

fn resources(held_by: &ContainerResources, container: &Container, all: &mut Vec<Listed>) {
    let ours = held_by.devices.iter();
    for devices in ours.filter(|devices| devices.resource_name.starts_with(VENDOR)) {
        let ids = devices.device_ids.iter();
        all.extend(ids.filter_map(|id| {
            let id = DeviceId::parse(id)?;
            Some(Listed {
                owner: Owner::Resource(devices.resource_name.clone()),
                container: container.clone(),
                uuid: id.uuid.to_owned(),
                share: id.share,
            })
        }));
    }
}

fn claims(
    held_by: &ContainerResources,
    container: &Container,
    gpus: &[Gpu],
    all: &mut Vec<Listed>,
) {
    for claim in &held_by.dynamic_resources {
        let devices = claim.claim_resources.iter();
        let devices = devices.filter_map(|device| claimed(device, gpus));
        all.extend(devices.map(|gpu| Listed {
            owner: Owner::Claim {
                namespace: claim.claim_namespace.clone(),
                name: claim.claim_name.clone(),
            },
            container: container.clone(),
            uuid: gpu.uuid.clone(),
            share: None,
        }));
    }
}

/// The GPU of a claim's device: NVIDIA's driver calls it `gpu-<minor>`. Its MIG devices, which it makes and ends itself, cannot
/// be told from the name alone.
fn claimed<'a>(device: &ClaimResource, gpus: &'a [Gpu]) -> Option<&'a Gpu> {
    if device.driver_name != DRA_DRIVER {
        return None;
    }
    let minor = device.device_name.strip_prefix("gpu-")?.parse().ok()?;
    gpus.iter().find(|gpu| gpu.minor == Some(minor))
}

#[cfg(test)]
mod tests {
    use kubelet::pod_resources::{ContainerDevices, DynamicResource};

    use super::*;
    use crate::resources::MigDevice;

    fn gpus() -> Vec<Gpu> {
        vec![Gpu {
            uuid: "GPU-0".to_owned(),
            minor: Some(5),
            mig: vec![MigDevice {
                index: 0,
                uuid: "MIG-0".to_owned(),
                gpu_instance: 7,
                compute_instance: 0,
                profile: None,
                attributes: None,
            }],
            ..Gpu::default()
        }]
    }

    #[test]
    fn devices_are_found_by_uuid() {
        let whole = place(&gpus(), "GPU-0");
        assert_eq!(whole.as_ref().map(Device::uuid), Some("GPU-0"));
        let part = place(&gpus(), "MIG-0");
        let mig = part.as_ref().and_then(|device| device.mig.as_ref());
        assert_eq!(mig.map(|mig| mig.gpu_instance), Some(7));
        assert_eq!(place(&gpus(), "GPU-1"), None);
    }

    #[test]
    fn containers_hold_ids_and_claims() {
        let devices = |resource: &str, ids: &[&str]| ContainerDevices {
            resource_name: resource.to_owned(),
            device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            topology: None,
        };
        let claim = |driver: &str, device: &str| ClaimResource {
            driver_name: driver.to_owned(),
            device_name: device.to_owned(),
            ..ClaimResource::default()
        };
        let pods = [PodResources {
            name: "train".to_owned(),
            namespace: "ml".to_owned(),
            containers: vec![ContainerResources {
                name: "main".to_owned(),
                devices: vec![
                    devices("nvidia.com/gpu", &["GPU-0::1", "not::an::id"]),
                    devices("example.com/gpu", &["GPU-0"]),
                ],
                dynamic_resources: vec![DynamicResource {
                    claim_name: "one".to_owned(),
                    claim_namespace: "ml".to_owned(),
                    claim_resources: vec![
                        claim(DRA_DRIVER, "gpu-5"),
                        claim(DRA_DRIVER, "gpu-6"),
                        claim(DRA_DRIVER, "gpu-5-mig-1g10gb-19-0"),
                        claim("gpu.example.com", "gpu-5"),
                    ],
                }],
            }],
        }];
        let container = Container {
            namespace: "ml".to_owned(),
            pod: "train".to_owned(),
            name: "main".to_owned(),
        };
        let held = |owner, share| Listed {
            owner,
            container: container.clone(),
            uuid: "GPU-0".to_owned(),
            share,
        };
        let claim = Owner::Claim {
            namespace: "ml".to_owned(),
            name: "one".to_owned(),
        };
        assert_eq!(
            listed(&pods, &gpus()),
            [
                held(Owner::Resource("nvidia.com/gpu".to_owned()), Some(1)),
                held(claim, None)
            ]
        );
    }
}
