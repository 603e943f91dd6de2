//! The pod resources client against servers that answer, come and go, hang, and say too much.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kubelet::Error;
use kubelet::api::pod_resources as wire;
use kubelet::api::pod_resources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use kubelet::pod_resources::{Limits, PodResourcesClient};
use tokio::net::UnixListener;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

use crate::{Process, bounded};

/// A kubelet with one pod, whose containers' devices are `devices`.
struct Kubelet {
    devices: Vec<String>,
}

fn pod(devices: Vec<String>) -> wire::PodResources {
    wire::PodResources {
        name: "train".to_owned(),
        namespace: "ml".to_owned(),
        containers: vec![wire::ContainerResources {
            name: "main".to_owned(),
            devices: vec![wire::ContainerDevices {
                resource_name: "nvidia.com/gpu".to_owned(),
                device_ids: devices,
                topology: None,
            }],
            dynamic_resources: vec![wire::DynamicResource {
                claim_name: "one".to_owned(),
                claim_namespace: "ml".to_owned(),
                claim_resources: vec![wire::ClaimResource {
                    driver_name: "gpu.nvidia.com".to_owned(),
                    pool_name: "node-0".to_owned(),
                    device_name: "gpu-0".to_owned(),
                    ..wire::ClaimResource::default()
                }],
            }],
        }],
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Kubelet {
    async fn list(
        &self,
        _: Request<wire::ListPodResourcesRequest>,
    ) -> Result<Response<wire::ListPodResourcesResponse>, Status> {
        Ok(Response::new(wire::ListPodResourcesResponse {
            pod_resources: vec![pod(self.devices.clone())],
        }))
    }

    async fn get(
        &self,
        request: Request<wire::GetPodResourcesRequest>,
    ) -> Result<Response<wire::GetPodResourcesResponse>, Status> {
        let wanted = request.into_inner();
        if (wanted.pod_namespace.as_str(), wanted.pod_name.as_str()) != ("ml", "train") {
            // As the kubelet puts it.
            return Err(Status::unknown(format!(
                "pod {} in namespace {} not found",
                wanted.pod_name, wanted.pod_namespace
            )));
        }
        Ok(Response::new(wire::GetPodResourcesResponse {
            pod_resources: Some(pod(self.devices.clone())),
        }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<wire::AllocatableResourcesRequest>,
    ) -> Result<Response<wire::AllocatableResourcesResponse>, Status> {
        Err(Status::resource_exhausted("rejected by rate limit"))
    }
}

fn start(socket: &Path, devices: &[&str]) -> Process {
    let _ = std::fs::remove_file(socket);
    let kubelet = Kubelet {
        devices: devices.iter().map(|id| (*id).to_owned()).collect(),
    };
    let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    Process::start(async move {
        let listener = UnixListener::from_std(listener).unwrap();
        let incoming = futures::stream::unfold(listener, |listener| async {
            let stream = listener.accept().await.map(|(stream, _)| stream);
            Some((stream, listener))
        });
        Server::builder()
            .add_service(PodResourcesListerServer::new(kubelet))
            .serve_with_incoming(incoming)
            .await
            .unwrap();
    })
}

fn socket(scratch: &tempfile::TempDir) -> PathBuf {
    scratch.path().join("kubelet.sock")
}

#[tokio::test]
async fn pods_come_with_their_devices_and_claims() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = socket(&scratch);
    let kubelet = start(&socket, &["GPU-0", "GPU-1"]);
    let client = PodResourcesClient::new(&socket, Limits::default()).unwrap();
    let expected = pod(vec!["GPU-0".to_owned(), "GPU-1".to_owned()]);
    assert_eq!(
        bounded(client.list()).await.unwrap(),
        vec![expected.clone()]
    );
    assert_eq!(
        bounded(client.get("ml", "train")).await.unwrap(),
        Some(expected)
    );
    assert_eq!(bounded(client.get("ml", "other")).await.unwrap(), None);
    let error = bounded(client.allocatable()).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(
        error
            .to_string()
            .contains("GetAllocatableResources: rejected by rate limit"),
        "{error}"
    );
    drop(kubelet);
}

#[tokio::test]
async fn a_kubelet_that_was_restarted_is_found_again() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = socket(&scratch);
    let client = PodResourcesClient::new(&socket, Limits::default()).unwrap();
    let error = bounded(client.list()).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(error.to_string().contains("No such file"), "{error}");

    for id in ["GPU-0", "GPU-1", "GPU-2"] {
        let kubelet = start(&socket, &[id]);
        let pods = bounded(client.list()).await.unwrap();
        assert_eq!(pods, [pod(vec![id.to_owned()])]);
        drop(kubelet);
    }
}

#[tokio::test]
async fn a_kubelet_that_does_not_answer_is_not_waited_for() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = socket(&scratch);
    let _silent = UnixListener::bind(&socket).unwrap();
    let limits = Limits {
        time: Duration::from_millis(50),
        ..Limits::default()
    };
    let client = PodResourcesClient::new(&socket, limits).unwrap();
    let error = bounded(client.list()).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert!(error.is_transient());
}

#[tokio::test]
async fn answers_have_a_limit_beyond_that_of_grpc() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = socket(&scratch);
    let long = "x".repeat(5 << 20);
    let kubelet = start(&socket, &[&long]);
    let client = PodResourcesClient::new(&socket, Limits::default()).unwrap();
    assert_eq!(bounded(client.list()).await.unwrap(), [pod(vec![long])]);

    let limits = Limits {
        answer: 1 << 20,
        ..Limits::default()
    };
    let client = PodResourcesClient::new(&socket, limits).unwrap();
    let error = bounded(client.list()).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Call {
                code: Code::OutOfRange,
                ..
            }
        ),
        "{error}"
    );
    drop(kubelet);
}
