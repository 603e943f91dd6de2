//! What each observation does to health, by hand-made observations on a made-up clock.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use nvml::{Code, Error, EventKind, GpuRef};
use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::hardware::{self, KnownGpu};
use crate::health::{Readings, RecoveryAction};
use crate::resources::{Gpu, MigDevice, MigPlace};

const A: &str = "GPU-a";
const B: &str = "GPU-b";
const DAY: u64 = 24 * 3600;

fn gpu(uuid: &str, bus: u32, instances: &[(u32, u32)]) -> KnownGpu {
    let mig = instances.iter().zip(0..);
    let mig = mig.map(|(&(gpu_instance, compute_instance), index)| MigDevice {
        index,
        uuid: format!("MIG-{uuid}-{gpu_instance}-{compute_instance}"),
        gpu_instance,
        compute_instance,
        profile: None,
        attributes: None,
    });
    KnownGpu {
        gpu: Gpu {
            index: bus,
            uuid: uuid.to_owned(),
            bus_id: format!("00000000:0{bus}:00.0"),
            mig: mig.collect(),
            ..Gpu::default()
        },
        ..KnownGpu::default()
    }
}

fn device(uuid: &str, instance: Option<(u32, u32)>) -> Device {
    Device {
        uuid: "any".to_owned(),
        gpu_index: 0,
        gpu_uuid: uuid.to_owned(),
        numa_node: None,
        mig: instance.map(|(gpu_instance, compute_instance)| MigPlace {
            index: 0,
            gpu_instance,
            compute_instance,
        }),
        shares: Some(4),
    }
}

fn failed(index: u32, code: Code) -> Error {
    Error::Call {
        gpu: Some(GpuRef { index, uuid: None }),
        call: "a call",
        code,
    }
}

/// All that a GPU can tell, and all well.
fn well() -> Readings {
    Readings {
        recovery: Some(None),
        remap_pending: Some(false),
        remap_failure: Some(false),
        uncorrected: Some(0),
        thermal: Some(false),
        energy_mj: Some(1_000_000),
    }
}

/// Health, its inventory and a clock.
struct Bench {
    health: Health,
    inventory: Inventory,
    zero: Instant,
    now: Instant,
}

impl Bench {
    /// GPU a whole; on GPU b the instances 1/0, 1/1 and 2/0. Both were looked at and are well.
    fn new(policy: &str) -> Self {
        let zero = Instant::now();
        let policy = Policy::parse("policy", policy.as_bytes()).unwrap();
        let mut bench = Self {
            health: Health::new(policy),
            inventory: Inventory::default(),
            zero,
            now: zero,
        };
        bench.hardware(hardware::Observation::Driver {
            version: "1".to_owned(),
            generation: 1,
        });
        bench.answers(gpu(A, 1, &[]));
        bench.answers(gpu(B, 2, &[(1, 0), (1, 1), (2, 0)]));
        assert_eq!(bench.looks(), [A, B]);
        assert_eq!(bench.look(A, well()), [""; 0]);
        assert_eq!(bench.look(B, well()), [""; 0]);
        assert_eq!(bench.health.due(), None);
        bench
    }

    fn built_in() -> Self {
        Self::new("version: v1")
    }

    fn at(&mut self, seconds: u64) -> &mut Self {
        self.now = self.zero + Duration::from_secs(seconds);
        self
    }

    fn observe(&mut self, observation: Observation<'_>) -> Vec<String> {
        let notices = self.health.observe(observation, self.now);
        let short = |notice: Notice| {
            let subject = match notice.subject {
                Subject::Driver => "all".to_owned(),
                Subject::Gpu { uuid, instance, .. } => match instance {
                    None => uuid,
                    Some((gpu, compute)) => format!("{uuid} {gpu}/{compute}"),
                },
            };
            let xid = match notice.cause {
                Cause::Xid(number) => format!(" {number}"),
                _ => String::new(),
            };
            let sign = if notice.over { '-' } else { '+' };
            format!(
                "{sign}{subject}: {}{xid} x{}",
                notice.cause.key(),
                notice.count
            )
        };
        notices.into_iter().map(short).collect()
    }

    fn hardware(&mut self, observation: hardware::Observation) -> Vec<String> {
        self.inventory.observe(observation);
        let inventory = self.inventory.clone();
        self.observe(Observation::Inventory(&inventory))
    }

    fn answers(&mut self, known: KnownGpu) -> Vec<String> {
        let index = known.gpu.index;
        let answer = Ok(Some(known));
        self.hardware(hardware::Observation::Gpu { index, answer })
    }

    fn fails(&mut self, index: u32, code: Code) -> Vec<String> {
        let error = failed(index, code);
        let gpu = GpuRef { index, uuid: None };
        self.hardware(hardware::Observation::Trouble { gpu, error })
    }

    fn event(
        &mut self,
        gpu_uuid: Option<&str>,
        instance: Option<(u32, u32)>,
        kind: &EventKind,
    ) -> Vec<String> {
        let place = EventPlace { gpu_uuid, instance };
        self.observe(Observation::Event { place, kind })
    }

