//! The real kubectl, where there is one. CI runs these with the cluster's own, so that they are not skipped there.

use std::io::Write as _;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::json;
use tokio::process::Command;

use crate::http::{Cluster, LIMIT, PODS, cluster, config_map, pod};

/// Whether this machine has kubectl; says so when it has not, past the test harness, which keeps what passing tests print.
async fn installed() -> bool {
    let found = Command::new("kubectl")
        .args(["version", "--client"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .await
        .is_ok_and(|status| status.success());
    if !found {
        assert!(
            std::env::var_os("LATHE_E2E").is_none(),
            "kubectl is not on the PATH: run inside `cargo xtask cluster exec`"
        );
        let _ = std::io::stderr().write_all(b"skipped: this machine has no kubectl\n");
    }
    found
}

struct Kubectl<'a> {
    home: &'a Path,
}

impl Kubectl<'_> {
    async fn run(&self, arguments: &str) -> Output {
        let run = Command::new("kubectl")
            .args(arguments.split_whitespace())
            .env("KUBECONFIG", self.home.join("config"))
            // Keeps its discovery cache out of the user's home.
            .env("HOME", self.home)
            .current_dir(self.home)
            .kill_on_drop(true)
            .output();
        tokio::time::timeout(LIMIT, run)
            .await
            .expect("kubectl in time")
            .unwrap()
    }

    /// Standard output of a command that must succeed.
    async fn ok(&self, arguments: &str) -> String {
        let output = self.run(arguments).await;
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {arguments}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Standard error of a command that must fail.
    async fn fails(&self, arguments: &str) -> String {
        let output = self.run(arguments).await;
        assert!(!output.status.success(), "kubectl {arguments} succeeded");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// Words of a line, so that column widths do not matter.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

async fn seeded(home: &Path) -> Cluster {
    let cluster = cluster().await;
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-0"},
        "status": {
            "capacity": {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.34.0"},
        },
    });
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"kind": "Node", "name": "gpu-0", "uid": "gpu-0"},
        "reason": "MigApplied", "message": "done", "type": "Normal",
    });
    cluster
        .server
        .seed([node, event, pod("web", Some("gpu-0"))])
        .unwrap();
    std::fs::write(home.join("config"), cluster.server.kubeconfig()).unwrap();
    std::fs::write(home.join("map.json"), config_map("map").to_string()).unwrap();
    cluster
}

