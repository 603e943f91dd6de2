//! Random sequences of all that can happen.

use proptest::prelude::*;

use super::*;

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
                let gpu = named(2, B);
                return self.inventory_step([hw::Observation::Trouble { gpu, error }]);
            }
            Step::DriverGone => {
                let gone = self::failed(0, Code::DRIVER_NOT_LOADED);
                return self.inventory_step([hw::Observation::DriverGone(gone)]);
            }
            Step::Layout(_) | Step::Back => {
                let known = match step {
                    Step::Layout(instances) => gpu(B, 2, instances),
                    _ => gpu(B, 2, &[(1, 0), (1, 1), (2, 0)]),
                };
                let driver = hw::Observation::Driver {
                    version: "1".to_owned(),
                    generation: 1,
                };
                let index = 2;
                let answer = Ok(Some(known));
                let gpu = hw::Observation::Gpu { index, answer };
                return self.inventory_step([driver, gpu]);
            }
        };
        let event = Observation::Event {
            gpu: &named(2, B),
            instance,
            kind: &kind,
        };
        self.health.observe(event, self.now)
    }

    fn inventory_step<const N: usize>(
        &mut self,
        observations: [hw::Observation; N],
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