    fn xid(&mut self, gpu: &str, number: u64) -> Vec<String> {
        self.event(Some(gpu), None, &EventKind::Xid(number))
    }

    fn look(&mut self, gpu: &str, readings: Readings) -> Vec<String> {
        self.observe(Observation::Looked {
            gpu,
            asked: self.now,
            readings: Some(readings),
        })
    }

    fn looks(&self) -> Vec<String> {
        self.health.to_look_at(self.now)
    }

    /// Seconds since the start.
    fn due(&self) -> Option<u64> {
        let due = self.health.due()?;
        Some(due.duration_since(self.zero).as_secs())
    }

    fn is_healthy(&self, gpu: &str) -> bool {
        self.health.verdict(&device(gpu, None)).is_healthy()
    }

    /// Of GPU a, and of b's 1/0, 1/1, 2/0.
    fn healthy(&self) -> [bool; 4] {
        [
            device(A, None),
            device(B, Some((1, 0))),
            device(B, Some((1, 1))),
            device(B, Some((2, 0))),
        ]
        .map(|device| self.health.verdict(&device).is_healthy())
    }
}

#[test]
fn a_transient_xid_ends_by_itself_and_a_fatal_one_does_not() {
    let mut bench = Bench::built_in();
    assert_eq!(bench.at(10).xid(A, 94), ["+GPU-a: xid 94 x1"]);
    assert_eq!(bench.xid(B, 95), ["+GPU-b: xid 95 x1"]);
    assert_eq!(bench.healthy(), [false; 4]);
    // It is looked at at once, in between, and when it has been quiet for five minutes.
    let mut looks = Vec::new();
    while let Some(due) = bench.due().filter(|due| *due <= 400) {
        bench.at(due);
        looks.extend(bench.looks().contains(&A.to_owned()).then_some(due));
        for gpu in bench.looks() {
            let notices = bench.look(&gpu, well());
            if due < 310 {
                assert_eq!(notices, [""; 0], "at {due}");
            } else if gpu == A {
                assert_eq!(notices, ["-GPU-a: xid 94 x1"]);
            }
        }
        assert_eq!(bench.is_healthy(A), due >= 310, "at {due}");
    }
    assert_eq!(looks.first(), Some(&10));
    assert_eq!(looks.last(), Some(&310));
    bench.at(DAY).look(B, well());
    assert_eq!(bench.healthy(), [true, false, false, false]);
    assert_eq!(
        bench.health.verdict(&device(B, Some((2, 0)))),
        Verdict::Unhealthy(vec![Reason {
            cause: Cause::Xid(95),
            until: Until::Reset,
        }])
    );
}

/// As NVIDIA's plugin, which ignores 13, 31, 43, 45, 68 and 109; with a way back where the vendor asks for no reset.
#[rstest]
#[case::ignored(&[13, 31, 43, 45, 68, 109], true, true)]
#[case::no_reset(&[63, 92, 94, 121, 137, 154, 157, 160, 161], false, true)]
#[case::reset(&[46, 62, 64, 95, 119, 120, 136, 140, 143, 155, 156, 158], false, false)]
#[case::reboot(&[79], false, false)]
#[case::workflow(&[48, 74, 144, 145, 146, 147, 148, 149, 150], false, false)]
#[case::not_in_the_catalogue(&[0, 1, 8, 159, 162, 1000, u64::MAX], false, false)]
fn xids_by_default(#[case] xids: &[u64], #[case] ignored: bool, #[case] recovers: bool) {
    for &number in xids {
        let mut bench = Bench::built_in();
        bench.xid(A, number);
        assert_eq!(bench.is_healthy(A), ignored, "XID {number}");
        bench.look(A, well());
        bench.at(300).look(A, well());
        assert_eq!(bench.is_healthy(A), recovers, "XID {number} later");
    }
}

#[rstest]
#[case(Some(A), None, [false, true, true, true])]
#[case(Some(B), None, [true, false, false, false])]
#[case(Some(B), Some((1, 1)), [true, true, false, true])]
#[case(Some(B), Some((9, 0)), [true, true, true, true])]
#[case(None, None, [false; 4])]
// Which GPU's instance it would be is not known.
#[case(None, Some((1, 1)), [false; 4])]
#[case(Some("GPU-unknown"), None, [true; 4])]
fn whom_an_event_hits(
    #[case] gpu: Option<&str>,
    #[case] instance: Option<(u32, u32)>,
    #[case] healthy: [bool; 4],
) {
    let mut bench = Bench::built_in();
    bench.event(gpu, instance, &EventKind::Xid(95));
    assert_eq!(bench.healthy(), healthy);
}

#[test]
fn harmless_and_transient_trouble_clears_nothing_fatal() {
    let mut bench = Bench::built_in();
    bench.xid(A, 95);
    for number in [13, 31, 94] {
        bench.xid(A, number);
    }
    bench.look(A, well());
    assert_eq!(bench.at(300).look(A, well()), ["-GPU-a: xid 94 x1"]);
    for kind in [
        EventKind::Watching,
        EventKind::SingleBitEcc,
        EventKind::MigConfigChange,
    ] {
        bench.event(Some(A), None, &kind);
        bench.look(A, well());
    }
    assert!(!bench.is_healthy(A));
}

