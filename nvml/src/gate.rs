//! The gate in front of the library: many may be inside at once, or one alone that closes and opens it.
//!
//! A GPU reset and a driver restart both need this process out of the driver for a moment. Whoever does that waits until
//! everybody is outside, swaps the library, and lets them in again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::lane::{Progress, lock};
use crate::library::Library;

struct State {
    /// The open library, or why there is none.
    library: Result<Arc<Library>, Error>,
    /// Counts openings.
    generation: u64,
    inside: Vec<Arc<Progress>>,
    exclusive: bool,
    /// Nobody can ever come in again.
    demolished: bool,
}

/// See the module's words.
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    /// A copy of `State::exclusive` that costs nothing to look at.
    wanted: AtomicBool,
}

impl Gate {
    pub(crate) fn closed() -> Self {
        Self {
            state: Mutex::new(State {
                library: Err(Error::Closed),
                generation: 0,
                inside: Vec::new(),
                exclusive: false,
                demolished: false,
            }),
            changed: Condvar::new(),
            wanted: AtomicBool::new(false),
        }
    }

    /// Goes inside. Waits up to `limit` while somebody is alone inside.
    pub(crate) fn enter(
        self: &Arc<Self>,
        who: &Arc<Progress>,
        limit: Duration,
    ) -> Result<Pass, Error> {
        let deadline = Instant::now() + limit;
        let mut state = lock(&self.state);
        while state.exclusive {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Hung {
                    gpu: None,
                    call: "a GPU reset or a driver restart",
                    waited: limit,
                });
            }
            state = self.wait(state, left);
        }
        let library = Arc::clone(state.library.as_ref().map_err(Clone::clone)?);
        state.inside.push(Arc::clone(who));
        Ok(Pass {
            library: Some(library),
            generation: state.generation,
            who: Arc::clone(who),
            gate: Arc::clone(self),
        })
    }

    /// Goes inside alone: waits up to `limit` until everybody else is outside.
    pub(crate) fn alone(self: &Arc<Self>, limit: Duration) -> Result<Alone, Error> {
        let deadline = Instant::now() + limit;
        let mut state = lock(&self.state);
        let mut mine = false;
        loop {
            if !mine && !state.exclusive {
                state.exclusive = true;
                self.wanted.store(true, Ordering::Release);
                mine = true;
                // Those who sleep outside may have to look at the flag, too.
                self.changed.notify_all();
            }
            if mine && state.inside.is_empty() {
                return Ok(Alone {
                    gate: Arc::clone(self),
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let error = state.inside.first().map_or(
                    Error::Hung {
                        gpu: None,
                        call: "a GPU reset or a driver restart",
                        waited: limit,
                    },
                    |who| who.as_hung(),
                );
                if mine {
                    state.exclusive = false;
                    self.wanted.store(false, Ordering::Release);
                    self.changed.notify_all();
                }
                return Err(error);
            }
            state = self.wait(state, left);
        }
    }

    /// How often the library was opened so far.
    pub(crate) fn generation(&self) -> u64 {
        lock(&self.state).generation
    }

    /// Whether the open library has met a driver that is gone.
    pub(crate) fn is_gone(&self) -> bool {
        let state = lock(&self.state);
        state
            .library
            .as_ref()
            .map_or(true, |library| library.is_gone())
    }

    /// Takes the library away for good, whoever may be inside; they keep it until they leave.
    pub(crate) fn forget(&self) -> Option<Arc<Library>> {
        let mut state = lock(&self.state);
        state.demolished = true;
        self.wanted.store(true, Ordering::Release);
        self.changed.notify_all();
        std::mem::replace(&mut state.library, Err(Error::Closed)).ok()
    }

    /// Whether the driver was dropped.
    pub(crate) fn is_demolished(&self) -> bool {
        lock(&self.state).demolished
    }

    /// Sleeps until the gate is open in another generation than `but_not`, until `over` says so (asked when somebody
    /// [wakes](Self::wake) the sleepers), until the driver is dropped, or until `limit` has passed.
    pub(crate) fn wait_until_open(
        &self,
        but_not: Option<u64>,
        over: impl Fn() -> bool,
        limit: Duration,
    ) {
        let deadline = Instant::now() + limit;
        let mut state = lock(&self.state);
        loop {
            let open = !state.exclusive && state.library.is_ok();
            let left = deadline.saturating_duration_since(Instant::now());
            if (open && Some(state.generation) != but_not)
                || state.demolished
                || over()
                || left.is_zero()
            {
                return;
            }
            state = self.wait(state, left);
        }
    }

    /// Wakes everybody who sleeps in [`wait_until_open`](Self::wait_until_open), to look whether it is over.
    pub(crate) fn wake(&self) {
        let _state = lock(&self.state);
        self.changed.notify_all();
    }

    fn wait<'s>(
        &self,
        state: std::sync::MutexGuard<'s, State>,
        limit: Duration,
    ) -> std::sync::MutexGuard<'s, State> {
        self.changed
            .wait_timeout(state, limit)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }
}

/// Being inside, among others.
pub(crate) struct Pass {
    /// `None` only while dropping: the library must be let go of before leaving, so that whoever waits is the last holder.
    library: Option<Arc<Library>>,
    generation: u64,
    who: Arc<Progress>,
    gate: Arc<Gate>,
}

impl Pass {
    /// The library, and which opening of it this is.
    pub(crate) fn library(&self) -> Result<(&Arc<Library>, u64), Error> {
        let library = self.library.as_ref().ok_or(Error::Closed)?;
        Ok((library, self.generation))
    }

    /// Whether somebody waits for everybody to leave.
    pub(crate) fn should_leave(&self) -> bool {
        self.gate.wanted.load(Ordering::Acquire)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.library = None;
        let mut state = lock(&self.gate.state);
        if let Some(at) = state
            .inside
            .iter()
            .position(|who| Arc::ptr_eq(who, &self.who))
        {
            state.inside.swap_remove(at);
        }
        if state.exclusive {
            self.gate.changed.notify_all();
        }
    }
}

/// Being inside alone. Dropping it lets the others in again.
pub(crate) struct Alone {
    gate: Arc<Gate>,
}

impl Alone {
    /// Takes the library away.
    pub(crate) fn take(&self) -> Option<Arc<Library>> {
        let mut state = lock(&self.gate.state);
        std::mem::replace(&mut state.library, Err(Error::Closed)).ok()
    }

    /// Puts a freshly opened library in, or the reason why there is none.
    pub(crate) fn put(&self, library: Result<Arc<Library>, Error>) {
        let mut state = lock(&self.gate.state);
        if library.is_ok() {
            state.generation += 1;
        }
        state.library = library;
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let mut state = lock(&self.gate.state);
        state.exclusive = false;
        self.gate.wanted.store(false, Ordering::Release);
        self.gate.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn a_closed_gate_says_why() {
        let gate = Arc::new(Gate::closed());
        let who = Arc::new(Progress::new(None));
        assert_eq!(gate.enter(&who, SHORT).err(), Some(Error::Closed));
        assert!(gate.is_gone());
    }

    #[test]
    fn nobody_enters_while_one_is_alone_and_nobody_waits_for_ever() {
        let gate = Arc::new(Gate::closed());
        let who = Arc::new(Progress::new(None));
        let alone = gate.alone(SHORT).unwrap();
        assert!(gate.enter(&who, SHORT).is_err_and(|e| e.is_hung()));
        assert!(gate.alone(SHORT).is_err_and(|e| e.is_hung()));
        drop(alone);
        assert!(gate.alone(SHORT).is_ok());
    }
}
