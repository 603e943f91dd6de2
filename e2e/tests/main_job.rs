//! The main job on a real cluster: installed by helm, steered by a node label, seen in labels, Events, files and metrics.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use sim_nvml::model::latency::Latency;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::support::cluster::{LIMIT, cluster, cluster_alone, skipped, variable};
use crate::support::install::{Installed, with_lathe};
use crate::support::tools::{outcome, run};

/// Profiles of one board in the layout `all-balanced` (facts of mig-parted's default configuration): 8 GPUs with
/// 2 × 1g.10gb, 1 × 2g.20gb and 1 × 3g.40gb each.
const BALANCED: [(&str, usize); 3] = [("1g.10gb", 16), ("2g.20gb", 8), ("3g.40gb", 8)];

#[tokio::test]
async fn a_label_cuts_the_gpus_and_everything_shows_it() {
    let Some(cluster) = cluster().await else {
        return;
    };
    with_lathe(
        &cluster,
        "dgx-h100",
        Latency::default(),
        |lathe| async move {
            lathe.cut("all-balanced").await;
            assert_eq!(instances(&lathe), 32, "8 GPUs with 4 instances each");

            lathe
                .an_event_says("MigConfigApplied", "all-balanced")
                .await;

            feature_file_says(&lathe, "nvidia.com/mig-1g.10gb.count=16").await;

            lathe
                .metrics_say(|page| {
                    BALANCED.iter().all(|(profile, count)| {
                        let label = format!("GPU_I_PROFILE=\"{profile}\"");
                        page.lines()
                            .filter(|line| {
                                line.starts_with("DCGM_FI_DEV_FB_USED{") && line.contains(&label)
                            })
                            .count()
                            == *count
                    })
                })
                .await;

            lathe.cut("all-disabled").await;
            assert_eq!(instances(&lathe), 0);
        },
    )
    .await;
}

#[tokio::test]
async fn a_request_that_cannot_be_met_touches_nothing_and_says_why() {
    let Some(cluster) = cluster().await else {
        return;
    };
    with_lathe(
        &cluster,
        "dgx-h100",
        Latency::default(),
        |lathe| async move {
            lathe.ask_for("all-7g.1gb").await;
            lathe.state_is("failed").await;
            assert_eq!(instances(&lathe), 0);
            lathe.an_event_says("MigConfigFailed", "all-7g.1gb").await;
        },
    )
    .await;
}

#[tokio::test]
async fn a_change_ends_although_the_api_server_goes_away_in_the_middle() {
    let Some(cluster) = cluster_alone().await else {
        return;
    };
    let Some(restart) = variable("LATHE_E2E_RESTART_API_SERVER") else {
        skipped("LATHE_E2E_RESTART_API_SERVER names no command");
        return;
    };
    // A change takes seconds, as on real hardware, so that the restart falls into it.
    with_lathe(
        &cluster,
        "dgx-h100",
        Latency::realistic(),
        |lathe| async move {
            lathe.ask_until("all-1g.10gb", &["pending"]).await;
            run("sh", &["-c", &restart], "").await;
            lathe.state_is("success").await;
            assert_eq!(instances(&lathe), 56, "8 GPUs with 7 instances each");
        },
    )
    .await;
}

#[tokio::test]
async fn prometheus_scrapes_the_exporter_and_answers_a_query() {
    let Some(cluster) = cluster().await else {
        return;
    };
    with_lathe(&cluster, "dgx-h100", Latency::default(), |lathe| async move {
        let (_forward, exporter) = forward(&lathe).await;
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: gpu-metrics\n  static_configs:\n  - targets: [\"127.0.0.1:{exporter}\"]\n"
        );
        std::fs::write(&config, text).unwrap();
        run("promtool", &["check", "config", config.to_str().unwrap()], "").await;
        let (_prometheus, port) = prometheus(&folder.path().join("data"), &config);
        let server = format!("http://127.0.0.1:{port}");
        let query = "count by (modelName) (DCGM_FI_DEV_GPU_TEMP)";
        let began = Instant::now();
        loop {
            let output = outcome("promtool", &["query", "instant", &server, query], "").await;
            let answer = String::from_utf8(output.stdout).unwrap();
            // A scrape while a GPU is slow to answer has fewer of them.
            if answer.starts_with("{modelName=\"NVIDIA H100 80GB HBM3\"} => 8 @") {
                return;
            }
            assert!(began.elapsed() < LIMIT, "{answer}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn promtool_reads_the_page() {
    let Some(cluster) = cluster().await else {
        return;
    };
    with_lathe(
        &cluster,
        "dgx-h100",
        Latency::default(),
        |lathe| async move {
            lathe.cut("all-1g.10gb").await;
            let page = lathe
                .metrics_say(|page| page.contains("GPU_I_PROFILE"))
                .await;
            let output = outcome("promtool", &["check", "metrics"], &page).await;
            let complaints = String::from_utf8(output.stderr).unwrap();
            // The names are dcgm-exporter's: dashboards and alerts in the wild have them. Nothing else may be wrong.
            let ours: Vec<&str> = complaints
                .lines()
                .filter(|line| !line.starts_with("DCGM_"))
                .collect();
            assert_eq!(ours, Vec::<&str>::new());
        },
    )
    .await;
}

/// GPU instances of the simulated hardware.
fn instances(lathe: &Installed) -> usize {
    let state = lathe.hardware.state().unwrap();
    state.gpus.iter().map(|gpu| gpu.mig.instances.len()).sum()
}

async fn feature_file_says(lathe: &Installed, line: &str) {
    let file: PathBuf = lathe
        .hardware
        .root()
        .join("etc/kubernetes/node-feature-discovery/features.d/gfd");
    let began = Instant::now();
    loop {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        if text.lines().any(|found| found == line) {
            return;
        }
        assert!(began.elapsed() < LIMIT, "{line} is not in:\n{text}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// `kubectl port-forward` to the exporter, and the local port.
async fn forward(lathe: &Installed) -> (Child, u16) {
    let mut child = Command::new("kubectl")
        .args(["port-forward", "service/nvidia-dcgm-exporter", ":9400"])
        .arg(format!("--namespace={}", lathe.namespace))
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(LIMIT, lines.next_line())
        .await
        .unwrap()
        .unwrap()
        .expect("kubectl says which port it took");
    let port = line
        .strip_prefix("Forwarding from 127.0.0.1:")
        .and_then(|rest| rest.split(' ').next())
        .unwrap_or_else(|| panic!("{line}"))
        .parse()
        .unwrap();
    // kubectl writes a line for each connection and must not find the pipe closed.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, port)
}

fn prometheus(data: &std::path::Path, config: &std::path::Path) -> (Child, u16) {
    // Given back at once: Prometheus cannot say which port it took when asked for any.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .unwrap()
        .port();
    let child = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", data.display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .arg("--log.level=error")
        .kill_on_drop(true)
        .spawn()
        .expect("Prometheus is installed");
    (child, port)
}
