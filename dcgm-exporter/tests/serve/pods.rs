//! Labels of pods, as a kubelet that comes, changes its mind and goes tells of them.

use std::path::Path;
use std::sync::{Arc, Mutex};

use dcgm_exporter::PodSource;
use kubelet::api::pod_resources as wire;
use kubelet::api::pod_resources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use nvml::{Driver, Options};
use sim_nvml::presets::NodeSpec;
use tokio::net::UnixListener;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::{Running, config, cut, node, samples};

/// Pods and the device each has.
type Pods = Arc<Mutex<Vec<(&'static str, String)>>>;

struct Kubelet(Pods);

#[tonic::async_trait]
impl PodResourcesLister for Kubelet {
    async fn list(
        &self,
        _: Request<wire::ListPodResourcesRequest>,
    ) -> Result<Response<wire::ListPodResourcesResponse>, Status> {
        let pods = self.0.lock().unwrap();
        let pod = |(name, device): &(&str, String)| wire::PodResources {
            name: (*name).to_owned(),
            namespace: "ml".to_owned(),
            containers: vec![wire::ContainerResources {
                name: "main".to_owned(),
                devices: vec![wire::ContainerDevices {
                    resource_name: "nvidia.com/gpu".to_owned(),
                    device_ids: vec![device.clone()],
                    topology: None,
                }],
                dynamic_resources: Vec::new(),
            }],
        };
        let pod_resources = pods.iter().map(pod).collect();
        Ok(Response::new(wire::ListPodResourcesResponse {
            pod_resources,
        }))
    }

    async fn get(
        &self,
        _: Request<wire::GetPodResourcesRequest>,
    ) -> Result<Response<wire::GetPodResourcesResponse>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<wire::AllocatableResourcesRequest>,
    ) -> Result<Response<wire::AllocatableResourcesResponse>, Status> {
        Err(Status::unimplemented("not asked here"))
    }
}

fn serve(socket: &Path, pods: Pods) {
    let listener = UnixListener::bind(socket).unwrap();
    let incoming = futures::stream::unfold(listener, |listener| async {
        let stream = listener.accept().await.map(|(stream, _)| stream);
        Some((stream, listener))
    });
    let server = Server::builder()
        .add_service(PodResourcesListerServer::new(Kubelet(pods)))
        .serve_with_incoming(incoming);
    tokio::spawn(server);
}

/// The first samples' labels of the GPU with this index.
fn temperature(page: &str, gpu: u32) -> String {
    let label = format!("gpu=\"{gpu}\"");
    let all = samples(page, "DCGM_FI_DEV_GPU_TEMP");
    let found = all.into_iter().find(|line| line.contains(&label));
    found.unwrap_or_default().to_owned()
}

#[tokio::test]
async fn samples_name_the_pod_that_has_the_device() {
    let (folder, node) = node(&NodeSpec::uniform("h100-sxm5-80gb", 2).unwrap());
    // Profile 9 is 3g.40gb, and its compute instance 2 fills it.
    cut(&node, 1, 9, 2).await;
    let options = Options::at(node.root());
    let snapshot = tokio::task::spawn_blocking(move || Driver::open(&options)?.snapshot());
    let snapshot = snapshot.await.unwrap().unwrap();
    let uuids: Vec<(String, Vec<String>)> = snapshot
        .present()
        .map(|gpu| {
            let mig = gpu.mig_devices.iter().map(|device| device.uuid.clone());
            (gpu.uuid.clone(), mig.collect())
        })
        .collect();
    let (whole, part) = (uuids[0].0.clone(), uuids[1].1[0].clone());

    let socket = folder.path().join("kubelet.sock");
    let source = PodSource {
        socket: socket.clone(),
        resources: Vec::new(),
    };
    let config = dcgm_exporter::Config {
        pods: Some(source),
        ..config("f")
    };
    let running = Running::start_on(folder, node, config).await;
    // A kubelet that is not there costs the labels, not the page.
    let down = |page: &str| {
        samples(page, "lathe_exporter_pod_resources_up") == ["lathe_exporter_pod_resources_up 0"]
    };
    let page = running.page_with(down).await;
    assert!(!page.contains("pod=\""), "{page}");
    assert!(!temperature(&page, 0).is_empty(), "{page}");

    let pods = Pods::default();
    *pods.lock().unwrap() = vec![("whole", whole.clone()), ("part", part)];
    serve(&socket, pods.clone());
    let labels = |pod: &str| format!(",container=\"main\",namespace=\"ml\",pod=\"{pod}\"}}");
    let named = |page: &str| {
        temperature(page, 0).contains(&labels("whole"))
            && temperature(page, 1).contains(&labels("part"))
    };
    let page = running.page_with(named).await;
    assert!(
        temperature(&page, 1).contains("GPU_I_PROFILE=\"3g.40gb\""),
        "{page}"
    );

    *pods.lock().unwrap() = vec![
        ("one", format!("{whole}::0")),
        ("other", format!("{whole}::1")),
    ];
    running.page_with(|page| !page.contains("pod=\"")).await;
    running.stop().await;
}
