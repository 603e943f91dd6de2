//! The loop that ties all together: whatever changes, the node is put together anew and the kubelet is shown what differs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cluster::events::Severity;
use cluster::node::{Condition, Node, Observed};
use cluster::watched::WatchedFile;
use cluster::watched::WatchedFolder;
use configuration::plugin::ResourceName;
use kubelet::device_plugin::Device as ListedDevice;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::choice::Choice;
use super::config::Config;
use super::prepare::{Prepared, Wanted};
use super::preparer::Preparer;
use super::report::Reporter;
use super::server::{Failed, Server};
use super::settings::Settings;
use super::shared::Shared;
use super::view::{View, view};
use super::work::on_thread;
use crate::hardware::{Driver, Hardware, Inventory, bus};
use crate::health::{
    self, EVENT_ACTION, EventPlace, Health, Notice, Observation, Readings, Verdict,
};
use crate::mps;
use crate::resources::{Device, Gpu};

/// A GPU that does not say how it is within this time is not waited for, and not offered until it does.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);

/// Longer than a driver call may take.
const LOOK_LIMIT: Duration = Duration::from_secs(60);

/// The MIG manager's label, and its value while a change of the layout runs.
pub(crate) const MIG_STATE: (&str, &str) = ("nvidia.com/mig.config.state", "pending");

/// A MIG manager that does not come back must not keep GPUs from being used for ever.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Between two looks at what is due while answers are waited for.
const TURN: Duration = Duration::from_secs(1);

/// What probes are answered: why the plugin is not ready, if it is not.
#[derive(Debug)]
pub(super) struct Readiness(Mutex<Option<String>>);

impl Default for Readiness {
    fn default() -> Self {
        Self(Mutex::new(Some(
            "nothing has been looked at yet".to_owned(),
        )))
    }
}

impl Readiness {
    pub(super) fn reason(&self) -> Option<String> {
        self.lock().clone()
    }

