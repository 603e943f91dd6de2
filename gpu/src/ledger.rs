//! Who on the node was given which device.
//!
//! The kubelet keeps account of device plugins' resources, each by itself: it does not see that `nvidia.com/gpu` and
//! `nvidia.com/a100` are two names of one GPU, that a whole GPU contains MIG devices, or that a claim of dynamic resource
//! allocation has the device. The ledger does. It refuses a grant that would give a device to more holders than it may have, and
//! nothing else:
//! - the same id of the same resource may be granted again at any time. The kubelet knows when the former pod has ended, when a
//!   container starts anew, when it takes over a device of an init container;
//! - what is not known is not held against anybody.
//!
//! # Where its knowledge comes from
//! [`Ledger::grant`] notes a grant as it is made. Whose it is, and that it has ended, the kubelet tells afterwards, in lists
//! of pod resources: [`Ledger::reconcile`] takes one, and makes the same ledger out of nothing after a restart, or in another
//! process. Between grant and list an entry is provisional; one that no list confirms within [`PROVISIONAL`] is dropped, because
//! then the pod was not admitted after all.
//!
//! A list has the devices of pods that are alive: before it answers, the kubelet takes back those of pods that have ended
//! (`UpdateAllocatedDevices`). It leaves out init containers that end before the others start; a device that only such a one
//! has counts as long as a provisional entry does.
//!
//! A refusal may rest on an old list. So who gets one asks for a new list, reconciles, and tries once more; only then it is
//! final. Where there is no new list, [`Knowledge::Stale`] leaves only what is certain without one.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

/// How long a grant counts that no list has confirmed. The kubelet lists a container's devices as soon as it has the plugin's
/// answer, unless it is held up.
pub const PROVISIONAL: Duration = Duration::from_secs(5);

/// A GPU, or a MIG device of it: what containers hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device {
    /// UUID of the GPU.
    pub gpu: String,
    /// Which MIG device; `None` for the GPU as a whole.
    pub mig: Option<MigDevice>,
}

/// Which MIG device of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MigDevice {
    /// `MIG-…`.
    pub uuid: String,
    /// GPU-instance id.
    pub gpu_instance: u32,
    /// Compute-instance id.
    pub compute_instance: u32,
}

impl Device {
    /// The UUID of the device itself.
    pub fn uuid(&self) -> &str {
        match &self.mig {
            None => &self.gpu,
            Some(mig) => &mig.uuid,
        }
    }

    /// Whether who has one of them can reach the other. A MIG device is reached through nodes that are numbered by its
    /// instance ids, so who still has those of a former device reaches whatever has the ids now.
    fn overlaps(&self, other: &Self) -> bool {
        self.gpu == other.gpu
            && match (&self.mig, &other.mig) {
                (Some(one), Some(other)) => {
                    let place = |mig: &MigDevice| (mig.gpu_instance, mig.compute_instance);
                    one.uuid == other.uuid || place(one) == place(other)
                }
                _ => true,
            }
    }
}

/// By what right a device is held.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// Through a device plugin's resource: `nvidia.com/gpu`.
    Resource(String),
    /// Through a claim of dynamic resource allocation.
    Claim {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Container {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of the container.
    pub name: String,
}

/// A device that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which.
    pub device: Device,
    /// Which share of it, from 0; `None` to have it alone.
    pub share: Option<u32>,
    /// How many shares of it there are. Means nothing without a share.
    pub shares: u32,
}

/// A device that the kubelet says is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// By what right.
    pub owner: Owner,
    /// By whom.
    pub container: Container,
    /// UUID of the device, as it was called when it was given.
    pub uuid: String,
    /// Which share.
    pub share: Option<u32>,
}

/// What the kubelet's last list is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// It was taken a moment ago, or a conflict will make the caller ask for a new one.
    Current,
    /// The kubelet cannot be asked. Whoever had a device then may have ended since, so only claims that were granted here and
    /// not released since are held against others.
    Stale,
}

/// Somebody who has a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// By what right.
    pub owner: Owner,
    /// Who; `None` until the kubelet has said so.
    pub container: Option<Container>,
    /// The device.
    pub device: Device,
    /// Which share of it.
    pub share: Option<u32>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.container {
            Some(Container {
                namespace,
                pod,
                name,
            }) => write!(f, "container {name} of pod {namespace}/{pod}")?,
            None => f.write_str("a pod that is starting")?,
        }
        match &self.owner {
            Owner::Resource(name) => write!(f, " has {} as {name}", self.device.uuid()),
            Owner::Claim { namespace, name } => write!(
                f,
                " has {} through claim {namespace}/{name}",
                self.device.uuid()
            ),
        }
    }
}

/// A device cannot be given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// Somebody has it, or a part of it, or the GPU that it is a part of.
    #[error("{device} cannot be given: {holder}; end that pod first")]
    Held {
        /// UUID of the device that was wanted.
        device: String,
        /// Who has it.
        holder: Box<Holder>,
    },
    /// All its shares are taken.
    #[error(
        "{device} cannot be given: it has {shares} shares, and as many containers have one; for one, {holder}; end one of those pods first"
    )]
    Shares {
        /// UUID of the device.
        device: String,
        /// How many shares it has.
        shares: u32,
        /// One of those who have a share.
        holder: Box<Holder>,
    },
}

/// One thing that can be held once: an id towards the kubelet, or a device of a claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    owner: Owner,
    uuid: String,
    share: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    device: Device,
    container: Option<Container>,
    standing: Standing,
}

/// How long an entry counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Granted then; until a list confirms it, or it is too old.
    Provisional(Instant),
    /// Until a list no longer has it.
    Listed,
    /// A claim that was granted here: until it is released.
    Kept,
}

