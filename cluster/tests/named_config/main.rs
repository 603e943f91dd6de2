//! Per-node configuration against the simulated API server and folders that change as the kubelet changes them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;
mod random;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster::named_config::{Choice, Fallback, Reason, Rules, Selection, Source, Trouble, follow};
use cluster::node::Node;
use common::{BOUND, NAME, asked, client, node, requests, server, until, watched};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use rstest::rstest;
use serde_json::{Value, json};
use sim_kubernetes::{Action, Fault, Server};
use tempfile::TempDir;
use tokio::sync::watch::Receiver;
use tokio::time::timeout;

const LABEL: &str = "nvidia.com/device-plugin.config";

/// Where ConfigMaps lie in the API.
const CONFIG_MAPS: &str = "/configmaps";

/// A ConfigMap volume as the kubelet keeps it: folders of each version, `..data` that points at one of them, and a link per
/// key.
struct Mount {
    folder: TempDir,
    version: u32,
}

impl Mount {
    fn new(configs: &[(&str, &str)]) -> Self {
        let mut mount = Self {
            folder: tempfile::tempdir().unwrap(),
            version: 0,
        };
        mount.update(configs);
        mount
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn source(&self) -> Source {
        Source::Folder(self.path().to_owned())
    }

    /// In the kubelet's order: the new version, the swap, links of new keys, then links of old keys away.
    fn update(&mut self, configs: &[(&str, &str)]) {
        self.version += 1;
        let version = format!("..version_{}", self.version);
        fs::create_dir(self.path().join(&version)).unwrap();
        for (key, text) in configs {
            fs::write(self.path().join(&version).join(key), text).unwrap();
        }
        symlink(&version, self.path().join("..data_tmp")).unwrap();
        fs::rename(self.path().join("..data_tmp"), self.path().join("..data")).unwrap();
        for (key, _) in configs {
            let link = self.path().join(key);
            if !link.is_symlink() {
                symlink(PathBuf::from("..data").join(key), link).unwrap();
            }
        }
        for entry in fs::read_dir(self.path()).unwrap() {
            let path = entry.unwrap().path();
            let key = path.file_name().unwrap().to_str().unwrap();
            if !key.starts_with("..") && configs.iter().all(|(kept, _)| *kept != key) {
                fs::remove_file(path).unwrap();
            }
        }
    }
}

fn rules(default: Option<&str>) -> Rules {
    Rules {
        default: default.map(str::to_owned),
        ..Rules::default()
    }
}

fn config_map() -> Source {
    Source::ConfigMap {
        namespace: "default".to_owned(),
        name: "configs".to_owned(),
    }
}

fn config_map_with(data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "configs", "namespace": "default" }, "data": data })
}

async fn start(server: &Server, rules: Rules, source: &Source) -> Receiver<Selection> {
    follow(&Node::watch(client(server).await, NAME), rules, source)
}

