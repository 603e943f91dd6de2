//! The driver: one device, published as a ResourceSlice, given to a container as an environment variable through CDI.

use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{
    Device, ResourceClaim, ResourcePool, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};
use kubelet::dra::{Claim, Driver, PreparedDevice};

/// The one device.
pub(crate) const DEVICE: &str = "device-0";

/// The environment variable that a container with the device has; its value is the device's name.
pub(crate) const VARIABLE: &str = "LATHE_EXAMPLE_DEVICE";

/// A driver on one node.
#[derive(Clone)]
pub(crate) struct Minimal {
    /// Its name.
    pub(crate) driver: String,
    /// The node, which with the driver names the pool: pools of two drivers must not share a name
    /// (kubernetes#140434).
    pub(crate) node: String,
    /// The folder in which the container runtime looks for CDI specs.
    pub(crate) cdi: PathBuf,
    /// The API.
    pub(crate) client: kube::Client,
}

/// Why a claim cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// The claim could not be read.
    #[error("claim {0}: {1}")]
    Unreadable(String, kube::Error),
    /// The claim was deleted, and another of its name made.
    #[error("claim {0} is another one now")]
    Replaced(String),
    /// Nothing of ours is allocated to the claim.
    #[error("claim {0} has no device of this driver")]
    NotAllocated(String),
    /// The CDI spec could not be written or removed.
    #[error("CDI spec {0}: {1}")]
    Spec(PathBuf, io::Error),
}

impl Minimal {
    /// Its pool.
    pub(crate) fn pool(&self) -> String {
        format!("{}/{}", self.driver, self.node)
    }

    /// Publishes the device. The slice goes with the node, and with this driver's absence from it.
    pub(crate) async fn publish(&self) -> Result<(), kube::Error> {
        let node = Api::<Node>::all(self.client.clone())
            .get(&self.node)
            .await?;
        let name = format!("{}-{}", self.node, self.driver);
        let slice = ResourceSlice {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Node".to_owned(),
                    name: self.node.clone(),
                    uid: node.metadata.uid.unwrap_or_default(),
                    controller: Some(true),
                    block_owner_deletion: None,
                }]),
                ..ObjectMeta::default()
            },
            spec: ResourceSliceSpec {
                driver: self.driver.clone(),
                node_name: Some(self.node.clone()),
                pool: ResourcePool {
                    name: self.pool(),
                    generation: 1,
                    resource_slice_count: 1,
                },
                devices: Some(vec![Device {
                    name: DEVICE.to_owned(),
                    ..Device::default()
                }]),
                ..ResourceSliceSpec::default()
            },
        };
        let slices = Api::<ResourceSlice>::all(self.client.clone());
        match slices.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            deleted => drop(deleted?),
        }
        slices.create(&PostParams::default(), &slice).await?;
        Ok(())
    }

    /// One spec per claim, so that taking a claim back is removing a file.
    fn spec(&self, uid: &str) -> PathBuf {
        self.cdi.join(format!("{}-claim_{uid}.json", self.driver))
    }

    fn kind(&self) -> String {
        format!("{}/claim", self.driver)
    }

    /// Writes what the container runtime does for a container with the claim; returns the CDI device's full name.
    fn write(&self, uid: &str) -> Result<String, Refusal> {
        // A name that began with a digit, as UIDs may, would need version 0.5.
        let name = format!("claim-{uid}");
        let spec = serde_json::json!({
            "cdiVersion": "0.3.0",
            "kind": self.kind(),
            "devices": [{
                "name": name,
                "containerEdits": {"env": [format!("{VARIABLE}={DEVICE}")]},
            }],
        });
        let path = self.spec(uid);
        replace(&path, spec.to_string().as_bytes()).map_err(|error| Refusal::Spec(path, error))?;
        Ok(format!("{}={name}", self.kind()))
    }
}

/// Runtimes read whatever ends in `.json`, so the file gets that name when it is complete.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let unfinished = path.with_extension("unfinished");
    std::fs::write(&unfinished, content)?;
    std::fs::rename(&unfinished, path)
}

impl Driver for Minimal {
    type Error = Refusal;

    async fn prepare(&self, claim: Claim) -> Result<Vec<PreparedDevice>, Refusal> {
        let name = format!("{}/{}", claim.namespace, claim.name);
        let object = Api::<ResourceClaim>::namespaced(self.client.clone(), &claim.namespace)
            .get(&claim.name)
            .await
            .map_err(|error| Refusal::Unreadable(name.clone(), error))?;
        if object.metadata.uid.as_ref() != Some(&claim.uid) {
            return Err(Refusal::Replaced(name));
        }
        // A claim can hold devices of several drivers, and the kubelet shows it to each of them.
        let ours: Vec<_> = object
            .status
            .and_then(|status| status.allocation)
            .and_then(|allocation| allocation.devices)
            .and_then(|devices| devices.results)
            .unwrap_or_default()
            .into_iter()
            .filter(|result| result.driver == self.driver)
            .collect();
        if ours.is_empty() {
            return Err(Refusal::NotAllocated(name));
        }
        let cdi = self.write(&claim.uid)?;
        let devices = ours.into_iter().map(|result| PreparedDevice {
            requests: vec![result.request],
            pool: result.pool,
            device: result.device,
            cdi_devices: vec![cdi.clone()],
            share: result.share_id,
        });
        Ok(devices.collect())
    }

    async fn unprepare(&self, claim: Claim) -> Result<(), Refusal> {
        let path = self.spec(&claim.uid);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Refusal::Spec(path, error))
            }
            _ => Ok(()),
        }
    }
}
