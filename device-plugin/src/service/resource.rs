//! One resource as the kubelet calls it.

use std::sync::Arc;
use std::time::Duration;

use configuration::plugin::ResourceName;
use kubelet::device_plugin::{
    ContainerAllocateResponse, ContainerPreferredAllocationRequest, Device as ListedDevice,
    DevicePluginOptions, Resource,
};
use tokio::sync::watch;

use super::shared::Shared;
use crate::allocation::{self, Refusal};
use crate::mps;
use crate::resources::Device;

/// How much of a GPU's threads a client of MPS may use, where that is less than the daemon allows.
const MPS_PERCENTAGE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// A resource that is served.
#[derive(Debug)]
pub(super) struct Served {
    name: ResourceName,
    list: watch::Receiver<Vec<ListedDevice>>,
    shared: Arc<Shared>,
}

impl Served {
    pub(super) fn new(
        name: ResourceName,
        list: watch::Receiver<Vec<ListedDevice>>,
        shared: Arc<Shared>,
    ) -> Self {
        Self { name, list, shared }
    }

    async fn give(&self, ids: &[String]) -> Result<ContainerAllocateResponse, Refusal> {
        let current = self.shared.current();
        let gone = || Refusal::Unknown {
            resource: self.name.clone(),
            device: ids.first().cloned().unwrap_or_default(),
        };
        let shown = current.resources.get(&self.name);
        let (options, shown) = current.options.as_deref().zip(shown).ok_or_else(gone)?;
        let trouble = |device: &Device| shown.trouble.get(&device.uuid).cloned();
        let request = allocation::check(options, &shown.resource, ids, trouble)?;
        let granted = self.shared.book.grant(&self.name, &request.ids).await;
        granted.map_err(|conflict| Refusal::Held {
            resource: self.name.clone(),
            conflict,
        })?;
        let (ready, devices) = (&current.ready, &request.devices);
        let mut response = allocation::response(options, ready, &self.name, devices);
        if options.mps_root.is_some() {
            let granted = devices.iter().copied();
            if let Some(percentage) = mps::client_percentage(&shown.resource, granted) {
                let value = percentage.to_string();
                response.envs.insert(MPS_PERCENTAGE.to_owned(), value);
            }
        }
        Ok(response)
    }
}

impl Resource for Served {
    type Error = Refusal;

    fn options(&self) -> DevicePluginOptions {
        DevicePluginOptions {
            pre_start_required: false,
            get_preferred_allocation_available: true,
        }
    }

    fn devices(&self) -> watch::Receiver<Vec<ListedDevice>> {
        self.list.clone()
    }

    async fn prefer(
        &self,
        request: ContainerPreferredAllocationRequest,
    ) -> Result<Vec<String>, Refusal> {
        let current = self.shared.current();
        // An empty answer lets the kubelet choose.
        let shown = current.resources.get(&self.name);
        let preferred = current
            .options
            .as_deref()
            .zip(shown)
            .map(|(options, shown)| {
                allocation::prefer(
                    &shown.resource,
                    &current.topology,
                    options.policy,
                    &self.shared.book.elsewhere(&shown.resource),
                    &request,
                )
            });
        Ok(preferred.unwrap_or_default())
    }

    async fn allocate(&self, ids: Vec<String>) -> Result<ContainerAllocateResponse, Refusal> {
        let response = self.give(&ids).await?;
        self.shared.metrics.allocated(self.name.as_str());
        Ok(response)
    }

    fn answered(&self, call: &'static str, took: Duration, granted: bool) {
        self.shared.metrics.called(call, took, granted);
    }
}
