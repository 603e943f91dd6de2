//! What the node has to offer, put together anew from all that is known, and shown to the kubelet and to people.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use cluster::watched::WatchedFolder;
use configuration::plugin::ResourceName;

use super::Worker;
use crate::hardware::Driver;
use crate::health::Verdict;
use crate::mps;
use crate::resources::{Device, Gpu};
use crate::service::messages::Complaints;
use crate::service::prepare::{Prepared, Wanted, nameable};
use crate::service::settings::Settings;
use crate::service::view::{View, view};

impl Worker {
    /// Puts the node together and shows the kubelet what differs.
    pub(super) async fn put_together(&mut self) {
        let unready = match (self.choice.in_force(), self.inventory.driver()) {
            (None, _) => Some(
                self.choice
                    .trouble()
                    .unwrap_or("no configuration yet")
                    .to_owned(),
            ),
            (_, Driver::Unknown) => Some("the driver has not answered yet".to_owned()),
            (_, Driver::Gone { .. }) if self.without_gpus => None,
            (_, Driver::Gone { reason }) => Some(reason.clone()),
            (_, Driver::Present { version, .. }) => {
                self.driver_version = Some(version.clone());
                None
            }
        };
        // Before the driver has answered, what a former life of ours wrote says more.
        if !self.without_gpus && *self.inventory.driver() != Driver::Unknown {
            self.show_condition();
        }
        // Before both are known, nothing can be offered; later, what was known goes on.
        if let (Some(settings), Some(version)) =
            (self.choice.in_force().cloned(), self.driver_version.clone())
        {
            self.offer(&settings, version).await;
        }
        let unready = unready.or_else(|| self.preparer.trouble().map(str::to_owned));
        self.readiness.set(unready);
    }

    async fn offer(&mut self, settings: &Settings, driver_version: String) {
        let inventory = self.inventory.clone();
        let gpus: Vec<Gpu> = inventory
            .gpus()
            .iter()
            .map(|known| known.gpu.clone())
            .collect();
        if self.known != gpus {
            self.shared.book.know(&gpus);
            self.known.clone_from(&gpus);
        }
        let wanted = Wanted {
            gpus: nameable(inventory.gpus(), settings.options.ids),
            driver_version,
            options: settings.options.clone(),
            places: Arc::new(self.config.places(settings)),
        };
        let prepared = self.preparer.prepared(wanted).await;
        let specs = settings.options.lists.cdi();
        if !specs {
            self.specs = None;
        } else if self.specs.is_none() {
            self.specs = Some(WatchedFolder::new(&self.config.cdi_folder));
        }
        let (view, unserved) = self.view(settings, &prepared);
        let caution = settings.options.caution(view.resources.len());
        let trouble = self.preparer.trouble().map(str::to_owned);
        self.reporter.offer(Complaints {
            rules: view.warnings.iter().map(ToString::to_string).collect(),
            caution: caution.map(str::to_owned),
            mps: unserved,
            preparing: prepared.complaints().chain(trouble).collect(),
        });
        self.shared.metrics.cdi(self.preparer.trouble().is_none());
        let lists = view
            .resources
            .iter()
            .map(|(name, shown)| (name.clone(), shown.list()));
        self.lists = lists.collect();
        for (name, list) in &self.lists {
            let healthy = list.iter().filter(|device| device.healthy).count();
            let metrics = &self.shared.metrics;
            metrics.devices(name.as_str(), healthy, list.len() - healthy);
        }
        // First what calls are answered from, then the list that leads to calls.
        self.shared.update(|current| {
            current.options = Some(settings.options.clone());
            current.ready = prepared.ready;
            current.resources = Arc::new(view.resources);
        });
        self.server.show(&self.lists, Instant::now());
    }

    /// What the kubelet is to be shown, and which MPS daemons keep shares from being healthy.
    fn view(&self, settings: &Settings, prepared: &Prepared) -> (View, Vec<String>) {
        let daemons = RefCell::new(BTreeMap::new());
        let root = mps::Root::new(&self.config.mps_root);
        let mps = |name: &ResourceName, device: &Device| {
            if !settings.uses_mps() || device.shares.is_none() {
                return None;
            }
            let mut daemons = daemons.borrow_mut();
            let daemon = daemons.entry(name.clone()).or_insert_with(|| {
                self.mps.borrow_mut().add(name);
                mps::ready(&root, name)
            });
            match daemon {
                Ok(served) if served.covers(device) => None,
                Ok(_) => Some(format!("the MPS daemon of {name} does not serve it yet")),
                Err(error) => Some(error.to_string()),
            }
        };
        let view = view(self.inventory.gpus(), &settings.rules, |name, device| {
            let verdict = match self.health.verdict(device) {
                Verdict::Healthy => None,
                Verdict::Unhealthy(reasons) => {
                    let reasons = reasons
                        .iter()
                        .map(|reason| format!("{} ({})", reason.cause, reason.until));
                    Some(reasons.collect::<Vec<_>>().join("; "))
                }
            };
            let silent = || {
                let gpu = &device.gpu_uuid;
                let silent = self.looks.is_asked(gpu) || self.health.is_silent(gpu);
                silent.then(|| "the GPU does not say how it is".to_owned())
            };
            verdict
                .or_else(silent)
                .or_else(|| prepared.fault(&device.uuid))
                .or_else(|| mps(name, device))
        });
        let daemons = daemons.into_inner().into_values();
        let unserved = daemons.filter_map(|daemon| Some(daemon.err()?.to_string()));
        (view, unserved.collect())
    }

    fn show_condition(&self) {
        let standing = self.health.standing();
        let mut counts = BTreeMap::new();
        for fault in &standing {
            *counts.entry(fault.cause.key()).or_insert(0) += 1;
        }
        self.shared.metrics.faults(counts.into_iter());
        self.reporter.gpus(self.health.condition());
    }
}
