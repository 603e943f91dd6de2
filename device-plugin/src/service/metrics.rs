//! What the plugin measures of itself, for `/metrics`.

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Encoder as _, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

/// Seconds. A call is answered from memory, so most take well under a millisecond; none may take more than 25 s.
const BUCKETS: &[f64] = &[
    0.000_5, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 10.0,
];

/// All of it. Clones share the values.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    registry: Registry,
    devices: IntGaugeVec,
    registered: IntGaugeVec,
    allocations: IntCounterVec,
    calls: HistogramVec,
    faults: IntGaugeVec,
    fault_changes: IntCounterVec,
    driver_up: IntGauge,
    config_generation: IntGauge,
    config_good: IntGauge,
    cdi_good: IntGauge,
}

impl Metrics {
    /// # Errors
    /// A name twice or misspelt: a fault of this file, which its test finds.
    pub(super) fn new() -> Result<Self, prometheus::Error> {
        let opts = |name: &str, help: &str| Opts::new(format!("lathe_device_plugin_{name}"), help);
        let metrics = Self {
            registry: Registry::new(),
            devices: IntGaugeVec::new(
                opts(
                    "devices",
                    "Devices that the kubelet is shown, shares counted one by one.",
                ),
                &["resource", "health"],
            )?,
            registered: IntGaugeVec::new(
                opts(
                    "registered",
                    "Whether the kubelet has taken the resource's registration.",
                ),
                &["resource"],
            )?,
            allocations: IntCounterVec::new(
                opts("allocations_total", "Containers that were given devices."),
                &["resource"],
            )?,
            calls: HistogramVec::new(
                HistogramOpts::from(opts(
                    "call_duration_seconds",
                    "Time that calls of the kubelet took.",
                ))
                .buckets(BUCKETS.to_vec()),
                &["call", "result"],
            )?,
            faults: IntGaugeVec::new(
                opts(
                    "unhealthy_devices",
                    "GPUs and MIG devices with a fault now.",
                ),
                &["reason"],
            )?,
            fault_changes: IntCounterVec::new(
                opts(
                    "health_changes_total",
                    "Changes of the health of a GPU or MIG device.",
                ),
                &["reason", "health"],
            )?,
            driver_up: IntGauge::with_opts(opts("driver_up", "Whether the driver answers."))?,
            config_generation: IntGauge::with_opts(opts(
                "config_generation",
                "How often a configuration came into force.",
            ))?,
            config_good: IntGauge::with_opts(opts(
                "config_good",
                "Whether the configuration last chosen is in force.",
            ))?,
            cdi_good: IntGauge::with_opts(opts(
                "cdi_specs_good",
                "Whether the CDI specs on the node say what the node has.",
            ))?,
        };
        let all: [Box<dyn Collector>; 10] = [
            Box::new(metrics.devices.clone()),
            Box::new(metrics.registered.clone()),
            Box::new(metrics.allocations.clone()),
            Box::new(metrics.calls.clone()),
            Box::new(metrics.faults.clone()),
            Box::new(metrics.fault_changes.clone()),
            Box::new(metrics.driver_up.clone()),
            Box::new(metrics.config_generation.clone()),
            Box::new(metrics.config_good.clone()),
            Box::new(metrics.cdi_good.clone()),
        ];
        for collector in all {
            metrics.registry.register(collector)?;
        }
        Ok(metrics)
    }

    /// The page.
    pub(super) fn page(&self) -> Vec<u8> {
        let mut page = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut page) {
            tracing::warn!(%error, "metrics cannot be written");
        }
        page
    }

    /// So many devices of a resource are healthy, and so many are not.
    pub(super) fn devices(&self, resource: &str, healthy: usize, unhealthy: usize) {
        for (health, count) in [("healthy", healthy), ("unhealthy", unhealthy)] {
            self.devices
                .with_label_values(&[resource, health])
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Whether the kubelet knows a resource.
    pub(super) fn registered(&self, resource: &str, is: bool) {
        self.registered
            .with_label_values(&[resource])
            .set(i64::from(is));
    }

    /// A resource is served no more.
    pub(super) fn forget(&self, resource: &str) {
        // Absent is what is wanted.
        for health in ["healthy", "unhealthy"] {
            let _ = self.devices.remove_label_values(&[resource, health]);
        }
        let _ = self.registered.remove_label_values(&[resource]);
    }

    /// A call of the kubelet was answered.
    pub(super) fn called(&self, call: &str, took: Duration, granted: bool) {
        let result = if granted { "ok" } else { "refused" };
        self.calls
            .with_label_values(&[call, result])
            .observe(seconds(took));
    }

    /// A container was given devices.
    pub(super) fn allocated(&self, resource: &str) {
        self.allocations.with_label_values(&[resource]).inc();
    }

    /// So many GPUs and MIG devices have each of these faults.
    pub(super) fn faults<'a>(&self, counts: impl Iterator<Item = (&'a str, i64)>) {
        self.faults.reset();
        for (reason, count) in counts {
            self.faults.with_label_values(&[reason]).set(count);
        }
    }

    /// A device became healthy or unhealthy.
    pub(super) fn health_changed(&self, reason: &str, healthy: bool) {
        let health = if healthy { "healthy" } else { "unhealthy" };
        self.fault_changes
            .with_label_values(&[reason, health])
            .inc();
    }

    pub(super) fn driver_up(&self, up: bool) {
        self.driver_up.set(i64::from(up));
    }

    /// Another configuration came into force.
    pub(super) fn config_changed(&self) {
        self.config_generation.inc();
        self.config_is_good(true);
    }

    /// Whether the configuration in force is the one that was last chosen.
    pub(super) fn config_is_good(&self, good: bool) {
        self.config_good.set(i64::from(good));
    }

    pub(super) fn cdi(&self, good: bool) {
        self.cdi_good.set(i64::from(good));
    }
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
