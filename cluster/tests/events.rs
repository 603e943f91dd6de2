//! The event recorder against the simulated API server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use cluster::events::{Event, Recorder, Severity};
use common::{BOUND, NAME, client, requests, server, watched};
use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};
use sim_kubernetes::{Action, Fault, Server};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

struct Recording {
    server: Server,
    recorder: Recorder,
    node: ObjectReference,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

async fn start() -> Recording {
    let server = server().await;
    let (_, _, state) = watched(&server).await;
    let shutdown = CancellationToken::new();
    let (recorder, task) = Recorder::start(
        client(&server).await,
        "lathe-test",
        "pod-1",
        shutdown.clone(),
    );
    Recording {
        server,
        recorder,
        node: state.reference(),
        shutdown,
        task,
    }
}

impl Recording {
    fn say(&self, note: &str) {
        let event = Event {
            severity: Severity::Warning,
            reason: "MigConfigFailed".to_owned(),
            action: "ApplyMigConfig".to_owned(),
            note: note.to_owned(),
        };
        self.recorder.publish(&self.node, event);
    }

    fn events(&self) -> Vec<Value> {
        self.server.objects("events.k8s.io/v1", "Event")
    }

    async fn until(&self, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        timeout(BOUND, async {
            loop {
                let events = self.events();
                if wanted(&events) {
                    return events;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("never so: {:#?}", self.events()))
    }

    /// Ends the task once everything said was written.
    async fn end(&mut self) {
        self.shutdown.cancel();
        timeout(BOUND, &mut self.task).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn an_event_says_who_what_and_about_whom() {
    let mut recording = start().await;
    recording.say("GPU 3 is in use by process 42 (python)");
    let events = recording.until(|events| !events.is_empty()).await;
    let event = &events[0];
    assert_eq!(event["metadata"]["namespace"], "default");
    assert!(
        event["metadata"]["name"]
            .as_str()
            .unwrap()
            .starts_with("node-a.")
    );
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["reason"], "MigConfigFailed");
    assert_eq!(event["action"], "ApplyMigConfig");
    assert_eq!(event["note"], "GPU 3 is in use by process 42 (python)");
    assert_eq!(event["reportingController"], "lathe-test");
    assert_eq!(event["reportingInstance"], "pod-1");
    assert_eq!(event["regarding"]["kind"], "Node");
    assert_eq!(event["regarding"]["apiVersion"], "v1");
    assert_eq!(event["regarding"]["name"], NAME);
    assert_eq!(event["regarding"]["uid"], json!(recording.node.uid));
    assert!(event["eventTime"].is_string());
    // What kubectl describe looks for is the core form of the same object.
    let core = &recording.server.objects("v1", "Event")[0];
    assert_eq!(core["involvedObject"]["name"], NAME);
    assert_eq!(core["message"], event["note"]);
    recording.end().await;
}

#[tokio::test]
async fn what_is_said_again_counts_instead_of_flooding() {
    let mut recording = start().await;
    for _ in 0..20 {
        recording.say("busy");
    }
    recording.say("something else");
    recording.until(|events| events.len() == 2).await;
    recording.end().await;
    let events = recording.events();
    let busy = events.iter().find(|event| event["note"] == "busy").unwrap();
    // The second at once; the rest within the minute wait for its end.
    assert_eq!(busy["series"]["count"], 2);
    assert_eq!(requests(&recording.server, "POST", "/events"), 2);
    assert_eq!(requests(&recording.server, "PATCH", "/events"), 1);
}

#[tokio::test]
async fn an_event_the_server_forgot_is_made_anew() {
    let mut recording = start().await;
    recording.say("busy");
    let events = recording.until(|events| events.len() == 1).await;
    let name = events[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let api: kube::Api<k8s_openapi::api::core::v1::Event> =
        kube::Api::namespaced(client(&recording.server).await, "default");
    api.delete(&name, &kube::api::DeleteParams::default())
        .await
        .unwrap();
    recording.say("busy");
    let events = recording.until(|events| events.len() == 1).await;
    assert_ne!(events[0]["metadata"]["name"], json!(name));
    recording.end().await;
}

#[tokio::test]
async fn an_answer_that_is_lost_makes_no_second_event() {
    let mut recording = start().await;
    recording
        .server
        .faults()
        .add(Fault::new(Action::LoseAnswer).method("POST").times(1));
    recording.say("busy");
    recording.until(|events| events.len() == 1).await;
    recording.say("busy");
    recording
        .until(|events| events.len() == 1 && events[0]["series"]["count"] == 2)
        .await;
    recording.end().await;
    assert_eq!(recording.events().len(), 1);
}

#[tokio::test]
async fn an_outage_delays_events_and_holds_nobody_up() {
    let mut recording = start().await;
    recording
        .server
        .faults()
        .refuse_connections(Duration::from_millis(500));
    for number in 0..10 {
        recording.say(&format!("number {number}"));
    }
    recording.until(|events| events.len() == 10).await;
    recording.end().await;
}

#[tokio::test]
async fn events_beyond_the_queue_are_dropped() {
    let mut recording = start().await;
    recording.server.faults().add(
        Fault::new(Action::Delay(Duration::from_millis(200)))
            .method("POST")
            .times(1),
    );
    for number in 0..1000 {
        recording.say(&format!("number {number}"));
    }
    // The end would cut off what takes longer than some seconds.
    recording.until(|events| events.len() >= 64).await;
    recording.end().await;
    let events = recording.events().len();
    assert!(
        (64..=66).contains(&events),
        "{events} events for a queue of 64"
    );
}

#[tokio::test]
async fn shutdown_does_not_wait_for_a_server_that_is_away() {
    let mut recording = start().await;
    recording
        .server
        .faults()
        .refuse_connections(Duration::from_secs(3600));
    recording.say("nobody will read this");
    recording.end().await;
    assert_eq!(recording.events().len(), 0);
}

#[tokio::test]
async fn an_event_the_server_refuses_is_given_up() {
    let mut recording = start().await;
    recording.server.faults().add(
        Fault::new(Action::Answer(403, None))
            .method("POST")
            .times(1),
    );
    recording.say("forbidden");
    recording.say("allowed");
    let events = recording.until(|events| !events.is_empty()).await;
    assert_eq!(events[0]["note"], "allowed");
    recording.end().await;
    assert_eq!(requests(&recording.server, "POST", "/events"), 2);
}