#[test]
fn a_storm_is_one_change_and_is_not_looked_at_all_the_time() {
    let mut bench = Bench::built_in();
    bench.at(100);
    let mut looks = 0;
    for n in 0..1000 {
        // One every 10 ms.
        bench.now += Duration::from_millis(10);
        let notices = bench.event(Some(B), Some((1, 0)), &EventKind::Xid(94));
        if n == 0 {
            assert_eq!(notices, ["+GPU-b 1/0: xid 94 x1"]);
        } else {
            assert_eq!(notices, [""; 0]);
        }
        for gpu in bench.looks() {
            looks += 1;
            assert_eq!(bench.look(&gpu, well()), [""; 0]);
        }
    }
    // At once, then every second of ten.
    assert!((10..=11).contains(&looks), "{looks}");
    // The last one was at 110 s.
    assert_eq!(bench.at(409).look(B, well()), [""; 0]);
    assert_eq!(bench.at(410).look(B, well()), ["-GPU-b 1/0: xid 94 x1000"]);
}

/// Looks that take a while, under a storm of what means nothing: still one a second, and they find what is wrong.
#[test]
fn slow_looks_in_a_storm() {
    let mut bench = Bench::built_in();
    bench.at(100);
    let mut asked = None;
    let mut looks = 0;
    for n in 0..1000 {
        bench.now += Duration::from_millis(10);
        assert_eq!(bench.xid(A, 31), [""; 0]);
        match asked {
            None if bench.looks() == [A] => asked = Some((n, bench.now)),
            // The answer takes 50 ms.
            Some((began, when)) if n == began + 5 => {
                asked = None;
                looks += 1;
                let pending = Readings {
                    remap_pending: Some(true),
                    ..well()
                };
                bench.observe(Observation::Looked {
                    gpu: A,
                    asked: when,
                    readings: Some(pending),
                });
                assert!(!bench.is_healthy(A));
            }
            _ => {}
        }
    }
    assert!((9..=11).contains(&looks), "{looks}");
}

#[test]
fn a_recheck_fails_while_something_is_not_well() {
    let mut bench = Bench::built_in();
    bench.xid(A, 94);
    // The error itself is counted before the first look.
    let after = |uncorrected| Readings {
        uncorrected: Some(uncorrected),
        ..well()
    };
    bench.look(A, after(1));
    // Another one, without an event: quiet begins anew.
    assert_eq!(bench.at(200).look(A, after(2)), [""; 0]);
    assert_eq!(bench.at(300).look(A, after(2)), [""; 0]);
    let busy = Readings {
        recovery: Some(Some(RecoveryAction::DrainAndReset)),
        remap_pending: Some(true),
        ..after(2)
    };
    assert_eq!(
        bench.at(500).look(A, busy.clone()),
        ["+GPU-a: rowRemapPending x1", "+GPU-a: recoveryAction x1"]
    );
    bench.at(DAY).look(A, busy);
    assert!(!bench.is_healthy(A));
    assert_eq!(
        bench.at(DAY + 1).look(A, after(0)),
        [
            "-GPU-a: xid 94 x1",
            "-GPU-a: rowRemapPending x1",
            "-GPU-a: recoveryAction x1"
        ]
    );
    assert!(bench.is_healthy(A));
}

#[test]
fn a_gpu_that_tells_nothing_of_itself_passes_its_rechecks() {
    let mut bench = Bench::built_in();
    bench.xid(A, 94);
    bench.look(A, Readings::default());
    bench.at(300).look(A, Readings::default());
    assert!(bench.is_healthy(A));
    bench.xid(A, 95);
    bench.at(DAY).look(A, Readings::default());
    assert!(!bench.is_healthy(A));
}

#[test]
fn no_answer_passes_no_recheck_and_is_asked_again() {
    let mut bench = Bench::built_in();
    bench.xid(A, 94);
    bench.look(A, well());
    bench.at(300);
    assert_eq!(
        bench.observe(Observation::Looked {
            gpu: A,
            asked: bench.now,
            readings: None
        }),
        [""; 0]
    );
    assert!(!bench.is_healthy(A));
    assert_eq!(bench.due(), Some(330));
    bench.at(330).look(A, well());
    assert!(bench.is_healthy(A));
    assert_eq!(bench.due(), None);
}

#[test]
fn what_the_hardware_still_shows_is_found_after_a_restart() {
    let mut bench = Bench::built_in();
    bench.health = Health::new(Policy::default());
    let inventory = bench.inventory.clone();
    bench.observe(Observation::Inventory(&inventory));
    let shown = Readings {
        recovery: Some(Some(RecoveryAction::Reset)),
        remap_pending: Some(true),
        remap_failure: Some(true),
        uncorrected: Some(7),
        thermal: Some(true),
        ..well()
    };
    assert_eq!(
        bench.look(A, shown),
        [
            "+GPU-a: rowRemapPending x1",
            "+GPU-a: rowRemapFailure x1",
            "+GPU-a: recoveryAction x1"
        ]
    );
    // The reset remaps the rows that can be.
    let reset = Readings {
        remap_failure: Some(true),
        ..well()
    };
    assert_eq!(
        bench.at(60).look(A, reset),
        ["-GPU-a: rowRemapPending x1", "-GPU-a: recoveryAction x1"]
    );
    bench.at(DAY).look(A, well());
    assert_eq!(
        bench.health.verdict(&device(A, None)),
        Verdict::Unhealthy(vec![Reason {
            cause: Cause::RowRemapFailure,
            until: Until::Replaced,
        }])
    );
}

