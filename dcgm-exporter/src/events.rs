//! The event thread: notes XID errors and changed instances, and wakes the collector.

use std::sync::mpsc::Sender;

use nvml::{Driver, Error, Event, EventKind, EventMask, EventStop};

use crate::collector::Wake;
use crate::state::State;

/// It only notes and passes on.
const STACK: usize = 128 * 1024;

const MASK: EventMask =
    EventMask(EventMask::XID.0 | EventMask::MIG_CONFIG.0 | EventMask::UNAVAILABLE.0);

/// Starts the thread. It ends when the stream is stopped or the driver dropped.
///
/// # Errors
/// The driver is gone, or the system gives no thread.
pub(crate) fn start(driver: &Driver, state: State, wake: Sender<Wake>) -> Result<EventStop, Error> {
    let stream = driver.watch(MASK)?;
    let stop = stream.stopper();
    std::thread::Builder::new()
        .name("exporter-events".to_owned())
        .stack_size(STACK)
        .spawn(move || {
            for event in stream {
                if note(&event, &state) && wake.send(Wake::Event).is_err() {
                    return;
                }
            }
        })
        .map_err(|error| Error::System {
            what: "cannot start a thread for driver events",
            reason: error.to_string(),
        })?;
    Ok(stop)
}

/// Notes an event; says whether the page is to be made anew.
fn note(event: &Event, state: &State) -> bool {
    let uuid = event.gpu.uuid.as_deref();
    match (&event.kind, uuid) {
        (EventKind::Xid(number), Some(uuid)) => {
            let number = u32::try_from(*number).unwrap_or(u32::MAX);
            tracing::warn!(
                gpu = event.gpu.index,
                uuid,
                instance = event.gpu_instance,
                xid = number,
                "XID error"
            );
            state.set_xid(uuid, event.gpu_instance, number);
            true
        }
        (EventKind::MigConfigChange, Some(uuid)) => {
            state.forget_instances(uuid);
            true
        }
        (
            EventKind::Watching
            | EventKind::Lost(_)
            | EventKind::Unavailable
            | EventKind::Dropped(_),
            _,
        ) => true,
        _ => false,
    }
}
