//! The main story, played without a terminal: label the node, wait for the layout, look at labels and metrics, go back.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use cluster::node::{Change, Node, NodeState};

use super::http;
use super::stage::{Stage, part_ended};
use crate::output::say;

/// What a step may take at most, before the story gives up. The slowest is a mode change on eight GPUs (about 5 s).
const STEP_BOUND: Duration = Duration::from_secs(120);

/// How long metrics may lag behind labels: a few collection intervals, which are long on a machine that is busy.
const METRICS_BOUND: Duration = Duration::from_secs(60);
const METRICS_PAUSE: Duration = Duration::from_millis(200);

/// A GPU-level family that every entity of a page has.
const FAMILY: &str = "DCGM_FI_DEV_FB_FREE";

/// Labels that `all-balanced` gives a DGX H100: two 1g.10gb, one 2g.20gb and one 3g.40gb on each of eight GPUs.
const BALANCED: [(&str, usize); 3] = [("1g.10gb", 16), ("2g.20gb", 8), ("3g.40gb", 8)];
const GPUS: usize = 8;

struct Teller {
    began: Instant,
    last: Instant,
}

impl Teller {
    fn tell(&mut self, what: &str) -> io::Result<()> {
        let now = Instant::now();
        let told = say(&format!(
            "[{:7.3} s] {what} ({:.3} s)\n",
            (now - self.began).as_secs_f64(),
            (now - self.last).as_secs_f64()
        ));
        self.last = now;
        told
    }
}

/// Plays the story.
///
/// # Errors
/// The first step that did not come out as told, and why.
pub(crate) async fn play(stage: &mut Stage, began: Instant) -> anyhow::Result<()> {
    let node = Node::watch(stage.client.clone(), &stage.node_name);
    tokio::select! {
        told = tell(stage.metrics, &stage.node_name, &node, began) => told,
        error = part_ended(&mut stage.parts) => Err(error),
    }
}

async fn tell(
    metrics: std::net::SocketAddr,
    name: &str,
    node: &Node,
    began: Instant,
) -> anyhow::Result<()> {
    let mut teller = Teller { began, last: began };
    teller.tell(&format!("node {name}, API server and parts are up"))?;

    until(node, "the node's first labels", |state| {
        Ok(label(state, "nvidia.com/gpu.count") == Some("8")
            && label(state, "nvidia.com/mig.capable") == Some("true"))
    })
    .await?;
    expect_entities(metrics, &[("", GPUS)]).await?;
    teller.tell("8 GPUs are labelled and measured")?;

    set_layout(node, "all-balanced").await?;
    teller.tell("labelled nvidia.com/mig.config=all-balanced")?;
    until_applied(node).await?;
    teller.tell("nvidia.com/mig.config.state=success")?;
    until(node, "labels of the new layout", |state| {
        Ok(BALANCED.iter().all(|(profile, count)| {
            label(state, &format!("nvidia.com/mig-{profile}.count")) == Some(&count.to_string())
        }))
    })
    .await?;
    teller.tell("labels count 16 × 1g.10gb, 8 × 2g.20gb, 8 × 3g.40gb")?;
    expect_entities(metrics, &BALANCED).await?;
    teller.tell("metrics show the 32 instances")?;

    set_layout(node, "all-disabled").await?;
    teller.tell("labelled nvidia.com/mig.config=all-disabled")?;
    until_applied(node).await?;
    teller.tell("nvidia.com/mig.config.state=success")?;
    until(node, "labels of whole GPUs", |state| {
        Ok(!state
            .labels
            .keys()
            .any(|key| key.starts_with("nvidia.com/mig-"))
            && label(state, "nvidia.com/gpu.replicas") == Some("1"))
    })
    .await?;
    expect_entities(metrics, &[("", GPUS)]).await?;
    teller.tell("labels and metrics show 8 whole GPUs")?;
    Ok(())
}

fn label<'a>(state: &'a NodeState, key: &str) -> Option<&'a str> {
    state.labels.get(key).map(String::as_str)
}

/// Asks for a layout and waits until the manager has begun with it, so that an older `success` is not taken for its own.
async fn set_layout(node: &Node, name: &str) -> anyhow::Result<()> {
    node.patch_labels(&[Change::set("nvidia.com/mig.config", name)])
        .await
        .with_context(|| format!("labelling the node {name}"))?;
    until(node, "the state pending", |state| {
        Ok(label(state, "nvidia.com/mig.config.state") == Some("pending"))
    })
    .await
}

async fn until_applied(node: &Node) -> anyhow::Result<()> {
    until(node, "the state success", |state| {
        match label(state, "nvidia.com/mig.config.state") {
            Some("success") => Ok(true),
            Some("failed") => bail!("the layout could not be applied; the log above says why"),
            _ => Ok(false),
        }
    })
    .await
}

/// Waits until `holds`; `what` is what is waited for.
async fn until(
    node: &Node,
    what: &str,
    holds: impl Fn(&NodeState) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let mut seen = node.subscribe();
    seen.mark_changed();
    let deadline = tokio::time::Instant::now() + STEP_BOUND;
    loop {
        tokio::time::timeout_at(deadline, seen.changed())
            .await
            .with_context(|| format!("{what} did not come within {} s", STEP_BOUND.as_secs()))?
            .context("the watch of the node ended")?;
        let observed = seen.borrow_and_update().clone();
        if let Some(state) = observed.state()
            && holds(state)?
        {
            return Ok(());
        }
    }
}

/// Waits until the page has exactly these numbers of entities by profile; whole GPUs have the profile "".
async fn expect_entities(
    metrics: std::net::SocketAddr,
    expected: &[(&str, usize)],
) -> anyhow::Result<()> {
    let expected: BTreeMap<String, usize> = expected
        .iter()
        .map(|(profile, count)| ((*profile).to_owned(), *count))
        .collect();
    let deadline = Instant::now() + METRICS_BOUND;
    loop {
        let found = entities(&http::get(metrics, "/metrics").await?);
        if found == expected {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{FAMILY} has {found:?} series by profile; expected {expected:?}");
        }
        tokio::time::sleep(METRICS_PAUSE).await;
    }
}

/// Entities of a page by MIG profile.
fn entities(page: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in page.lines() {
        let Some(labels) = line
            .strip_prefix(FAMILY)
            .and_then(|rest| rest.strip_prefix('{'))
        else {
            continue;
        };
        let profile = labels
            .split_once("GPU_I_PROFILE=\"")
            .and_then(|(_, rest)| rest.split_once('"'))
            .map_or("", |(profile, _)| profile);
        *counts.entry(profile.to_owned()).or_insert(0) += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::entities;
    use std::collections::BTreeMap;

    #[test]
    fn entities_are_counted_by_profile() {
        let page = "# HELP DCGM_FI_DEV_FB_FREE Free memory.\n# TYPE DCGM_FI_DEV_FB_FREE gauge\n\
            DCGM_FI_DEV_FB_FREE{gpu=\"0\",GPU_I_PROFILE=\"1g.10gb\",GPU_I_ID=\"7\"} 1\n\
            DCGM_FI_DEV_FB_FREE{gpu=\"0\",GPU_I_PROFILE=\"1g.10gb\",GPU_I_ID=\"8\"} 1\n\
            DCGM_FI_DEV_FB_FREE{gpu=\"1\"} 1\n\
            DCGM_FI_DEV_FB_USED{gpu=\"1\"} 1\n";
        let expected = BTreeMap::from([("1g.10gb".to_owned(), 2), (String::new(), 1)]);
        assert_eq!(entities(page), expected);
    }
}
