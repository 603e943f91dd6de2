//! Sharing: several containers on one device, under another name where the user wants that.

use std::collections::BTreeMap;

use configuration::plugin::{ResourceName, Sharing, SharingKind};

use super::strategy::Named;
use super::{Device, Resource, Warning};

/// The most ids of one resource. The kubelet takes messages of 4 MiB, and an id with health and topology is about 80 bytes.
pub const MAX_IDS: u32 = 40_000;

/// Groups devices under the names they have when shared.
pub(super) fn shared(
    named: Vec<Named<'_>>,
    sharing: Option<&Sharing>,
    warnings: &mut Vec<Warning>,
) -> Vec<Resource> {
    let mut seen = BTreeMap::<ResourceName, u32>::new();
    let mut grouped = BTreeMap::<ResourceName, Vec<Device>>::new();
    for Named {
        mut name,
        candidate,
        mut device,
    } in named
    {
        let nth = seen.entry(name.clone()).or_default();
        let entry =
            sharing.and_then(|sharing| Some((sharing, sharing.entry(&name, *nth, &candidate)?)));
        *nth += 1;
        match entry {
            Some((sharing, _)) if sharing.kind == SharingKind::Mps && device.mig.is_some() => {
                let warning = Warning::MpsOnMig {
                    resource: name.clone(),
                };
                if !warnings.contains(&warning) {
                    warnings.push(warning);
                }
            }
            Some((sharing, entry)) => {
                device.shares = Some(entry.replicas);
                name = sharing.shared_name(entry);
            }
            None => {}
        }
        grouped.entry(name).or_default().push(device);
    }
    for (name, devices) in &mut grouped {
        limit(name, devices, warnings);
    }
    let resources = grouped.into_iter();
    resources
        .map(|(name, devices)| Resource { name, devices })
        .collect()
}

/// Takes shares away until the list fits, from all devices alike.
fn limit(name: &ResourceName, devices: &mut [Device], warnings: &mut Vec<Warning>) {
    let ids = devices.iter().map(|device| device.shares.unwrap_or(1));
    if ids.map(u64::from).sum::<u64>() <= u64::from(MAX_IDS) {
        return;
    }
    let count = u32::try_from(devices.len()).unwrap_or(u32::MAX);
    let most = (MAX_IDS / count.max(1)).max(1);
    let mut configured = 0;
    for device in devices {
        if let Some(shares) = &mut device.shares {
            configured = configured.max(*shares);
            *shares = most.min(*shares);
        }
    }
    warnings.push(Warning::TooManyShares {
        resource: name.clone(),
        offered: most.min(configured),
        configured,
    });
}
