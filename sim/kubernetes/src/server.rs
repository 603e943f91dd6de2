//! The server: options, the port, connections, and the handle that tests and the demo hold.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::Value;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::api::{Api, new_namespace};
use crate::error::ApiError;
use crate::faults::Faults;
use crate::review::Reviews;
use crate::routes;
use crate::store::Key;
use crate::verbs::served;

/// How long running requests may take to end at shutdown.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);
/// Between tries to get the port back after an absence, and how many there are.
const REBIND_PAUSE: Duration = Duration::from_millis(50);
const REBIND_TRIES: u32 = 100;
/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// How a server is set up. The default suits tests.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// When set, requests without this bearer token are answered with 401.
    pub token: Option<String>,
    /// What `/version` says.
    pub version: String,
    /// How many changes of each resource watches may go back; each holds the object before and after.
    pub history: usize,
    /// How often a watch that asked for bookmarks gets one; the real server takes about a minute.
    pub bookmark_interval: Duration,
    /// How long a deleted pod that runs on a node lives on, at most its grace. There is no kubelet: with `None` it
    /// stays until it is deleted with a grace of 0.
    pub pod_stop_time: Option<Duration>,
    /// How token and access reviews are answered.
    pub reviews: Reviews,
    /// Objects that are there from the start.
    pub objects: Vec<Value>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            token: None,
            version: "v1.34.0".to_owned(),
            history: 1_000,
            bookmark_interval: Duration::from_secs(60),
            pod_stop_time: Some(Duration::from_millis(200)),
            reviews: Reviews::default(),
            objects: Vec::new(),
        }
    }
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The port cannot be had.
    #[error("cannot listen on {address}: {source}; is the port taken?")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
    /// An object to start with is not valid.
    #[error("cannot store a seeded object: {0}")]
    Seed(#[from] ApiError),
}

/// One request that was answered, for tests that count them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// HTTP method.
    pub method: String,
    /// Path without the query.
    pub path: String,
    /// The query as sent.
    pub query: String,
    /// HTTP status of the answer; of its start, for a watch.
    pub status: u16,
}

/// A running API server. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct Server {
    api: Arc<Api>,
    address: SocketAddr,
    task: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server with the namespaces every cluster has.
    ///
    /// # Errors
    /// The port cannot be had, or an object in the options is not valid.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let address = options.listen;
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| Error::Listen { address, source })?;
        let address = listener
            .local_addr()
            .map_err(|source| Error::Listen { address, source })?;
        let objects = options.objects.clone();
        let api = Arc::new(Api::new(options));
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            api.store.write(|state| {
                state.put(
                    "namespaces.",
                    (String::new(), name.to_owned()),
                    new_namespace(name),
                );
            });
        }
        api.seed(objects)?;
        let task = tokio::spawn(accept(Arc::clone(&api), listener, address));
        Ok(Self {
            api,
            address,
            task: Some(task),
        })
    }

    /// Base URL, such as `http://127.0.0.1:6443`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A kubeconfig, as YAML, that points at this server.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        let user = match &self.api.options.token {
            Some(token) => format!("{{token: {}}}", Value::from(token.as_str())),
            None => "{}".to_owned(),
        };
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: lathe\nclusters:\n- name: lathe\n  cluster: {{server: \"{}\"}}\n\
             contexts:\n- name: lathe\n  context: {{cluster: lathe, user: lathe, namespace: default}}\nusers:\n- name: lathe\n  user: {user}\n",
            self.url()
        )
    }

    /// Stores objects as they are, status included, over what is there. Missing namespaces are made.
    ///
    /// # Errors
    /// An object's kind is not served, or the object is not valid; those before it are stored.
    pub fn seed(&self, objects: impl IntoIterator<Item = Value>) -> Result<(), ApiError> {
        self.api.seed(objects.into_iter().collect())
    }

    /// An object as it is stored now; `namespace` is empty for cluster-scoped kinds.
    #[must_use]
    pub fn object(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Option<Value> {
        let resource = self.api.registry.of_kind(api_version, kind)?;
        let key: Key = (namespace.to_owned(), name.to_owned());
        let state = self.api.store.read();
        state
            .get(&resource.storage, &key)
            .map(|object| served(&resource, object))
    }

    /// All objects of a kind, in the order of namespace and name.
    #[must_use]
    pub fn objects(&self, api_version: &str, kind: &str) -> Vec<Value> {
        let Some(resource) = self.api.registry.of_kind(api_version, kind) else {
            return Vec::new();
        };
        let state = self.api.store.read();
        state
            .shelf(&resource.storage)
            .into_iter()
            .flat_map(|shelf| shelf.objects.values())
            .map(|object| served(&resource, object))
            .collect()
    }

    /// The resource version of the last write: unchanged when nothing was written.
    #[must_use]
    pub fn resource_version(&self) -> u64 {
        self.api.store.read().version
    }

    /// The requests so far, oldest first, at most the last 10 000.
    #[must_use]
    pub fn requests(&self) -> Vec<Record> {
        self.api.records()
    }

    /// The faults of this server.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.api.faults.clone()
    }

    /// Stops the server: watches end, running requests get two seconds.
    pub async fn shutdown(mut self) {
        self.api.stop.cancel();
        if let Some(task) = self.task.take() {
            // The task only ends by itself; a join error would be a panic that was already reported.
            task.await.ok();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.api.stop.cancel();
    }
}

