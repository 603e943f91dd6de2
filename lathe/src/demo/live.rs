//! The demo as people watch it: a live picture on a terminal, or lines when the output goes elsewhere.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use crossterm::{cursor, execute, queue, style, terminal};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::feed::{Feed, Update, label_lines};
use super::picture;
use super::stage::Stage;
use super::view::{Picture, bar, draw};
use crate::output::{say, write};

/// Temperatures and power drift without anything happening: redraw for them.
const DRIFT: Duration = Duration::from_secs(1);

/// Steps remembered: more than any terminal shows.
const REMEMBERED: usize = 500;

/// Width of a terminal that does not tell.
const USUAL_SIZE: (u16, u16) = (100, 30);

/// What the demo says first, live or not.
fn header(stage: &Stage) -> anyhow::Result<Vec<String>> {
    let kubeconfig = stage.kubeconfig.display();
    let root = stage.hardware.root().display();
    let node = &stage.node_name;
    // The path it was started by, since it need not be on anybody's PATH.
    let lathe = std::env::current_exe().unwrap_or_else(|_| "lathe".into());
    let lathe = lathe.display();
    // The half of a GPU that all-balanced makes one instance: the upper one of eight memory slices, the lower one of four.
    let eight = gpus(stage)?.first().is_none_or(|gpu| gpu.slices == 8);
    let half = if eight { "2/0" } else { "1/0" };
    Ok(vec![
        format!("Lathe demo: {node}, simulated. Ctrl-C ends it and removes everything."),
        format!("  export KUBECONFIG={kubeconfig}"),
        format!("  curl http://{}/metrics", stage.metrics),
        "Three things to try in another terminal:".to_owned(),
        format!("  kubectl label node {node} --overwrite nvidia.com/mig.config=all-balanced"),
        format!("  {lathe} sim --root {root} run-workload --gpu 0 --instance {half} --name train"),
        "    then label the node all-disabled: kubectl get events says what is in the way"
            .to_owned(),
        format!("  {lathe} sim --root {root} inject lost --gpu 1"),
        "    the other GPUs stay labelled and measured; sim reset 1 brings it back".to_owned(),
    ])
}

/// Prints what happens, line by line, until `shutdown` is cancelled.
///
/// # Errors
/// A part failed, or the output cannot be written.
pub(crate) async fn print(stage: &mut Stage, shutdown: &CancellationToken) -> anyhow::Result<()> {
    let began = Instant::now();
    write(&(header(stage)?.join("\n") + "\n"))?;
    let mut feed = Feed::of(stage)?;
    let (mut bars, mut labels) = (Vec::new(), Vec::new());
    loop {
        let update = tokio::select! {
            update = feed.next(stage) => update?,
            () = shutdown.cancelled() => return Ok(()),
        };
        let at = began.elapsed().as_secs_f64();
        match update {
            Update::Step(line) => write(&format!("[{at:8.3}] {line}\n"))?,
            Update::Labels(state) => {
                let now = label_lines(&state);
                if now != labels {
                    write(&format!("[{at:8.3}] labels {}\n", now.join(" ")))?;
                }
                labels = now;
            }
            Update::Hardware => {
                let now = drawn_bars(stage)?;
                for (index, line) in now.iter().enumerate() {
                    if bars.get(index) != Some(line) {
                        write(&format!("[{at:8.3}] GPU {index} {line}\n"))?;
                    }
                }
                bars = now;
            }
        }
    }
}

fn gpus(stage: &Stage) -> anyhow::Result<Vec<super::view::GpuBar>> {
    let node = stage.hardware.state()?;
    Ok(picture::bars(&node, sim_nvml::store::now_us(&node)))
}

fn drawn_bars(stage: &Stage) -> anyhow::Result<Vec<String>> {
    let width = usize::from(USUAL_SIZE.0);
    Ok(gpus(stage)?.iter().map(|gpu| bar(gpu, width)).collect())
}

/// Shows a live picture until `shutdown` is cancelled.
///
/// # Errors
/// A part failed, or the terminal cannot be written.
pub(crate) async fn show(stage: &mut Stage, shutdown: &CancellationToken) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut picture = Picture {
        header: header(stage)?,
        gpus: gpus(stage)?,
        ..Picture::default()
    };
    let mut feed = Feed::of(stage)?;
    let mut resized = signal(SignalKind::window_change()).context("watching the window's size")?;
    let mut drift = tokio::time::interval(DRIFT);
    let screen = Screen::take()?;
    loop {
        screen.draw(&picture)?;
        tokio::select! {
            update = feed.next(stage) => match update? {
                Update::Step(line) => {
                    let at = began.elapsed().as_secs_f64();
                    picture.steps.push(format!("{at:8.3}  {line}"));
                    let extra = picture.steps.len().saturating_sub(REMEMBERED);
                    picture.steps.drain(..extra);
                }
                Update::Labels(state) => picture.labels = label_lines(&state),
                Update::Hardware => picture.gpus = gpus(stage)?,
            },
            _ = drift.tick() => picture.gpus = gpus(stage)?,
            _ = resized.recv() => {}
            () = shutdown.cancelled() => break,
        }
    }
    drop(screen);
    Ok(say("ending: parts, API server and simulated node\n")?)
}

/// The terminal's other screen, given back when dropped.
struct Screen;

impl Screen {
    fn take() -> io::Result<Self> {
        execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(Self)
    }

    fn draw(&self, picture: &Picture) -> io::Result<()> {
        let (columns, rows) = terminal::size().unwrap_or(USUAL_SIZE);
        let mut out = io::stdout().lock();
        queue!(out, cursor::MoveTo(0, 0))?;
        for line in draw(picture, usize::from(columns), usize::from(rows)) {
            queue!(
                out,
                style::Print(line),
                terminal::Clear(terminal::ClearType::UntilNewLine),
                cursor::MoveToNextLine(1)
            )?;
        }
        queue!(out, terminal::Clear(terminal::ClearType::FromCursorDown))?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing better is left to try on a terminal that does not take this.
        let _ = execute!(io::stdout(), cursor::Show, terminal::LeaveAlternateScreen);
    }
}
