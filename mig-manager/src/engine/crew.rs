//! Many GPUs at once: each is brought to its goal on a thread of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use gpu::Goal;
use nvml::Gpu;

use super::event::{GpuId, Progress, Purpose};
use super::journal::Journal;
use super::look::Node;
use super::reach::{End, Limit, Work, reach};

/// A GPU and where it is to go.
pub(crate) struct Task {
    id: GpuId,
    gpu: Gpu,
    goal: Goal,
}

/// The tasks for those of the goals, by UUID, whose GPU answers.
pub(crate) fn tasks<'g>(node: &Node, goals: impl Iterator<Item = (&'g str, Goal)>) -> Vec<Task> {
    let goals: BTreeMap<&str, Goal> = goals.collect();
    node.seen()
        .filter_map(|seen| {
            Some(Task {
                id: seen.id.clone(),
                gpu: seen.gpu.clone(),
                goal: goals.get(&*seen.id.uuid)?.clone(),
            })
        })
        .collect()
}

/// What all GPUs of one round share.
pub(crate) struct Round<'a> {
    pub(crate) journal: &'a Journal,
    pub(crate) purpose: Purpose,
    pub(crate) skip_reset: bool,
    pub(crate) in_use_wait: Duration,
    /// Whether the first failure stops the others before their next step.
    pub(crate) stop_on_failure: bool,
    pub(crate) limit: Limit,
    pub(crate) progress: &'a Progress<'a>,
}

impl Round<'_> {
    /// Works on all at once and waits for all.
    pub(crate) fn run(&self, tasks: &[Task]) -> Vec<(GpuId, End)> {
        let stop = AtomicBool::new(false);
        let work = Work {
            journal: self.journal,
            purpose: self.purpose,
            skip_reset: self.skip_reset,
            in_use_wait: self.in_use_wait,
            stop: &stop,
            limit: self.limit,
            progress: self.progress,
        };
        let one = |task: &Task| {
            let end = reach(&work, &task.gpu, &task.id, &task.goal);
            if self.stop_on_failure && end.result.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            end
        };
        thread::scope(|scope| {
            let one = &one;
            let running: Vec<_> = tasks
                .iter()
                .map(|task| scope.spawn(move || one(task)))
                .collect();
            let ends = running.into_iter().map(|thread| match thread.join() {
                Ok(end) => end,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            tasks.iter().map(|t| t.id.clone()).zip(ends).collect()
        })
    }
}

/// The ends of a second round count; that a GPU was touched in the first one is not forgotten.
pub(crate) fn merge(ends: &mut Vec<(GpuId, End)>, second: Vec<(GpuId, End)>) {
    for (id, end) in second {
        match ends.iter_mut().find(|(known, _)| *known == id) {
            Some((_, known)) => {
                *known = End {
                    touched: known.touched || end.touched,
                    result: end.result,
                };
            }
            None => ends.push((id, end)),
        }
    }
}
