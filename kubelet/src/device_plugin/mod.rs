//! A device plugin as the kubelet sees it: one socket per resource, its registration, and the list of devices that follows
//! every change.
//!
//! The plugin keeps itself registered: it may start before the kubelet, survives the kubelet's restarts (each of which
//! deletes the plugin's socket) and its refusals, and registers only with a kubelet that does not know it.

mod register;
mod registrar;
mod service;

use std::fmt::Display;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::device_plugin as wire;
use crate::registration::Status;
use crate::socket::Endpoint;
use crate::{Error, Folder};

use register::Registering;

pub use wire::{
    CdiDevice, ContainerAllocateResponse, ContainerPreferredAllocationRequest, DevicePluginOptions,
    DeviceSpec, Mount,
};

/// First and longest pause before another name of the socket is tried, once one other name was refused as well.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// One unit of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Unique within the resource; the API allows 63 characters.
    pub id: String,
    /// Whether it may be given to containers.
    pub healthy: bool,
    /// NUMA nodes it is near to; none where that is not known.
    pub numa_nodes: Vec<u32>,
}

/// What serves one resource. The kubelet calls at the start of each container that asks for the resource.
pub trait Resource: Send + Sync + 'static {
    /// Why a call was refused; its text is what the pod's status shows.
    type Error: Display + Send + 'static;

    /// Which of the optional calls are wanted.
    fn options(&self) -> DevicePluginOptions {
        DevicePluginOptions::default()
    }

    /// The devices, now and from now on. Each change goes to every kubelet that listens.
    fn devices(&self) -> watch::Receiver<Vec<Device>>;

    /// Chooses among the devices that are free. Called only when [`Resource::options`] offers it; by then the kubelet has
    /// to choose, and a refusal fails the pod. Without an implementation, any will do.
    fn prefer(
        &self,
        request: ContainerPreferredAllocationRequest,
    ) -> impl Future<Output = Result<Vec<String>, Self::Error>> + Send {
        let wanted = usize::try_from(request.allocation_size).unwrap_or_default();
        let mut chosen = request.must_include_device_ids;
        for id in request.available_device_ids {
            if chosen.len() >= wanted {
                break;
            }
            if !chosen.contains(&id) {
                chosen.push(id);
            }
        }
        std::future::ready(Ok(chosen))
    }

    /// What a container needs in order to use the devices `ids`.
    fn allocate(
        &self,
        ids: Vec<String>,
    ) -> impl Future<Output = Result<ContainerAllocateResponse, Self::Error>> + Send;

    /// Last work on the devices `ids` before a container starts. Called only when [`Resource::options`] asks for it.
    fn pre_start(&self, ids: Vec<String>) -> impl Future<Output = Result<(), Self::Error>> + Send {
        drop(ids);
        std::future::ready(Ok(()))
    }

    /// Hears how long a call of the kubelet took, `Allocate` for one, and whether it was granted. The list of devices, which
    /// lasts as long as the kubelet listens, is none of these.
    fn answered(&self, call: &'static str, took: Duration, granted: bool) {
        let _ = (call, took, granted);
    }
}

/// Where a resource is served.
#[derive(Clone, Debug)]
pub struct Config {
    /// The kubelet's `device-plugins` folder. Plugins of one process share it.
    pub folder: Folder,
    /// The name of the plugin's socket, `nvidia-gpu.sock` for one.
    pub socket: String,
    /// The resource: `nvidia.com/gpu`.
    pub resource: String,
}

/// A device plugin whose socket is there. The kubelet hears of it once [`Plugin::run`] is called.
#[derive(Debug)]
pub struct Plugin<R> {
    config: Config,
    endpoint: Endpoint,
    service: service::Service<R>,
    status: watch::Sender<Status>,
}

impl<R: Resource> Plugin<R> {
    /// Makes the socket.
    ///
    /// # Errors
    /// The socket cannot be made; see [`Error`].
    pub async fn open(config: Config, resource: R) -> Result<Self, Error> {
        Ok(Self {
            endpoint: Endpoint::open(&config.folder, &config.socket).await?,
            service: service::Service::new(resource),
            status: watch::Sender::default(),
            config,
        })
    }

    /// What the kubelet says to the registration, as it says it.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Serves until `shutdown`. The kubelet then takes the devices for unhealthy, and after five minutes for gone: who
    /// wants them gone at once sends an empty list first.
    ///
    /// # Errors
    /// [`Error::Displaced`] when another process takes the socket over.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let Self {
            config,
            mut endpoint,
            service,
            status,
        } = self;
        let mut attempt = 0_u32;
        loop {
            let mut registering = Registering::new(&config, &endpoint, &service, &status);
            let end = shutdown.child_token();
            let serve = endpoint.run(service.routes(end.clone()), end.clone());
            let mut serve = std::pin::pin!(serve);
            tokio::select! {
                ended = serve.as_mut() => return ended,
                () = registering.until_poisoned() => {}
            }
            // No other name of the socket helps while this one still serves a former life of ours.
            attempt = attempt.saturating_add(1);
            let name = numbered(&config.socket, attempt);
            tracing::warn!(
                resource = config.resource,
                socket = name,
                "the kubelet takes the socket for one it is connected to; serving under another name"
            );
            end.cancel();
            serve.await?;
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause(attempt)) => {}
            }
            endpoint = Endpoint::open(&config.folder, &name).await?;
        }
    }
}

/// Before the nth other name: the first is usually taken.
fn pause(attempt: u32) -> Duration {
    match attempt.checked_sub(2) {
        None => Duration::ZERO,
        Some(further) => PAUSES.0.saturating_mul(1 << further.min(16)).min(PAUSES.1),
    }
}

/// `nvidia-gpu.sock` → `nvidia-gpu-1.sock`.
fn numbered(socket: &str, number: u32) -> String {
    match socket.rsplit_once('.') {
        Some((stem, extension)) => format!("{stem}-{number}.{extension}"),
        None => format!("{socket}-{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{numbered, pause};

    #[test]
    fn names_are_tried_ever_more_seldom() {
        let millis = [1, 2, 3, 4, 9, 10, u32::MAX].map(|attempt| pause(attempt).as_millis());
        assert_eq!(millis, [0, 200, 400, 800, 25_600, 30_000, 30_000]);
    }

    #[test]
    fn a_number_goes_before_the_extension() {
        assert_eq!(numbered("nvidia-gpu.sock", 2), "nvidia-gpu-2.sock");
        assert_eq!(
            numbered("nvidia-mig-1g.10gb.sock", 1),
            "nvidia-mig-1g.10gb-1.sock"
        );
        assert_eq!(numbered("plugin", 1), "plugin-1");
    }
}
