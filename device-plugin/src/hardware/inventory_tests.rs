//! What the inventory makes of looks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn board(slot: u32, uuid: &str, index: u32) -> KnownGpu {
    KnownGpu {
        gpu: Gpu {
            index,
            uuid: uuid.to_owned(),
            bus_id: format!("00000000:{slot:02X}:00.0"),
            ..Gpu::default()
        },
        mig_capable: true,
        ..KnownGpu::default()
    }
}

fn answer(index: u32, known: KnownGpu) -> Observation {
    Observation::Gpu {
        index,
        answer: Ok(Some(known)),
    }
}

fn lost(index: u32, uuid: Option<&str>) -> nvml::Error {
    nvml::Error::Call {
        gpu: Some(nvml::GpuRef {
            index,
            uuid: uuid.map(Into::into),
        }),
        call: "a query",
        code: nvml::Code::GPU_IS_LOST,
    }
}

fn listed(uuids: &[&str]) -> Observation {
    Observation::Listed {
        count: uuids.len() as u32,
        uuids: uuids.iter().map(|uuid| (*uuid).to_owned()).collect(),
    }
}

/// Boards A, B, C in slots 1, 2, 3.
fn three() -> Inventory {
    let mut inventory = Inventory::default();
    for (index, uuid) in (0..).zip(["A", "B", "C"]) {
        assert!(inventory.observe(answer(index, board(index + 1, uuid, index))));
    }
    assert!(!inventory.observe(listed(&["A", "B", "C"])));
    inventory
}

/// `A B:Lost …`, and unknown entries as `#3:Hung`.
fn shown(inventory: &Inventory) -> String {
    let of = |name: String, trouble: Option<&Trouble>| match trouble {
        None => name,
        Some(trouble) => format!("{name}:{:?}", trouble.cause),
    };
    let gpus = inventory.gpus().iter();
    let known = gpus.map(|known| of(known.gpu.uuid.clone(), known.trouble.as_ref()));
    let unknown = inventory
        .unknown()
        .map(|(i, t)| of(format!("#{i}"), Some(t)));
    known.chain(unknown).collect::<Vec<_>>().join(" ")
}

fn failed(index: u32, error: nvml::Error) -> Observation {
    Observation::Gpu {
        index,
        answer: Err(error),
    }
}

fn hung(seconds: u64) -> nvml::Error {
    nvml::Error::Hung {
        gpu: Some(nvml::GpuRef {
            index: 1,
            uuid: Some("B".into()),
        }),
        call: "a query",
        waited: std::time::Duration::from_secs(seconds),
    }
}

#[rstest]
// Fails alone, by UUID or by index.
#[case(vec![failed(1, lost(1, Some("B")))], "A B:Lost C")]
#[case(vec![failed(1, lost(1, None))], "A B:Lost C")]
#[case(vec![failed(1, hung(10))], "A B:Hung C")]
#[case(vec![Observation::Trouble { gpu: nvml::GpuRef { index: 2, uuid: Some("C".into()) }, error: lost(2, None) }], "A B C:Lost")]
// Comes back.
#[case(vec![failed(1, lost(1, Some("B"))), answer(1, board(2, "B", 1))], "A B C")]
// Fell off the bus: the list is shorter, and C has B's index.
#[case(
    vec![answer(0, board(1, "A", 0)), answer(1, board(3, "C", 1)), listed(&["A", "C"])],
    "A B:Absent C"
)]
// What is known to be lost is not merely absent.
#[case(vec![failed(1, lost(1, Some("B"))), listed(&["A", "C"])], "A B:Lost C")]
// Another board in B's slot.
#[case(vec![answer(1, board(2, "D", 1)), listed(&["A", "D", "C"])], "A D C")]
// Another board in another slot.
#[case(vec![answer(3, board(4, "D", 3)), listed(&["A", "B", "C", "D"])], "A B C D")]
// The driver goes, and what comes back is looked at one by one.
#[case(vec![Observation::DriverGone(nvml::Error::Closed)], "A:DriverGone B:DriverGone C:DriverGone")]
#[case(
    vec![Observation::DriverGone(nvml::Error::Closed), answer(0, board(1, "A", 0))],
    "A B:DriverGone C:DriverGone"
)]
#[case(
    vec![Observation::DriverGone(nvml::Error::Closed), answer(0, board(1, "A", 0)), listed(&["A"])],
    "A B:Absent C:Absent"
)]
#[case(vec![failed(0, nvml::Error::Closed)], "A:DriverGone B:DriverGone C:DriverGone")]
// Never described: known by its place in the list only, for as long as it is there.
#[case(vec![failed(3, lost(3, None))], "A B C #3:Lost")]
#[case(vec![failed(3, lost(3, None)), answer(3, board(4, "D", 3))], "A B C D")]
#[case(vec![failed(3, lost(3, None)), listed(&["A", "B", "C"])], "A B C")]
// A display GPU is not for computing.
#[case(vec![Observation::Gpu { index: 3, answer: Ok(None) }, listed(&["A", "B", "C", "D"])], "A B C")]
// Left alone for MIG manager: troubled already, it stays so.
#[case(
    vec![failed(1, lost(1, None)), Observation::Reshaping],
    "A:Reshaping B:Lost C:Reshaping"
)]
#[case(vec![Observation::Reshaping, answer(0, board(1, "A", 0)), listed(&["A", "C"])], "A B:Absent C:Reshaping")]
fn looks(#[case] seen: Vec<Observation>, #[case] wanted: &str) {
    let mut inventory = three();
    for observation in seen {
        inventory.observe(observation);
    }
    assert_eq!(shown(&inventory), wanted);
}

