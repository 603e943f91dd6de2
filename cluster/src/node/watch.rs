//! The watch behind a [`super::Node`]: follows one object for as long as the task lives.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::watch::Sender;

use super::state::{Observed, merge, replace};
use crate::error::describe;

/// How long a list of one object may take. Silence after it is bounded by the watcher, which asks the server to end a
/// watch after 290 s and gives up 5 s later.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Why a watch has to begin anew.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{}", describe_watch(.0))]
    Watch(#[from] watcher::Error),
    #[error("the list was not answered within {} s", LIST_TIMEOUT.as_secs())]
    ListHangs,
    #[error("the watch ended")]
    Ended,
}

/// Follows the node until the task is aborted.
pub(super) async fn follow(api: Api<Node>, name: String, seen: Sender<Observed>) {
    let pauses = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(200))
        .with_max_delay(LONGEST_PAUSE)
        .without_max_times()
        .with_jitter();
    let mut pause = pauses.build();
    // Said once, however long it lasts; another reason is news.
    let mut told: Option<String> = None;
    loop {
        let trouble = follow_once(&api, &name, &seen, || {
            if told.take().is_some() {
                tracing::info!(node = name, "the API server is back");
            }
            pause = pauses.build();
        })
        .await
        .to_string();
        if told.as_ref() != Some(&trouble) {
            tracing::warn!(node = name, error = %trouble, "lost the watch; what is known of the node may be stale");
            told = Some(trouble);
        }
        tokio::time::sleep(pause.next().unwrap_or(LONGEST_PAUSE)).await;
    }
}

/// One watch, from its list to its first error. An expired history (410) is such an error. Beginning again lists the node
/// anew instead of resuming: for a single object that costs no more, and it cannot miss anything.
async fn follow_once(
    api: &Api<Node>,
    name: &str,
    seen: &Sender<Observed>,
    mut answered: impl FnMut(),
) -> Trouble {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = std::pin::pin!(watcher(api.clone(), config));
    let mut listing = Some(Listing::begin(seen));
    loop {
        let event = match &listing {
            Some(_) => match tokio::time::timeout(LIST_TIMEOUT, events.next()).await {
                Ok(event) => event,
                Err(_) => return Trouble::ListHangs,
            },
            None => events.next().await,
        };
        match event {
            Some(Ok(Event::Init)) => listing = Some(Listing::begin(seen)),
            Some(Ok(Event::InitApply(node))) => {
                if let Some(listing) = &mut listing {
                    listing.node = Observed::Present(node.into());
                }
            }
            Some(Ok(Event::InitDone)) => {
                answered();
                if let Some(listing) = listing.take() {
                    listing.end(seen);
                }
            }
            Some(Ok(Event::Apply(node))) => {
                answered();
                take_in(seen, Observed::Present(node.into()));
            }
            Some(Ok(Event::Delete(_))) => {
                answered();
                take_in(seen, Observed::Absent);
            }
            Some(Err(error)) => return error.into(),
            None => return Trouble::Ended,
        }
    }
}

/// One line with the last cause: the watcher's own text either stops short of it or repeats a whole Status object.
fn describe_watch(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(source) => format!("list: {}", describe(source)),
        watcher::Error::WatchStartFailed(source) => format!("watch: {}", describe(source)),
        watcher::Error::WatchFailed(source) => format!("watch broke off: {}", describe(source)),
        watcher::Error::WatchError(status) => {
            format!("watch: {}", describe(&kube::Error::Api(status.clone())))
        }
        watcher::Error::NoResourceVersion => error.to_string(),
    }
}

fn take_in(seen: &Sender<Observed>, observed: Observed) {
    seen.send_if_modified(|seen| merge(seen, observed));
}

/// A list under way. `Event::Init` comes before its request is sent.
struct Listing {
    known: Observed,
    node: Observed,
}

impl Listing {
    fn begin(seen: &Sender<Observed>) -> Self {
        Self {
            known: seen.borrow().clone(),
            node: Observed::Absent,
        }
    }

    /// A list is a consistent read: if nothing was written here since it began, what it says is later than what was known,
    /// whatever the versions look like.
    fn end(self, seen: &Sender<Observed>) {
        let Self { known, node } = self;
        seen.send_if_modified(|seen| {
            if *seen == known {
                replace(seen, node)
            } else {
                merge(seen, node)
            }
        });
    }
}
