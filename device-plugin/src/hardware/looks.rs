//! When to look at which GPU: pure bookkeeping over the driver's list.
//!
//! Events come in bursts (a MIG layout is many changes), so a look follows the last one of a burst, or its beginning by a
//! bound. One look at a GPU is under way at most; what happens meanwhile leads to another.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// From an event to the look that it causes.
const SETTLE: Duration = Duration::from_millis(100);
/// However long a burst goes on.
const SETTLE_AT_MOST: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, Default)]
struct Slot {
    /// When to look, and since when that is wanted.
    wanted: Option<(Instant, Instant)>,
    asked: bool,
    /// The look under way hangs; nobody waits for it.
    hangs: bool,
    /// The board that answered.
    uuid: Option<String>,
}

/// The driver's list, position by position.
#[derive(Clone, Debug, Default)]
pub(super) struct Looks {
    slots: Vec<Slot>,
}

impl Looks {
    /// A list of this length, of which nothing is known.
    pub(super) fn new(count: u32, now: Instant) -> Self {
        let slot = Slot {
            wanted: Some((now, now)),
            ..Slot::default()
        };
        Self {
            slots: vec![slot; count as usize],
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Something happened to a GPU. `false` when the list has no such position.
    pub(super) fn want(&mut self, index: u32, now: Instant) -> bool {
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return false;
        };
        let since = slot.wanted.map_or(now, |(_, since)| since);
        slot.wanted = Some(((now + SETTLE).min(since + SETTLE_AT_MOST), since));
        true
    }

    /// A GPU is to be looked at without waiting for more to happen.
    pub(super) fn want_now(&mut self, index: u32, now: Instant) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.wanted.get_or_insert((now, now)).0 = now;
        }
    }

    /// The GPUs to ask now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<u32> {
        let mut due = Vec::new();
        for (index, slot) in (0..).zip(&mut self.slots) {
            if !slot.asked && slot.wanted.is_some_and(|(when, _)| when <= now) {
                slot.wanted = None;
                slot.asked = true;
                due.push(index);
            }
        }
        due
    }

    /// When [`due`](Self::due) has something next.
    pub(super) fn next(&self) -> Option<Instant> {
        let free = self.slots.iter().filter(|slot| !slot.asked);
        free.filter_map(|slot| slot.wanted.map(|(when, _)| when))
            .min()
    }

    /// The GPUs that have not answered yet and are waited for.
    pub(super) fn awaited(&self) -> Vec<u32> {
        let slots = (0..).zip(&self.slots);
        slots
            .filter(|(_, slot)| slot.asked && !slot.hangs)
            .map(|(index, _)| index)
            .collect()
    }

    /// A look does not come back; it is not waited for.
    pub(super) fn hangs(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.hangs = true;
        }
    }

    /// A look came back; with the board's UUID if it answered.
    pub(super) fn answered(&mut self, index: u32, uuid: Option<String>) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.asked = false;
            slot.hangs = false;
            slot.uuid = uuid.or(slot.uuid.take());
        }
    }

    /// The boards that have answered, once nothing is to be looked at and no look is waited for.
    pub(super) fn complete(&self) -> Option<BTreeSet<String>> {
        let idle = |slot: &Slot| slot.wanted.is_none() && (!slot.asked || slot.hangs);
        let complete = self.slots.iter().all(idle);
        complete.then(|| {
            self.slots
                .iter()
                .filter_map(|slot| slot.uuid.clone())
                .collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// One GPU that has answered.
    fn known(now: Instant) -> Looks {
        let mut looks = Looks::new(1, now);
        assert_eq!(looks.due(now), [0]);
        looks.answered(0, Some("A".to_owned()));
        looks
    }

    #[test]
    fn a_new_list_is_asked_at_once_and_complete_when_all_answered() {
        let now = Instant::now();
        let mut looks = Looks::new(2, now);
        assert_eq!(looks.complete(), None);
        assert_eq!(looks.due(now), [0, 1]);
        assert_eq!(looks.due(now), [] as [u32; 0], "once");
        looks.answered(1, Some("B".to_owned()));
        assert_eq!(looks.complete(), None);
        assert_eq!(looks.awaited(), [0]);
        looks.answered(0, None);
        assert_eq!(looks.complete(), Some(["B".to_owned()].into()));
    }

    #[test]
    fn a_burst_is_one_look_soon_after_its_last_event() {
        let now = Instant::now();
        let mut looks = known(now);
        for event in 0..5 {
            assert!(looks.want(0, now + event * 50 * MS));
        }
        assert_eq!(looks.next(), Some(now + 300 * MS));
        assert_eq!(looks.due(now + 299 * MS), [] as [u32; 0]);
        assert_eq!(looks.due(now + 300 * MS), [0]);
        assert_eq!(looks.next(), None);
    }

    #[test]
    fn a_burst_without_end_is_looked_at_nevertheless() {
        let now = Instant::now();
        let mut looks = known(now);
        for event in 0..100 {
            looks.want(0, now + event * 10 * MS);
        }
        assert_eq!(looks.next(), Some(now + 500 * MS));
    }

    #[test]
    fn what_happens_during_a_look_leads_to_another() {
        let now = Instant::now();
        let mut looks = known(now);
        looks.want_now(0, now);
        assert_eq!(looks.due(now), [0]);
        looks.want(0, now);
        assert_eq!((looks.next(), looks.due(now + 999 * MS)), (None, vec![]));
        looks.answered(0, Some("A".to_owned()));
        assert_eq!(looks.complete(), None);
        assert_eq!(looks.due(now + 999 * MS), [0]);
    }

    #[test]
    fn who_hangs_is_not_waited_for_and_keeps_its_place() {
        let now = Instant::now();
        let mut looks = known(now);
        looks.want_now(0, now);
        looks.due(now);
        looks.hangs(0);
        assert_eq!(looks.awaited(), [] as [u32; 0]);
        assert_eq!(looks.complete(), Some(["A".to_owned()].into()));
        looks.want_now(0, now);
        assert_eq!(looks.due(now), [] as [u32; 0], "one look at a time");
        looks.answered(0, None);
        assert_eq!(looks.due(now), [0]);
    }

    #[test]
    fn beyond_the_list_is_nothing() {
        let now = Instant::now();
        let mut looks = known(now);
        assert!(!looks.want(1, now));
        looks.want_now(1, now);
        looks.answered(1, Some("B".to_owned()));
        assert_eq!(looks.complete(), Some(["A".to_owned()].into()));
    }
}
