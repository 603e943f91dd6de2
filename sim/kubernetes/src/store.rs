//! The objects, one global resource version, and the history that watches are served from.
//!
//! Knows shelves, keys and versions; must not know kinds, HTTP or patches.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::watch;

use crate::json;

/// Namespace (empty for cluster-scoped objects) and name.
pub(crate) type Key = (String, String);

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Added,
    Modified,
    Deleted,
}

/// One entry of the history.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) version: u64,
    pub(crate) change: Change,
    pub(crate) key: Key,
    /// The object after the change; for a deletion its last state, at the version of the deletion.
    pub(crate) object: Arc<Value>,
    /// The object before the change.
    pub(crate) previous: Option<Arc<Value>>,
}

/// Objects of one resource.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    pub(crate) objects: BTreeMap<Key, Arc<Value>>,
    log: VecDeque<Event>,
    /// The highest version that is no longer in `log`: a watch may start at it, not before.
    forgotten: u64,
}

/// Everything stored.
#[derive(Debug)]
pub(crate) struct State {
    /// The version of the last write.
    pub(crate) version: u64,
    shelves: BTreeMap<String, Shelf>,
    /// History before this version was dropped for all shelves.
    compacted: u64,
    /// How many entries each shelf remembers.
    window: usize,
}

/// The state behind a lock, and a signal for those who wait for the next version.
#[derive(Debug)]
pub(crate) struct Store {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

/// The asked-for history is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Forgotten {
    /// The oldest version that can still be asked for.
    pub(crate) oldest: u64,
}

impl Store {
    pub(crate) fn new(window: usize) -> Self {
        Self {
            state: Mutex::new(State {
                version: 1,
                shelves: BTreeMap::new(),
                compacted: 0,
                window,
            }),
            changed: watch::Sender::new(1),
        }
    }

    /// The state, to read. A panic elsewhere cannot leave it half-written: each write is one call of `put` or `remove`.
    pub(crate) fn read(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `write` alone, then wakes the watches if it wrote.
    pub(crate) fn write<T>(&self, write: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.read();
        let before = state.version;
        let result = write(&mut state);
        let after = state.version;
        drop(state);
        if after != before {
            self.changed.send_replace(after);
        }
        result
    }

    /// A receiver that changes with every write.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Drops all history, as etcd's compaction does.
    pub(crate) fn compact(&self) {
        self.write(|state| {
            state.compacted = state.version;
            for shelf in state.shelves.values_mut() {
                shelf.log.clear();
            }
        });
    }
}

impl State {
    pub(crate) fn shelf(&self, name: &str) -> Option<&Shelf> {
        self.shelves.get(name)
    }

    pub(crate) fn get(&self, shelf: &str, key: &Key) -> Option<&Arc<Value>> {
        self.shelves.get(shelf)?.objects.get(key)
    }

    /// Makes the shelf of a resource that is served from now on: there is no history from before.
    pub(crate) fn open(&mut self, shelf: &str) {
        let version = self.version;
        self.shelves
            .entry(shelf.to_owned())
            .or_insert_with(|| Shelf {
                forgotten: version,
                ..Shelf::default()
            });
    }

    /// Stores `object` under the next version and returns it as stored.
    pub(crate) fn put(&mut self, shelf: &str, key: Key, mut object: Value) -> Arc<Value> {
        self.version += 1;
        json::set(
            &mut object,
            &["metadata", "resourceVersion"],
            Value::from(self.version.to_string()),
        );
        let object = Arc::new(object);
        let shelf = self.shelves.entry(shelf.to_owned()).or_default();
        let previous = shelf.objects.insert(key.clone(), Arc::clone(&object));
        let event = Event {
            version: self.version,
            change: if previous.is_some() {
                Change::Modified
            } else {
                Change::Added
            },
            key,
            object: Arc::clone(&object),
            previous,
        };
        shelf.remember(event, self.window);
        object
    }

    /// Removes an object; `last` is its final state, which watches see.
    pub(crate) fn remove(&mut self, shelf: &str, key: &Key, mut last: Value) -> Option<Arc<Value>> {
        let shelf = self.shelves.get_mut(shelf)?;
        let previous = shelf.objects.remove(key)?;
        self.version += 1;
        json::set(
            &mut last,
            &["metadata", "resourceVersion"],
            Value::from(self.version.to_string()),
        );
        let last = Arc::new(last);
        let event = Event {
            version: self.version,
            change: Change::Deleted,
            key: key.clone(),
            object: Arc::clone(&last),
            previous: Some(previous),
        };
        shelf.remember(event, self.window);
        Some(last)
    }

    /// Every shelf that holds objects in `namespace`, with their keys.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Vec<(String, Key)> {
        self.shelves
            .iter()
            .flat_map(|(name, shelf)| {
                shelf
                    .objects
                    .keys()
                    .filter(|(found, _)| found == namespace)
                    .map(|key| (name.clone(), key.clone()))
            })
            .collect()
    }

    fn oldest(&self, shelf: Option<&Shelf>) -> u64 {
        self.compacted.max(shelf.map_or(0, |shelf| shelf.forgotten))
    }

    /// The history of a shelf after `version`.
    pub(crate) fn since(&self, shelf: &str, version: u64) -> Result<Vec<Event>, Forgotten> {
        let shelf = self.shelves.get(shelf);
        let oldest = self.oldest(shelf);
        if version < oldest {
            return Err(Forgotten { oldest });
        }
        let Some(shelf) = shelf else {
            return Ok(Vec::new());
        };
        let first = shelf.log.partition_point(|event| event.version <= version);
        Ok(shelf.log.range(first..).cloned().collect())
    }

    /// The objects of a shelf as they were at `version`.
    pub(crate) fn at(
        &self,
        shelf: &str,
        version: u64,
    ) -> Result<BTreeMap<Key, Arc<Value>>, Forgotten> {
        let undo = self.since(shelf, version)?;
        let mut objects = self
            .shelves
            .get(shelf)
            .map(|shelf| shelf.objects.clone())
            .unwrap_or_default();
        for event in undo.into_iter().rev() {
            match event.previous {
                Some(previous) => objects.insert(event.key, previous),
                None => objects.remove(&event.key),
            };
        }
        Ok(objects)
    }
}

impl Shelf {
    fn remember(&mut self, event: Event, window: usize) {
        self.log.push_back(event);
        while self.log.len() > window {
            if let Some(dropped) = self.log.pop_front() {
                self.forgotten = dropped.version;
            }
        }
    }

    /// The objects of one namespace, or of all when it is `None`, in key order.
    pub(crate) fn objects_in<'a>(
        &'a self,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Value>)> {
        let start = match namespace {
            Some(namespace) => Bound::Included((namespace.to_owned(), String::new())),
            None => Bound::Unbounded,
        };
        self.objects
            .range((start, Bound::Unbounded))
            .take_while(move |((found, _), _)| namespace.is_none_or(|wanted| wanted == found))
    }
}
