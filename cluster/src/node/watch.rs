//! The watch behind a [`super::Node`]: what is heard of the object, merged with what is known.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use tokio::sync::watch::Sender;

use super::state::{Observed, merge, replace};
use crate::follow::{Seen, follow};

/// Follows the node until the task is aborted.
pub(super) async fn keep(api: Api<Node>, name: String, seen: Sender<Observed>) {
    let mut known = Observed::NotYet;
    follow(api, "Node", name, |heard| match heard {
        Seen::Listing => known = seen.borrow().clone(),
        Seen::Listed(node) => {
            let node = node.map_or(Observed::Absent, |node| Observed::Present(node.into()));
            end_list(&seen, &known, node);
        }
        Seen::Applied(node) => take_in(&seen, Observed::Present(node.into())),
        Seen::Deleted => take_in(&seen, Observed::Absent),
        Seen::Lost(_) => {}
    })
    .await;
}

fn take_in(seen: &Sender<Observed>, observed: Observed) {
    seen.send_if_modified(|seen| merge(seen, observed));
}

/// A list is a consistent read: if nothing was written here since it began, what it says is later than what was known,
/// whatever the versions look like.
fn end_list(seen: &Sender<Observed>, known: &Observed, listed: Observed) {
    seen.send_if_modified(|seen| {
        if seen == known {
            replace(seen, listed)
        } else {
            merge(seen, listed)
        }
    });
}
