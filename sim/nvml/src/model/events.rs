//! The node's events: one ring that every event set of every process reads at its own pace.
//!
//! A set remembers the sequence number of the last event it took, so that one event reaches every set.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Event bits of `nvmlEventType`.
pub mod kind {
    /// Corrected ECC error.
    pub const SINGLE_BIT_ECC: u64 = 0x1;
    /// Uncorrected ECC error.
    pub const DOUBLE_BIT_ECC: u64 = 0x2;
    /// Performance state changed.
    pub const PSTATE: u64 = 0x4;
    /// XID; the event data is its number.
    pub const XID: u64 = 0x8;
    /// Clocks changed.
    pub const CLOCK: u64 = 0x10;
    /// MIG mode or instances changed.
    pub const MIG_CONFIG_CHANGE: u64 = 0x100;
    /// The GPU is no longer available.
    pub const GPU_UNAVAILABLE: u64 = 0x4000;
    /// The recommended recovery action changed.
    pub const RECOVERY_ACTION: u64 = 0x8000;
}

/// Bits of `nvmlSystemEventType`.
pub mod system_kind {
    /// A driver was bound to a GPU.
    pub const BIND: u64 = 0x2;
    /// The driver let go of a GPU.
    pub const UNBIND: u64 = 0x1;
}

/// Events the ring keeps; a set that falls further behind misses the oldest, as the driver's bounded queue does.
const CAPACITY: usize = 256;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Number of the event, from 1, without gaps.
    pub sequence: u64,
    /// Whether `kind` is one of `system_kind` instead of `kind`.
    #[serde(default)]
    pub system: bool,
    /// Position of the GPU in `Node::gpus`.
    pub gpu: usize,
    /// Event bit.
    pub kind: u64,
    /// Event data; the number for an XID.
    pub data: u64,
    /// GPU instance; absent when the whole GPU is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<u32>,
    /// Compute instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<u32>,
    /// When, microseconds of the node's clock.
    pub time_us: u64,
}

impl Event {
    /// An event of a whole GPU 0; set the other fields with struct update.
    pub(crate) fn new(kind: u64, data: u64, time_us: u64) -> Self {
        Event {
            sequence: 0,
            system: false,
            gpu: 0,
            kind,
            data,
            instance: None,
            compute: None,
            time_us,
        }
    }
}

/// The ring.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// Sequence number of the newest event; 0 when there was none.
    pub last: u64,
    ring: VecDeque<Event>,
}

impl Events {
    /// Appends an event and numbers it.
    pub fn push(&mut self, event: Event) {
        self.last += 1;
        self.ring.push_back(Event {
            sequence: self.last,
            ..event
        });
        while self.ring.len() > CAPACITY {
            self.ring.pop_front();
        }
    }

    /// Events newer than `sequence`, oldest first.
    pub fn after(&self, sequence: u64) -> impl Iterator<Item = &Event> {
        let oldest = self.last - self.ring.len() as u64;
        let skip = usize::try_from(sequence.saturating_sub(oldest)).unwrap_or(usize::MAX);
        self.ring.iter().skip(skip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reader_sees_every_event_once() {
        let mut events = Events::default();
        for xid in [31, 79] {
            events.push(Event::new(kind::XID, xid, 0));
        }
        let seen = |cursor| {
            events
                .after(cursor)
                .map(|event| event.data)
                .collect::<Vec<_>>()
        };
        assert_eq!(seen(0), [31, 79]);
        assert_eq!(seen(1), [79]);
        assert_eq!(seen(2), [] as [u64; 0]);
        assert_eq!(seen(9), [] as [u64; 0]);
    }

    #[test]
    fn a_late_reader_misses_the_oldest() {
        let mut events = Events::default();
        for data in 0..300 {
            events.push(Event::new(kind::XID, data, 0));
        }
        let seen: Vec<u64> = events.after(10).map(|event| event.data).collect();
        assert_eq!(seen.first(), Some(&44));
        assert_eq!(seen.len(), 256);
        assert_eq!(
            events
                .after(299)
                .map(|event| event.sequence)
                .collect::<Vec<_>>(),
            [300]
        );
    }
}
