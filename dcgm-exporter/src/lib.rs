//! GPU metrics for Prometheus, named and labelled as dcgm-exporter does, read from NVML.
//!
//! # How values travel
//! A collector thread reads all GPUs at once (one batch of driver calls per GPU, on that GPU's own thread), renders the
//! page and publishes it. A scrape gets the last page and touches neither the driver nor a lock that anyone holds for long,
//! so its time does not depend on the hardware, and any number of scrapers cost the driver nothing. Values are therefore at
//! most one interval old, as in dcgm-exporter, plus what a hanging driver call may take; the page tells their time. Events
//! (an XID error, a changed MIG layout, a lost GPU) make a new page at once.
//!
//! # Differences from dcgm-exporter
//! - Label values are escaped; a family has one `HELP` and one `TYPE` line; pages have the content type of text format 0.0.4.
//! - A GPU that fails costs its own series, not the page; `lathe_exporter_gpu_failed` says which call failed. Its last XID
//!   error stays on the page, since that still holds and often says why.
//! - A changed MIG layout shows without a restart, and so does a driver that comes, goes, or comes back. Nothing has to stop
//!   the exporter for the change: it lets go of the GPUs, and the page stays as it was.
//! - Profiling families come from NVML's GPM, so they exist on Hopper and later only.
//! - The NVLink rate is absent, not 0, until there are two readings.
//! - An XID error of a whole GPU is shown on each of its instances that has none of its own.
//! - A GPU instance without a compute instance is not an entity.
//! - Pods: a device that several containers share carries no pod labels, since its values are none of theirs alone; of a
//!   pod that has ended and one that runs, the one that runs is named; any resource in `nvidia.com` counts.

mod collector;
mod convert;
pub mod counters;
mod events;
pub mod fields;
#[cfg(test)]
mod golden;
pub mod labels;
pub mod page;
mod pods;
mod rates;
mod read;
pub mod selector;
mod state;
mod steady;
pub mod value;
mod xid;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use cluster::serve::{BindError, Limits, Reply, Routes, Server};
use nvml::Session;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

pub use pods::Source as PodSource;

use collector::{Collector, Page, Wake};
use counters::Counters;
use labels::LabelStyle;
use selector::Selector;

/// Driver calls happen on threads of their own; this one renders.
const STACK: usize = 256 * 1024;

const LANDING: &str = "<html><head><title>GPU exporter</title></head><body><h1>GPU exporter</h1>\
    <p><a href=\"/metrics\">Metrics</a></p></body></html>\n";

/// What the exporter does.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen: `HOST:PORT`, or `:PORT` for all addresses.
    pub address: String,
    /// Time between two collections; at least 100 ms, or values that need two readings come less often.
    pub interval: Duration,
    /// What to export.
    pub selector: Selector,
    /// Which families and labels.
    pub counters: Counters,
    /// How labels look.
    pub style: LabelStyle,
    /// Whether `/health` says 503 while no GPU can be read.
    pub health_requires_gpus: bool,
    /// Where to learn which pods hold GPUs; `None` leaves the labels of pods out.
    pub pods: Option<PodSource>,
}

/// Why the exporter cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The selector names a GPU that is not there.
    #[error("device selector: there is no GPU {number}, only {count} GPUs")]
    NoSuchGpu {
        /// What was named.
        number: u32,
        /// How many there are.
        count: usize,
    },
    /// The selector names an instance that is not there.
    #[error("device selector: there is no instance {number} (GPU {gpu} has no such instance)")]
    NoSuchInstance {
        /// What was named.
        number: u32,
        /// The GPU it would be on.
        gpu: u32,
    },
    /// The path of the kubelet's socket cannot be used.
    #[error(transparent)]
    Kubelet(#[from] kubelet::Error),
    /// The system gives no thread.
    #[error("cannot start the collector thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The collector ended by itself, which it never should.
    #[error("the collector thread died; its last words are in the log")]
    CollectorDied,
}

/// An exporter that has its port.
#[derive(Debug)]
pub struct Exporter {
    server: Server,
    config: Config,
}

