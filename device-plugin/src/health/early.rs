//! Events of GPUs that are not known yet: the driver reports from the moment it is watched, a GPU is known once it has described
//! itself.

use nvml::{EventKind, GpuRef};

/// More than all GPUs of a node can have to say before they are known. A GPU that never is, since programs do not compute on it,
/// may say something all its life.
const MOST: usize = 256;

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub gpu: GpuRef,
    pub instance: Option<(u32, u32)>,
    pub kind: EventKind,
}

/// Those that wait, in their order. What was said twice waits once.
#[derive(Clone, Debug, Default)]
pub(super) struct Early(Vec<Event>);

impl Early {
    pub(super) fn keep(&mut self, gpu: &GpuRef, instance: Option<(u32, u32)>, kind: &EventKind) {
        let event = Event {
            gpu: gpu.clone(),
            instance,
            kind: kind.clone(),
        };
        self.0
            .retain(|other| *other != event && !ends(&event, other));
        if self.0.len() >= MOST {
            self.0.remove(0);
        }
        self.0.push(event);
    }

    /// Hands each to `waits`, which says whether it has to wait on.
    pub(super) fn retain(&mut self, waits: impl FnMut(&Event) -> bool) {
        self.0.retain(waits);
    }
}

/// Whether a GPU's events can be read is what was said last.
fn ends(event: &Event, other: &Event) -> bool {
    let of_watch = |event: &Event| matches!(event.kind, EventKind::Watching | EventKind::Failed(_));
    let same = match (&event.gpu.uuid, &other.gpu.uuid) {
        (Some(one), Some(other)) => one == other,
        _ => event.gpu.index == other.gpu.index,
    };
    same && of_watch(event) && of_watch(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32) -> GpuRef {
        GpuRef { index, uuid: None }
    }

    fn kinds(early: &Early) -> Vec<(u32, &EventKind)> {
        let events = early.0.iter();
        events.map(|event| (event.gpu.index, &event.kind)).collect()
    }

    #[test]
    fn what_was_said_twice_waits_once_and_the_oldest_makes_room() {
        let mut early = Early::default();
        early.keep(&gpu(0), None, &EventKind::Xid(79));
        early.keep(&gpu(1), None, &EventKind::Xid(79));
        early.keep(&gpu(0), None, &EventKind::Xid(79));
        let xid = EventKind::Xid(79);
        assert_eq!(kinds(&early), [(1, &xid), (0, &xid)]);
        for number in 0..300 {
            early.keep(&gpu(2), None, &EventKind::Xid(number));
        }
        assert_eq!(early.0.len(), MOST);
        assert_eq!(kinds(&early).first(), Some(&(2, &EventKind::Xid(44))));
    }

    #[test]
    fn of_a_watch_the_last_word_waits() {
        let failed = EventKind::Failed(nvml::Error::Closed);
        let mut early = Early::default();
        early.keep(&gpu(0), None, &failed);
        early.keep(&gpu(1), None, &failed);
        early.keep(&gpu(0), None, &EventKind::Watching);
        assert_eq!(kinds(&early), [(1, &failed), (0, &EventKind::Watching)]);
    }
}
