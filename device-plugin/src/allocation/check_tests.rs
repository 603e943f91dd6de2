//! What can be given, and what is refused in which words.

#![allow(clippy::unwrap_used)]

use gpu::ledger::{Conflict, Container, Holder, Owner};
use rstest::rstest;

use super::super::fixtures::{ids, options, resource};
use super::{Refusal, check};

/// The devices that a request gets, and its ids; or the refusal. GPU 9 is ill.
fn checked(flags: &str, devices: &str, request: &str) -> Result<(String, String), String> {
    let options = options(flags);
    let resource = resource("gpu", devices);
    let trouble = |device: &crate::resources::Device| {
        (device.gpu_index == 9).then(|| "XID 79 (fell off the bus)".to_owned())
    };
    let request = check(&options, &resource, &ids(request), trouble);
    let request = request.map_err(|refusal| refusal.to_string())?;
    let devices: Vec<_> = request
        .devices
        .iter()
        .map(|device| device.uuid.as_str())
        .collect();
    let ids = request.ids.iter().map(|(device, share)| match share {
        None => device.uuid.clone(),
        Some(share) => format!("{}::{share}", device.uuid),
    });
    Ok((devices.join(" "), ids.collect::<Vec<_>>().join(" ")))
}

const ONE_SHARE: &str = "sharing: {timeSlicing: {failRequestsGreaterThanOne: true, resources: [{name: gpu, replicas: 4}]}}";
const DISTINCT: &str = "flags: {plugin: {sharedDevicesAllocationPolicy: distinct}}";

#[rstest]
#[case("", "0 1 2", "GPU-2 GPU-0", "GPU-0 GPU-2", "GPU-0 GPU-2")]
#[case("", "0 1", "GPU-1 GPU-1", "GPU-1", "GPU-1")]
#[case("", "0:0 0:1", "MIG-0-1", "MIG-0-1", "MIG-0-1")]
// Shares of one device make one device.
#[case(
    "",
    "0*4 1*4",
    "GPU-1::3 GPU-0::2 GPU-1::0",
    "GPU-0 GPU-1",
    "GPU-0::2 GPU-1::0 GPU-1::3"
)]
#[case("", "0*2 1", "GPU-1 GPU-0::1", "GPU-0 GPU-1", "GPU-0::1 GPU-1")]
#[case(ONE_SHARE, "0*4", "GPU-0::3", "GPU-0", "GPU-0::3")]
// The rule is for shares.
#[case(
    ONE_SHARE,
    "0:0 0:1",
    "MIG-0-0 MIG-0-1",
    "MIG-0-0 MIG-0-1",
    "MIG-0-0 MIG-0-1"
)]
#[case(
    DISTINCT,
    "0*2 1*2",
    "GPU-0::1 GPU-1::0",
    "GPU-0 GPU-1",
    "GPU-0::1 GPU-1::0"
)]
#[case(
    DISTINCT,
    "0:0 0:1",
    "MIG-0-0 MIG-0-1",
    "MIG-0-0 MIG-0-1",
    "MIG-0-0 MIG-0-1"
)]
// A device that is ill does not concern those who do not want it.
#[case("", "0 9", "GPU-0", "GPU-0", "GPU-0")]
fn given(
    #[case] flags: &str,
    #[case] devices: &str,
    #[case] request: &str,
    #[case] wanted: &str,
    #[case] ids: &str,
) {
    let checked = checked(flags, devices, request);
    assert_eq!(checked, Ok((wanted.to_owned(), ids.to_owned())));
}

#[rstest]
#[case("", "0", "", "nvidia.com/gpu: no device is named")]
#[case(
    "",
    "0",
    "GPU-1",
    "nvidia.com/gpu: GPU-1 is not on this node any more, "
)]
#[case(
    "",
    "0",
    "GPU-0 GPU-1",
    "nvidia.com/gpu: GPU-1 is not on this node any more, "
)]
// Shares that there are not, or not any more.
#[case(
    "",
    "0",
    "GPU-0::0",
    "nvidia.com/gpu: GPU-0::0 is not on this node any more, "
)]
#[case(
    "",
    "0*4",
    "GPU-0",
    "nvidia.com/gpu: GPU-0 is not on this node any more, "
)]
#[case(
    "",
    "0*4",
    "GPU-0::4",
    "nvidia.com/gpu: GPU-0::4 is not on this node any more, "
)]
#[case(
    "",
    "0*4",
    "GPU-0::01",
    "nvidia.com/gpu: GPU-0::01 is not on this node any more, "
)]
#[case(
    "",
    "0 9",
    "GPU-0 GPU-9",
    "nvidia.com/gpu: GPU-9 is unhealthy: XID 79 (fell off the bus); create "
)]
#[case(
    "",
    "0:0 9:0",
    "MIG-9-0",
    "nvidia.com/gpu: MIG-9-0 is unhealthy: XID 79"
)]
#[case(
    ONE_SHARE,
    "0*4 1*4",
    "GPU-0::0 GPU-1::0",
    "nvidia.com/gpu: 2 shares wanted: more than one gives "
)]
#[case(
    DISTINCT,
    "0*4 1*4",
    "GPU-1::0 GPU-0::0 GPU-1::1",
    "nvidia.com/gpu: 3 shares wanted, each of another GPU (sharedDevicesAllocationPolicy distinct), but two of them are of GPU-1; "
)]
// Shares of two MIG devices of one GPU are shares of one GPU.
#[case(
    DISTINCT,
    "0:0*2 0:1*2",
    "MIG-0-0::0 MIG-0-1::0",
    "nvidia.com/gpu: 2 shares wanted, each of another GPU"
)]
fn refused(#[case] flags: &str, #[case] devices: &str, #[case] request: &str, #[case] text: &str) {
    let refusal = checked(flags, devices, request).unwrap_err();
    assert!(refusal.starts_with(text), "{refusal}");
}

#[test]
fn a_long_id_is_not_repeated_in_full() {
    let refusal = checked("", "0", &"x".repeat(4096)).unwrap_err();
    assert!(refusal.len() < 300, "{refusal}");
}

#[test]
fn who_has_a_device_is_told() {
    let device = gpu::ledger::Device {
        gpu: "GPU-0".to_owned(),
        mig: None,
    };
    let refusal = Refusal::Held {
        resource: "a100".parse().unwrap(),
        conflict: Conflict::Held {
            device: "GPU-0".to_owned(),
            holder: Box::new(Holder {
                owner: Owner::Resource("nvidia.com/gpu".to_owned()),
                container: Some(Container {
                    namespace: "ml".to_owned(),
                    pod: "train".to_owned(),
                    name: "main".to_owned(),
                }),
                device,
                share: None,
            }),
        },
    };
    assert_eq!(
        refusal.to_string(),
        "nvidia.com/a100: GPU-0 cannot be given: container main of pod ml/train has GPU-0 as nvidia.com/gpu; end that pod first"
    );
}
