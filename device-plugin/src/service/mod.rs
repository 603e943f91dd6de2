//! The device plugin at work: follows hardware, health, configuration and the Node, and keeps the kubelet told.
//!
//! One loop (`worker`) takes in every change and puts the node together anew from what is known: resources and names from the
//! configuration, health from [`crate::health`], what lies ready for containers from [`cdi`]. The kubelet is sent a list only
//! when it differs. Each resource has a server of its own (`server`, decided by the state machine in `plugins`), so that one
//! that fails restarts no other. Calls of the kubelet are answered from memory (`resource`, `shared`): they wait neither for the
//! driver nor for the file system.

mod choice;
mod config;
mod looks;
mod messages;
mod metrics;
mod plugins;
mod prepare;
mod preparer;
mod readiness;
mod report;
mod resource;
mod server;
mod settings;
mod shared;
mod view;
mod work;
mod worker;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cluster::node::Node;
use cluster::serve::{self, Reply, Routes};
use cluster::watched::WatchedFile;
use kubelet::Folder;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use config::{Cluster, Config, ServiceError, Source};
pub(crate) use settings::Settings;
pub use settings::SettingsError;
pub(crate) use worker::MIG_STATE;

use crate::allocation::Book;
use crate::hardware::{Hardware, Inventory};
use crate::health::{Health, Policy};
use crate::mps;
pub(crate) use choice::Choice;
use looks::Looks;
use metrics::Metrics;
use preparer::Preparer;
use readiness::Readiness;
use report::Reporter;
use server::Server;
use shared::Shared;
use worker::{Sources, Worker};

/// How long a driver that must be there may take to open. Loading it on an idle node takes seconds.
const INIT_LIMIT: Duration = Duration::from_secs(60);

/// A device plugin that has what it needs to begin.
pub struct Service {
    config: Config,
    session: Arc<nvml::Session>,
    cluster: Option<Cluster>,
    node: Option<Node>,
    choice: Choice,
    policy: Policy,
    policy_file: Option<WatchedFile>,
    folder: Folder,
    shared: Arc<Shared>,
    web: Option<serve::Server>,
}

impl Service {
    /// Reads the configuration and takes the port.
    ///
    /// Without a `cluster` everything works but what needs one: a configuration by label, Events, the condition.
    ///
    /// # Errors
    /// What cannot be used, and why.
    pub async fn open(
        config: Config,
        session: Arc<nvml::Session>,
        cluster: Option<Cluster>,
    ) -> Result<Self, ServiceError> {
        // Watched before it is read, so that no change falls between.
        let policy_file = config.health_policy.as_deref().map(WatchedFile::new);
        let policy = config.policy()?;
        let node = cluster
            .as_ref()
            .map(|cluster| Node::watch(cluster.client.clone(), &cluster.node));
        let choice = Choice::start(&config, node.as_ref())?;
        let web = match &config.metrics_address {
            Some(address) => Some(serve::Server::bind(address, serve::Limits::default()).await?),
            None => None,
        };
        Ok(Self {
            folder: Folder::open(&config.device_plugins).await?,
            shared: Arc::new(Shared::new(
                Metrics::new()?,
                Book::new(&config.kubelet, Arc::default())?.with_wait(config.list_wait),
            )),
            config,
            session,
            cluster,
            node,
            choice,
            policy,
            policy_file,
            web,
        })
    }

    /// Where metrics and probes are served.
    pub fn address(&self) -> Option<SocketAddr> {
        self.web.as_ref()?.address().ok()
    }

    /// Serves until `shutdown`; reads the configuration again when told to by `reload`.
    ///
    /// An absent driver, kubelet, API server or Node is waited for.
    ///
    /// # Errors
    /// There is no driver, and the flags say that this is an error; or the system gives no thread.
    pub async fn run(
        self,
        reload: &Notify,
        shutdown: CancellationToken,
    ) -> Result<(), ServiceError> {
        let settings = self.choice.in_force();
        let required = settings.and_then(|settings| settings.file.flags.fail_on_init_error);
        if required == Some(true) {
            self.require_driver(&shutdown).await?;
        }
        let readiness = Arc::new(Readiness::default());
        let web = self.web.map(|web| {
            let routes = routes(self.shared.clone(), readiness.clone());
            tokio::spawn(web.run(routes, shutdown.clone()))
        });
        let reporter = Reporter::start(
            self.cluster.as_ref(),
            self.node.as_ref(),
            self.config.condition,
        );
        let (book, until) = (self.shared.clone(), shutdown.clone());
        tokio::spawn(async move { book.book.run(until).await });
        let (hardware, events) =
            Hardware::start(self.session.clone()).map_err(ServiceError::Hardware)?;
        let worker = Worker {
            server: Server::new(self.folder, self.shared.clone()),
            looks: Looks::new(self.session, self.config.look_wait),
            shared: self.shared,
            readiness,
            reporter,
            choice: self.choice,
            policy_file: self.policy_file,
            node: self.node,
            sources: Sources {
                inventory: hardware.inventory(),
                topology: hardware.topology_changes(),
                events,
            },
            hardware: Arc::new(hardware),
            paused: None,
            inventory: Arc::new(Inventory::default()),
            known: Vec::new(),
            health: Health::new(self.policy),
            preparer: Preparer::default(),
            specs: None,
            mps: RefCell::new(mps::Watch::new(mps::Root::new(&self.config.mps_root))),
            driver_version: None,
            without_gpus: false,
            lists: BTreeMap::new(),
            config: self.config,
        };
        worker.run(reload, &shutdown).await;
        if let Some(web) = web {
            // It bounds itself; a panic in it was reported already.
            let _ = web.await;
        }
        Ok(())
    }

    async fn require_driver(&self, shutdown: &CancellationToken) -> Result<(), ServiceError> {
        let session = self.session.clone();
        let open = work::on_thread("driver", INIT_LIMIT, move || session.driver());
        tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            opened = open => match opened {
                Some(Err(error)) => Err(ServiceError::NoDriver(error)),
                Some(Ok(_)) | None => Ok(()),
            }
        }
    }
}

fn routes(shared: Arc<Shared>, readiness: Arc<Readiness>) -> Routes {
    let page = shared.clone();
    Routes::new()
        .get("/metrics", move || {
            std::future::ready(Reply::metrics(page.metrics.page()))
        })
        // That it answers says that the one thread there is goes round.
        .get("/healthz", || std::future::ready(Reply::probe(Ok(()))))
        .get("/readyz", move || {
            let unregistered = shared.unregistered();
            let reason = readiness.reason().or_else(|| {
                unregistered.map(|name| format!("the kubelet does not know {name} yet"))
            });
            std::future::ready(Reply::probe(reason.map_or(Ok(()), Err)))
        })
}
