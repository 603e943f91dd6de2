//! Which resources are served: a pure state machine from what the node offers to what is opened and closed.
//!
//! A resource that the node no longer offers is not closed at once. Its list becomes empty first, which takes it to 0 on
//! the node, and its socket stays for a while: the kubelet has time to take the list, and a resource that comes back (a
//! layout that was tried and undone) goes on without registering anew.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use configuration::plugin::ResourceName;

/// How long an empty list is shown. The kubelet takes a list as soon as it is sent, and looks at it every 10 s
/// (`nodeStatusUpdateFrequency`) to write its Node.
pub(super) const HOLD: Duration = Duration::from_secs(10);

/// First and longest pause before a resource whose socket failed is opened again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// A resource that was served this long has no past.
const STABLE: Duration = Duration::from_secs(60);

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Make its socket and register it.
    Open(ResourceName),
    /// Show no devices.
    Empty(ResourceName),
    /// Remove its socket.
    Close(ResourceName),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// The node offers these.
    Offered(BTreeSet<ResourceName>),
    /// The server of a resource ended, because it was closed or by a failure.
    Ended(ResourceName),
    /// Time passed.
    Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Served {
        since: Instant,
        failures: u32,
    },
    /// Offered no more; shows nothing until then.
    Emptied {
        until: Instant,
    },
    /// Asked to end. Until it has, its socket is there, and a second one would displace it.
    Closing,
    /// Offered, and its socket failed.
    Failed {
        failures: u32,
        again: Instant,
    },
}

/// The resources that are served, or were a moment ago.
#[derive(Clone, Debug, Default)]
pub(super) struct Plugins {
    offered: BTreeSet<ResourceName>,
    lives: BTreeMap<ResourceName, Life>,
}

impl Plugins {
    /// When to come back with [`Input::Time`].
    pub(super) fn due(&self) -> Option<Instant> {
        let due = self.lives.values().filter_map(|life| match life {
            Life::Emptied { until } => Some(*until),
            Life::Failed { again, .. } => Some(*again),
            Life::Served { .. } | Life::Closing => None,
        });
        due.min()
    }

    /// The resources that are served or will be again, those that are being closed included.
    pub(super) fn names(&self) -> impl Iterator<Item = &ResourceName> {
        self.lives.keys()
    }

    /// Takes in what happened at `now`.
    pub(super) fn step(&mut self, input: Input, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        match input {
            Input::Offered(offered) => self.offered = offered,
            Input::Ended(name) => self.ended(name, now),
            Input::Time => {}
        }
        for (name, life) in &mut self.lives {
            let offered = self.offered.contains(name);
            match *life {
                Life::Served { .. } if !offered => {
                    *life = Life::Emptied { until: now + HOLD };
                    actions.push(Action::Empty(name.clone()));
                }
                Life::Emptied { .. } if offered => {
                    *life = Life::Served {
                        since: now,
                        failures: 0,
                    };
                }
                Life::Emptied { until } if until <= now => {
                    *life = Life::Closing;
                    actions.push(Action::Close(name.clone()));
                }
                Life::Failed { failures, again } if offered && again <= now => {
                    *life = Life::Served {
                        since: now,
                        failures,
                    };
                    actions.push(Action::Open(name.clone()));
                }
                _ => {}
            }
        }
        let offered = &self.offered;
        self.lives
            .retain(|name, life| !matches!(life, Life::Failed { .. }) || offered.contains(name));
        for name in offered {
            if !self.lives.contains_key(name) {
                let life = Life::Served {
                    since: now,
                    failures: 0,
                };
                self.lives.insert(name.clone(), life);
                actions.push(Action::Open(name.clone()));
            }
        }
        actions
    }

    fn ended(&mut self, name: ResourceName, now: Instant) {
        // Closed, or failed while it showed nothing: nothing is left to do, and if it is offered again it is a new one.
        let life = self.lives.remove(&name);
        if let Some(Life::Served { since, failures }) = life {
            let failures = if now.saturating_duration_since(since) >= STABLE {
                0
            } else {
                failures
            };
            let again = now + pause(failures);
            let failures = failures.saturating_add(1);
            self.lives.insert(name, Life::Failed { failures, again });
        }
    }
}

