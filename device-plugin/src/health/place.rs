//! Whom a hardware event hits.

use crate::resources::Device;

/// What an event says of where it happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventPlace<'a> {
    /// `GPU-…`; `None` when the driver does not say: then it may be any.
    pub gpu_uuid: Option<&'a str>,
    /// GPU instance and compute instance, when the driver names both; otherwise it concerns the whole GPU.
    pub instance: Option<(u32, u32)>,
}

impl EventPlace<'_> {
    /// Whether a device is hit, with all its shares. A whole GPU is hit by what happens in any of its instances.
    pub fn hits(&self, device: &Device) -> bool {
        let gpu = self.gpu_uuid.is_none_or(|uuid| uuid == device.gpu_uuid);
        let instance = match (self.instance, device.mig) {
            (Some(place), Some(own)) => place == (own.gpu_instance, own.compute_instance),
            _ => true,
        };
        gpu && instance
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::EventPlace;
    use crate::resources::{Device, MigPlace};

    fn device(gpu: &str, mig: Option<(u32, u32)>) -> Device {
        let place = |(gpu_instance, compute_instance)| MigPlace {
            index: 0,
            gpu_instance,
            compute_instance,
        };
        Device {
            uuid: "any".to_owned(),
            gpu_index: 0,
            gpu_uuid: gpu.to_owned(),
            numa_node: None,
            mig: mig.map(place),
            shares: Some(4),
        }
    }

    // Of: GPU a whole; on GPU b the instances 1/0, 1/1 and 2/0.
    #[rstest]
    #[case(Some("a"), None, [true, false, false, false])]
    #[case(Some("b"), None, [false, true, true, true])]
    #[case(Some("b"), Some((1, 1)), [false, false, true, false])]
    #[case(Some("b"), Some((2, 0)), [false, false, false, true])]
    #[case(Some("b"), Some((9, 0)), [false, false, false, false])]
    // MIG under strategy none: the whole GPU is what pods have.
    #[case(Some("a"), Some((1, 0)), [true, false, false, false])]
    #[case(None, None, [true, true, true, true])]
    fn hit(
        #[case] gpu_uuid: Option<&str>,
        #[case] instance: Option<(u32, u32)>,
        #[case] wanted: [bool; 4],
    ) {
        let event = EventPlace { gpu_uuid, instance };
        let devices = [
            device("a", None),
            device("b", Some((1, 0))),
            device("b", Some((1, 1))),
            device("b", Some((2, 0))),
        ];
        assert_eq!(devices.map(|device| event.hits(&device)), wanted);
    }
}