#[tokio::test]
async fn kubectl_reads_and_writes() {
    if !installed().await {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let cluster = seeded(home.path()).await;
    let kubectl = Kubectl { home: home.path() };

    let nodes = kubectl.ok("get nodes").await;
    let lines: Vec<&str> = nodes.lines().collect();
    assert_eq!(
        words(lines[0]),
        ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    );
    assert_eq!(words(lines[1])[..3], ["gpu-0", "Ready", "<none>"]);
    assert_eq!(
        kubectl
            .ok("label node gpu-0 nvidia.com/mig.config=all-balanced")
            .await,
        "node/gpu-0 labeled\n"
    );
    assert_eq!(
        kubectl.ok("annotate node gpu-0 a=b").await,
        "node/gpu-0 annotated\n"
    );
    assert_eq!(kubectl.ok("cordon gpu-0").await, "node/gpu-0 cordoned\n");
    assert_eq!(
        kubectl.ok("taint node gpu-0 gpu=busy:NoSchedule").await,
        "node/gpu-0 tainted\n"
    );
    let described = kubectl.ok("describe node gpu-0").await;
    for expected in [
        "nvidia.com/mig.config=all-balanced",
        "gpu=busy:NoSchedule",
        "Unschedulable:      true",
        "nvidia.com/gpu:  8",
        "web",
    ] {
        assert!(described.contains(expected), "{expected} in {described}");
    }
    assert_eq!(
        kubectl.ok("uncordon gpu-0").await,
        "node/gpu-0 uncordoned\n"
    );
    assert_eq!(
        kubectl.ok("taint node gpu-0 gpu-").await,
        "node/gpu-0 untainted\n"
    );
    let events = kubectl.ok("get events").await;
    assert_eq!(
        words(events.lines().next().unwrap()),
        ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    );
    assert!(events.contains("node/gpu-0"));

    assert_eq!(
        kubectl.ok("create -f map.json").await,
        "configmap/map created\n"
    );
    assert!(
        kubectl
            .fails("create -f map.json")
            .await
            .contains("Error from server (AlreadyExists)")
    );
    assert_eq!(
        kubectl
            .ok("apply --server-side --force-conflicts -f map.json")
            .await,
        "configmap/map serverside-applied\n"
    );
    assert_eq!(
        kubectl.ok("apply -f map.json").await,
        "configmap/map configured\n"
    );
    assert_eq!(
        kubectl.ok("apply -f map.json").await,
        "configmap/map unchanged\n"
    );
    assert_eq!(
        kubectl
            .ok("patch cm map -p {\"data\":{\"key\":\"new\"}}")
            .await,
        "configmap/map patched\n"
    );
    assert_eq!(
        kubectl.ok("get cm map -o jsonpath={.data.key}").await,
        "new"
    );
    assert!(
        kubectl
            .ok("delete cm map")
            .await
            .starts_with("configmap \"map\" deleted")
    );
    assert!(
        kubectl
            .fails("get node nope")
            .await
            .contains("Error from server (NotFound): nodes \"nope\" not found")
    );

    assert_eq!(
        kubectl
            .ok("wait --for=condition=Ready node/gpu-0 --timeout=5s")
            .await,
        "node/gpu-0 condition met\n"
    );
    assert!(
        kubectl
            .ok("drain gpu-0 --force")
            .await
            .contains("node/gpu-0 drained")
    );
    assert_eq!(cluster.get(&format!("{PODS}/web")).await.0, 404);
}

#[tokio::test]
async fn kubectl_watches() {
    if !installed().await {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let cluster = seeded(home.path()).await;
    let kubectl = Kubectl { home: home.path() };
    let watch = kubectl
        .ok("get node gpu-0 -w --request-timeout=3s -o jsonpath={.metadata.labels.step}{\"\\n\"}");
    let change = async {
        // The watch is there once its request was answered.
        while !cluster
            .server
            .requests()
            .iter()
            .any(|request| request.query.contains("watch=true"))
        {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let patch = json!({"metadata": {"labels": {"step": "two"}}});
        cluster
            .patch("/api/v1/nodes/gpu-0", crate::http::MERGE_PATCH, &patch)
            .await;
        // Ends the watch, and kubectl with it.
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        cluster.server.faults().break_watches();
    };
    let (seen, ()) = tokio::join!(watch, change);
    assert!(seen.lines().any(|line| line == "two"), "{seen}");
}

#[tokio::test]
async fn kubectl_creates_what_it_sends_in_protobuf() {
    if !installed().await {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let cluster = seeded(home.path()).await;
    let kubectl = Kubectl { home: home.path() };
    assert_eq!(
        kubectl.ok("create namespace gpu").await,
        "namespace/gpu created\n"
    );
    assert_eq!(
        kubectl
            .ok("create configmap conf -n gpu --from-literal=config.yaml=a")
            .await,
        "configmap/conf created\n"
    );
    assert_eq!(
        kubectl
            .ok("create secret generic keys --from-literal=key=ab")
            .await,
        "secret/keys created\n"
    );
    assert_eq!(
        kubectl.ok("create serviceaccount lathe").await,
        "serviceaccount/lathe created\n"
    );
    assert_eq!(kubectl.ok("auth can-i patch nodes").await, "yes\n");
    assert!(kubectl.ok("auth whoami").await.contains("kubernetes-admin"));
    let secret = cluster
        .server
        .object("v1", "Secret", "default", "keys")
        .unwrap();
    assert_eq!(secret["data"], json!({"key": "YWI="}));
    let map = cluster
        .server
        .object("v1", "ConfigMap", "gpu", "conf")
        .unwrap();
    assert_eq!(map["data"], json!({"config.yaml": "a"}));
    assert!(
        kubectl
            .ok("delete namespace gpu")
            .await
            .starts_with("namespace \"gpu\" deleted")
    );
}
