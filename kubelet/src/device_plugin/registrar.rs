//! When to register with the kubelet: a pure state machine over what is seen of it.
//!
//! The rule: register when there is a kubelet that does not know us, and never otherwise. A kubelet that gets a second
//! registration for a socket it is connected to refuses it, and from then on forgets to notice when that connection ends
//! (kubelet 1.37, `connectClient`), so registering once too often takes the resource away until its next restart.

use std::time::{Duration, Instant};

/// First pause after a failed registration; each further one is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// A kubelet that comes back makes its socket anew, which is seen at once; this is only for one that stays and refuses.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How long a registered kubelet may take to ask for the devices. It does so as soon as it has answered.
const STREAM_DUE: Duration = Duration::from_secs(10);

/// After the kubelet's connection has ended, a moment for the kubelet to notice that too.
const LOST: Duration = Duration::from_millis(200);

/// One kubelet: what its socket's file tells about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// Device and inode number of the socket.
    pub(super) file: (u64, u64),
    /// When the file came to be, where the file system keeps it: inode numbers are used again at once.
    pub(super) born: Option<std::time::SystemTime>,
}

/// Something seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Observation {
    /// The kubelet's socket, or that there is none.
    Kubelet(Option<Identity>),
    /// So many streams of devices are open.
    Streams(usize),
    /// A registration begins.
    Asks,
    /// The kubelet answered it, or could not be asked.
    Answered {
        /// It took it.
        accepted: bool,
    },
}

/// What is known, and when to register.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Registrar {
    kubelet: Option<Identity>,
    /// The kubelet that was there when the last registration began.
    asked: Option<Identity>,
    streams: usize,
    failures: u32,
    due: Option<Instant>,
}

impl Registrar {
    /// When to register next; nothing while there is no kubelet, or while it knows us.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due.filter(|_| self.kubelet.is_some())
    }

    /// Takes in what was seen at `now`.
    pub(super) fn observe(&mut self, observation: Observation, now: Instant) {
        match observation {
            Observation::Kubelet(kubelet) if kubelet != self.kubelet => {
                self.kubelet = kubelet;
                self.failures = 0;
                self.due = Some(now);
            }
            Observation::Kubelet(_) => {}
            Observation::Streams(streams) => {
                if streams > self.streams {
                    // Only a kubelet that took our registration asks for devices.
                    self.due = None;
                    self.failures = 0;
                } else if streams == 0 && self.streams > 0 {
                    let soon = now + LOST;
                    self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
                }
                self.streams = streams;
            }
            Observation::Asks => {
                self.asked = self.kubelet;
                self.due = None;
            }
            // Of two kubelets it is not known which one took it; if it was the present one, its stream is about to open.
            Observation::Answered { accepted: true } if self.asked != self.kubelet => {
                self.due = (self.streams == 0 || self.due.is_some()).then_some(now + LOST);
            }
            Observation::Answered { accepted: true } => {
                self.failures = 0;
                self.due = (self.streams == 0).then_some(now + STREAM_DUE);
            }
            // The former kubelet's refusal says nothing about this one.
            Observation::Answered { accepted: false } if self.asked != self.kubelet => {}
            Observation::Answered { accepted: false } => {
                self.due = Some(now + pause(self.failures));
                self.failures = self.failures.saturating_add(1);
            }
        }
    }
}

