//! Runs what [`Plugins`] decides: one task per resource, each with a socket of its own.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use configuration::plugin::ResourceName;
use kubelet::Folder;
use kubelet::device_plugin::{Config, Device, Plugin};
use kubelet::registration::Status;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::plugins::{Action, Input, Plugins};
use super::resource::Served;
use super::shared::Shared;

/// The resources that are served.
pub(super) struct Server {
    folder: Folder,
    shared: Arc<Shared>,
    plugins: Plugins,
    running: BTreeMap<ResourceName, Running>,
    tasks: JoinSet<Result<(), kubelet::Error>>,
    names: HashMap<tokio::task::Id, ResourceName>,
}

struct Running {
    list: watch::Sender<Vec<Device>>,
    end: CancellationToken,
}

/// A resource whose socket failed; it is opened again.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) resource: ResourceName,
    pub(super) reason: String,
}

impl Server {
    pub(super) fn new(folder: Folder, shared: Arc<Shared>) -> Self {
        Self {
            folder,
            shared,
            plugins: Plugins::default(),
            running: BTreeMap::new(),
            tasks: JoinSet::new(),
            names: HashMap::new(),
        }
    }

    /// When to call [`Server::tick`].
    pub(super) fn due(&self) -> Option<Instant> {
        self.plugins.due()
    }

    /// Shows the kubelet these lists, and of other resources nothing.
    pub(super) fn show(&mut self, lists: &BTreeMap<ResourceName, Vec<Device>>, now: Instant) {
        let offered: BTreeSet<_> = lists.keys().cloned().collect();
        let actions = self.plugins.step(Input::Offered(offered), now);
        self.carry_out(actions, lists);
        for (name, list) in lists {
            if let Some(running) = self.running.get(name) {
                running.set(list.clone());
            }
        }
    }

    /// Time passed.
    pub(super) fn tick(&mut self, lists: &BTreeMap<ResourceName, Vec<Device>>, now: Instant) {
        let actions = self.plugins.step(Input::Time, now);
        self.carry_out(actions, lists);
    }

    /// Waits until a resource's task ends. Says so when that was not asked for.
    pub(super) async fn ended(&mut self) -> Option<(ResourceName, Option<Failed>)> {
        let Some(ended) = self.tasks.join_next_with_id().await else {
            return std::future::pending().await;
        };
        let (id, reason) = match ended {
            Ok((id, Ok(()))) => (id, None),
            Ok((id, Err(error))) => (id, Some(error.to_string())),
            Err(error) => (error.id(), Some(error.to_string())),
        };
        let resource = self.names.remove(&id)?;
        self.running.remove(&resource);
        self.shared.registered(&resource, false);
        let failed = reason.map(|reason| Failed {
            resource: resource.clone(),
            reason,
        });
        Some((resource, failed))
    }

    /// What follows from the end of a resource's task.
    pub(super) fn after(
        &mut self,
        ended: ResourceName,
        lists: &BTreeMap<ResourceName, Vec<Device>>,
        now: Instant,
    ) {
        let actions = self.plugins.step(Input::Ended(ended), now);
        self.carry_out(actions, lists);
    }

    /// Removes all sockets. The lists stay as they are: pods keep what they have while the plugin is replaced.
    pub(super) async fn close(mut self) {
        for running in self.running.values() {
            running.end.cancel();
        }
        while self.tasks.join_next().await.is_some() {}
    }

    fn carry_out(&mut self, actions: Vec<Action>, lists: &BTreeMap<ResourceName, Vec<Device>>) {
        self.shared.serving(self.plugins.names());
        for action in actions {
            match action {
                Action::Open(name) => {
                    let list = lists.get(&name).cloned().unwrap_or_default();
                    self.open(name, list);
                }
                Action::Empty(name) => {
                    tracing::info!(resource = %name, "the node has none of it any more");
                    self.shared.metrics.devices(name.as_str(), 0, 0);
                    if let Some(running) = self.running.get(&name) {
                        running.set(Vec::new());
                    }
                }
                Action::Close(name) => {
                    if let Some(running) = self.running.get(&name) {
                        running.end.cancel();
                    }
                }
            }
        }
    }

    fn open(&mut self, name: ResourceName, list: Vec<Device>) {
        tracing::info!(resource = %name, devices = list.len(), "serving");
        let config = Config {
            folder: self.folder.clone(),
            socket: format!("nvidia-{}.sock", name.base()),
            resource: name.to_string(),
        };
        let (list, receiver) = watch::channel(list);
        let end = CancellationToken::new();
        let served = Served::new(name.clone(), receiver, self.shared.clone());
        let task = serve(
            name.clone(),
            config,
            served,
            self.shared.clone(),
            end.clone(),
        );
        let id = self.tasks.spawn(task).id();
        self.names.insert(id, name.clone());
        self.running.insert(name, Running { list, end });
    }
}

impl Running {
    /// Sends a list, unless it is the one that was sent last.
    fn set(&self, list: Vec<Device>) {
        self.list.send_if_modified(|old| {
            let is_new = *old != list;
            *old = list;
            is_new
        });
    }
}

async fn serve(
    name: ResourceName,
    config: Config,
    served: Served,
    shared: Arc<Shared>,
    end: CancellationToken,
) -> Result<(), kubelet::Error> {
    let plugin = Plugin::open(config, served).await?;
    let mut status = plugin.status();
    let tell = async {
        loop {
            let is = *status.borrow_and_update() == Status::Registered;
            shared.registered(&name, is);
            if status.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    };
    tokio::select! {
        ended = plugin.run(end) => ended,
        () = tell => Ok(()),
    }
}
