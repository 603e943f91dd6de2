//! Which of the things said are new and which are said again, as a value without clock or network.
//!
//! Equal events (object, severity, reason, action and note) are one series. The first is written at once, the second as
//! a count of two at once; after that the count is written at most once per [`INTERVAL`], and never when it did not grow.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use tokio::time::Instant;

use super::Event;

/// How often the count of a running series is written.
const INTERVAL: Duration = Duration::from_secs(60);

/// A series nobody adds to is forgotten after this time; client-go's recorder uses the same.
const FORGET: Duration = Duration::from_secs(360);

/// Different events a part may have in play; beyond it the longest silent one is forgotten.
const MOST: usize = 128;

/// What makes two events the same.
pub(super) type Key = (Regarding, Event);

/// An [`ObjectReference`] that can be a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Regarding(pub(super) ObjectReference);

impl Eq for Regarding {}

impl std::hash::Hash for Regarding {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.kind.hash(state);
        self.0.name.hash(state);
        self.0.uid.hash(state);
    }
}

/// What to write.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Nothing now.
    Nothing,
    /// A new Event object called `name`.
    Create { key: Box<Key>, name: String },
    /// The series of the Event object `name` has `count` members.
    Count {
        key: Box<Key>,
        name: String,
        count: i32,
    },
}

struct Series {
    name: String,
    count: i32,
    written: i32,
    written_at: Instant,
    last: Instant,
}

/// The series in play.
#[derive(Default)]
pub(super) struct Book {
    series: HashMap<Key, Series>,
}

impl Book {
    /// Takes in one event.
    pub(super) fn note(
        &mut self,
        regarding: &ObjectReference,
        event: &Event,
        now: Instant,
    ) -> Step {
        self.series
            .retain(|_, series| series.count > series.written || now - series.last < FORGET);
        let key: Key = (Regarding(regarding.clone()), event.clone());
        let Some(series) = self.series.get_mut(&key) else {
            return self.restart(Box::new(key), now);
        };
        series.last = now;
        series.count = series.count.saturating_add(1);
        if series.count == 2 || now - series.written_at >= INTERVAL {
            series.write(key, now)
        } else {
            Step::Nothing
        }
    }

    /// Begins the series of `key` (anew, with another Event object).
    pub(super) fn restart(&mut self, key: Box<Key>, now: Instant) -> Step {
        if self.series.len() >= MOST
            && let Some(silent) = self
                .series
                .iter()
                .min_by_key(|(_, series)| series.last)
                .map(|(key, _)| key.clone())
        {
            self.series.remove(&silent);
        }
        let object = key.0.0.name.as_deref().unwrap_or("unknown");
        // The same form as client-go's: unique as long as one process says one thing at a time.
        let name = format!("{object}.{:x}", jiff::Timestamp::now().as_nanosecond());
        self.series.insert(
            (*key).clone(),
            Series {
                name: name.clone(),
                count: 1,
                written: 1,
                written_at: now,
                last: now,
            },
        );
        Step::Create { key, name }
    }

    /// Forgets a series whose object could not be made.
    pub(super) fn forget(&mut self, key: &Key) {
        self.series.remove(key);
    }

    /// When the next count is to be written, if nothing else happens.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.series
            .values()
            .filter(|series| series.count > series.written)
            .map(|series| series.written_at + INTERVAL)
            .min()
    }

    /// The counts that are to be written now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Step> {
        self.series
            .iter_mut()
            .filter(|(_, series)| {
                series.count > series.written && now - series.written_at >= INTERVAL
            })
            .map(|(key, series)| series.write(key.clone(), now))
            .collect()
    }
}

impl Series {
    fn write(&mut self, key: Key, now: Instant) -> Step {
        self.written = self.count;
        self.written_at = now;
        Step::Count {
            key: Box::new(key),
            name: self.name.clone(),
            count: self.count,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::super::Severity;
    use super::*;

    fn event(note: &str) -> Event {
        Event {
            severity: Severity::Warning,
            reason: "Reason".to_owned(),
            action: "Action".to_owned(),
            note: note.to_owned(),
        }
    }

    fn node(name: &str) -> ObjectReference {
        ObjectReference {
            name: Some(name.to_owned()),
            ..ObjectReference::default()
        }
    }

    fn counted(step: &Step) -> Option<i32> {
        match step {
            Step::Count { count, .. } => Some(*count),
            _ => None,
        }
    }

    #[test]
    fn a_repeated_event_counts_at_once_and_then_once_a_minute() {
        let mut book = Book::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(matches!(
            book.note(&node("a"), &event("x"), at(0)),
            Step::Create { .. }
        ));
        assert_eq!(book.next_due(), None);
        assert_eq!(counted(&book.note(&node("a"), &event("x"), at(1))), Some(2));
        assert_eq!(book.note(&node("a"), &event("x"), at(2)), Step::Nothing);
        assert_eq!(book.note(&node("a"), &event("x"), at(3)), Step::Nothing);
        assert_eq!(book.next_due(), Some(at(61)));
        assert_eq!(book.due(at(60)), []);
        assert_eq!(
            book.due(at(61)).iter().map(counted).collect::<Vec<_>>(),
            [Some(4)]
        );
        assert_eq!(book.next_due(), None);
        assert_eq!(
            counted(&book.note(&node("a"), &event("x"), at(200))),
            Some(5)
        );
    }

    #[test]
    fn what_differs_is_another_event() {
        let mut book = Book::default();
        let now = Instant::now();
        let mut other = event("x");
        other.severity = Severity::Normal;
        for (object, event) in [
            ("a", event("x")),
            ("a", event("y")),
            ("b", event("x")),
            ("a", other),
        ] {
            assert!(matches!(
                book.note(&node(object), &event, now),
                Step::Create { .. }
            ));
        }
    }

    #[test]
    fn silence_ends_a_series() {
        let mut book = Book::default();
        let start = Instant::now();
        book.note(&node("a"), &event("x"), start);
        assert!(matches!(
            book.note(&node("a"), &event("x"), start + FORGET),
            Step::Create { .. }
        ));
    }

    #[test]
    fn the_book_stays_small() {
        let mut book = Book::default();
        let start = Instant::now();
        for number in 0..1000_u64 {
            book.note(
                &node("a"),
                &event(&number.to_string()),
                start + Duration::from_millis(number),
            );
        }
        assert_eq!(book.series.len(), MOST);
        // The oldest are the ones forgotten.
        let later = start + Duration::from_secs(2);
        assert_eq!(
            counted(&book.note(&node("a"), &event("999"), later)),
            Some(2)
        );
        assert!(matches!(
            book.note(&node("a"), &event("0"), later),
            Step::Create { .. }
        ));
    }
}
