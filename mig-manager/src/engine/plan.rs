//! The plan for a node: what would happen to each GPU that a request speaks of.

use std::collections::BTreeMap;

use gpu::{Board, Client, Goal, GpuPlan, Impossible, Layout, Observed, Profile};
use serde::Serialize;

use super::error::{Blocked, Cause, Error, GpuFailure, Refusal};
use super::event::GpuId;
use super::look::{Node, Seen};

/// What a request comes to on this node. Made without touching anything.
#[derive(Clone, Debug, Serialize)]
pub struct NodePlan {
    /// Name of the layout.
    pub config: String,
    /// The GPUs that the request speaks of, by index. No other GPU is touched.
    pub gpus: Vec<PlannedGpu>,
    /// Name of the layout whose apply was killed and is dealt with first, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<String>,
}

/// The plan for one GPU.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedGpu {
    /// Which.
    #[serde(flatten)]
    pub id: GpuId,
    /// Product name; empty when it does not answer.
    pub name: String,
    /// What it is to become.
    #[serde(skip)]
    pub(crate) goal: Goal,
    /// The MIG devices that stay, by profile.
    pub kept_devices: BTreeMap<Profile, u32>,
    /// What that takes.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// What one GPU's goal takes.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// Nothing: it is as wanted.
    Unchanged {
        /// What is kept.
        #[serde(flatten)]
        plan: GpuPlan,
    },
    /// These steps.
    Change {
        /// The steps, what is kept, and who stands in the way.
        #[serde(flatten)]
        plan: GpuPlan,
    },
    /// MIG mode first; the driver lists its profiles only then, so the rest is planned after that and undone if impossible.
    ModeFirst {
        /// The mode change.
        #[serde(flatten)]
        plan: GpuPlan,
    },
    /// It cannot be done.
    Impossible {
        /// Why.
        #[serde(serialize_with = "shown")]
        reason: Impossible,
    },
    /// The GPU does not answer.
    Unreadable {
        /// What it answered.
        #[serde(serialize_with = "shown")]
        reason: nvml::Error,
    },
}

fn shown<T: ToString, S: serde::Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&value.to_string())
}

impl Verdict {
    /// The plan, where there is one.
    pub fn plan(&self) -> Option<&GpuPlan> {
        match self {
            Self::Unchanged { plan } | Self::Change { plan } | Self::ModeFirst { plan } => {
                Some(plan)
            }
            Self::Impossible { .. } | Self::Unreadable { .. } => None,
        }
    }
}

/// The plan to bring one GPU to a goal; mode first where the driver says no more before.
pub(crate) fn verdict(seen: &Seen, goal: &Goal) -> Verdict {
    let board = seen.board.as_ref();
    let plan = |goal| gpu::plan(board, &seen.observed, goal);
    match plan(goal) {
        Ok(plan) if plan.is_noop() => Verdict::Unchanged { plan },
        Ok(plan) => Verdict::Change { plan },
        Err(Impossible::NoProfiles) if !seen.observed.layout.mig_enabled => {
            match plan(&Goal::Mode(true)) {
                Ok(plan) => Verdict::ModeFirst { plan },
                Err(reason) => Verdict::Impossible { reason },
            }
        }
        Err(reason) => Verdict::Impossible { reason },
    }
}

fn planned(seen: &Seen, goal: Goal) -> PlannedGpu {
    let verdict = verdict(seen, &goal);
    let kept = Layout {
        mig_enabled: true,
        instances: verdict.plan().map(|p| p.kept.clone()).unwrap_or_default(),
    };
    PlannedGpu {
        id: seen.id.clone(),
        name: seen.name.clone(),
        kept_devices: seen
            .board
            .as_ref()
            .map(|b| kept.devices(b))
            .unwrap_or_default(),
        verdict,
        goal,
    }
}

impl NodePlan {
    pub(crate) fn new(
        config: &str,
        goals: BTreeMap<u32, Goal>,
        node: &Node,
        interrupted: Option<String>,
    ) -> Self {
        let gpus = goals.into_iter().filter_map(|(index, goal)| {
            let entry = node.gpus.iter().find(|g| g.index == index)?;
            Some(match &entry.seen {
                Ok(seen) => planned(seen, goal),
                Err(error) => PlannedGpu {
                    id: entry.id(),
                    name: String::new(),
                    kept_devices: BTreeMap::new(),
                    verdict: Verdict::Unreadable {
                        reason: error.clone(),
                    },
                    goal,
                },
            })
        });
        Self {
            config: config.to_owned(),
            gpus: gpus.collect(),
            interrupted,
        }
    }

