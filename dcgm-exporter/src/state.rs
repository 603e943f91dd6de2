//! What the collector remembers between collections: windows per GPU and instance, and the last XID errors.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvml::GpmSample;

use crate::rates::{Count, Window};

/// GPM values of one entity, in the order the metrics are asked.
pub(crate) type GpmValues = Arc<[Option<f64>]>;

/// Windows of one GPU.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    pub(crate) nvlink: Window<Count, u64>,
    /// By GPU-instance id; `None` is the whole GPU.
    pub(crate) gpm: BTreeMap<Option<u32>, Window<GpmSample, GpmValues>>,
}

impl Windows {
    /// Whether any value waits for a second reading.
    pub(crate) fn any_half(&self) -> bool {
        self.nvlink.is_half() || self.gpm.values().any(Window::is_half)
    }

    fn forget_instances(&mut self) {
        self.gpm.retain(|instance, _| instance.is_none());
    }
}

/// Windows that are being used.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) windows: Windows,
    change: u64,
}

/// An entity that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// GPU-instance id; `None` is the whole GPU.
    pub(crate) instance: Option<u32>,
    pub(crate) labels: String,
    /// The ids by which pods hold it.
    pub(crate) ids: Vec<String>,
}

/// State shared by the collector, the GPUs' threads and the event thread. Keyed by the GPU's UUID, which survives a driver
/// restart where an index may not.
#[derive(Clone, Debug, Default)]
pub(crate) struct State(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    windows: HashMap<Arc<str>, Windows>,
    /// The entities of a GPU when it was last read, with their labels.
    entities: HashMap<Arc<str>, Vec<Known>>,
    /// How often a GPU's instances changed.
    changes: HashMap<Arc<str>, u64>,
    /// The last XID by GPU and GPU instance; `None` is the GPU as a whole.
    xids: HashMap<Arc<str>, BTreeMap<Option<u32>, u32>>,
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Plain data: nothing is half done when a holder panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a GPU's windows; they come back with [`State::put`]. A GPU that hangs meanwhile begins anew.
    pub(crate) fn take(&self, uuid: &str) -> Taken {
        let mut inner = self.lock();
        Taken {
            windows: inner.windows.remove(uuid).unwrap_or_default(),
            change: inner.changes.get(uuid).copied().unwrap_or(0),
        }
    }

    pub(crate) fn put(&self, uuid: &str, taken: Taken) {
        let mut inner = self.lock();
        let mut windows = taken.windows;
        if inner.changes.get(uuid).copied().unwrap_or(0) != taken.change {
            windows.forget_instances();
        }
        inner.windows.insert(uuid.into(), windows);
    }

    /// Keeps what a GPU's entities were. An instance that went takes its XIDs along: its id may come back for another one,
    /// and not every driver tells this process of changes.
    pub(crate) fn set_entities(&self, uuid: &str, entities: Vec<Known>) {
        let mut inner = self.lock();
        let before = inner.entities.remove(uuid).unwrap_or_default();
        if let Some(xids) = inner.xids.get_mut(uuid) {
            let is_among = |known: &Known| {
                let mut all = entities.iter();
                all.any(|other| (other.instance, &other.ids) == (known.instance, &known.ids))
            };
            for gone in before.iter().filter(|known| !is_among(known)) {
                if gone.instance.is_some() {
                    xids.remove(&gone.instance);
                }
            }
        }
        inner.entities.insert(uuid.into(), entities);
    }

    /// What a GPU's entities were when it was last read.
    pub(crate) fn entities(&self, uuid: &str) -> Vec<Known> {
        self.lock().entities.get(uuid).cloned().unwrap_or_default()
    }

    /// Instances changed: an id may now stand for another instance, so neither windows nor XIDs of instances hold.
    pub(crate) fn forget_instances(&self, uuid: &str) {
        let mut inner = self.lock();
        *inner.changes.entry(uuid.into()).or_default() += 1;
        if let Some(windows) = inner.windows.get_mut(uuid) {
            windows.forget_instances();
        }
        if let Some(xids) = inner.xids.get_mut(uuid) {
            xids.retain(|instance, _| instance.is_none());
        }
    }

    /// An XID error happened.
    pub(crate) fn set_xid(&self, uuid: &str, instance: Option<u32>, xid: u32) {
        self.lock()
            .xids
            .entry(uuid.into())
            .or_default()
            .insert(instance, xid);
    }

    /// The last XID of an entity. An error of the whole GPU is every instance's, until the instance has one of its own.
    pub(crate) fn xid(&self, uuid: &str, instance: Option<u32>) -> Option<u32> {
        let inner = self.lock();
        let xids = inner.xids.get(uuid)?;
        xids.get(&instance).or_else(|| xids.get(&None)).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn windows_of_instances_end_with_a_change_even_while_they_are_used() {
        let state = State::default();
        let used = |state: &State| {
            let mut taken = state.take("GPU-1");
            let nothing = || Ok::<_, ()>(None);
            for instance in [None, Some(7)] {
                let _ = taken.windows.gpm.entry(instance).or_default().advance(
                    Instant::now(),
                    nothing,
                    |_, _| Ok(None),
                );
            }
            taken
        };
        let ids = |state: &State| {
            let taken = state.take("GPU-1");
            let ids: Vec<_> = taken.windows.gpm.keys().copied().collect();
            state.put("GPU-1", taken);
            ids
        };
        state.put("GPU-1", used(&state));
        assert_eq!(ids(&state), [None, Some(7)]);
        state.forget_instances("GPU-1");
        assert_eq!(ids(&state), [None]);
        let taken = used(&state);
        state.forget_instances("GPU-1");
        state.put("GPU-1", taken);
        assert_eq!(ids(&state), [None]);
    }

    #[test]
    fn an_instance_has_its_own_xid_or_the_gpus() {
        let state = State::default();
        assert_eq!(state.xid("GPU-1", None), None);
        state.set_xid("GPU-1", Some(7), 31);
        assert_eq!(state.xid("GPU-1", Some(7)), Some(31));
        assert_eq!(state.xid("GPU-1", Some(8)), None);
        assert_eq!(state.xid("GPU-1", None), None);
        state.set_xid("GPU-1", None, 79);
        assert_eq!(state.xid("GPU-1", Some(8)), Some(79));
        assert_eq!(state.xid("GPU-2", None), None);
        state.forget_instances("GPU-1");
        assert_eq!(state.xid("GPU-1", Some(7)), Some(79));
    }

    fn known(instance: Option<u32>, id: &str) -> Known {
        Known {
            instance,
            labels: String::new(),
            ids: vec![id.to_owned()],
        }
    }

    #[test]
    fn an_instance_that_went_without_an_event_takes_its_xid_along() {
        let state = State::default();
        let seven = || known(Some(7), "MIG-7");
        state.set_entities("GPU-1", vec![seven(), known(Some(8), "MIG-8")]);
        state.set_xid("GPU-1", Some(7), 31);
        state.set_xid("GPU-1", Some(8), 13);
        // Raised before it was read for the first time.
        state.set_xid("GPU-1", Some(9), 45);
        state.set_entities(
            "GPU-1",
            vec![seven(), known(Some(8), "MIG-8-of-another-profile")],
        );
        assert_eq!(state.xid("GPU-1", Some(7)), Some(31));
        assert_eq!(state.xid("GPU-1", Some(8)), None);
        assert_eq!(state.xid("GPU-1", Some(9)), Some(45));
        state.set_entities("GPU-1", vec![known(None, "GPU-1")]);
        state.set_entities("GPU-1", vec![seven()]);
        assert_eq!(state.xid("GPU-1", Some(7)), None);
    }

    #[test]
    fn a_gpus_xid_stays_when_it_is_cut() {
        let state = State::default();
        state.set_entities("GPU-1", vec![known(None, "GPU-1")]);
        state.set_xid("GPU-1", None, 63);
        state.set_entities("GPU-1", vec![known(Some(7), "MIG-7")]);
        assert_eq!(state.xid("GPU-1", Some(7)), Some(63));
    }
}
