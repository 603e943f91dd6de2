//! One table of API behaviours, run against the simulated API server and against a real one: whoever tests on the
//! simulated server may rely on what stands here.
//!
//! The table lies in `cases/`, written by hand from what the Kubernetes API promises. The simulated side always runs.
//! The real side runs when `KUBECONFIG` and `LATHE_E2E` are set; it takes any cluster on which its user may do everything.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod compare;
mod exchange;
mod run;
mod table;

use std::time::Duration;

use sim_kubernetes::{Options, Server};

use exchange::Api;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simulated() {
    let server = Server::start(Options {
        // There is no kubelet on the other side either: pods that run on nodes of no machine stay until forced out.
        pod_stop_time: None,
        bookmark_interval: Duration::from_secs(60),
        ..Options::default()
    })
    .await
    .unwrap();
    let config = kube::Config::new(server.url().parse().unwrap());
    run::table(&Api::new(config)).await;
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real() {
    let wanted = std::env::var("LATHE_E2E").unwrap_or_default();
    let given = std::env::var("KUBECONFIG").is_ok_and(|path| !path.is_empty());
    if wanted.is_empty() || !given {
        assert_ne!(
            wanted, "required",
            "LATHE_E2E=required, but KUBECONFIG names no cluster"
        );
        eprintln!("skipped: set KUBECONFIG and LATHE_E2E=1 to compare with a real API server");
        return;
    }
    let config = kube::Config::infer().await.unwrap();
    run::table(&Api::new(config)).await;
}
