//! Which devices are preferred; the sets themselves are tested in `gpu::allocation`.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use configuration::plugin::AllocationPolicy::{self, Distinct, Distributed, Packed};
use gpu::{Path, PcieRelation, Topology};
use kubelet::device_plugin::ContainerPreferredAllocationRequest;
use proptest::prelude::*;
use rstest::rstest;

use super::super::fixtures::{ids, options, resource};
use super::super::{Refusal, check};
use super::{InUse, prefer};

fn request(available: &str, required: &str, size: i32) -> ContainerPreferredAllocationRequest {
    ContainerPreferredAllocationRequest {
        available_device_ids: ids(available),
        must_include_device_ids: ids(required),
        allocation_size: size,
    }
}

/// Four GPUs: 0 and 2 are linked, so are 1 and 3.
fn pairs() -> Topology {
    let gpu = |index: u32| format!("GPU-{index}");
    let all = (0..4).flat_map(|a| (0..4).map(move |b| (a, b)));
    let paths = all.filter(|(a, b)| a != b).map(|(a, b)| {
        let path = Path {
            pcie: Some(PcieRelation::SameCpu),
            nvlinks: if a % 2 == b % 2 { 4 } else { 0 },
        };
        ((gpu(a), gpu(b)), path)
    });
    Topology::new(&paths.collect(), &BTreeMap::new())
}

#[rstest]
// Case 5 in small: the linked pair.
#[case("GPU-3 GPU-2 GPU-1 GPU-0", "", 2, "GPU-0 GPU-2")]
#[case("GPU-1 GPU-2 GPU-3", "", 2, "GPU-1 GPU-3")]
#[case("GPU-3 GPU-2 GPU-1 GPU-0", "GPU-3", 2, "GPU-1 GPU-3")]
#[case("GPU-3 GPU-2 GPU-1", "GPU-3", 1, "GPU-3")]
// The order of the kubelet, which is random, decides nothing.
#[case("GPU-2 GPU-0", "", 1, "GPU-0")]
// All there are.
#[case("GPU-2 GPU-0", "", 2, "GPU-0 GPU-2")]
// An id that we no longer have comes last; then the rest is not chosen by topology either.
#[case("GPU-8 GPU-1 GPU-0 GPU-3", "", 2, "GPU-1 GPU-3")]
#[case("GPU-8 GPU-1", "", 2, "GPU-1 GPU-8")]
#[case("GPU-1 GPU-0", "GPU-8", 2, "GPU-1 GPU-8")]
// Requests that make no sense: as far as possible, and never more than is wanted.
#[case("GPU-1 GPU-0", "", 3, "GPU-0 GPU-1")]
#[case("GPU-1 GPU-0", "", 0, "")]
#[case("GPU-1 GPU-0", "", -1, "")]
#[case("GPU-1 GPU-0", "GPU-2 GPU-3", 1, "GPU-2")]
#[case("GPU-1 GPU-1 GPU-0", "GPU-0 GPU-0", 2, "GPU-0 GPU-1")]
#[case("", "", 2, "")]
fn whole_gpus(
    #[case] available: &str,
    #[case] required: &str,
    #[case] size: i32,
    #[case] wanted: &str,
) {
    let resource = resource("gpu", "0 1 2 3");
    let mut chosen = prefer(
        &resource,
        &pairs(),
        Distributed,
        &[],
        &request(available, required, size),
    );
    chosen.sort_unstable();
    assert_eq!(chosen, ids(wanted));
}

/// A GPU that the topology does not know scores nothing, and is given all the same.
#[test]
fn an_unknown_topology_lowers_the_quality_only() {
    let resource = resource("gpu", "0 1 2 3");
    let request = request("GPU-0 GPU-1 GPU-2 GPU-3", "", 3);
    let chosen = prefer(&resource, &Topology::default(), Packed, &[], &request);
    assert_eq!(chosen, ids("GPU-0 GPU-1 GPU-2"));
}

const SLICES: &str = "0*4 1*4";
const ALL: &str = "GPU-1::0 GPU-0::3 GPU-0::2 GPU-0::1 GPU-0::0 GPU-1::3 GPU-1::2 GPU-1::1";

