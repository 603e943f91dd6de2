//! Takes the steps of one resource's [`Machine`]: files, the driver, the program.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use configuration::plugin::ResourceName;
use nvml::Session;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::gpus::{self, Record};
use super::machine::Machine;
use super::paths::Root;
use super::plan::Daemon;
use super::program::{Program, ProgramError, line};
use super::protocol;
use super::status::Started;
use super::step::{Now, Pace, Seen, Step};
use super::supervisor::State;
use super::{leftovers, log, selinux};

/// The pause between two questions to a daemon that is starting.
const STARTING: Duration = Duration::from_millis(50);

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
    child: Option<Running>,
    started: Option<Started>,
    starts: u64,
}

struct Running {
    program: Program,
    child: Child,
    last_words: watch::Receiver<String>,
    _tasks: Tasks,
}

impl Running {
    /// Waits for its end and says how it was.
    async fn end(&mut self) -> String {
        let how = match self.child.wait().await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let words = self.last_words.borrow();
        let colon = if words.is_empty() { "" } else { ": " };
        format!("its daemon ended ({how}){colon}{}", *words)
    }
}

/// Tasks that end with their daemon.
struct Tasks(Vec<tokio::task::JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl Runner {
    pub(super) fn new(place: Arc<Place>, resource: ResourceName, session: Arc<Session>) -> Self {
        let record = Record::at(place.root.exclusive_file(&resource));
        Self {
            place,
            resource,
            session,
            record,
            child: None,
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
                reason = ended(&mut self.child) => {
                    self.child = None;
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
                        self.child = Some(running);
                        Seen::Started
                    }
                    Err(reason) => Seen::Ended(reason),
                }
            }
            Step::Limit(limits) => match self.limit(&limits).await {
                Ok(()) => Seen::Limited(limits),
                Err(error) => Seen::Silent(error.to_string()),
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
            Step::Probe => match self.percentage().await {
                Ok(percentage) => Seen::Answered(percentage),
                Err(error) => Seen::Silent(error.to_string()),
            },
            Step::AskClients => Seen::Clients(self.any_clients().await),
            Step::Quit => {
                self.quit().await;
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
        log::shorten(&logs);
        let resource = self.resource.to_string();
        let mut tasks = Tasks(vec![tokio::spawn(log::follow(logs, resource.clone()))]);
        let visible = gpus
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(",");
        let mut child = program.start(&visible).map_err(|error| error.to_string())?;
        let (words, last_words) = watch::channel(String::new());
        if let Some(errors) = child.stderr.take() {
            tasks.0.push(tokio::spawn(async move {
                let mut lines = BufReader::new(errors).lines();
                while let Ok(Some(text)) = lines.next_line().await {
                    let text = line(&text);
                    tracing::warn!(resource, "{text}");
                    words.send_replace(text);
                }
            }));
        }
        let mut running = Running {
            program: program.clone(),
            child,
            last_words,
            _tasks: tasks,
        };
        let answers = async {
            while let Err(error) = percentage(&program).await {
                tracing::debug!(%error, "not up yet");
                sleep(STARTING).await;
            }
        };
        tokio::select! {
            reason = running.end() => Err(reason),
            up = timeout(pace.start, answers) => match up {
                Ok(()) => Ok(running),
                Err(_) => Err(format!("it did not answer within {} s of its start", pace.start.as_secs())),
            },
        }
    }

    async fn ask(&self, command: &str) -> Result<String, ProgramError> {
        match &self.child {
            Some(running) => running.program.ask(command).await,
            // It has ended; the machine hears of that next.
            None => Err(ProgramError::Late {
                command: command.to_owned(),
                after: Duration::ZERO,
            }),
        }
    }

    async fn percentage(&self) -> Result<f64, ProgramError> {
        let said = self.ask(protocol::GET_PERCENTAGE).await?;
        understood(&said)
    }

    async fn limit(&self, limits: &Daemon) -> Result<(), ProgramError> {
        for command in protocol::defaults(limits) {
            self.ask(&command).await?;
        }
        for server in protocol::pids(&self.ask(protocol::SERVERS).await?) {
            for command in protocol::of_server(server, limits) {
                self.ask(&command).await?;
            }
        }
        Ok(())
    }

    /// What cannot be told counts as clients: they would be ended otherwise.
    async fn any_clients(&self) -> bool {
        let Ok(servers) = self.ask(protocol::SERVERS).await else {
            return true;
        };
        for server in protocol::pids(&servers) {
            match self.ask(&protocol::clients(server)).await {
                Ok(clients) if protocol::pids(&clients).is_empty() => {}
                _ => return true,
            }
        }
        false
    }

    /// Asks the daemon to end; what is left of it then is cleared away.
    async fn quit(&mut self) {
        if let Err(error) = self.ask(protocol::QUIT).await {
            tracing::debug!(%error, "the daemon was asked to end");
        }
        let _ = timeout(self.place.pace.end, ended(&mut self.child)).await;
        if let Some(mut running) = self.child.take() {
            // It cannot be waited for in vain: killing is done, and what hangs in the driver is left to the next step.
            let _ = timeout(self.place.pace.end, running.child.kill()).await;
        }
    }
}

async fn percentage(program: &Program) -> Result<f64, ProgramError> {
    understood(&program.ask(protocol::GET_PERCENTAGE).await?)
}

fn understood(said: &str) -> Result<f64, ProgramError> {
    protocol::percentage(said).ok_or_else(|| ProgramError::Answer {
        command: protocol::GET_PERCENTAGE.to_owned(),
        said: line(said),
    })
}

/// Waits for a daemon's end and says how it was. Never returns without a daemon.
async fn ended(child: &mut Option<Running>) -> String {
    match child {
        Some(running) => running.end().await,
        None => std::future::pending().await,
    }
}

/// Whether there is something of a resource that an earlier process left.
pub(super) fn is_left(root: &Root, resource: &ResourceName) -> bool {
    root.exclusive_file(resource).exists() || root.started_file(resource).exists()
}
