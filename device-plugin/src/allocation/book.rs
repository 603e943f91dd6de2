//! The node's [`Ledger`], kept by the kubelet's lists and asked before devices are given.
//!
//! The kubelet waits while it is asked, so a call asks the kubelet back only when it has to: after a restart of the kubelet,
//! before a refusal, and where a DRA driver gives out the same GPUs from another process. Each such list has a deadline, and
//! without a list nobody is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use configuration::plugin::ResourceName;
use gpu::ledger::{Conflict, Holder, Knowledge, Ledger, Listed, Owner, Wanted};
use kubelet::holdings::{Holdings, List, Pace};
use kubelet::pod_resources::Limits;
use kubelet::{Error, Paths};
use tokio_util::sync::CancellationToken;

use super::listed::{DRA_DRIVER, listed, place};
use super::prefer::InUse;
use crate::resources::{Device, Gpu, Resource};

/// How long a call waits for a list, if nothing else is said. The kubelet answers from memory.
pub const LIST_WAIT: Duration = Duration::from_millis(500);

/// After a list that failed, calls do without one for so long.
const REST: Duration = Duration::from_secs(10);

/// Who has which device of the node.
#[derive(Debug)]
pub struct Book {
    ledger: Arc<Mutex<Ledger>>,
    holdings: Holdings,
    /// A DRA driver of the same GPUs has its files here.
    dra: PathBuf,
    wait: Duration,
    node: Mutex<Node>,
}

#[derive(Debug, Default)]
struct Node {
    gpus: Arc<[Gpu]>,
    last: Option<List>,
    /// Whether containers have GPUs through claims.
    claims: bool,
    failed: Option<Instant>,
}

impl Book {
    /// A book on the `ledger` that all parts of this process share.
    ///
    /// # Errors
    /// The path of the kubelet's socket is not UTF-8.
    pub fn new(paths: &Paths, ledger: Arc<Mutex<Ledger>>) -> Result<Self, Error> {
        Ok(Self {
            ledger,
            holdings: Holdings::new(&paths.pod_resources(), Limits::default(), Pace::default())?,
            dra: paths.plugin(DRA_DRIVER),
            wait: LIST_WAIT,
            node: Mutex::default(),
        })
    }

    /// The same, with another wait for the kubelet's list than [`LIST_WAIT`].
    #[must_use]
    pub fn with_wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// The node's GPUs are these, those that do not answer included.
    pub fn know(&self, gpus: &[Gpu]) {
        let mut node = lock(&self.node);
        node.gpus = gpus.into();
        self.reconcile(&mut node);
    }

    /// Follows the kubelet's lists until `shutdown`.
    pub async fn run(&self, shutdown: CancellationToken) {
        self.holdings.follow(|list| self.take(list), shutdown).await;
    }

    /// Notes that a container gets these devices and shares of a resource.
    ///
    /// # Errors
    /// [`Conflict`], when somebody has one of them. Nothing is noted then.
    pub async fn grant(
        &self,
        resource: &ResourceName,
        ids: &[(&Device, Option<u32>)],
    ) -> Result<(), Conflict> {
        let owner = Owner::Resource(resource.as_str().to_owned());
        let wanted: Vec<Wanted> = ids
            .iter()
            .map(|(device, share)| wanted(device, *share))
            .collect();
        let grant = |knowledge| {
            let now = Instant::now();
            lock(&self.ledger).grant(&owner, &wanted, knowledge, now)
        };
        let mut fresh = false;
        if !self.holdings.is_current() || self.has_dra_driver() {
            fresh = self.ask().await;
            if !fresh {
                grant(Knowledge::Stale)?;
                self.holdings.nudge();
                return Ok(());
            }
        }
        let answer = match grant(Knowledge::Current) {
            Err(_) if !fresh => {
                let current = self.ask().await;
                grant(if current {
                    Knowledge::Current
                } else {
                    Knowledge::Stale
                })
            }
            answer => answer,
        };
        if answer.is_ok() {
            self.holdings.nudge();
        }
        answer
    }

    /// What somebody has of this resource's GPUs and is not one of its ids: through another resource or a claim, or as the
    /// resource was before its configuration changed.
    pub fn elsewhere(&self, resource: &Resource) -> Vec<InUse> {
        let devices = || resource.devices.iter();
        let own: BTreeMap<&str, &Device> = devices()
            .map(|device| (device.uuid.as_str(), device))
            .collect();
        let gpus: BTreeSet<&str> = devices().map(|device| device.gpu_uuid.as_str()).collect();
        let is_id = |holder: &Holder| {
            let of =
                matches!(&holder.owner, Owner::Resource(name) if name == resource.name.as_str());
            let device = own.get(holder.device.uuid());
            of && device.is_some_and(|device| device.has(holder.share))
        };
        let ledger = lock(&self.ledger);
        let others = ledger
            .holders()
            .filter(|holder| gpus.contains(holder.device.gpu.as_str()) && !is_id(holder));
        others
            .map(|holder| InUse {
                uuid: holder.device.uuid().to_owned(),
                gpu: holder.device.gpu,
            })
            .collect()
    }

    /// Whether a DRA driver gives out the same GPUs, as far as can be seen: the kubelet's folder may not be mounted.
    fn has_dra_driver(&self) -> bool {
        lock(&self.node).claims || self.dra.is_dir()
    }

    /// Asks the kubelet what containers hold; whether it said.
    async fn ask(&self) -> bool {
        let rests = |failed: Instant| failed.elapsed() < REST;
        if lock(&self.node).failed.is_some_and(rests) {
            return false;
        }
        let why = match tokio::time::timeout(self.wait, self.holdings.list()).await {
            Ok(Ok(list)) => {
                self.take(list);
                return true;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} ms", self.wait.as_millis()),
        };
        tracing::debug!(why, "devices are given without a list of pod resources");
        lock(&self.node).failed = Some(Instant::now());
        false
    }

    fn take(&self, list: List) {
        let mut node = lock(&self.node);
        // Two lists can overtake each other.
        if node
            .last
            .as_ref()
            .is_none_or(|last| last.asked <= list.asked)
        {
            node.last = Some(list);
            node.failed = None;
            self.reconcile(&mut node);
        }
    }

    fn reconcile(&self, node: &mut Node) {
        let Some(last) = &node.last else { return };
        let held = listed(&last.pods, &node.gpus);
        let is_claim = |one: &Listed| matches!(one.owner, Owner::Claim { .. });
        node.claims = held.iter().any(is_claim);
        lock(&self.ledger).reconcile(held, |uuid| place(&node.gpus, uuid), last.asked);
    }
}

fn wanted(device: &Device, share: Option<u32>) -> Wanted {
    Wanted {
        device: gpu::ledger::Device {
            gpu: device.gpu_uuid.clone(),
            mig: device.mig.map(|place| gpu::ledger::MigDevice {
                uuid: device.uuid.clone(),
                gpu_instance: place.gpu_instance,
                compute_instance: place.compute_instance,
            }),
        },
        share,
        shares: device.shares.unwrap_or(1),
    }
}

/// Nothing that is done under these locks leaves them half-done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
