//! The MIG manager in a process of its own, with a driver for which every process that has its library open holds the
//! GPUs: what the two do not agree on in time fails.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use mig_manager::controller::{self, Config};
use rstest::rstest;
use serde_json::json;
use sim_nvml::model::Personality;
use sim_nvml::presets::NodeSpec;
use tokio_util::sync::CancellationToken;

use crate::rig::{NODE, Rig, Setup};

const ROOT: &str = "LATHE_TEST_MIG_MANAGER_ROOT";
const KUBECONFIG: &str = "LATHE_TEST_MIG_MANAGER_KUBECONFIG";

/// Not a test of its own: the MIG manager, until it is killed.
#[tokio::test]
async fn mig_manager() {
    let Ok(root) = std::env::var(ROOT) else {
        return;
    };
    let kubeconfig = std::env::var(KUBECONFIG).unwrap();
    let client = cluster::client("test", Some(kubeconfig.as_ref())).await;
    let mut config = Config::new(NODE, root.as_ref());
    config.engine.state_dir = std::path::Path::new(&root).join("mig-state");
    let session = nvml::Session::new(&nvml::Options::at(&root)).unwrap();
    let shutdown = CancellationToken::new();
    controller::run(config, Arc::new(session), client.unwrap(), shutdown).await;
}

struct MigManager(Child);

impl MigManager {
    fn start(rig: &Rig) -> Self {
        let kubeconfig = rig.node.root().join("kubeconfig");
        std::fs::write(&kubeconfig, rig.server.as_ref().unwrap().kubeconfig()).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "two_processes::mig_manager"])
            .env(ROOT, rig.node.root())
            .env(KUBECONFIG, kubeconfig)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for MigManager {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[rstest]
#[case::ampere("a100-sxm4-80gb")]
#[case::hopper("h100-sxm5-80gb")]
#[tokio::test(flavor = "multi_thread")]
async fn a_mode_change_waits_for_the_plugin_to_let_go(#[case] board: &str) {
    let spec = NodeSpec {
        personality: Some(Personality {
            clients_hold: true,
            ..Personality::default()
        }),
        ..NodeSpec::uniform(board, 2).unwrap()
    };
    let setup = Setup::spec(spec).file("flags: {migStrategy: mixed}");
    let rig = setup.node(json!({})).start().await;
    rig.until("gpu 2").await;
    let _manager = MigManager::start(&rig);
    rig.patch_labels(json!({ "nvidia.com/mig.config": "all-balanced" }))
        .await;
    rig.until("gpu 0, mig-1g.10gb 4, mig-2g.20gb 2, mig-3g.40gb 2")
        .await;
    rig.patch_labels(json!({ "nvidia.com/mig.config": "all-disabled" }))
        .await;
    rig.until("gpu 2, mig-1g.10gb 0, mig-2g.20gb 0, mig-3g.40gb 0")
        .await;
    // At once, by waiting: a second try would have come after the label said `failed`.
    let failed = rig
        .events()
        .into_iter()
        .filter(|event| event.starts_with("Warning MigConfig"));
    assert_eq!(failed.collect::<Vec<_>>(), [""; 0]);
}
