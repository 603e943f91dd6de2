//! A real single-node Kubernetes for the end-to-end tests: API server, scheduler, controllers, kubelet and container
//! runtime, in a network namespace and a folder of their own.
//!
//! What each unusual setting is for stands beside it. Two clusters of different names can run side by side; nothing of the
//! host's network changes. Needs root, Linux, Go (for the first build), and from the distribution: iproute2, runc, the CNI
//! plugins and nftables.

mod components;
mod config;
mod down;
mod host;
mod pki;
mod process;
mod tools;
mod traces;
mod turn;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use sha2::{Digest as _, Sha256};

use host::Host;

/// A real single-node cluster for end-to-end tests
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Which cluster; clusters of different names do not see each other
    #[arg(long, default_value = "lathe", value_parser = name, global = true)]
    name: String,

    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Build what a cluster consists of, where that is not done yet
    Build,
    /// Start the cluster anew and wait until its node is ready; one of this name that runs is taken down first
    Up,
    /// End the cluster and remove what it left, also after a crash
    Down,
    /// Say what runs, and where the kubeconfig is
    Status,
    /// Give the container runtime images from archives: see `cargo xtask image`
    Load {
        /// Archives
        #[arg(required = true)]
        archives: Vec<PathBuf>,
    },
    /// End one of the cluster's programs and start it again
    Restart {
        /// Its name, as `status` says it
        component: String,
        /// Kill it instead of asking it to end
        #[arg(long)]
        kill: bool,
        /// Wait this long, in seconds, before starting it again
        #[arg(long, value_name = "S", default_value_t = 0)]
        pause: u64,
    },
    /// Run a command in the cluster's network, with KUBECONFIG set and the cluster's tools on the PATH
    Exec {
        /// The command
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

/// Names become part of paths, of a network namespace's name and of control groups' names.
fn name(text: &str) -> Result<String, String> {
    let legal = !text.is_empty()
        && text.len() <= 20
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if legal {
        Ok(text.to_owned())
    } else {
        Err("use up to 20 of a-z, 0-9 and -".to_owned())
    }
}

/// One cluster: where everything of it lies.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    /// Its name.
    name: String,
    /// What its network namespace and control groups are called. The name alone would not do: clusters in other caches,
    /// of other clones of the repository, may have the same one.
    id: String,
    /// Its state, removed at the end.
    state: PathBuf,
    /// The programs.
    tools: PathBuf,
}

/// Where clusters keep their state. Not in the cache: a socket's path ends at 107 bytes, and a clone may lie deep. By its
/// real path, since that is what the kernel's table of mounts shows.
fn states() -> anyhow::Result<PathBuf> {
    let parent = Path::new("/var/lib");
    let parent = parent
        .canonicalize()
        .with_context(|| format!("looking for {}", parent.display()))?;
    Ok(parent.join("lathe-e2e"))
}

impl Cluster {
    fn new(root: &Path, name: &str) -> anyhow::Result<Self> {
        let whose = tools::cache(root)?;
        let digest = Sha256::digest(whose.as_os_str().as_encoded_bytes());
        let digest: String = digest.iter().take(4).map(|b| format!("{b:02x}")).collect();
        let id = format!("cluster-{name}-{digest}");
        Ok(Self {
            name: name.to_owned(),
            state: states()?.join(&id),
            id,
            tools: tools(root)?,
        })
    }

    /// The network namespace.
    fn namespace(&self) -> &str {
        &self.id
    }

    /// The control group under which the kubelet puts pods.
    fn cgroup(&self) -> &str {
        &self.id
    }

    fn must_be_up(&self) -> anyhow::Result<()> {
        if !host::namespace_file(self.namespace()).exists() {
            bail!(
                "cluster {0:?} is not up: cargo xtask cluster --name {0} up",
                self.name
            );
        }
        Ok(())
    }

    fn kubeconfig(&self) -> PathBuf {
        self.state.join("admin.kubeconfig")
    }

