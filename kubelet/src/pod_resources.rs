//! Which devices the containers on this node have, as the kubelet keeps it: the client of the pod resources API.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::Channel;

use crate::api::pod_resources as wire;
use crate::api::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use crate::{Error, channel};

pub use wire::{
    ClaimResource, ContainerDevices, ContainerResources, DynamicResource, PodResources,
};

/// The largest answer that is taken. gRPC's own limit of 4 MiB is passed by nodes with many pods and CPUs
/// (dcgm-exporter#509); an answer has to be held in memory whole, so there has to be some limit.
pub const LARGEST_ANSWER: usize = 16 << 20;

/// How long an answer may take; what dcgm-exporter allows.
const BOUND: Duration = Duration::from_secs(10);

/// Bounds of one client.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a call may take, connecting included.
    pub time: Duration,
    /// Bytes of the largest answer that is taken.
    pub answer: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            time: BOUND,
            answer: LARGEST_ANSWER,
        }
    }
}

/// A client that connects when it is first asked, and again after the kubelet has been restarted.
///
/// The kubelet answers 100 calls a second and refuses more with RESOURCE_EXHAUSTED; see [`Error::is_transient`].
#[derive(Clone, Debug)]
pub struct PodResourcesClient {
    socket: PathBuf,
    client: PodResourcesListerClient<Channel>,
    time: Duration,
}

impl PodResourcesClient {
    /// A client of the kubelet that serves `socket`. Nothing is connected yet, so a kubelet that is down is no error here.
    ///
    /// # Errors
    /// The path is not UTF-8.
    pub fn new(socket: &Path, limits: Limits) -> Result<Self, Error> {
        let channel = channel::open(socket, "connect")?;
        Ok(Self {
            socket: socket.to_owned(),
            client: PodResourcesListerClient::new(channel).max_decoding_message_size(limits.answer),
            time: limits.time,
        })
    }

    /// Every pod on the node with the devices of its containers. Older kubelets name pods that have ended as well.
    ///
    /// # Errors
    /// [`Error::Call`] or [`Error::TimedOut`].
    pub async fn list(&self) -> Result<Vec<PodResources>, Error> {
        let answer = self
            .call("List", |mut client| async move {
                client.list(wire::ListPodResourcesRequest {}).await
            })
            .await?;
        Ok(answer.pod_resources)
    }

    /// One pod, or nothing when the kubelet has no such pod. Needs kubelet 1.34 (or its gate KubeletPodResourcesGet).
    ///
    /// # Errors
    /// [`Error::Call`] or [`Error::TimedOut`].
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Option<PodResources>, Error> {
        let answer = self
            .call("Get", |mut client| {
                let request = wire::GetPodResourcesRequest {
                    pod_name: name.to_owned(),
                    pod_namespace: namespace.to_owned(),
                };
                async move { client.get(request).await }
            })
            .await;
        match answer {
            Ok(answer) => Ok(answer.pod_resources),
            // The kubelet has no code for it: "pod … in namespace … not found", with code Unknown.
            Err(Error::Call {
                code: tonic::Code::Unknown,
                message,
                ..
            }) if message.ends_with("not found") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The devices that can be allocated: the healthy ones, by resource.
    ///
    /// # Errors
    /// [`Error::Call`] or [`Error::TimedOut`].
    pub async fn allocatable(&self) -> Result<Vec<ContainerDevices>, Error> {
        let answer = self
            .call("GetAllocatableResources", |mut client| async move {
                client
                    .get_allocatable_resources(wire::AllocatableResourcesRequest {})
                    .await
            })
            .await?;
        Ok(answer.devices)
    }

    /// One call within the time; a second try when the connection turns out to be that of a former kubelet.
    async fn call<T, F>(
        &self,
        name: &'static str,
        ask: impl Fn(PodResourcesListerClient<Channel>) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let answer = async {
            match ask(self.client.clone()).await {
                Err(status) if channel::is_broken(&status) => ask(self.client.clone()).await,
                answer => answer,
            }
        };
        channel::bounded(&self.socket, name, self.time, answer)
            .await
            .map(tonic::Response::into_inner)
    }
}
