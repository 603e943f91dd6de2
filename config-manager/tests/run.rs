//! The config manager against the simulated API server, with real files, links and processes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use cluster::named_config::{Fallback, Rules, Trouble};
use config_manager::{Config, Error, Notice, Signal, run};
use rstest::rstest;
use serde_json::{Value, json};
use sim_kubernetes::{Action, Fault, Options, Server};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Longer than anything here takes, so that a test that would wait for ever fails.
const BOUND: Duration = Duration::from_secs(60);

/// Longer than files and labels take to settle.
const QUIET: Duration = Duration::from_millis(800);

const LABEL: &str = "nvidia.com/device-plugin.config";

/// A process that writes a line whenever it gets SIGUSR1. (A shell cannot hear SIGHUP where the tests run below `nohup`.)
struct Listener {
    child: Child,
    told: PathBuf,
}

impl Listener {
    async fn start(folder: &Path, name: &str) -> Self {
        let (ready, told) = (folder.join("ready"), folder.join("told"));
        let script = r#"trap 'echo told >>"$2"' USR1; : >"$1"; while :; do sleep 0.05; done"#;
        let child = Command::new("/bin/sh")
            .arg0(name)
            .args(["-c", script, "sh"])
            .args([&ready, &told])
            .spawn()
            .unwrap();
        until(|| ready.exists()).await;
        Self { child, told }
    }