impl Exporter {
    /// Takes the port.
    ///
    /// # Errors
    /// [`Error::Bind`].
    pub async fn bind(config: Config) -> Result<Self, Error> {
        let server = Server::bind(&config.address, Limits::default()).await?;
        Ok(Self { server, config })
    }

    /// Where it listens, with the real port when 0 was asked for.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.server.address()
    }

    /// Serves until `shutdown` is cancelled.
    ///
    /// # Errors
    /// A named device does not exist, or the collector cannot run.
    pub async fn run(
        self,
        session: Arc<Session>,
        shutdown: CancellationToken,
    ) -> Result<(), Error> {
        let config = self.config;
        let nothing = config.counters.without_source();
        if !nothing.is_empty() {
            tracing::warn!(
                fields = nothing.join(" "),
                "these fields are not collected here: they stay absent"
            );
        }
        let (wake, wakes) = mpsc::channel();
        let (follower, pods) = follower(config.pods, &wake)?;
        let (pages, page) = watch::channel(Page::default());
        let (ended, end) = oneshot::channel();
        let plan = read::Plan::new(config.counters, config.style);
        let look = wake.clone();
        // The collector may have ended.
        let told = move || look.send(Wake::Event).unwrap_or(());
        let _give_way = session
            .give_way(told)
            .inspect_err(|error| tracing::warn!(%error, "MIG changes may find the GPUs in use"));
        let collector = Collector::new(
            session,
            plan,
            config.selector,
            config.interval,
            pods,
            wake.clone(),
        );
        let _stop = StopOnDrop(wake);
        std::thread::Builder::new()
            .name("exporter-collect".to_owned())
            .stack_size(STACK)
            .spawn(move || {
                // Nobody listens when the exporter is over already.
                let _ = ended.send(collector.run(&wakes, &pages));
            })
            .map_err(Error::Thread)?;
        let over = shutdown.child_token();
        let serving = self
            .server
            .run(routes(page, config.health_requires_gpus), over.clone());
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            () = serving.as_mut() => Ok(()),
            () = follower => Ok(()),
            result = end => {
                over.cancel();
                serving.await;
                result.unwrap_or(Err(Error::CollectorDied))
            }
        }
    }
}

/// Takes the port and serves until `shutdown` is cancelled.
///
/// # Errors
/// [`Error`].
pub async fn run(
    config: Config,
    session: Arc<Session>,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let exporter = Exporter::bind(config).await?;
    if let Ok(address) = exporter.address() {
        tracing::info!(%address, "serving metrics");
    }
    exporter.run(session, shutdown).await
}

type Follower = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Follows which pods hold GPUs, when that is wanted; never ends.
fn follower(
    source: Option<PodSource>,
    wake: &Sender<Wake>,
) -> Result<(Follower, Option<watch::Receiver<pods::Known>>), Error> {
    let Some(source) = source else {
        return Ok((Box::pin(std::future::pending()), None));
    };
    let client = pods::client(&source)?;
    let (sender, known) = watch::channel(pods::Known::default());
    let follower = pods::follow(client, source.resources, sender, wake.clone());
    Ok((Box::pin(follower), Some(known)))
}

struct StopOnDrop(Sender<Wake>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.send(Wake::Stop);
    }
}

fn routes(page: watch::Receiver<Page>, health_requires_gpus: bool) -> Routes {
    let health = page.clone();
    Routes::new()
        .get("/", || async { Reply::html(LANDING) })
        .get("/health", move || {
            let healthy = !health_requires_gpus || health.borrow().has_gpus;
            async move {
                Reply::probe(
                    healthy
                        .then_some(())
                        .ok_or_else(|| "no GPU can be read".to_owned()),
                )
            }
        })
        .get("/metrics", move || {
            let mut page = page.clone();
            async move {
                // Only before the first collection is there nothing; the server bounds the wait.
                match page.wait_for(|page| !page.text.is_empty()).await {
                    Ok(page) => Reply::metrics(page.text.clone()),
                    Err(_) => Reply::probe(Err("the exporter is shutting down".to_owned())),
                }
            }
        })
}