#[test]
fn an_imex_domain_to_recover_is_not_the_gpus_trouble() {
    let mut bench = Bench::built_in();
    let readings = Readings {
        recovery: Some(Some(RecoveryAction::RecoverImex)),
        ..well()
    };
    assert_eq!(bench.look(A, readings), [""; 0]);
}

#[test]
fn rows_that_nobody_tells_of_any_more_still_wait() {
    let mut bench = Bench::built_in();
    let pending = |pending| Readings {
        remap_pending: pending,
        ..well()
    };
    bench.look(A, pending(Some(true)));
    // MIG instances were made.
    bench.at(DAY).look(A, pending(None));
    assert!(!bench.is_healthy(A));
    bench.observe(Observation::Reset { gpu: A });
    assert_eq!(bench.at(DAY + 1).looks(), [A]);
    assert_eq!(bench.look(A, pending(None)), ["-GPU-a: rowRemapPending x1"]);
}

#[rstest]
#[case::told(None, well())]
#[case::energy(None, Readings { energy_mj: Some(400_000), ..well() })]
#[case::recovered(Some(Readings { recovery: Some(Some(RecoveryAction::Reset)), ..well() }), well())]
#[case::remapped(Some(Readings { remap_pending: Some(true), ..well() }), well())]
#[case::counter(Some(Readings { uncorrected: Some(1), ..well() }), well())]
fn a_reset_ends_what_needs_one(#[case] before: Option<Readings>, #[case] after: Readings) {
    let mut bench = Bench::built_in();
    bench.xid(A, 95);
    bench.event(Some(B), Some((1, 0)), &EventKind::Xid(95));
    if let Some(before) = &before {
        bench.look(A, before.clone());
    } else if after == well() {
        bench.observe(Observation::Reset { gpu: A });
    }
    assert!(!bench.is_healthy(A));
    bench.at(100).look(A, after);
    bench.look(B, well());
    assert_eq!(bench.healthy(), [true, false, true, true]);
}

#[test]
fn a_lost_gpu_is_back_when_it_answers_and_looks_well() {
    let mut bench = Bench::built_in();
    bench.xid(A, 79);
    assert_eq!(bench.fails(1, Code::GPU_IS_LOST), ["+GPU-a: lost x1"]);
    // The same again changes nothing, and there is nothing to ask.
    assert_eq!(bench.at(5).fails(1, Code::GPU_IS_LOST), [""; 0]);
    assert_eq!(bench.due(), None);
    assert_eq!(bench.healthy(), [false, true, true, true]);
    assert_eq!(bench.at(60).answers(gpu(A, 1, &[])), [""; 0]);
    assert!(!bench.is_healthy(A));
    assert_eq!(bench.looks(), [A]);
    // Only a reset brings a lost GPU back, so what needed one is over too.
    assert_eq!(
        bench.look(A, well()),
        ["-GPU-a: xid 79 x1", "-GPU-a: lost x1"]
    );
    assert_eq!(bench.healthy(), [true; 4]);
    assert_eq!(bench.due(), None);
}

/// A look takes time, and the GPU may be lost meanwhile.
#[test]
fn an_answer_from_before_says_nothing_of_what_happened_since() {
    let mut bench = Bench::built_in();
    bench.at(10).xid(A, 94);
    let asked = bench.now;
    let late = |readings| Observation::Looked {
        gpu: A,
        asked,
        readings,
    };
    bench.at(11).xid(A, 79);
    let lost = EventKind::Lost(failed(1, Code::GPU_IS_LOST));
    bench.event(Some(A), None, &lost);
    assert_eq!(bench.observe(late(Some(well()))), [""; 0]);
    bench.fails(1, Code::GPU_IS_LOST);
    assert_eq!(bench.observe(late(Some(well()))), [""; 0]);
    // Back, and the answer of the first look, which failed, comes only now: the GPU is asked again at once.
    bench.at(20).answers(gpu(A, 1, &[]));
    bench.observe(late(None));
    assert_eq!(bench.looks(), [A]);
    // A reset ends what a recheck would have ended, too.
    assert_eq!(
        bench.look(A, well()),
        ["-GPU-a: xid 94 x1", "-GPU-a: xid 79 x1", "-GPU-a: lost x1"]
    );
}

