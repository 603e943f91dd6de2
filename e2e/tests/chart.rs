//! The chart by itself: lint, goldens byte for byte, values that the schema refuses. Needs helm and no cluster.

use std::path::PathBuf;
use std::sync::Once;

use rstest::rstest;

use crate::support::cluster::{cluster, skipped, variable};
use crate::support::install::{chart, repository};
use crate::support::tools::{exists, outcome, run};

/// Whether helm is there; says so when not. It must be where the tests on a cluster must run.
fn helm_is_there() -> bool {
    if exists("helm") {
        return true;
    }
    assert!(
        variable("LATHE_E2E").is_none(),
        "helm is not on the PATH: run inside `cargo xtask cluster exec`"
    );
    static SAID: Once = Once::new();
    SAID.call_once(|| skipped("the chart's tests need helm on the PATH"));
    false
}

async fn template(arguments: &[&str]) -> String {
    let chart = chart();
    let common = [
        "template",
        "lathe",
        chart.to_str().unwrap(),
        "--namespace=lathe",
    ];
    run("helm", &[&common[..], arguments].concat(), "").await
}

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

#[tokio::test]
async fn lint_finds_nothing() {
    if !helm_is_there() {
        return;
    }
    let chart = chart();
    run("helm", &["lint", "--strict", chart.to_str().unwrap()], "").await;
}

#[tokio::test]
async fn the_kept_manifest_is_what_the_chart_renders_to() {
    if !helm_is_there() {
        return;
    }
    let kept = std::fs::read_to_string(repository().join("charts/rendered/lathe.yaml")).unwrap();
    let rendered = template(&[]).await;
    let (_, body) = kept
        .split_once("pod-security.kubernetes.io/enforce: privileged\n")
        .expect("a namespace comes first");
    assert_eq!(body, rendered, "run `cargo xtask manifest`");
}

/// Every value that has a branch in a template.
#[tokio::test]
async fn everything_switched_on_renders_as_before() {
    if !helm_is_there() {
        return;
    }
    let values = golden("everything-values.yaml");
    let rendered = template(&["--values", values.to_str().unwrap()]).await;
    let kept = golden("everything.yaml");
    if variable("LATHE_UPDATE_GOLDEN").is_some() {
        std::fs::write(&kept, &rendered).unwrap();
    }
    let expected = std::fs::read_to_string(&kept).unwrap();
    assert_eq!(rendered, expected, "LATHE_UPDATE_GOLDEN=1 writes it anew");
}

#[tokio::test]
async fn what_is_switched_off_leaves_nothing() {
    if !helm_is_there() {
        return;
    }
    let parts = [
        "migManager",
        "featureDiscovery",
        "devicePlugin",
        "dcgmExporter",
    ];
    let off = parts.map(|part| format!("{part}.enabled=false")).join(",");
    assert_eq!(template(&["--set", &off]).await.trim(), "");
}

#[rstest]
#[case::unknown_key("migManagr.enabled=true", "migManagr")]
#[case::unknown_nested("dcgmExporter.prot=1", "prot")]
#[case::port("dcgmExporter.port=70000", "/dcgmExporter/port")]
#[case::policy("migManager.onFailure=panic", "/migManager/onFailure")]
#[case::strategy("featureDiscovery.migStrategy=both", "/featureDiscovery/migStrategy")]
#[case::interval(
    "featureDiscovery.sleepInterval=soon",
    "/featureDiscovery/sleepInterval"
)]
#[case::relative_root("nodeRoot=host", "/nodeRoot")]
#[case::pull_policy("image.pullPolicy=Sometimes", "/image/pullPolicy")]
#[case::prefix("namePrefix=-x", "/namePrefix")]
#[case::label_no_text("nodeSelector.gpu=true", "/nodeSelector/gpu")]
#[case::list_strategy(
    "devicePlugin.deviceListStrategy=cdi",
    "/devicePlugin/deviceListStrategy"
)]
#[case::list_strategies(
    "devicePlugin.deviceListStrategy={envvar,cdi}",
    "/devicePlugin/deviceListStrategy"
)]
#[case::sharing_policy(
    "devicePlugin.sharedDevicesAllocationPolicy=fair",
    "/devicePlugin/sharedDevicesAllocationPolicy"
)]
#[case::access("devicePlugin.deviceAccess=none", "/devicePlugin/deviceAccess")]
#[case::fallback(
    "devicePlugin.config.fallbackStrategies={first}",
    "/devicePlugin/config/fallbackStrategies/0"
)]
#[case::config_no_text("devicePlugin.config.map.a=1", "/devicePlugin/config/map/a")]
#[case::two_configs("devicePlugin.config.name=x,devicePlugin.config.map.a=b", "not both")]
#[case::no_configs("devicePlugin.config.default=a", "give name or map")]
#[case::nothing_to_watch("devicePlugin.config.watch=true", "give name or map")]
#[case::no_label_value("devicePlugin.config.map.a/b=c", "\"a/b\"")]
#[case::default_config(
    "devicePlugin.config.map.a=b,devicePlugin.config.default=c",
    "which map does not have"
)]
#[case::part_taken_away("migManager=null", "migManager")]
#[case::root_taken_away("nodeRoot=null", "nodeRoot")]
#[case::probe_taken_away("dcgmExporter.livenessProbe=null", "livenessProbe")]
#[tokio::test]
async fn a_wrong_value_is_refused_by_name(#[case] set: &str, #[case] named: &str) {
    if !helm_is_there() {
        return;
    }
    let chart = chart();
    let arguments = ["template", "x", chart.to_str().unwrap(), "--set", set];
    let output = outcome("helm", &arguments, "").await;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains(named), "{text}");
}

