//! The kubelet's pod resources API over the pods that were admitted.

use std::path::Path;

use kubelet::api::pod_resources as wire;
use kubelet::api::pod_resources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::Pods;
use crate::process::{Process, connections};

/// A server that runs; dropping it kills it.
#[derive(Debug)]
pub struct PodResources {
    _process: Process,
}

impl PodResources {
    /// Serves `pods` at `socket`, in the place of whatever was there.
    ///
    /// # Panics
    /// The socket cannot be made.
    pub fn start(socket: &Path, pods: Pods) -> Self {
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(socket);
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        Self {
            _process: Process::start(async move {
                Server::builder()
                    .add_service(PodResourcesListerServer::new(Service(pods)))
                    .serve_with_incoming(connections(listener))
                    .await
                    .unwrap();
            }),
        }
    }
}

struct Service(Pods);

#[tonic::async_trait]
impl PodResourcesLister for Service {
    async fn list(
        &self,
        _: Request<wire::ListPodResourcesRequest>,
    ) -> Result<Response<wire::ListPodResourcesResponse>, Status> {
        Ok(Response::new(wire::ListPodResourcesResponse {
            pod_resources: self.0.resources(),
        }))
    }

    async fn get(
        &self,
        _: Request<wire::GetPodResourcesRequest>,
    ) -> Result<Response<wire::GetPodResourcesResponse>, Status> {
        Err(Status::unimplemented("KubeletPodResourcesGet is off"))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<wire::AllocatableResourcesRequest>,
    ) -> Result<Response<wire::AllocatableResourcesResponse>, Status> {
        Err(Status::unimplemented("not simulated"))
    }
}
