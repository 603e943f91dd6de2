//! One thing at a time for each claim: a call that the kubelet gave up on must be over before the next one begins.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

/// The claims on which somebody works or waits.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns(Arc<Mutex<Locks>>);

/// A claim's lock is here as long as anybody holds it or waits for it.
type Locks = HashMap<String, Arc<tokio::sync::Mutex<()>>>;

/// The right to work on one claim, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Turns,
    claim: String,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits for the turn on `claim`; turns are given in the order in which they were asked for.
    pub(super) async fn take(&self, claim: &str) -> Turn {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            locks.entry(claim.to_owned()).or_default().clone()
        };
        let mut turn = Turn {
            turns: self.clone(),
            claim: claim.to_owned(),
            guard: None,
        };
        turn.guard = Some(lock.lock_owned().await);
        turn
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut locks = self.turns.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the map's lock nobody can begin to wait meanwhile.
        self.guard = None;
        if locks
            .get(&self.claim)
            .is_some_and(|lock| Arc::strong_count(lock) == 1)
        {
            locks.remove(&self.claim);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_claim_has_one_turn_and_other_claims_do_not_wait() {
        let turns = Turns::default();
        let first = turns.take("a").await;
        let mut second = Box::pin(turns.take("a"));
        assert!(second.as_mut().now_or_never().is_none());
        drop(turns.take("b").await);
        drop(first);
        drop(second.await);
        assert_eq!(turns.len(), 0);
    }

    #[tokio::test]
    async fn whoever_stops_waiting_leaves_nothing_behind() {
        let turns = Turns::default();
        let first = turns.take("a").await;
        let mut second = Box::pin(turns.take("a"));
        assert!(second.as_mut().now_or_never().is_none());
        drop(second);
        drop(first);
        assert_eq!(turns.len(), 0);
    }
}