#[test]
fn a_trouble_that_goes_on_is_one_change() {
    let mut inventory = three();
    assert!(inventory.observe(failed(1, hung(10))));
    let first = inventory.gpus()[1].trouble.clone();
    assert!(!inventory.observe(failed(1, hung(11))));
    assert_eq!(inventory.gpus()[1].trouble, first);
    assert!(inventory.observe(Observation::DriverGone(nvml::Error::Closed)));
    assert!(!inventory.observe(Observation::DriverGone(hung(3))));
}

#[test]
fn a_gpu_in_trouble_keeps_its_layout() {
    let mut inventory = three();
    let mut cut = board(2, "B", 1);
    cut.gpu.mig_enabled = true;
    cut.gpu.mig.push(crate::resources::MigDevice {
        index: 0,
        uuid: "MIG-1".to_owned(),
        gpu_instance: 7,
        compute_instance: 0,
        profile: None,
        attributes: None,
    });
    inventory.observe(answer(1, cut.clone()));
    inventory.observe(failed(1, lost(1, None)));
    inventory.observe(listed(&["A", "C"]));
    assert_eq!(inventory.gpu("B").unwrap().gpu, cut.gpu);
}

#[test]
fn an_absent_gpu_without_mig_is_not_reshaped() {
    let mut inventory = three();
    let mut plain = board(2, "B", 1);
    plain.mig_capable = false;
    inventory.observe(answer(1, plain));
    inventory.observe(Observation::Reshaping);
    assert_eq!(shown(&inventory), "A:Reshaping B C:Reshaping");
}

/// What a node can go through between two looks.
#[derive(Clone, Debug)]
enum Turn {
    /// The board in a slot changes: none, or one of a few.
    Slot(usize, Option<u8>),
    /// The board in a slot stops or starts answering.
    Lost(usize, bool),
    Driver(bool),
    Reshaping,
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        (0..4usize, proptest::option::of(0..3u8)).prop_map(|(s, b)| Turn::Slot(s, b)),
        (0..4usize, any::<bool>()).prop_map(|(s, l)| Turn::Lost(s, l)),
        any::<bool>().prop_map(Turn::Driver),
        Just(Turn::Reshaping),
    ]
}

proptest! {
    /// After any history, a full look shows exactly the boards that answer as usable, each once; and no slot has two boards.
    #[test]
    fn a_full_look_tells_the_truth(turns in proptest::collection::vec(turn(), 0..40)) {
        let mut inventory = Inventory::default();
        let mut slots: BTreeMap<usize, (u8, bool)> = BTreeMap::new();
        let mut driver = true;
        for turn in turns {
            match turn {
                Turn::Slot(slot, Some(board)) => { slots.insert(slot, (board, false)); }
                Turn::Slot(slot, None) => { slots.remove(&slot); }
                Turn::Lost(slot, lost) => { slots.entry(slot).and_modify(|(_, l)| *l = lost); }
                Turn::Driver(there) => driver = there,
                Turn::Reshaping => { inventory.observe(Observation::Reshaping); continue; }
            }
            if !driver {
                inventory.observe(Observation::DriverGone(nvml::Error::Closed));
                prop_assert!(inventory.gpus().iter().all(|known| known.trouble.is_some()));
                continue;
            }
            inventory.observe(Observation::Driver { version: "1".to_owned(), generation: 1 });
            let mut uuids = BTreeSet::new();
            for (index, (slot, (id, is_lost))) in (0..).zip(&slots) {
                let uuid = format!("{slot}-{id}");
                if *is_lost {
                    inventory.observe(failed(index, lost(index, Some(&uuid))));
                } else {
                    inventory.observe(answer(index, board(*slot as u32, &uuid, index)));
                    uuids.insert(uuid);
                }
            }
            let count = slots.len() as u32;
            inventory.observe(Observation::Listed { count, uuids: uuids.clone() });
            let usable = inventory.gpus().iter().filter(|known| known.trouble.is_none());
            let usable: Vec<_> = usable.map(|known| known.gpu.uuid.clone()).collect();
            prop_assert_eq!(usable.iter().cloned().collect::<BTreeSet<_>>(), uuids);
            let places: BTreeSet<_> = inventory.gpus().iter().map(|known| &known.gpu.bus_id).collect();
            prop_assert_eq!(places.len(), inventory.gpus().len());
        }
    }
}
