//! One apply: hooks, recovery of what an earlier one left, all GPUs in parallel, and the way back when one fails.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use gpu::{Goal, Layout};
use nvml::Gpu;

use super::error::{Cause, Error, GpuFailure, Left, ResetNeeded};
use super::event::{Event, GpuId, Progress, Purpose};
use super::journal::{self, Entry, Journal};
use super::look::{Node, Seen, look};
use super::plan::{NodePlan, Verdict};
use super::reach::{End, Reached, Work, reach};
use super::request::{OnFailure, Options, Request};
use crate::hooks::Point;

/// What an apply came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// GPUs that were changed.
    pub changed: Vec<GpuId>,
    /// GPUs whose MIG mode waits for a reset, as `skip_reset` with `mode_only` asks for.
    pub awaiting_reset: Vec<GpuId>,
    /// GPUs of an earlier, killed apply, not spoken of by this one, that could neither be finished nor undone. They stay in
    /// the journal.
    pub unrecovered: Vec<Left>,
}

/// One apply under way.
pub(crate) struct Run<'a> {
    pub(crate) driver: &'a nvml::Driver,
    pub(crate) options: &'a Options,
    pub(crate) request: &'a Request,
    pub(crate) progress: &'a Progress<'a>,
}

/// A GPU and where it is to go.
struct Task {
    id: GpuId,
    gpu: Gpu,
    goal: Goal,
}