#[rstest]
// Case 6: two GPUs × 4 slices, two wanted.
#[case(SLICES, ALL, "", 2, Distributed, "GPU-0::0 GPU-1::0")]
#[case(SLICES, ALL, "", 2, Packed, "GPU-0::0 GPU-0::1")]
#[case(SLICES, ALL, "", 2, Distinct, "GPU-0::0 GPU-1::0")]
#[case(SLICES, "GPU-0::3 GPU-1::0 GPU-1::1", "", 1, Distributed, "GPU-1::0")]
#[case(SLICES, "GPU-0::3 GPU-1::0 GPU-1::1", "", 1, Packed, "GPU-0::3")]
#[case(SLICES, ALL, "GPU-1::2", 2, Distributed, "GPU-0::0 GPU-1::2")]
#[case(SLICES, ALL, "GPU-1::2", 2, Packed, "GPU-1::0 GPU-1::2")]
// Distinct is impossible: the nearest to it, and the check refuses.
#[case(SLICES, ALL, "", 3, Distinct, "GPU-0::0 GPU-0::1 GPU-1::0")]
// The parent GPU counts.
#[case(
    "0:0 0:1 1:0 1:1",
    "MIG-0-1 MIG-1-0 MIG-1-1",
    "",
    1,
    Distributed,
    "MIG-1-0"
)]
#[case("0:0 0:1 1:0 1:1", "MIG-0-1 MIG-1-0 MIG-1-1", "", 1, Packed, "MIG-0-1")]
#[case(
    "0:0 0:1 1:0 1:1",
    "MIG-0-0 MIG-0-1 MIG-1-0 MIG-1-1",
    "",
    2,
    Distinct,
    "MIG-0-0 MIG-1-0"
)]
// Some shared, some not, under one name.
#[case(
    "0*2 1",
    "GPU-0::0 GPU-0::1 GPU-1",
    "",
    2,
    Distributed,
    "GPU-0::0 GPU-1"
)]
// Ids that are not ours.
#[case(
    SLICES,
    "GPU-0::0 GPU-7::0 x::y GPU-1::1",
    "",
    2,
    Distributed,
    "GPU-0::0 GPU-1::1"
)]
fn parts(
    #[case] devices: &str,
    #[case] available: &str,
    #[case] required: &str,
    #[case] size: i32,
    #[case] policy: AllocationPolicy,
    #[case] wanted: &str,
) {
    let resource = resource("gpu", devices);
    let request = request(available, required, size);
    let mut chosen = prefer(&resource, &Topology::default(), policy, &[], &request);
    chosen.sort_unstable();
    assert_eq!(chosen, ids(wanted));
}

/// GPU 1 has a 3g instance in use: packed goes there, distributed goes elsewhere.
#[rstest]
#[case(Packed, "MIG-1-0")]
#[case(Distributed, "MIG-0-0")]
fn other_resources_of_a_gpu_count(#[case] policy: AllocationPolicy, #[case] wanted: &str) {
    let resource = resource("mig-1g.10gb", "0:0 1:0");
    let elsewhere = [InUse {
        uuid: "MIG-1-9".to_owned(),
        gpu: "GPU-1".to_owned(),
    }];
    let request = request("MIG-0-0 MIG-1-0", "", 1);
    let chosen = prefer(
        &resource,
        &Topology::default(),
        policy,
        &elsewhere,
        &request,
    );
    assert_eq!(chosen, [wanted]);
}

fn policy() -> impl Strategy<Value = AllocationPolicy> {
    prop_oneof![Just(Distributed), Just(Packed), Just(Distinct)]
}

/// GPU 0 was given out under another name.
#[rstest]
#[case("GPU-0 GPU-1 GPU-2", "", 1, "GPU-1")]
#[case("GPU-0 GPU-1 GPU-2", "", 2, "GPU-1 GPU-2")]
#[case("GPU-0 GPU-1 GPU-2 GPU-3", "GPU-2", 2, "GPU-1 GPU-2")]
#[case("GPU-0 GPU-1 GPU-2", "GPU-0", 3, "GPU-0 GPU-1 GPU-2")]
#[case("GPU-0 GPU-1", "", 2, "GPU-0 GPU-1")]
fn a_gpu_that_somebody_has_comes_last(
    #[case] available: &str,
    #[case] required: &str,
    #[case] size: i32,
    #[case] wanted: &str,
) {
    let elsewhere = [InUse {
        uuid: "GPU-0".to_owned(),
        gpu: "GPU-0".to_owned(),
    }];
    let resource = resource("gpu", "0 1 2 3");
    let request = request(available, required, size);
    let topology = Topology::default();
    let mut chosen = prefer(&resource, &topology, Distributed, &elsewhere, &request);
    chosen.sort_unstable();
    assert_eq!(chosen, ids(wanted));
}

