//! The state machine against a node that checks what must always hold.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::mps::plan::SharedGpu;

const PROBE: Duration = Duration::from_secs(15);
const PROBE_AGAIN: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_secs(1);

fn daemon(gpus: &[(&str, u32)]) -> Daemon {
    let gpus = gpus.iter().map(|&(uuid, replicas)| SharedGpu {
        uuid: uuid.to_owned(),
        index: 0,
        replicas,
        memory_mib: Some(1024),
    });
    Daemon {
        gpus: gpus.collect(),
    }
}

fn set(gpus: &[&str]) -> BTreeSet<String> {
    gpus.iter().map(|&gpu| gpu.to_owned()).collect()
}

/// A node on which steps succeed unless it is told otherwise; it checks what must always hold.
#[derive(Debug, Default)]
struct World {
    now: Now,
    running: Option<(BTreeSet<String>, Option<Daemon>)>,
    left: bool,
    exclusive: BTreeSet<String>,
    published: Option<Served>,
    broken: BTreeSet<String>,
    clients: bool,
    silent: bool,
    starts: u32,
    fail_starts: u32,
    steps: Vec<&'static str>,
}

impl World {
    fn percentage(&self) -> f64 {
        let limits = self
            .running
            .as_ref()
            .and_then(|(_, limits)| limits.as_ref());
        limits.map_or(100.0, |limits| f64::from(limits.thread_percentage()))
    }

    /// Does a step, except to wait.
    fn perform(&mut self, step: Step) -> Seen {
        let (name, seen) = match step {
            Step::Prepare(gpus) => {
                let usable: BTreeSet<_> = gpus.difference(&self.broken).cloned().collect();
                self.exclusive.extend(usable.iter().cloned());
                let trouble = (usable != gpus).then(|| "broken".to_owned());
                ("prepare", Seen::Prepared(usable, trouble))
            }
            Step::Start(gpus) => {
                assert!(
                    !self.left && self.running.is_none(),
                    "a daemon beside another"
                );
                assert!(
                    gpus.is_subset(&self.exclusive),
                    "a daemon on GPUs of others"
                );
                assert!(!gpus.is_empty(), "a daemon without GPUs");
                self.starts += 1;
                self.left = true;
                if self.fail_starts > 0 {
                    self.fail_starts -= 1;
                    ("start", Seen::Ended("no".to_owned()))
                } else {
                    self.running = Some((gpus, None));
                    ("start", Seen::Started)
                }
            }
            Step::Limit(limits) => {
                let (gpus, set) = self.running.as_mut().unwrap();
                assert_eq!(uuids(&limits), *gpus, "limits of GPUs it does not see");
                *set = Some(limits.clone());
                ("limit", Seen::Limited(limits))
            }
            Step::Publish(served) => {
                let (_, limits) = self.running.as_ref().unwrap();
                assert_eq!(
                    Served::from(limits.as_ref().unwrap()),
                    served,
                    "limits not set"
                );
                self.published = Some(served.clone());
                ("publish", Seen::Published(served))
            }
            Step::Withdraw => {
                self.published = None;
                ("withdraw", Seen::Withdrawn)
            }
            Step::Probe if self.silent => ("probe", Seen::Silent("hangs".to_owned())),
            Step::Probe => ("probe", Seen::Answered(self.percentage())),
            Step::AskClients => ("ask", Seen::Clients(self.clients)),
            Step::Quit => {
                assert!(
                    self.published.is_none(),
                    "ended while it says that it serves"
                );
                self.running = None;
                ("quit", Seen::Ended("was asked to".to_owned()))
            }
            Step::Clear => {
                self.left = false;
                ("clear", Seen::Cleared)
            }
            Step::Release(gpus) => {
                let used = self.running.as_ref().map(|(gpus, _)| gpus);
                assert!(
                    used.is_none_or(|used| used.is_disjoint(&gpus)),
                    "released below a daemon"
                );
                let gpus: BTreeSet<_> = gpus.difference(&self.broken).cloned().collect();
                self.exclusive.retain(|gpu| !gpus.contains(gpu));
                ("release", Seen::Released(gpus))
            }
            Step::Wait(_) => panic!("nothing to do"),
        };
        self.steps.push(name);
        seen
    }

