//! The flags that say where a part's configuration comes from, shared by the parts that follow it themselves.

use std::path::{Path, PathBuf};

use anyhow::bail;
use cluster::named_config;
use device_plugin::service::Source;

use crate::config_choice::ConfigChoice;

/// A file, or one of several that the node's label chooses.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ConfigSource {
    /// Configuration file (version: v1)
    #[arg(long, env = "CONFIG_FILE", value_name = "FILE")]
    config_file: Option<PathBuf>,

    /// Folder of named configuration files, of which the node's label chooses one
    #[arg(
        long,
        env = "CONFIG_FILE_SRCDIR",
        value_name = "DIR",
        conflicts_with_all = ["config_file", "config_map"]
    )]
    config_file_srcdir: Option<PathBuf>,

    /// ConfigMap of named configuration files, of which the node's label chooses one
    #[arg(
        long,
        env = "LATHE_CONFIG_MAP",
        value_name = "NAMESPACE/NAME",
        conflicts_with = "config_file"
    )]
    config_map: Option<String>,

    #[command(flatten)]
    choice: ConfigChoice,
}

impl ConfigSource {
    /// The file, when it is a file.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.config_file.as_deref()
    }

    /// A client of the API server. `None` where none is configured and the configuration does not come from there: NVIDIA's
    /// manifests name the node in pods that have no account. The log then says what is `missing`.
    pub(crate) async fn client(
        &self,
        part: &'static str,
        kubeconfig: Option<&Path>,
        missing: &str,
    ) -> anyhow::Result<Option<kube::Client>> {
        let kubeconfig = kubeconfig.filter(|path| !path.as_os_str().is_empty());
        match cluster::client(part, kubeconfig).await {
            Ok(client) => Ok(Some(client)),
            Err(error) if !matches!(self.source()?, Source::Named(..)) => {
                tracing::warn!(%error, "without the cluster's API: {missing}");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Where the configuration comes from.
    pub(crate) fn source(&self) -> anyhow::Result<Source> {
        if let Some(file) = &self.config_file {
            return Ok(Source::File(file.clone()));
        }
        let source = match (&self.config_file_srcdir, &self.config_map) {
            (Some(folder), _) => named_config::Source::Folder(folder.clone()),
            (None, Some(name)) => match name.split_once('/') {
                Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                    named_config::Source::ConfigMap {
                        namespace: namespace.to_owned(),
                        name: name.to_owned(),
                    }
                }
                _ => bail!("--config-map {name:?}: write it like NAMESPACE/NAME"),
            },
            (None, None) => return Ok(Source::None),
        };
        Ok(Source::Named(self.choice.rules(), source))
    }
}