/// GPU 0, or a MIG device of it, was given out otherwise: what overlaps with that would be refused, whatever the policy.
#[rstest]
// A pod from before the GPU was cut has it whole.
#[case(
    "0:0 0:1 1:0 1:1",
    "GPU-0",
    "MIG-0-0 MIG-0-1 MIG-1-0 MIG-1-1",
    1,
    "MIG-1-0"
)]
#[case(
    "0:0 0:1 1:0 1:1",
    "GPU-0",
    "MIG-0-0 MIG-0-1 MIG-1-0 MIG-1-1",
    2,
    "MIG-1-0 MIG-1-1"
)]
#[case(
    "0:0*2 1:0*2",
    "GPU-0",
    "MIG-0-0::0 MIG-0-0::1 MIG-1-0::0 MIG-1-0::1",
    2,
    "MIG-1-0::0 MIG-1-0::1"
)]
// One that has another name now.
#[case("0:0 0:1", "MIG-0-0", "MIG-0-0 MIG-0-1", 1, "MIG-0-1")]
// A MIG device of a GPU that is whole again.
#[case("0 1", "MIG-0-0", "GPU-0 GPU-1", 1, "GPU-1")]
#[case(
    "0*2 1*2",
    "MIG-0-0",
    "GPU-0::0 GPU-0::1 GPU-1::0 GPU-1::1",
    2,
    "GPU-1::0 GPU-1::1"
)]
fn what_would_be_refused_comes_last(
    #[case] devices: &str,
    #[case] in_use: &str,
    #[case] available: &str,
    #[case] size: i32,
    #[case] wanted: &str,
    #[values(Distributed, Packed, Distinct)] policy: AllocationPolicy,
) {
    let elsewhere = [InUse {
        uuid: in_use.to_owned(),
        gpu: "GPU-0".to_owned(),
    }];
    let resource = resource("gpu", devices);
    let request = request(available, "", size);
    let topology = Topology::default();
    let mut chosen = prefer(&resource, &topology, policy, &elsewhere, &request);
    chosen.sort_unstable();
    assert_eq!(chosen, ids(wanted));
}

proptest! {
    /// Whatever is asked: as many as wanted and possible, each once, only what is free or required, and what is required.
    #[test]
    fn answers_can_be_used(
        devices in proptest::sample::select(vec!["0 1 2 3", SLICES, "0:0 0:1 1:0 1:1", "0:0*2 0:1*2", "0*2 1 2:0"]),
        known in proptest::collection::vec(any::<bool>(), 12),
        strange in proptest::collection::vec("[GM]-[0-9](::[0-9])?", 0..3),
        required in 0_usize..3,
        size in -1_i32..6,
        policy in policy(),
    ) {
        let resource = resource("gpu", devices);
        let all = resource.devices.iter().flat_map(|device| device.ids().map(|id| id.to_string()).collect::<Vec<_>>());
        let free: Vec<String> = all.zip(known).filter(|(_, free)| *free).map(|(id, _)| id).chain(strange).collect();
        let required: Vec<String> = free.iter().take(required).cloned().collect();
        let request = ContainerPreferredAllocationRequest {
            available_device_ids: free.clone(),
            must_include_device_ids: required.clone(),
            allocation_size: size,
        };
        let chosen = prefer(&resource, &pairs(), policy, &[], &request);
        let wanted = usize::try_from(size).unwrap_or(0);
        let unique: BTreeSet<_> = chosen.iter().collect();
        let possible: BTreeSet<_> = free.iter().collect();
        prop_assert_eq!(unique.len(), chosen.len());
        prop_assert_eq!(chosen.len(), wanted.min(possible.len()));
        prop_assert!(unique.is_subset(&possible));
        let have_to: BTreeSet<_> = required.iter().collect();
        prop_assert!(have_to.len() > wanted || have_to.is_subset(&unique));
    }

    /// Under `distinct`, the check refuses what was preferred only when there is no choice that it would take.
    #[test]
    fn distinct_is_refused_only_when_impossible(
        free in proptest::collection::vec(any::<bool>(), 12),
        size in 1_usize..5,
    ) {
        let options = options("flags: {plugin: {sharedDevicesAllocationPolicy: distinct}}");
        let resource = resource("gpu", "0*4 1*4 2*4");
        let all = resource.devices.iter().flat_map(|device| device.ids().map(|id| id.to_string()).collect::<Vec<_>>());
        let free: Vec<String> = all.zip(free).filter(|(_, free)| *free).map(|(id, _)| id).collect();
        prop_assume!(size <= free.len());
        let gpus: BTreeSet<_> = free.iter().map(|id| id.split("::").next()).collect();
        let request = ContainerPreferredAllocationRequest {
            available_device_ids: free.clone(),
            must_include_device_ids: Vec::new(),
            allocation_size: i32::try_from(size).unwrap(),
        };
        let chosen = prefer(&resource, &Topology::default(), options.policy, &[], &request);
        let answer = check(&options, &resource, &chosen, |_| None);
        prop_assert_eq!(matches!(answer, Err(Refusal::NotDistinct { .. })), gpus.len() < size);
    }
}
