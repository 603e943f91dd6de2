//! Events: two shapes of one object, and what each is held to.

use rstest::rstest;
use serde_json::{Value, json};

use crate::http::cluster;

#[tokio::test]
async fn both_shapes_of_an_event_are_one_object() {
    let cluster = cluster().await;
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e1"},
        "eventTime": "2026-01-02T03:04:05.000006Z", "reportingController": "lathe", "reportingInstance": "lathe-0",
        "action": "Applied", "reason": "MigApplied", "type": "Normal", "note": "done",
        "regarding": {"kind": "Node", "name": "n"},
    });
    let new_path = "/apis/events.k8s.io/v1/namespaces/default/events";
    let (code, made) = cluster.post(new_path, &event).await;
    assert_eq!((code, &made["note"]), (201, &json!("done")));
    let (_, core) = cluster.get("/api/v1/namespaces/default/events/e1").await;
    assert_eq!(
        (
            &core["apiVersion"],
            &core["message"],
            &core["involvedObject"]["name"],
            &core["reportingComponent"]
        ),
        (&json!("v1"), &json!("done"), &json!("n"), &json!("lathe"))
    );
    assert_eq!(core.get("note"), None);
    let path = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.kind%3DNode%2CinvolvedObject.name%3Dn";
    let (_, list) = cluster.get(path).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);

    let mut poor = event.clone();
    poor["metadata"]["name"] = json!("e2");
    poor.as_object_mut().unwrap().remove("eventTime");
    let (code, answer) = cluster.post(new_path, &poor).await;
    assert_eq!(
        (code, &answer["details"]["causes"][0]["field"]),
        (422, &json!("eventTime"))
    );
    let mut elsewhere = event;
    elsewhere["regarding"]["namespace"] = json!("kube-system");
    let (code, answer) = cluster.post(new_path, &elsewhere).await;
    assert_eq!(
        (code, &answer["details"]["causes"][0]["field"]),
        (422, &json!("involvedObject.namespace"))
    );
}

/// An Event of the new shape that holds to everything.
fn new_event() -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
        "eventTime": "2026-01-02T03:04:05.000006Z", "reportingController": "nvidia.com/mig-manager",
        "reportingInstance": "n", "action": "Applied", "reason": "MigApplied", "type": "Normal", "note": "done",
        "regarding": {"kind": "Node", "name": "n"},
    })
}

#[rstest]
#[case::controller("/reportingController", json!("mig manager"), "reportingController")]
#[case::no_action("/action", json!(""), "action")]
#[case::long_reason("/reason", json!("r".repeat(129)), "reason")]
#[case::long_note("/note", json!("n".repeat(1025)), "message")]
#[case::kind("/type", json!("Bad"), "type")]
#[tokio::test]
async fn an_event_of_the_new_shape_is_held_to_much(
    #[case] pointer: &str,
    #[case] value: Value,
    #[case] field: &str,
) {
    let cluster = cluster().await;
    let mut event = new_event();
    *event.pointer_mut(pointer).unwrap() = value;
    let path = "/apis/events.k8s.io/v1/namespaces/default/events";
    let (code, answer) = cluster.post(path, &event).await;
    assert_eq!(
        (code, &answer["details"]["causes"][0]["field"]),
        (422, &json!(field))
    );
    assert_eq!(cluster.post(path, &new_event()).await.0, 201);
}

#[tokio::test]
async fn only_the_series_of_an_event_goes_on() {
    let cluster = cluster().await;
    let path = "/apis/events.k8s.io/v1/namespaces/default/events";
    cluster.post(path, &new_event()).await;
    let patch = async |patch: Value| {
        cluster
            .patch(&format!("{path}/e"), crate::http::MERGE_PATCH, &patch)
            .await
    };
    let series = |count: i64| json!({"series": {"count": count, "lastObservedTime": "2026-01-02T03:05:00.000000Z"}});
    assert_eq!(patch(series(2)).await.0, 200);
    let (code, answer) = patch(series(1)).await;
    assert_eq!(
        (code, &answer["details"]["causes"][0]["field"]),
        (422, &json!("series.count"))
    );
    let (code, answer) = patch(json!({"note": "other"})).await;
    assert_eq!(
        (code, &answer["details"]["causes"][0]["message"]),
        (422, &json!("Invalid value: \"other\": field is immutable"))
    );
}

#[tokio::test]
async fn an_old_event_may_be_poor_unless_it_has_an_event_time() {
    let cluster = cluster().await;
    let path = "/api/v1/namespaces/default/events";
    let mut event =
        json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Node", "name": "n"}});
    assert_eq!(cluster.post(path, &event).await.0, 201);
    event["metadata"]["name"] = json!("f");
    event["eventTime"] = json!("2026-01-02T03:04:05.000006Z");
    let (code, answer) = cluster.post(path, &event).await;
    assert_eq!(code, 422);
    assert_eq!(
        answer["details"]["causes"][0]["field"],
        "reportingComponent"
    );
}