    /// `program` in the cluster's network, with its tools and its kubeconfig.
    fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        // Not `ip netns exec`: that mounts a /sys in which the kubelet does not see the control groups.
        command.arg(format!(
            "--net={}",
            host::namespace_file(self.namespace()).display()
        ));
        command.arg("--").arg(program);
        command.env("KUBECONFIG", self.kubeconfig());
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(self.tools.clone()).chain(std::env::split_paths(&path));
        if let Ok(joined) = std::env::join_paths(paths) {
            command.env("PATH", joined);
        }
        command
    }
}

/// Where the cluster's programs are, helm among them, once they are built.
pub(crate) fn tools(root: &Path) -> anyhow::Result<PathBuf> {
    Ok(tools::cache(root)?.join("tools"))
}

/// Runs one chore. The exit status is that of the command for `exec`.
pub(crate) fn run(root: &Path, args: &ClusterArgs) -> anyhow::Result<Option<ExitStatus>> {
    let cluster = Cluster::new(root, &args.name)?;
    match &args.command {
        ClusterCommand::Build => tools::build(root, &cluster.tools)?,
        ClusterCommand::Up => {
            host::check()?;
            tools::build(root, &cluster.tools)?;
            let _turn = turn::take(&cluster.id)?;
            up(&cluster)?;
        }
        ClusterCommand::Down => {
            let _turn = turn::take(&cluster.id)?;
            down::down(&cluster, &Host)?;
        }
        ClusterCommand::Status => status(&cluster)?,
        ClusterCommand::Load { archives } => {
            cluster.must_be_up()?;
            load(&cluster, archives)?;
        }
        ClusterCommand::Restart {
            component,
            kill,
            pause,
        } => {
            let _turn = turn::take(&cluster.id)?;
            cluster.must_be_up()?;
            restart(&cluster, component, *kill, Duration::from_secs(*pause))?;
        }
        ClusterCommand::Exec { command } => {
            cluster.must_be_up()?;
            let (program, rest) = command.split_first().context("no command")?;
            let mut run = cluster.inside(program);
            run.args(rest);
            // For tests that make trouble: who starts components again, and who makes clusters.
            let own = std::env::current_exe().context("looking for this program")?;
            let restart = |component: &str| {
                format!(
                    r#""$LATHE_E2E_XTASK" cluster --name {} restart {component}"#,
                    cluster.name
                )
            };
            run.env(
                "LATHE_E2E_RESTART_API_SERVER",
                restart("kube-apiserver --kill --pause 3"),
            );
            run.env("LATHE_E2E_RESTART_KUBELET", restart("kubelet --kill"));
            // For tests that are plugins of the kubelet.
            run.env("LATHE_E2E_KUBELET", config::kubelet_root(&cluster));
            run.env("LATHE_E2E_CDI", config::cdi(&cluster));
            run.env("LATHE_E2E_DEVICE_PLUGINS", config::device_plugins(&cluster));
            run.env("LATHE_E2E_XTASK", own);
            run.env(
                "LATHE_E2E_HOST_NETWORK",
                format!("/proc/{}/ns/net", std::process::id()),
            );
            return Ok(Some(run.status()?));
        }
    }
    Ok(None)
}

fn up(cluster: &Cluster) -> anyhow::Result<()> {
    let began = Instant::now();
    // A former run may have been killed at any point; its rest would be in the way.
    down::down(cluster, &Host)?;
    std::fs::create_dir_all(&cluster.state)?;
    let started = start(cluster, began);
    let logs = cluster.state.join("log");
    if started.is_err() && logs.exists() {
        eprintln!("the logs are in {}", logs.display());
    }
    started
}

