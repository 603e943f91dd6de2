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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    /// Prepares when it is let; counts what it is at and what it has done.
    struct Gated {
        gate: Arc<Semaphore>,
        now: AtomicUsize,
        most: AtomicUsize,
        done: AtomicUsize,
    }

    impl Driver for Gated {
        type Error = String;

        async fn prepare(&self, _: Claim) -> Result<Vec<PreparedDevice>, String> {
            let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            self.gate.acquire().await.unwrap().forget();
            self.now.fetch_sub(1, Ordering::SeqCst);
            self.done.fetch_add(1, Ordering::SeqCst);
            Ok(Vec::new())
        }

        async fn unprepare(&self, _: Claim) -> Result<(), String> {
            Ok(())
        }
    }

    fn service(bound: Duration) -> (Arc<Service<Gated>>, Arc<Gated>, Arc<Semaphore>) {
        let gate = Arc::new(Semaphore::new(0));
        let driver = Arc::new(Gated {
            gate: gate.clone(),
            now: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
        });
        let service = Service {
            driver: driver.clone(),
            turns: Turns::default(),
            bound,
        };
        (Arc::new(service), driver, gate)
    }

    fn claim(uid: &str) -> Claim {
        Claim {
            namespace: "ml".to_owned(),
            uid: uid.to_owned(),
            name: uid.to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_claim_is_answered_in_time_and_goes_on() {
        let (service, driver, gate) = service(Duration::from_secs(40));
        let answer = service.prepare(vec![claim("a")]).await;
        let error = &answer.claims["a"].error;
        assert!(error.contains("not prepared within 40 s"), "{error}");
        assert_eq!(driver.done.load(Ordering::SeqCst), 0);
        // Asked again, it is not begun a second time before the first has ended.
        gate.add_permits(2);
        let answer = service.prepare(vec![claim("a")]).await;
        assert_eq!(answer.claims["a"].error, "");
        assert_eq!(driver.done.load(Ordering::SeqCst), 2);
        assert_eq!(driver.most.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn claims_do_not_wait_for_each_other() {
        let (service, driver, gate) = service(Duration::from_secs(40));
        let call = tokio::spawn(async move {
            service
                .prepare(vec![claim("a"), claim("b"), claim("c")])
                .await
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(driver.now.load(Ordering::SeqCst), 3);
        gate.add_permits(3);
        assert_eq!(call.await.unwrap().claims.len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn work_does_not_stop_with_the_call() {
        let (service, driver, gate) = service(Duration::from_secs(40));
        let call = tokio::spawn({
            let service = service.clone();
            async move { service.prepare(vec![claim("a")]).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        gate.add_permits(1);
        let unprepared = service.unprepare(vec![claim("a")]).await;
        assert_eq!(unprepared.claims["a"].error, "");
        assert_eq!(driver.done.load(Ordering::SeqCst), 1);
    }
}
