//! Lists: selectors, pages, versions.

use rstest::rstest;
use serde_json::{Value, json};

use crate::http::{CONFIG_MAPS, Cluster, NODES, PODS, cluster, config_map, node, pod, version_of};

fn names(list: &Value) -> Vec<&str> {
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect()
}

async fn labelled_nodes() -> Cluster {
    let cluster = cluster().await;
    for (name, labels) in [
        ("a", json!({"gpu": "a100", "count": "8"})),
        ("b", json!({"gpu": "h100", "count": "4"})),
        ("c", json!({"count": "x"})),
    ] {
        let mut body = node(name);
        body["metadata"]["labels"] = labels;
        cluster.post(NODES, &body).await;
    }
    cluster
}

#[rstest]
#[case("", &["a", "b", "c"])]
#[case("gpu", &["a", "b"])]
#[case("!gpu", &["c"])]
#[case("gpu=a100", &["a"])]
#[case("gpu==a100", &["a"])]
#[case("gpu!=a100", &["b", "c"])]
#[case("gpu in (a100, h100),count=4", &["b"])]
#[case("gpu notin (a100)", &["b", "c"])]
#[case("count>4", &["a"])]
#[case("count<8", &["b"])]
#[case("gpu in (none)", &[])]
#[tokio::test]
async fn label_selectors(#[case] selector: &str, #[case] expected: &[&str]) {
    let cluster = labelled_nodes().await;
    let encoded: String = selector
        .bytes()
        .map(|byte| format!("%{byte:02X}"))
        .collect();
    let (code, list) = cluster
        .get(&format!("{NODES}?labelSelector={encoded}"))
        .await;
    assert_eq!((code, names(&list)), (200, expected.to_vec()));
}

#[rstest]
#[case("gpu%20in%20a100")]
#[case("gpu%20in%20(a100")]
#[case("count%3Efour")]
#[tokio::test]
async fn malformed_label_selectors(#[case] selector: &str) {
    let cluster = cluster().await;
    let (code, answer) = cluster
        .get(&format!("{NODES}?labelSelector={selector}"))
        .await;
    assert_eq!((code, &answer["reason"]), (400, &json!("BadRequest")));
}

#[rstest]
#[case("metadata.name%3Dp2", &["p2"])]
#[case("spec.nodeName%3Dn1", &["p1", "p3"])]
#[case("spec.nodeName!%3Dn1", &["p2"])]
#[case("spec.nodeName%3D", &["p2"])]
#[case("spec.nodeName%3Dn1,metadata.name!%3Dp1", &["p3"])]
#[case("status.phase%3DPending", &["p1", "p2", "p3"])]
#[case("metadata.namespace%3Dkube-system", &[])]
#[tokio::test]
async fn field_selectors(#[case] selector: &str, #[case] expected: &[&str]) {
    let cluster = cluster().await;
    for (name, node) in [("p1", Some("n1")), ("p2", None), ("p3", Some("n1"))] {
        cluster.post(PODS, &pod(name, node)).await;
    }
    let (code, list) = cluster
        .get(&format!("/api/v1/pods?fieldSelector={selector}"))
        .await;
    assert_eq!((code, names(&list)), (200, expected.to_vec()));
}

#[tokio::test]
async fn an_unknown_field_selector_is_refused() {
    let cluster = cluster().await;
    let (code, answer) = cluster
        .get(&format!("{PODS}?fieldSelector=spec.hostname%3Dx"))
        .await;
    assert_eq!(
        (code, &answer["message"]),
        (400, &json!("field label not supported: spec.hostname"))
    );
}

#[tokio::test]
async fn a_list_says_what_it_is() {
    let cluster = cluster().await;
    let (_, made) = cluster.post(NODES, &node("n")).await;
    let (_, list) = cluster.get(NODES).await;
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&json!("NodeList"), &json!("v1"))
    );
    assert_eq!(version_of(&list), version_of(&made));
    assert_eq!(
        list["items"][0].get("kind"),
        None,
        "items of a typed list have no kind of their own"
    );
    let (_, none) = cluster.get("/api/v1/namespaces/nope/pods").await;
    assert_eq!(
        none["items"],
        json!([]),
        "a namespace that is not there is empty"
    );
}

