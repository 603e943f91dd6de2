//! Which devices there are and what they are called, before sharing.

use configuration::plugin::{Candidate, NamedPattern, ResourceName};
use gpu::labels::{Invalid, MigStrategy};

use super::{Device, Gpu, MigDevice, MigPlace, Rules, Warning};

/// A device with the name it has when it is not shared.
pub(super) struct Named<'a> {
    pub(super) name: ResourceName,
    pub(super) candidate: Candidate<'a>,
    pub(super) device: Device,
}

/// The devices that are offered, in index order.
pub(super) fn named<'a>(
    gpus: &'a [Gpu],
    rules: &Rules,
    warnings: &mut Vec<Warning>,
) -> Vec<Named<'a>> {
    let offered = |candidate: &Candidate<'_>| rules.devices.offers(candidate);
    let mut all = Vec::new();
    let has = |gpu: &Gpu| {
        let mut mig = gpu.mig.iter();
        offered(&gpu.candidate()) || mig.any(|device| offered(&gpu.mig_candidate(device)))
    };
    if !gpus.is_empty() && !gpus.iter().any(has) {
        // One GPU left out is what was asked for; all of them is more likely a slip.
        warnings.push(Warning::AllLeftOut { gpus: gpus.len() });
        return all;
    }
    if rules.strategy == MigStrategy::Single {
        let reason = single(gpus, rules);
        if let Some(reason) = reason {
            warnings.push(Warning::Single(reason));
            return all;
        }
    }
    for gpu in gpus {
        if !gpu.mig_enabled || rules.strategy == MigStrategy::None {
            if !offered(&gpu.candidate()) {
                continue;
            }
            if gpu.mig_enabled {
                let gpu = gpu.uuid.clone();
                warnings.push(Warning::WholeInMigMode { gpu });
            }
            match whole_name(&gpu.model, &rules.names.gpus) {
                Some(name) => all.push(whole(gpu, name)),
                None => warnings.push(Warning::NoName {
                    device: gpu.uuid.clone(),
                    what: gpu.model.clone(),
                }),
            }
            continue;
        }
        if gpu.mig.is_empty() && offered(&gpu.candidate()) {
            let gpu = gpu.uuid.clone();
            warnings.push(Warning::EmptyGpu { gpu });
        }
        for device in &gpu.mig {
            if !offered(&gpu.mig_candidate(device)) {
                continue;
            }
            match mig_name(device, rules) {
                Some(name) => all.push(part(gpu, device, name)),
                None => warnings.push(Warning::NoName {
                    device: device.uuid.clone(),
                    what: profile_text(device),
                }),
            }
        }
    }
    all
}

/// Why MIG devices cannot stand in for GPUs, judged by what is offered.
fn single(gpus: &[Gpu], rules: &Rules) -> Option<Invalid> {
    let offered = |candidate: &Candidate<'_>| rules.devices.offers(candidate);
    let mut profiles = Vec::<String>::new();
    let mut attributes = Vec::new();
    let (mut plain, mut cut, mut empty) = (false, false, false);
    for gpu in gpus {
        if !gpu.mig_enabled {
            plain |= offered(&gpu.candidate());
            continue;
        }
        if gpu.mig.is_empty() && offered(&gpu.candidate()) {
            empty = true;
        }
        for device in &gpu.mig {
            if !offered(&gpu.mig_candidate(device)) {
                continue;
            }
            cut = true;
            let profile = profile_text(device);
            let known = device.attributes.filter(|own| !attributes.contains(own));
            attributes.extend(known);
            if !profiles.contains(&profile) {
                profiles.push(profile);
            }
        }
    }
    if empty {
        Some(Invalid::EmptyGpu)
    } else if plain && cut {
        Some(Invalid::SomeNotInMigMode)
    } else if profiles.len() > 1 || attributes.len() > 1 {
        Some(Invalid::SeveralProfiles(profiles))
    } else {
        None
    }
}

fn profile_text(device: &MigDevice) -> String {
    match &device.profile {
        Some(profile) => profile.to_string(),
        None => "unknown profile".to_owned(),
    }
}

fn by_pattern(text: &str, patterns: &[NamedPattern]) -> Option<ResourceName> {
    let first = patterns.iter().find(|one| one.pattern.matches(text));
    first.map(|one| one.name.clone())
}

fn whole_name(model: &str, patterns: &[NamedPattern]) -> Option<ResourceName> {
    if patterns.is_empty() {
        return "gpu".parse().ok();
    }
    by_pattern(model, patterns)
}

fn mig_name(device: &MigDevice, rules: &Rules) -> Option<ResourceName> {
    let profile = device.profile.as_ref();
    if !rules.names.mig.is_empty() {
        return by_pattern(&profile?.to_string(), &rules.names.mig);
    }
    if rules.strategy == MigStrategy::Single {
        return "gpu".parse().ok();
    }
    // As upstream: a device that shares its GPU instance has a name only if the user gives it one.
    let profile = profile.filter(|profile| profile.is_whole())?;
    profile.resource_name().parse().ok()
}

fn whole(gpu: &Gpu, name: ResourceName) -> Named<'_> {
    Named {
        name,
        candidate: gpu.candidate(),
        device: Device {
            uuid: gpu.uuid.clone(),
            gpu_index: gpu.index,
            gpu_uuid: gpu.uuid.clone(),
            numa_node: gpu.numa_node,
            mig: None,
            shares: None,
        },
    }
}

fn part<'a>(gpu: &'a Gpu, mig: &'a MigDevice, name: ResourceName) -> Named<'a> {
    let mut named = whole(gpu, name);
    named.candidate = gpu.mig_candidate(mig);
    named.device.uuid.clone_from(&mig.uuid);
    named.device.mig = Some(MigPlace {
        index: mig.index,
        gpu_instance: mig.gpu_instance,
        compute_instance: mig.compute_instance,
    });
    named
}