    /// Does what is to do until the machine waits; then says until when.
    fn settle(&mut self, machine: &mut Machine) -> Option<Now> {
        for _ in 0..100 {
            match machine.next(self.now) {
                Step::Wait(until) => return until,
                step => {
                    let seen = self.perform(step);
                    machine.saw(seen, self.now);
                }
            }
        }
        panic!("never rests: {:?}", self.steps);
    }

    /// Lets time pass, with all that is to do in it.
    fn pass(&mut self, machine: &mut Machine, time: Duration) {
        let end = self.now + time;
        while let Some(until) = self.settle(machine) {
            assert!(until > self.now, "waits for the past");
            if until > end {
                break;
            }
            self.now = until;
        }
        self.now = end;
    }

    fn want(&mut self, machine: &mut Machine, wanted: Option<Daemon>) {
        machine.saw(Seen::Wanted(wanted), self.now);
        self.settle(machine);
    }

    fn die(&mut self, machine: &mut Machine) {
        self.running = None;
        machine.saw(Seen::Ended("killed".to_owned()), self.now);
    }

    fn steps(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.steps)
    }
}

fn up(gpus: &[(&str, u32)]) -> (World, Machine) {
    let (mut world, mut machine) = (
        World::default(),
        Machine::new(Pace::default(), BTreeSet::new(), true),
    );
    world.want(&mut machine, Some(daemon(gpus)));
    assert_eq!(
        world.steps(),
        ["clear", "prepare", "start", "limit", "probe", "publish"]
    );
    assert!(machine.is_ready());
    (world, machine)
}

#[test]
fn it_starts_and_ends() {
    let (mut world, mut machine) = up(&[("a", 2), ("b", 2)]);
    assert_eq!(world.exclusive, set(&["a", "b"]));
    world.want(&mut machine, None);
    assert_eq!(world.steps(), ["withdraw", "quit", "clear", "release"]);
    assert!(machine.is_over());
    assert_eq!(world.exclusive, set(&[]));
}

#[test]
fn what_an_earlier_process_left_is_set_right() {
    let mut world = World {
        left: true,
        exclusive: set(&["a", "b"]),
        ..World::default()
    };
    let mut machine = Machine::new(Pace::default(), set(&["a", "b"]), true);
    world.want(&mut machine, Some(daemon(&[("b", 2)])));
    assert_eq!(
        world.steps(),
        [
            "clear", "release", "prepare", "start", "limit", "probe", "publish"
        ]
    );
    assert_eq!(world.exclusive, set(&["b"]));
}

#[test]
fn a_dead_daemon_is_started_again_later_and_later() {
    let (mut world, mut machine) = up(&[("a", 2)]);
    world.fail_starts = 7;
    world.starts = 0;
    world.die(&mut machine);
    world.settle(&mut machine);
    // It is not served any more before anything else happens.
    assert_eq!(world.steps(), ["withdraw", "clear"]);
    assert_eq!(machine.trouble(), Some("killed"));
    let mut at = Vec::new();
    while world.running.is_none() {
        let until = world.settle(&mut machine).unwrap();
        if until > world.now && world.running.is_none() {
            world.now = until;
            at.push(until.as_secs());
        }
    }
    // 1, 2, 4, 8, 16, 32 s after each other, then a minute.
    assert_eq!(at, [1, 3, 7, 15, 31, 63, 123, 183]);
    assert!(machine.is_ready());
    assert_eq!(machine.trouble(), None);
}

#[test]
fn a_daemon_that_ran_long_starts_again_soon() {
    let (mut world, mut machine) = up(&[("a", 2)]);
    for _ in 0..5 {
        world.pass(&mut machine, Duration::from_secs(3600));
        world.die(&mut machine);
        assert_eq!(world.settle(&mut machine), Some(world.now + FIRST_PAUSE));
    }
}

#[test]
fn a_daemon_that_hangs_is_not_served_and_then_ended() {
    let (mut world, mut machine) = up(&[("a", 2)]);
    world.silent = true;
    world.pass(&mut machine, PROBE);
    assert_eq!(world.steps(), ["probe", "withdraw"]);
    world.pass(&mut machine, PROBE_AGAIN * (MISSES - 1));
    assert_eq!(world.steps(), ["probe", "probe", "probe", "quit", "clear"]);
    world.silent = false;
    world.pass(&mut machine, FIRST_PAUSE);
    assert!(machine.is_ready());
}

