//! Whom trouble on a GPU hits.

use crate::resources::Device;

/// Whether trouble in an instance of a GPU (GPU instance and compute instance), or in all of the GPU (`None`), hits a device on
/// that GPU, with all its shares. A whole GPU is hit by what happens in any of its instances.
pub(super) fn hits(instance: Option<(u32, u32)>, device: &Device) -> bool {
    match (instance, device.mig) {
        (Some(place), Some(own)) => place == (own.gpu_instance, own.compute_instance),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::hits;
    use crate::resources::{Device, MigPlace};

    fn device(mig: Option<(u32, u32)>) -> Device {
        let place = |(gpu_instance, compute_instance)| MigPlace {
            index: 0,
            gpu_instance,
            compute_instance,
        };
        Device {
            uuid: "any".to_owned(),
            gpu_index: 0,
            gpu_uuid: "GPU-a".to_owned(),
            numa_node: None,
            mig: mig.map(place),
            shares: Some(4),
        }
    }

    // Of: the GPU whole, as under strategy none, and its instances 1/0, 1/1 and 2/0.
    #[rstest]
    #[case(None, [true, true, true, true])]
    #[case(Some((1, 1)), [true, false, true, false])]
    #[case(Some((2, 0)), [true, false, false, true])]
    #[case(Some((9, 0)), [true, false, false, false])]
    fn hit(#[case] instance: Option<(u32, u32)>, #[case] wanted: [bool; 4]) {
        let devices = [None, Some((1, 0)), Some((1, 1)), Some((2, 0))].map(device);
        assert_eq!(devices.map(|device| hits(instance, &device)), wanted);
    }
}
