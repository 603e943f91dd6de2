//! The kubelet's device manager, as far as plugins see it: what kubelet 1.37 does at start, at `Register`, and when a
//! plugin's connection ends.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kubelet::api::device_plugin as wire;
use kubelet::api::device_plugin::device_plugin_client::DevicePluginClient;
use kubelet::api::device_plugin::registration_server::{Registration, RegistrationServer};
use tokio::sync::{mpsc, watch};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use crate::process::connections;
use crate::{Pods, Process, bounded};

/// What a plugin did to the kubelet.
#[derive(Debug, PartialEq)]
pub enum Seen {
    /// It called, with this resource and socket; and the options that it gave when asked.
    Registered {
        /// The resource.
        resource: String,
        /// Name of its socket.
        socket: String,
        /// What it answered.
        options: wire::DevicePluginOptions,
    },
    /// It was refused.
    Refused,
    /// A list of devices: their ids, with `!` before those that are unhealthy.
    List(Vec<String>),
    /// Its stream of lists ended.
    Ended,
}

/// What the kubelet does with a registration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mood {
    /// What it should.
    Takes,
    /// Refuses, with this text.
    Refuses(&'static str),
    /// Holds the socket of this name for one that it is connected to.
    StuckOn(&'static str),
}

/// A resource as the kubelet holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// Name of the plugin's socket.
    pub socket: String,
    /// Ids, and whether each is healthy.
    pub list: BTreeMap<String, bool>,
    /// NUMA nodes of the ids that have one.
    pub numa: BTreeMap<String, Vec<i64>>,
}

/// A kubelet that runs; dropping it kills it.
#[derive(Debug)]
pub struct DeviceManager {
    _process: Process,
    devices: watch::Receiver<BTreeMap<String, Devices>>,
    pods: Pods,
    seen: mpsc::UnboundedReceiver<Seen>,
    mood: Arc<Mutex<Mood>>,
    connections: Arc<Mutex<Vec<tokio::task::AbortHandle>>>,
    folder: PathBuf,
}

impl DeviceManager {
    /// Starts in `folder`: deletes the sockets there, and makes its own.
    ///
    /// # Panics
    /// The folder is no folder.
    pub fn start(folder: &Path) -> Self {
        Self::start_with(folder, Pods::default())
    }

    /// Starts in `folder`, with the pods of a former kubelet.
    ///
    /// # Panics
    /// The folder is no folder.
    pub fn start_with(folder: &Path, pods: Pods) -> Self {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            // A plugin may take its socket away meanwhile, or give it its name.
            let is_socket =
                std::fs::symlink_metadata(&path).is_ok_and(|it| it.file_type().is_socket());
            if is_socket && let Err(error) = std::fs::remove_file(&path) {
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
            }
        }
        let listener = std::os::unix::net::UnixListener::bind(folder.join("kubelet.sock")).unwrap();
        let (sender, seen) = mpsc::unbounded_channel();
        let (held, devices) = watch::channel(BTreeMap::new());
        let mood = Arc::new(Mutex::new(Mood::Takes));
        let links = Arc::new(Mutex::new(Vec::new()));
        let service = Service {
            folder: folder.to_owned(),
            seen: sender,
            mood: mood.clone(),
            connected: Arc::default(),
            connections: links.clone(),
            held,
        };
        let process = Process::start(async move {
            Server::builder()
                .add_service(RegistrationServer::new(service))
                .serve_with_incoming(connections(listener))
                .await
                .unwrap();
        });
        Self {
            _process: process,
            devices,
            pods,
            seen,
            mood,
            connections: links,
            folder: folder.to_owned(),
        }
    }

    /// Every resource that is registered, as its last list says.
    pub fn devices(&self) -> BTreeMap<String, Devices> {
        self.devices.borrow().clone()
    }

    /// The same, for who wants to wait for a change of it.
    pub fn subscribe(&self) -> watch::Receiver<BTreeMap<String, Devices>> {
        self.devices.clone()
    }

    /// The pods that it admitted, and those of the kubelets before it.
    pub fn pods(&self) -> &Pods {
        &self.pods
    }

    /// What it does with registrations from now on.
    ///
    /// # Panics
    /// Not after this.
    pub fn be(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    /// Drops its connections to plugins, and lives on.
    ///
    /// # Panics
    /// Not on its own account.
    pub fn lose_connections(&self) {
        for connection in self.connections.lock().unwrap().drain(..) {
            connection.abort();
        }
    }

    /// The next thing seen.
    ///
    /// # Panics
    /// Nothing was, for long.
    pub async fn next(&mut self) -> Seen {
        bounded(self.seen.recv()).await.unwrap()
    }

    /// Whether nothing more was seen for a moment.
    pub async fn is_quiet(&mut self) -> bool {
        tokio::time::timeout(std::time::Duration::from_millis(500), self.seen.recv())
            .await
            .is_err()
    }

    /// A client of the plugin at `socket`, as for calls at the start of a container.
    pub async fn plugin(&self, socket: &str) -> DevicePluginClient<Channel> {
        DevicePluginClient::new(crate::process::connect(&self.folder.join(socket)).await)
    }
}