#[test]
fn a_gpu_that_answers_and_still_wants_a_reset_had_none() {
    let mut bench = Bench::built_in();
    bench.xid(A, 95);
    bench.fails(1, Code::RESET_REQUIRED);
    bench.at(60).answers(gpu(A, 1, &[]));
    let wanted = Readings {
        recovery: Some(Some(RecoveryAction::Reset)),
        ..well()
    };
    assert_eq!(
        bench.look(A, wanted),
        ["+GPU-a: recoveryAction x1", "-GPU-a: lost x1"]
    );
    assert_eq!(
        bench.at(120).look(A, well()),
        ["-GPU-a: xid 95 x1", "-GPU-a: recoveryAction x1"]
    );
}

#[test]
fn a_gpu_that_hung_was_not_reset() {
    let mut bench = Bench::built_in();
    bench.xid(A, 95);
    let hung = Error::Hung {
        gpu: None,
        call: "a call",
        waited: Duration::from_secs(9),
    };
    let gpu_ref = GpuRef {
        index: 1,
        uuid: Some(A.into()),
    };
    let trouble = hardware::Observation::Trouble {
        gpu: gpu_ref,
        error: hung,
    };
    assert_eq!(bench.hardware(trouble), ["+GPU-a: lost x1"]);
    bench.at(60).answers(gpu(A, 1, &[]));
    assert_eq!(bench.look(A, well()), ["-GPU-a: lost x1"]);
    assert!(!bench.is_healthy(A));
}

#[test]
fn the_drivers_end_is_one_change_for_all() {
    let mut bench = Bench::built_in();
    bench.xid(A, 95);
    let gone = || hardware::Observation::DriverGone(failed(0, Code::DRIVER_NOT_LOADED));
    assert_eq!(bench.at(10).hardware(gone()), ["+all: driver x1"]);
    assert_eq!(bench.at(11).hardware(gone()), [""; 0]);
    let unwatched = EventKind::Failed(failed(1, Code::DRIVER_NOT_LOADED));
    assert_eq!(bench.event(Some(A), None, &unwatched), [""; 0]);
    assert_eq!(bench.healthy(), [false; 4]);
    assert_eq!(bench.health.due(), None);
    // An answer from before.
    assert_eq!(bench.look(A, well()), [""; 0]);
    bench.at(60);
    let back = hardware::Observation::Driver {
        version: "1".to_owned(),
        generation: 2,
    };
    assert_eq!(bench.hardware(back), ["-all: driver x1"]);
    bench.answers(gpu(A, 1, &[]));
    bench.answers(gpu(B, 2, &[(1, 0), (1, 1), (2, 0)]));
    assert_eq!(bench.looks(), [A, B]);
    bench.look(B, well());
    assert_eq!(bench.healthy(), [false, true, true, true]);
    // The driver was loaded anew: its energy counter says so.
    let fresh = Readings {
        energy_mj: Some(10),
        ..well()
    };
    assert_eq!(bench.look(A, fresh), ["-GPU-a: xid 95 x1"]);
}

#[test]
fn events_that_cannot_be_read_are_one_change_until_they_can() {
    let mut bench = Bench::built_in();
    for seconds in 0..50 {
        let failed = EventKind::Failed(failed(1, Code::UNKNOWN));
        let notices = bench.at(seconds).event(Some(A), None, &failed);
        if seconds == 0 {
            assert_eq!(notices, ["+GPU-a: unwatched x1"]);
        } else {
            assert_eq!(notices, [""; 0]);
        }
        for gpu in bench.looks() {
            assert_eq!(bench.look(&gpu, well()), [""; 0]);
        }
    }
    assert_eq!(bench.healthy(), [false, true, true, true]);
    bench.at(60).event(Some(A), None, &EventKind::Watching);
    assert_eq!(bench.looks(), [A]);
    assert_eq!(bench.look(A, well()), ["-GPU-a: unwatched x50"]);
    assert!(bench.is_healthy(A));
}

#[test]
fn mig_managers_turn_is_no_trouble() {
    let mut bench = Bench::built_in();
    for known in [gpu(A, 1, &[]), gpu(B, 2, &[])] {
        bench.answers(KnownGpu {
            mig_capable: true,
            ..known
        });
    }
    assert_eq!(
        bench.hardware(hardware::Observation::Reshaping),
        ["+GPU-a: reshaping x1", "+GPU-b: reshaping x1"]
    );
    assert!(!bench.is_healthy(A) && !bench.is_healthy(B));
    assert_eq!(bench.health.condition().status, super::super::Status::False);
    bench.at(20).answers(gpu(A, 1, &[(1, 0)]));
    assert_eq!(bench.look(A, well()), ["-GPU-a: reshaping x1"]);
}