fn start(cluster: &Cluster, began: Instant) -> anyhow::Result<()> {
    let stage = |what: &str| eprintln!("[{:6.1} s] {what}", began.elapsed().as_secs_f64());
    Host.create_network(cluster.namespace())?;
    Host.create_cgroups(cluster.cgroup())?;
    let pki = pki::create(&cluster.state.join("pki"))?;
    config::write(cluster, &pki)?;
    Host.share_mounts(&config::kubelet_root(cluster))?;
    process::start(cluster, components::etcd(cluster))?;
    process::start(cluster, components::api_server(cluster))?;
    process::start(cluster, components::containerd(cluster))?;
    wait(
        cluster,
        "the API server answers",
        Duration::from_secs(120),
        || {
            answers(cluster, &["get", "--raw=/readyz"], |text| {
                text.trim() == "ok"
            })
        },
    )?;
    stage("API server answers");
    process::start(cluster, components::controller_manager(cluster))?;
    process::start(cluster, components::scheduler(cluster))?;
    process::start(cluster, components::kubelet(cluster))?;
    process::start(cluster, components::proxy(cluster))?;
    let ready = "-o=jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}";
    wait(
        cluster,
        "the node is ready",
        Duration::from_secs(180),
        || answers(cluster, &["get", "nodes", ready], |text| text == "True"),
    )?;
    stage("node is ready");
    wait(
        cluster,
        "the default service account is there",
        Duration::from_secs(60),
        || {
            answers(
                cluster,
                &["get", "serviceaccount", "default", "-o=name"],
                |text| !text.is_empty(),
            )
        },
    )?;
    println!("export KUBECONFIG={}", cluster.kubeconfig().display());
    Ok(())
}

/// Whether kubectl answers, and what it says fits.
fn answers(cluster: &Cluster, args: &[&str], fits: impl Fn(&str) -> bool) -> bool {
    let output = cluster
        .inside("kubectl")
        .args(["--request-timeout=5s"])
        .args(args)
        .output();
    output.is_ok_and(|output| {
        output.status.success() && fits(&String::from_utf8_lossy(&output.stdout))
    })
}

/// Waits until `holds`, at most `bound`; ends early when one of the cluster's processes ended.
fn wait(
    cluster: &Cluster,
    what: &str,
    bound: Duration,
    holds: impl Fn() -> bool,
) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        if holds() {
            return Ok(());
        }
        process::check(cluster)?;
        if began.elapsed() > bound {
            bail!("waited {} s until {what}", bound.as_secs());
        }
        std::thread::sleep(Duration::from_millis(250));
    }
}

/// The namespace of containerd's images that the kubelet uses.
const IMAGES: &str = "k8s.io";

fn load(cluster: &Cluster, archives: &[PathBuf]) -> anyhow::Result<()> {
    for archive in archives {
        let status = cluster
            .inside("ctr")
            .arg("--address")
            .arg(config::containerd_socket(cluster))
            .args(["--namespace", IMAGES, "images", "import"])
            .arg(archive)
            .status()?;
        if !status.success() {
            bail!("{} cannot be imported", archive.display());
        }
    }
    Ok(())
}

fn restart(cluster: &Cluster, name: &str, kill: bool, pause: Duration) -> anyhow::Result<()> {
    let component = components::all(cluster)
        .into_iter()
        .find(|component| component.name == name)
        .with_context(|| format!("the cluster has no {name:?}: see `status`"))?;
    let running: Vec<_> = process::all(cluster)?
        .into_iter()
        .filter(|process| process.name == name)
        .collect();
    let patience = if kill {
        Duration::ZERO
    } else {
        Duration::from_secs(20)
    };
    process::end(&running, patience)?;
    std::thread::sleep(pause);
    process::start(cluster, component)?;
    wait(
        cluster,
        "the API server answers",
        Duration::from_secs(120),
        || {
            answers(cluster, &["get", "--raw=/readyz"], |text| {
                text.trim() == "ok"
            })
        },
    )
}

fn status(cluster: &Cluster) -> anyhow::Result<()> {
    let processes = process::all(cluster)?;
    if processes.is_empty() {
        println!("cluster {:?} is down", cluster.name);
        return Ok(());
    }
    for process in &processes {
        let state = if process.is_alive() {
            "running"
        } else {
            "ended"
        };
        println!("{:<24} {:>7}  {state}", process.name, process.pid);
    }
    println!("network namespace and control group: {}", cluster.id);
    println!("export KUBECONFIG={}", cluster.kubeconfig().display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn a_name_is_safe_in_paths() {
        assert_eq!(name("lathe-2").as_deref(), Ok("lathe-2"));
        for bad in ["", "..", "a/b", "A", "a b", "aaaaaaaaaaaaaaaaaaaaa"] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
    }
}
