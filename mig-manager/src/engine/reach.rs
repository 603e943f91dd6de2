//! Bringing one GPU to a goal: look, plan, take the steps, look again and compare.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpu::{Goal, GpuPlan, Impossible, Layout, Placement, Step};
use nvml::Gpu;

use super::error::{Blocked, Cause, ResetNeeded};
use super::event::{Event, GpuId, Progress, Purpose};
use super::journal::Journal;
use super::look::{Seen, look_at};
use super::plan::{Verdict, describe, describe_goal, verdict};
use super::write::{Answer, take};

/// Between two tries while somebody holds the GPU.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How a GPU came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// As wanted, read back.
    Goal,
    /// MIG mode is set but waits for a reset that was not to be made.
    AwaitsReset,
}

/// What all GPUs of an apply share.
pub(crate) struct Work<'a> {
    pub(crate) journal: &'a Journal,
    pub(crate) purpose: Purpose,
    pub(crate) skip_reset: bool,
    /// How long to try again what the driver refuses because somebody holds the GPU.
    pub(crate) in_use_wait: Duration,
    /// Set when the others are to stop before their next step.
    pub(crate) stop: &'a AtomicBool,
    pub(crate) limit: Limit,
    pub(crate) progress: &'a Progress<'a>,
}

/// Until when steps may be begun.
#[derive(Clone, Copy)]
pub(crate) struct Limit(Option<(Instant, Duration)>);

impl Limit {
    /// For as long as it takes.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// For so long from now on.
    pub(crate) fn of(time: Duration) -> Self {
        Self(Some((Instant::now() + time, time)))
    }

    fn check(self) -> Result<(), Cause> {
        match self.0 {
            Some((end, time)) if Instant::now() >= end => Err(Cause::TooLong(time)),
            _ => Ok(()),
        }
    }

    /// The earlier of the two.
    fn or(self, other: Instant) -> Instant {
        self.0.map_or(other, |(end, _)| end.min(other))
    }
}

/// The ids of the GPU instances that there are, as far as we know, by placement.
type Instances = BTreeMap<Placement, u32>;

/// One GPU's way to its goal.
struct Way<'a> {
    work: &'a Work<'a>,
    gpu: Gpu,
    id: &'a GpuId,
    touched: bool,
}

/// The end of the way: whether any step was begun, and how it came out.
pub(crate) struct End {
    pub(crate) touched: bool,
    pub(crate) result: Result<Reached, Cause>,
}

/// Brings a GPU to a goal. What it has now is looked at afresh.
pub(crate) fn reach(work: &Work<'_>, gpu: &Gpu, id: &GpuId, goal: &Goal) -> End {
    let mut way = Way {
        work,
        gpu: gpu.clone(),
        id,
        touched: false,
    };
    let result = way.go(goal);
    let purpose = work.purpose;
    match &result {
        Ok(Reached::Goal) => (work.progress)(&Event::Reached {
            gpu: id.clone(),
            purpose,
        }),
        Ok(Reached::AwaitsReset) => {}
        Err(cause) => (work.progress)(&Event::Failed {
            gpu: id.clone(),
            purpose,
            reason: cause.to_string(),
        }),
    }
    End {
        touched: way.touched,
        result,
    }
}

