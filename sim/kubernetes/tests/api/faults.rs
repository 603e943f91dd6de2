//! Faults: what a client of a troubled server meets.

use std::time::{Duration, Instant};

use serde_json::json;
use sim_kubernetes::{Action, Fault, Options};

use crate::http::{LIMIT, NODES, client_of, cluster, cluster_with, node};

#[tokio::test]
async fn a_fault_meets_the_requests_it_names() {
    let cluster = cluster().await;
    let faults = cluster.server.faults();
    faults.add(
        Fault::new(Action::Answer(503, None))
            .method("get")
            .path("/nodes")
            .times(2),
    );
    assert_eq!(cluster.post(NODES, &node("n")).await.0, 201);
    assert_eq!(cluster.get("/api/v1/pods").await.0, 200);
    let (code, answer) = cluster.get(NODES).await;
    assert_eq!(
        (code, &answer["reason"]),
        (503, &json!("ServiceUnavailable"))
    );
    assert_eq!(cluster.get(NODES).await.0, 503);
    assert_eq!(cluster.get(NODES).await.0, 200);
    faults.add(Fault::new(Action::Answer(500, None)));
    assert_eq!(cluster.get(NODES).await.0, 500);
    faults.clear();
    assert_eq!(cluster.get(NODES).await.0, 200);
}

#[tokio::test]
async fn a_refused_request_has_no_effect_and_says_when_to_come_back() {
    let cluster = cluster().await;
    cluster
        .server
        .faults()
        .add(Fault::new(Action::Answer(429, Some(7))).times(1));
    let request = hyper::Request::post(NODES)
        .header("content-type", "application/json")
        .body(kube::client::Body::from(node("n").to_string().into_bytes()))
        .unwrap();
    let answer = cluster.client.send(request).await.unwrap();
    assert_eq!(answer.status(), 429);
    assert_eq!(answer.headers()["retry-after"], "7");
    assert_eq!(cluster.get(&format!("{NODES}/n")).await.0, 404);
}

#[tokio::test]
async fn a_lost_answer_hides_a_write_that_happened() {
    let cluster = cluster().await;
    cluster
        .server
        .faults()
        .add(Fault::new(Action::LoseAnswer).method("POST").times(1));
    let request = hyper::Request::post(NODES)
        .header("content-type", "application/json")
        .body(kube::client::Body::from(node("n").to_string().into_bytes()))
        .unwrap();
    assert!(cluster.client.send(request).await.is_err());
    assert_eq!(cluster.get(&format!("{NODES}/n")).await.0, 200);
}

#[tokio::test]
async fn a_delay_comes_before_the_answer() {
    let cluster = cluster().await;
    let delay = Duration::from_millis(80);
    cluster
        .server
        .faults()
        .add(Fault::new(Action::Delay(delay)).times(1));
    let start = Instant::now();
    assert_eq!(cluster.get(NODES).await.0, 200);
    assert!(start.elapsed() >= delay);
}

#[tokio::test]
async fn broken_watches_break_and_new_ones_run() {
    let cluster = cluster().await;
    let mut broken = cluster.watch(&format!("{NODES}?watch=true")).await;
    cluster.server.faults().break_watches();
    assert!(broken.try_next().await.is_err());
    let mut fresh = cluster.watch(&format!("{NODES}?watch=true")).await;
    cluster.post(NODES, &node("n")).await;
    assert_eq!(fresh.brief().await, ("ADDED".to_owned(), "n".to_owned()));
}

#[tokio::test]
async fn an_absent_server_comes_back_with_everything() {
    let cluster = cluster().await;
    cluster.post(NODES, &node("n")).await;
    let mut watch = cluster
        .watch(&format!(
            "{NODES}?watch=true&resourceVersion={}",
            cluster.server.resource_version()
        ))
        .await;
    cluster
        .server
        .faults()
        .refuse_connections(Duration::from_secs(2));
    assert!(watch.try_next().await.is_err(), "running watches break");
    let fresh = client_of(&cluster.server);
    let ask = || async {
        let request = hyper::Request::get(format!("{NODES}/n"))
            .body(kube::client::Body::empty())
            .unwrap();
        fresh.send(request).await
    };
    assert!(ask().await.is_err(), "new connections are refused");
    let back = tokio::time::timeout(LIMIT, async {
        while ask().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    back.await.expect("the server comes back");
    assert_eq!(ask().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_token_is_asked_for() {
    let cluster = cluster_with(Options {
        token: Some("secret".to_owned()),
        ..Options::default()
    })
    .await;
    let (code, answer) = cluster.get(NODES).await;
    assert_eq!(
        (code, &answer["reason"], &answer["message"]),
        (401, &json!("Unauthorized"), &json!("Unauthorized"))
    );
    let headers = [("authorization", "Bearer secret")];
    assert_eq!(
        cluster.send("GET", NODES, &headers, &json!(null)).await.0,
        200
    );
    assert!(cluster.server.kubeconfig().contains("token: \"secret\""));
}

#[tokio::test]
async fn requests_are_counted() {
    let cluster = cluster().await;
    cluster.get(&format!("{NODES}?limit=1")).await;
    cluster.get(&format!("{NODES}/n")).await;
    let requests = cluster.server.requests();
    let brief: Vec<(&str, &str, &str, u16)> = requests
        .iter()
        .map(|record| {
            (
                record.method.as_str(),
                record.path.as_str(),
                record.query.as_str(),
                record.status,
            )
        })
        .collect();
    assert_eq!(
        brief,
        [
            ("GET", NODES, "limit=1", 200),
            ("GET", "/api/v1/nodes/n", "", 404)
        ]
    );
}
