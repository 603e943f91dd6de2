//! One request to the API server, with a bound on each try and on all tries together.

use std::future::Future;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};

use crate::Error;

/// How long a try may take. The API server itself ends ordinary requests after 60 s; a part that waits for a label write
/// that long has lost its connection.
const TRY_TIMEOUT: Duration = Duration::from_secs(15);

/// First and longest pause between tries, and the time after which no new try starts.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
const TRIES_END: Duration = Duration::from_secs(60);

/// Runs `request` once, bounded.
pub(crate) async fn once<T>(
    what: impl Into<String>,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    let what = what.into();
    match tokio::time::timeout(TRY_TIMEOUT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(Error::request(what, source)),
        Err(_) => Err(Error::TimedOut {
            what,
            after: TRY_TIMEOUT,
        }),
    }
}

/// Runs `request` until it succeeds, fails for good, or a minute is over; pauses grow, with jitter so that the nodes of a
/// cluster do not come back all at once, and are never shorter than the API server asked for.
pub(crate) async fn retried<T, F>(what: &str, request: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let mut request = request;
    (|| once(what, request()))
        .retry(
            ExponentialBuilder::default()
                .with_min_delay(FIRST_PAUSE)
                .with_max_delay(LONGEST_PAUSE)
                .without_max_times()
                .with_total_delay(Some(TRIES_END))
                .with_jitter(),
        )
        .when(Error::is_transient)
        .adjust(|error: &Error, pause| {
            pause.map(|pause| pause.max(error.retry_after().unwrap_or_default().min(TRIES_END)))
        })
        .notify(|error, pause| tracing::debug!(%error, ?pause, "trying again"))
        .await
}
