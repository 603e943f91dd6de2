//! Requests and watches of one server, raw.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Request;
use hyper::header::WARNING;
use kube::client::Body;
use kube::{Client, Config};
use serde_json::Value;

use crate::table::Step;

/// No request takes longer, unless it hangs. The real server waits 3 s for a version it has not reached.
const LIMIT: Duration = Duration::from_secs(60);

/// A server.
pub(crate) struct Api {
    client: Client,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: Value,
    pub(crate) warnings: Vec<String>,
}

impl Api {
    pub(crate) fn new(mut config: Config) -> Self {
        // The table speaks of answers that a client would retry by itself.
        config.default_retry = false;
        Self {
            client: Client::try_from(config).unwrap(),
        }
    }

    /// Sends the request of a step.
    pub(crate) async fn send(&self, step: &Step) -> Answer {
        let line = step.request.as_deref().expect("a request");
        let (method, path) = line.split_once(' ').expect("method and path");
        let body = match (&step.text, &step.body) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(body)) => body.to_string().into_bytes(),
            (None, None) => Vec::new(),
        };
        let content = match (step.content.as_deref(), step.patch.as_deref()) {
            (Some(given), _) => given.to_owned(),
            (None, Some("apply")) => "application/apply-patch+yaml".to_owned(),
            (None, Some("json")) => "application/json-patch+json".to_owned(),
            (None, Some("merge")) => "application/merge-patch+json".to_owned(),
            (None, Some("strategic")) => "application/strategic-merge-patch+json".to_owned(),
            (None, Some(other)) => panic!("no patch format {other}"),
            (None, None) => "application/json".to_owned(),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content)
            .header(
                "accept",
                step.accept.as_deref().unwrap_or("application/json"),
            )
            .header("user-agent", step.agent.as_deref().unwrap_or("behaviour/1"))
            .body(Body::from(body))
            .unwrap();
        let response = tokio::time::timeout(LIMIT, self.client.send(request))
            .await
            .unwrap_or_else(|_| panic!("no answer to {line}"))
            .unwrap_or_else(|error| panic!("{line}: {error}"));
        let code = response.status().as_u16();
        let warnings = response
            .headers()
            .get_all(WARNING)
            .iter()
            .map(|value| warning(&String::from_utf8_lossy(value.as_bytes())))
            .collect();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&bytes).into_owned()));
        Answer {
            code,
            body,
            warnings,
        }
    }

    /// Starts a watch.
    pub(crate) async fn watch(&self, path: &str, accept: Option<&str>) -> Events {
        let request = Request::builder()
            .uri(path)
            .header("accept", accept.unwrap_or("application/json"))
            .body(Body::empty())
            .unwrap();
        let response = tokio::time::timeout(LIMIT, self.client.send(request))
            .await
            .unwrap_or_else(|_| panic!("no answer to the watch of {path}"))
            .unwrap();
        assert_eq!(response.status().as_u16(), 200, "the watch of {path}");
        Events {
            body: response.into_body(),
            buffer: Vec::new(),
        }
    }
}

/// The text of a header `299 - "text"`.
fn warning(header: &str) -> String {
    let quoted = header.strip_prefix("299 - ").unwrap_or(header);
    serde_json::from_str(quoted).unwrap_or_else(|_| quoted.to_owned())
}

/// The events of a running watch.
pub(crate) struct Events {
    body: Body,
    buffer: Vec<u8>,
}

impl Events {
    /// The next event; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = tokio::time::timeout(LIMIT, self.body.frame())
                .await
                .unwrap_or_else(|_| panic!("no event in {LIMIT:?}"))?;
            self.buffer
                .extend(frame.unwrap().into_data().unwrap_or_default());
        }
    }
}
