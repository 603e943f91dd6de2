//! The health of DRA devices, which the kubelet shows in pods' status.
//!
//! The kubelet takes each message as the full list, and takes a device for unknown that was not confirmed within 30 s. So
//! the list is sent on every change and, unchanged, every 20 s.

use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::{Stream, StreamExt as _};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::api::health::v1 as wire;
use crate::api::health::v1::HealthStatus;
use crate::api::health::v1::dra_resource_health_server::{
    DraResourceHealth as HealthV1, DraResourceHealthServer as HealthServerV1,
};
use crate::api::health::v1alpha1::dra_resource_health_server::{
    DraResourceHealth as HealthV1Alpha1, DraResourceHealthServer as HealthServerV1Alpha1,
};

/// Well within the 30 s after which the kubelet forgets.
const CONFIRM: Duration = Duration::from_secs(20);

/// Characters of a message that the kubelet takes.
const LONGEST_MESSAGE: usize = 1024;

/// All devices of a driver on this node.
pub type Health = Vec<DeviceHealth>;

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceHealth {
    /// Its pool.
    pub pool: String,
    /// Its name within the pool.
    pub device: String,
    /// Fit for work, or not, or not known.
    pub healthy: Option<bool>,
    /// Why, for people; what exceeds 1024 characters is cut off.
    pub message: String,
}

/// Both versions of the service, whose streams last until `end`, beside what `routes` has.
pub(super) fn add(
    routes: Routes,
    health: watch::Receiver<Health>,
    end: CancellationToken,
) -> Routes {
    let service = std::sync::Arc::new(Service { health, end });
    routes
        .add_service(HealthServerV1::from_arc(service.clone()))
        .add_service(HealthServerV1Alpha1::from_arc(service))
}

#[derive(Debug)]
struct Service {
    health: watch::Receiver<Health>,
    end: CancellationToken,
}

type Messages =
    Pin<Box<dyn Stream<Item = Result<wire::NodeWatchResourcesResponse, Status>> + Send>>;

impl Service {
    fn messages(&self) -> Messages {
        let mut health = self.health.clone();
        health.mark_changed();
        let messages = futures::stream::unfold(health, |mut health| async move {
            if let Ok(Err(_)) = tokio::time::timeout(CONFIRM, health.changed()).await {
                // The driver ended.
                return None;
            }
            let message = message(&health.borrow_and_update(), SystemTime::now());
            Some((Ok(message), health))
        });
        Box::pin(messages.take_until(self.end.clone().cancelled_owned()))
    }
}

fn message(health: &Health, now: SystemTime) -> wire::NodeWatchResourcesResponse {
    let seconds = now
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let devices = health.iter().map(|device| wire::DeviceHealth {
        device: Some(wire::DeviceIdentifier {
            pool_name: device.pool.clone(),
            device_name: device.device.clone(),
        }),
        health: match device.healthy {
            Some(true) => HealthStatus::Healthy,
            Some(false) => HealthStatus::Unhealthy,
            None => HealthStatus::Unknown,
        }
        .into(),
        last_updated_time: i64::try_from(seconds).unwrap_or(i64::MAX),
        // The kubelet's own.
        health_check_timeout_seconds: 0,
        message: device.message.chars().take(LONGEST_MESSAGE).collect(),
    });
    wire::NodeWatchResourcesResponse {
        devices: devices.collect(),
    }
}

#[tonic::async_trait]
impl HealthV1 for Service {
    type NodeWatchResourcesStream = Messages;

    async fn node_watch_resources(
        &self,
        _: Request<wire::NodeWatchResourcesRequest>,
    ) -> Result<Response<Messages>, Status> {
        Ok(Response::new(self.messages()))
    }
}

#[tonic::async_trait]
impl HealthV1Alpha1 for Service {
    type NodeWatchResourcesStream = Messages;

    async fn node_watch_resources(
        &self,
        _: Request<wire::NodeWatchResourcesRequest>,
    ) -> Result<Response<Messages>, Status> {
        Ok(Response::new(self.messages()))
    }
}
