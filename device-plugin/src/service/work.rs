//! Work that may take long or hang, away from the thread that answers the kubelet.

use std::time::Duration;

use tokio::sync::oneshot;

/// Enough for walking folders and for driver calls, which run on stacks of their own.
const STACK: usize = 512 << 10;

/// Runs `work` on a thread of its own, which nobody waits for at shutdown. `None` when it took longer than `limit` (it then
/// goes on, unheard), when there is no thread to be had, or when it panicked.
pub(super) async fn on_thread<T: Send + 'static>(
    name: &str,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK)
        .spawn(move || {
            // Nobody may wait any more.
            let _ = sender.send(work());
        })
        .ok()?;
    tokio::time::timeout(limit, receiver).await.ok()?.ok()
}
