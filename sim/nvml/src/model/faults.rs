//! Faults that hit calls: fail, hang or delay a symbol, on one GPU or on all, always, later, for a while or by chance.
//!
//! Decides what happens to a call; doing it (sleeping, answering) is the library's part. Faults of the hardware itself
//! are in `health`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Node, uuid};
use crate::Code;

/// What a fault does to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// The call answers this code and does nothing.
    Fail(Code),
    /// The call does not return until the fault is cleared.
    Hang,
    /// The call takes this many microseconds longer.
    Delay(u64),
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Number given at injection, by which it is cleared.
    pub id: u64,
    /// Symbol, for example `nvmlDeviceCreateGpuInstance`; a trailing `*` matches any rest.
    pub symbol: String,
    /// Position of the GPU in `Node::gpus`; absent for all, and for calls that name no GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<usize>,
    /// What happens.
    pub effect: Effect,
    /// Matching calls that pass before it starts.
    #[serde(default)]
    pub after: u64,
    /// Matching calls it hits once started; absent for no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// Chance that it hits a call it could hit; absent for always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// Matching calls so far; only counted when `after`, `times` or `probability` needs it.
    #[serde(default)]
    pub calls: u64,
}

impl Fault {
    /// A fault that always hits `symbol` on every GPU.
    pub fn new(symbol: impl Into<String>, effect: Effect) -> Self {
        Fault {
            id: 0,
            symbol: symbol.into(),
            gpu: None,
            effect,
            after: 0,
            times: None,
            probability: None,
            calls: 0,
        }
    }

    /// Whether the fault is about calls of `symbol` on `gpu`, used up or not.
    pub fn concerns(&self, symbol: &str, gpu: Option<usize>) -> bool {
        let named = match self.symbol.strip_suffix('*') {
            Some(prefix) => symbol.starts_with(prefix),
            None => symbol == self.symbol,
        };
        named && (self.gpu.is_none() || self.gpu == gpu)
    }

    fn matches(&self, symbol: &str, gpu: Option<usize>) -> bool {
        let exhausted = self
            .times
            .is_some_and(|times| self.calls >= self.after.saturating_add(times));
        self.concerns(symbol, gpu) && !exhausted
    }

    fn counts(&self) -> bool {
        self.after > 0 || self.times.is_some() || self.probability.is_some()
    }

    fn action(&self) -> Action {
        match self.effect {
            Effect::Fail(code) => Action::Fail(code),
            Effect::Hang => Action::Hang,
            Effect::Delay(micros) => Action::Delay(Duration::from_micros(micros)),
        }
    }
}

/// What to do with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing stands in its way.
    Proceed,
    /// Answer this code.
    Fail(Code),
    /// Wait until `check` says something else.
    Hang,
    /// Sleep, then proceed.
    Delay(Duration),
    /// The answer depends on how many calls there were: ask `count` under the store's lock.
    Count,
}

/// What happens to a call of `symbol` on `gpu`, as far as that can be told without counting. Cheap when there are no faults.
pub fn check(node: &Node, symbol: &str, gpu: Option<usize>) -> Action {
    match node.faults.iter().find(|fault| fault.matches(symbol, gpu)) {
        None => Action::Proceed,
        Some(fault) if fault.counts() => Action::Count,
        Some(fault) => fault.action(),
    }
}

/// Counts a call of `symbol` on `gpu` against every fault it matches; the first that hits decides. Never `Action::Count`.
pub fn count(node: &mut Node, symbol: &str, gpu: Option<usize>) -> Action {
    let seed = node.seed;
    let mut action = Action::Proceed;
    for fault in node
        .faults
        .iter_mut()
        .filter(|fault| fault.matches(symbol, gpu))
    {
        let started = fault.calls >= fault.after;
        let draw =
            uuid::mix(seed ^ uuid::mix(fault.id ^ fault.calls << 20)) as f64 / u64::MAX as f64;
        let hit = started
            && fault
                .probability
                .is_none_or(|probability| draw < probability);
        if fault.counts() {
            fault.calls += 1;
        }
        if hit && action == Action::Proceed {
            action = fault.action();
        }
    }
    action
}

impl Node {
    /// Adds a fault and returns the id it got.
    pub fn inject(&mut self, fault: Fault) -> u64 {
        let id = self.faults.iter().map(|fault| fault.id).max().unwrap_or(0) + 1;
        self.faults.push(Fault {
            id,
            calls: 0,
            ..fault
        });
        id
    }

    /// Removes the fault with this id; whether there was one.
    pub fn clear_fault(&mut self, id: u64) -> bool {
        let before = self.faults.len();
        self.faults.retain(|fault| fault.id != id);
        self.faults.len() != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(fault: Fault) -> Node {
        let mut node = Node::default();
        node.inject(fault);
        node
    }

    #[test]
    fn exact_and_prefix_symbols_on_one_or_all_gpus() {
        let create = "nvmlDeviceCreateGpuInstance";
        let placed = "nvmlDeviceCreateGpuInstanceWithPlacement";
        let exact = with(Fault {
            gpu: Some(1),
            ..Fault::new(create, Effect::Fail(Code::NO_PERMISSION))
        });
        assert_eq!(check(&exact, create, Some(1)), Action::Fail(Code(4)));
        assert_eq!(check(&exact, create, Some(0)), Action::Proceed);
        assert_eq!(check(&exact, create, None), Action::Proceed);
        assert_eq!(check(&exact, placed, Some(1)), Action::Proceed);
        let prefix = with(Fault::new("nvmlDeviceCreate*", Effect::Hang));
        assert_eq!(check(&prefix, placed, Some(7)), Action::Hang);
        assert_eq!(check(&prefix, "nvmlInit_v2", None), Action::Proceed);
    }

    #[test]
    fn after_two_calls_for_two_calls() {
        let mut node = with(Fault {
            after: 2,
            times: Some(2),
            ..Fault::new("f", Effect::Fail(Code::UNKNOWN))
        });
        assert_eq!(check(&node, "f", None), Action::Count);
        let fail = Action::Fail(Code(999));
        let seen: Vec<Action> = (0..6).map(|_| count(&mut node, "f", None)).collect();
        assert_eq!(
            seen,
            [
                Action::Proceed,
                Action::Proceed,
                fail,
                fail,
                Action::Proceed,
                Action::Proceed
            ]
        );
        assert_eq!(check(&node, "f", None), Action::Proceed);
    }

    #[test]
    fn probability_is_about_right_and_repeatable() {
        let run = || {
            let mut node = with(Fault {
                probability: Some(0.25),
                ..Fault::new("f", Effect::Fail(Code::TIMEOUT))
            });
            (0..4000)
                .map(|_| count(&mut node, "f", None) != Action::Proceed)
                .collect::<Vec<_>>()
        };
        let hits = run().iter().filter(|hit| **hit).count();
        assert!((800..1200).contains(&hits), "{hits} of 4000");
        assert_eq!(run(), run());
    }

    #[test]
    fn clearing_by_id() {
        let mut node = with(Fault::new("f", Effect::Delay(5)));
        assert_eq!(
            check(&node, "f", None),
            Action::Delay(Duration::from_micros(5))
        );
        assert!(!node.clear_fault(2));
        assert!(node.clear_fault(1));
        assert_eq!(check(&node, "f", None), Action::Proceed);
    }
}
