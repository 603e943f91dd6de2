//! One apply: hooks, recovery of what an earlier one left, all GPUs in parallel, and the way back when one fails.

use gpu::Goal;

use super::crew::{Round, merge, tasks};
use super::error::{Cause, Error, GpuFailure, Left, ResetNeeded};
use super::event::{Event, GpuId, Progress, Purpose};
use super::journal::{self, Entry, Journal};
use super::look::{Node, Seen, look};
use super::plan::{NodePlan, PlannedGpu, Verdict};
use super::reach::{End, Limit, Reached};
use super::recover::recover;
use super::request::{OnFailure, Options, Request};
use crate::hooks::{HookError, Point};

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

/// What is about to change on the node.
struct Change<'a> {
    node: &'a Node,
    gpus: Vec<&'a PlannedGpu>,
    /// Entries that a killed apply left for these GPUs.
    own: &'a [Entry],
    /// Entries for other GPUs that stay in the journal.
    orphans: &'a [Entry],
}

impl Run<'_> {
    /// Runs the hooks of the beginning and of the end around everything else.
    pub(crate) fn with_hooks(&self) -> Result<Applied, Error> {
        let result = match self.hook(Point::ApplyStart) {
            Ok(()) => self.recover_and_apply(),
            Err(source) => Err(unchanged(source)),
        };
        match (result, self.hook(Point::ApplyExit)) {
            (Ok(_), Err(source)) => Err(Error::Hook {
                source,
                changed: true,
            }),
            (result, Ok(())) => result,
            (result, Err(error)) => {
                tracing::error!(%error, "after a failed apply");
                result
            }
        }
    }

    fn hook(&self, point: Point) -> Result<(), HookError> {
        if !self.options.hooks.has(point) {
            return Ok(());
        }
        (self.progress)(&Event::Hook(point));
        self.options.hooks.run(point)
    }

    fn recover_and_apply(&self) -> Result<Applied, Error> {
        let left = journal::left(&self.options.state_dir)?;
        let node = look(self.driver)?;
        let goals = self.request.goals(&node)?;
        let interrupted = left.as_ref().map(|l| l.head.name.clone());
        let plan = NodePlan::new(self.request.name(), goals, &node, interrupted);
        if let Some(impossible) = plan.impossible() {
            return Err(impossible);
        }
        let silent = plan.unreadable();
        if !silent.is_empty() && self.rolls_back() {
            return Err(Error::Failed {
                failures: silent,
                left: Vec::new(),
            });
        }
        if let Some(left) = &left {
            (self.progress)(&Event::Interrupted {
                name: left.head.name.clone(),
                last_steps: left.last_steps.clone(),
            });
        }
        // GPUs that this request speaks of go straight to its goal; their way back is to what the killed apply found.
        let entries = left.map(|l| l.head.gpus).unwrap_or_default();
        let (own, others): (Vec<Entry>, Vec<Entry>) = entries.into_iter().partition(|e| {
            let mut planned = plan.gpus.iter().filter(|g| g.verdict.plan().is_some());
            planned.any(|g| g.id.uuid == e.uuid)
        });
        let recovered = recover(self.options, &node, others, self.progress)?;

        let changes = |g: &&PlannedGpu| {
            matches!(
                g.verdict,
                Verdict::Change { .. } | Verdict::ModeFirst { .. }
            )
        };
        let change = Change {
            node: &node,
            gpus: plan.gpus.iter().filter(changes).collect(),
            own: &own,
            orphans: &recovered.orphans,
        };
        let applied = if !change.gpus.is_empty() {
            self.apply(&plan, &change, silent)?
        } else if silent.is_empty() {
            self.settle(&recovered.orphans);
            Applied::default()
        } else {
            return Err(Error::Failed {
                failures: silent,
                left: Vec::new(),
            });
        };
        Ok(Applied {
            unrecovered: recovered.unrecovered,
            ..applied
        })
    }

    fn rolls_back(&self) -> bool {
        self.options.on_failure == OnFailure::Rollback
    }

    /// Leaves in the journal only what is still to be finished or undone. The GPUs are what they are by now: a journal that
    /// cannot be cleared says so, and costs the next run another look at them.
    fn settle(&self, orphans: &[Entry]) {
        let folder = &self.options.state_dir;
        let cleared = if orphans.is_empty() {
            journal::forget(folder)
        } else {
            Journal::begin(folder, self.request.name(), orphans.to_vec()).map(drop)
        };
        if let Err(error) = cleared {
            tracing::warn!(%error, "the journal still speaks of a change that is over");
        }
    }

    /// Changes the GPUs, and takes them back when that is the policy and one fails.
    fn apply(
        &self,
        plan: &NodePlan,
        change: &Change<'_>,
        mut failures: Vec<GpuFailure>,
    ) -> Result<Applied, Error> {
        let hooks = &self.options.hooks;
        let may_help = hooks.has(Point::PreApplyMode) || hooks.has(Point::PreApplyConfig);
        let blocked = plan.blocked();
        if !blocked.is_empty() && !may_help && self.rolls_back() {
            return Err(Error::InUse(blocked));
        }
        if change.gpus.iter().any(|g| changes_mode(g)) {
            self.hook(Point::PreApplyMode).map_err(unchanged)?;
        }
        let entries = change.entries();
        let name = self.request.name();
        let journal = Journal::begin(&self.options.state_dir, name, entries.clone())?;
        let (ends, hook) = self.carry_out(change, &journal);

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
        if failures.is_empty() && hook.is_none() {
            self.settle(change.orphans);
            return self.awaited(changed, waiting);
        }
        let touched = ends
            .iter()
            .filter(|(_, end)| end.touched)
            .map(|(id, _)| id.clone());
        let left = if self.rolls_back() {
            self.undo(change, &entries, &touched.collect::<Vec<_>>(), &journal)
        } else {
            touched.map(|gpu| Left { gpu, cause: None }).collect()
        };
        // What could not be undone stays in the journal, for the next run.
        if left.iter().all(|l| l.cause.is_none()) {
            self.settle(change.orphans);
        }
        match hook {
            Some(source) => Err(Error::Hook {
                source,
                changed: !left.is_empty(),
            }),
            None => Err(most_telling(failures, left)),
        }
    }

    /// One round for everything; two, with a hook in between, when one is to run after the modes and before the instances.
    fn carry_out(
        &self,
        change: &Change<'_>,
        journal: &Journal,
    ) -> (Vec<(GpuId, End)>, Option<HookError>) {
        let limit = self.options.change_limit.map_or(Limit::none(), Limit::of);
        let round = self.round(journal, Purpose::Apply, self.rolls_back(), limit);
        let mut ends = Vec::new();
        let separate = change.gpus.iter().any(|g| changes_instances(g))
            && self.options.hooks.has(Point::PreApplyConfig);
        if separate {
            let modes = change.gpus.iter().filter(|g| changes_mode(g));
            let modes = modes.map(|g| (&*g.id.uuid, Goal::Mode(g.goal.mig_enabled())));
            ends = round.run(&tasks(change.node, modes));
            if self.rolls_back() && ends.iter().any(|(_, end)| end.result.is_err()) {
                return (ends, None);
            }
            if let Err(error) = self.hook(Point::PreApplyConfig) {
                return (ends, Some(error));
            }
        }
        let ready = change.gpus.iter().filter(|g| {
            let first = ends.iter().find(|(id, _)| *id == g.id);
            first.is_none_or(|(_, end)| matches!(end.result, Ok(Reached::Goal)))
        });
        let goals: Vec<_> = ready.map(|g| (&*g.id.uuid, g.goal.clone())).collect();
        let second = round.run(&tasks(change.node, goals.into_iter()));
        merge(&mut ends, second);
        (ends, None)
    }

    fn round<'r>(
        &'r self,
        journal: &'r Journal,
        purpose: Purpose,
        stop_on_failure: bool,
        limit: Limit,
    ) -> Round<'r> {
        Round {
            journal,
            purpose,
            skip_reset: self.options.skip_reset,
            in_use_wait: self.options.in_use_wait,
            stop_on_failure,
            limit,
            progress: self.progress,
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

    /// Takes every touched GPU back to its layout before, and those too that a killed apply had left half changed. Returns
    /// what did not get there.
    fn undo(
        &self,
        change: &Change<'_>,
        entries: &[Entry],
        touched: &[GpuId],
        journal: &Journal,
    ) -> Vec<Left> {
        let is_touched = |e: &&Entry| {
            touched.iter().any(|id| id.uuid == e.uuid)
                || change.own.iter().any(|own| own.uuid == e.uuid)
        };
        let back = entries.iter().filter(is_touched);
        let back = back.map(|e| (&*e.uuid, Goal::Layout(e.before.clone())));
        // A driver that was away, or did not come up after a reset, has to be opened again before anything can go back.
        if self.driver.is_gone()
            && let Err(error) = self.driver.reopen()
        {
            tracing::warn!(%error, "the driver does not open");
        }
        let round = self.round(journal, Purpose::Undo, false, Limit::none());
        let failed = round
            .run(&tasks(change.node, back))
            .into_iter()
            .filter_map(|(gpu, end)| {
                Some(Left {
                    gpu,
                    cause: Some(end.result.err()?),
                })
            });
        failed.collect()
    }
}