impl Run<'_> {
    /// Runs the hooks of the beginning and of the end around everything else.
    pub(crate) fn with_hooks(&self) -> Result<Applied, Error> {
        let result = match self.hook(Point::ApplyStart) {
            Ok(()) => self.recover_and_apply(),
            Err(source) => Err(source),
        };
        match (result, self.hook(Point::ApplyExit)) {
            (Ok(_), Err(Error::Hook { source, .. })) => Err(Error::Hook {
                source,
                changed: true,
            }),
            (result, Ok(())) => result,
            (result, Err(error)) => {
                tracing::error!(%error, "the apply failed before already");
                result
            }
        }
    }

    fn hook(&self, point: Point) -> Result<(), Error> {
        if !self.options.hooks.has(point) {
            return Ok(());
        }
        (self.progress)(&Event::Hook(point));
        self.options.hooks.run(point).map_err(|source| Error::Hook {
            source,
            changed: false,
        })
    }

    fn recover_and_apply(&self) -> Result<Applied, Error> {
        let folder = &self.options.state_dir;
        let left = journal::left(folder)?;
        let node = look(self.driver)?;
        let interrupted = left.as_ref().map(|l| l.head.name.clone());
        let plan = NodePlan::new(
            self.request.name(),
            self.request.goals(&node)?,
            &node,
            interrupted,
        );
        if let Some(impossible) = plan.impossible() {
            return Err(impossible);
        }
        let failures = self.unreadable(&plan)?;
        if let Some(left) = &left {
            (self.progress)(&Event::Interrupted {
                name: left.head.name.clone(),
                last_steps: left.last_steps.clone(),
            });
        }
        // GPUs that this request speaks of go straight to its goal; their way back is to what the killed apply found.
        let entries = left.map(|l| l.head.gpus).unwrap_or_default();
        let (own, others): (Vec<Entry>, Vec<Entry>) = entries
            .into_iter()
            .partition(|e| plan.gpus.iter().any(|g| g.id.uuid == e.uuid));
        let (orphans, unrecovered) = self.recover(&node, others)?;

        let applied = self.apply(&node, &plan, &own, &orphans, failures);
        if orphans.is_empty() {
            if applied.is_ok() {
                journal::forget(folder)?;
            }
        } else if applied.is_ok() {
            Journal::begin(folder, self.request.name(), orphans)?;
        }
        applied.map(|applied| Applied {
            unrecovered,
            ..applied
        })
    }

    /// GPUs that do not answer: they stop everything, or fail alone, as the policy says.
    fn unreadable(&self, plan: &NodePlan) -> Result<Vec<GpuFailure>, Error> {
        let failures = plan.unreadable();
        if failures.is_empty() || self.options.on_failure == OnFailure::Keep {
            return Ok(failures);
        }
        Err(Error::Failed {
            failures,
            left: Vec::new(),
        })
    }

    /// Finishes what a killed apply left on GPUs that this request does not speak of, or undoes it. Returns what could not
    /// be brought to either end.
    fn recover(&self, node: &Node, entries: Vec<Entry>) -> Result<(Vec<Entry>, Vec<Left>), Error> {
        if entries.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let journal = Journal::resume(&self.options.state_dir)?;
        let (mut orphans, mut unrecovered) = (Vec::new(), Vec::new());
        let finish = self.tasks(node, entries.iter().map(|e| (&*e.uuid, e.goal.clone())));
        let ends = self.all(finish, Purpose::Recover, &journal, false);
        let failed: Vec<&Entry> = entries
            .iter()
            .filter(|e| {
                ends.iter()
                    .any(|(id, end)| id.uuid == e.uuid && end.result.is_err())
            })
            .collect();
        let undo = failed
            .iter()
            .map(|e| (&*e.uuid, Goal::Layout(e.before.clone())));
        for (id, end) in self.all(self.tasks(node, undo), Purpose::Recover, &journal, false) {
            if let Err(cause) = end.result {
                orphans.extend(
                    failed
                        .iter()
                        .filter(|e| e.uuid == id.uuid)
                        .map(|e| (*e).clone()),
                );
                unrecovered.push(Left {
                    gpu: id,
                    cause: Some(cause),
                });
            }
        }
        Ok((orphans, unrecovered))
    }

    /// Applies the plan. The journal is gone afterwards unless something could not be put back.
    fn apply(
        &self,
        node: &Node,
        plan: &NodePlan,
        own: &[Entry],
        orphans: &[Entry],
        mut failures: Vec<GpuFailure>,
    ) -> Result<Applied, Error> {
        let changing: Vec<_> = plan
            .gpus
            .iter()
            .filter(|g| {
                matches!(
                    g.verdict,
                    Verdict::Change { .. } | Verdict::ModeFirst { .. }
                )
            })
            .collect();
        if changing.is_empty() {
            return match failures.is_empty() {
                true => Ok(Applied::default()),
                false => Err(Error::Failed {
                    failures,
                    left: Vec::new(),
                }),
            };
        }
        let hooks = &self.options.hooks;
        let may_help = hooks.has(Point::PreApplyMode) || hooks.has(Point::PreApplyConfig);
        let blocked = plan.blocked();
        if !blocked.is_empty() && !may_help && self.options.on_failure == OnFailure::Rollback {
            return Err(Error::InUse(blocked));
        }
        let mode: Vec<_> = changing
            .iter()
            .filter(|g| {
                g.verdict
                    .plan()
                    .is_some_and(|p| p.mode.is_some() || p.reset)
            })
            .collect();
        let instances = changing.iter().any(|g| {
            let counts = g.goal.mig_enabled() && !matches!(g.goal, Goal::Mode(_));
            counts
                && g.verdict.plan().is_some_and(|p| {
                    matches!(g.verdict, Verdict::ModeFirst { .. })
                        || !p.created.is_empty()
                        || !p.destroyed.is_empty()
                })
        });
        if !mode.is_empty() {
            self.hook(Point::PreApplyMode)?;
        }
        let goals = changing.iter().map(|g| (&*g.id.uuid, g.goal.clone()));
        let entries: Vec<Entry> = node
            .seen()
            .filter_map(|seen| self.entry(seen, own, goals.clone()))
            .chain(orphans.iter().cloned())
            .collect();
        let journal = Journal::begin(
            &self.options.state_dir,
            self.request.name(),
            entries.clone(),
        )?;
        let stop = self.options.on_failure == OnFailure::Rollback;
        let mut ends: Vec<(GpuId, End)> = Vec::new();
        let mut late_hook = None;

        let separate = instances && hooks.has(Point::PreApplyConfig);
        if separate {
            let modes = mode
                .iter()
                .map(|g| (&*g.id.uuid, Goal::Mode(g.goal.mig_enabled())));
            ends = self.all(self.tasks(node, modes), Purpose::Apply, &journal, stop);
            let failed = ends.iter().any(|(_, end)| end.result.is_err());
            if !(failed && stop) {
                late_hook = self.hook(Point::PreApplyConfig).err();
            }
        }
        let go_on = |id: &str| match ends.iter().find(|(end, _)| end.uuid == id) {
            Some((_, end)) => matches!(end.result, Ok(Reached::Goal)),
            None => true,
        };
        let failed = ends.iter().any(|(_, end)| end.result.is_err());
        if late_hook.is_none() && !(failed && stop) {
            let rest = goals.filter(|(uuid, _)| go_on(uuid));
            let second = self.all(self.tasks(node, rest), Purpose::Apply, &journal, stop);
            merge(&mut ends, second);
        }
        let (mut changed, mut waiting) = (Vec::new(), Vec::new());
        for (id, end) in &ends {
            match &end.result {
                Ok(Reached::Goal) => changed.push(id.clone()),
                Ok(Reached::AwaitsReset) => waiting.push(id.clone()),
                Err(cause) => failures.push(GpuFailure {
                    gpu: id.clone(),
                    cause: cause.clone(),
                }),
            }
        }
        if failures.is_empty() && late_hook.is_none() {
            journal.end()?;
            return self.awaited(changed, waiting);
        }
        let touched: Vec<GpuId> = ends
            .iter()
            .filter(|(_, end)| end.touched)
            .map(|(id, _)| id.clone())
            .collect();
        let left = match self.options.on_failure {
            OnFailure::Keep => kept(touched),
            OnFailure::Rollback => self.undo(node, &entries, &touched, &journal),
        };
        if left.iter().all(|l| l.cause.is_none()) {
            journal.end()?;
        }
        match late_hook {
            Some(Error::Hook { source, .. }) => Err(Error::Hook {
                source,
                changed: !left.is_empty(),
            }),
            _ => Err(verdict_of(failures, left)),
        }
    }

    /// Success, unless devices were asked for that cannot come before a reset.
    fn awaited(&self, changed: Vec<GpuId>, waiting: Vec<GpuId>) -> Result<Applied, Error> {
        if waiting.is_empty() || self.request.is_mode_only() {
            return Ok(Applied {
                changed,
                awaiting_reset: waiting,
                unrecovered: Vec::new(),
            });
        }
        let needed = waiting.into_iter().map(|gpu| ResetNeeded {
            gpu,
            reason: "resets are switched off (--skip-reset)".to_owned(),
        });
        Err(Error::NeedsReset(needed.collect()))
    }

    /// Takes every touched GPU back to its layout before. Returns those that did not get there.
    fn undo(
        &self,
        node: &Node,
        entries: &[Entry],
        touched: &[GpuId],
        journal: &Journal,
    ) -> Vec<Left> {
        let back = entries
            .iter()
            .filter(|e| touched.iter().any(|id| id.uuid == e.uuid))
            .map(|e| (&*e.uuid, Goal::Layout(e.before.clone())));
        let ends = self.all(self.tasks(node, back), Purpose::Undo, journal, false);
        let failed = ends.into_iter().filter_map(|(gpu, end)| {
            let cause = end.result.err()?;
            Some(Left {
                gpu,
                cause: Some(cause),
            })
        });
        failed.collect()
    }

    /// The journal's entry for a GPU that is about to change.
    fn entry<'g>(
        &self,
        seen: &Seen,
        own: &[Entry],
        mut goals: impl Iterator<Item = (&'g str, Goal)>,
    ) -> Option<Entry> {
        let uuid = &seen.id.uuid;
        let (_, goal) = goals.find(|(id, _)| id == uuid)?;
        let interrupted: Option<&Layout> = own.iter().find(|e| e.uuid == *uuid).map(|e| &e.before);
        Some(Entry {
            uuid: uuid.clone(),
            before: interrupted.unwrap_or(&seen.observed.layout).clone(),
            goal,
        })
    }

    fn tasks<'g>(&self, node: &Node, goals: impl Iterator<Item = (&'g str, Goal)>) -> Vec<Task> {
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

    /// Works on all GPUs at once.
    fn all(
        &self,
        tasks: Vec<Task>,
        purpose: Purpose,
        journal: &Journal,
        stop_on_failure: bool,
    ) -> Vec<(GpuId, End)> {
        let stop = AtomicBool::new(false);
        let work = Work {
            journal,
            purpose,
            skip_reset: self.options.skip_reset,
            stop: &stop,
            progress: self.progress,
        };
        thread::scope(|scope| {
            let running: Vec<_> = tasks
                .iter()
                .map(|task| {
                    let work = &work;
                    scope.spawn(move || {
                        let end = reach(work, &task.gpu, &task.id, &task.goal);
                        if stop_on_failure && end.result.is_err() {
                            work.stop.store(true, Ordering::Relaxed);
                        }
                        end
                    })
                })
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
fn merge(ends: &mut Vec<(GpuId, End)>, second: Vec<(GpuId, End)>) {
    for (id, end) in second {
        match ends.iter_mut().find(|(known, _)| *known == id) {
            Some((_, known)) => {
                *known = End {
                    touched: known.touched || end.touched,
                    result: end.result,
                }
            }
            None => ends.push((id, end)),
        }
    }
}

fn kept(touched: Vec<GpuId>) -> Vec<Left> {
    let left = touched.into_iter().map(|gpu| Left { gpu, cause: None });
    left.collect()
}

/// The error that says most: who is in the way or that a reset is missing, where everything is as it was.
fn verdict_of(failures: Vec<GpuFailure>, left: Vec<Left>) -> Error {
    let causes: Vec<&Cause> = failures
        .iter()
        .map(|f| &f.cause)
        .filter(|c| **c != Cause::Stopped)
        .collect();
    if left.is_empty() && !causes.is_empty() {
        let blocked: Vec<_> = causes
            .iter()
            .filter_map(|c| match c {
                Cause::InUse(blocked) => Some(blocked.clone()),
                _ => None,
            })
            .collect();
        if blocked.len() == causes.len() {
            return Error::InUse(blocked);
        }
        let resets: Vec<_> = causes
            .iter()
            .filter_map(|c| match c {
                Cause::NeedsReset(needed) => Some(needed.clone()),
                _ => None,
            })
            .collect();
        if resets.len() == causes.len() {
            return Error::NeedsReset(resets);
        }
    }
    let telling = failures.into_iter().filter(|f| f.cause != Cause::Stopped);
    Error::Failed {
        failures: telling.collect(),
        left,
    }
}