#[tokio::test]
async fn which_of_several_configurations_counts_has_to_be_said() {
    if !helm_is_there() {
        return;
    }
    let chart = chart();
    let config = r#"devicePlugin.config={"map": {"a": "", "b": ""}, "fallbackStrategies": []}"#;
    let arguments = [
        "template",
        "x",
        chart.to_str().unwrap(),
        "--set-json",
        config,
    ];
    let output = outcome("helm", &arguments, "").await;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("Name it in default"),
        "{text}"
    );
}

/// The exporter reads its counters once, so pods with others have to be new ones; and only those.
#[tokio::test]
async fn other_counters_make_other_pods() {
    if !helm_is_there() {
        return;
    }
    let annotation = async |set: &str| {
        let rendered = template(&["--set", set]).await;
        let lines = rendered.lines();
        let found = lines.filter(|line| line.trim_start().starts_with("checksum/counters:"));
        found.map(str::to_owned).collect::<Vec<_>>()
    };
    let data = |counters| format!("dcgmExporter.counters.data={counters}");
    let one = annotation(&data("DCGM_FI_DEV_GPU_TEMP\\, gauge\\, x")).await;
    assert_eq!(one.len(), 1, "{one:?}");
    assert_ne!(
        annotation(&data("DCGM_FI_DEV_SM_CLOCK\\, gauge\\, x")).await,
        one
    );
    assert!(
        annotation("dcgmExporter.counters.existingConfigMap=mine")
            .await
            .is_empty()
    );
}

/// Legal names, and numbers to YAML unless they are quoted.
#[tokio::test]
async fn release_and_namespace_may_look_like_numbers() {
    if !helm_is_there() {
        return;
    }
    let chart = chart();
    let arguments = [
        "template",
        "123",
        chart.to_str().unwrap(),
        "--namespace=456",
    ];
    let rendered = run("helm", &arguments, "").await;
    assert!(rendered.contains("namespace: \"456\"\n"), "{rendered}");
    let bare = rendered
        .lines()
        .find(|line| line.ends_with(": 123") || line.ends_with(": 456"));
    assert_eq!(bare, None);
}

/// Builds of one's own often have versions like this, which no label's value may be.
#[tokio::test]
async fn a_chart_version_with_a_plus_is_no_trouble() {
    if !helm_is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let chart = chart();
    let place = folder.path().to_str().unwrap();
    let version = ["--version=1.2.3+4.5", "--destination", place];
    run(
        "helm",
        &[&["package", chart.to_str().unwrap()][..], &version].concat(),
        "",
    )
    .await;
    let package = folder.path().join("lathe-1.2.3+4.5.tgz");
    let rendered = run("helm", &["template", "x", package.to_str().unwrap()], "").await;
    assert!(
        rendered.contains("helm.sh/chart: lathe-1.2.3_4.5\n"),
        "{rendered}"
    );
}

#[tokio::test]
async fn the_kept_manifest_is_valid_for_the_api_server() {
    if cluster().await.is_none() {
        return;
    }
    let file = repository().join("charts/rendered/lathe.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    // The server checks objects of a namespace only when the namespace is there, which a dry run does not make.
    let text = text
        .replace("namespace: \"lathe\"\n", "namespace: default\n")
        .replace(
            "name: lathe\n  labels:\n    pod-security",
            "name: default\n  labels:\n    pod-security",
        );
    let arguments = [
        "apply",
        "--dry-run=server",
        "--validate=strict",
        "--filename=-",
    ];
    let said = run("kubectl", &arguments, &text).await;
    for object in [
        "daemonset.apps/nvidia-mig-manager",
        "daemonset.apps/gpu-feature-discovery",
        "daemonset.apps/nvidia-dcgm-exporter",
        "daemonset.apps/nvidia-device-plugin-daemonset",
        "service/nvidia-dcgm-exporter",
        "clusterrole.rbac.authorization.k8s.io/lathe-nvidia-mig-manager",
        "clusterrole.rbac.authorization.k8s.io/lathe-nvidia-device-plugin-daemonset",
    ] {
        assert!(said.contains(object), "{object} is not in:\n{said}");
    }
}
