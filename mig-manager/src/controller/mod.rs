//! The node controller: keeps the GPUs cut as the node's `nvidia.com/mig.config` label says.
//!
//! What to do is decided in [`state`]; this file only carries it out, one job at a time, and feeds back what came of it.
//! The labels and their values are those of NVIDIA's MIG manager. Unlike it, the controller touches nothing that cannot
//! succeed, tries again what failed, and says in an Event on the node why.

mod driver;
mod holders;
mod job;
pub mod label;
mod show;
pub mod state;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cluster::events::{Event, Recorder, Severity};
use cluster::node::{Node, NodeState, Observed};
use cluster::watched::WatchedFile;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub use job::Source;

use crate::engine;
use driver::{DriverChange, DriverWatch};
use job::Jobs;
use show::StateLabel;
use state::{Action, Failure, Input, Note, Retries, State, Verdict};

/// How long a change waits for the `pending` label: who watches it should see it first, but an unreachable API server must
/// not keep a node from what was asked of it.
const PENDING_BOUND: Duration = Duration::from_secs(10);

/// How long shutdown waits for a running change, and then for the last label and Events. Together less than the 30 s that
/// a pod gets by default. A change that takes longer is cut off and taken up from its journal at the next start.
const CHANGE_BOUND: Duration = Duration::from_secs(22);
const FAREWELL_BOUND: Duration = Duration::from_secs(4);

/// What the controller is called in Events.
const CONTROLLER: &str = "lathe-mig-manager";

/// Called with every step of a running change.
pub type OnProgress = Arc<dyn Fn(&engine::Event) + Send + Sync>;

/// Called when the layout of GPUs may have changed, so that whatever publishes it looks again at once.
pub type OnLayoutChange = Arc<dyn Fn() + Send + Sync>;

/// How the controller runs.
#[derive(Clone)]
pub struct Config {
    /// The node this runs on.
    pub node_name: String,
    /// Who says what an Event says: the pod, or the node.
    pub instance: String,
    /// Where the named configurations come from.
    pub source: Source,
    /// How the engine works.
    pub engine: engine::Options,
    /// Pauses between tries.
    pub retries: Retries,
    /// Told the steps of a change.
    pub on_progress: Option<OnProgress>,
    /// Told after a change, also after one that failed.
    pub on_layout_change: Option<OnLayoutChange>,
}

/// Long enough for those who let go of the GPUs when the label says `pending` to see it and to end the driver calls they
/// are in.
const IN_USE_WAIT: Duration = Duration::from_secs(15);

impl Config {
    /// The usual configuration for the node `node_name` with its file system at `root`.
    pub fn new(node_name: impl Into<String>, root: &std::path::Path) -> Self {
        let node_name = node_name.into();
        Self {
            instance: node_name.clone(),
            node_name,
            source: Source::Hardware,
            engine: engine::Options {
                in_use_wait: IN_USE_WAIT,
                ..engine::Options::at(root)
            },
            retries: Retries::default(),
            on_progress: None,
            on_layout_change: None,
        }
    }
}

/// Runs the controller until `shutdown` is cancelled. Needs a tokio runtime with time and I/O.
///
/// Neither an absent driver, nor an unreachable API server, nor a missing Node ends it: it waits for them.
pub async fn run(
    config: Config,
    session: Arc<nvml::Session>,
    client: kube::Client,
    shutdown: CancellationToken,
) {
    let node = Node::watch(client.clone(), &config.node_name);
    let farewell = CancellationToken::new();
    let (recorder, recording) =
        Recorder::start(client, CONTROLLER, &config.instance, farewell.clone());
    let mut controller = Controller {
        driver: Some(DriverWatch::start(session.clone())),
        jobs: Arc::new(Jobs {
            session,
            source: config.source.clone(),
            options: config.engine.clone(),
        }),
        state: State::new(config.retries),
        label: Arc::new(StateLabel::start(node.clone())),
        recorder,
        last_seen: None,
        job: Box::pin(std::future::pending()),
        retry: Box::pin(std::future::pending()),
        config,
    };
    controller.follow(&node, &shutdown).await;
    controller.finish().await;
    farewell.cancel();
    // The recorder bounds itself; a panic in it must not become one here.
    let _ = recording.await;
}

type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

struct Controller {
    config: Config,
    jobs: Arc<Jobs>,
    /// `None` while a change runs.
    driver: Option<DriverWatch>,
    state: State,
    label: Arc<StateLabel>,
    recorder: Recorder,
    /// The node as it was last there: what Events are about.
    last_seen: Option<NodeState>,
    job: Pending<Input>,
    retry: Pending<Input>,
}

