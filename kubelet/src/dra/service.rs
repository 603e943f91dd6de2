//! The two versions of the DRA service over one driver.
//!
//! Each claim of a call is served by a task of its own: one claim's failure, panic or slowness is an error for that claim
//! alone, and a kubelet that stops waiting does not stop work half-way.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::turns::Turns;
use super::{ByUid, Claim, Driver, PreparedDevice};
use crate::api::dra::v1 as wire;
use crate::api::dra::v1::dra_plugin_server::{
    DraPlugin as DraPluginV1, DraPluginServer as DraPluginServerV1,
};
use crate::api::dra::v1beta1::dra_plugin_server::{
    DraPlugin as DraPluginV1Beta1, DraPluginServer as DraPluginServerV1Beta1,
};

/// Both versions of the service, which share `driver`. A call takes at most `bound`.
pub(super) fn routes(driver: impl Driver, bound: Duration) -> Routes {
    let service = Arc::new(Service {
        driver: Arc::new(driver),
        turns: Turns::default(),
        bound,
    });
    Routes::new(DraPluginServerV1::from_arc(service.clone()))
        .add_service(DraPluginServerV1Beta1::from_arc(service))
}

#[derive(Debug)]
struct Service<D> {
    driver: Arc<D>,
    turns: Turns,
    bound: Duration,
}

impl<D: Driver> Service<D> {
    async fn prepare(&self, claims: Vec<Claim>) -> wire::NodePrepareResourcesResponse {
        let answers = self
            .each(claims, "prepared", |driver, claim| async move {
                let devices = driver.prepare(claim).await.map_err(|e| e.to_string())?;
                devices.into_iter().map(device).collect()
            })
            .await;
        let claims = answers.into_iter().map(|(uid, answer)| {
            let answer = match answer {
                Ok(devices) => wire::NodePrepareResourceResponse {
                    devices,
                    error: String::new(),
                },
                Err(error) => wire::NodePrepareResourceResponse {
                    devices: Vec::new(),
                    error,
                },
            };
            (uid, answer)
        });
        wire::NodePrepareResourcesResponse {
            claims: claims.collect(),
        }
    }

    async fn unprepare(&self, claims: Vec<Claim>) -> wire::NodeUnprepareResourcesResponse {
        let answers = self
            .each(claims, "unprepared", |driver, claim| async move {
                driver.unprepare(claim).await.map_err(|e| e.to_string())
            })
            .await;
        let claims = answers.into_iter().map(|(uid, answer)| {
            let error = answer.err().unwrap_or_default();
            (uid, wire::NodeUnprepareResourceResponse { error })
        });
        wire::NodeUnprepareResourcesResponse {
            claims: claims.collect(),
        }
    }

    /// Runs `work` for each claim and collects the answers that are there in time. Every claim gets an answer: to the
    /// kubelet a missing one fails the whole call.
    async fn each<T, F>(
        &self,
        claims: Vec<Claim>,
        done: &'static str,
        work: impl Fn(Arc<D>, Claim) -> F,
    ) -> ByUid<Result<T, String>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, String>> + Send + 'static,
    {
        let deadline = Instant::now() + self.bound;
        let tasks: Vec<(Claim, JoinHandle<Result<T, String>>)> = claims
            .into_iter()
            .map(|claim| {
                let turns = self.turns.clone();
                let uid = claim.uid.clone();
                let work = work(self.driver.clone(), claim.clone());
                let task = tokio::spawn(async move {
                    let _turn = turns.take(&uid).await;
                    work.await
                });
                (claim, task)
            })
            .collect();
        let mut answers = ByUid::new();
        for (claim, task) in tasks {
            let answer = match tokio::time::timeout_at(deadline, task).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => Err(format!("the driver failed: {error}")),
                Err(_) => Err(format!(
                    "not {done} within {} s; it goes on, and the kubelet will ask again",
                    self.bound.as_secs_f32()
                )),
            };
            if let Err(error) = &answer {
                tracing::warn!(
                    claim = format!("{}/{}", claim.namespace, claim.name),
                    uid = claim.uid,
                    error,
                    "claim not {done}"
                );
            }
            answers.insert(claim.uid, answer);
        }
        answers
    }
}

/// A device as the kubelet wants it: base names of requests, and both parts of its identity, without which the kubelet
/// fails the whole call.
fn device(prepared: PreparedDevice) -> Result<wire::Device, String> {
    if prepared.pool.is_empty() || prepared.device.is_empty() {
        return Err(format!(
            "the driver names no device: pool {:?}, device {:?}",
            prepared.pool, prepared.device
        ));
    }
    let base = |request: String| match request.split_once('/') {
        Some((base, _)) => base.to_owned(),
        None => request,
    };
    Ok(wire::Device {
        request_names: prepared.requests.into_iter().map(base).collect(),
        pool_name: prepared.pool,
        device_name: prepared.device,
        cdi_device_ids: prepared.cdi_devices,
        share_id: prepared.share,
    })
}

#[tonic::async_trait]
impl<D: Driver> DraPluginV1 for Service<D> {
    async fn node_prepare_resources(
        &self,
        request: Request<wire::NodePrepareResourcesRequest>,
    ) -> Result<Response<wire::NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        Ok(Response::new(self.prepare(claims).await))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<wire::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<wire::NodeUnprepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        Ok(Response::new(self.unprepare(claims).await))
    }
}

#[tonic::async_trait]
impl<D: Driver> DraPluginV1Beta1 for Service<D> {
    async fn node_prepare_resources(
        &self,
        request: Request<wire::NodePrepareResourcesRequest>,
    ) -> Result<Response<wire::NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        Ok(Response::new(self.prepare(claims).await))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<wire::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<wire::NodeUnprepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        Ok(Response::new(self.unprepare(claims).await))
    }
}
