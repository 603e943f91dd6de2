//! The loop that ties all together: whatever changes, the node is put together anew and the kubelet is shown what differs.

mod offer;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::node::{Node, Observed};
use cluster::watched::{WatchedFile, WatchedFolder};
use configuration::plugin::ResourceName;
use kubelet::device_plugin::Device as ListedDevice;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::choice::Choice;
use super::config::Config;
use super::looks::{Answer, Looks};
use super::preparer::Preparer;
use super::readiness::Readiness;
use super::report::Reporter;
use super::server::{Failed, Server};
use super::shared::Shared;
use crate::hardware::{Driver, Hardware, Inventory, bus};
use crate::health::{Health, Notice, Observation};
use crate::mps;
use crate::resources::Gpu;

/// The MIG manager's label, and its value while a change of the layout runs.
pub(crate) const MIG_STATE: (&str, &str) = ("nvidia.com/mig.config.state", "pending");

/// A MIG manager that does not come back must not keep GPUs from being used for ever.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Between two looks at what is due while answers are waited for.
const TURN: Duration = Duration::from_secs(1);

/// What the hardware tells.
pub(super) struct Sources {
    pub(super) inventory: watch::Receiver<Arc<Inventory>>,
    pub(super) topology: watch::Receiver<Arc<gpu::Topology>>,
    pub(super) events: mpsc::Receiver<nvml::Event>,
}

pub(super) struct Worker {
    pub(super) config: Config,
    pub(super) shared: Arc<Shared>,
    pub(super) readiness: Arc<Readiness>,
    pub(super) reporter: Reporter,
    pub(super) server: Server,
    pub(super) choice: Choice,
    pub(super) policy_file: Option<WatchedFile>,
    pub(super) node: Option<Node>,
    pub(super) hardware: Arc<Hardware>,
    pub(super) sources: Sources,
    /// Until when the GPUs are left alone for the MIG manager, if they are.
    pub(super) paused: Option<Instant>,
    pub(super) inventory: Arc<Inventory>,
    /// The GPUs that the book was told of.
    pub(super) known: Vec<Gpu>,
    pub(super) health: Health,
    pub(super) preparer: Preparer,
    /// The folder of CDI specs, while there are any.
    pub(super) specs: Option<WatchedFolder>,
    /// Daemons of shared GPUs.
    pub(super) mps: RefCell<mps::Watch>,
    /// The driver's, when it answered last.
    pub(super) driver_version: Option<String>,
    /// There is no driver, and no GPU that could have one: nothing is amiss.
    pub(super) without_gpus: bool,
    pub(super) lists: BTreeMap<ResourceName, Vec<ListedDevice>>,
    pub(super) looks: Looks,
}