#[test]
fn a_daemon_that_was_slow_once_serves_on() {
    let (mut world, mut machine) = up(&[("a", 2)]);
    world.silent = true;
    world.pass(&mut machine, PROBE);
    world.silent = false;
    world.pass(&mut machine, PROBE_AGAIN);
    assert_eq!(world.steps(), ["probe", "withdraw", "probe", "publish"]);
    assert_eq!(world.starts, 1);
}

#[test]
fn new_limits_need_no_restart() {
    let (mut world, mut machine) = up(&[("a", 2), ("b", 2)]);
    world.clients = true;
    world.want(&mut machine, Some(daemon(&[("a", 4), ("b", 4)])));
    assert_eq!(world.steps(), ["limit", "probe", "publish"]);
    assert!(machine.is_ready());
}

#[test]
fn the_same_again_changes_nothing() {
    let (mut world, mut machine) = up(&[("a", 2)]);
    world.want(&mut machine, Some(daemon(&[("a", 2)])));
    assert_eq!(world.steps(), Vec::<&str>::new());
}

#[test]
fn a_gpu_that_goes_ends_it() {
    let (mut world, mut machine) = up(&[("a", 2), ("b", 2)]);
    world.clients = true;
    world.want(&mut machine, Some(daemon(&[("a", 2)])));
    assert_eq!(
        world.steps(),
        [
            "withdraw", "quit", "clear", "release", "prepare", "start", "limit", "probe", "publish"
        ]
    );
    assert_eq!(world.exclusive, set(&["a"]));
}

#[test]
fn a_gpu_that_comes_waits_for_the_last_client() {
    let (mut world, mut machine) = up(&[("a", 2)]);
    world.clients = true;
    world.want(&mut machine, Some(daemon(&[("a", 2), ("b", 2)])));
    world.pass(&mut machine, PROBE * 3);
    assert_eq!(world.starts, 1);
    // What it serves, it serves on; but not all that is wanted is served.
    assert_eq!(world.published, Some(Served::from(&daemon(&[("a", 2)]))));
    assert!(!machine.is_ready());
    world.clients = false;
    world.pass(&mut machine, PROBE);
    assert!(machine.is_ready());
    assert_eq!(world.starts, 2);
}

#[test]
fn a_gpu_that_fails_fails_alone() {
    let mut world = World {
        broken: set(&["b"]),
        ..World::default()
    };
    let mut machine = Machine::default();
    world.want(&mut machine, Some(daemon(&[("a", 2), ("b", 2)])));
    assert_eq!(world.published, Some(Served::from(&daemon(&[("a", 2)]))));
    world.pass(&mut machine, Duration::from_secs(600));
    assert_eq!(world.starts, 1);
    world.broken.clear();
    world.pass(&mut machine, PROBE * 2);
    assert!(machine.is_ready());
}

#[test]
fn when_no_gpu_can_be_had_it_waits() {
    let mut world = World {
        broken: set(&["a"]),
        ..World::default()
    };
    let mut machine = Machine::default();
    world.want(&mut machine, Some(daemon(&[("a", 2)])));
    world.pass(&mut machine, Duration::from_secs(180));
    // At 0, 1, 3, 7, 15, 31, 63, 123 s.
    assert_eq!(world.steps().len(), 8);
    world.want(&mut machine, None);
    assert!(machine.is_over());
}

#[test]
fn a_percentage_of_somebody_else_is_set_right() {
    let (mut world, mut machine) = up(&[("a", 2)]);
    world.running.as_mut().unwrap().1 = Some(daemon(&[("a", 4)]));
    world.pass(&mut machine, PROBE);
    assert_eq!(world.steps(), ["probe", "withdraw"]);
    world.pass(&mut machine, PROBE_AGAIN);
    assert_eq!(world.steps(), ["limit", "probe", "publish"]);
}

