//! The crate against the kubelet's side of each API, over real unix sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod authority;
mod device_manager;
mod device_plugin;
mod dra;
mod pod_resources;
mod registration;

use std::path::Path;
use std::time::Duration;

use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

/// Waits with the bound that every wait of these tests has.
async fn bounded<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future)
        .await
        .expect("in time")
}

/// A connection to `socket`.
async fn connect(socket: &Path) -> Channel {
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
    bounded(endpoint.connect()).await.unwrap()
}

/// Stands in for the kubelet's process: killing it closes whatever it had open, and removes no file.
struct Process(Option<Runtime>);

impl Process {
    fn start(program: impl Future<Output = ()> + Send + 'static) -> Self {
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
