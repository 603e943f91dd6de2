//! A server and raw requests to it.

use std::time::Duration;

use futures::StreamExt;
use http_body_util::BodyExt;
use hyper::Request;
use kube::client::Body;
use kube::{Client, Config};
use serde_json::{Value, json};
use sim_kubernetes::{Options, Server};

/// Nothing in these tests takes longer, unless it hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) const JSON_PATCH: &str = "application/json-patch+json";
pub(crate) const MERGE_PATCH: &str = "application/merge-patch+json";
pub(crate) const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
pub(crate) const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// A running server with a client.
pub(crate) struct Cluster {
    pub(crate) server: Server,
    pub(crate) client: Client,
}

/// An answer: status code and body.
pub(crate) type Answer = (u16, Value);

pub(crate) async fn cluster() -> Cluster {
    cluster_with(Options::default()).await
}

pub(crate) async fn cluster_with(options: Options) -> Cluster {
    let server = Server::start(options).await.unwrap();
    let client = client_of(&server);
    Cluster { server, client }
}

pub(crate) fn client_of(server: &Server) -> Client {
    let mut config = Config::new(server.url().parse().unwrap());
    // These tests look at the answers that a client would retry by itself.
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

impl Cluster {
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let bytes = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        let request = request.body(Body::from(bytes)).unwrap();
        let response = tokio::time::timeout(LIMIT, self.client.send(request))
            .await
            .unwrap()
            .unwrap();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&bytes).into_owned()));
        (code, body)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], &Value::Null).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], body)
            .await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send("PUT", path, &[("content-type", "application/json")], body)
            .await
    }

    pub(crate) async fn patch(&self, path: &str, kind: &str, body: &Value) -> Answer {
        self.send("PATCH", path, &[("content-type", kind)], body)
            .await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], &Value::Null).await
    }

    /// Opens a watch and returns its events as they come.
    pub(crate) async fn watch(&self, path: &str) -> Events {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        let response = tokio::time::timeout(LIMIT, self.client.send(request))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(response.status().as_u16(), 200, "a watch starts with 200");
        Events {
            body: response.into_body(),
            buffer: Vec::new(),
        }
    }
}

/// The events of a watch.
pub(crate) struct Events {
    body: Body,
    buffer: Vec<u8>,
}

impl Events {
    /// The next event; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        self.try_next().await.expect("the stream does not break")
    }

    /// The next event, or why the stream broke.
    pub(crate) async fn try_next(&mut self) -> Result<Option<Value>, String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line).unwrap()));
            }
            let frame = tokio::time::timeout(LIMIT, self.body.frame())
                .await
                .expect("an event in time");
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(error.to_string()),
                Some(Ok(frame)) => self.buffer.extend(frame.into_data().unwrap_or_default()),
            }
        }
    }

    /// Type and name of the next event.
    pub(crate) async fn brief(&mut self) -> (String, String) {
        let event = self.next().await.expect("an event");
        let name = event["object"]["metadata"]["name"]
            .as_str()
            .unwrap_or("")
            .to_owned();
        (event["type"].as_str().unwrap().to_owned(), name)
    }

    /// Everything up to the end of the stream.
    pub(crate) async fn rest(self) -> Vec<Value> {
        futures::stream::unfold(self, |mut events| async {
            events.next().await.map(|event| (event, events))
        })
        .collect()
        .await
    }
}

pub(crate) const NODES: &str = "/api/v1/nodes";
pub(crate) const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

pub(crate) fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
}

pub(crate) fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"key": "value"}})
}

/// A pod on a node, or on none.
pub(crate) fn pod(name: &str, node: Option<&str>) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "app:1"}]},
    })
}

pub(crate) fn version_of(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}