impl Controller {
    async fn follow(&mut self, node: &Node, shutdown: &CancellationToken) {
        let mut observations = node.subscribe();
        observations.mark_changed();
        let mut file = self.watch_file();
        loop {
            let input = tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                input = &mut self.job => self.job_done(input),
                changed = observations.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let observed = observations.borrow_and_update().clone();
                    let Some(input) = self.observe(observed) else { continue };
                    input
                }
                input = &mut self.retry => {
                    self.retry = Box::pin(std::future::pending());
                    input
                }
                () = changed(&mut file) => {
                    tracing::info!("the config file changed");
                    Input::Reconsider
                }
                change = driver_changed(self.driver.as_ref()) => match change {
                    DriverChange::Watched => Input::Watched,
                    DriverChange::Returned => {
                        tracing::info!("the driver came back, or a GPU was reset");
                        Input::Reconsider
                    }
                }
            };
            self.step(input);
        }
    }

    /// After shutdown was asked for: what runs may end, and what came of it is told.
    async fn finish(&mut self) {
        if self.state.is_changing() {
            tracing::info!("shutting down once the running change is done");
            match tokio::time::timeout(CHANGE_BOUND, &mut self.job).await {
                Ok(input) => {
                    let input = self.job_done(input);
                    // A job begun now would not be waited for; the next start begins it.
                    let actions = self.state.step(input);
                    for action in actions {
                        if matches!(action, Action::Show(_) | Action::Say(_)) {
                            self.carry_out(action);
                        }
                    }
                }
                Err(_) => {
                    tracing::warn!("the running change takes too long; the next start takes it up")
                }
            }
        }
        if !self.label.is_written(FAREWELL_BOUND).await {
            tracing::warn!("shut down before the state label was written");
        }
    }

    fn watch_file(&self) -> Option<WatchedFile> {
        match &self.config.source {
            Source::File(path) => Some(WatchedFile::new(path)),
            Source::Hardware => None,
        }
    }

    fn observe(&mut self, observed: Observed) -> Option<Input> {
        let (config, shown) = match observed {
            Observed::NotYet => return None,
            Observed::Absent => {
                tracing::warn!(
                    node = self.config.node_name,
                    "there is no such node; waiting for it"
                );
                (None, None)
            }
            Observed::Present(node) => {
                let labels = (
                    node.labels.get(label::CONFIG).cloned(),
                    node.labels.get(label::STATE).cloned(),
                );
                self.last_seen = Some(node);
                labels
            }
        };
        Some(Input::Node { config, shown })
    }

    fn job_done(&mut self, input: Input) -> Input {
        self.job = Box::pin(std::future::pending());
        if matches!(input, Input::Applied(_)) {
            self.driver = Some(DriverWatch::start(self.jobs.session.clone()));
            if let Some(on_layout_change) = &self.config.on_layout_change {
                on_layout_change();
            }
        }
        input
    }

    fn step(&mut self, input: Input) {
        tracing::debug!(?input, "step");
        for action in self.state.step(input) {
            self.carry_out(action);
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Check(name) => {
                let jobs = self.jobs.clone();
                self.job = Box::pin(async move {
                    let verdict = on_thread(move || jobs.check(&name)).await;
                    Input::Checked(verdict.unwrap_or_else(|| Verdict::Refused(broken())))
                });
            }
            Action::Apply(name) => {
                let jobs = self.jobs.clone();
                let label = self.label.clone();
                let driver = self.driver.take();
                let on_progress = self.config.on_progress.clone();
                self.job = Box::pin(async move {
                    if !label.is_written(PENDING_BOUND).await {
                        tracing::warn!(
                            "the API server does not take the state label; changing the GPUs all the same"
                        );
                    }
                    let work = move || {
                        if let Some(driver) = driver {
                            driver.end();
                        }
                        jobs.apply(&name, &|event| {
                            event.log();
                            if let Some(on_progress) = &on_progress {
                                on_progress(event);
                            }
                        })
                    };
                    Input::Applied(on_thread(work).await.unwrap_or_else(|| Err(broken())))
                });
            }
            Action::Show(progress) => self.label.show(progress),
            Action::Say(note) => self.say(note),
            Action::RetryIn {
                turn,
                delay,
                holders,
            } => {
                tracing::info!(?delay, "trying again later");
                self.retry = Box::pin(async move {
                    tokio::select! {
                        () = tokio::time::sleep(delay) => {}
                        () = holders::gone(&holders) => tracing::info!("the processes in the way are gone"),
                    }
                    Input::RetryDue { turn }
                });
            }
        }
    }

    fn say(&self, note: Note) {
        if note.warning {
            tracing::warn!(reason = note.reason, "{}", note.text);
        } else {
            tracing::info!(reason = note.reason, "{}", note.text);
        }
        let Some(node) = &self.last_seen else { return };
        self.recorder.publish(
            &node.reference(),
            Event {
                severity: if note.warning {
                    Severity::Warning
                } else {
                    Severity::Normal
                },
                reason: note.reason.to_owned(),
                action: "ApplyMigConfig".to_owned(),
                note: note.text,
            },
        );
    }
}

async fn changed(file: &mut Option<WatchedFile>) {
    match file {
        Some(file) => file.changed().await,
        None => std::future::pending().await,
    }
}

async fn driver_changed(driver: Option<&DriverWatch>) -> DriverChange {
    match driver {
        Some(driver) => driver.changed().await,
        None => std::future::pending().await,
    }
}

/// Runs `work` on a thread of its own, so that one that is cut off at shutdown does not keep the runtime from ending.
/// `None` when there is no thread to be had, or `work` panicked.
async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new()
        .name("mig-change".to_owned())
        .spawn(move || {
            // Nobody waits any more after shutdown.
            let _ = sender.send(work());
        })
        .ok()?;
    receiver.await.ok()
}

fn broken() -> Failure {
    Failure {
        driver_missing: false,
        message: "the change ended abnormally; see the log of the MIG manager".to_owned(),
        holders: Vec::new(),
    }
}