async fn label(server: &Server, value: Option<&str>) {
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(client(server).await);
    let patch = Patch::Merge(json!({ "metadata": { "labels": { LABEL: value } } }));
    nodes
        .patch(NAME, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

async fn in_force(seen: &mut Receiver<Selection>, name: &str, content: &str) -> Choice {
    let selection = until(seen, |selection| {
        selection.trouble.is_none()
            && selection.in_force.as_ref().is_some_and(|choice| {
                choice.name.as_deref() == Some(name) && &*choice.content == content
            })
    })
    .await;
    selection.in_force.unwrap()
}

async fn trouble(seen: &mut Receiver<Selection>, wanted: impl Fn(&Trouble) -> bool) -> Selection {
    until(seen, |selection| {
        selection.trouble.as_ref().is_some_and(&wanted)
    })
    .await
}

/// Writes down the name of each configuration that comes into force.
async fn record(mut seen: Receiver<Selection>, names: Arc<Mutex<Vec<String>>>) {
    while seen.changed().await.is_ok() {
        let selection = seen.borrow_and_update().clone();
        let name = selection.in_force.and_then(|choice| choice.name);
        names.lock().unwrap().push(name.unwrap());
    }
}

/// Longer than things take to settle.
const SETTLED: Duration = Duration::from_millis(800);

/// That nothing changes for some time.
async fn nothing_follows(seen: &mut Receiver<Selection>) {
    seen.mark_unchanged();
    let followed = timeout(SETTLED, seen.changed()).await;
    assert!(followed.is_err(), "{:?}", *seen.borrow());
}

#[tokio::test]
async fn the_label_of_the_node_chooses() {
    let server = server().await;
    server.seed([node(json!({ LABEL: "b" }))]).unwrap();
    let mount = Mount::new(&[("a", "1"), ("b", "2")]);
    // A node that the part watches for itself, too.
    let (node, _, _) = watched(&server).await;
    let mut seen = follow(&node, rules(Some("a")), &mount.source());
    drop(node);
    assert_eq!(in_force(&mut seen, "b", "2").await.reason, Reason::Label);
    label(&server, None).await;
    assert_eq!(in_force(&mut seen, "a", "1").await.reason, Reason::Default);
    label(&server, Some("b")).await;
    in_force(&mut seen, "b", "2").await;
}

#[tokio::test]
async fn a_slow_api_server_is_no_reason_for_the_default() {
    let server = server().await;
    server.seed([node(json!({ LABEL: "b" }))]).unwrap();
    let faults = server.faults();
    faults.add(
        Fault::new(Action::Delay(Duration::from_secs(1)))
            .method("GET")
            .times(1),
    );
    faults.add(Fault::new(Action::Answer(503, None)).method("GET").times(1));
    let mount = Mount::new(&[("a", "1"), ("b", "2")]);
    let mut seen = start(&server, rules(Some("a")), &mount.source()).await;
    let first = seen.borrow_and_update().clone();
    assert_eq!(first.in_force, None);
    assert!(first.trouble.as_ref().unwrap().is_waiting(), "{first:?}");
    timeout(BOUND, seen.changed()).await.unwrap().unwrap();
    let next = seen.borrow_and_update().clone();
    assert_eq!(next.in_force.unwrap().name.as_deref(), Some("b"));
}

#[tokio::test]
async fn a_node_that_does_not_exist_yet_has_no_configuration() {
    let server = Server::start(sim_kubernetes::Options::default())
        .await
        .unwrap();
    let mount = Mount::new(&[("a", "1")]);
    let mut seen = start(&server, rules(Some("a")), &mount.source()).await;
    let selection = trouble(&mut seen, |trouble| {
        matches!(trouble, Trouble::NodeAbsent { .. })
    })
    .await;
    assert_eq!(selection.in_force, None);
    server.seed([node(json!({}))]).unwrap();
    in_force(&mut seen, "a", "1").await;
}

#[tokio::test]
async fn a_name_that_does_not_exist_changes_nothing_until_it_does() {
    let server = server().await;
    let mut mount = Mount::new(&[("a", "1")]);
    let mut seen = start(&server, rules(Some("a")), &mount.source()).await;
    in_force(&mut seen, "a", "1").await;
    label(&server, Some("c")).await;
    let selection = trouble(&mut seen, |_| true).await;
    assert_eq!(
        selection.in_force.unwrap().name.as_deref(),
        Some("a"),
        "what was in force stays"
    );
    assert_eq!(
        selection.trouble.unwrap().to_string(),
        format!(
            "the node's label asks for config \"c\", but folder {} has a",
            mount.path().display()
        )
    );
    mount.update(&[("a", "1"), ("c", "3")]);
    in_force(&mut seen, "c", "3").await;
}

#[tokio::test]
async fn the_last_of_quick_changes_counts_and_no_other() {
    let server = server().await;
    let mount = Mount::new(&[("a", "1"), ("b", "2"), ("c", "3")]);
    let mut seen = start(&server, rules(Some("a")), &mount.source()).await;
    let names = Arc::new(Mutex::new(Vec::new()));
    tokio::spawn(record(seen.clone(), Arc::clone(&names)));
    // A machine that stops for a moment in the middle makes of them changes that are not quick.
    let mut seen_names = Vec::new();
    while seen_names.len() < 10 {
        server.seed([node(json!({}))]).unwrap();
        in_force(&mut seen, "a", "1").await;
        for value in ["b", "c", "b", "c"] {
            server.seed([node(json!({ LABEL: value }))]).unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        in_force(&mut seen, "c", "3").await;
        tokio::time::sleep(SETTLED).await;
        let names = std::mem::take(&mut *names.lock().unwrap());
        if names == ["a", "c"] {
            return;
        }
        seen_names.push(names);
    }
    panic!("others came into force each time: {seen_names:?}");
}

#[tokio::test]
async fn another_content_counts_like_another_name() {
    let server = server().await;
    let mut mount = Mount::new(&[("a", "1"), ("b", "2")]);
    let mut seen = start(&server, rules(Some("a")), &mount.source()).await;
    in_force(&mut seen, "a", "1").await;
    mount.update(&[("a", "new"), ("b", "2")]);
    in_force(&mut seen, "a", "new").await;
    // Neither another file nor another label is this configuration's business.
    mount.update(&[("a", "new"), ("b", "3"), ("d", "4")]);
    server.seed([node(json!({ "key": "new" }))]).unwrap();
    nothing_follows(&mut seen).await;
}

#[tokio::test]
async fn what_cannot_be_read_leaves_in_force_what_was() {
    let server = server().await;
    let mut mount = Mount::new(&[("a", "1")]);
    let mut seen = start(&server, rules(Some("a")), &mount.source()).await;
    in_force(&mut seen, "a", "1").await;
    mount.update(&[("b", "1")]);
    let selection = trouble(&mut seen, |trouble| {
        matches!(trouble, Trouble::NoSuchConfig { .. })
    })
    .await;
    assert!(selection.in_force.is_some());
    mount.update(&[("a", &"x".repeat(cluster::named_config::MAX_BYTES + 1))]);
    let selection = trouble(&mut seen, |trouble| {
        matches!(trouble, Trouble::TooLarge { .. })
    })
    .await;
    assert_eq!(&*selection.in_force.unwrap().content, "1");
    mount.update(&[("a", "2")]);
    in_force(&mut seen, "a", "2").await;
}

#[tokio::test]
async fn files_count_while_the_api_server_is_away() {
    let server = server().await;
    server.seed([node(json!({ LABEL: "b" }))]).unwrap();
    let mut mount = Mount::new(&[("b", "2")]);
    let mut seen = start(&server, rules(None), &mount.source()).await;
    in_force(&mut seen, "b", "2").await;
    server.faults().refuse_connections(Duration::from_secs(600));
    mount.update(&[("b", "new")]);
    in_force(&mut seen, "b", "new").await;
}

#[tokio::test]
async fn a_node_that_is_gone_keeps_its_configuration() {
    let server = server().await;
    server.seed([node(json!({ LABEL: "b" }))]).unwrap();
    let mount = Mount::new(&[("a", "1"), ("b", "2")]);
    let mut seen = start(&server, rules(Some("a")), &mount.source()).await;
    in_force(&mut seen, "b", "2").await;
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(client(&server).await);
    nodes.delete(NAME, &DeleteParams::default()).await.unwrap();
    let selection = trouble(&mut seen, |trouble| {
        matches!(trouble, Trouble::NodeAbsent { .. })
    })
    .await;
    assert_eq!(selection.in_force.unwrap().name.as_deref(), Some("b"));
}

#[tokio::test]
async fn the_empty_configuration_has_no_name() {
    let server = server().await;
    let folder = tempfile::tempdir().unwrap();
    let rules = Rules {
        fallbacks: vec![Fallback::Named, Fallback::Single, Fallback::Empty],
        ..Rules::default()
    };
    let mut seen = start(&server, rules, &Source::Folder(folder.path().to_owned())).await;
    let selection = until(&mut seen, |selection| selection.in_force.is_some()).await;
    let empty = Choice {
        name: None,
        content: "".into(),
        reason: Reason::Fallback(Fallback::Empty),
    };
    assert_eq!(selection.in_force, Some(empty));
    fs::write(folder.path().join("x"), "7").unwrap();
    let choice = in_force(&mut seen, "x", "7").await;
    assert_eq!(choice.reason, Reason::Fallback(Fallback::Single));
}

#[tokio::test]
async fn a_config_map_is_watched() {
    let server = server().await;
    server.seed([node(json!({ LABEL: "b" }))]).unwrap();
    let mut seen = start(&server, rules(None), &config_map()).await;
    let selection = trouble(&mut seen, |trouble| {
        matches!(trouble, Trouble::SourceUnreadable { .. })
    })
    .await;
    assert_eq!(
        selection.trouble.unwrap().to_string(),
        "ConfigMap default/configs cannot be read: it does not exist; make it, or correct the name given to this part"
    );
    assert_eq!(selection.in_force, None);
    let data = json!({ "a": "1", "b": "2", ".hidden": "x" });
    server.seed([config_map_with(data)]).unwrap();
    in_force(&mut seen, "b", "2").await;
    server
        .seed([config_map_with(json!({ "a": "1", "b": "3" }))])
        .unwrap();
    in_force(&mut seen, "b", "3").await;
    server
        .seed([config_map_with(json!({ "a": "1", ".hidden": "x" }))])
        .unwrap();
    let selection = trouble(
        &mut seen,
        |trouble| matches!(trouble, Trouble::NoSuchConfig { available, .. } if available == &["a"]),
    )
    .await;
    assert_eq!(&*selection.in_force.unwrap().content, "3");
    label(&server, Some("a")).await;
    in_force(&mut seen, "a", "1").await;
    // Only this one is asked for.
    assert_eq!(requests(&server, "GET", "/configmaps/"), 0);
    assert!(
        server
            .requests()
            .iter()
            .filter(|request| request.path.contains(CONFIG_MAPS))
            .all(|request| request.query.contains("metadata.name%3Dconfigs"))
    );
}

#[tokio::test]
async fn a_config_map_that_is_replaced_is_never_missing_for_the_part() {
    let server = server().await;
    server.seed([config_map_with(json!({ "a": "1" }))]).unwrap();
    let rules = Rules {
        fallbacks: vec![Fallback::Single, Fallback::Empty],
        ..Rules::default()
    };
    let mut seen = start(&server, rules, &config_map()).await;
    in_force(&mut seen, "a", "1").await;
    let config_maps: Api<ConfigMap> = Api::namespaced(client(&server).await, "default");
    config_maps
        .delete("configs", &DeleteParams::default())
        .await
        .unwrap();
    // Without it, it is not known whether there is only one: no fallback applies, not even to the empty one.
    let selection = trouble(&mut seen, |trouble| {
        matches!(trouble, Trouble::SourceUnreadable { .. })
    })
    .await;
    assert_eq!(selection.in_force.unwrap().name.as_deref(), Some("a"));
    server.seed([config_map_with(json!({ "a": "2" }))]).unwrap();
    in_force(&mut seen, "a", "2").await;
}

#[tokio::test]
async fn binary_keys_are_configurations_when_they_are_text() {
    let server = server().await;
    server.seed([node(json!({ LABEL: "good" }))]).unwrap();
    let mut object = config_map_with(json!({}));
    object["binaryData"] = json!({ "good": "dGV4dA==", "bad": "/w==" });
    server.seed([object]).unwrap();
    let mut seen = start(&server, rules(None), &config_map()).await;
    in_force(&mut seen, "good", "text").await;
    label(&server, Some("bad")).await;
    let selection = trouble(&mut seen, |trouble| {
        matches!(trouble, Trouble::NotText { at: 0, .. })
    })
    .await;
    assert_eq!(selection.in_force.unwrap().name.as_deref(), Some("good"));
}

#[tokio::test]
async fn why_a_config_map_cannot_be_had_is_told() {
    let server = server().await;
    server.seed([config_map_with(json!({ "a": "1" }))]).unwrap();
    let forbidden = Fault::new(Action::Answer(403, None)).path(CONFIG_MAPS);
    server.faults().add(forbidden);
    let mut seen = start(&server, rules(Some("a")), &config_map()).await;
    let selection = trouble(
        &mut seen,
        |trouble| matches!(trouble, Trouble::SourceUnknown { why: Some(why), .. } if why.contains("403")),
    )
    .await;
    assert_eq!(selection.in_force, None);
    server.faults().clear();
    in_force(&mut seen, "a", "1").await;
}

#[derive(Clone, Copy, Debug)]
enum Break {
    Watch,
    History,
    Connections,
}

#[rstest]
#[case(Break::Watch)]
#[case(Break::History)]
#[case(Break::Connections)]
#[tokio::test]
async fn no_change_is_missed_across_a_lost_watch(#[case] what: Break) {
    let server = server().await;
    server.seed([node(json!({ LABEL: "a" }))]).unwrap();
    server
        .seed([config_map_with(json!({ "a": "1", "b": "2" }))])
        .unwrap();
    let mut seen = start(&server, rules(None), &config_map()).await;
    in_force(&mut seen, "a", "1").await;
    let faults = server.faults();
    match what {
        Break::Watch => faults.break_watches(),
        Break::History => {
            faults.add(Fault::new(Action::Answer(503, None)).method("GET").times(4));
            faults.break_watches();
        }
        Break::Connections => faults.refuse_connections(Duration::from_millis(300)),
    }
    server.seed([node(json!({ LABEL: "b" }))]).unwrap();
    server
        .seed([config_map_with(json!({ "a": "1", "b": "3" }))])
        .unwrap();
    if matches!(what, Break::History) {
        faults.expire_history();
    }
    in_force(&mut seen, "b", "3").await;
}

#[tokio::test]
async fn who_no_longer_listens_costs_nothing() {
    let server = server().await;
    server.seed([config_map_with(json!({ "a": "1" }))]).unwrap();
    let mut seen = start(&server, rules(Some("a")), &config_map()).await;
    in_force(&mut seen, "a", "1").await;
    // A list and a watch each of the node and of the ConfigMap.
    asked(&server, 4).await;
    drop(seen);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = server.requests().len();
    server.faults().break_watches();
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(server.requests().len(), before);
}