impl Change<'_> {
    /// The journal's entries.
    fn entries(&self) -> Vec<Entry> {
        let own = self.node.seen().filter_map(|seen| self.entry(seen));
        own.chain(self.orphans.iter().cloned()).collect()
    }

    fn entry(&self, seen: &Seen) -> Option<Entry> {
        let planned = self.gpus.iter().find(|g| g.id == seen.id)?;
        let interrupted = self.own.iter().find(|e| e.uuid == seen.id.uuid);
        let before = interrupted.map_or(&seen.observed.layout, |e| &e.before);
        Some(Entry {
            uuid: seen.id.uuid.clone(),
            before: before.clone(),
            goal: planned.goal.clone(),
        })
    }
}

fn changes_mode(gpu: &PlannedGpu) -> bool {
    gpu.verdict
        .plan()
        .is_some_and(|p| p.mode.is_some() || p.reset)
}

/// Whether instances change for their own sake, not because MIG goes off.
fn changes_instances(gpu: &PlannedGpu) -> bool {
    let wanted = gpu.goal.mig_enabled() && !matches!(gpu.goal, Goal::Mode(_));
    let differs = match &gpu.verdict {
        Verdict::ModeFirst { .. } => true,
        Verdict::Change { plan } => !plan.created.is_empty() || !plan.destroyed.is_empty(),
        _ => false,
    };
    wanted && differs
}

fn unchanged(source: HookError) -> Error {
    Error::Hook {
        source,
        changed: false,
    }
}

/// The error that helps most: who is in the way, or that a reset is missing, where everything is as it was.
fn most_telling(failures: Vec<GpuFailure>, left: Vec<Left>) -> Error {
    let failures: Vec<GpuFailure> = failures
        .into_iter()
        .filter(|f| f.cause != Cause::Stopped)
        .collect();
    if left.is_empty() && !failures.is_empty() {
        let blocked = failures.iter().map(|f| match &f.cause {
            Cause::InUse(blocked) => Some(blocked.clone()),
            _ => None,
        });
        if let Some(blocked) = blocked.collect() {
            return Error::InUse(blocked);
        }
        let resets = failures.iter().map(|f| match &f.cause {
            Cause::NeedsReset(needed) => Some(needed.clone()),
            _ => None,
        });
        if let Some(resets) = resets.collect() {
            return Error::NeedsReset(resets);
        }
    }
    Error::Failed { failures, left }
}
