//! The kubelet's device manager, as far as plugins see it: what kubelet 1.37 does at start, at `Register`, and when a
//! plugin's connection ends.

use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kubelet::api::device_plugin as wire;
use kubelet::api::device_plugin::device_plugin_client::DevicePluginClient;
use kubelet::api::device_plugin::registration_server::{Registration, RegistrationServer};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use crate::{Process, bounded};

/// What a plugin did to the kubelet.
#[derive(Debug, PartialEq)]
pub(crate) enum Seen {
    /// It called, with this resource and socket; and the options that it gave when asked.
    Registered {
        resource: String,
        socket: String,
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
pub(crate) enum Mood {
    /// What it should.
    Takes,
    /// Refuses, with this text.
    Refuses(&'static str),
    /// Holds the socket of this name for one that it is connected to.
    StuckOn(&'static str),
}

/// A kubelet that runs; dropping it kills it.
pub(crate) struct DeviceManager {
    _process: Process,
    seen: mpsc::UnboundedReceiver<Seen>,
    mood: Arc<Mutex<Mood>>,
    connections: Arc<Mutex<Vec<tokio::task::AbortHandle>>>,
    folder: PathBuf,
}

impl DeviceManager {
    /// Starts in `folder`: deletes the sockets there, and makes its own.
    pub(crate) fn start(folder: &Path) -> Self {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_socket() {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
        let listener = std::os::unix::net::UnixListener::bind(folder.join("kubelet.sock")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (sender, seen) = mpsc::unbounded_channel();
        let mood = Arc::new(Mutex::new(Mood::Takes));
        let connections = Arc::new(Mutex::new(Vec::new()));
        let service = Service {
            folder: folder.to_owned(),
            seen: sender,
            mood: mood.clone(),
            connected: Arc::default(),
            connections: connections.clone(),
        };
        let process = Process::start(async move {
            let listener = UnixListener::from_std(listener).unwrap();
            let incoming = futures::stream::unfold(listener, |listener| async {
                let stream = listener.accept().await.map(|(stream, _)| stream);
                Some((stream, listener))
            });
            Server::builder()
                .add_service(RegistrationServer::new(service))
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        });
        Self {
            _process: process,
            seen,
            mood,
            connections,
            folder: folder.to_owned(),
        }
    }

    pub(crate) fn be(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    /// Drops its connections to plugins, and lives on.
    pub(crate) fn lose_connections(&self) {
        for connection in self.connections.lock().unwrap().drain(..) {
            connection.abort();
        }
    }

    /// The next thing seen.
    pub(crate) async fn next(&mut self) -> Seen {
        bounded(self.seen.recv()).await.unwrap()
    }

    /// Whether nothing more was seen for a moment.
    pub(crate) async fn is_quiet(&mut self) -> bool {
        tokio::time::timeout(std::time::Duration::from_millis(500), self.seen.recv())
            .await
            .is_err()
    }

    /// A client of the plugin at `socket`, as for calls at the start of a container.
    pub(crate) async fn plugin(&self, socket: &str) -> DevicePluginClient<Channel> {
        DevicePluginClient::new(crate::connect(&self.folder.join(socket)).await)
    }
}

struct Service {
    folder: PathBuf,
    seen: mpsc::UnboundedSender<Seen>,
    mood: Arc<Mutex<Mood>>,
    connected: Arc<Mutex<BTreeSet<String>>>,
    connections: Arc<Mutex<Vec<tokio::task::AbortHandle>>>,
}

/// Notes the end of a stream, however it ends.
struct Connected {
    socket: String,
    connected: Arc<Mutex<BTreeSet<String>>>,
    seen: mpsc::UnboundedSender<Seen>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.connected.lock().unwrap().remove(&self.socket);
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
        let stuck = mood == Mood::StuckOn("any")
            || matches!(mood, Mood::StuckOn(name) if name == request.endpoint);
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
