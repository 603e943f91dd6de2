//! The DevicePlugin service over one resource.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt as _};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::{Device, Resource};
use crate::api::device_plugin as wire;
use crate::api::device_plugin::device_plugin_server::{DevicePlugin, DevicePluginServer};

/// How long one call may take. The kubelet waits 30 s for PreStartContainer, and without end for the others.
const BOUND: Duration = Duration::from_secs(25);

#[derive(Debug)]
pub(super) struct Service<R> {
    resource: Arc<R>,
    /// Streams of devices that are open: kubelets that know us.
    streams: watch::Sender<usize>,
    /// When the streams end.
    end: CancellationToken,
}

impl<R> Clone for Service<R> {
    fn clone(&self) -> Self {
        Self {
            resource: self.resource.clone(),
            streams: self.streams.clone(),
            end: self.end.clone(),
        }
    }
}

impl<R: Resource> Service<R> {
    pub(super) fn new(resource: R) -> Self {
        Self {
            resource: Arc::new(resource),
            streams: watch::Sender::new(0),
            end: CancellationToken::new(),
        }
    }

    /// The service, whose streams last until `end`.
    pub(super) fn routes(&self, end: CancellationToken) -> Routes {
        let mut service = self.clone();
        service.end = end;
        Routes::new(DevicePluginServer::new(service))
    }

    pub(super) fn options(&self) -> wire::DevicePluginOptions {
        self.resource.options()
    }

    /// How many streams of devices are open.
    pub(super) fn streams(&self) -> watch::Receiver<usize> {
        self.streams.subscribe()
    }

    /// Answers a call, and tells the resource how long that took.
    async fn timed<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<Response<T>, Status> {
        let since = Instant::now();
        let answer = answer.await;
        self.resource
            .answered(call, since.elapsed(), answer.is_ok());
        answer.map(Response::new)
    }
}

/// Waits for a resource's answer within the bound.
async fn bounded<T, E: std::fmt::Display>(
    call: &str,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, Status> {
    match tokio::time::timeout(BOUND, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(refusal)) => {
            let refusal = refusal.to_string();
            tracing::warn!(call, refusal, "refused");
            Err(Status::failed_precondition(refusal))
        }
        Err(_) => Err(Status::deadline_exceeded(format!(
            "{call} took more than {} s",
            BOUND.as_secs()
        ))),
    }
}

#[tonic::async_trait]
impl<R: Resource> DevicePlugin for Service<R> {
    type ListAndWatchStream = Lists;

    async fn get_device_plugin_options(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<wire::DevicePluginOptions>, Status> {
        let options = async { Ok(self.options()) };
        self.timed("GetDevicePluginOptions", options).await
    }

    async fn list_and_watch(&self, _: Request<wire::Empty>) -> Result<Response<Lists>, Status> {
        Ok(Response::new(Lists::new(
            self.resource.devices(),
            self.streams.clone(),
            self.end.clone(),
        )))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<wire::PreferredAllocationRequest>,
    ) -> Result<Response<wire::PreferredAllocationResponse>, Status> {
        const CALL: &str = "GetPreferredAllocation";
        let answer = async {
            let mut container_responses = Vec::new();
            for request in request.into_inner().container_requests {
                let device_ids = bounded(CALL, self.resource.prefer(request)).await?;
                container_responses.push(wire::ContainerPreferredAllocationResponse { device_ids });
            }
            Ok(wire::PreferredAllocationResponse {
                container_responses,
            })
        };
        self.timed(CALL, answer).await
    }

    async fn allocate(
        &self,
        request: Request<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        const CALL: &str = "Allocate";
        let answer = async {
            let mut container_responses = Vec::new();
            for request in request.into_inner().container_requests {
                let allocation = self.resource.allocate(request.device_ids);
                container_responses.push(bounded(CALL, allocation).await?);
            }
            Ok(wire::AllocateResponse {
                container_responses,
            })
        };
        self.timed(CALL, answer).await
    }

    async fn pre_start_container(
        &self,
        request: Request<wire::PreStartContainerRequest>,
    ) -> Result<Response<wire::PreStartContainerResponse>, Status> {
        const CALL: &str = "PreStartContainer";
        let answer = async {
            let work = self.resource.pre_start(request.into_inner().device_ids);
            bounded(CALL, work).await?;
            Ok(wire::PreStartContainerResponse {})
        };
        self.timed(CALL, answer).await
    }
}

/// The list of devices, again with every change, for one kubelet.
pub(super) struct Lists {
    lists: Pin<Box<dyn Stream<Item = Vec<Device>> + Send>>,
    streams: watch::Sender<usize>,
}

impl Lists {
    fn new(
        mut devices: watch::Receiver<Vec<Device>>,
        streams: watch::Sender<usize>,
        end: CancellationToken,
    ) -> Self {
        streams.send_modify(|open| *open += 1);
        devices.mark_changed();
        let lists = futures::stream::unfold(devices, |mut devices| async move {
            // Ends when nobody can change the devices any more.
            devices.changed().await.ok()?;
            let list = devices.borrow_and_update().clone();
            Some((list, devices))
        });
        Self {
            lists: Box::pin(lists.take_until(end.cancelled_owned())),
            streams,
        }
    }
}

impl Stream for Lists {
    type Item = Result<wire::ListAndWatchResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.lists.poll_next_unpin(context).map(|list| {
            list.map(|list| {
                Ok(wire::ListAndWatchResponse {
                    devices: list.into_iter().map(on_the_wire).collect(),
                })
            })
        })
    }
}

impl Drop for Lists {
    fn drop(&mut self) {
        self.streams.send_modify(|open| *open -= 1);
    }
}

fn on_the_wire(device: Device) -> wire::Device {
    let nodes = device.numa_nodes.into_iter();
    let nodes: Vec<_> = nodes
        .map(|node| wire::NumaNode { id: node.into() })
        .collect();
    wire::Device {
        id: device.id,
        health: if device.healthy {
            "Healthy"
        } else {
            "Unhealthy"
        }
        .to_owned(),
        // An empty topology would mean "near to no node"; a missing one means "any".
        topology: (!nodes.is_empty()).then_some(wire::TopologyInfo { nodes }),
    }
}