/// Takes connections until the stop signal; closes the port while a fault says so.
async fn accept(api: Arc<Api>, listener: TcpListener, address: SocketAddr) {
    let mut absences = api.faults.absences();
    let mut listener = Some(listener);
    while let Some(open) = listener.take() {
        let mut connections = JoinSet::new();
        // Ends the connections of this listener, gracefully.
        let end = api.stop.child_token();
        let absence = loop {
            tokio::select! {
                () = api.stop.cancelled() => break None,
                changed = absences.changed() => {
                    if changed.is_err() { break None; }
                    break *absences.borrow_and_update();
                }
                accepted = open.accept() => match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(serve(Arc::clone(&api), stream, end.clone()));
                    }
                    Err(error) => {
                        tracing::debug!(%error, "cannot accept a connection");
                        tokio::time::sleep(REBIND_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        };
        drop(open);
        match absence {
            None => {
                let ended = async { while connections.join_next().await.is_some() {} };
                if tokio::time::timeout(SHUTDOWN_LIMIT, ended).await.is_err() {
                    tracing::debug!("requests still ran at shutdown");
                }
            }
            Some(time) => {
                // Bound and not listening, it refuses connections and keeps the port from whoever asks for a free one.
                let held = hold(address);
                // A server that went away breaks what was running.
                connections.shutdown().await;
                tokio::select! {
                    () = api.stop.cancelled() => {}
                    () = tokio::time::sleep(time) => {}
                }
                listener = match held.and_then(|socket| socket.listen(BACKLOG)) {
                    Ok(listener) => Some(listener),
                    Err(_) => rebind(address, &api.stop).await,
                };
            }
        }
    }
}

/// Takes a port without listening on it.
fn hold(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Gets the same port again.
async fn rebind(address: SocketAddr, stop: &CancellationToken) -> Option<TcpListener> {
    for _ in 0..REBIND_TRIES {
        if stop.is_cancelled() {
            return None;
        }
        let bound = hold(address).and_then(|socket| socket.listen(BACKLOG));
        match bound {
            Ok(listener) => return Some(listener),
            Err(error) => tracing::debug!(%error, "the port is not free yet"),
        }
        tokio::time::sleep(REBIND_PAUSE).await;
    }
    tracing::error!(%address, "cannot listen again: the port was taken");
    None
}

/// Serves one connection, HTTP/1.1 or HTTP/2.
async fn serve(api: Arc<Api>, stream: TcpStream, end: CancellationToken) {
    // Watch events are small and must not wait for each other.
    stream.set_nodelay(true).ok();
    let service = service_fn(move |request| routes::handle(Arc::clone(&api), request));
    let builder = auto::Builder::new(TokioExecutor::new());
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        result = connection.as_mut() => log_end(result),
        () = end.cancelled() => {
            connection.as_mut().graceful_shutdown();
            log_end(connection.await);
        }
    }
}

fn log_end(result: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = result {
        tracing::debug!(%error, "a connection broke");
    }
}
