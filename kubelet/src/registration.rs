//! Registration by being there: a plugin puts a socket into the kubelet's `plugins_registry` folder, the kubelet asks it who
//! it is and says whether it accepts it.
//!
//! The kubelet comes back on its own after its restart, after a refusal, and when the socket is made again; there is
//! nothing to send and nothing to retry from here.

use std::path::PathBuf;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response};

use crate::api::registration as wire;
use crate::api::registration::registration_server::{
    Registration as RegistrationService, RegistrationServer,
};
use crate::socket::Endpoint;
use crate::{Error, Folder};

/// Which of the kubelet's plugin managers a plugin is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Dynamic resource allocation.
    Dra,
    /// Device plugin: an alternative to its own `Register` call. The name is that of the resource.
    Device,
}

impl Kind {
    /// As the kubelet spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dra => "DRAPlugin",
            Self::Device => "DevicePlugin",
        }
    }
}

/// What the kubelet is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginInfo {
    /// The plugin manager.
    pub kind: Kind,
    /// The driver's name, or the resource's for a device plugin.
    pub name: String,
    /// The socket that serves the plugin, by the path that the kubelet sees. It must listen before the registration does.
    pub endpoint: PathBuf,
    /// gRPC services (`v1.DRAPlugin`, …) or, for a device plugin, API versions. The kubelet takes the first it knows.
    pub versions: Vec<String>,
}

/// What the kubelet said last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// Nothing yet, or it is asking again.
    #[default]
    Waiting,
    /// It accepted the plugin.
    Registered,
    /// It did not, and will ask again, less and less often.
    Refused {
        /// Its reason.
        reason: String,
    },
}

/// The file name of a registration socket: `<plugin>@reg.sock`, or `<plugin>-<instance>@reg.sock` where two instances of one
/// plugin serve side by side during an update (`instance` is then usually the pod's UID).
///
/// The `@` is needed. The kubelet sends the socket's percent-encoded path as the HTTP/2 `:authority`, which Rust's HTTP
/// parser refuses, unless an `@` makes it the userinfo of a host `reg.sock` (hyperium/h2#487, kubernetes#107093).
pub fn socket_name(plugin: &str, instance: Option<&str>) -> String {
    match instance {
        Some(instance) => format!("{plugin}-{instance}@reg.sock"),
        None => format!("{plugin}@reg.sock"),
    }
}

/// A registration whose socket is there. The kubelet gets its answers once [`Registration::run`] is called.
#[derive(Debug)]
pub struct Registration {
    endpoint: Endpoint,
    service: Service,
}

impl Registration {
    /// Puts the socket `name` into `registry`, the kubelet's `plugins_registry` folder.
    ///
    /// # Errors
    /// The socket cannot be made, or its name has no `@` (see [`socket_name`]).
    pub async fn open(registry: &Folder, name: &str, plugin: PluginInfo) -> Result<Self, Error> {
        // What follows the `@` becomes a host name, and what precedes it may hold no second one.
        if name.matches('@').count() != 1 || name.ends_with('@') {
            return Err(Error::Name {
                name: name.to_owned(),
                reason: "a registration socket's name needs one `@`, or gRPC in Rust refuses the kubelet's calls",
            });
        }
        Ok(Self {
            endpoint: Endpoint::open(registry, name).await?,
            service: Service {
                plugin,
                status: watch::Sender::default(),
            },
        })
    }

    /// What the kubelet says, as it says it.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.service.status.subscribe()
    }

    /// Answers the kubelet until `shutdown`; then the socket goes, and with it the registration.
    ///
    /// # Errors
    /// [`Error::Displaced`] when another process takes the socket over.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let routes = Routes::new(RegistrationServer::new(self.service));
        self.endpoint.run(routes, shutdown).await
    }
}

#[derive(Debug)]
struct Service {
    plugin: PluginInfo,
    status: watch::Sender<Status>,
}

#[tonic::async_trait]
impl RegistrationService for Service {
    async fn get_info(
        &self,
        _: Request<wire::InfoRequest>,
    ) -> Result<Response<wire::PluginInfo>, tonic::Status> {
        // A kubelet that asks does not know us: it is new, or it lost us.
        self.status.send_if_modified(|status| {
            let registered = *status == Status::Registered;
            if registered {
                *status = Status::Waiting;
            }
            registered
        });
        Ok(Response::new(wire::PluginInfo {
            r#type: self.plugin.kind.as_str().to_owned(),
            name: self.plugin.name.clone(),
            endpoint: self.plugin.endpoint.to_string_lossy().into_owned(),
            supported_versions: self.plugin.versions.clone(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<wire::RegistrationStatus>,
    ) -> Result<Response<wire::RegistrationStatusResponse>, tonic::Status> {
        let answer = request.into_inner();
        let now = if answer.plugin_registered {
            Status::Registered
        } else {
            Status::Refused {
                reason: answer.error,
            }
        };
        let plugin = &self.plugin.name;
        self.status.send_if_modified(|status| {
            let changed = *status != now;
            if changed {
                match &now {
                    Status::Refused { reason } => {
                        tracing::error!(plugin, reason, "the kubelet refuses the plugin");
                    }
                    _ => tracing::info!(plugin, "the kubelet has registered the plugin"),
                }
                *status = now;
            }
            changed
        });
        Ok(Response::new(wire::RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::socket_name;

    #[test]
    fn two_instances_have_two_sockets() {
        assert_eq!(
            socket_name("gpu.nvidia.com", None),
            "gpu.nvidia.com@reg.sock"
        );
        assert_eq!(
            socket_name("gpu.nvidia.com", Some("b3a7")),
            "gpu.nvidia.com-b3a7@reg.sock"
        );
    }
}
