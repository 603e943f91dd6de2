//! One object followed for as long as the caller likes: listed first, then watched, and begun anew after any trouble.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBuilder};
use futures::StreamExt;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::error::describe;

/// How long a list of one object may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

/// After so many seconds the server is to end a watch.
const WATCH_SECONDS: u32 = 290;

/// A watch that is silent for longer is dead.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);

/// First and longest pause between two lists. Beginning anew costs the API server a list each time.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// A watch that held for this long is a good one: what ends it then is another matter. A list alone shows nothing, where a part
/// may list and not watch, or something on the way cuts watches off.
const STEADY: Duration = Duration::from_secs(10);

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
    #[error("list: {}", describe(.0))]
    List(kube::Error),
    #[error("the list was not answered within {} s", LIST_TIMEOUT.as_secs())]
    ListHangs,
    #[error("the list has no resourceVersion to watch from")]
    NoVersion,
    #[error("watch: {}", describe(.0))]
    Watch(kube::Error),
    #[error("watch broke off: {}", describe(.0))]
    BrokeOff(kube::Error),
    #[error("the watch was silent for {} s", SILENCE.as_secs())]
    Silent,
    #[error("the watch ended as soon as it had begun")]
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
        .with_min_delay(PAUSES.0)
        .with_max_delay(PAUSES.1)
        .without_max_times()
        .with_jitter();
    let mut pause = pauses.build();
    // Said once, however long it lasts; another reason is news.
    let mut told: Option<String> = None;
    let mut is_lost = false;
    loop {
        let mut since = None;
        let trouble = follow_once(&api, &name, |seen| {
            if !matches!(seen, Seen::Listing) {
                if std::mem::take(&mut is_lost) {
                    tracing::info!(kind, name, "the API server is back");
                }
                since.get_or_insert_with(Instant::now);
            }
            take(seen);
        })
        .await
        .to_string();
        if since.is_some_and(|since| since.elapsed() >= STEADY) {
            pause = pauses.build();
            told = None;
        }
        if told.as_ref() != Some(&trouble) {
            tracing::warn!(kind, name, error = %trouble, "lost the watch; what is known of it may be stale");
            take(Seen::Lost(trouble.clone()));
            told = Some(trouble);
            is_lost = true;
        }
        tokio::time::sleep(pause.next().unwrap_or(PAUSES.1)).await;
    }
}

/// From a list to the first trouble. An expired history (410) is one. Beginning again lists the object anew instead of
/// resuming: for a single object that costs no more, and it cannot miss anything.
async fn follow_once<K>(api: &Api<K>, name: &str, mut take: impl FnMut(Seen<K>)) -> Trouble
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let fields = format!("metadata.name={name}");
    take(Seen::Listing);
    let params = ListParams::default().fields(&fields);
    let list = match timeout(LIST_TIMEOUT, api.list(&params)).await {
        Ok(Ok(list)) => list,
        Ok(Err(error)) => return Trouble::List(error),
        Err(_) => return Trouble::ListHangs,
    };
    let version = list.metadata.resource_version.unwrap_or_default();
    let Some(mut version) = Some(version).filter(|version| !version.is_empty()) else {
        return Trouble::NoVersion;
    };
    take(Seen::Listed(list.items.into_iter().next()));
    loop {
        let begun = Instant::now();
        match watch(api, &fields, &mut version, &mut take).await {
            // As it is to after some minutes: on from there.
            Ok(()) if begun.elapsed() >= STEADY => {}
            // kube's own watcher would ask again at once, however often.
            Ok(()) => return Trouble::Ended,
            Err(trouble) => return trouble,
        }
    }
}

/// One watch from `version` on, which goes on with what comes, until the server or the connection ends it.
async fn watch<K>(
    api: &Api<K>,
    fields: &str,
    version: &mut String,
    take: &mut impl FnMut(Seen<K>),
) -> Result<(), Trouble>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let params = WatchParams::default().fields(fields).timeout(WATCH_SECONDS);
    let events = timeout(SILENCE, api.watch(&params, version)).await;
    let events = events
        .map_err(|_| Trouble::Silent)?
        .map_err(Trouble::Watch)?;
    let mut events = std::pin::pin!(events);
    loop {
        let event = timeout(SILENCE, events.next()).await;
        let event = match event.map_err(|_| Trouble::Silent)? {
            Some(event) => event.map_err(Trouble::BrokeOff)?,
            None => return Ok(()),
        };
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                note(version, &object);
                take(Seen::Applied(object));
            }
            WatchEvent::Deleted(object) => {
                note(version, &object);
                take(Seen::Deleted);
            }
            WatchEvent::Bookmark(bookmark) => *version = bookmark.metadata.resource_version,
            WatchEvent::Error(status) => {
                return Err(Trouble::Watch(kube::Error::Api(status)));
            }
        }
    }
}

/// The object's version is where to go on. An object without one, which no API server sends, would have the watch begin
/// with an unknown state.
fn note<K: Resource>(version: &mut String, object: &K) {
    if let Some(new) = object.resource_version() {
        *version = new;
    }
}
