//! Token and access reviews. By default every token is a user and every user may do everything.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::json;

/// Who a token belongs to: user name and groups; `None` when the token is not known.
pub type Authenticate = Arc<dyn Fn(&str) -> Option<(String, Vec<String>)> + Send + Sync>;
/// Whether the `spec` of a SubjectAccessReview is allowed.
pub type Authorize = Arc<dyn Fn(&Value) -> bool + Send + Sync>;

/// How reviews are answered.
#[derive(Clone)]
pub struct Reviews {
    /// Answers TokenReviews.
    pub authenticate: Authenticate,
    /// Answers SubjectAccessReviews.
    pub authorize: Authorize,
}

impl Default for Reviews {
    fn default() -> Self {
        Self {
            authenticate: Arc::new(|_| {
                Some((
                    "kubernetes-admin".to_owned(),
                    vec![
                        "system:masters".to_owned(),
                        "system:authenticated".to_owned(),
                    ],
                ))
            }),
            authorize: Arc::new(|_| true),
        }
    }
}

impl fmt::Debug for Reviews {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Reviews").finish_non_exhaustive()
    }
}

impl Reviews {
    /// Fills in the status of a review. `bearer` is the token of the request itself.
    pub(crate) fn answer(&self, kind: &str, mut body: Value, bearer: &str) -> Value {
        let status = match kind {
            "TokenReview" => self.token(json::text(&body, &["spec", "token"])),
            "SelfSubjectReview" => self.who(bearer),
            _ => self.access(&body["spec"]),
        };
        json::set(&mut body, &["status"], status);
        json::default(&mut body, &["metadata"], json!({"creationTimestamp": null}));
        body
    }

    fn token(&self, token: &str) -> Value {
        match (self.authenticate)(token) {
            Some((user, groups)) if !token.is_empty() => {
                json!({"authenticated": true, "user": {"username": user, "groups": groups}})
            }
            _ => json!({"user": {}, "error": "[invalid bearer token]"}),
        }
    }

    fn who(&self, bearer: &str) -> Value {
        let (user, groups) = (self.authenticate)(bearer).unwrap_or_else(|| {
            (
                "system:anonymous".to_owned(),
                vec!["system:unauthenticated".to_owned()],
            )
        });
        json!({ "userInfo": {"username": user, "groups": groups} })
    }

    fn access(&self, spec: &Value) -> Value {
        if (self.authorize)(spec) {
            json!({"allowed": true})
        } else {
            json!({"allowed": false, "reason": "not allowed by the configured policy"})
        }
    }
}
