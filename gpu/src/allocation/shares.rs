//! Shares of devices, and MIG devices: each a part of a GPU.
//!
//! `distributed` and `packed` are those of NVIDIA's plugin, which looks at devices only; here the physical GPU counts too, so
//! that MIG devices are spread over GPUs or fill one GPU before the next.

use std::collections::BTreeMap;

/// Which of the free shares to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Of the GPUs and devices with the least taken.
    Distributed,
    /// Of the GPUs and devices with the most taken.
    Packed,
    /// Each of another physical GPU, those with the least taken first.
    Distinct,
}

/// Whether a share can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareState {
    /// It can.
    Free,
    /// It has to be.
    Required,
    /// Somebody has it.
    Taken,
}

/// One of the things to choose from; a device that is not shared is one share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share<'a> {
    /// The device it is a share of.
    pub device: &'a str,
    /// The physical GPU under it.
    pub gpu: &'a str,
    /// Whether it can be given.
    pub state: ShareState,
}

/// There is no such choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Few {
    /// Less is free than is wanted.
    #[error("{wanted} wanted, {free} free")]
    Free {
        /// How many are wanted.
        wanted: usize,
        /// How many there are.
        free: usize,
    },
    /// More are required than are wanted.
    #[error("{required} required, {wanted} wanted")]
    Wanted {
        /// How many have to be given.
        required: usize,
        /// How many are wanted.
        wanted: usize,
    },
    /// Shares of that many different GPUs are not to be had.
    #[error("{wanted} shares of different GPUs wanted, {gpus} GPUs have one to give")]
    Gpus {
        /// How many are wanted.
        wanted: usize,
        /// How many GPUs could give one.
        gpus: usize,
    },
}

/// How much of a device or GPU is in use: by others and by this choice.
#[derive(Clone, Copy, Default)]
struct Use {
    taken: usize,
    picked: usize,
}

impl Use {
    fn all(self) -> usize {
        self.taken + self.picked
    }
}

