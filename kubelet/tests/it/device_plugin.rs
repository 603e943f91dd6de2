//! A device plugin through the kubelet's life: absent, started, killed, replaced, in a bad mood.

use std::path::Path;
use std::time::Duration;

use kubelet::api::device_plugin as wire;
use kubelet::device_plugin::{
    CdiDevice, Config, ContainerAllocateResponse, Device, DevicePluginOptions, Plugin, Resource,
};
use kubelet::registration::Status;
use kubelet::{Error, Folder};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use sim_kubelet::{DeviceManager, Mood, Seen, bounded};

const SOCKET: &str = "example-gpu.sock";

/// Gives each device to containers through CDI; knows `lost` as a device that is not there any more.
struct Example {
    devices: watch::Receiver<Vec<Device>>,
    options: DevicePluginOptions,
}

impl Resource for Example {
    type Error = String;

    fn options(&self) -> DevicePluginOptions {
        self.options
    }

    fn devices(&self) -> watch::Receiver<Vec<Device>> {
        self.devices.clone()
    }

    async fn allocate(&self, ids: Vec<String>) -> Result<ContainerAllocateResponse, String> {
        if ids.iter().any(|id| id == "lost") {
            return Err("device lost is not there any more".to_owned());
        }
        let cdi_devices = ids.into_iter().map(|id| CdiDevice {
            name: format!("example.com/gpu={id}"),
        });
        Ok(ContainerAllocateResponse {
            cdi_devices: cdi_devices.collect(),
            ..ContainerAllocateResponse::default()
        })
    }
}

fn devices(ids: &[&str]) -> Vec<Device> {
    let device = |id: &&str| Device {
        id: id.trim_start_matches('!').to_owned(),
        healthy: !id.starts_with('!'),
        numa_nodes: Vec::new(),
    };
    ids.iter().map(device).collect()
}

fn registered(socket: &str) -> Seen {
    Seen::Registered {
        resource: "example.com/gpu".to_owned(),
        socket: socket.to_owned(),
        options: DevicePluginOptions::default(),
    }
}

fn list(ids: &[&str]) -> Seen {
    Seen::List(ids.iter().map(|id| (*id).to_owned()).collect())
}

/// A plugin that runs.
struct Running {
    devices: watch::Sender<Vec<Device>>,
    status: watch::Receiver<Status>,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    async fn start(folder: &Path) -> Self {
        Self::start_with(folder, DevicePluginOptions::default()).await
    }

    async fn start_with(folder: &Path, options: DevicePluginOptions) -> Self {
        let devices = watch::Sender::new(devices(&["a", "!b"]));
        let resource = Example {
            devices: devices.subscribe(),
            options,
        };
        let config = Config {
            folder: Folder::open(folder).await.unwrap(),
            socket: SOCKET.to_owned(),
            resource: "example.com/gpu".to_owned(),
        };
        let plugin = Plugin::open(config, resource).await.unwrap();
        let status = plugin.status();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(plugin.run(shutdown.clone()));
        Self {
            devices,
            status,
            shutdown,
            task,
        }
    }

    async fn becomes(&mut self, wanted: impl FnMut(&Status) -> bool) {
        bounded(self.status.wait_for(wanted)).await.unwrap();
    }

