//! The daemons of a node follow its configuration and its GPUs: what `lathe mps-daemon` does.
//!
//! Configuration, hardware and resources are read as the device plugin reads them, so that both speak of the same GPUs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cluster::node::{Node, Observed};
use cluster::serve::{self, Reply, Routes};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::metrics::page;
use super::plan::{GpuFacts, Plan, plan};
use super::runner::Place;
use super::supervisor::{State, Supervisor, SupervisorError};
use crate::hardware::{Driver, Hardware, Inventory, bus};
use crate::resources::{Warning, resources};
use crate::service::{Choice, Config as PluginConfig, MIG_STATE, ServiceError, Settings};

/// A MIG manager that died must not silence MPS for ever.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// What `lathe mps-daemon` is told at its start.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where things are.
    pub place: Place,
    /// Flags and configuration, as the device plugin has them.
    pub plugin: PluginConfig,
    /// What is `/dev/shm` of the daemons.
    pub shm: PathBuf,
    /// The longest change of the layout that GPUs are let go for: [`LONGEST_PAUSE`].
    pub longest_pause: Duration,
    /// Where to serve metrics and probes.
    pub metrics_address: Option<String>,
}

/// Why it ends other than by being asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The MPS root cannot be used.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    /// The configuration cannot be used, and there is none to fall back to.
    #[error(transparent)]
    Config(#[from] ServiceError),
    /// Metrics and probes cannot be served.
    #[error(transparent)]
    Bind(#[from] serve::BindError),
    /// The system gives no thread.
    #[error(transparent)]
    Hardware(nvml::Error),
}

/// Daemons that have what they need to begin.
pub struct Service {
    config: Config,
    session: Arc<nvml::Session>,
    node: Option<Node>,
    choice: Choice,
    supervisor: Supervisor,
    web: Option<serve::Server>,
}

impl Service {
    /// Takes the MPS root and the port, and reads the configuration. `node` is the own Node, for a configuration by label.
    ///
    /// # Errors
    /// What cannot be used, and why.
    pub async fn open(
        config: Config,
        session: Arc<nvml::Session>,
        node: Option<Node>,
    ) -> Result<Self, Error> {
        let mut config = config;
        // Where clients find their pipes on the host is for the device plugin to know; MPS without it is an error there.
        let flags = &mut config.plugin.flags;
        let root = config.place.root.path().to_owned();
        flags.mps_root.get_or_insert(root);
        let choice = Choice::start(&config.plugin, node.as_ref())?;
        let supervisor = Supervisor::open(config.place.clone(), Arc::clone(&session))?;
        let web = match &config.metrics_address {
            Some(address) => Some(serve::Server::bind(address, serve::Limits::default()).await?),
            None => None,
        };
        Ok(Self {
            config,
            session,
            node,
            choice,
            supervisor,
            web,
        })
    }

    /// Where metrics and probes are served.
    pub fn address(&self) -> Option<SocketAddr> {
        self.web.as_ref()?.address().ok()
    }

    /// Serves until `shutdown`; reads the configuration again when told to by `reload`.
    ///
    /// An absent driver, API server or Node is waited for.
    ///
    /// # Errors
    /// The system gives no thread.
    pub async fn run(mut self, reload: &Notify, shutdown: CancellationToken) -> Result<(), Error> {
        let web = self.web.take().map(|web| {
            let routes = routes(self.supervisor.state());
            tokio::spawn(web.run(routes, shutdown.clone()))
        });
        for concern in self.supervisor.concerns(&self.config.shm) {
            tracing::warn!("{concern}");
        }
        let (hardware, mut events) =
            Hardware::start(Arc::clone(&self.session)).map_err(Error::Hardware)?;
        let mut inventory = hardware.inventory();
        let mut labels = self.node.as_ref().map(Node::subscribe);
        let mut planned = Planned::default();
        let mut change = None;
        let mut paused = false;
        loop {
            self.tell_trouble(&mut planned);
            let seen = inventory.borrow_and_update().clone();
            if let Some(settings) = self.choice.in_force().cloned()
                && let Some(plan) = planned.plan(&settings, &seen, self.session.root())
            {
                self.supervisor.apply(plan);
            }
            let is_reshaped = self.node.as_ref().is_some_and(is_reshaped);
            let longest = self.config.longest_pause;
            let until = let_go(&mut change, is_reshaped, Instant::now(), longest);
            if until.is_some() != paused {
                paused = until.is_some();
                self.supervisor.pause(paused);
                if paused {
                    let left = hardware.pause(longest);
                    if let Err(error) = left.await {
                        tracing::warn!(%error, "the GPUs cannot be left alone");
                    }
                } else {
                    if is_reshaped {
                        tracing::warn!(
                            "the MIG manager has been at work for too long; MPS serves again"
                        );
                    }
                    hardware.resume();
                }
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                () = self.supervisor.changed() => {}
                Ok(()) = inventory.changed() => {}
                // What an event means for a GPU is the device plugin's business; here only its absence counts.
                Some(_) = events.recv() => {}
                () = self.choice.changed() => { self.choice.look(&self.config.plugin); }
                () = reload.notified() => { self.choice.look(&self.config.plugin); }
                () = changed(&mut labels) => {}
                () = sleep_until(until) => {}
            }
        }
        drop(hardware);
        self.supervisor.end().await;
        if let Some(web) = web {
            // It bounds itself; a panic in it was reported already.
            let _ = web.await;
        }
        Ok(())
    }

    fn tell_trouble(&self, planned: &mut Planned) {
        let trouble = self.choice.trouble().filter(|_| !self.choice.is_waiting());
        if planned.trouble.as_deref() == trouble {
            return;
        }
        planned.trouble = trouble.map(str::to_owned);
        if let Some(trouble) = trouble {
            tracing::warn!("{trouble}; what was in force stays in force");
        }
    }
}

/// While the MIG manager changes the layout, what is not in use must be let go.
fn is_reshaped(node: &Node) -> bool {
    match node.latest() {
        Observed::Present(node) => {
            node.labels.get(MIG_STATE.0).map(String::as_str) == Some(MIG_STATE.1)
        }
        _ => false,
    }
}

/// Until when GPUs are let go, if they are. `change` is since when the layout is changed.
fn let_go(
    change: &mut Option<Instant>,
    is_reshaped: bool,
    now: Instant,
    longest: Duration,
) -> Option<Instant> {
    *change = is_reshaped.then(|| change.unwrap_or(now));
    let until = change.map(|since| since + longest);
    until.filter(|until| now < *until)
}

async fn changed(labels: &mut Option<watch::Receiver<Observed>>) {
    let ended = match labels {
        Some(labels) => labels.changed().await.is_err(),
        None => true,
    };
    if ended {
        std::future::pending().await
    }
}

async fn sleep_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// What was planned last, and what was said of it.
#[derive(Default)]
struct Planned {
    plan: Option<Plan>,
    warnings: Vec<Warning>,
    trouble: Option<String>,
}

impl Planned {
    /// The plan for the node at `root`, when it differs from the last one. Nothing is planned before it is known which GPUs there
    /// are, from the driver or because the PCI bus has none: a plan without daemons would end those that run.
    fn plan(&mut self, settings: &Settings, inventory: &Inventory, root: &Path) -> Option<&Plan> {
        let is_known = match inventory.driver() {
            Driver::Present { .. } => true,
            Driver::Gone { .. } => !bus::has_gpu(root),
            Driver::Unknown => false,
        };
        if self.plan.is_none() && !is_known {
            return None;
        }
        let rules = &settings.rules;
        let offer = resources(&inventory.descriptions(), rules);
        let new = plan(&offer, rules.sharing.as_ref(), |uuid| {
            let known = inventory.gpu(uuid);
            known.map_or_else(GpuFacts::default, |gpu| GpuFacts {
                memory: gpu.memory_bytes,
                compute_capability: gpu.compute_capability,
                mig_mode: gpu.gpu.mig_enabled,
            })
        });
        self.tell(&offer.warnings, &new);
        if self.plan.as_ref() == Some(&new) {
            return None;
        }
        let daemons = new.daemons.len();
        tracing::info!(daemons, "MPS is planned");
        self.plan = Some(new);
        self.plan.as_ref()
    }

    /// Says what is new of what is not shared as configured.
    fn tell(&mut self, warnings: &[Warning], new: &Plan) {
        let about_mps = |warning: &&Warning| matches!(warning, Warning::MpsOnMig { .. });
        let warnings: Vec<Warning> = warnings.iter().filter(about_mps).cloned().collect();
        for warning in warnings.iter().filter(|one| !self.warnings.contains(one)) {
            tracing::warn!("{warning}");
        }
        self.warnings = warnings;
        let before = self.plan.as_ref().map_or(&[][..], |plan| &plan.refusals);
        for refusal in new.refusals.iter().filter(|one| !before.contains(one)) {
            tracing::warn!("{refusal}");
        }
    }
}

fn routes(state: watch::Receiver<State>) -> Routes {
    let metrics = state.clone();
    Routes::new()
        .get("/metrics", move || {
            let page = page(&metrics.borrow());
            std::future::ready(Reply::metrics(page))
        })
        // That it answers says that the one thread there is goes round.
        .get("/healthz", || std::future::ready(Reply::probe(Ok(()))))
        .get("/readyz", move || {
            let reason = state.borrow().unready();
            std::future::ready(Reply::probe(reason.map_or(Ok(()), Err)))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_let_go_for_a_change_and_again_for_the_next_but_never_for_ever() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut change = None;
        let mut see = |is_reshaped, now| let_go(&mut change, is_reshaped, at(now), LONGEST_PAUSE);
        assert_eq!(see(false, 0), None);
        assert_eq!(see(true, 10), Some(at(610)));
        assert_eq!(see(true, 609), Some(at(610)));
        assert_eq!(see(true, 610), None);
        assert_eq!(see(true, 9000), None);
        assert_eq!(see(false, 9001), None);
        assert_eq!(see(true, 9002), Some(at(9602)));
        assert_eq!(see(false, 9003), None);
    }
}
