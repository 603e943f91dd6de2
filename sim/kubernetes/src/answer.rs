//! HTTP answers and bodies.

use std::io;

use bytes::Bytes;
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WARNING};
use hyper::{Response, StatusCode};
use serde_json::Value;

use crate::error::ApiError;
use crate::verbs::watch::Watcher;

/// An answer, whole or streamed.
pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

const JSON: &str = "application/json";

fn build(code: u16, content_type: &'static str, body: UnsyncBoxBody<Bytes, io::Error>) -> Answer {
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn full(bytes: impl Into<Bytes>) -> UnsyncBoxBody<Bytes, io::Error> {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A JSON answer.
pub(crate) fn json(code: u16, object: &Value) -> Answer {
    build(code, JSON, full(object.to_string()))
}

/// Aggregated discovery, which names itself in the content type; clients fall back to the old form without it.
pub(crate) fn aggregated(object: &Value) -> Answer {
    build(
        200,
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        full(object.to_string()),
    )
}

/// A plain-text answer.
pub(crate) fn text(code: u16, body: &'static str) -> Answer {
    build(code, "text/plain; charset=utf-8", full(body))
}

/// Adds a warning that clients show to people.
pub(crate) fn warn(answer: &mut Answer, text: &str) {
    let quoted = Value::from(text).to_string();
    if let Ok(value) = HeaderValue::from_str(&format!("299 - {quoted}")) {
        answer.headers_mut().append(WARNING, value);
    }
}

/// The `Status` of an error.
pub(crate) fn error(error: &ApiError) -> Answer {
    let mut answer = json(error.code, &error.to_status());
    if let Some(seconds) = error.retry_after {
        answer
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

/// The events of a watch, one line each, sent as they come.
pub(crate) fn stream(watcher: Watcher) -> Answer {
    let events = stream::unfold(watcher, |mut watcher| async move {
        let event = watcher.next().await?.map(|event| {
            let mut line = event.to_string();
            line.push('\n');
            Frame::data(Bytes::from(line))
        });
        Some((event, watcher))
    });
    build(200, JSON, StreamBody::new(events).boxed_unsync())
}