#[test]
fn transient_trouble_ends_with_its_instance_and_fatal_trouble_is_the_gpus() {
    let mut bench = Bench::built_in();
    bench.event(Some(B), Some((1, 0)), &EventKind::Xid(94));
    bench.event(Some(B), Some((1, 1)), &EventKind::Xid(95));
    assert_eq!(bench.healthy(), [true, false, false, true]);
    // A look at the same layout changes nothing.
    bench.answers(gpu(B, 2, &[(1, 0), (1, 1), (2, 0)]));
    assert_eq!(bench.healthy(), [true, false, false, true]);
    assert_eq!(
        bench.at(10).answers(gpu(B, 2, &[(2, 0)])),
        [
            "-GPU-b 1/0: xid 94 x1",
            "-GPU-b 1/1: xid 95 x1",
            "+GPU-b: xid 95 x1"
        ]
    );
    // Ids are used again; the bad memory may be under any instance.
    bench.answers(gpu(B, 2, &[(1, 0), (2, 0)]));
    assert_eq!(bench.healthy(), [true, false, false, false]);
    bench.observe(Observation::Reset { gpu: B });
    assert_eq!(bench.at(20).look(B, well()), ["-GPU-b: xid 95 x1"]);
    assert_eq!(bench.healthy(), [true; 4]);
}

#[test]
fn another_gpu_in_the_place_is_another_gpu() {
    let mut bench = Bench::built_in();
    bench.xid(A, 95);
    let broken = Readings {
        remap_failure: Some(true),
        ..well()
    };
    bench.look(A, broken);
    assert_eq!(
        bench.answers(gpu("GPU-c", 1, &[])),
        ["-GPU-a: xid 95 x1", "-GPU-a: rowRemapFailure x1"]
    );
    assert!(bench.is_healthy("GPU-c"));
    // The broken one comes back, elsewhere.
    assert_eq!(
        bench.at(DAY).answers(gpu(A, 3, &[])),
        ["+GPU-a: rowRemapFailure x1"]
    );
    bench.look(A, well());
    assert!(!bench.is_healthy(A));
}

#[test]
fn trouble_that_comes_again_has_to_stay_away_longer() {
    let mut bench =
        Bench::new("{version: v1, xids: [{xids: [94], unhealthy: untilRecheck, quiet: 10s}]}");
    let mut now = 0;
    // Ten seconds, then twice as long each time, an hour at most.
    for quiet in [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600] {
        bench.at(now).xid(A, 94);
        bench.look(A, well());
        bench.at(now + quiet - 1).look(A, well());
        assert!(!bench.is_healthy(A), "{quiet}");
        now += quiet;
        bench.at(now).look(A, well());
        assert!(bench.is_healthy(A), "{quiet}");
        now += 5;
    }
    // After ten such periods all is forgotten.
    now += 36_000;
    bench.at(now).xid(A, 94);
    bench.look(A, well());
    bench.at(now + 10).look(A, well());
    assert!(bench.is_healthy(A));
}

#[test]
fn a_new_policy_holds_for_what_is_wrong_already() {
    let mut bench = Bench::built_in();
    bench.xid(A, 95);
    bench.xid(A, 94);
    let policy = "{version: v1, xids: [{xids: [94], unhealthy: never}, {xids: [95], unhealthy: untilRecheck, quiet: 5s}]}";
    let policy = Policy::parse("policy", policy.as_bytes()).unwrap();
    let notices = bench.health.set_policy(policy.clone(), bench.now);
    let causes: Vec<_> = notices
        .iter()
        .map(|notice| (notice.cause, notice.over))
        .collect();
    assert_eq!(causes, [(Cause::Xid(94), true)]);
    assert!(!bench.is_healthy(A));
    bench.look(A, well());
    bench.at(5).look(A, well());
    assert!(bench.is_healthy(A));
    assert_eq!(bench.health.set_policy(policy, bench.now), []);
}

#[test]
fn heat_is_looked_for_only_where_it_matters() {
    assert_eq!(Bench::built_in().due(), None);
    let policy = "{version: v1, interval: 10s, conditions: {thermal: {unhealthy: untilRecheck, quiet: 20s}}}";
    let health = Health::new(Policy::parse("policy", policy.as_bytes()).unwrap());
    let zero = Instant::now();
    let mut bench = Bench {
        health,
        inventory: Inventory::default(),
        zero,
        now: zero,
    };
    bench.answers(gpu(A, 1, &[]));
    let hot = |hot| Readings {
        thermal: Some(hot),
        ..well()
    };
    bench.look(A, well());
    assert_eq!(bench.due(), Some(10));
    assert_eq!(bench.at(10).look(A, hot(true)), ["+GPU-a: thermal x1"]);
    assert_eq!(bench.due(), Some(20));
    bench.at(20).look(A, hot(false));
    bench.at(30).look(A, hot(true));
    bench.at(40).look(A, hot(false));
    bench.at(50).look(A, hot(false));
    assert!(!bench.is_healthy(A));
    assert_eq!(bench.due(), Some(60));
    assert_eq!(bench.at(60).look(A, hot(false)), ["-GPU-a: thermal x1"]);
}

#[rstest]
#[case("all", "", 95, true)]
#[case("xids", "", 95, true)]
#[case("95", "", 95, true)]
#[case("94", "", 95, false)]
#[case("all", "95", 95, false)]
#[case("", "13", 13, false)]
#[case("", "13", 31, true)]
fn the_two_variables_win_over_the_policy(
    #[case] disable: &str,
    #[case] enable: &str,
    #[case] xid: u64,
    #[case] healthy: bool,
) {
    let mut bench = Bench::built_in();
    let (xids, _) = crate::health::Xids::new(disable, enable);
    bench
        .health
        .set_policy(Policy::default().under(xids), bench.now);
    bench.xid(A, xid);
    assert_eq!(bench.is_healthy(A), healthy);
}

