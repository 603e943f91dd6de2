//! What a killed apply left on GPUs that the present request does not speak of: finished, or else undone.

use gpu::Goal;

use super::crew::{Round, tasks};
use super::error::{Cause, Error, Left};
use super::event::{GpuId, Progress, Purpose};
use super::journal::{Entry, Journal};
use super::look::Node;
use super::reach::Limit;
use super::request::Options;

/// What became of it.
#[derive(Default)]
pub(crate) struct Recovered {
    /// Entries that stay in the journal: neither finished nor undone.
    pub(crate) orphans: Vec<Entry>,
    /// Their GPUs and why.
    pub(crate) unrecovered: Vec<Left>,
}

/// Finishes or undoes the entries, each GPU for itself. What a GPU is now counts, not which step was announced last.
pub(crate) fn recover(
    options: &Options,
    node: &Node,
    entries: Vec<Entry>,
    progress: &Progress<'_>,
) -> Result<Recovered, Error> {
    let mut recovered = Recovered::default();
    if entries.is_empty() {
        return Ok(recovered);
    }
    let journal = Journal::resume(&options.state_dir)?;
    let round = Round {
        journal: &journal,
        purpose: Purpose::Recover,
        skip_reset: options.skip_reset,
        in_use_wait: options.in_use_wait,
        stop_on_failure: false,
        limit: Limit::none(),
        progress,
    };
    let finish = entries.iter().map(|e| (&*e.uuid, e.goal.clone()));
    let ends = round.run(&tasks(node, finish));
    let unfinished: Vec<&Entry> = entries
        .iter()
        .filter(|e| {
            ends.iter()
                .any(|(id, end)| id.uuid == e.uuid && end.result.is_err())
        })
        .collect();
    let undo = unfinished
        .iter()
        .map(|e| (&*e.uuid, Goal::Layout(e.before.clone())));
    for (gpu, end) in round.run(&tasks(node, undo)) {
        if let Err(cause) = end.result {
            recovered.keep(gpu.uuid.as_str(), &unfinished);
            recovered.unrecovered.push(Left {
                gpu,
                cause: Some(cause),
            });
        }
    }
    for entry in entries
        .iter()
        .filter(|e| !ends.iter().any(|(id, _)| id.uuid == e.uuid))
    {
        recovered.absent(node, entry);
    }
    Ok(recovered)
}

/// Whether something can be done about an entry now. A GPU that is not seen may come back as long as some GPU of the node
/// does not answer; otherwise it was taken out, and the entry is void.
pub(crate) fn is_due(node: &Node, entry: &Entry) -> bool {
    node.seen().any(|seen| seen.id.uuid == entry.uuid) || silent(node).is_none()
}

/// The first GPU that does not answer, and what it says.
fn silent(node: &Node) -> Option<(u32, &nvml::Error)> {
    node.gpus
        .iter()
        .find_map(|g| Some((g.index, g.seen.as_ref().err()?)))
}

impl Recovered {
    fn keep(&mut self, uuid: &str, entries: &[&Entry]) {
        let own = entries.iter().filter(|e| e.uuid == uuid);
        self.orphans.extend(own.map(|e| (*e).clone()));
    }

    /// See [`is_due`].
    fn absent(&mut self, node: &Node, entry: &Entry) {
        match silent(node) {
            Some((index, error)) => {
                self.orphans.push(entry.clone());
                self.unrecovered.push(Left {
                    gpu: GpuId {
                        index,
                        uuid: entry.uuid.clone(),
                    },
                    cause: Some(Cause::Driver {
                        doing: "reading its state".to_owned(),
                        error: error.clone(),
                    }),
                });
            }
            None => {
                tracing::warn!(uuid = entry.uuid, "a GPU of an interrupted apply is gone");
            }
        }
    }
}
