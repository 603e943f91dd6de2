//! The chart's manifest for people who use plain `kubectl apply`: rendered by helm with the chart's own values and kept in
//! the repository, so that nobody needs helm and nobody writes a second set of manifests.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use clap::Args;

/// The namespace the rendered objects are in; whoever wants another one uses helm.
const NAMESPACE: &str = "lathe";

/// Write the manifest of the chart's default values to charts/rendered, or check that it is up to date
#[derive(Debug, Args)]
pub(crate) struct ManifestArgs {
    /// Write nothing; fail when the file is not what the chart renders to
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(root: &Path, args: &ManifestArgs) -> anyhow::Result<()> {
    let file = root.join("charts/rendered/lathe.yaml");
    let text = render(root)?;
    if args.check {
        let kept = std::fs::read_to_string(&file).unwrap_or_default();
        if kept != text {
            bail!(
                "{} is not what the chart renders to: cargo xtask manifest",
                file.display()
            );
        }
        return Ok(());
    }
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
    println!("{}", file.display());
    Ok(())
}

fn render(root: &Path) -> anyhow::Result<String> {
    let output = Command::new(helm(root)?)
        .args([
            "template",
            "lathe",
            "charts/lathe",
            "--namespace",
            NAMESPACE,
        ])
        .current_dir(root)
        .output()
        .context("running helm: install it, or build it with `cargo xtask cluster build`")?;
    if !output.status.success() {
        bail!(
            "helm template: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let rendered = String::from_utf8(output.stdout).context("helm's output is not text")?;
    // helm makes the namespace on install; kubectl has nobody who does. Its label lets privileged pods in where pod
    // security admission is on.
    Ok(format!(
        "# Made from charts/lathe by `cargo xtask manifest`; do not edit.
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels:
    pod-security.kubernetes.io/enforce: privileged
{rendered}"
    ))
}

/// The cluster's helm when it is built, else the system's.
fn helm(root: &Path) -> anyhow::Result<PathBuf> {
    let built = crate::cluster::tools(root)?.join("helm");
    Ok(if built.exists() {
        built
    } else {
        PathBuf::from("helm")
    })
}