    fn set(&self, reason: Option<String>) {
        *self.lock() = reason;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the hardware tells.
pub(super) struct Sources {
    pub(super) inventory: watch::Receiver<Arc<Inventory>>,
    pub(super) topology: watch::Receiver<Arc<gpu::Topology>>,
    pub(super) events: mpsc::Receiver<nvml::Event>,
}

/// Answers of GPUs to the question how they are.
type Looked = (String, Option<Readings>);

pub(super) struct Worker {
    pub(super) config: Config,
    pub(super) session: Arc<nvml::Session>,
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
    /// GPUs that were asked how they are, and when.
    pub(super) looking: BTreeMap<String, Instant>,
    pub(super) looked: (
        mpsc::UnboundedSender<Looked>,
        mpsc::UnboundedReceiver<Looked>,
    ),
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
            if self.is_settled() {
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
                Some((gpu, readings)) = self.looked.1.recv() => {
                    let asked = self.looking.remove(&gpu).unwrap_or_else(Instant::now);
                    let observation = Observation::Looked { gpu: &gpu, asked, readings };
                    let notices = self.health.observe(observation, Instant::now());
                    self.tell(notices);
                }
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
        let given_up = self.looking.values().map(|since| *since + LOOK_PATIENCE);
        // One that is past was acted on already.
        let given_up = given_up.filter(|when| *when > now).min();
        // GPUs that are due now were asked, or are left alone; others may become due before those answer.
        let health = self.health.due();
        let health = health.map(|due| if due > now { due } else { now + TURN });
        let prepare = self.preparer.due().filter(|_| self.is_settled());
        let others = [prepare, self.server.due(), given_up];
        others.into_iter().chain([health]).flatten().min()
    }

    /// Whether nothing that is about to be known is worth waiting for.
    fn is_settled(&self) -> bool {
        self.looking
            .values()
            .all(|since| since.elapsed() >= LOOK_PATIENCE)
    }

    fn inventory_changed(&mut self) {
        self.inventory = self.sources.inventory.borrow_and_update().clone();
        let up = matches!(self.inventory.driver(), Driver::Present { .. });
        self.shared.metrics.driver_up(up);
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
        let place = EventPlace {
            gpu_uuid: event.gpu.uuid.as_deref(),
            instance: event.gpu_instance.zip(event.compute_instance),
        };
        let observation = Observation::Event {
            place,
            kind: &event.kind,
        };
        let notices = self.health.observe(observation, Instant::now());
        self.tell(notices);
    }

    fn tell(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            let severity = if notice.is_warning() {
                Severity::Warning
            } else {
                Severity::Normal
            };
            self.shared
                .metrics
                .health_changed(notice.cause.key(), notice.over);
            self.reporter
                .say(severity, notice.reason(), EVENT_ACTION, notice.text);
        }
    }

    /// Asks the GPUs that are due how they are, each on its own: one that hangs holds up no other.
    fn look_at_gpus(&mut self) {
        if self.paused.is_some_and(|until| Instant::now() < until) {
            return;
        }
        for gpu in self.health.to_look_at(Instant::now()) {
            if self.looking.contains_key(&gpu) {
                continue;
            }
            self.looking.insert(gpu.clone(), Instant::now());
            let (session, answers) = (self.session.clone(), self.looked.0.clone());
            tokio::spawn(async move {
                let uuid = gpu.clone();
                let ask = move || session.driver()?.find(&uuid)?.run(Readings::read);
                let readings = on_thread("health", LOOK_LIMIT, ask).await;
                // The loop may have ended.
                let _ = answers.send((gpu, readings.and_then(Result::ok)));
            });
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
            Err(error) => {
                let note = format!("{error}; the former health policy stays in force");
                self.reporter.say(
                    Severity::Warning,
                    "InvalidHealthPolicy",
                    "ReadHealthPolicy",
                    note,
                );
            }
        }
    }

    fn reconfigure(&mut self) {
        let is_new = self.choice.look(&self.config);
        self.configured(is_new);
    }

    fn configured(&mut self, is_new: bool) {
        let trouble = self.choice.trouble().map(str::to_owned);
        if is_new && self.choice.in_force().is_some() {
            tracing::info!("a configuration came into force");
            self.shared.metrics.config_changed();
        } else {
            self.shared.metrics.config_is_good(trouble.is_none());
        }
        let lasting = trouble.filter(|_| !self.choice.is_waiting());
        let kept = self.choice.in_force().is_some();
        let note = lasting.map(|trouble| {
            let then = if kept {
                "the former configuration stays in force"
            } else {
                "nothing is offered until there is a good one"
            };
            format!("{trouble}; {then}")
        });
        self.reporter.lasting("InvalidConfig", "ReadConfig", note);
    }

    fn ended(&mut self, resource: ResourceName, failed: Option<Failed>) {
        if let Some(Failed { resource, reason }) = failed {
            let note = format!("{resource} is not served for the moment: {reason}");
            self.reporter.say(
                Severity::Warning,
                "ResourceNotServed",
                "ServeResource",
                note,
            );
        }
        self.server.after(resource, &self.lists, Instant::now());
    }

    /// Puts the node together and shows the kubelet what differs.
    async fn put_together(&mut self) {
        let unready = match (self.choice.in_force(), self.inventory.driver()) {
            (None, _) => Some(
                self.choice
                    .trouble()
                    .unwrap_or("no configuration yet")
                    .to_owned(),
            ),
            (_, Driver::Unknown) => Some("the driver has not answered yet".to_owned()),
            (_, Driver::Gone { .. }) if self.without_gpus => None,
            (_, Driver::Gone { reason }) => Some(reason.clone()),
            (_, Driver::Present { version, .. }) => {
                self.driver_version = Some(version.clone());
                None
            }
        };
        if !self.without_gpus {
            self.show_condition();
        }
        // Before both are known, nothing can be offered; later, what was known goes on.
        if let (Some(settings), Some(version)) =
            (self.choice.in_force().cloned(), self.driver_version.clone())
        {
            self.offer(&settings, version).await;
        }
        let unready = unready.or_else(|| self.preparer.trouble().map(str::to_owned));
        self.readiness.set(unready);
    }

    async fn offer(&mut self, settings: &Settings, driver_version: String) {
        let inventory = self.inventory.clone();
        let gpus: Vec<Gpu> = inventory
            .gpus()
            .iter()
            .map(|known| known.gpu.clone())
            .collect();
        if self.known != gpus {
            self.shared.book.know(&gpus);
            self.known.clone_from(&gpus);
        }
        let wanted = Wanted {
            gpus,
            driver_version,
            options: settings.options.clone(),
            places: Arc::new(self.config.places(settings)),
        };
        let prepared = self.preparer.prepared(wanted).await;
        let specs = settings.options.lists.cdi();
        if !specs {
            self.specs = None;
        } else if self.specs.is_none() {
            self.specs = Some(WatchedFolder::new(&self.config.cdi_folder));
        }
        let (view, unserved) = self.view(settings, &prepared);
        let warnings = view.warnings.iter().map(ToString::to_string);
        let (reason, action) = ("NotOfferedAsConfigured", "OfferDevices");
        self.reporter.lasting(reason, action, warnings);
        let caution = settings.options.caution(view.resources.len());
        let caution = caution.map(str::to_owned);
        self.reporter
            .lasting("OneResourcePerContainer", action, caution);
        self.reporter.lasting("MPSNotReady", action, unserved);
        let trouble = self.preparer.trouble().map(str::to_owned);
        self.reporter.lasting(
            "NotPrepared",
            "PrepareDevices",
            prepared.complaints().chain(trouble),
        );
        self.shared.metrics.cdi(self.preparer.trouble().is_none());
        let lists = view
            .resources
            .iter()
            .map(|(name, shown)| (name.clone(), shown.list()));
        self.lists = lists.collect();
        for (name, list) in &self.lists {
            let healthy = list.iter().filter(|device| device.healthy).count();
            let metrics = &self.shared.metrics;
            metrics.devices(name.as_str(), healthy, list.len() - healthy);
        }
        // First what calls are answered from, then the list that leads to calls.
        self.shared.update(|current| {
            current.options = Some(settings.options.clone());
            current.ready = prepared.ready;
            current.resources = Arc::new(view.resources);
        });
        self.server.show(&self.lists, Instant::now());
    }

    /// What the kubelet is to be shown, and which MPS daemons keep shares from being healthy.
    fn view(&self, settings: &Settings, prepared: &Prepared) -> (View, Vec<String>) {
        let daemons = RefCell::new(BTreeMap::new());
        let root = mps::Root::new(&self.config.mps_root);
        let mps = |name: &ResourceName, device: &Device| {
            if !settings.uses_mps() || device.shares.is_none() {
                return None;
            }
            let mut daemons = daemons.borrow_mut();
            let daemon = daemons.entry(name.clone()).or_insert_with(|| {
                self.mps.borrow_mut().add(name);
                mps::ready(&root, name)
            });
            match daemon {
                Ok(served) if served.covers(device) => None,
                Ok(_) => Some(format!("the MPS daemon of {name} does not serve it yet")),
                Err(error) => Some(error.to_string()),
            }
        };
        let view = view(self.inventory.gpus(), &settings.rules, |name, device| {
            let verdict = match self.health.verdict(device) {
                Verdict::Healthy => None,
                Verdict::Unhealthy(reasons) => {
                    let reasons = reasons
                        .iter()
                        .map(|reason| format!("{} ({})", reason.cause, reason.until));
                    Some(reasons.collect::<Vec<_>>().join("; "))
                }
            };
            let silent = || {
                let asked = self.looking.contains_key(&device.gpu_uuid);
                asked.then(|| "the GPU does not say how it is".to_owned())
            };
            verdict
                .or_else(silent)
                .or_else(|| prepared.fault(&device.uuid))
                .or_else(|| mps(name, device))
        });
        let daemons = daemons.into_inner().into_values();
        let unserved = daemons.filter_map(|daemon| Some(daemon.err()?.to_string()));
        (view, unserved.collect())
    }

    fn show_condition(&self) {
        let standing = self.health.standing();
        let mut counts = BTreeMap::new();
        for fault in &standing {
            *counts.entry(fault.cause.key()).or_insert(0) += 1;
        }
        self.shared.metrics.faults(counts.into_iter());
        let condition = self.health.condition();
        self.reporter.condition(Condition {
            kind: health::CONDITION.to_owned(),
            holds: match condition.status {
                health::Status::True => Some(true),
                health::Status::False => Some(false),
                health::Status::Unknown => None,
            },
            reason: condition.reason.to_owned(),
            message: condition.message,
        });
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
