//! What can go wrong between a part and the API server.

use std::path::PathBuf;
use std::time::Duration;

/// A failure at the API server or on the way to it.
///
/// Every variant says what was asked. [`Error::is_transient`] tells whether asking again can help.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kubeconfig named by a flag or by `KUBECONFIG` cannot be used.
    #[error("kubeconfig {path}: {source}; check that the file exists and names a reachable cluster", path = path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: Box<kube::config::KubeconfigError>,
    },
    /// Neither a kubeconfig nor a service account was found.
    #[error(
        "no way to reach a cluster: {source}; pass --kubeconfig or run in a pod with a service account"
    )]
    NoCluster {
        /// What was tried.
        source: Box<kube::config::InferConfigError>,
    },
    /// The client could not be built from its configuration, for example from a bad certificate.
    #[error("cannot build a client for {cluster}: {}", describe(source))]
    Client {
        /// The API server's address.
        cluster: String,
        /// Why not.
        source: Box<kube::Error>,
    },
    /// The API server, or the connection to it, refused a request.
    #[error("{what}: {}", describe(source))]
    Request {
        /// The request, for example `patch node a`.
        what: String,
        /// The refusal.
        source: Box<kube::Error>,
    },
    /// The API server did not answer in time.
    #[error("{what}: no answer within {} s", after.as_secs_f32())]
    TimedOut {
        /// The request.
        what: String,
        /// How long was waited.
        after: Duration,
    },
}

impl Error {
    pub(crate) fn request(what: impl Into<String>, source: kube::Error) -> Self {
        Self::Request {
            what: what.into(),
            source: Box::new(source),
        }
    }

    /// The HTTP status the API server answered with, if it answered.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Request { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }

    /// The object does not exist (404).
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(404)
    }

    /// Somebody else changed the object first (409).
    pub fn is_conflict(&self) -> bool {
        self.status() == Some(409)
    }

    /// The same request may succeed later: no connection, no answer, or an answer that says so
    /// (429, 500, 502, 503, 504; the codes client-go's rate limiter and retry treat likewise).
    pub fn is_transient(&self) -> bool {
        match self {
            Self::TimedOut { .. } => true,
            Self::Request { source, .. } => match &**source {
                kube::Error::Api(status) => matches!(status.code, 429 | 500 | 502 | 503 | 504),
                kube::Error::HyperError(_)
                | kube::Error::Service(_)
                | kube::Error::ReadEvents(_)
                | kube::Error::HttpError(_) => true,
                _ => false,
            },
            Self::Kubeconfig { .. } | Self::NoCluster { .. } | Self::Client { .. } => false,
        }
    }

    /// How long the API server asked to be left alone (`Retry-After`, carried in the Status' details).
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Request { source, .. } => match &**source {
                kube::Error::Api(status) => status
                    .details
                    .as_ref()
                    .map(|details| details.retry_after_seconds)
                    .filter(|seconds| *seconds > 0)
                    .map(|seconds| Duration::from_secs(u64::from(seconds))),
                _ => None,
            },
            _ => None,
        }
    }
}

/// One line for people: kube's own text repeats a whole Status object in debug form.
pub(crate) fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.message.is_empty() => {
            format!("{} (HTTP {})", status.reason, status.code)
        }
        kube::Error::Api(status) => format!("{} (HTTP {})", status.message, status.code),
        other => {
            let mut text = String::new();
            let mut cause: Option<&dyn std::error::Error> = Some(other);
            while let Some(error) = cause {
                let line = error.to_string();
                // A layer that already prints what is below it would say everything twice.
                if !text.contains(&line) {
                    if !text.is_empty() {
                        text.push_str(": ");
                    }
                    text.push_str(&line);
                }
                cause = error.source();
            }
            text
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use kube::core::Status;
    use kube::core::response::StatusDetails;
    use rstest::rstest;

    use super::*;

    fn answered(code: u16, retry_after: u32) -> Error {
        let status = Status::failure("nodes \"a\" is busy", "Busy")
            .with_code(code)
            .with_details(StatusDetails {
                name: String::new(),
                group: String::new(),
                kind: String::new(),
                uid: String::new(),
                causes: Vec::new(),
                retry_after_seconds: retry_after,
            });
        Error::request("patch node a", kube::Error::Api(Box::new(status)))
    }

    #[rstest]
    #[case(429, true)]
    #[case(500, true)]
    #[case(502, true)]
    #[case(503, true)]
    #[case(504, true)]
    #[case(400, false)]
    #[case(401, false)]
    #[case(403, false)]
    #[case(404, false)]
    #[case(409, false)]
    #[case(410, false)]
    #[case(422, false)]
    fn only_some_answers_invite_another_try(#[case] code: u16, #[case] transient: bool) {
        let error = answered(code, 0);
        assert_eq!(error.is_transient(), transient);
        assert_eq!(error.is_not_found(), code == 404);
        assert_eq!(error.is_conflict(), code == 409);
        assert_eq!(error.retry_after(), None);
    }

    #[test]
    fn the_servers_own_delay_is_kept() {
        assert_eq!(answered(429, 7).retry_after(), Some(Duration::from_secs(7)));
    }

    #[test]
    fn the_text_is_one_line_with_the_request_first() {
        assert_eq!(
            answered(503, 0).to_string(),
            "patch node a: nodes \"a\" is busy (HTTP 503)"
        );
    }
}
