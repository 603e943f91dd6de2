//! `lathe demo`: a simulated DGX H100, an API server and the parts, in one process and one command.

mod feed;
mod http;
mod live;
mod nfd;
mod picture;
mod stage;
mod story;
mod view;

use std::io::{self, IsTerminal as _};
use std::time::Instant;

use anyhow::Context as _;
use sim_nvml::model::latency::Latency;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use stage::{Setting, Stage};

/// The preset that the story is written for.
const STORY_PRESET: &str = "dgx-h100";

/// Show Lathe at work on a simulated node; needs no GPU and no cluster
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Play the main story once, without a terminal, and exit
    #[arg(long)]
    once: bool,

    /// The simulated node
    #[arg(long, value_name = "PRESET", default_value = STORY_PRESET, conflicts_with = "once",
          value_parser = clap::builder::PossibleValuesParser::new(sim_nvml::presets::names()))]
    preset: String,

    /// How long driver calls take: as on real hardware, or no time at all
    #[arg(long, value_name = "MODEL", default_value = "realistic", value_parser = crate::sim::latency())]
    latency: Latency,

    /// Port of the API server; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    api_port: u16,

    /// Port of the exporter; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    metrics_port: u16,
}

impl Args {
    /// What to log when nothing else was asked for: the live view and the story have their own lines.
    pub(crate) fn default_log(&self) -> &'static str {
        "error"
    }
}

/// Runs the demo until the story is over, or until `shutdown` is cancelled.
///
/// # Errors
/// The world cannot be built, a part failed, or the story came out otherwise.
pub(crate) async fn run(args: Args, shutdown: CancellationToken) -> anyhow::Result<()> {
    let began = Instant::now();
    // A closed terminal ends a demo as Ctrl-C does: nothing stays behind.
    let mut hangup = signal(SignalKind::hangup()).context("watching for a closed terminal")?;
    let asked = shutdown.clone();
    tokio::spawn(async move {
        hangup.recv().await;
        asked.cancel();
    });
    let mut stage = Stage::open(Setting {
        preset: &args.preset,
        latency: args.latency,
        api_port: args.api_port,
        metrics_port: args.metrics_port,
    })
    .await?;
    let played = if args.once {
        tokio::select! {
            played = story::play(&mut stage, began) => played,
            () = shutdown.cancelled() => Err(anyhow::anyhow!("interrupted")),
        }
    } else if std::io::stdout().is_terminal() {
        live::show(&mut stage, &shutdown).await
    } else {
        live::print(&mut stage, &shutdown).await
    };
    let closed = stage.close().await;
    match played {
        Err(error) if is_unread(&error) => closed,
        played => played.and(closed),
    }
}

/// Whether nobody watches any more, which ends a demo as Ctrl-C does.
fn is_unread(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
