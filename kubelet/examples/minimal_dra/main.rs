//! The smallest useful DRA driver: run it on a node, as root, with KUBECONFIG set.
//!
//! ```text
//! minimal_dra NODE [KUBELET_FOLDER [CDI_FOLDER]]
//! ```
//!
//! Then a DeviceClass that selects `device.driver == "minimal.lathe.example"`, a ResourceClaim of that class and a pod that
//! names the claim: its container has `LATHE_EXAMPLE_DEVICE=device-0`.

mod driver;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use kubelet::Paths;
use kubelet::dra::{Config, DeviceHealth, Plugin};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use driver::{DEVICE, Minimal};

const DRIVER: &str = "minimal.lathe.example";

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let mut arguments = std::env::args().skip(1);
    let node = arguments
        .next()
        .context("usage: minimal_dra NODE [KUBELET_FOLDER [CDI_FOLDER]]")?;
    let kubelet = arguments
        .next()
        .unwrap_or_else(|| Paths::DEFAULT.to_owned());
    let cdi = arguments
        .next()
        .unwrap_or_else(|| "/var/run/cdi".to_owned());

    let minimal = Minimal {
        driver: DRIVER.to_owned(),
        node,
        cdi: PathBuf::from(cdi),
        client: kube::Client::try_default().await?,
    };
    let config = Config {
        driver: DRIVER.to_owned(),
        paths: Paths::below(Path::new("/"), Path::new(&kubelet)),
        instance: None,
    };
    let health = watch::Sender::new(vec![DeviceHealth {
        pool: minimal.pool(),
        device: DEVICE.to_owned(),
        healthy: Some(true),
        message: String::new(),
    }]);
    let plugin = Plugin::open(&config, minimal.clone(), Some(health.subscribe())).await?;
    let mut status = plugin.status();

    let shutdown = CancellationToken::new();
    let mut serve = tokio::spawn(plugin.run(shutdown.clone()));
    loop {
        tokio::select! {
            ended = &mut serve => return Ok(ended??),
            _ = tokio::signal::ctrl_c() => shutdown.cancel(),
            // A kubelet deletes the node's slices when it starts, before it asks who is there.
            Ok(()) = status.changed() => {
                let now = status.borrow_and_update().clone();
                println!("{now:?}");
                if now == kubelet::registration::Status::Registered {
                    minimal.publish().await?;
                    println!("published");
                }
            }
        }
    }
}
