//! Values that only exist between two readings: the NVLink rate from its counters, and GPM windows.
//!
//! Both are kept per GPU and per instance from one collection to the next. Who reads more often than [`MIN_WINDOW`] gets
//! the last value again, because the driver's averages over shorter windows are noise; after [`MAX_WINDOW`] without a
//! reading the old one says nothing about now.

use std::time::{Duration, Instant};

/// NVIDIA's documented minimum between two GPM samples.
pub(crate) const MIN_WINDOW: Duration = Duration::from_millis(100);
/// An average over more than this is not what the GPU does now.
const MAX_WINDOW: Duration = Duration::from_secs(600);

/// A reading and the value made of it and the one before.
#[derive(Debug)]
pub(crate) struct Window<S, V> {
    older: Option<(S, Instant)>,
    value: Option<V>,
    /// Whether `older` is the first reading of this window.
    first: bool,
}

impl<S, V> Default for Window<S, V> {
    fn default() -> Self {
        Self {
            older: None,
            value: None,
            first: false,
        }
    }
}

impl<S, V: Clone> Window<S, V> {
    /// Takes a new reading with `read` and gives the value that `combine` makes of the two. `None` until there are two.
    ///
    /// # Errors
    /// What `read` or `combine` give; the window then begins anew.
    pub(crate) fn advance<E>(
        &mut self,
        now: Instant,
        read: impl FnOnce() -> Result<Option<S>, E>,
        combine: impl FnOnce(&S, &S) -> Result<Option<V>, E>,
    ) -> Result<Option<V>, E> {
        let age = self
            .older
            .as_ref()
            .map(|(_, at)| now.saturating_duration_since(*at));
        if age.is_some_and(|age| age < MIN_WINDOW) {
            return Ok(self.value.clone());
        }
        let older = self
            .older
            .take()
            .filter(|_| age.is_some_and(|age| age <= MAX_WINDOW));
        self.value = None;
        let Some(newer) = read()? else {
            return Ok(None);
        };
        self.first = older.is_none();
        if let Some((older, _)) = &older {
            self.value = combine(older, &newer)?;
        }
        self.older = Some((newer, now));
        Ok(self.value.clone())
    }

    /// Begins anew if `holds` is not so for the older reading: what was read before a driver restart goes with nothing
    /// read after it.
    pub(crate) fn keep_if(&mut self, holds: impl FnOnce(&S) -> bool) {
        if self.older.as_ref().is_some_and(|(older, _)| !holds(older)) {
            *self = Self::default();
        }
    }

    /// Whether a first reading waits for a second.
    pub(crate) fn is_half(&self) -> bool {
        self.older.is_some() && self.first
    }
}

/// A look at a counter: its value, and when the driver read it (µs; 0 when it does not say).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) value: u64,
    pub(crate) at_us: i64,
}

/// KiB counters told as whole MB/s, DCGM's way: KiB per second divided by 1000. A counter that went back was reset.
pub(crate) fn nvlink_mb_per_second(older: Count, newer: Count) -> Option<u64> {
    let micros = u64::try_from(newer.at_us.checked_sub(older.at_us)?)
        .ok()
        .filter(|&micros| micros > 0)?;
    let kib = newer.value.checked_sub(older.value)?;
    u64::try_from(u128::from(kib) * 1000 / u128::from(micros)).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    #[rstest]
    // 3 000 000 KiB in one second are 3000 "MB/s".
    #[case((0, 1_000_000), (3_000_000, 2_000_000), Some(3000))]
    // Half a second.
    #[case((500, 0), (1500, 500_000), Some(2))]
    #[case((7, 0), (7, 1), Some(0))]
    #[case((7, 5), (9, 5), None)]
    #[case((7, 5), (9, 4), None)]
    #[case((9, 0), (7, 1_000_000), None)]
    fn rates(#[case] older: (u64, i64), #[case] newer: (u64, i64), #[case] wanted: Option<u64>) {
        let count = |(value, at_us)| Count { value, at_us };
        assert_eq!(nvlink_mb_per_second(count(older), count(newer)), wanted);
    }

    /// Advances by readings of a counter; the value is the difference.
    fn advance(window: &mut Window<u32, u32>, at: Instant, reading: u32) -> Option<u32> {
        window
            .advance(at, || Ok::<_, ()>(Some(reading)), |a, b| Ok(Some(b - a)))
            .unwrap()
    }

    #[test]
    fn a_value_takes_two_readings_far_enough_apart() {
        let mut window = Window::default();
        let start = Instant::now();
        assert!(!window.is_half());
        assert_eq!(advance(&mut window, start, 10), None);
        assert!(window.is_half());
        assert_eq!(
            advance(&mut window, start + Duration::from_millis(99), 11),
            None
        );
        assert_eq!(
            advance(&mut window, start + Duration::from_millis(100), 15),
            Some(5)
        );
        assert!(!window.is_half());
        // Too early: the last value again, and the window still begins at 15.
        assert_eq!(
            advance(&mut window, start + Duration::from_millis(150), 99),
            Some(5)
        );
        assert_eq!(
            advance(&mut window, start + Duration::from_secs(600), 16),
            Some(1)
        );
        // Too late: begins anew.
        assert_eq!(
            advance(&mut window, start + Duration::from_secs(1201), 20),
            None
        );
        assert_eq!(
            advance(&mut window, start + Duration::from_secs(1202), 21),
            Some(1)
        );
    }

    #[test]
    fn a_reading_that_no_longer_holds_begins_the_window_anew() {
        let mut window = Window::default();
        let start = Instant::now();
        let second = |seconds| start + Duration::from_secs(seconds);
        window.keep_if(|_| false);
        assert_eq!(advance(&mut window, start, 10), None);
        window.keep_if(|older| *older == 10);
        assert_eq!(advance(&mut window, second(1), 15), Some(5));
        window.keep_if(|older| *older == 10);
        assert_eq!(advance(&mut window, second(2), 20), None);
        assert!(window.is_half());
        assert_eq!(advance(&mut window, second(3), 21), Some(1));
    }

    #[test]
    fn two_readings_without_a_value_are_not_half() {
        let mut window: Window<u32, u32> = Window::default();
        let start = Instant::now();
        let _ = advance(&mut window, start, 1);
        assert!(window.is_half());
        let later = start + Duration::from_secs(1);
        assert_eq!(
            window.advance(later, || Ok::<_, ()>(Some(2)), |_, _| Ok(None)),
            Ok(None)
        );
        assert!(!window.is_half());
    }

    #[test]
    fn a_failed_reading_begins_the_window_anew() {
        let mut window: Window<u32, u32> = Window::default();
        let start = Instant::now();
        let _ = advance(&mut window, start, 1);
        let later = start + Duration::from_secs(1);
        assert_eq!(
            window.advance(later, || Err("lost"), |_, _| Ok(None)),
            Err("lost")
        );
        assert_eq!(
            advance(&mut window, start + Duration::from_secs(2), 5),
            None
        );
    }
}
