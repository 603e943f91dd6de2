//! All daemons of a node: one [`Runner`] per resource, each on its own, so that nothing that happens to one touches another.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use configuration::plugin::ResourceName;
use nvml::Session;
use rustix::fs::{FlockOperation, flock};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::plan::{Daemon, Plan};
use super::runner::{Place, Report, Runner, is_left};
use super::shm;
use super::status::remove;

/// How long daemons may take to end. A pod has 30 s for all of its end.
const END: Duration = Duration::from_secs(25);

/// The inode of the first PID namespace, `PROC_PID_INIT_INO` of the kernel.
const HOST_PIDS: &str = "pid:[4026531836]";

/// The daemons cannot be looked after.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// The root cannot be used.
    #[error("cannot use the MPS root {}: {source}", path.display())]
    Root {
        /// The root.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody else looks after them.
    #[error("another lathe mps-daemon uses {}: only one can run on a node", path.display())]
    Taken {
        /// The root.
        path: PathBuf,
    },
}

/// How all of a node's daemons are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Whether it is known what is wanted.
    pub planned: bool,
    /// Every resource that has a daemon, or had one.
    pub reports: BTreeMap<ResourceName, Report>,
}

impl State {
    /// Why not all that is wanted is served.
    pub fn unready(&self) -> Option<String> {
        if !self.planned {
            return Some("it is not known yet which GPUs are shared".to_owned());
        }
        let mut wanted = self.reports.iter().filter(|(_, report)| report.wanted);
        let (resource, report) = wanted.find(|(_, report)| !report.ready)?;
        let trouble = report.trouble.as_deref().unwrap_or("not up yet");
        Some(format!("{resource}: {trouble}"))
    }
}

/// See the module's words.
pub struct Supervisor {
    place: Arc<Place>,
    session: Arc<Session>,
    wanted: BTreeMap<ResourceName, watch::Sender<Option<Daemon>>>,
    paused: watch::Sender<bool>,
    tasks: JoinSet<()>,
    state: watch::Sender<State>,
    seen: watch::Receiver<State>,
    /// Locked.
    _lock: File,
}

impl Supervisor {
    /// Takes the root over. Daemons that an earlier process left are ended with the first plan that does not name them.
    ///
    /// # Errors
    /// [`SupervisorError`].
    pub fn open(place: Place, session: Arc<Session>) -> Result<Self, SupervisorError> {
        let path = place.root.path().to_owned();
        let failed = |source: io::Error| SupervisorError::Root {
            path: path.clone(),
            source,
        };
        std::fs::create_dir_all(&path).map_err(failed)?;
        let lock = File::create(path.join(".lock")).map_err(failed)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(SupervisorError::Taken { path }),
            Err(error) => return Err(failed(error.into())),
        }
        remove(&place.root.ready_file()).map_err(failed)?;
        let (state, seen) = watch::channel(State::default());
        Ok(Self {
            place: Arc::new(place),
            session,
            wanted: BTreeMap::new(),
            paused: watch::Sender::new(false),
            tasks: JoinSet::new(),
            state,
            seen,
            _lock: lock,
        })
    }

    /// Says what of the pod's own set-up keeps clients out, one line each.
    pub fn concerns(&self, shm: &Path) -> Vec<String> {
        let mut concerns = Vec::new();
        if !shm::is_shared(&self.place.root, shm) {
            concerns.push(format!(
                "{} is not {}: containers that share a GPU will not reach the MPS daemon; mount that folder of the host there",
                shm.display(),
                self.place.root.shm().display()
            ));
        }
        let namespace = std::fs::read_link("/proc/self/ns/pid");
        if namespace.is_ok_and(|link| link != Path::new(HOST_PIDS)) {
            concerns.push("this pod does not share the host's process ids: the MPS daemon refuses clients of other containers; set hostPID: true".to_owned());
        }
        concerns
    }

    /// Makes the daemons be what a plan says. Those that stay as they are do not notice.
    pub fn apply(&mut self, plan: &Plan) {
        if !self.state.borrow().planned {
            for resource in left(&self.place) {
                self.sender(&resource);
            }
        }
        for resource in plan.daemons.keys() {
            self.sender(resource);
        }
        // First what is known of the resource, then the word to its runner: what the runner says of it is newer.
        let mut changed = Vec::new();
        for (resource, wanted) in &self.wanted {
            let daemon = plan.daemons.get(resource);
            if wanted.borrow().as_ref() != daemon {
                changed.push((resource, wanted, daemon));
            }
        }
        self.state.send_modify(|state| {
            state.planned = true;
            for (resource, _, daemon) in &changed {
                let report = state.reports.entry((*resource).clone()).or_default();
                report.wanted = daemon.is_some();
                report.ready = false;
            }
        });
        for (_, wanted, daemon) in changed {
            wanted.send_replace(daemon.cloned());
        }
        self.mark_ready();
    }

    fn sender(&mut self, resource: &ResourceName) {
        if self.wanted.contains_key(resource) {
            return;
        }
        let (sender, receiver) = watch::channel(None);
        let place = Arc::clone(&self.place);
        let runner = Runner::new(place, resource.clone(), Arc::clone(&self.session));
        let task = runner.run(receiver, self.paused.subscribe(), self.state.clone());
        self.tasks.spawn(task);
        self.wanted.insert(resource.clone(), sender);
    }

    /// Says whether GPUs that no client uses must be let go, as while the MIG manager is at work.
    pub fn pause(&self, pause: bool) {
        self.paused
            .send_if_modified(|paused| std::mem::replace(paused, pause) != pause);
    }

    /// Waits until a daemon became ready or is no longer.
    pub async fn changed(&mut self) {
        // It cannot end: this holds a sender.
        let _ = self.seen.changed().await;
        self.mark_ready();
    }

    /// How all of them are, now and whenever that changes.
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Whether all daemons that are wanted are up; not before it is known which are.
    pub fn is_ready(&self) -> bool {
        self.state.borrow().unready().is_none()
    }

    fn mark_ready(&self) {
        let file = self.place.root.ready_file();
        let marked = if self.is_ready() {
            // Not touched when it is there: nothing changed.
            File::options()
                .create(true)
                .append(true)
                .open(&file)
                .map(drop)
        } else {
            remove(&file)
        };
        if let Err(error) = marked {
            tracing::warn!(file = %file.display(), %error, "cannot say whether MPS is ready");
        }
    }

    /// Ends all daemons and puts their GPUs back, within bounds.
    pub async fn end(mut self) {
        if let Err(error) = remove(&self.place.root.ready_file()) {
            tracing::warn!(%error, "cannot say that MPS is not ready");
        }
        self.wanted.clear();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(END, all).await.is_err() {
            tracing::warn!("MPS daemons did not end in time; the next start clears up");
            self.tasks.abort_all();
        }
    }
}

/// Resources of which an earlier process left something.
fn left(place: &Place) -> Vec<ResourceName> {
    let folders = |path: &Path| {
        let entries = std::fs::read_dir(path).into_iter().flatten();
        entries
            .filter_map(Result::ok)
            .filter(|entry| entry.path().is_dir())
    };
    let mut left = Vec::new();
    for vendor in folders(place.root.path()) {
        for folder in folders(&vendor.path()) {
            let name = Path::new(&vendor.file_name()).join(folder.file_name());
            let name = name.to_str().and_then(|name| name.parse().ok());
            // What is no name of ours is no folder of ours.
            let name =
                name.filter(|name: &ResourceName| place.root.resource(name) == folder.path());
            left.extend(name.filter(|name| is_left(&place.root, name)));
        }
    }
    left
}