/// `all` leaves what is no check: a GPU that does not answer.
#[rstest]
#[case("all", true)]
#[case("xids", false)]
fn disabled_altogether(#[case] disable: &str, #[case] healthy: bool) {
    let mut bench = Bench::built_in();
    let (xids, _) = crate::health::Xids::new(disable, "");
    bench
        .health
        .set_policy(Policy::default().under(xids), bench.now);
    let pending = Readings {
        remap_pending: Some(true),
        ..well()
    };
    bench.look(A, pending);
    assert_eq!(bench.is_healthy(A), healthy);
    bench.fails(2, Code::GPU_IS_LOST);
    assert_eq!(bench.healthy()[1..], [false; 3]);
}

#[test]
fn the_condition_names_what_is_wrong() {
    let empty = Health::new(Policy::default()).condition();
    assert_eq!(empty.status.as_str(), "Unknown");
    let mut bench = Bench::built_in();
    let good = bench.health.condition();
    assert_eq!(
        (good.status.as_str(), good.reason),
        ("False", "GPUsAreHealthy")
    );
    bench.event(Some(B), Some((1, 0)), &EventKind::Xid(94));
    bench.xid(A, 79);
    let bad = bench.health.condition();
    assert_eq!(
        (bad.status.as_str(), bad.reason),
        ("True", "GPUsAreUnhealthy")
    );
    assert_eq!(
        bad.message,
        "GPU 1 (GPU-a): XID 79 (GPU has fallen off the bus); GPU 2 (GPU-b), MIG instance 1/0: XID 94 (contained memory error)"
    );
    // The same again is no change.
    bench.at(5).xid(A, 79);
    assert_eq!(bench.health.condition(), bad);
    for number in 200..400 {
        bench.xid(A, number);
    }
    let long = bench.health.condition().message;
    assert!(long.len() <= 1024 && long.ends_with(" more"), "{long}");
}

#[test]
fn notices_say_what_to_do() {
    let mut bench = Bench::built_in();
    let kind = EventKind::Xid(95);
    let place = EventPlace {
        gpu_uuid: Some(A),
        instance: None,
    };
    let notices = bench
        .health
        .observe(Observation::Event { place, kind: &kind }, bench.now);
    let [notice] = notices.as_slice() else {
        panic!("{notices:?}");
    };
    assert_eq!(
        notice.text,
        "GPU 1 (GPU-a): XID 95 (uncontained memory error); reset the GPU or reboot the node to make it healthy again"
    );
    assert_eq!(notice.reason(), "GPUUnhealthy");
    assert!(notice.is_warning());
}

/// What can happen to GPU b.
#[derive(Clone, Debug)]
enum Step {
    Xid(u64, Option<(u32, u32)>),
    Look(Readings),
    NoAnswer,
    Lost,
    Unwatched,
    Watching,
    Layout(Vec<(u32, u32)>),
    DriverGone,
    Back,
}

fn steps(xids: &'static [u64]) -> impl Strategy<Value = Vec<(u64, Step)>> {
    let instance = || {
        let some = prop::sample::select(vec![(1, 0), (1, 1), (2, 0)]);
        prop::option::of(some)
    };
    let readings = (
        prop::option::of(any::<bool>()),
        prop::option::of(any::<bool>()),
        prop::option::of(any::<bool>()),
    )
        .prop_map(|(recovery, pending, thermal)| Readings {
            recovery: recovery.map(|bad| bad.then_some(RecoveryAction::DrainP2p)),
            remap_pending: pending,
            thermal,
            // Neither energy nor the error counter go back, so nothing looks like a reset by them.
            ..well()
        });
    let layout = prop::sample::subsequence(vec![(1, 0), (1, 1), (2, 0)], 0..=3);
    let step = prop_oneof![
        4 => (prop::sample::select(xids), instance()).prop_map(|(xid, place)| Step::Xid(xid, place)),
        3 => readings.prop_map(Step::Look),
        1 => Just(Step::NoAnswer),
        1 => Just(Step::Lost),
        1 => Just(Step::Unwatched),
        1 => Just(Step::Watching),
        1 => layout.prop_map(Step::Layout),
        1 => Just(Step::DriverGone),
        2 => Just(Step::Back),
    ];
    prop::collection::vec((0..400_u64, step), 0..40)
}