/// Positions in `all` of the `wanted` shares to give: first the required ones, then in the order of choice. Among equals the
/// first wins.
///
/// # Errors
/// [`Few`], when there is no such choice. Nothing is given then.
pub fn shares(all: &[Share<'_>], wanted: usize, policy: Policy) -> Result<Vec<usize>, Few> {
    let (mut devices, mut gpus) = (BTreeMap::new(), BTreeMap::new());
    let mut chosen = Vec::new();
    for (position, share) in all.iter().enumerate() {
        let device: &mut Use = devices.entry(share.device).or_default();
        let gpu: &mut Use = gpus.entry(share.gpu).or_default();
        match share.state {
            ShareState::Free => {}
            ShareState::Taken => {
                device.taken += 1;
                gpu.taken += 1;
            }
            ShareState::Required => {
                device.picked += 1;
                gpu.picked += 1;
                chosen.push(position);
            }
        }
    }
    if chosen.len() > wanted {
        return Err(Few::Wanted {
            required: chosen.len(),
            wanted,
        });
    }
    let can_give = |share: &Share<'_>| share.state != ShareState::Taken;
    let free = all.iter().filter(|share| can_give(share)).count();
    if free < wanted {
        return Err(Few::Free { wanted, free });
    }
    if policy == Policy::Distinct {
        let mut giving: Vec<&str> = all.iter().filter(|s| can_give(s)).map(|s| s.gpu).collect();
        giving.sort_unstable();
        giving.dedup();
        if giving.len() < wanted || gpus.values().any(|used| used.picked > 1) {
            return Err(Few::Gpus {
                wanted,
                gpus: giving.len(),
            });
        }
    }
    let mut open: Vec<bool> = all.iter().map(|s| s.state == ShareState::Free).collect();
    while chosen.len() < wanted {
        let used = |share: &Share<'_>| {
            let device = devices.get(share.device).copied().unwrap_or_default();
            (device, gpus.get(share.gpu).copied().unwrap_or_default())
        };
        // Smallest first.
        let rank = |share: &Share<'_>| {
            let (device, gpu) = used(share);
            match policy {
                Policy::Distributed | Policy::Distinct => (gpu.all(), device.all()),
                Policy::Packed => (usize::MAX - gpu.all(), usize::MAX - device.all()),
            }
        };
        let candidates = all.iter().enumerate().filter(|(position, share)| {
            let again = policy == Policy::Distinct && used(share).1.picked > 0;
            open.get(*position) == Some(&true) && !again
        });
        let Some((position, share)) = candidates.min_by_key(|(_, share)| rank(share)) else {
            // Counted above: there are enough.
            break;
        };
        open[position] = false;
        chosen.push(position);
        devices.entry(share.device).or_default().picked += 1;
        gpus.entry(share.gpu).or_default().picked += 1;
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;
    use rstest::rstest;

    use super::{Few, Policy, Share, ShareState, shares};
    use Policy::{Distinct, Distributed, Packed};

    /// Devices as `gpu.device:states`, a letter per share: free, required, taken.
    fn parse(text: &str) -> Vec<Share<'_>> {
        let mut all = Vec::new();
        for part in text.split(' ') {
            let (device, states) = part.split_once(':').unwrap();
            let gpu = device.split_once('.').map_or(device, |(gpu, _)| gpu);
            all.extend(states.chars().map(|state| Share {
                device,
                gpu,
                state: match state {
                    'f' => ShareState::Free,
                    'r' => ShareState::Required,
                    _ => ShareState::Taken,
                },
            }));
        }
        all
    }

    fn devices(text: &str, wanted: usize, policy: Policy) -> Result<String, Few> {
        let all = parse(text);
        let chosen = shares(&all, wanted, policy)?;
        let devices: Vec<_> = chosen
            .iter()
            .map(|&position| all[position].device)
            .collect();
        Ok(devices.join(" "))
    }

    #[rstest]
    // Case 6 of the issue: two GPUs × 4 slices, two wanted.
    #[case("a:ffff b:ffff", 2, Distributed, "a b")]
    #[case("a:ffff b:ffff", 2, Packed, "a a")]
    #[case("a:ffff b:ffff", 2, Distinct, "a b")]
    // What others have counts.
    #[case("a:tfff b:ffff", 1, Distributed, "b")]
    #[case("a:tfff b:ffff", 1, Packed, "a")]
    #[case("a:tfff b:ffff", 1, Distinct, "b")]
    #[case("a:ttff b:tfff", 3, Distributed, "b a b")]
    #[case("a:tttf b:tfff", 3, Packed, "a b b")]
    // MIG devices: GPUs are filled or spared as wholes.
    #[case("a.0:t a.1:f b.0:f b.1:f", 1, Distributed, "b.0")]
    #[case("a.0:t a.1:f b.0:f b.1:f", 1, Packed, "a.1")]
    #[case("a.0:f a.1:f b.0:f b.1:f", 2, Distributed, "a.0 b.0")]
    #[case("a.0:f a.1:f b.0:f b.1:f", 2, Packed, "a.0 a.1")]
    // Shares of MIG devices: the GPU first, then the device.
    #[case("a.0:tf a.1:ff b.0:tt b.1:ff", 1, Distributed, "a.1")]
    #[case("a.0:tf a.1:ff", 1, Packed, "a.0")]
    // Required ones come first and count.
    #[case("a:ffff b:rfff", 2, Distributed, "b a")]
    #[case("a:ffff b:rfff", 2, Packed, "b b")]
    #[case("a:ffff b:rfff", 2, Distinct, "b a")]
    #[case("a:f", 0, Distinct, "")]
    fn choices(
        #[case] text: &str,
        #[case] wanted: usize,
        #[case] policy: Policy,
        #[case] chosen: &str,
    ) {
        assert_eq!(devices(text, wanted, policy).as_deref(), Ok(chosen));
    }

    #[rstest]
    #[case("a:tf b:tt", 2, Distributed, Few::Free { wanted: 2, free: 1 })]
    #[case("a:rr", 1, Packed, Few::Wanted { required: 2, wanted: 1 })]
    #[case("a:ffff b:tttt", 2, Distinct, Few::Gpus { wanted: 2, gpus: 1 })]
    #[case("a.0:f a.1:f", 2, Distinct, Few::Gpus { wanted: 2, gpus: 1 })]
    #[case("a:rr b:f c:f", 3, Distinct, Few::Gpus { wanted: 3, gpus: 3 })]
    fn refusals(
        #[case] text: &str,
        #[case] wanted: usize,
        #[case] policy: Policy,
        #[case] few: Few,
    ) {
        assert_eq!(devices(text, wanted, policy), Err(few));
    }

    proptest! {
        /// As many as wanted, each once, none that is taken, all that are required; no GPU twice where that is the policy.
        #[test]
        fn every_choice_is_one(
            states in proptest::collection::vec((0_usize..4, 0_usize..3, prop_oneof![
                4 => Just(ShareState::Free), 2 => Just(ShareState::Taken), 1 => Just(ShareState::Required)]), 0..20),
            wanted in 0_usize..8,
            policy in prop_oneof![Just(Distributed), Just(Packed), Just(Distinct)],
        ) {
            const GPUS: [&str; 4] = ["a", "b", "c", "d"];
            const DEVICES: [[&str; 3]; 4] = [["a0", "a1", "a2"], ["b0", "b1", "b2"], ["c0", "c1", "c2"], ["d0", "d1", "d2"]];
            let all: Vec<_> = states.into_iter()
                .map(|(gpu, device, state)| Share { device: DEVICES[gpu][device], gpu: GPUS[gpu], state }).collect();
            let Ok(chosen) = shares(&all, wanted, policy) else { return Ok(()) };
            prop_assert_eq!(chosen.len(), wanted);
            let mut unique = chosen.clone();
            unique.sort_unstable();
            unique.dedup();
            prop_assert_eq!(unique.len(), wanted);
            for (position, share) in all.iter().enumerate() {
                let given = chosen.contains(&position);
                prop_assert!(share.state != ShareState::Taken || !given);
                prop_assert!(share.state != ShareState::Required || given);
            }
            let mut gpus: Vec<_> = chosen.iter().map(|&position| all[position].gpu).collect();
            gpus.sort_unstable();
            gpus.dedup();
            prop_assert!(policy != Distinct || gpus.len() == wanted);
        }
    }
}
