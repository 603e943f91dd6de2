//! What containers on the node hold, followed over time: lists of pod resources at the moments that need one.
//!
//! The API has no watch. So a list is asked for at the start, soon after something was given out ([`Holdings::nudge`]), when
//! somebody has to be sure ([`Holdings::list`]), and otherwise once a minute, because nobody tells that a pod has ended.
//!
//! A kubelet that has just started lists pods as it learns of them from the API server, and admits none before it knows them
//! all. So a list that is asked for while the kubelet waits for an answer to Allocate is whole, and one that is asked for
//! without reason has to wait until the kubelet has settled.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use futures::FutureExt as _;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::pod_resources::{Limits, PodResources, PodResourcesClient};

/// When lists are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Between two lists that nobody asked for, and at most between two tries.
    pub slow: Duration,
    /// From a nudge to the list, and from a failure to the next try: more than the kubelet needs to note what it was given,
    /// so that one list serves a burst.
    pub quiet: Duration,
    /// How old a kubelet has to be before a list is taken without reason.
    pub settled: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            slow: Duration::from_secs(60),
            quiet: Duration::from_secs(1),
            settled: Duration::from_secs(10),
        }
    }
}

/// The lists of one kubelet's socket.
#[derive(Debug)]
pub struct Holdings {
    socket: PathBuf,
    client: PodResourcesClient,
    pace: Pace,
    nudged: Notify,
    /// The kubelet that answered last.
    answered: Mutex<Option<Life>>,
}

/// One life of a kubelet, told apart by its socket: which file, and when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Life {
    file: (u64, u64),
    made: SystemTime,
}

impl Life {
    fn of(socket: &Path) -> Option<Self> {
        let file = std::fs::metadata(socket).ok()?;
        Some(Self {
            file: (file.dev(), file.ino()),
            made: file.modified().ok()?,
        })
    }

    /// `None` when the clock was set back since.
    fn age(self) -> Option<Duration> {
        self.made.elapsed().ok()
    }
}

/// A list, and when it was asked for.
#[derive(Clone, Debug)]
pub struct List {
    /// What is in it was true at some moment after this.
    pub asked: Instant,
    /// The pods.
    pub pods: Vec<PodResources>,
}

impl Holdings {
    /// Those that the kubelet serves at `socket`. It need not be there.
    ///
    /// # Errors
    /// The path is not UTF-8.
    pub fn new(socket: &Path, limits: Limits, pace: Pace) -> Result<Self, Error> {
        Ok(Self {
            socket: socket.to_owned(),
            client: PodResourcesClient::new(socket, limits)?,
            pace,
            nudged: Notify::new(),
            answered: Mutex::default(),
        })
    }

    /// Whether the kubelet that answered last still runs. One that was restarted has to be asked anew.
    pub fn is_current(&self) -> bool {
        let life = Life::of(&self.socket);
        life.is_some() && life == *self.answered()
    }

    /// Asks now.
    ///
    /// # Errors
    /// [`Error::Call`] or [`Error::TimedOut`]. What was known before is neither confirmed nor refuted by that.
    pub async fn list(&self) -> Result<List, Error> {
        let (asked, life) = (Instant::now(), Life::of(&self.socket));
        let pods = self.client.list().await?;
        *self.answered() = life;
        Ok(List { asked, pods })
    }

    /// Something was given out: asks soon.
    pub fn nudge(&self) {
        self.nudged.notify_one();
    }

    /// Hands lists to `take` until `shutdown`.
    pub async fn follow(&self, mut take: impl FnMut(List), shutdown: CancellationToken) {
        let Pace { slow, quiet, .. } = self.pace;
        let pauses = || {
            let pauses = ExponentialBuilder::default();
            let pauses = pauses.with_min_delay(quiet).with_max_delay(slow);
            pauses.with_jitter().without_max_times().build()
        };
        let mut failures = pauses();
        let mut failing = false;
        let mut pause = Duration::ZERO;
        loop {
            let wait = async {
                tokio::time::sleep(pause).await;
                while let Some(young) = self.unsettled() {
                    tokio::time::sleep(young).await;
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = wait => {}
                // While calls fail, a nudge would only make them more.
                () = self.nudged.notified(), if !failing => tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep(quiet) => {}
                },
            }
            // This list serves all nudges until now.
            let _ = self.nudged.notified().now_or_never();
            let list = tokio::select! {
                () = shutdown.cancelled() => return,
                list = self.list() => list,
            };
            match list {
                Ok(list) => {
                    if failing {
                        tracing::info!("the kubelet lists pod resources again");
                    }
                    (failing, failures, pause) = (false, pauses(), slow);
                    take(list);
                }
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, "the kubelet does not list pod resources; trying again");
                    }
                    failing = true;
                    pause = failures.next().unwrap_or(slow);
                }
            }
        }
    }

    /// How long the kubelet needs until its lists are whole, when nobody waits for one.
    fn unsettled(&self) -> Option<Duration> {
        let age = Life::of(&self.socket)?.age()?;
        let young = self.pace.settled.checked_sub(age);
        young.filter(|young| !young.is_zero())
    }

    fn answered(&self) -> std::sync::MutexGuard<'_, Option<Life>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
