//! Reading the configuration again, as NVIDIA's config-manager asks for it: by a hangup signal.

use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// Told at every SIGHUP from now on. To be called before all else: by default the signal ends the program.
pub(crate) fn on_hangup() -> std::io::Result<Arc<Notify>> {
    let mut hangup = signal(SignalKind::hangup())?;
    let reload = Arc::new(Notify::new());
    let asked = reload.clone();
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            asked.notify_one();
        }
    });
    Ok(reload)
}