    /// Whether there is nothing to do.
    pub fn is_noop(&self) -> bool {
        self.gpus
            .iter()
            .all(|g| matches!(g.verdict, Verdict::Unchanged { .. }))
    }

    /// What makes the request impossible on this node.
    pub fn impossible(&self) -> Option<Error> {
        let refusals: Vec<Refusal> = self
            .gpus
            .iter()
            .filter_map(|g| match &g.verdict {
                Verdict::Impossible { reason } => Some(Refusal::Gpu {
                    gpu: g.id.clone(),
                    reason: reason.clone(),
                }),
                _ => None,
            })
            .collect();
        (!refusals.is_empty()).then_some(Error::Impossible(refusals))
    }

    /// Why an apply of this plan would end before it began: impossible, or a GPU that does not answer, or users in the way.
    pub fn problem(&self) -> Option<Error> {
        let silent = self.unreadable();
        let blocked = self.blocked();
        self.impossible().or_else(|| {
            if !silent.is_empty() {
                Some(Error::Failed {
                    failures: silent,
                    left: Vec::new(),
                })
            } else {
                (!blocked.is_empty()).then_some(Error::InUse(blocked))
            }
        })
    }

    /// GPUs that do not answer.
    pub(crate) fn unreadable(&self) -> Vec<GpuFailure> {
        let silent = self.gpus.iter().filter_map(|g| match &g.verdict {
            Verdict::Unreadable { reason } => Some(GpuFailure {
                gpu: g.id.clone(),
                cause: Cause::Driver {
                    doing: "reading its state".to_owned(),
                    error: reason.clone(),
                },
            }),
            _ => None,
        });
        silent.collect()
    }

    /// Who stands in the way of the plan.
    pub fn blocked(&self) -> Vec<Blocked> {
        self.gpus
            .iter()
            .filter_map(|g| {
                let clients = g
                    .verdict
                    .plan()
                    .map(|p| p.blockers.clone())
                    .unwrap_or_default();
                (!clients.is_empty()).then(|| Blocked {
                    gpu: g.id.clone(),
                    clients,
                })
            })
            .collect()
    }
}

/// What a GPU has, in a few words.
pub(crate) fn describe(seen: &Seen) -> String {
    let Observed {
        layout,
        pending_mig,
        ..
    } = &seen.observed;
    let waiting = if *pending_mig == layout.mig_enabled {
        ""
    } else {
        " (until a reset)"
    };
    if !layout.mig_enabled {
        return format!("MIG off{waiting}");
    }
    let Some(board) = &seen.board else {
        return format!("MIG on{waiting}");
    };
    let devices = devices(&layout.devices(board));
    match layout.strays(board).count() {
        0 => format!("{devices}{waiting}"),
        n => format!("{devices} and {n} GPU instances that are no device{waiting}"),
    }
}

/// What a goal asks for, in a few words.
pub(crate) fn describe_goal(goal: &Goal, board: Option<&Board>) -> String {
    match goal {
        Goal::Mode(true) => "MIG on".to_owned(),
        Goal::Mode(false) => "MIG off".to_owned(),
        Goal::Devices(wanted) => devices(wanted),
        Goal::Layout(layout) if !layout.mig_enabled => "MIG off".to_owned(),
        Goal::Layout(layout) => match board {
            Some(board) => format!("{} at given places", devices(&layout.devices(board))),
            None => "a given layout".to_owned(),
        },
    }
}

/// `2 × 1g.10gb, 1 × 3g.40gb`.
pub(crate) fn devices(counts: &BTreeMap<Profile, u32>) -> String {
    let shown: Vec<String> = counts
        .iter()
        .filter(|(_, n)| **n > 0)
        .map(|(profile, n)| format!("{n} × {profile}"))
        .collect();
    if shown.is_empty() {
        "MIG on without devices".to_owned()
    } else {
        shown.join(", ")
    }
}

/// `process 4711 (python train.py)`.
pub(crate) fn client(client: &Client) -> String {
    let command = if client.command.is_empty() {
        "unknown command"
    } else {
        &client.command
    };
    format!("process {} ({command})", client.pid)
}