impl Bench {
    /// Does a step, and returns the notices as they are.
    fn step(&mut self, step: &Step) -> Vec<Notice> {
        let failed = || failed(2, Code::UNKNOWN);
        let event = |kind: EventKind, instance| (kind, instance);
        let (kind, instance) = match step {
            Step::Xid(number, instance) => event(EventKind::Xid(*number), *instance),
            Step::Unwatched => event(EventKind::Failed(failed()), None),
            Step::Watching => event(EventKind::Watching, None),
            Step::Look(_) | Step::NoAnswer => {
                let readings = match step {
                    Step::Look(readings) => Some(readings.clone()),
                    _ => None,
                };
                let looked = Observation::Looked {
                    gpu: B,
                    asked: self.now,
                    readings,
                };
                return self.health.observe(looked, self.now);
            }
            Step::Lost => {
                let error = self::failed(2, Code::GPU_IS_LOST);
                let gpu = GpuRef {
                    index: 2,
                    uuid: Some(B.into()),
                };
                return self.inventory_step([hardware::Observation::Trouble { gpu, error }]);
            }
            Step::DriverGone => {
                let gone = self::failed(0, Code::DRIVER_NOT_LOADED);
                return self.inventory_step([hardware::Observation::DriverGone(gone)]);
            }
            Step::Layout(_) | Step::Back => {
                let known = match step {
                    Step::Layout(instances) => gpu(B, 2, instances),
                    _ => gpu(B, 2, &[(1, 0), (1, 1), (2, 0)]),
                };
                let driver = hardware::Observation::Driver {
                    version: "1".to_owned(),
                    generation: 1,
                };
                let index = 2;
                let answer = Ok(Some(known));
                let gpu = hardware::Observation::Gpu { index, answer };
                return self.inventory_step([driver, gpu]);
            }
        };
        let place = EventPlace {
            gpu_uuid: Some(B),
            instance,
        };
        let event = Observation::Event { place, kind: &kind };
        self.health.observe(event, self.now)
    }

    fn inventory_step<const N: usize>(
        &mut self,
        observations: [hardware::Observation; N],
    ) -> Vec<Notice> {
        for observation in observations {
            self.inventory.observe(observation);
        }
        let inventory = self.inventory.clone();
        self.health
            .observe(Observation::Inventory(&inventory), self.now)
    }

    /// The hardware is well from now on, and the caller does its part. Returns how many looks that took.
    fn settle(&mut self) -> usize {
        self.step(&Step::Back);
        self.step(&Step::Watching);
        let mut looks = 0;
        while let Some(due) = self.health.due() {
            self.now = self.now.max(due);
            for gpu in self.health.to_look_at(self.now) {
                looks += 1;
                self.look(&gpu, well());
            }
            if looks > 1000 {
                break;
            }
        }
        looks
    }
}

proptest! {
    /// Trouble that ends by itself ends, in any order of whatever happened.
    #[test]
    fn all_well_in_the_end(steps in steps(&[13, 94, 92, 63])) {
        let mut bench = Bench::built_in();
        for (pause, step) in steps {
            bench.now += Duration::from_secs(pause);
            bench.step(&step);
        }
        let looks = bench.settle();
        prop_assert_eq!(bench.healthy(), [true; 4]);
        prop_assert_eq!(bench.health.standing(), []);
        // Every 30 s for an hour at most, twice for the order of things.
        prop_assert!(looks <= 250, "{} looks", looks);
    }

    /// What needs a reset stays until there is one: nothing here but a GPU that was lost, or waits for what only a reset does,
    /// has had one.
    #[test]
    fn fatal_until_reset(before in steps(&[13, 94, 95, 48]), after in steps(&[13, 94, 92])) {
        let mut bench = Bench::built_in();
        for (pause, step) in before {
            bench.now += Duration::from_secs(pause);
            bench.step(&step);
        }
        bench.settle();
        bench.xid(B, 119);
        let quiet = |step: &Step| !matches!(step, Step::Lost | Step::Look(_));
        for (pause, step) in after.into_iter().filter(|(_, step)| quiet(step)) {
            bench.now += Duration::from_secs(pause);
            bench.step(&step);
            if !matches!(step, Step::DriverGone) {
                bench.look(B, well());
            }
            prop_assert!(!bench.is_healthy(B));
        }
        bench.step(&Step::Back);
        bench.now += Duration::from_secs(DAY);
        bench.look(B, well());
        prop_assert!(!bench.is_healthy(B));
        bench.observe(Observation::Reset { gpu: B });
        bench.settle();
        prop_assert_eq!(bench.healthy(), [true; 4]);
    }

    /// Notices tell the whole story: who adds what begins and takes away what is over has what stands.
    #[test]
    fn notices_add_up(steps in steps(&[13, 94, 95, 48, 63])) {
        let mut bench = Bench::built_in();
        let mut told: Vec<(String, Cause)> = Vec::new();
        for (pause, step) in steps {
            bench.now += Duration::from_secs(pause);
            for notice in bench.step(&step) {
                let key = (notice.subject.to_string(), notice.cause);
                let place = told.iter().position(|other| *other == key);
                match (notice.over, place) {
                    (false, None) => told.push(key),
                    (true, Some(place)) => {
                        told.remove(place);
                    }
                    _ => prop_assert!(false, "{:?} after {:?}", notice, told),
                }
            }
            let mut standing: Vec<_> = bench
                .health
                .standing()
                .into_iter()
                .map(|fault| (fault.subject.to_string(), fault.cause))
                .collect();
            standing.sort();
            told.sort();
            prop_assert_eq!(&told, &standing);
        }
    }
}
