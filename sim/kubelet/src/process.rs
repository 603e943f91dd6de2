//! Programs that can be killed, and waits that end.

use std::path::Path;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

/// Waits with the bound that every wait of a test has.
///
/// # Panics
/// When it is over.
pub async fn bounded<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future)
        .await
        .expect("in time")
}

/// A connection to `socket`.
///
/// # Panics
/// Nobody listens there.
pub async fn connect(socket: &Path) -> Channel {
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
    bounded(endpoint.connect()).await.unwrap()
}

/// Stands in for the kubelet's process: killing it closes whatever it had open, and removes no file.
#[derive(Debug)]
pub struct Process(Option<Runtime>);

impl Process {
    /// Starts `program`.
    pub fn start(program: impl Future<Output = ()> + Send + 'static) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.spawn(program);
        Self(Some(runtime))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The connections to `listener`, for a gRPC server.
pub(crate) fn connections(
    listener: std::os::unix::net::UnixListener,
) -> impl futures::Stream<Item = std::io::Result<tokio::net::UnixStream>> {
    listener.set_nonblocking(true).unwrap();
    let listener = UnixListener::from_std(listener).unwrap();
    futures::stream::unfold(listener, |listener| async {
        let stream = listener.accept().await.map(|(stream, _)| stream);
        Some((stream, listener))
    })
}
