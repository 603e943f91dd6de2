//! The node's GPUs as they are now: what the rest of the plugin knows of the driver, it knows from here.
//!
//! [`Hardware`] follows the driver on a thread of its own and keeps an [`Inventory`], in which a GPU that stops answering
//! stays, with its [`Trouble`]. What a GPU's trouble or an event means for pods is not decided here.

pub(crate) mod bus;
mod describe;
mod follow;
mod inventory;
mod looks;
mod proc;
mod topology;

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

pub use describe::describe;
pub use inventory::{Cause, Driver, Inventory, KnownGpu, Observation, Trouble};

use follow::{Follower, Message};

/// Events kept for a slow consumer.
const BACKLOG: usize = 1024;

/// Enough to load no library: that is done on a thread of the session.
const STACK: usize = 256 * 1024;

/// The node's hardware, followed. Dropping it ends that.
#[derive(Debug)]
pub struct Hardware {
    session: Arc<nvml::Session>,
    messages: Sender<Message>,
    inventory: watch::Receiver<Arc<Inventory>>,
    topology: watch::Receiver<Arc<gpu::Topology>>,
}

impl Hardware {
    /// Begins to follow the driver of a session. Events come through the receiver; when its reader is too slow, so many are
    /// dropped as [`nvml::EventKind::Dropped`] says.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        session: Arc<nvml::Session>,
    ) -> Result<(Self, mpsc::Receiver<nvml::Event>), nvml::Error> {
        let (messages, incoming) = std::sync::mpsc::channel();
        let (inventory_sender, inventory) = watch::channel(Arc::default());
        let (topology_sender, topology) = watch::channel(Arc::default());
        let (event_sender, events) = mpsc::channel(BACKLOG);
        let follower = Follower::new(
            Arc::clone(&session),
            messages.clone(),
            inventory_sender,
            topology_sender,
            event_sender,
        );
        std::thread::Builder::new()
            .name("hardware".to_owned())
            .stack_size(STACK)
            .spawn(move || follower.follow(&incoming))
            .map_err(|error| nvml::Error::System {
                what: "cannot start the thread that follows the driver",
                reason: error.to_string(),
            })?;
        let hardware = Self {
            session,
            messages,
            inventory,
            topology,
        };
        Ok((hardware, events))
    }

    /// The GPUs, now and whenever anything about them changes. The first inventory that says anything about the driver
    /// (its [`Driver`] is not `Unknown`) is complete, but for GPUs that take longer than two seconds to answer.
    pub fn inventory(&self) -> watch::Receiver<Arc<Inventory>> {
        self.inventory.clone()
    }

    /// How near the GPUs are to each other, as far as it was found out by now. Never waits.
    pub fn topology(&self) -> Arc<gpu::Topology> {
        Arc::clone(&self.topology.borrow())
    }

    /// The topology, whenever it was read anew.
    pub fn topology_changes(&self) -> watch::Receiver<Arc<gpu::Topology>> {
        self.topology.clone()
    }

    /// The driver, for other reads. Calls block: not for async code.
    ///
    /// # Errors
    /// There is no driver, or it is shut while the hardware is [paused](Self::pause).
    pub fn driver(&self) -> Result<nvml::Driver, nvml::Error> {
        self.session.driver()
    }

    /// A GPU did not answer somebody else: it is looked at, and if it does not answer here either, it is in trouble.
    pub fn doubt(&self, uuid: &str) {
        // Without a thread to hear it, nothing is followed either.
        let _ = self.messages.send(Message::Doubt(uuid.to_owned()));
    }

    /// Lets go of all GPUs, since MIG manager can change their mode and reset them only while no process holds them.
    /// Until [`resume`](Self::resume), or for `at_most` that long, GPUs that can be cut are in trouble
    /// ([`Cause::Reshaping`]): nobody sees what they become. Others stay as they are.
    ///
    /// # Errors
    /// A driver call does not come back, so that the driver stays open.
    pub fn pause(
        &self,
        at_most: Duration,
    ) -> impl Future<Output = Result<(), nvml::Error>> + use<> {
        let (reply, answer) = oneshot::channel();
        let until = Instant::now() + at_most;
        // Now and not when the future is first polled, so that a `resume` that follows comes second.
        // Without a thread to answer, nothing is followed either.
        let _ = self.messages.send(Message::Pause { until, reply });
        async move { answer.await.unwrap_or(Ok(())) }
    }

    /// Takes the GPUs up again and looks at all of them.
    pub fn resume(&self) {
        let _ = self.messages.send(Message::Resume);
    }
}

impl Drop for Hardware {
    fn drop(&mut self) {
        let _ = self.messages.send(Message::Stop);
    }
}