struct Service {
    folder: PathBuf,
    seen: mpsc::UnboundedSender<Seen>,
    mood: Arc<Mutex<Mood>>,
    connected: Arc<Mutex<BTreeSet<String>>>,
    connections: Arc<Mutex<Vec<tokio::task::AbortHandle>>>,
    held: watch::Sender<BTreeMap<String, Devices>>,
}

/// Notes the end of a stream, however it ends.
struct Connected {
    resource: String,
    socket: String,
    held: watch::Sender<BTreeMap<String, Devices>>,
    connected: Arc<Mutex<BTreeSet<String>>>,
    seen: mpsc::UnboundedSender<Seen>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.connected.lock().unwrap().remove(&self.socket);
        // Held for unhealthy; after five minutes, which no test waits for, forgotten.
        self.held.send_modify(|held| {
            if let Some(devices) = held.get_mut(&self.resource)
                && devices.socket == self.socket
            {
                devices
                    .list
                    .values_mut()
                    .for_each(|healthy| *healthy = false);
            }
        });
        let _ = self.seen.send(Seen::Ended);
    }
}

#[tonic::async_trait]
impl Registration for Service {
    async fn register(
        &self,
        request: Request<wire::RegisterRequest>,
    ) -> Result<Response<wire::Empty>, Status> {
        let request = request.into_inner();
        let socket = self.folder.join(&request.endpoint);
        let refuse = |reason: String| {
            self.seen.send(Seen::Refused).unwrap();
            Err(Status::unknown(reason))
        };
        if request.version != "v1beta1" {
            return refuse(format!("version {:?} is not supported", request.version));
        }
        let mood = *self.mood.lock().unwrap();
        if let Mood::Refuses(reason) = mood {
            return refuse(reason.to_owned());
        }
        let stuck = matches!(mood, Mood::StuckOn(name) if name == request.endpoint);
        if stuck || self.connected.lock().unwrap().contains(&request.endpoint) {
            return refuse(format!(
                "device plugin already connected: {}",
                socket.display()
            ));
        }
        // Dialled before the answer: a plugin that registers before it serves fails here.
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
        let Ok(channel) = endpoint.connect().await else {
            return refuse(format!(
                "failed to dial device plugin: {}",
                socket.display()
            ));
        };
        let mut plugin = DevicePluginClient::new(channel);
        let options = plugin
            .get_device_plugin_options(wire::Empty {})
            .await?
            .into_inner();
        self.connected
            .lock()
            .unwrap()
            .insert(request.endpoint.clone());
        let connected = Connected {
            resource: request.resource_name.clone(),
            held: self.held.clone(),
            socket: request.endpoint.clone(),
            connected: self.connected.clone(),
            seen: self.seen.clone(),
        };
        self.seen
            .send(Seen::Registered {
                resource: request.resource_name,
                socket: request.endpoint,
                options,
            })
            .unwrap();
        let task = tokio::spawn(async move {
            let mut stream = plugin
                .list_and_watch(wire::Empty {})
                .await
                .unwrap()
                .into_inner();
            while let Ok(Some(list)) = stream.message().await {
                connected.held.send_modify(|held| {
                    held.insert(
                        connected.resource.clone(),
                        devices(&connected.socket, &list),
                    );
                });
                let _ = connected.seen.send(Seen::List(summary(&list)));
            }
        });
        self.connections.lock().unwrap().push(task.abort_handle());
        Ok(Response::new(wire::Empty {}))
    }
}

fn summary(list: &wire::ListAndWatchResponse) -> Vec<String> {
    let device = |device: &wire::Device| match device.health.as_str() {
        "Healthy" => device.id.clone(),
        "Unhealthy" => format!("!{}", device.id),
        other => panic!("no such health: {other:?}"),
    };
    list.devices.iter().map(device).collect()
}

fn devices(socket: &str, list: &wire::ListAndWatchResponse) -> Devices {
    let topology = |device: &wire::Device| {
        let nodes = &device.topology.as_ref()?.nodes;
        Some((
            device.id.clone(),
            nodes.iter().map(|node| node.id).collect(),
        ))
    };
    let health = |device: &wire::Device| (device.id.clone(), device.health == "Healthy");
    Devices {
        socket: socket.to_owned(),
        list: list.devices.iter().map(health).collect(),
        numa: list.devices.iter().filter_map(topology).collect(),
    }
}
