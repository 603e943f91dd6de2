//! The kubelet's local APIs against the real kubelet: a DRA driver and a device plugin, from the registration to the
//! variable in the container.
//!
//! The plugins run in the test itself, so the tests need the kubelet's folders: `LATHE_E2E_KUBELET` and `LATHE_E2E_CDI`
//! (a folder in which the container runtime looks for CDI specs). `cargo xtask cluster exec` sets both, and
//! `LATHE_E2E_DEVICE_PLUGINS`, since its kubelet finds its folder for device plugins elsewhere.

#[path = "../../kubelet/examples/minimal_dra/driver.rs"]
mod driver;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim};
use kube::api::{Api, PostParams};
use kube::runtime::wait::await_condition;
use kubelet::Folder;
use kubelet::api::device_plugin::RegisterRequest;
use kubelet::api::device_plugin::registration_client::RegistrationClient;
use kubelet::device_plugin::{self, ContainerAllocateResponse, Device, Resource};
use kubelet::dra::{self, DeviceHealth};
use kubelet::pod_resources::{Limits, PodResourcesClient};
use kubelet::registration::Status;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;

use crate::support::cluster::{Cluster, cluster, cluster_alone, skipped, variable};
use crate::support::host::{Host, host};
use crate::support::namespace::within;
use crate::support::pods::{Pods, bounded};
use crate::support::tools::run;
use driver::{DEVICE, Minimal, VARIABLE};

/// The pod that uses the device.
const USER: &str = "user";

/// A plugin that runs.
struct Running {
    status: watch::Receiver<Status>,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), kubelet::Error>>,
}

impl Running {
    async fn is_registered(&mut self) {
        let registered = self.status.wait_for(|status| *status == Status::Registered);
        bounded("the kubelet's registration", registered)
            .await
            .unwrap();
    }

    async fn end(self) {
        self.shutdown.cancel();
        bounded("the plugin's end", self.task)
            .await
            .unwrap()
            .unwrap();
    }
}

