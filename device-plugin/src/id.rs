//! Ids of devices towards the kubelet: a UUID, or `<UUID>::<k>` for the k-th share of a device.

use std::fmt;

/// An id, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId<'a> {
    /// `GPU-…` or `MIG-…`.
    pub uuid: &'a str,
    /// Which share, from 0; `None` for a device that is not shared.
    pub share: Option<u32>,
}

impl<'a> DeviceId<'a> {
    /// Takes an id apart. `None` for what cannot be an id of ours.
    pub fn parse(id: &'a str) -> Option<Self> {
        let (uuid, share) = match id.split_once("::") {
            None => (id, None),
            Some((uuid, share)) => {
                // One spelling per share: `parse` takes signs and leading zeros.
                let canonical = share == "0"
                    || (!share.starts_with('0') && share.bytes().all(|c| c.is_ascii_digit()));
                (uuid, Some(share.parse().ok().filter(|_| canonical)?))
            }
        };
        (!uuid.is_empty()).then_some(Self { uuid, share })
    }
}

impl fmt::Display for DeviceId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.share {
            None => f.write_str(self.uuid),
            Some(share) => write!(f, "{}::{share}", self.uuid),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::DeviceId;

    #[rstest]
    #[case("GPU-aa", Some(("GPU-aa", None)))]
    #[case("MIG-aa::0", Some(("MIG-aa", Some(0))))]
    #[case("MIG-aa::41", Some(("MIG-aa", Some(41))))]
    #[case("", None)]
    #[case("::1", None)]
    #[case("GPU-aa::", None)]
    #[case("GPU-aa::+1", None)]
    #[case("GPU-aa::01", None)]
    #[case("GPU-aa::1::2", None)]
    #[case("GPU-aa::4294967296", None)]
    fn parts(#[case] id: &str, #[case] wanted: Option<(&str, Option<u32>)>) {
        let wanted = wanted.map(|(uuid, share)| DeviceId { uuid, share });
        assert_eq!(DeviceId::parse(id), wanted);
    }

    proptest! {
        #[test]
        fn an_id_has_one_spelling(id in "(GPU|MIG)-[0-9a-f]{1,4}(::[0-9+]{0,3})?") {
            if let Some(parsed) = DeviceId::parse(&id) {
                prop_assert_eq!(parsed.to_string(), id);
            }
        }
    }
}
