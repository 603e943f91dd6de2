//! Takes the steps of one resource's [`Machine`]: files, the driver, the program.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use configuration::plugin::ResourceName;
use nvml::Session;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::gpus::{self, Record};
use super::machine::Machine;
use super::paths::Root;
use super::plan::Daemon;
use super::program::Program;
use super::running::Running;
use super::status::Started;
use super::step::{Now, Pace, Seen, Step};
use super::supervisor::State;
use super::{leftovers, selinux};

/// What all daemons of a node have in common.
#[derive(Clone, Debug)]
pub struct Place {
    /// Where the node's file system is: the driver's programs and libraries are looked up below it.
    pub node_root: PathBuf,
    /// The folder of MPS.
    pub root: Root,
    /// How patient one is with its daemons.
    pub pace: Pace,
}

/// How a resource is, for whoever looks after all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Whether it has a daemon in the plan.
    pub wanted: bool,
    /// Whether all that is wanted is served.
    pub ready: bool,
    /// How often its daemon was started.
    pub starts: u64,
    /// What failed last, while that matters.
    pub trouble: Option<String>,
}

/// One resource's daemon.
pub(super) struct Runner {
    place: Arc<Place>,
    resource: ResourceName,
    session: Arc<Session>,
    record: Record,
    running: Option<Running>,
    started: Option<Started>,
    starts: u64,
}

impl Runner {
    pub(super) fn new(place: Arc<Place>, resource: ResourceName, session: Arc<Session>) -> Self {
        let record = Record::at(place.root.exclusive_file(&resource));
        Self {
            place,
            resource,
            session,
            record,
            running: None,
            started: None,
            starts: 0,
        }
    }