fn pause(failures: u32) -> Duration {
    PAUSES.0.saturating_mul(1 << failures.min(16)).min(PAUSES.1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn names(text: &str) -> BTreeSet<ResourceName> {
        text.split_whitespace()
            .map(|name| name.parse().unwrap())
            .collect()
    }

    /// `offer gpu mig-1g.5gb`, `ended gpu` or `wait MILLISECONDS`.
    fn play(script: &[&str]) -> String {
        let mut plugins = Plugins::default();
        let mut now = Instant::now();
        let mut said = Vec::new();
        for line in script {
            let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
            let input = match verb {
                "offer" => Input::Offered(names(rest)),
                "ended" => Input::Ended(rest.parse().unwrap()),
                _ => {
                    now += Duration::from_millis(rest.parse().unwrap());
                    Input::Time
                }
            };
            let actions = plugins.step(input, now).into_iter();
            let text: Vec<String> = actions
                .map(|action| match action {
                    Action::Open(name) => format!("open {}", name.base()),
                    Action::Empty(name) => format!("empty {}", name.base()),
                    Action::Close(name) => format!("close {}", name.base()),
                })
                .collect();
            said.push(text.join(", "));
        }
        said.join("; ")
    }

    #[rstest]
    #[case::opened_once(&["offer gpu", "offer gpu", "wait 60000"], "open gpu; ; ")]
    #[case::shown_empty_then_closed(
        &["offer gpu", "offer mig-1g.5gb", "wait 9999", "wait 1", "ended gpu"],
        "open gpu; empty gpu, open mig-1g.5gb; ; close gpu; "
    )]
    #[case::back_while_empty_goes_on(&["offer gpu", "offer", "wait 5000", "offer gpu", "wait 9000"], "open gpu; empty gpu; ; ; ")]
    #[case::back_while_closing_waits_for_the_end(
        &["offer gpu", "offer", "wait 10000", "offer gpu", "ended gpu"],
        "open gpu; empty gpu; close gpu; ; open gpu"
    )]
    #[case::failed(
        &["offer gpu", "ended gpu", "wait 199", "wait 1", "ended gpu", "wait 399", "wait 1"],
        "open gpu; ; ; open gpu; ; ; open gpu"
    )]
    #[case::failed_after_a_while(
        &["offer gpu", "ended gpu", "wait 200", "wait 60000", "ended gpu", "wait 200"],
        "open gpu; ; open gpu; ; ; open gpu"
    )]
    #[case::failed_and_offered_no_more(&["offer gpu", "ended gpu", "offer", "wait 1000"], "open gpu; ; ; ")]
    #[case::failed_while_empty(&["offer gpu", "offer", "ended gpu", "wait 10000"], "open gpu; empty gpu; ; ")]
    #[case::one_failure_touches_no_other(&["offer a b", "ended a", "wait 200"], "open a, open b; ; open a")]
    fn lives(#[case] script: &[&str], #[case] wanted: &str) {
        assert_eq!(play(script), wanted);
    }

    #[test]
    fn pauses_end_at_half_a_minute() {
        let millis: Vec<_> = (0..10)
            .map(|failures| pause(failures).as_millis())
            .collect();
        assert_eq!(
            millis,
            [200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]
        );
        assert_eq!(pause(u32::MAX), PAUSES.1);
    }

    fn input() -> impl Strategy<Value = (u64, Option<u8>)> {
        (0_u64..12_000, proptest::option::of(0_u8..8))
    }

    proptest! {
        /// Whatever is offered and whatever fails: nothing is opened twice at a time, and once all is quiet, what is
        /// offered is served and nothing else is.
        #[test]
        fn settles(inputs in proptest::collection::vec(input(), 0..60), failures in proptest::collection::vec(0_u8..3, 60)) {
            let all = ["a", "b", "c"].map(|name| name.parse::<ResourceName>().unwrap());
            let subset = |bits: u8| all.iter().enumerate().filter(|(bit, _)| bits & (1 << bit) != 0)
                .map(|(_, name)| name.clone()).collect::<BTreeSet<_>>();
            let mut plugins = Plugins::default();
            let mut now = Instant::now();
            let mut open = BTreeSet::new();
            let mut closing = BTreeSet::new();
            let carry_out = |actions: Vec<Action>, open: &mut BTreeSet<ResourceName>, closing: &mut BTreeSet<ResourceName>| {
                for action in actions {
                    match action {
                        Action::Open(name) => assert!(open.insert(name.clone()) && !closing.contains(&name)),
                        Action::Empty(name) => assert!(open.contains(&name)),
                        Action::Close(name) => {
                            assert!(open.contains(&name));
                            closing.insert(name);
                        }
                    }
                }
            };
            for ((wait, offered), failure) in inputs.into_iter().zip(failures) {
                now += Duration::from_millis(wait);
                let input = match offered {
                    Some(bits) => Input::Offered(subset(bits)),
                    None => match all.get(usize::from(failure)).filter(|name| open.contains(*name)) {
                        Some(name) => {
                            open.remove(name);
                            closing.remove(name);
                            Input::Ended(name.clone())
                        }
                        None => Input::Time,
                    },
                };
                let actions = plugins.step(input, now);
                carry_out(actions, &mut open, &mut closing);
            }
            for _ in 0..10 {
                for name in std::mem::take(&mut closing) {
                    open.remove(&name);
                    let actions = plugins.step(Input::Ended(name), now);
                    carry_out(actions, &mut open, &mut closing);
                }
                if let Some(due) = plugins.due() {
                    now = now.max(due);
                }
                let actions = plugins.step(Input::Time, now);
                carry_out(actions, &mut open, &mut closing);
            }
            prop_assert_eq!(open, plugins.offered.clone());
            prop_assert_eq!(plugins.due(), None);
        }
    }
}