#[test]
fn a_gpu_that_does_not_go_back_is_tried_again_but_holds_up_no_end() {
    let (mut world, mut machine) = up(&[("a", 2), ("b", 2)]);
    world.broken = set(&["b"]);
    world.want(&mut machine, None);
    assert_eq!(world.steps(), ["withdraw", "quit", "clear", "release"]);
    assert!(machine.is_over());
    world.pass(&mut machine, Duration::from_secs(120));
    assert_eq!(world.steps(), ["release", "release"]);
    world.broken.clear();
    world.pass(&mut machine, Duration::from_secs(60));
    assert_eq!(world.steps(), ["release"]);
    assert!(world.exclusive.is_empty());
}

#[test]
fn while_paused_a_daemon_without_clients_ends() {
    let (mut world, mut machine) = up(&[("a", 2)]);
    machine.saw(Seen::Paused(true), world.now);
    world.pass(&mut machine, Duration::from_secs(60));
    assert_eq!(world.steps(), ["withdraw", "ask", "quit", "clear"]);
    machine.saw(Seen::Paused(false), world.now);
    world.settle(&mut machine);
    assert!(machine.is_ready());
}

#[test]
fn while_paused_clients_compute_on_and_no_new_ones_come() {
    let (mut world, mut machine) = up(&[("a", 2)]);
    world.clients = true;
    machine.saw(Seen::Paused(true), world.now);
    world.pass(&mut machine, PROBE_AGAIN * 2);
    assert_eq!(world.steps(), ["withdraw", "ask", "ask", "ask"]);
    machine.saw(Seen::Paused(false), world.now);
    world.pass(&mut machine, PROBE);
    assert!(machine.is_ready());
    assert_eq!(world.starts, 1);
}

#[derive(Clone, Debug)]
enum Event {
    Pause(bool),
    Want(Vec<(&'static str, u32)>),
    Die,
    Silent(bool),
    Clients(bool),
    Break(Vec<&'static str>),
    FailStarts(u32),
    Pass(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let gpus = || prop::sample::subsequence(vec!["a", "b", "c"], 0..=3);
    let event = prop_oneof![
        (gpus(), 2_u32..6).prop_map(|(gpus, replicas)| {
            Event::Want(gpus.into_iter().map(|gpu| (gpu, replicas)).collect())
        }),
        Just(Event::Die),
        any::<bool>().prop_map(Event::Silent),
        any::<bool>().prop_map(Event::Pause),
        any::<bool>().prop_map(Event::Clients),
        gpus().prop_map(Event::Break),
        (0_u32..3).prop_map(Event::FailStarts),
        (0_u64..100).prop_map(Event::Pass),
    ];
    prop::collection::vec(event, 0..24)
}

proptest! {
    /// Whatever happens, the node's rules hold (they are in `World`); once nothing fails any more, what is wanted is served;
    /// and nothing is left when nothing is wanted.
    #[test]
    fn it_always_gets_there(events in events()) {
        let (mut world, mut machine) = (World::default(), Machine::default());
        for event in events {
            match event {
                Event::Want(gpus) => {
                    let wanted = (!gpus.is_empty()).then(|| daemon(&gpus));
                    world.want(&mut machine, wanted);
                }
                Event::Die if world.running.is_some() => world.die(&mut machine),
                Event::Die => {}
                Event::Silent(silent) => world.silent = silent,
                Event::Pause(pause) => {
                    machine.saw(Seen::Paused(pause), world.now);
                    world.settle(&mut machine);
                }
                Event::Clients(clients) => world.clients = clients,
                Event::Break(gpus) => world.broken = set(&gpus),
                Event::FailStarts(count) => world.fail_starts = count,
                Event::Pass(seconds) => world.pass(&mut machine, Duration::from_secs(seconds)),
            }
        }
        (world.silent, world.clients, world.fail_starts) = (false, false, 0);
        world.broken.clear();
        machine.saw(Seen::Paused(false), world.now);
        world.pass(&mut machine, Duration::from_secs(300));
        let wanted = machine.wanted.clone();
        prop_assert_eq!(wanted.is_some(), machine.is_ready());
        prop_assert_eq!(world.exclusive.clone(), wanted.as_ref().map(uuids).unwrap_or_default());
        world.want(&mut machine, None);
        prop_assert!(machine.is_over());
        prop_assert_eq!(world.published.clone(), None);
        prop_assert!(world.exclusive.is_empty());
    }
}