impl Way<'_> {
    fn go(&mut self, goal: &Goal) -> Result<Reached, Cause> {
        let mut seen = self.look()?;
        let plan = match verdict(&seen, goal) {
            Verdict::Unchanged { .. } => return Ok(Reached::Goal),
            Verdict::Unreadable { reason } => return Err(looking(reason)),
            Verdict::Impossible { reason } => return Err(Cause::Impossible(reason)),
            Verdict::Change { plan } => plan,
            Verdict::ModeFirst { plan } => {
                if self.take_all(&seen, &plan)? == Reached::AwaitsReset {
                    return Ok(Reached::AwaitsReset);
                }
                seen = self.look()?;
                self.planned(&seen, goal).map_err(Cause::Impossible)?
            }
        };
        if self.take_all(&seen, &plan)? == Reached::AwaitsReset {
            return Ok(Reached::AwaitsReset);
        }
        seen = self.look()?;
        if gpu::matches(seen.board.as_ref(), &seen.observed, goal) {
            return Ok(Reached::Goal);
        }
        Err(Cause::Mismatch {
            found: describe(&seen),
            wanted: describe_goal(goal, seen.board.as_ref()),
        })
    }

    fn look(&mut self) -> Result<Seen, Cause> {
        self.on_gpu(look_at).map_err(looking)
    }

    /// Does something on the GPU, wherever it is: a mode change or a reset may give GPUs other indices.
    fn on_gpu<T>(
        &mut self,
        work: impl Fn(&Gpu) -> Result<T, nvml::Error>,
    ) -> Result<T, nvml::Error> {
        match work(&self.gpu) {
            Err(nvml::Error::Moved { .. } | nvml::Error::NoSuchGpu { .. }) => {
                self.gpu = self.gpu.driver().find(&self.id.uuid)?;
                work(&self.gpu)
            }
            result => result,
        }
    }

    fn planned(&self, seen: &Seen, goal: &Goal) -> Result<GpuPlan, Impossible> {
        gpu::plan(seen.board.as_ref(), &seen.observed, goal)
    }

    fn take_all(&mut self, seen: &Seen, plan: &GpuPlan) -> Result<Reached, Cause> {
        if !plan.blockers.is_empty() {
            return Err(Cause::InUse(Blocked {
                gpu: self.id.clone(),
                clients: plan.blockers.clone(),
            }));
        }
        let mut instances: Instances = seen
            .observed
            .layout
            .instances
            .iter()
            .map(|i| (i.placement, i.id))
            .collect();
        let steps = plan.steps();
        let of = steps.len();
        for (step, number) in steps.into_iter().zip(1..) {
            if self.work.stop.load(Ordering::Relaxed) {
                return Err(Cause::Stopped);
            }
            self.work.limit.check()?;
            if step == Step::Reset {
                match self.before_reset()? {
                    Some(Reached::Goal) => continue,
                    Some(awaits) => return Ok(awaits),
                    None => {}
                }
            }
            self.announce(&step, number, of)?;
            let began = Instant::now();
            self.take(&step, &mut instances)?;
            if step == Step::Reset || (!plan.reset && matches!(step, Step::SetMode { .. })) {
                self.mode_counts()?;
            }
            (self.work.progress)(&Event::Done {
                gpu: self.id.clone(),
                number,
                took: began.elapsed(),
            });
        }
        Ok(Reached::Goal)
    }

    /// Whether the reset can be left out: the driver made one inside the mode change (`Goal`), or none is to be made
    /// (`AwaitsReset`).
    fn before_reset(&mut self) -> Result<Option<Reached>, Cause> {
        let observed = self.look()?.observed;
        Ok(if observed.pending_mig == observed.layout.mig_enabled {
            Some(Reached::Goal)
        } else if self.work.skip_reset {
            Some(Reached::AwaitsReset)
        } else {
            None
        })
    }

    /// Some GPUs accept a mode and yet keep it pending, as in virtual machines that do not own the reset. What comes next
    /// would fail with an error that tells nothing.
    fn mode_counts(&mut self) -> Result<(), Cause> {
        let observed = self.look()?.observed;
        if observed.pending_mig == observed.layout.mig_enabled {
            return Ok(());
        }
        Err(Cause::NeedsReset(ResetNeeded {
            gpu: self.id.clone(),
            reason: "the driver still keeps it pending".to_owned(),
        }))
    }

    fn announce(&mut self, step: &Step, number: usize, of: usize) -> Result<(), Cause> {
        match self.work.journal.step(&self.id.uuid, &step.to_string()) {
            Ok(()) => {}
            // Where to go back to is in the journal's head: a disk that has filled up since is no reason not to.
            Err(error) if self.work.purpose == Purpose::Undo => {
                tracing::warn!(%error, "going back without recording each step");
            }
            Err(error) => return Err(Cause::Journal(error.to_string())),
        }
        self.touched = true;
        (self.work.progress)(&Event::Started {
            gpu: self.id.clone(),
            purpose: self.work.purpose,
            number,
            of,
            step: step.clone(),
        });
        Ok(())
    }

    fn take(&mut self, step: &Step, instances: &mut Instances) -> Result<(), Cause> {
        match self.try_to_take(step, instances) {
            Ok(Answer::Done) => {
                if let Step::DestroyInstance { gpu_instance } = step {
                    instances.retain(|_, id| id != gpu_instance);
                }
                Ok(())
            }
            Ok(Answer::Created { placement, id }) => {
                instances.insert(placement, id);
                Ok(())
            }
            Ok(Answer::InUse) => Err(self.in_use()),
            Err(error) if error.is_in_use() => Err(self.in_use()),
            Err(error @ nvml::Error::Reset { .. }) => Err(Cause::NeedsReset(ResetNeeded {
                gpu: self.id.clone(),
                reason: error.to_string(),
            })),
            Err(error) => Err(self.failed(step, instances, error)),
        }
    }

    /// Why a step failed. That the GPU changed under us says more than the code that the driver has for it; the step after
    /// a driver reload, for one, is "not supported".
    fn failed(&mut self, step: &Step, instances: &Instances, error: nvml::Error) -> Cause {
        let doing = step.to_string();
        match self.look() {
            Ok(seen) if is_disturbed(step, instances, &seen.observed.layout) => Cause::Disturbed {
                doing,
                found: describe(&seen),
                error,
            },
            _ => Cause::Driver { doing, error },
        }
    }

    /// Takes a step; when somebody holds the GPU, again and again for as long as that may pass.
    fn try_to_take(&mut self, step: &Step, instances: &Instances) -> Result<Answer, nvml::Error> {
        let deadline = self.work.limit.or(Instant::now() + self.work.in_use_wait);
        let mut pause = FIRST_PAUSE;
        loop {
            let answer = self.on_gpu(|gpu| take(gpu, step, instances));
            let in_use = match &answer {
                Ok(answer) => matches!(answer, Answer::InUse),
                Err(error) => error.is_in_use(),
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if !in_use || left.is_zero() || self.work.stop.load(Ordering::Relaxed) {
                return answer;
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The driver says "in use"; who it is shows in a fresh look, if at all.
    fn in_use(&mut self) -> Cause {
        Cause::InUse(Blocked {
            gpu: self.id.clone(),
            clients: self
                .look()
                .map(|seen| seen.observed.clients)
                .unwrap_or_default(),
        })
    }
}

/// Whether a GPU has other instances than the steps before `step` left; those are taken with MIG on. What `step` itself is
/// about may be there or not.
fn is_disturbed(step: &Step, instances: &Instances, layout: &Layout) -> bool {
    let own = match step {
        Step::SetMode { .. } | Step::Reset => return false,
        Step::CreateInstance { placement, .. } => Some(*placement),
        Step::DestroyInstance { gpu_instance } => {
            let mut known = instances.iter();
            known.find_map(|(placement, id)| (id == gpu_instance).then_some(*placement))
        }
        Step::DestroyCompute { .. } | Step::CreateCompute { .. } => None,
    };
    let others = |placement: &Placement| Some(*placement) != own;
    let found: BTreeSet<Placement> = layout.instances.iter().map(|i| i.placement).collect();
    let found = found.into_iter().filter(others);
    !layout.mig_enabled || found.ne(instances.keys().copied().filter(others))
}

fn looking(error: nvml::Error) -> Cause {
    Cause::Driver {
        doing: "reading its state".to_owned(),
        error,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use sim_nvml::admin::SimulatedNode;
    use sim_nvml::presets::NodeSpec;

    use super::*;

    /// A full disk ends an apply before its next step, but not the way back.
    #[test]
    fn only_the_way_back_is_gone_without_a_journal() {
        let folder = tempfile::tempdir().unwrap();
        let spec = NodeSpec::uniform("h100-pcie-80gb", 1).unwrap();
        let node = SimulatedNode::create(folder.path(), &spec).unwrap();
        let driver = nvml::Driver::open(&nvml::Options::at(node.root())).unwrap();
        let seen = look_at(&driver.gpu(0)).unwrap();
        let state = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", state.path().join("journal")).unwrap();
        let journal = Journal::resume(state.path()).unwrap();
        let towards = |purpose| {
            let work = Work {
                journal: &journal,
                purpose,
                skip_reset: false,
                in_use_wait: Duration::ZERO,
                stop: &AtomicBool::new(false),
                limit: Limit::none(),
                progress: &|_| {},
            };
            reach(&work, &seen.gpu, &seen.id, &Goal::Mode(true))
        };
        for purpose in [Purpose::Apply, Purpose::Recover] {
            let end = towards(purpose);
            assert!(matches!(end.result, Err(Cause::Journal(_))) && !end.touched);
        }
        assert!(!node.state().unwrap().gpus[0].mig.current);
        assert_eq!(towards(Purpose::Undo).result, Ok(Reached::Goal));
        assert!(node.state().unwrap().gpus[0].mig.current);
    }
}
