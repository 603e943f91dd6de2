//! The client: where the cluster is, who asks, and how long anything may take.

use std::path::Path;
use std::time::Duration;

use hyper::header::{HeaderValue, USER_AGENT};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::Error;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest silence on a connection. A watch is ended by the server after at most 290 s (what we ask for) and by the
/// watch loop 5 s later, so only a dead connection is ever silent for longer.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// A client for `part` (`mig-manager`, `dcgm-exporter`, …), which the API server's audit log then shows as
/// `lathe-<part>/<version>`.
///
/// Looked at in this order, as NVIDIA's own parts do: `kubeconfig`, the file(s) in `KUBECONFIG`, the pod's service account,
/// and, so that a developer's shell works, `~/.kube/config`.
///
/// # Errors
/// [`Error::Kubeconfig`], [`Error::NoCluster`] or [`Error::Client`]. No request is made, so a cluster that is down is not
/// an error here.
pub async fn client(part: &str, kubeconfig: Option<&Path>) -> Result<Client, Error> {
    let mut config = config(kubeconfig).await?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.write_timeout = Some(WRITE_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    // kube's own retries would multiply with those of `request`, which also knows the total time allowed.
    config.default_retry = false;
    if let Ok(agent) = HeaderValue::from_str(&format!("lathe-{part}/{}", env!("CARGO_PKG_VERSION")))
    {
        config.headers.push((USER_AGENT, agent));
    }
    let cluster = config.cluster_url.to_string();
    Client::try_from(config).map_err(|source| Error::Client {
        cluster,
        source: Box::new(source),
    })
}

async fn config(kubeconfig: Option<&Path>) -> Result<Config, Error> {
    let unusable = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Kubeconfig {
            path,
            source: Box::new(source),
        }
    };
    if let Some(path) = kubeconfig {
        let file = Kubeconfig::read_from(path).map_err(unusable(path))?;
        return Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .map_err(unusable(path));
    }
    if let Some(paths) = std::env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty()) {
        return Config::from_kubeconfig(&KubeConfigOptions::default())
            .await
            .map_err(unusable(Path::new(&paths)));
    }
    match Config::incluster() {
        Ok(config) => Ok(config),
        Err(_) => Config::infer().await.map_err(|source| Error::NoCluster {
            source: Box::new(source),
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[tokio::test]
    async fn a_missing_kubeconfig_is_named() {
        let Err(error) = client("test", Some(Path::new("/does/not/exist"))).await else {
            panic!("there is no such file")
        };
        assert!(matches!(error, Error::Kubeconfig { .. }));
        assert!(
            error
                .to_string()
                .starts_with("kubeconfig /does/not/exist: "),
            "{error}"
        );
    }
}
