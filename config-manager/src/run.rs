//! The loop: what was chosen becomes the link, and the process is told.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use cluster::named_config::{self, Choice, Selection, Source, Trouble};
use cluster::node::Node;
use kube::Client;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::{Config, Error, link, process};

/// What the empty configuration is linked to.
const EMPTY: &str = "/dev/null";

/// How long making the link once may wait for the API server. After that it is better to fail visibly; the kubelet starts
/// an init container again.
const ONCE_LIMIT: Duration = Duration::from_secs(60);

/// Between two tries to tell a process that may not be told.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Makes the link and, unless asked to do it once, keeps it right until `shutdown` is cancelled.
///
/// While running, a label that names nothing or an API server that does not answer changes nothing and is told in the log.
///
/// # Errors
/// [`Error::Link`] at any time, for a link that cannot be made is a fault of the manifest; the others only when asked to do
/// it once.
pub async fn run(config: Config, client: Client, shutdown: CancellationToken) -> Result<(), Error> {
    let node = Node::watch(client, &*config.node_name);
    let source = std::path::absolute(&config.source).unwrap_or_else(|_| config.source.clone());
    let seen = named_config::follow(&node, config.rules.clone(), &Source::Folder(source.clone()));
    drop(node);
    let manager = Manager {
        config,
        source,
        content: None,
    };
    if manager.config.oneshot {
        tokio::select! {
            done = manager.once(seen) => done,
            () = shutdown.cancelled() => Err(Error::Interrupted),
        }
    } else {
        tokio::select! {
            ended = manager.keep(seen) => ended,
            () = shutdown.cancelled() => Ok(()),
        }
    }
}

struct Manager {
    config: Config,
    source: PathBuf,
    /// What the link's file said when it was last looked at.
    content: Option<Arc<str>>,
}

impl Manager {
    async fn once(mut self, mut seen: Receiver<Selection>) -> Result<(), Error> {
        let end = Instant::now() + ONCE_LIMIT;
        loop {
            let Selection { in_force, trouble } = seen.borrow_and_update().clone();
            if let Some(choice) = in_force {
                return if self.link(&choice)? {
                    self.tell()
                } else {
                    Ok(())
                };
            }
            let waiting_for = match trouble {
                Some(trouble) if !trouble.is_waiting() => return Err(trouble.into()),
                Some(trouble) => trouble.to_string(),
                None => "waiting for a config".to_owned(),
            };
            match timeout_at(end, seen.changed()).await {
                Ok(Ok(())) => {}
                // Nobody looks any more: the runtime ends.
                Ok(Err(_)) => return Err(Error::Interrupted),
                Err(_) => {
                    return Err(Error::TimedOut {
                        waiting_for,
                        after: ONCE_LIMIT,
                    });
                }
            }
        }
    }

    async fn keep(mut self, mut seen: Receiver<Selection>) -> Result<(), Error> {
        let mut logged = None;
        // Set while the process is still to be told.
        let mut untold: Option<ExponentialBackoff> = None;
        loop {
            let Selection { in_force, trouble } = seen.borrow_and_update().clone();
            if let Some(choice) = &in_force
                && self.link(choice)?
            {
                untold = Some(pauses());
            }
            if logged != trouble {
                log(trouble.as_ref(), in_force.as_ref());
                logged = trouble;
            }
            let pause = match &mut untold {
                None => None,
                Some(pauses) => match self.tell() {
                    Ok(()) => {
                        untold = None;
                        None
                    }
                    Err(error) => {
                        let pause = pauses.next().unwrap_or(LONGEST_PAUSE);
                        tracing::warn!(%error, ?pause, "the process does not know of the change; trying again");
                        Some(pause)
                    }
                },
            };
            let again = async {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = seen.changed() => if changed.is_err() {
                    return Ok(());
                },
                () = again => {}
            }
        }
    }

    /// Makes the link; the answer is whether a process that read the file before has to read it again.
    fn link(&mut self, choice: &Choice) -> Result<bool, Error> {
        let target = match &choice.name {
            Some(name) => self.source.join(name),
            None => PathBuf::from(EMPTY),
        };
        let path = &self.config.link;
        let is_linked = link::place(path, &target).map_err(|source| Error::Link {
            link: path.clone(),
            source,
        })?;
        let known = self.content.replace(Arc::clone(&choice.content));
        let is_rewritten = known.as_ref().is_some_and(|known| *known != choice.content);
        let (path, target, reason) = (path.display(), target.display(), choice.reason);
        if is_linked {
            tracing::info!(link = %path, %target, %reason, "linked");
        } else if is_rewritten {
            tracing::info!(link = %path, %target, "the config has other content now");
        } else if known.is_none() {
            tracing::info!(link = %path, %target, %reason, "the link is right already");
        }
        Ok(is_linked || is_rewritten)
    }

    fn tell(&self) -> Result<(), Error> {
        let Some(notice) = &self.config.notice else {
            return Ok(());
        };
        let signal = notice.signal.as_raw();
        let process = &notice.process;
        let count = process::tell(process, notice.signal).map_err(|source| Error::Signal {
            signal: format!("signal {signal}"),
            process: process.clone(),
            source,
        })?;
        if count == 0 {
            tracing::info!(
                process,
                "there is no such process yet: it will find the link when it starts"
            );
        } else {
            tracing::info!(process, signal, count, "told of the change");
        }
        Ok(())
    }
}

fn pauses() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(FIRST_PAUSE)
        .with_max_delay(LONGEST_PAUSE)
        .without_max_times()
        .build()
}

fn log(trouble: Option<&Trouble>, in_force: Option<&Choice>) {
    let Some(trouble) = trouble else {
        return;
    };
    match in_force {
        Some(_) => tracing::warn!(%trouble, "the config stays as it was"),
        None if trouble.is_waiting() => tracing::info!("{trouble}"),
        None => tracing::warn!(%trouble, "there is no config yet"),
    }
}
