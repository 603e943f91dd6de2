//! Stands in for Node Feature Discovery's worker and master, which a real cluster has: what the feature file says becomes
//! labels of the Node, and labels that the file no longer has are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use cluster::node::{Change, Node};
use notify::Watcher as _;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Where features lie under the node root.
const FEATURES: &str = "etc/kubernetes/node-feature-discovery/features.d";

/// The annotation in which NFD's master remembers the labels it owns.
const OWNED: &str = "nfd.node.kubernetes.io/feature-labels";

/// Labels of one feature file: `key=value` lines, `#` starts a comment, a key alone means `true`.
fn parse(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let (key, value) = line.split_once('=').unwrap_or((line, "true"));
            (key.to_owned(), value.to_owned())
        })
        .collect()
}

/// What makes `owned` (labels of the last time) into `wanted`.
fn changes(owned: &BTreeSet<String>, wanted: &BTreeMap<String, String>) -> Vec<Change> {
    let gone = owned.iter().filter(|key| !wanted.contains_key(*key));
    gone.map(Change::remove)
        .chain(wanted.iter().map(|(key, value)| Change::set(key, value)))
        .collect()
}

/// Follows the feature file until `shutdown` is cancelled.
///
/// # Errors
/// The folder cannot be watched, or the Node cannot be labelled.
pub(crate) async fn run(
    root: PathBuf,
    node: Node,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let folder = root.join(FEATURES);
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let changed = Arc::new(Notify::new());
    let wake = Arc::clone(&changed);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Our own reading is an access too; waking for it would never end.
        if !event.is_ok_and(|event| event.kind.is_access()) {
            wake.notify_one();
        }
    })
    .context("starting to watch files")?;
    watcher
        .watch(&folder, notify::RecursiveMode::NonRecursive)
        .with_context(|| format!("watching {}", folder.display()))?;
    let mut owned = BTreeSet::new();
    loop {
        let wanted = match std::fs::read_to_string(folder.join("gfd")) {
            Ok(text) => parse(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error).context("reading the feature file"),
        };
        node.patch_labels(&changes(&owned, &wanted)).await?;
        owned = wanted.into_keys().collect();
        let list: Vec<&str> = owned.iter().map(String::as_str).collect();
        node.patch_annotations(&[Change::set(OWNED, list.join(","))])
            .await?;
        tokio::select! {
            () = changed.notified() => {}
            () = shutdown.cancelled() => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Change, changes, parse};
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn a_feature_file_is_read_as_nfd_reads_it() {
        let labels = parse("# comment\n\nnvidia.com/gpu.count=8\nnvidia.com/flag\n empty= \n");
        let expected = BTreeMap::from(
            [
                ("nvidia.com/gpu.count", "8"),
                ("nvidia.com/flag", "true"),
                ("empty", ""),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        assert_eq!(labels, expected);
    }

    #[test]
    fn a_label_that_the_file_lost_is_removed() {
        let owned = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
        let wanted = BTreeMap::from([
            ("b".to_owned(), "1".to_owned()),
            ("c".to_owned(), "2".to_owned()),
        ]);
        assert_eq!(
            changes(&owned, &wanted),
            [
                Change::remove("a"),
                Change::set("b", "1"),
                Change::set("c", "2")
            ]
        );
    }
}