impl Worker {
    pub(super) async fn run(mut self, reload: &Notify, shutdown: &CancellationToken) {
        let mut labels = self.node.as_ref().map(Node::subscribe);
        if let Some(labels) = &mut labels {
            labels.mark_changed();
        }
        self.configured(true);
        loop {
            self.look_at_gpus();
            if self.looks.is_settled() {
                self.put_together().await;
            }
            let due = self.due();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Ok(()) = self.sources.inventory.changed() => self.inventory_changed(),
                Some(event) = self.sources.events.recv() => self.happened(&event),
                Ok(()) = self.sources.topology.changed() => {
                    let topology = self.sources.topology.borrow_and_update().clone();
                    self.shared.update(|current| current.topology = topology);
                }
                Some(answer) = self.looks.answer() => self.answered(answer),
                Some((resource, failed)) = self.server.ended() => self.ended(resource, failed),
                () = self.choice.changed() => self.reconfigure(),
                () = file_changed(&mut self.policy_file) => self.policy_changed(),
                () = reload.notified() => {
                    tracing::info!("asked to read the configuration again");
                    self.policy_changed();
                    self.reconfigure();
                }
                () = node_changed(&mut labels) => self.node_changed(),
                () = specs_changed(&mut self.specs) => self.preparer.look_again(),
                () = self.mps.get_mut().changed() => {}
                () = sleep_until(due) => self.server.tick(&self.lists, Instant::now()),
            }
        }
        self.server.close().await;
        self.reporter.finish().await;
    }

    fn due(&self) -> Option<Instant> {
        let now = Instant::now();
        // GPUs that are due now were asked, or are left alone; others may become due before those answer.
        let health = self.health.due();
        let health = health.map(|due| if due > now { due } else { now + TURN });
        let prepare = self.preparer.due().filter(|_| self.looks.is_settled());
        let others = [prepare, self.server.due(), self.looks.due()];
        others.into_iter().chain([health]).flatten().min()
    }

    fn inventory_changed(&mut self) {
        let now = self.sources.inventory.borrow_and_update().clone();
        let former = std::mem::replace(&mut self.inventory, now);
        let up = matches!(self.inventory.driver(), Driver::Present { .. });
        self.shared.metrics.driver_up(up);
        if up && self.inventory.driver() != former.driver() {
            // A driver that was installed anew may have other files under the same version.
            self.preparer.look_again();
        }
        let never =
            matches!(self.inventory.driver(), Driver::Gone { .. }) && self.driver_version.is_none();
        let without_gpus = never && !bus::has_gpu(&self.config.root);
        if without_gpus && !self.without_gpus {
            tracing::info!("there is no NVIDIA GPU on this node; waiting for one");
        }
        self.without_gpus = without_gpus;
        if without_gpus {
            return;
        }
        let observation = Observation::Inventory(&self.inventory);
        let notices = self.health.observe(observation, Instant::now());
        self.tell(notices);
    }

    fn happened(&mut self, event: &nvml::Event) {
        let observation = Observation::Event {
            gpu: &event.gpu,
            instance: event.gpu_instance.zip(event.compute_instance),
            kind: &event.kind,
        };
        let notices = self.health.observe(observation, Instant::now());
        self.tell(notices);
    }

    fn answered(&mut self, answer: Answer) {
        let Answer {
            gpu,
            asked,
            readings,
        } = answer;
        if readings.is_none() {
            // A driver that was shut meanwhile says nothing of the GPU; it is asked again when it may be.
            if self.is_paused() {
                return;
            }
            self.hardware.doubt(&gpu);
        }
        let observation = Observation::Looked {
            gpu: &gpu,
            asked,
            readings,
        };
        let notices = self.health.observe(observation, Instant::now());
        self.tell(notices);
    }

    fn is_paused(&self) -> bool {
        self.paused.is_some_and(|until| Instant::now() < until)
    }

    fn tell(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            let metrics = &self.shared.metrics;
            metrics.health_changed(notice.cause.key(), notice.over);
            self.reporter.health(notice);
        }
    }

    /// Asks the GPUs that are due how they are.
    fn look_at_gpus(&mut self) {
        if self.is_paused() {
            return;
        }
        for gpu in self.health.to_look_at(Instant::now()) {
            self.looks.ask(gpu);
        }
    }

    /// While the MIG manager changes the layout, nothing of ours may hold the GPUs.
    fn node_changed(&mut self) {
        self.reporter.node_changed();
        let Some(Observed::Present(node)) = self.node.as_ref().map(Node::latest) else {
            return;
        };
        let state = node.labels.get(MIG_STATE.0).map(String::as_str);
        let pause = state == Some(MIG_STATE.1);
        if pause == self.paused.is_some() {
            return;
        }
        self.paused = pause.then(|| Instant::now() + LONGEST_PAUSE);
        if pause {
            tracing::info!("leaving the GPUs alone: the MIG manager is at work");
            let paused = self.hardware.pause(LONGEST_PAUSE);
            // Waits for driver calls that are under way.
            tokio::spawn(async move {
                if let Err(error) = paused.await {
                    tracing::warn!(%error, "the GPUs cannot be left alone");
                }
            });
        } else {
            self.hardware.resume();
        }
    }

    /// A policy that cannot be used changes nothing.
    fn policy_changed(&mut self) {
        match self.config.policy() {
            Ok(policy) => {
                let notices = self.health.set_policy(policy, Instant::now());
                self.tell(notices);
            }
            Err(error) => self.reporter.policy_refused(&error),
        }
    }

    fn reconfigure(&mut self) {
        let is_new = self.choice.look(&self.config);
        self.configured(is_new);
    }

    fn configured(&mut self, is_new: bool) {
        let metrics = &self.shared.metrics;
        if is_new && self.choice.in_force().is_some() {
            tracing::info!("a configuration came into force");
            metrics.config_changed();
        } else {
            metrics.config_is_good(self.choice.trouble().is_none());
        }
        self.reporter.configuration(&self.choice);
    }

    fn ended(&mut self, resource: ResourceName, failed: Option<Failed>) {
        if let Some(failed) = failed {
            self.reporter.not_served(failed);
        }
        self.server.after(resource, &self.lists, Instant::now());
    }
}

async fn node_changed(labels: &mut Option<watch::Receiver<Observed>>) {
    if let Some(labels) = labels
        && labels.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

async fn file_changed(file: &mut Option<WatchedFile>) {
    match file {
        Some(file) => file.changed().await,
        None => std::future::pending().await,
    }
}

/// Somebody changed something in the folder of CDI specs, we perhaps.
async fn specs_changed(specs: &mut Option<WatchedFolder>) {
    match specs {
        Some(folder) => folder.settled().await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}
