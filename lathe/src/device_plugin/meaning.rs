//! What the flags of `lathe device-plugin` mean: what the service is told at its start.

use std::path::{Path, PathBuf};

use anyhow::bail;
use configuration::plugin::{Flags, Imex, PluginFile, PluginFlags};
use device_plugin::allocation;
use device_plugin::health::Xids;
use device_plugin::service::{Cluster, Config};

use super::arguments::Args;

/// The kubelet's socket below the node's root, where nothing says otherwise.
const KUBELET_SOCKET: &str = "var/lib/kubelet/device-plugins/kubelet.sock";

/// Where NVIDIA's manifests mount the driver's files.
const DRIVER_ROOT: &str = "driver-root";

/// A variable that has a second name.
fn second(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

impl Args {
    pub(super) fn config(&self) -> anyhow::Result<Config> {
        let (xids, unread) = Xids::new(&self.disable_healthchecks, &self.enable_healthchecks);
        if !unread.is_empty() {
            tracing::warn!(
                words = unread.join(" "),
                "these words of DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS are no XIDs and have no effect"
            );
        }
        let mut config = Config::new(&self.root);
        config.flags = self.flags();
        config.imex = self.imex()?;
        config.source = self.source.source()?;
        config.driver_root = self.mounted_driver_root()?;
        config.health_policy = self.health_policy.clone();
        config.xids = xids;
        config.device_plugins = self.device_plugins()?;
        if let Some(socket) = &self.pod_resources_socket {
            config.kubelet = config.kubelet.with_pod_resources(socket);
        }
        if let Some(folder) = &self.cdi_dir {
            config.cdi_folder.clone_from(folder);
        }
        config.disabled_hooks.clone_from(&self.cdi_disable_hooks);
        config.condition = self.node_condition;
        config.metrics_address = self.metrics_address.clone().filter(|text| !text.is_empty());
        Ok(config)
    }

    /// Where the driver's files are mounted. The session with the driver is bound to it, so of a configuration that may
    /// change, this is not taken.
    fn mounted_driver_root(&self) -> anyhow::Result<PathBuf> {
        if let Some(given) = self.flags().plugin.container_driver_root {
            return Ok(given);
        }
        if let Some(file) = self.source.file() {
            let (file, _) = PluginFile::read(file)?;
            if let Some(given) = file.flags.plugin.container_driver_root {
                return Ok(given);
            }
        }
        let usual = self.root.join(DRIVER_ROOT);
        Ok(if usual.is_dir() {
            usual
        } else {
            self.root.clone()
        })
    }

    /// The folder of the kubelet's socket; plugins serve beside it.
    fn device_plugins(&self) -> anyhow::Result<PathBuf> {
        let socket = match &self.kubelet_socket {
            Some(socket) => socket.clone(),
            None => self.root.join(KUBELET_SOCKET),
        };
        match (socket.parent(), socket.file_name()) {
            // A name alone is in the folder that this runs in.
            (Some(folder), Some(name)) if name == "kubelet.sock" => Ok(Path::new(".").join(folder)),
            _ => bail!(
                "--kubelet-socket {}: the kubelet's socket is called kubelet.sock",
                socket.display()
            ),
        }
    }

    fn flags(&self) -> Flags {
        let strategies = &self.device_list_strategy;
        Flags {
            mig_strategy: self.mig_strategy,
            fail_on_init_error: self.fail_on_init_error,
            mps_root: self.mps_root.clone(),
            driver_root: self.driver_root.clone(),
            dev_root: self.dev_root.clone(),
            gdrcopy: self.gdrcopy_enabled,
            gds: self.gds_enabled,
            mofed: self.mofed_enabled,
            discovery_strategy: self.device_discovery_strategy,
            plugin: PluginFlags {
                pass_device_specs: self.pass_device_specs,
                device_list_strategies: (!strategies.is_empty()).then(|| strategies.clone()),
                device_id_strategy: self.device_id_strategy,
                cdi_annotation_prefix: self.cdi_annotation_prefix.clone(),
                cdi_hook_path: self
                    .nvidia_cdi_hook_path
                    .clone()
                    .or_else(|| second("NVIDIA_CTK_PATH")),
                container_driver_root: self
                    .driver_root_ctr_path
                    .clone()
                    .or_else(|| second("CONTAINER_DRIVER_ROOT")),
                allocation_policy: self.shared_devices_allocation_policy,
            },
            ..Flags::default()
        }
    }

    fn imex(&self) -> anyhow::Result<Imex> {
        let channels = Some(&self.imex_channel_ids).filter(|channels| !channels.is_empty());
        let channel0 = channels.map(|channels| allocation::Imex::channel0(channels));
        Ok(Imex {
            channel0: channel0.transpose()?,
            required: self.imex_required,
        })
    }

    /// The API server, where there is one to use.
    pub(super) async fn cluster(&self) -> anyhow::Result<Option<Cluster>> {
        let Some(node) = self.node_name.clone().filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let without = "no Events, no condition";
        let kubeconfig = self.kubeconfig.as_deref();
        let client = self.source.client("device-plugin", kubeconfig, without);
        let Some(client) = client.await? else {
            return Ok(None);
        };
        let instance = self.pod_name.clone().filter(|name| !name.is_empty());
        Ok(Some(Cluster {
            client,
            instance: instance.unwrap_or_else(|| node.clone()),
            node,
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use cluster::named_config;
    use configuration::plugin::{
        AllocationPolicy, DeviceIdStrategy, DeviceListStrategy, DiscoveryStrategy,
    };
    use device_plugin::service::Source;
    use gpu::labels::MigStrategy;
    use rstest::rstest;

    use super::*;
    use crate::parsed::parsed;

    fn parse(args: &[&str]) -> Args {
        parsed(args)
    }

    #[test]
    fn nothing_said_is_nothing_set() {
        let config = parse(&[]).config().unwrap();
        assert_eq!(config.flags, Flags::default());
        assert_eq!(config.imex, Imex::default());
        assert!(matches!(config.source, Source::None));
        assert_eq!(config.driver_root, Path::new("/"));
        assert_eq!(
            config.device_plugins,
            Path::new("/var/lib/kubelet/device-plugins")
        );
        assert_eq!(config.cdi_folder, Path::new("/var/run/cdi"));
    }

    /// Facts §2.1: every flag of NVIDIA's plugin, by its names.
    #[test]
    fn upstreams_command_line_is_taken_as_it_is() {
        let config = parse(&[
            "--mig-strategy=mixed",
            "--fail-on-init-error=false",
            "--nvidia-driver-root=/run/nvidia/driver",
            "--nvidia-dev-root=/",
            "--pass-device-specs",
            "--device-list-strategy=cdi-annotations,cdi-cri",
            "--device-list-strategy=envvar",
            "--device-id-strategy=index",
            "--gdrcopy-enabled=true",
            "--gds-enabled",
            "--mofed-enabled=false",
            "--cdi-annotation-prefix=cdi.k8s.io/",
            "--nvidia-ctk-path=/ctk",
            "--container-driver-root=/driver",
            "--mps-root=/run/nvidia/mps",
            "--shared-devices-allocation-policy=packed",
            "--device-discovery-strategy=auto",
            "--imex-channel-ids=0",
            "--imex-required",
            "--kubelet-socket=/k/kubelet.sock",
            "--cdi-feature-flags=a,b",
            "--cdi-disable-hooks=all",
        ])
        .config()
        .unwrap();
        let flags = config.flags;
        assert_eq!(flags.mig_strategy, Some(MigStrategy::Mixed));
        assert_eq!(flags.fail_on_init_error, Some(false));
        assert_eq!(flags.driver_root, Some("/run/nvidia/driver".into()));
        assert_eq!(flags.dev_root, Some("/".into()));
        assert_eq!(
            (flags.gdrcopy, flags.gds, flags.mofed),
            (Some(true), Some(true), Some(false))
        );
        assert_eq!(flags.mps_root, Some("/run/nvidia/mps".into()));
        assert_eq!(flags.discovery_strategy, Some(DiscoveryStrategy::Auto));
        let plugin = flags.plugin;
        assert_eq!(
            plugin,
            PluginFlags {
                pass_device_specs: Some(true),
                device_list_strategies: Some(vec![
                    DeviceListStrategy::CdiAnnotations,
                    DeviceListStrategy::CdiCri,
                    DeviceListStrategy::Envvar
                ]),
                device_id_strategy: Some(DeviceIdStrategy::Index),
                cdi_annotation_prefix: Some("cdi.k8s.io/".to_owned()),
                cdi_hook_path: Some("/ctk".into()),
                container_driver_root: Some("/driver".into()),
                allocation_policy: Some(AllocationPolicy::Packed),
            }
        );
        assert_eq!(config.driver_root, Path::new("/driver"));
        assert_eq!(
            (config.imex.channel0, config.imex.required),
            (Some(true), Some(true))
        );
        assert_eq!(config.device_plugins, Path::new("/k"));
        assert_eq!(config.disabled_hooks, ["all"]);
    }

    #[rstest]
    #[case(&["--imex-channel-ids=1"], "--imex-channel-ids")]
    #[case(&["--config-map=configs"], "NAMESPACE/NAME")]
    #[case(&["--kubelet-socket=/k/other.sock"], "kubelet.sock")]
    fn what_cannot_be_is_refused(#[case] args: &[&str], #[case] about: &str) {
        let error = format!("{:#}", parse(args).config().unwrap_err());
        assert!(error.contains(about), "{error}");
    }

    #[rstest]
    #[case("kubelet.sock", "./")]
    #[case("k/kubelet.sock", "./k")]
    #[case("/k/kubelet.sock", "/k")]
    fn plugins_serve_beside_the_kubelets_socket(#[case] socket: &str, #[case] folder: &str) {
        let config = parse(&["--kubelet-socket", socket]).config().unwrap();
        // As text: `Path` takes "" and "." for much the same, and only one of them is a folder.
        assert_eq!(config.device_plugins.to_str(), Some(folder));
    }

    #[test]
    fn a_label_chooses_from_a_folder() {
        let args = parse(&[
            "--config-file-srcdir=/available-configs",
            "--default-config=a",
            "--fallback-strategies=named,single",
        ]);
        let Source::Named(rules, source) = args.config().unwrap().source else {
            panic!("the label chooses");
        };
        assert_eq!(
            source,
            named_config::Source::Folder("/available-configs".into())
        );
        assert_eq!(rules.label, named_config::DEFAULT_LABEL);
        assert_eq!(rules.default.as_deref(), Some("a"));
        assert_eq!(rules.fallbacks.len(), 2);
    }
}