    /// Serves what is wanted until nothing is, and everything is as it was before.
    pub(super) async fn run(
        mut self,
        mut wanted: watch::Receiver<Option<Daemon>>,
        mut paused: watch::Receiver<bool>,
        state: watch::Sender<State>,
    ) {
        let begin = Instant::now();
        let mut machine = Machine::new(self.place.pace, self.record.read(), true);
        machine.saw(Seen::Wanted(wanted.borrow_and_update().clone()), Now::ZERO);
        machine.saw(Seen::Paused(*paused.borrow_and_update()), Now::ZERO);
        loop {
            if wanted.has_changed().unwrap_or(false) {
                let wanted = wanted.borrow_and_update().clone();
                machine.saw(Seen::Wanted(wanted), begin.elapsed());
            }
            if paused.has_changed().unwrap_or(false) {
                let paused = *paused.borrow_and_update();
                machine.saw(Seen::Paused(paused), begin.elapsed());
            }
            self.tell(&machine, &state);
            let step = machine.next(begin.elapsed());
            let Step::Wait(until) = step else {
                let seen = self.perform(step).await;
                machine.saw(seen, begin.elapsed());
                continue;
            };
            if machine.is_over() && wanted.has_changed().is_err() {
                return;
            }
            let pause = async {
                match until {
                    Some(until) => sleep_until(begin + until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = wanted.changed() => {
                    let wanted = changed.is_ok().then(|| wanted.borrow_and_update().clone());
                    machine.saw(Seen::Wanted(wanted.flatten()), begin.elapsed());
                }
                Ok(()) = paused.changed() => {
                    let paused = *paused.borrow_and_update();
                    machine.saw(Seen::Paused(paused), begin.elapsed());
                }
                reason = ended(&mut self.running) => {
                    self.running = None;
                    machine.saw(Seen::Ended(reason), begin.elapsed());
                }
                () = pause => {}
            }
        }
    }

    /// Called only when the newest of what is wanted was seen, so that nothing outdated is told of it.
    fn tell(&self, machine: &Machine, state: &watch::Sender<State>) {
        state.send_if_modified(|state| {
            let report = state.reports.entry(self.resource.clone()).or_default();
            let new = Report {
                wanted: machine.is_wanted(),
                ready: machine.is_ready(),
                starts: self.starts,
                trouble: machine.trouble().map(str::to_owned),
            };
            if *report == new {
                return false;
            }
            let resource = self.resource.as_str();
            if new.trouble != report.trouble
                && let Some(trouble) = &new.trouble
            {
                tracing::warn!(resource, "MPS: {trouble}");
            }
            if new.ready && !report.ready {
                tracing::info!(resource, "MPS serves");
            }
            *report = new;
            true
        });
    }

    async fn perform(&mut self, step: Step) -> Seen {
        match step {
            Step::Prepare(gpus) => self.prepare(gpus).await,
            Step::Start(gpus) => {
                self.starts += 1;
                match self.start(&gpus).await {
                    Ok(running) => {
                        self.running = Some(running);
                        Seen::Started
                    }
                    Err(reason) => Seen::Ended(reason),
                }
            }
            Step::Limit(limits) => match &self.running {
                Some(running) => match running.limit(&limits).await {
                    Ok(()) => Seen::Limited(limits),
                    Err(error) => Seen::Silent(error.to_string()),
                },
                None => gone(),
            },
            Step::Publish(served) => {
                match Started::publish(&self.place.root, &self.resource, &served) {
                    Ok(started) => {
                        // The file of before was replaced: only its lock ends.
                        if let Some(before) = self.started.replace(started) {
                            before.replaced();
                        }
                        Seen::Published(served)
                    }
                    Err(error) => Seen::Unpublished(format!("cannot write .started: {error}")),
                }
            }
            Step::Withdraw => {
                self.started = None;
                Seen::Withdrawn
            }
            Step::Probe => match &self.running {
                Some(running) => match running.percentage().await {
                    Ok(percentage) => Seen::Answered(percentage),
                    Err(error) => Seen::Silent(error.to_string()),
                },
                None => gone(),
            },
            Step::AskClients => match &self.running {
                Some(running) => Seen::Clients(running.any_clients().await),
                None => gone(),
            },
            Step::Quit => {
                if let Some(running) = self.running.take() {
                    running.quit(self.place.pace.end).await;
                }
                Seen::Ended("it did not answer and was ended".to_owned())
            }
            Step::Clear => {
                let stay = leftovers::end(&self.place.root.pipe(&self.resource)).await;
                if stay > 0 {
                    tracing::warn!(
                        resource = self.resource.as_str(),
                        stay,
                        "MPS processes hang in the driver"
                    );
                }
                Seen::Cleared
            }
            Step::Release(gpus) => self.release(gpus).await,
            // The loop does that.
            Step::Wait(_) => Seen::Withdrawn,
        }
    }

    fn folders(&self) -> std::io::Result<()> {
        let root = &self.place.root;
        let top = root.resource(&self.resource);
        for folder in [top, root.pipe(&self.resource), root.log(&self.resource)] {
            std::fs::create_dir_all(&folder)?;
            if let Err(error) = selinux::admit_containers(&folder) {
                tracing::warn!(folder = %folder.display(), %error, "cannot let containers in: SELinux may refuse them");
            }
        }
        Ok(())
    }

    async fn prepare(&self, gpus: BTreeSet<String>) -> Seen {
        let mut claimed = self.record.read();
        claimed.extend(gpus.iter().cloned());
        // First the record: a GPU that nobody knows to be ours would stay in exclusive mode for ever.
        if let Err(error) = self.folders().and_then(|()| self.record.write(&claimed)) {
            let trouble = format!("cannot write {}: {error}", self.place.root.path().display());
            return Seen::Prepared(BTreeSet::new(), Some(trouble));
        }
        let session = Arc::clone(&self.session);
        let claim = tokio::task::spawn_blocking(move || gpus::claim(&session, &gpus));
        match claim.await {
            Ok((usable, trouble)) => Seen::Prepared(usable, trouble),
            Err(error) => Seen::Prepared(BTreeSet::new(), Some(error.to_string())),
        }
    }

    async fn release(&self, gpus: BTreeSet<String>) -> Seen {
        let session = Arc::clone(&self.session);
        let release = tokio::task::spawn_blocking(move || gpus::release(&session, &gpus));
        let released = release.await.unwrap_or_default();
        let mut claimed = self.record.read();
        claimed.retain(|gpu| !released.contains(gpu));
        if let Err(error) = self.record.write(&claimed) {
            tracing::warn!(resource = self.resource.as_str(), %error, "cannot write which GPUs are in exclusive mode");
        }
        Seen::Released(released)
    }

    async fn start(&self, gpus: &BTreeSet<String>) -> Result<Running, String> {
        let Place { root, pace, .. } = &*self.place;
        let (pipe, logs) = (root.pipe(&self.resource), root.log(&self.resource));
        let links = root.resource(&self.resource).join(".driver");
        let program = Program::locate(&self.place.node_root, &links, &pipe, &logs, pace.answer)
            .map_err(|error| error.to_string())?;
        let visible: Vec<&str> = gpus.iter().map(String::as_str).collect();
        let started = Running::start(program, &visible.join(","), &logs, self.resource.as_str());
        let mut running = started.map_err(|error| error.to_string())?;
        running.up(pace.start).await?;
        Ok(running)
    }
}

/// A daemon that the machine takes for running has ended.
fn gone() -> Seen {
    Seen::Ended("its daemon ended".to_owned())
}

/// Waits for a daemon's end and says how it was. Never returns without a daemon.
async fn ended(running: &mut Option<Running>) -> String {
    match running {
        Some(running) => running.ended().await,
        None => std::future::pending().await,
    }
}

/// Whether there is something of a resource that an earlier process left.
pub(super) fn is_left(root: &Root, resource: &ResourceName) -> bool {
    root.exclusive_file(resource).exists() || root.started_file(resource).exists()
}