    fn told(&self) -> usize {
        fs::read_to_string(&self.told)
            .unwrap_or_default()
            .lines()
            .count()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A node, a folder of configurations, and what a manifest would say of them.
struct Rig {
    server: Server,
    folder: TempDir,
    config: Config,
}

impl Rig {
    async fn new(label: Option<&str>) -> Self {
        let server = Server::start(Options::default()).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("configs");
        fs::create_dir(&source).unwrap();
        let process = folder.path().file_name().unwrap().to_str().unwrap();
        let config = Config {
            node_name: "node-a".to_owned(),
            rules: Rules::default(),
            link: folder.path().join("config.yaml"),
            source,
            oneshot: false,
            notice: Some(Notice {
                process: format!("listener{process}"),
                signal: Signal::USR1,
            }),
        };
        let rig = Self {
            server,
            folder,
            config,
        };
        rig.label(label);
        rig.write("a", "1");
        rig.write("b", "2");
        rig
    }

    fn label(&self, value: Option<&str>) {
        let labels: Value = value.map_or(json!({}), |value| json!({ LABEL: value }));
        self.server
            .seed([json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-a", "labels": labels } })])
            .unwrap();
    }

    /// At once, as the kubelet does it: a file that is emptied and then written could be seen between.
    fn write(&self, name: &str, text: &str) {
        let draft = self.config.source.join(format!(".{name}.new"));
        fs::write(&draft, text).unwrap();
        fs::rename(draft, self.config.source.join(name)).unwrap();
    }

    /// What the link's file says; `None` without a link.
    fn linked(&self) -> Option<String> {
        fs::read_link(&self.config.link).ok()?;
        Some(fs::read_to_string(&self.config.link).unwrap())
    }

    async fn until_linked(&self, text: &str) {
        until(|| self.linked().as_deref() == Some(text)).await;
    }

    async fn listener(&self) -> Listener {
        let process = &self.config.notice.as_ref().unwrap().process;
        Listener::start(self.folder.path(), process).await
    }

    async fn client(&self) -> kube::Client {
        let path = self.folder.path().join("kubeconfig");
        fs::write(&path, self.server.kubeconfig()).unwrap();
        cluster::client("test", Some(&path)).await.unwrap()
    }

    async fn start(&self) -> Running {
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(run(
            self.config.clone(),
            self.client().await,
            shutdown.clone(),
        ));
        Running { shutdown, task }
    }

    async fn once(mut self) -> (Result<(), Error>, Self) {
        self.config.oneshot = true;
        let running = self.start().await;
        let result = timeout(BOUND, running.task).await.unwrap().unwrap();
        (result, self)
    }
}

struct Running {
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    async fn end(self) {
        assert!(!self.task.is_finished(), "it ended by itself");
        self.shutdown.cancel();
        timeout(BOUND, self.task).await.unwrap().unwrap().unwrap();
    }
}

async fn until(is_so: impl Fn() -> bool) {
    timeout(BOUND, async {
        while !is_so() {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("it never comes to that");
}

#[tokio::test]
async fn each_change_is_linked_and_told_once() {
    let mut rig = Rig::new(Some("a")).await;
    rig.config.rules.default = Some("b".to_owned());
    let listener = rig.listener().await;
    let running = rig.start().await;
    rig.until_linked("1").await;
    until(|| listener.told() == 1).await;
    rig.label(Some("b"));
    rig.until_linked("2").await;
    until(|| listener.told() == 2).await;
    rig.write("b", "3");
    until(|| listener.told() == 3).await;
    // Nothing that matters to this node.
    rig.write("a", "other");
    rig.write("b", "3");
    // The default is what the label says already.
    rig.label(None);
    sleep(QUIET).await;
    assert_eq!(listener.told(), 3);
    running.end().await;
    assert_eq!(rig.linked().as_deref(), Some("3"), "the link stays");
}

#[tokio::test]
async fn a_restart_changes_nothing() {
    let rig = Rig::new(Some("a")).await;
    let listener = rig.listener().await;
    let running = rig.start().await;
    until(|| listener.told() == 1).await;
    running.end().await;
    let running = rig.start().await;
    sleep(QUIET).await;
    assert_eq!(listener.told(), 1);
    rig.label(Some("b"));
    until(|| listener.told() == 2).await;
    running.end().await;
}

#[tokio::test]
async fn a_name_that_does_not_exist_ends_nothing() {
    let rig = Rig::new(Some("a")).await;
    let listener = rig.listener().await;
    let running = rig.start().await;
    until(|| listener.told() == 1).await;
    rig.label(Some("c"));
    sleep(QUIET).await;
    assert_eq!(rig.linked().as_deref(), Some("1"));
    assert_eq!(listener.told(), 1);
    rig.write("c", "new");
    rig.until_linked("new").await;
    until(|| listener.told() == 2).await;
    running.end().await;
}

#[tokio::test]
async fn nobody_is_told_when_nobody_shall_be() {
    let mut rig = Rig::new(Some("a")).await;
    let listener = rig.listener().await;
    rig.config.notice = None;
    let running = rig.start().await;
    rig.until_linked("1").await;
    sleep(QUIET).await;
    assert_eq!(listener.told(), 0);
    running.end().await;
}

#[tokio::test]
async fn a_process_that_starts_later_finds_the_link() {
    let rig = Rig::new(Some("a")).await;
    let running = rig.start().await;
    rig.until_linked("1").await;
    let listener = rig.listener().await;
    sleep(QUIET).await;
    assert_eq!(listener.told(), 0);
    rig.label(Some("b"));
    until(|| listener.told() == 1).await;
    running.end().await;
}

#[tokio::test]
async fn a_link_that_cannot_be_made_is_an_error() {
    let mut rig = Rig::new(Some("a")).await;
    rig.config.link = rig.folder.path().join("no/such/folder/config.yaml");
    let running = rig.start().await;
    let error = timeout(BOUND, running.task)
        .await
        .unwrap()
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, Error::Link { .. }), "{error}");
}

#[rstest]
#[case::label(Some("b"), None, &[], Some("2"))]
#[case::default(None, Some("a"), &[], Some("1"))]
#[case::empty(None, None, &[Fallback::Named, Fallback::Single, Fallback::Empty], Some(""))]
#[tokio::test]
async fn once_makes_the_link(
    #[case] label: Option<&str>,
    #[case] default: Option<&str>,
    #[case] fallbacks: &[Fallback],
    #[case] text: Option<&str>,
) {
    let mut rig = Rig::new(label).await;
    rig.config.rules.default = default.map(str::to_owned);
    rig.config.rules.fallbacks = fallbacks.to_vec();
    // It may take a moment until the API server answers.
    let faults = rig.server.faults();
    faults.add(Fault::new(Action::Answer(503, None)).method("GET").times(2));
    let (result, rig) = rig.once().await;
    result.unwrap();
    assert_eq!(rig.linked().as_deref(), text);
}

#[tokio::test]
async fn once_fails_when_there_is_nothing_to_link() {
    let (result, rig) = Rig::new(Some("c")).await.once().await;
    let error = result.unwrap_err();
    assert!(
        matches!(error, Error::Choice(Trouble::NoSuchConfig { .. })),
        "{error}"
    );
    assert_eq!(rig.linked(), None);
}

#[tokio::test]
async fn once_can_be_interrupted() {
    let mut rig = Rig::new(Some("a")).await;
    rig.config.oneshot = true;
    rig.server
        .faults()
        .refuse_connections(Duration::from_secs(600));
    let running = rig.start().await;
    running.shutdown.cancel();
    let result = timeout(BOUND, running.task).await.unwrap().unwrap();
    assert!(matches!(result, Err(Error::Interrupted)));
}
