//! The gate in front of the library: many may be inside at once, or one alone that closes and opens it.
//!
//! A GPU reset and a driver restart both need this process out of the driver for a moment. Whoever does that waits until
//! everybody is outside, swaps the library, and lets them in again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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
    /// Counts who was alone inside.
    turns: u64,
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
                turns: 0,
                demolished: false,
            }),
            changed: Condvar::new(),
            wanted: AtomicBool::new(false),
        }
    }

    /// Goes inside. Waits up to `patience` for each that is alone inside before.
    pub(crate) fn enter(
        self: &Arc<Self>,
        who: &Arc<Progress>,
        patience: Duration,
    ) -> Result<Pass, Error> {
        let mut state = self.outwait(patience)?;
        let library = Arc::clone(state.library.as_ref().map_err(Clone::clone)?);
        state.inside.push(Arc::clone(who));
        Ok(Pass {
            library: Some(library),
            generation: state.generation,
            who: Arc::clone(who),
            gate: Arc::clone(self),
        })
    }

    /// Goes inside alone. Waits up to `patience` for each that is alone inside before, then up to `limit` until everybody
    /// else is outside.
    pub(crate) fn alone(
        self: &Arc<Self>,
        limit: Duration,
        patience: Duration,
    ) -> Result<Alone, Error> {
        let mut state = self.outwait(patience)?;
        state.exclusive = true;
        state.turns += 1;
        self.wanted.store(true, Ordering::Release);
        // Those who sleep outside may have to look at the flag, too.
        self.changed.notify_all();
        let alone = Alone {
            gate: Arc::clone(self),
        };
        let deadline = Instant::now() + limit;
        while let Some(who) = state.inside.first() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let error = who.as_hung();
                // Before `alone` is dropped, which locks the state.
                drop(state);
                return Err(error);
            }
            state = self.wait(state, left);
        }
        drop(state);
        Ok(alone)
    }

    /// Waits until nobody is alone inside. The time counts anew for each: when all GPUs are to be reset, one after the
    /// other goes inside, and the last of them waits for all.
    fn outwait(&self, patience: Duration) -> Result<MutexGuard<'_, State>, Error> {
        let mut state = lock(&self.state);
        let mut turn = state.turns;
        let mut deadline = Instant::now() + patience;
        while state.exclusive {
            if std::mem::replace(&mut turn, state.turns) != state.turns {
                deadline = Instant::now() + patience;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Hung {
                    gpu: None,
                    call: "a GPU reset or a driver restart",
                    waited: patience,
                });
            }
            state = self.wait(state, left);
        }
        Ok(state)
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

    fn wait<'s>(&self, state: MutexGuard<'s, State>, limit: Duration) -> MutexGuard<'s, State> {
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
        let alone = gate.alone(SHORT, SHORT).unwrap();
        assert!(gate.enter(&who, SHORT).is_err_and(|e| e.is_hung()));
        assert!(gate.alone(SHORT, SHORT).is_err_and(|e| e.is_hung()));
        drop(alone);
        assert!(gate.alone(SHORT, SHORT).is_ok());
    }

    /// Somebody alone inside may reset a GPU for minutes; how long others may stay inside says nothing about that.
    #[test]
    fn whoever_wants_to_be_alone_waits_for_its_turn() {
        let gate = Arc::new(Gate::closed());
        let alone = gate.alone(SHORT, SHORT).unwrap();
        let second = {
            let gate = Arc::clone(&gate);
            std::thread::spawn(move || gate.alone(SHORT, Duration::from_secs(60)).is_ok())
        };
        std::thread::sleep(SHORT * 5);
        drop(alone);
        assert!(second.join().unwrap());
    }

    #[test]
    fn somebody_who_stays_inside_is_named_and_the_gate_opens_again() {
        let gate = Arc::new(Gate::closed());
        let who = Arc::new(Progress::new(None));
        who.enter("nvmlDeviceSetMigMode", SHORT);
        lock(&gate.state).inside.push(Arc::clone(&who));
        let error = gate.alone(SHORT, SHORT).err().unwrap();
        assert_eq!(error.call(), Some("nvmlDeviceSetMigMode"));
        lock(&gate.state).inside.clear();
        assert!(gate.alone(SHORT, SHORT).is_ok());
    }
}
