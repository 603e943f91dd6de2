//! A DRA plugin as the kubelet sees it: the service that prepares claims, in both versions of its API, the optional health
//! service beside it, and the registration of both.
//!
//! Publishing devices (ResourceSlices) and reading claims is done at the API server, by the driver built on this.

mod health;
mod service;
mod turns;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::api;
use crate::registration::{Kind, PluginInfo, Registration, Status, socket_name};
use crate::socket::Endpoint;
use crate::{Error, Folder, Paths};

pub use api::dra::v1::Claim;
pub use health::{DeviceHealth, Health};

/// Services that a plugin offers to the kubelet, which takes the first it knows: `v1` since 1.34, `v1beta1` since 1.32.
const SERVICES: [&str; 2] = ["v1.DRAPlugin", "v1beta1.DRAPlugin"];

/// Likewise for health: `v1` since 1.37, `v1alpha1` since 1.34.
const HEALTH_SERVICES: [&str; 2] = ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"];

/// How long one call of the kubelet may take here. The kubelet gives up after 45 s; an answer that says what is still
/// going on must be there before.
const CALL: Duration = Duration::from_secs(40);

/// One device of a claim, made ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreparedDevice {
    /// The requests of the claim that it satisfies, as the allocation names them; of `main/sub` the kubelet is told `main`.
    /// None means all requests.
    pub requests: Vec<String>,
    /// Its pool.
    pub pool: String,
    /// Its name within the pool.
    pub device: String,
    /// CDI devices (`vendor/class=name`) whose edits the container gets.
    pub cdi_devices: Vec<String>,
    /// The share of the device, where the allocation has one (consumable capacity).
    pub share: Option<String>,
}

/// What makes claims ready on this node. Calls for one claim never overlap; calls for different claims may.
///
/// A call runs to its end even when the kubelet stops waiting for it, and the next call for that claim waits for it.
pub trait Driver: Send + Sync + 'static {
    /// Why a claim could not be served; its text is what the pod's events show.
    type Error: Display + Send + 'static;

    /// Makes the devices that are allocated to `claim` ready for containers. Comes again for a claim that is ready already
    /// (kubelet restart, reboot, a second pod): the answer has to be the same and its effects have to be there again.
    ///
    /// The kubelet has read the claim and checked that it is reserved for the pod; its UID and its allocation are for
    /// the driver to check.
    fn prepare(
        &self,
        claim: Claim,
    ) -> impl Future<Output = Result<Vec<PreparedDevice>, Self::Error>> + Send;

    /// Takes back what [`Driver::prepare`] did. Succeeds for a claim it knows nothing of; the claim may be gone from the
    /// API server.
    fn unprepare(&self, claim: Claim) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Where a plugin serves.
#[derive(Clone, Debug)]
pub struct Config {
    /// The driver's name: a DNS name of at most 63 characters, the one in its ResourceSlices.
    pub driver: String,
    /// The kubelet's folder.
    pub paths: Paths,
    /// Sets this process apart from another of the same driver during an update: usually the pod's UID.
    pub instance: Option<String>,
}

/// A plugin whose sockets are there. The kubelet gets its answers once [`Plugin::run`] is called.
#[derive(Debug)]
pub struct Plugin {
    endpoint: Endpoint,
    routes: Routes,
    registration: Registration,
    /// Ends the service.
    end: CancellationToken,
}

impl Plugin {
    /// Makes the plugin's sockets, the service's before the registration's, as the kubelet dials the one as soon as it
    /// has seen the other. With `health` the plugin offers the health service as well.
    ///
    /// # Errors
    /// A socket cannot be made; see [`Error`].
    pub async fn open(
        config: &Config,
        driver: impl Driver,
        health: Option<watch::Receiver<Health>>,
    ) -> Result<Self, Error> {
        let folder = Folder::open(config.paths.plugin(&config.driver)).await?;
        let registry = Folder::open(config.paths.plugins_registry()).await?;
        // Kubelets that know only `v1beta1` dial this socket, too, in the way that needs an `@`; see `socket_name`.
        let name = format!(
            "{}@dra.sock",
            config.instance.as_deref().unwrap_or_default()
        );
        let endpoint = Endpoint::open(&folder, &name).await?;
        let mut versions: Vec<String> = SERVICES.map(str::to_owned).to_vec();
        let end = CancellationToken::new();
        let mut routes = service::routes(driver, CALL);
        if let Some(health) = health {
            routes = health::add(routes, health, end.clone());
            versions.extend(HEALTH_SERVICES.map(str::to_owned));
        }
        let info = PluginInfo {
            kind: Kind::Dra,
            name: config.driver.clone(),
            endpoint: config.paths.seen_by_kubelet(endpoint.path()),
            versions,
        };
        let name = socket_name(&config.driver, config.instance.as_deref());
        let registration = Registration::open(&registry, &name, info).await?;
        Ok(Self {
            endpoint,
            routes,
            registration,
            end,
        })
    }

    /// What the kubelet says to the registration, as it says it.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.registration.status()
    }

    /// Serves until `shutdown`: then the registration goes first, so that the kubelet hears of it before the service ends.
    ///
    /// # Errors
    /// [`Error::Displaced`] when another process takes one of the sockets over; the other socket is then given up too.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let registered = shutdown.child_token();
        let served = self.end;
        let registration = async {
            let result = self.registration.run(registered.clone()).await;
            served.cancel();
            result
        };
        let service = async {
            let result = self.endpoint.run(self.routes, served.clone()).await;
            registered.cancel();
            result
        };
        let (registration, service) = tokio::join!(registration, service);
        registration.and(service)
    }
}

/// Answers by claim UID.
type ByUid<T> = BTreeMap<String, T>;