fn pause(failures: u32) -> Duration {
    FIRST_PAUSE
        .saturating_mul(1 << failures.min(16))
        .min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn kubelet(number: u64) -> Observation {
        Observation::Kubelet(Some(Identity {
            file: (1, number),
            born: None,
        }))
    }

    const GONE: Observation = Observation::Kubelet(None);
    const ASKS: Observation = Observation::Asks;
    const YES: Observation = Observation::Answered { accepted: true };
    const NO: Observation = Observation::Answered { accepted: false };

    fn streams(count: usize) -> Observation {
        Observation::Streams(count)
    }

    /// Milliseconds after the last observation at which to register, if at all. Observations are a second apart. An answer
    /// is one to a registration that began just before it, where the observations do not say when it began.
    fn due(observations: &[Observation]) -> Option<u128> {
        let mut registrar = Registrar::default();
        let mut now = Instant::now();
        let mut asks = false;
        for observation in observations {
            let is_answer = matches!(observation, Observation::Answered { .. });
            if is_answer && !asks {
                registrar.observe(ASKS, now);
            }
            asks = *observation == ASKS || (asks && !is_answer);
            now += Duration::from_secs(1);
            registrar.observe(*observation, now);
        }
        registrar
            .due()
            .map(|due| due.saturating_duration_since(now).as_millis())
    }

    #[rstest]
    #[case::no_kubelet(&[], None)]
    #[case::no_kubelet_seen(&[GONE], None)]
    #[case::a_kubelet(&[kubelet(1)], Some(0))]
    #[case::accepted_but_no_stream_yet(&[kubelet(1), YES], Some(10_000))]
    #[case::accepted_and_asked_for_devices(&[kubelet(1), YES, streams(1)], None)]
    #[case::asked_for_devices_before_the_answer_came(&[kubelet(1), streams(1), YES], None)]
    #[case::other_entries_changed(&[kubelet(1), YES, streams(1), kubelet(1)], None)]
    #[case::the_connection_ended(&[kubelet(1), YES, streams(1), streams(0)], Some(200))]
    #[case::one_of_two_ended(&[kubelet(1), YES, streams(2), streams(1)], None)]
    #[case::the_kubelet_went(&[kubelet(1), YES, streams(1), streams(0), GONE], None)]
    #[case::the_next_kubelet(&[kubelet(1), YES, streams(1), streams(0), GONE, kubelet(2)], Some(0))]
    #[case::the_next_kubelet_before_the_old_stream_ended(&[kubelet(1), YES, streams(1), kubelet(2)], Some(0))]
    #[case::the_old_stream_is_not_the_next_kubelets(&[kubelet(1), YES, streams(1), kubelet(2), streams(0)], Some(0))]
    #[case::two_kubelets_in_a_row(&[kubelet(1), kubelet(2), YES, streams(1)], None)]
    #[case::lost_while_waiting_for_the_stream(&[kubelet(1), YES, streams(1), kubelet(2), YES, streams(2), streams(0)], Some(200))]
    #[case::refused_once(&[kubelet(1), NO], Some(100))]
    #[case::refused_thrice(&[kubelet(1), NO, NO, NO], Some(400))]
    #[case::refused_often(&[kubelet(1), NO, NO, NO, NO, NO, NO, NO, NO, NO, NO], Some(10_000))]
    #[case::a_new_kubelet_ends_the_pause(&[kubelet(1), NO, NO, NO, kubelet(2)], Some(0))]
    #[case::a_new_kubelet_is_not_blamed(&[kubelet(1), NO, NO, NO, kubelet(2), NO], Some(100))]
    #[case::no_second_call_meanwhile(&[kubelet(1), ASKS], None)]
    #[case::a_new_kubelet_meanwhile(&[kubelet(1), ASKS, kubelet(2)], Some(0))]
    #[case::one_of_two_took_it(&[kubelet(1), ASKS, kubelet(2), YES], Some(200))]
    #[case::the_second_took_it(&[kubelet(1), ASKS, kubelet(2), YES, streams(1)], None)]
    #[case::the_second_took_it_and_is_quick(&[kubelet(1), ASKS, kubelet(2), streams(1), YES], None)]
    #[case::the_first_refused(&[kubelet(1), ASKS, kubelet(2), NO], Some(0))]
    fn registers_when(#[case] observations: &[Observation], #[case] expected: Option<u128>) {
        assert_eq!(due(observations), expected);
    }

    #[test]
    fn a_kubelet_with_the_inode_number_of_the_last_one_is_another() {
        let born = |second| {
            Observation::Kubelet(Some(Identity {
                file: (1, 1),
                born: Some(std::time::UNIX_EPOCH + Duration::from_secs(second)),
            }))
        };
        assert_eq!(due(&[born(1), YES, streams(1), born(1)]), None);
        assert_eq!(due(&[born(1), YES, streams(1), born(2)]), Some(0));
    }

    fn observation() -> impl Strategy<Value = Observation> {
        prop_oneof![
            Just(GONE),
            (1_u64..4).prop_map(kubelet),
            (0_usize..3).prop_map(streams),
            Just(ASKS),
            any::<bool>().prop_map(|accepted| Observation::Answered { accepted }),
        ]
    }

    proptest! {
        #[test]
        fn without_a_stream_a_kubelet_is_asked_within_ten_seconds(
            seen in proptest::collection::vec(observation(), 0..40),
        ) {
            let mut seen = seen;
            seen.extend([kubelet(9), streams(0)]);
            prop_assert!(due(&seen).is_some_and(|due| due <= 10_000));
        }

        #[test]
        fn a_kubelet_that_asked_for_devices_is_left_alone(
            seen in proptest::collection::vec(observation(), 0..40),
            idle in 0_usize..5,
        ) {
            let mut seen = seen;
            seen.extend([kubelet(9), YES, streams(0), streams(1)]);
            seen.extend(std::iter::repeat_n(kubelet(9), idle));
            prop_assert_eq!(due(&seen), None);
        }
    }
}