#[tokio::test]
async fn a_dra_driver_registers_and_its_device_reaches_the_container() {
    let (Some(cluster), Some(host)) = (cluster().await, host()) else {
        return;
    };
    within(&cluster.clone(), "dra", |namespace| async move {
        let node = cluster.node_name().await;
        let driver = Minimal {
            driver: format!("{namespace}.lathe.example"),
            node: node.clone(),
            cdi: host.cdi.clone(),
            client: cluster.client.clone(),
        };
        let mut plugin = serve(&host, &driver).await;
        plugin.is_registered().await;
        // Whoever restarts the kubelet meanwhile makes it delete the node's slices.
        let publisher = tokio::spawn(keep_published(driver.clone(), plugin.status.clone()));

        make(
            &cluster,
            &namespace,
            device_class(&cluster, &namespace, &driver).await,
        )
        .await;
        let claims: Api<ResourceClaim> = Api::namespaced(cluster.client.clone(), &namespace);
        let claim = json!({
            "metadata": {"name": "one"},
            "spec": {"devices": {"requests": [
                {"name": "main", "exactly": {"deviceClassName": namespace}},
            ]}},
        });
        claims
            .create(&PostParams::default(), &from(claim))
            .await
            .unwrap();
        let user = Pods::new(&cluster.client, &namespace);
        user.ask_for(
            USER,
            json!({"resourceClaims": [{"name": "device", "resourceClaimName": "one"}]}),
            json!({"claims": [{"name": "device"}]}),
        )
        .await;

        assert_eq!(user.view(USER).await.environment[VARIABLE], DEVICE);

        // The kubelet knows who has the device, and shows that it is well.
        let resources = PodResourcesClient::new(&host.kubelet.pod_resources(), Limits::default())
            .unwrap()
            .get(&namespace, USER)
            .await
            .unwrap()
            .unwrap();
        let claimed = &resources.containers[0].dynamic_resources[0];
        assert_eq!(claimed.claim_name, "one");
        assert_eq!(claimed.claim_resources[0].driver_name, driver.driver);
        assert_eq!(claimed.claim_resources[0].device_name, DEVICE);
        let healthy = |pod: Option<&Pod>| {
            pod.is_some_and(|pod| {
                let status = serde_json::to_value(&pod.status).unwrap();
                let resources = &status["containerStatuses"][0]["allocatedResourcesStatus"];
                resources[0]["resources"][0]["health"] == "Healthy"
            })
        };
        let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &namespace);
        bounded("the device's health", await_condition(pods, USER, healthy))
            .await
            .unwrap();

        user.delete(USER).await;
        let specs = std::fs::read_dir(&host.cdi).unwrap();
        let left: Vec<_> = specs
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name.to_string_lossy().starts_with(&driver.driver))
            .collect();
        assert!(left.is_empty(), "the claim was taken back: {left:?}");

        publisher.abort();
        plugin.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_kubelet_that_is_restarted_finds_the_plugins_again() {
    // A pod that is admitted before its plugin is back would fail, whosever it is.
    let (Some(cluster), Some(host)) = (cluster_alone().await, host()) else {
        return;
    };
    let Some(restart) = variable("LATHE_E2E_RESTART_KUBELET") else {
        skipped("LATHE_E2E_RESTART_KUBELET names no command");
        return;
    };
    within(&cluster.clone(), "again", |namespace| async move {
        let driver = Minimal {
            driver: format!("{namespace}.lathe.example"),
            node: cluster.node_name().await,
            cdi: host.cdi.clone(),
            client: cluster.client.clone(),
        };
        let mut dra = serve(&host, &driver).await;
        let mut things = serve_things(&host, &namespace).await;
        dra.is_registered().await;
        things.is_registered().await;
        for plugin in [&mut dra, &mut things] {
            plugin.status.mark_unchanged();
        }
        run("sh", &["-c", &restart], "").await;
        for plugin in [&mut dra, &mut things] {
            bounded("the kubelet's restart", plugin.status.changed())
                .await
                .unwrap();
            plugin.is_registered().await;
        }
        allocatable_is(&cluster, &namespace, "1").await;
        dra.end().await;
        things.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_device_plugin_registers_and_its_devices_reach_containers() {
    let (Some(cluster), Some(host)) = (cluster().await, host()) else {
        return;
    };
    within(&cluster.clone(), "things", |namespace| async move {
        let mut plugin = serve_things(&host, &namespace).await;
        plugin.is_registered().await;
        // One of two is healthy.
        allocatable_is(&cluster, &namespace, "1").await;
        let resource = thing(&namespace);
        let user = Pods::new(&cluster.client, &namespace);
        user.ask(USER, json!({&resource: "1"})).await;
        assert_eq!(user.view(USER).await.environment["THINGS"], "well");

        let client =
            PodResourcesClient::new(&host.kubelet.pod_resources(), Limits::default()).unwrap();
        let pods = client.list().await.unwrap();
        let ours = pods
            .iter()
            .find(|pod| pod.namespace == namespace)
            .expect("the kubelet lists the pod");
        let devices = &ours.containers[0].devices[0];
        assert_eq!(devices.resource_name, resource);
        assert_eq!(devices.device_ids, ["well"]);
        let allocatable = client.allocatable().await.unwrap();
        assert!(
            allocatable
                .iter()
                .any(|devices| devices.resource_name == resource && devices.device_ids == ["well"]),
            "{allocatable:?}"
        );
        assert_eq!(client.get(&namespace, "nobody").await.unwrap(), None);

        user.delete(USER).await;
        plugin.end().await;
        allocatable_is(&cluster, &namespace, "0").await;
    })
    .await;
}

/// Kubelet 1.37 refuses a second registration of a socket, and then never notices that its connection to it ends. Whoever
/// was so unlucky (a plugin started again faster than the kubelet saw it go) is served under another name.
#[tokio::test]
async fn a_kubelet_that_holds_a_socket_for_connected_is_served_all_the_same() {
    let (Some(cluster), Some(host)) = (cluster().await, host()) else {
        return;
    };
    within(&cluster.clone(), "stuck", |namespace| async move {
        let mut plugin = serve_things(&host, &namespace).await;
        plugin.is_registered().await;
        allocatable_is(&cluster, &namespace, "1").await;
        let kubelet = host.device_plugins.join("kubelet.sock");
        let channel = Endpoint::from_shared(format!("unix:{}", kubelet.display())).unwrap();
        let again = RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: format!("{namespace}.sock"),
            resource_name: thing(&namespace),
            options: None,
        };
        // Kubelets before 1.37 take it, which is as well.
        let _ = RegistrationClient::new(channel.connect().await.unwrap())
            .register(again)
            .await;
        plugin.end().await;

        let mut plugin = serve_things(&host, &namespace).await;
        plugin.is_registered().await;
        allocatable_is(&cluster, &namespace, "1").await;
        // That the resource then goes to 0 is not looked at: a kubelet that is confused once may not notice the end.
        plugin.end().await;
    })
    .await;
}

async fn serve(host: &Host, driver: &Minimal) -> Running {
    let config = dra::Config {
        driver: driver.driver.clone(),
        paths: host.kubelet.clone(),
        instance: None,
    };
    let health = watch::Sender::new(vec![DeviceHealth {
        pool: driver.pool(),
        device: DEVICE.to_owned(),
        healthy: Some(true),
        message: String::new(),
    }]);
    let plugin = dra::Plugin::open(&config, driver.clone(), Some(health.subscribe()))
        .await
        .unwrap();
    let status = plugin.status();
    let shutdown = CancellationToken::new();
    let run = plugin.run(shutdown.clone());
    let task = tokio::spawn(async move {
        let _health = health;
        run.await
    });
    Running {
        status,
        shutdown,
        task,
    }
}

/// Publishes the device now, and each time a kubelet has registered the driver.
async fn keep_published(driver: Minimal, mut status: watch::Receiver<Status>) {
    status.mark_changed();
    while status.changed().await.is_ok() {
        let registered = *status.borrow_and_update() == Status::Registered;
        if registered {
            driver.publish().await.unwrap();
        }
    }
}

/// Two things, one of which is not well.
struct Things(watch::Sender<Vec<Device>>);

impl Resource for Things {
    type Error = String;

    fn devices(&self) -> watch::Receiver<Vec<Device>> {
        self.0.subscribe()
    }

    async fn allocate(&self, ids: Vec<String>) -> Result<ContainerAllocateResponse, String> {
        Ok(ContainerAllocateResponse {
            envs: [("THINGS".to_owned(), ids.join(","))].into(),
            ..ContainerAllocateResponse::default()
        })
    }
}

fn thing(namespace: &str) -> String {
    format!("{namespace}.lathe.example/thing")
}

async fn serve_things(host: &Host, namespace: &str) -> Running {
    let device = |id: &str, healthy| Device {
        id: id.to_owned(),
        healthy,
        numa_nodes: vec![0],
    };
    let config = device_plugin::Config {
        folder: Folder::open(&host.device_plugins).await.unwrap(),
        socket: format!("{namespace}.sock"),
        resource: thing(namespace),
    };
    let things = Things(watch::Sender::new(vec![
        device("well", true),
        device("unwell", false),
    ]));
    let plugin = device_plugin::Plugin::open(config, things).await.unwrap();
    let status = plugin.status();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(plugin.run(shutdown.clone()));
    Running {
        status,
        shutdown,
        task,
    }
}

async fn allocatable_is(cluster: &Cluster, namespace: &str, wanted: &str) {
    let resource = thing(namespace);
    let holds = |node: Option<&Node>| {
        node.and_then(|node| node.status.as_ref())
            .and_then(|status| status.allocatable.as_ref())
            .and_then(|allocatable| allocatable.get(&resource))
            .is_some_and(|quantity| quantity.0 == wanted)
    };
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let node = cluster.node_name().await;
    bounded(
        &format!("{wanted} allocatable {resource}"),
        await_condition(nodes, &node, holds),
    )
    .await
    .unwrap();
}

/// A class of the driver's devices, named after the namespace and removed with it.
async fn device_class(cluster: &Cluster, namespace: &str, driver: &Minimal) -> DeviceClass {
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let owner = namespaces.get(namespace).await.unwrap().metadata.uid;
    from(json!({
        "metadata": {
            "name": namespace,
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Namespace", "name": namespace, "uid": owner},
            ],
        },
        "spec": {"selectors": [
            {"cel": {"expression": format!("device.driver == {:?}", driver.driver)}},
        ]},
    }))
}

async fn make(cluster: &Cluster, name: &str, class: DeviceClass) {
    let classes: Api<DeviceClass> = Api::all(cluster.client.clone());
    classes
        .create(&PostParams::default(), &class)
        .await
        .unwrap_or_else(|error| panic!("device class {name}: {error}"));
}

fn from<T: k8s_openapi::serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}
