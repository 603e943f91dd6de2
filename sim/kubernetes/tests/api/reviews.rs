//! Token and access reviews.

use std::sync::Arc;

use serde_json::{Value, json};
use sim_kubernetes::{Options, Reviews};

use crate::http::{cluster, cluster_with};

const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

fn token(token: &str) -> Value {
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}})
}

fn access(path: &str) -> Value {
    json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": "u", "nonResourceAttributes": {"path": path, "verb": "get"}},
    })
}

#[tokio::test]
async fn everybody_may_do_everything_by_default() {
    let cluster = cluster().await;
    let (code, answer) = cluster.post(TOKENS, &token("t")).await;
    assert_eq!(
        (code, &answer["status"]["authenticated"]),
        (201, &json!(true))
    );
    let (code, answer) = cluster.post(ACCESS, &access("/metrics")).await;
    assert_eq!((code, &answer["status"]["allowed"]), (201, &json!(true)));
    assert_eq!(answer["spec"]["user"], "u");
    let (_, nobody) = cluster.post(TOKENS, &token("")).await;
    assert_eq!(nobody["status"].get("authenticated"), None);
    assert_eq!(cluster.get(TOKENS).await.0, 405);
}

#[tokio::test]
async fn a_policy_decides() {
    let reviews = Reviews {
        authenticate: Arc::new(|token| {
            (token == "good").then(|| ("prometheus".to_owned(), vec!["scrapers".to_owned()]))
        }),
        authorize: Arc::new(|spec| spec["nonResourceAttributes"]["path"] == "/metrics"),
    };
    let cluster = cluster_with(Options {
        reviews,
        ..Options::default()
    })
    .await;
    let (_, good) = cluster.post(TOKENS, &token("good")).await;
    assert_eq!(
        good["status"]["user"],
        json!({"username": "prometheus", "groups": ["scrapers"]})
    );
    let (_, bad) = cluster.post(TOKENS, &token("bad")).await;
    assert_eq!(
        (bad["status"].get("authenticated"), &bad["status"]["error"]),
        (None, &json!("[invalid bearer token]"))
    );
    assert_eq!(
        cluster.post(ACCESS, &access("/metrics")).await.1["status"]["allowed"],
        true
    );
    assert_eq!(
        cluster.post(ACCESS, &access("/debug")).await.1["status"]["allowed"],
        false
    );
}