#[tokio::test]
async fn pages_show_one_version() {
    let cluster = cluster().await;
    for name in ["a", "b", "c", "d", "e"] {
        cluster.post(CONFIG_MAPS, &config_map(name)).await;
    }
    let (_, first) = cluster.get(&format!("{CONFIG_MAPS}?limit=2")).await;
    assert_eq!(
        (names(&first), &first["metadata"]["remainingItemCount"]),
        (vec!["a", "b"], &json!(3))
    );
    cluster.delete(&format!("{CONFIG_MAPS}/c")).await;
    cluster.post(CONFIG_MAPS, &config_map("cc")).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, second) = cluster
        .get(&format!("{CONFIG_MAPS}?limit=2&continue={token}"))
        .await;
    assert_eq!(
        names(&second),
        ["c", "d"],
        "the second page does not see what came later"
    );
    assert_eq!(version_of(&second), version_of(&first));
    let token = second["metadata"]["continue"].as_str().unwrap();
    let (_, third) = cluster
        .get(&format!("{CONFIG_MAPS}?limit=2&continue={token}"))
        .await;
    assert_eq!(names(&third), ["e"]);
    assert_eq!(third["metadata"].get("continue"), None);
}

#[tokio::test]
async fn an_expired_page_offers_an_inconsistent_rest() {
    let cluster = cluster().await;
    for name in ["a", "b", "c"] {
        cluster.post(CONFIG_MAPS, &config_map(name)).await;
    }
    let (_, first) = cluster.get(&format!("{CONFIG_MAPS}?limit=1")).await;
    cluster.delete(&format!("{CONFIG_MAPS}/b")).await;
    cluster.server.faults().expire_history();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (code, gone) = cluster
        .get(&format!("{CONFIG_MAPS}?limit=1&continue={token}"))
        .await;
    assert_eq!((code, &gone["reason"]), (410, &json!("Expired")));
    let token = gone["metadata"]["continue"].as_str().unwrap();
    let (code, rest) = cluster
        .get(&format!("{CONFIG_MAPS}?continue={token}"))
        .await;
    assert_eq!((code, names(&rest)), (200, vec!["c"]));
}

#[tokio::test]
async fn versions_of_lists() {
    let cluster = cluster().await;
    let (_, first) = cluster.post(CONFIG_MAPS, &config_map("a")).await;
    let (_, second) = cluster.post(CONFIG_MAPS, &config_map("b")).await;
    let (old, new) = (version_of(&first), version_of(&second));
    let get = async |query: String| cluster.get(&format!("{CONFIG_MAPS}?{query}")).await;
    let (_, exact) = get(format!("resourceVersion={old}&resourceVersionMatch=Exact")).await;
    assert_eq!((names(&exact), version_of(&exact)), (vec!["a"], old));
    let (_, newer) = get(format!(
        "resourceVersion={old}&resourceVersionMatch=NotOlderThan"
    ))
    .await;
    assert_eq!((names(&newer), version_of(&newer)), (vec!["a", "b"], new));
    let (_, any) = get("resourceVersion=0".to_owned()).await;
    assert_eq!(names(&any), ["a", "b"]);
    let (code, future) = get(format!("resourceVersion={}", new + 5)).await;
    let message = format!(
        "Timeout: Too large resource version: {}, current: {new}",
        new + 5
    );
    assert_eq!(
        (code, &future["reason"], &future["message"]),
        (504, &json!("Timeout"), &json!(message))
    );
    assert_eq!(
        future["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
    assert_eq!(get("resourceVersion=x".to_owned()).await.0, 400);
    assert_eq!(get("resourceVersionMatch=Exact".to_owned()).await.0, 422);
    assert_eq!(
        get("resourceVersion=0&resourceVersionMatch=Exact".to_owned())
            .await
            .0,
        422
    );
    cluster.server.faults().expire_history();
    assert_eq!(
        get(format!("resourceVersion={old}&resourceVersionMatch=Exact"))
            .await
            .0,
        410
    );
}
