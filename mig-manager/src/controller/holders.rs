//! Waits until processes are gone, without asking again and again.

use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Returns once all of `pids` that can be watched are gone. Never returns when none can: they are gone already, or the
/// numbers are of another PID namespace because the pod does not share the host's.
pub(super) async fn gone(pids: &[u32]) {
    let watched: Vec<AsyncFd<OwnedFd>> = pids.iter().filter_map(|pid| watch(*pid)).collect();
    if watched.is_empty() {
        return std::future::pending().await;
    }
    for process in &watched {
        // The descriptor becomes readable when the process ends. Failing to wait for it counts as its end: the worst
        // that can follow is a check too early.
        let _ = process.readable().await;
    }
}

#[expect(
    deprecated,
    reason = "its unsafe successor guards against types that lose their descriptor early; OwnedFd does not"
)]
fn watch(pid: u32) -> Option<AsyncFd<OwnedFd>> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let descriptor = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    AsyncFd::with_interest(descriptor, Interest::READABLE).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::process::{Child, Command};
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn the_last_of_several_counts() {
        let (first, second) = (sleeper(), sleeper());
        let pids = [first.id(), second.id()];
        let mut waiting = std::pin::pin!(gone(&pids));
        assert!(
            timeout(Duration::from_millis(50), &mut waiting)
                .await
                .is_err()
        );
        end(first);
        assert!(
            timeout(Duration::from_millis(50), &mut waiting)
                .await
                .is_err()
        );
        end(second);
        timeout(Duration::from_secs(60), &mut waiting)
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn what_cannot_be_watched_is_not_waited_for() {
        // No process has number 0 or one beyond the kernel's largest, 2^22.
        assert!(
            timeout(Duration::from_millis(50), gone(&[0, 1 << 23, u32::MAX]))
                .await
                .is_err()
        );
        assert!(timeout(Duration::from_millis(50), gone(&[])).await.is_err());
    }
}