    async fn end(self) {
        self.shutdown.cancel();
        bounded(self.task).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_plugin_may_start_before_the_kubelet_and_outlive_it() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("device-plugins");
    let mut plugin = Running::start(&folder).await;
    assert_eq!(*plugin.status.borrow(), Status::Waiting);

    // Each start deletes the plugin's socket; the last kubelet's own is left behind, as by a kill.
    for round in 0..3 {
        let mut kubelet = DeviceManager::start(&folder);
        assert_eq!(kubelet.next().await, registered(SOCKET), "round {round}");
        assert_eq!(kubelet.next().await, list(&["a", "!b"]));
        plugin.becomes(|status| *status == Status::Registered).await;
        drop(kubelet);
        plugin.becomes(|status| *status == Status::Waiting).await;
    }
    plugin.end().await;
    assert!(!folder.join(SOCKET).exists());
}

#[tokio::test]
async fn two_kubelets_in_a_row_leave_the_plugin_with_the_second() {
    let scratch = tempfile::tempdir().unwrap();
    let plugin = Running::start(scratch.path()).await;
    drop(DeviceManager::start(scratch.path()));
    let mut kubelet = DeviceManager::start(scratch.path());
    assert_eq!(kubelet.next().await, registered(SOCKET));
    assert_eq!(kubelet.next().await, list(&["a", "!b"]));
    assert!(kubelet.is_quiet().await);
    plugin.end().await;
}

#[tokio::test]
async fn every_change_of_the_devices_reaches_every_listener() {
    let scratch = tempfile::tempdir().unwrap();
    let mut kubelet = DeviceManager::start(scratch.path());
    let plugin = Running::start(scratch.path()).await;
    assert_eq!(kubelet.next().await, registered(SOCKET));
    assert_eq!(kubelet.next().await, list(&["a", "!b"]));
    let mut second = kubelet.plugin(SOCKET).await;
    let mut second = second
        .list_and_watch(wire::Empty {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        bounded(second.message())
            .await
            .unwrap()
            .unwrap()
            .devices
            .len(),
        2
    );

    for ids in [vec!["a", "b", "c"], vec![], vec!["!c"]] {
        plugin.devices.send_replace(devices(&ids));
        assert_eq!(kubelet.next().await, list(&ids));
        let other = bounded(second.message()).await.unwrap().unwrap();
        assert_eq!(other.devices.len(), ids.len());
    }
    plugin.end().await;
    assert_eq!(kubelet.next().await, Seen::Ended);
}

#[tokio::test]
async fn a_device_near_to_no_known_node_has_no_topology() {
    let scratch = tempfile::tempdir().unwrap();
    let kubelet = DeviceManager::start(scratch.path());
    let plugin = Running::start(scratch.path()).await;
    let mut near = devices(&["a", "b"]);
    near[1].numa_nodes = vec![0, 1];
    plugin.devices.send_replace(near);
    let mut client = kubelet.plugin(SOCKET).await;
    let mut lists = client
        .list_and_watch(wire::Empty {})
        .await
        .unwrap()
        .into_inner();
    let list = bounded(lists.message()).await.unwrap().unwrap().devices;
    assert_eq!(list[0].topology, None);
    let nodes = &list[1].topology.as_ref().unwrap().nodes;
    assert_eq!(nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0, 1]);
    plugin.end().await;
}

#[tokio::test]
async fn a_kubelet_that_knows_the_plugin_is_left_alone() {
    let scratch = tempfile::tempdir().unwrap();
    let mut kubelet = DeviceManager::start(scratch.path());
    let plugin = Running::start(scratch.path()).await;
    assert_eq!(kubelet.next().await, registered(SOCKET));
    assert_eq!(kubelet.next().await, list(&["a", "!b"]));
    // What the kubelet itself writes there.
    for file in ["DEPRECATION", "kubelet_internal_checkpoint"] {
        std::fs::write(scratch.path().join(file), "").unwrap();
    }
    // The plugin's socket comes back, and the kubelet's connection has never been gone.
    std::fs::remove_file(scratch.path().join(SOCKET)).unwrap();
    assert!(kubelet.is_quiet().await);
    bounded(async {
        while !scratch.path().join(SOCKET).exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    plugin.devices.send_replace(devices(&["c"]));
    assert_eq!(kubelet.next().await, list(&["c"]));
    plugin.end().await;
}

#[tokio::test]
async fn a_kubelet_that_lost_the_connection_is_told_again() {
    let scratch = tempfile::tempdir().unwrap();
    let mut kubelet = DeviceManager::start(scratch.path());
    let plugin = Running::start(scratch.path()).await;
    assert_eq!(kubelet.next().await, registered(SOCKET));
    assert_eq!(kubelet.next().await, list(&["a", "!b"]));
    kubelet.lose_connections();
    assert_eq!(kubelet.next().await, Seen::Ended);
    assert_eq!(kubelet.next().await, registered(SOCKET));
    assert_eq!(kubelet.next().await, list(&["a", "!b"]));
    plugin.end().await;
}

#[tokio::test]
async fn a_refusal_is_seen_and_tried_again() {
    let scratch = tempfile::tempdir().unwrap();
    let mut kubelet = DeviceManager::start(scratch.path());
    kubelet.be(Mood::Refuses("the ResourceName is invalid"));
    let mut plugin = Running::start(scratch.path()).await;
    assert_eq!(kubelet.next().await, Seen::Refused);
    plugin
        .becomes(|status| {
            matches!(status, Status::Refused { reason } if reason.contains("Register: the ResourceName is invalid"))
        })
        .await;
    assert_eq!(kubelet.next().await, Seen::Refused);
    kubelet.be(Mood::Takes);
    while kubelet.next().await != registered(SOCKET) {}
    plugin.becomes(|status| *status == Status::Registered).await;
    plugin.end().await;
}

#[tokio::test]
async fn a_kubelet_that_is_stuck_on_a_socket_gets_another() {
    let scratch = tempfile::tempdir().unwrap();
    let mut kubelet = DeviceManager::start(scratch.path());
    kubelet.be(Mood::StuckOn(SOCKET));
    let plugin = Running::start(scratch.path()).await;
    assert_eq!(kubelet.next().await, Seen::Refused);
    assert_eq!(kubelet.next().await, registered("example-gpu-1.sock"));
    assert_eq!(kubelet.next().await, list(&["a", "!b"]));
    assert!(!scratch.path().join(SOCKET).exists());
    plugin.end().await;
}

/// It is not asked again and again without end: a second is enough for hundreds of calls.
#[tokio::test]
async fn a_kubelet_that_takes_every_name_for_a_connected_one() {
    let scratch = tempfile::tempdir().unwrap();
    let mut kubelet = DeviceManager::start(scratch.path());
    kubelet.be(Mood::Refuses("device plugin already connected"));
    let plugin = Running::start(scratch.path()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    kubelet.be(Mood::Takes);
    let mut refused = 0;
    while kubelet.next().await == Seen::Refused {
        refused += 1;
    }
    assert!(refused < 10, "{refused} calls");
    assert_eq!(kubelet.next().await, list(&["a", "!b"]));
    plugin.end().await;
}

#[tokio::test]
async fn containers_get_their_devices() {
    let scratch = tempfile::tempdir().unwrap();
    let mut kubelet = DeviceManager::start(scratch.path());
    let options = DevicePluginOptions {
        pre_start_required: true,
        get_preferred_allocation_available: true,
    };
    let plugin = Running::start_with(scratch.path(), options).await;
    let Seen::Registered { options: told, .. } = kubelet.next().await else {
        panic!("it registers first")
    };
    assert_eq!(told, options);

    let mut client = kubelet.plugin(SOCKET).await;
    let request = |containers: &[&[&str]]| wire::AllocateRequest {
        container_requests: containers
            .iter()
            .map(|ids| wire::ContainerAllocateRequest {
                device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            })
            .collect(),
    };
    let answer = client
        .allocate(request(&[&["a"], &["b", "c"]]))
        .await
        .unwrap()
        .into_inner();
    let names: Vec<Vec<_>> = answer
        .container_responses
        .iter()
        .map(|container| {
            container
                .cdi_devices
                .iter()
                .map(|device| device.name.as_str())
                .collect()
        })
        .collect();
    assert_eq!(
        names,
        [
            vec!["example.com/gpu=a"],
            vec!["example.com/gpu=b", "example.com/gpu=c"]
        ]
    );

    let refusal = client.allocate(request(&[&["lost"]])).await.unwrap_err();
    assert_eq!(refusal.message(), "device lost is not there any more");

    let request = wire::PreferredAllocationRequest {
        container_requests: vec![wire::ContainerPreferredAllocationRequest {
            available_device_ids: ["a", "b", "c", "d"].map(str::to_owned).to_vec(),
            must_include_device_ids: vec!["c".to_owned()],
            allocation_size: 3,
        }],
    };
    let answer = client.get_preferred_allocation(request).await.unwrap();
    assert_eq!(
        answer.into_inner().container_responses[0].device_ids,
        ["c", "a", "b"]
    );

    let request = wire::PreStartContainerRequest {
        device_ids: vec!["a".to_owned()],
    };
    client.pre_start_container(request).await.unwrap();
    plugin.end().await;
}

#[tokio::test]
async fn a_displaced_plugin_says_so() {
    let scratch = tempfile::tempdir().unwrap();
    let plugin = Running::start(scratch.path()).await;
    let other = scratch.path().join("other.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&other).unwrap();
    std::fs::rename(&other, scratch.path().join(SOCKET)).unwrap();
    let error = bounded(plugin.task).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Displaced { .. }), "{error}");
}
