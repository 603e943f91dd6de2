//! `lathe device-plugin`: offers the node's GPUs to the kubelet.
//!
//! Flags and environment variables are those of NVIDIA's `nvidia-device-plugin`, so that its manifest keeps working. A flag
//! wins over its environment variable, that over the configuration file, and that over the default.

mod arguments;
mod meaning;

use std::sync::Arc;

use device_plugin::service::Service;
use tokio_util::sync::CancellationToken;

pub(crate) use arguments::Args;

use crate::reload;

/// Serves until `shutdown` is cancelled.
///
/// # Errors
/// Flags or a configuration that cannot be used. An absent driver, kubelet or API server is waited for.
pub(crate) async fn run(args: Args, shutdown: CancellationToken) -> anyhow::Result<()> {
    if !args.without_effect.cdi_feature_flags.is_empty() {
        tracing::warn!("--cdi-feature-flags has no effect here");
    }
    let reload = reload::on_hangup()?;
    let config = args.config()?;
    let cluster = args.cluster().await?;
    let session = nvml::Session::new(&nvml::Options::at(&config.driver_root))?;
    let service = Service::open(config, Arc::new(session), cluster).await?;
    service.run(&reload, shutdown).await?;
    Ok(())
}
