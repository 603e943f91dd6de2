//! Waiting for the node to change: inotify on the state folder, so that a waiting call costs nothing until then.

use std::{
    io,
    os::fd::OwnedFd,
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify,
};

/// How long one wait lasts at most. It bounds what is lost when a change goes unnoticed (a folder on a file system
/// without inotify), and it lets a long wait notice a driver that is gone.
const STEP: Duration = Duration::from_millis(500);

/// Without a watch (the kernel's limit on inotify instances is small) the state is looked at this often.
const STEP_WITHOUT_WATCH: Duration = Duration::from_millis(20);

/// A watch on the state folder.
pub(super) struct Watch(Option<OwnedFd>);

impl Watch {
    /// Begins to watch: changes after this are not missed by `wait`.
    pub(super) fn new(folder: &Path) -> Self {
        let begin = || -> io::Result<OwnedFd> {
            let descriptor =
                inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
            // A new state is renamed over the old one.
            inotify::add_watch(&descriptor, folder, inotify::WatchFlags::MOVED_TO)?;
            Ok(descriptor)
        };
        Watch(begin().ok())
    }

    /// Sleeps until the folder changes, the deadline or the longest step has passed, whichever comes first. It may wake
    /// without a change.
    pub(super) fn wait(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let Some(descriptor) = &self.0 else {
            std::thread::sleep(left.min(STEP_WITHOUT_WATCH));
            return;
        };
        let step = left.min(STEP);
        let timeout = Timespec {
            tv_sec: step.as_secs() as i64,
            tv_nsec: step.subsec_nanos().into(),
        };
        let mut descriptors = [PollFd::new(descriptor, PollFlags::IN)];
        // An interrupted poll is a wake-up without a change.
        if poll(&mut descriptors, Some(&timeout)).is_ok_and(|ready| ready > 0) {
            let mut buffer = [0_u8; 4096];
            // Which files changed does not matter, only that the queue is empty again.
            while rustix::io::read(descriptor, &mut buffer).is_ok_and(|length| length > 0) {}
        }
    }
}
