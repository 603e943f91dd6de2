//! One object followed for as long as the caller likes: listed first, then watched, and begun anew after any trouble.

use std::fmt::Debug;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use futures::StreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::error::describe;

/// How long a list of one object may take. Silence after it is bounded by the watcher, which asks the server to end a
/// watch after 290 s and gives up 5 s later.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What is heard of the object.
#[derive(Debug)]
pub(crate) enum Seen<K> {
    /// A list begins; its request is not sent yet.
    Listing,
    /// What the list said.
    Listed(Option<K>),
    /// The object as it is now.
    Applied(K),
    /// It was deleted.
    Deleted,
    /// Why nothing is heard for now. A reason that lasts is told once.
    Lost(String),
}

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

/// Follows the object `name`, a `kind` for the log, until dropped. Pauses between tries grow to half a minute.
pub(crate) async fn follow<K>(
    api: Api<K>,
    kind: &'static str,
    name: String,
    mut take: impl FnMut(Seen<K>),
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let pauses = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(200))
        .with_max_delay(LONGEST_PAUSE)
        .without_max_times()
        .with_jitter();
    let mut pause = pauses.build();
    // Said once, however long it lasts; another reason is news.
    let mut told: Option<String> = None;
    loop {
        let trouble = follow_once(&api, &name, |seen| {
            if !matches!(seen, Seen::Listing) {
                if told.take().is_some() {
                    tracing::info!(kind, name, "the API server is back");
                }
                pause = pauses.build();
            }
            take(seen);
        })
        .await
        .to_string();
        if told.as_ref() != Some(&trouble) {
            tracing::warn!(kind, name, error = %trouble, "lost the watch; what is known of it may be stale");
            take(Seen::Lost(trouble.clone()));
            told = Some(trouble);
        }
        tokio::time::sleep(pause.next().unwrap_or(LONGEST_PAUSE)).await;
    }
}

/// One watch, from its list to its first error. An expired history (410) is such an error. Beginning again lists the object
/// anew instead of resuming: for a single object that costs no more, and it cannot miss anything.
async fn follow_once<K>(api: &Api<K>, name: &str, mut take: impl FnMut(Seen<K>)) -> Trouble
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = std::pin::pin!(watcher(api.clone(), config));
    let mut is_listing = true;
    let mut listed = None;
    take(Seen::Listing);
    loop {
        let event = if is_listing {
            match tokio::time::timeout(LIST_TIMEOUT, events.next()).await {
                Ok(event) => event,
                Err(_) => return Trouble::ListHangs,
            }
        } else {
            events.next().await
        };
        match event {
            Some(Ok(Event::Init)) => {
                is_listing = true;
                listed = None;
                take(Seen::Listing);
            }
            Some(Ok(Event::InitApply(object))) => listed = Some(object),
            Some(Ok(Event::InitDone)) => {
                is_listing = false;
                take(Seen::Listed(listed.take()));
            }
            Some(Ok(Event::Apply(object))) => take(Seen::Applied(object)),
            Some(Ok(Event::Delete(_))) => take(Seen::Deleted),
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
