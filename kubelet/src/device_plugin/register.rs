//! Keeps one resource registered: sees the kubelet's socket and the streams, and calls `Register` when the state machine
//! says so.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt as _};
use tokio::sync::watch;

use super::registrar::{Identity, Observation, Registrar};
use super::service::Service;
use super::{Config, Resource};
use crate::api::device_plugin as wire;
use crate::api::device_plugin::registration_client::RegistrationClient;
use crate::folder::Changes;
use crate::registration::Status;
use crate::socket::{Endpoint, Presence};
use crate::{Error, channel};

/// The kubelet's socket in its `device-plugins` folder.
const KUBELET_SOCKET: &str = "kubelet.sock";

/// The version of the API.
const VERSION: &str = "v1beta1";

/// The kubelet dials back before it answers, and gives that 10 s.
const BOUND: Duration = Duration::from_secs(15);

/// What a kubelet says that holds our socket for connected (kubelet 1.37, `PluginConnected`).
const POISONED: &str = "already connected";

/// One resource on one socket.
pub(super) struct Registering<'a> {
    resource: &'a str,
    kubelet: PathBuf,
    request: wire::RegisterRequest,
    changes: Changes,
    presence: Presence,
    streams: watch::Receiver<usize>,
    status: &'a watch::Sender<Status>,
    registrar: Registrar,
}

impl<'a> Registering<'a> {
    pub(super) fn new<R: Resource>(
        config: &'a Config,
        endpoint: &Endpoint,
        service: &Service<R>,
        status: &'a watch::Sender<Status>,
    ) -> Self {
        let name = endpoint.path().file_name().unwrap_or_default();
        let mut streams = service.streams();
        streams.mark_changed();
        Self {
            resource: &config.resource,
            kubelet: config.folder.path().join(KUBELET_SOCKET),
            request: wire::RegisterRequest {
                version: VERSION.to_owned(),
                endpoint: name.to_string_lossy().into_owned(),
                resource_name: config.resource.clone(),
                options: Some(service.options()),
            },
            changes: config.folder.changes(),
            presence: endpoint.presence(),
            streams,
            status,
            registrar: Registrar::default(),
        }
    }

    /// Keeps the resource registered, until the kubelet turns out to be stuck on our socket's name.
    pub(super) async fn until_poisoned(&mut self) {
        self.see(Observation::Kubelet(identity(&self.kubelet)));
        let mut call: Option<BoxFuture<'static, Result<(), Error>>> = None;
        loop {
            let due = match &call {
                Some(_) => None,
                None => self.registrar.due(),
            };
            tokio::select! {
                () = self.changes.next() => self.see(Observation::Kubelet(identity(&self.kubelet))),
                Ok(()) = self.streams.changed() => {
                    let open = *self.streams.borrow_and_update();
                    self.see(Observation::Streams(open));
                }
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now).into()), if due.is_some() => {
                    // The watch may tell of another kubelet only after that one took the call: it would get a second one.
                    self.see(Observation::Kubelet(identity(&self.kubelet)));
                    if self.registrar.due().is_some() {
                        self.see(Observation::Asks);
                        call = Some(self.register().boxed());
                    }
                }
                answer = async { match &mut call {
                    Some(call) => call.await,
                    None => std::future::pending().await,
                } } => {
                    call = None;
                    if let Err(Error::Call { message, .. }) = &answer
                        && message.contains(POISONED)
                    {
                        return;
                    }
                    self.answered(&answer);
                }
            }
        }
    }

    fn see(&mut self, observation: Observation) {
        match observation {
            Observation::Streams(0) | Observation::Kubelet(None) => self.tell(Status::Waiting),
            Observation::Streams(_) => self.tell(Status::Registered),
            _ => {}
        }
        self.registrar.observe(observation, Instant::now());
    }

    fn answered(&mut self, answer: &Result<(), Error>) {
        match answer {
            Ok(()) => self.tell(Status::Registered),
            // A kubelet that is down, or on its way up.
            Err(error) if error.is_transient() => {
                tracing::debug!(resource = self.resource, %error, "not registered yet");
            }
            Err(error) => self.tell(Status::Refused {
                reason: error.to_string(),
            }),
        }
        self.see(Observation::Answered {
            accepted: answer.is_ok(),
        });
    }

    fn tell(&self, now: Status) {
        let resource = self.resource;
        self.status.send_if_modified(|status| {
            let changed = *status != now;
            if changed {
                match &now {
                    Status::Waiting => tracing::info!(resource, "waiting for the kubelet"),
                    Status::Registered => tracing::info!(resource, "registered with the kubelet"),
                    Status::Refused { reason } => {
                        tracing::error!(resource, reason, "the kubelet refuses the resource");
                    }
                }
                *status = now;
            }
            changed
        });
    }

    /// One call. The kubelet dials our socket before it answers, so it has to be in its place.
    fn register(&self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let kubelet = self.kubelet.clone();
        let request = self.request.clone();
        let mut presence = self.presence.clone();
        async move {
            let channel = channel::open(&kubelet, "Register")?;
            let answer = async {
                presence.there().await;
                RegistrationClient::new(channel).register(request).await
            };
            channel::bounded(&kubelet, "Register", BOUND, answer).await?;
            Ok(())
        }
    }
}

/// The kubelet's socket, if there is one.
fn identity(socket: &Path) -> Option<Identity> {
    let metadata = std::fs::symlink_metadata(socket).ok()?;
    metadata.file_type().is_socket().then(|| Identity {
        file: (metadata.dev(), metadata.ino()),
        born: metadata.created().ok(),
    })
}