/// The ledger of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    entries: BTreeMap<Key, Entry>,
}

impl Ledger {
    /// Notes that `owner` gets these devices: all of them, or none.
    ///
    /// # Errors
    /// [`Conflict`], the first there is.
    pub fn grant(
        &mut self,
        owner: &Owner,
        wanted: &[Wanted],
        knowledge: Knowledge,
        now: Instant,
    ) -> Result<(), Conflict> {
        self.entries.retain(|_, entry| entry.lasts(now));
        let standing = match owner {
            Owner::Resource(_) => Standing::Provisional(now),
            Owner::Claim { .. } => Standing::Kept,
        };
        let mut granted = BTreeMap::new();
        for one in wanted {
            let key = Key {
                owner: owner.clone(),
                uuid: one.device.uuid().to_owned(),
                share: one.share,
            };
            self.admit(&key, one, &granted, knowledge)?;
            let entry = Entry {
                device: one.device.clone(),
                container: None,
                standing,
            };
            granted.insert(key, entry);
        }
        self.entries.append(&mut granted);
        Ok(())
    }

    /// Whether `one` can be given, beside what is held and what is about to be given with it.
    fn admit(
        &self,
        key: &Key,
        one: &Wanted,
        with: &BTreeMap<Key, Entry>,
        knowledge: Knowledge,
    ) -> Result<(), Conflict> {
        let certain =
            |entry: &Entry| knowledge == Knowledge::Current || entry.standing == Standing::Kept;
        let held = self.entries.iter().filter(|(_, entry)| certain(entry));
        let others = held
            .filter(|(held, _)| !with.contains_key(held))
            .chain(with)
            .filter(|(other, entry)| *other != key && entry.device.overlaps(&one.device));
        let mut sharers = 0;
        for (other, entry) in others {
            let holder = || {
                Box::new(Holder {
                    owner: other.owner.clone(),
                    container: entry.container.clone(),
                    device: entry.device.clone(),
                    share: other.share,
                })
            };
            let device = || one.device.uuid().to_owned();
            let together = one.share.is_some()
                && one.device.uuid() == entry.device.uuid()
                && key.owner.shares_with(&other.owner, other.share);
            if !together {
                return Err(Conflict::Held {
                    device: device(),
                    holder: holder(),
                });
            }
            sharers += 1;
            if sharers >= one.shares {
                return Err(Conflict::Shares {
                    device: device(),
                    shares: one.shares,
                    holder: holder(),
                });
            }
        }
        Ok(())
    }

    /// Notes that `owner` has given everything back. Claims that were granted here need it: their driver knows best. Of device
    /// plugins' resources the kubelet tells with its lists.
    pub fn release(&mut self, owner: &Owner) {
        self.entries.retain(|key, _| key.owner != *owner);
    }

    /// Takes over a list of the kubelet that was asked for at `asked`: confirms what is in it, adds what is not known, and drops
    /// what is not in it, except for grants too young for that. `place` knows the devices of the node by UUID; one that is gone
    /// from the node keeps the place that the ledger remembers, and without one is passed over.
    pub fn reconcile(
        &mut self,
        listed: Vec<Listed>,
        place: impl Fn(&str) -> Option<Device>,
        asked: Instant,
    ) {
        let mut entries = BTreeMap::new();
        for one in listed {
            let device = place(&one.uuid).or_else(|| self.remembered(&one.uuid).cloned());
            let Some(device) = device else { continue };
            let key = Key {
                owner: one.owner,
                uuid: one.uuid,
                share: one.share,
            };
            let entry = Entry {
                device,
                container: Some(one.container),
                standing: Standing::Listed,
            };
            entries.insert(key, entry);
        }
        for (key, mut entry) in std::mem::take(&mut self.entries) {
            let stays = match entry.standing {
                Standing::Listed => false,
                Standing::Kept => true,
                // A list from before the grant may name whoever had the id before.
                Standing::Provisional(granted) if granted >= asked => true,
                Standing::Provisional(_) => entry.lasts(asked) && !entries.contains_key(&key),
            };
            if stays {
                if entry.standing == Standing::Kept {
                    entry.container = entries.remove(&key).and_then(|listed| listed.container);
                }
                entries.insert(key, entry);
            }
        }
        self.entries = entries;
    }

    fn remembered(&self, uuid: &str) -> Option<&Device> {
        let mut entries = self.entries.iter();
        entries
            .find(|(key, _)| key.uuid == uuid)
            .map(|(_, entry)| &entry.device)
    }

    /// Everybody who has something, by owner and device.
    pub fn holders(&self) -> impl Iterator<Item = Holder> {
        self.entries.iter().map(|(key, entry)| Holder {
            owner: key.owner.clone(),
            container: entry.container.clone(),
            device: entry.device.clone(),
            share: key.share,
        })
    }
}

impl Entry {
    fn lasts(&self, now: Instant) -> bool {
        match self.standing {
            Standing::Provisional(granted) => now.saturating_duration_since(granted) < PROVISIONAL,
            Standing::Listed | Standing::Kept => true,
        }
    }
}

impl Owner {
    /// Whether it may have a share of a device beside `other`, which has the share `held` or all of it. A plugin and a DRA driver
    /// do not divide a device between them. Who got a device of a resource alone, before the user chose to have it shared, has
    /// one share from then on.
    fn shares_with(&self, other: &Self, held: Option<u32>) -> bool {
        match (self, other) {
            (Self::Resource(_), Self::Resource(_)) => true,
            (Self::Claim { .. }, Self::Claim { .. }) => held.is_some(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
