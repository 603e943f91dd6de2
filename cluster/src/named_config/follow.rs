//! The task that keeps a [`Selection`] up to date: looks at the label and the configurations, and again when either changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::time::{Instant, timeout_at};

use super::choose::choose;
use super::config_map::ConfigMap;
use super::folder::Folder;
use super::{Choice, Rules, Selection, Source, Trouble};
use crate::node::{Node, Observed};

/// A label that was just changed is often changed again, by a person or by a controller. A part that would begin to change
/// what it offers in between would do it twice.
const SETTLE: Duration = Duration::from_millis(100);

/// A node that is changed all the time is looked at all the same.
const LONGEST_SETTLE: Duration = Duration::from_secs(1);

/// Follows what `node` should have. Must be called inside a tokio runtime; ends when all receivers are dropped.
///
/// The receiver wakes only when the selection changes. The first one is there at once: nothing in force, and what is being
/// waited for.
pub fn follow(node: &Node, rules: Rules, source: &Source) -> Receiver<Selection> {
    let shelf = Shelf::open(node, source);
    let first = Selection {
        in_force: None,
        trouble: Some(Trouble::NodeUnknown {
            node: node.name().to_owned(),
        }),
    };
    let (sender, receiver) = channel(first);
    tokio::spawn(keep(node.clone(), rules, shelf, sender));
    receiver
}

async fn keep(node: Node, rules: Rules, mut shelf: Shelf, selection: Sender<Selection>) {
    let mut seen = node.subscribe();
    loop {
        let observed = seen.borrow_and_update().clone();
        let chosen = look(node.name(), &observed, &rules, &shelf);
        selection.send_if_modified(|selection| take_in(selection, chosen));
        tokio::select! {
            changed = seen.changed() => {
                if changed.is_err() {
                    return;
                }
                if selection.borrow().in_force.is_some() {
                    settle(&mut seen).await;
                }
            }
            () = shelf.changed() => {}
            () = selection.closed() => return,
        }
    }
}

/// Returns when the node was not changed for a while.
async fn settle(seen: &mut Receiver<Observed>) {
    let end = Instant::now() + LONGEST_SETTLE;
    loop {
        let quiet = (Instant::now() + SETTLE).min(end);
        match timeout_at(quiet, seen.changed()).await {
            Ok(Ok(())) if Instant::now() < end => {}
            _ => return,
        }
    }
}

fn look(node: &str, observed: &Observed, rules: &Rules, shelf: &Shelf) -> Result<Choice, Trouble> {
    let node = node.to_owned();
    let state = match observed {
        Observed::NotYet => return Err(Trouble::NodeUnknown { node }),
        Observed::Absent => return Err(Trouble::NodeAbsent { node }),
        Observed::Present(state) => state,
    };
    let label = state.labels.get(&rules.label).map(String::as_str);
    let chosen = choose(label, rules, &shelf.names()?, &shelf.place)?;
    let content = match &chosen.name {
        Some(name) => shelf.content(name)?,
        None => Arc::from(""),
    };
    Ok(Choice {
        name: chosen.name,
        content,
        reason: chosen.reason,
    })
}

/// What is in force stays so until something else can be; the answer is whether anything changed.
fn take_in(selection: &mut Selection, chosen: Result<Choice, Trouble>) -> bool {
    let next = match chosen {
        Ok(choice) => Selection {
            in_force: Some(choice),
            trouble: None,
        },
        Err(trouble) => Selection {
            in_force: selection.in_force.clone(),
            trouble: Some(trouble),
        },
    };
    let is_new = next != *selection;
    *selection = next;
    is_new
}

/// Where the configurations lie, opened.
#[derive(Debug)]
struct Shelf {
    place: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Folder(Folder),
    ConfigMap(ConfigMap),
}

impl Shelf {
    fn open(node: &Node, source: &Source) -> Self {
        let place = source.to_string();
        let kind = match source {
            Source::Folder(path) => Kind::Folder(Folder::new(path, place.clone())),
            Source::ConfigMap { namespace, name } => Kind::ConfigMap(ConfigMap::watch(
                node.client(),
                namespace,
                name,
                place.clone(),
            )),
        };
        Self { place, kind }
    }

    async fn changed(&mut self) {
        match &mut self.kind {
            Kind::Folder(folder) => folder.changed().await,
            Kind::ConfigMap(config_map) => config_map.changed().await,
        }
    }

    fn names(&self) -> Result<BTreeSet<String>, Trouble> {
        match &self.kind {
            Kind::Folder(folder) => folder.names(),
            Kind::ConfigMap(config_map) => config_map.names(),
        }
    }

    fn content(&self, name: &str) -> Result<Arc<str>, Trouble> {
        match &self.kind {
            Kind::Folder(folder) => folder.content(name),
            Kind::ConfigMap(config_map) => config_map.content(name),
        }
    }
}
