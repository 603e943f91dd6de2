//! Which path is answered by what.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use hyper::StatusCode;

/// The Prometheus text format 0.0.4, as the Go client library writes it.
pub const METRICS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const TEXT: &str = "text/plain; charset=utf-8";

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: StatusCode,
    /// `Content-Type`.
    pub content_type: &'static str,
    /// The body; left out of answers to HEAD.
    pub body: Bytes,
}

impl Reply {
    /// 200 with a page of metrics.
    pub fn metrics(body: impl Into<Bytes>) -> Self {
        Self {
            status: StatusCode::OK,
            content_type: METRICS_CONTENT_TYPE,
            body: body.into(),
        }
    }

    /// `status` with a line for people.
    pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            content_type: TEXT,
            body: body.into(),
        }
    }

    /// 200 with an HTML page.
    pub fn html(body: impl Into<Bytes>) -> Self {
        Self {
            status: StatusCode::OK,
            content_type: "text/html; charset=utf-8",
            body: body.into(),
        }
    }

    /// What a probe gets: 200 `ok`, or 503 with the reason.
    pub fn probe(health: Result<(), String>) -> Self {
        match health {
            Ok(()) => Self::text(StatusCode::OK, "ok"),
            Err(reason) => Self::text(StatusCode::SERVICE_UNAVAILABLE, reason),
        }
    }
}

type Answer = Pin<Box<dyn Future<Output = Reply> + Send>>;
type Handler = Box<dyn Fn() -> Answer + Send + Sync>;

/// The paths of a server. A path matches exactly; what comes after `?` plays no part.
#[derive(Default)]
pub struct Routes {
    routes: Vec<(&'static str, Handler)>,
}

impl Routes {
    /// No paths: everything is 404.
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers GET and HEAD on `path` with what `handler` gives.
    #[must_use]
    pub fn get<F, A>(mut self, path: &'static str, handler: F) -> Self
    where
        F: Fn() -> A + Send + Sync + 'static,
        A: Future<Output = Reply> + Send + 'static,
    {
        self.routes
            .push((path, Box::new(move || Box::pin(handler()))));
        self
    }

    pub(super) fn find(&self, path: &str) -> Option<&Handler> {
        self.routes
            .iter()
            .find(|(known, _)| *known == path)
            .map(|(_, handler)| handler)
    }
}

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.routes.iter().map(|(path, _)| path))
            .finish()
    }
}
