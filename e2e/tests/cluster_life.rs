//! Our own cluster's life: one that was shot comes up again, and what goes down leaves nothing behind.

use std::path::Path;

use crate::support::cluster::{cluster, skipped, variable};
use crate::support::tools::run;

const NAME: &str = "shot";

/// Network devices of the host, whatever network the tests run in.
async fn devices() -> String {
    let host = variable("LATHE_E2E_HOST_NETWORK").expect("`cargo xtask cluster exec` sets it");
    let network = format!("--net={host}");
    let arguments = [network.as_str(), "--", "ip", "-brief", "link"];
    run("nsenter", &arguments, "").await
}

/// Where a file of /proc speaks of the cluster.
fn mentions(file: &Path, what: &str) -> bool {
    std::fs::read(file).is_ok_and(|text| String::from_utf8_lossy(&text).contains(what))
}

#[tokio::test]
async fn a_cluster_that_was_shot_comes_up_and_leaves_nothing() {
    if cluster().await.is_none() {
        return;
    }
    let Some(xtask) = variable("LATHE_E2E_XTASK") else {
        skipped("LATHE_E2E_XTASK names no program that makes clusters");
        return;
    };
    let cluster = async |arguments: &[&str]| {
        run(
            &xtask,
            &[&["cluster", "--name", NAME], arguments].concat(),
            "",
        )
        .await
    };
    let before = devices().await;
    cluster(&["up"]).await;
    let status = cluster(&["status"]).await;
    for component in ["etcd", "kubelet"] {
        let line = status
            .lines()
            .find(|line| line.split_whitespace().next() == Some(component))
            .unwrap_or_else(|| panic!("{component} is not in:\n{status}"));
        let pid = line.split_whitespace().nth(1).unwrap();
        run("kill", &["-9", pid], "").await;
    }
    cluster(&["up"]).await;
    cluster(&["exec", "--", "kubectl", "get", "nodes"]).await;
    let status = cluster(&["status"]).await;
    let said = |what: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(what))
            .unwrap_or_else(|| panic!("{what} is not in:\n{status}"))
    };
    let state = Path::new(said("export KUBECONFIG=")).parent().unwrap();
    let group = said("network namespace and control group: ");
    let network = Path::new("/run/netns").join(group);
    assert!(network.exists(), "{}", network.display());
    cluster(&["down"]).await;

    let state = state.display().to_string();
    assert!(!Path::new(&state).exists(), "the state folder");
    assert!(
        !mentions(Path::new("/proc/self/mountinfo"), &state),
        "mounts"
    );
    assert!(!network.exists(), "network");
    assert_eq!(devices().await, before, "network devices");
    let processes: Vec<String> = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| mentions(&entry.path().join("cmdline"), &state))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(processes, Vec::<String>::new(), "processes");
    let groups: Vec<String> = std::fs::read_dir("/sys/fs/cgroup")
        .unwrap()
        .flatten()
        .map(|entry| entry.path().join(group))
        .chain([Path::new("/sys/fs/cgroup").join(group)])
        .filter(|path| path.exists())
        .map(|path| path.display().to_string())
        .collect();
    assert_eq!(groups, Vec::<String>::new(), "control groups");
}
