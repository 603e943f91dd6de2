//! Reads one GPU: which entities it is, their labels, and every value of every selected family ([`values`]).
//!
//! An answer that means "not on this hardware" is an absent value. Any other failure costs the one value and is reported,
//! unless it means that the GPU or the driver is gone: then nothing more is asked.

mod values;

use std::time::Instant;

use nvml::{Device, Error, GpmMetric, Optional as _};

use crate::convert::{failure, instance_profile};
use crate::counters::Counters;
use crate::fields::{Source, Text};
use crate::labels::{Identity, LabelStyle};
use crate::state::{Known, State, Windows};
use crate::value::{Entity, Failure, Value};

/// What is to be read; the same for every GPU and every collection.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) counters: Counters,
    pub(crate) style: LabelStyle,
    /// GPM metrics of the families that have one, in the families' order.
    metrics: Vec<GpmMetric>,
}

impl Plan {
    pub(crate) fn new(counters: Counters, style: LabelStyle) -> Self {
        let mut metrics: Vec<GpmMetric> = Vec::new();
        for counter in &counters.families {
            if let Source::Gpm { metric, .. } = counter.field.source {
                metrics.push(GpmMetric(metric));
            }
        }
        Self {
            counters,
            style,
            metrics,
        }
    }
}

/// Which entities of one GPU are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The instances if there are any, else the GPU.
    Flex,
    /// Exactly these.
    Named {
        /// The GPU itself.
        gpu: bool,
        /// Its instances.
        instances: bool,
    },
}

/// The driver's versions, for label rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct VersionTexts {
    pub(crate) driver: Option<String>,
    pub(crate) nvml: Option<String>,
}

/// One GPU as read.
#[derive(Debug, Default)]
pub(crate) struct GpuReading {
    /// The whole GPU, where it is wanted.
    pub(crate) gpu: Option<Entity>,
    /// Its instances, ascending by id, where they are wanted.
    pub(crate) instances: Vec<Entity>,
    pub(crate) failures: Vec<Failure>,
    /// Whether values wait for a second reading.
    pub(crate) half: bool,
    pub(crate) uuid: Option<String>,
    /// Whether the GPU had other MIG devices at the end than at the beginning.
    pub(crate) changed: bool,
}

/// A GPU instance: its profile, its id, and a MIG device in it.
struct Instance<'a> {
    id: u32,
    profile: String,
    device: Device<'a>,
    /// The ids of its MIG devices.
    ids: Vec<String>,
}

impl Instance<'_> {
    fn ids(&self, minor: Option<u32>) -> Vec<String> {
        let mut ids = self.ids.clone();
        // As GKE's plugin names it.
        ids.extend(minor.map(|minor| format!("nvidia{minor}/gi{}", self.id)));
        ids
    }
}

/// Reads a GPU.
///
/// # Errors
/// When the GPU or the driver is gone.
pub(crate) fn read_gpu(
    device: &Device<'_>,
    plan: &Plan,
    wanted: Wanted,
    versions: &VersionTexts,
    state: &State,
    now: Instant,
) -> Result<GpuReading, Error> {
    let mut taken = state.take(device.uuid());
    let mut reader = Reader {
        device,
        plan,
        state,
        now,
        windows: &mut taken.windows,
        failures: Vec::new(),
    };
    let reading = reader.read(wanted, versions);
    let failures = reader.failures;
    let half = taken.windows.any_half();
    state.put(device.uuid(), taken);
    reading.map(|reading| GpuReading {
        failures,
        half,
        ..reading
    })
}

/// What still holds of a GPU that cannot be read: its entities' last XID errors, which often say why. `is_selected` tells
/// of an instance's place among the GPU's instances whether it is exported.
pub(crate) fn of_lost_gpu(
    plan: &Plan,
    uuid: &str,
    state: &State,
    is_selected: impl Fn(u32) -> bool,
) -> Vec<Entity> {
    let (instances, whole): (Vec<Known>, Vec<Known>) = state
        .entities(uuid)
        .into_iter()
        .partition(|known| known.instance.is_some());
    let selected = (0..)
        .zip(instances)
        .filter(|(place, _)| is_selected(*place))
        .map(|(_, known)| known);
    let lost = |known: Known| {
        let xid = state.xid(uuid, known.instance)?;
        let value = |source: Source| matches!(source, Source::LastXid).then_some(Value::Xid(xid));
        let families = plan.counters.families.iter();
        let values = families
            .map(|counter| value(counter.field.source))
            .collect();
        Some(Entity {
            labels: known.labels,
            ids: known.ids,
            values,
        })
    };
    whole.into_iter().chain(selected).filter_map(lost).collect()
}

struct Reader<'a, 'd> {
    device: &'a Device<'d>,
    plan: &'a Plan,
    state: &'a State,
    now: Instant,
    windows: &'a mut Windows,
    failures: Vec<Failure>,
}

impl<'a, 'd> Reader<'a, 'd> {
    /// `None` for what the hardware lacks, and for a failure, which is noted.
    fn value<T>(&mut self, answer: Result<T, Error>) -> Result<Option<T>, Error> {
        match answer.readable() {
            Ok(value) => Ok(value),
            Err(error) if error.is_gpu_lost() || error.is_hung() || error.is_driver_gone() => {
                Err(error)
            }
            Err(error) => {
                let failure = failure(self.device.gpu_ref().index, &error);
                // A call that serves several values or instances fails for each; on the page it is one series.
                if !self.failures.contains(&failure) {
                    self.failures.push(failure);
                }
                Ok(None)
            }
        }
    }

    fn read(&mut self, wanted: Wanted, versions: &VersionTexts) -> Result<GpuReading, Error> {
        let device = self.device;
        let in_parts = !matches!(
            wanted,
            Wanted::Named {
                instances: false,
                ..
            }
        );
        let parts = if in_parts { self.parts()? } else { Vec::new() };
        let uuids: Vec<String> = parts.iter().map(|part| part.uuid().to_owned()).collect();
        let instances = self.instances(parts)?;
        let whole = match wanted {
            Wanted::Flex => instances.is_empty(),
            Wanted::Named { gpu, .. } => gpu,
        };
        let pci = device.pci()?;
        let model = device.name()?;
        let minor = self.value(device.minor())?;
        let texts = self.texts(versions)?;
        let identity = Identity {
            gpu: device.gpu_ref().index,
            uuid: device.uuid(),
            pci_bus_id: &pci.bus_id,
            minor,
            model: &model,
            instance: None,
        };
        let values = self.gpu_values(whole)?;
        let style = &self.plan.style;
        let mut reading = GpuReading::default();
        let mut known = Vec::new();
        for instance in &instances {
            let identity = Identity {
                instance: Some((&instance.profile, instance.id)),
                ..identity
            };
            let labels = style.render(&identity, &texts);
            let ids = instance.ids(minor);
            known.push(Known {
                instance: Some(instance.id),
                labels: labels.clone(),
                ids: ids.clone(),
            });
            reading.instances.push(Entity {
                labels,
                ids,
                values: self.instance_values(instance, &values)?,
            });
        }
        self.windows.gpm.retain(|id, _| match id {
            None => whole,
            Some(id) => instances.iter().any(|instance| instance.id == *id),
        });
        if whole {
            let labels = style.render(&identity, &texts);
            let mut ids = vec![device.uuid().to_owned()];
            ids.extend(minor.map(|minor| format!("nvidia{minor}")));
            known.push(Known {
                instance: None,
                labels: labels.clone(),
                ids: ids.clone(),
            });
            reading.gpu = Some(Entity {
                labels,
                ids,
                values,
            });
        }
        self.state.set_entities(device.uuid(), known);
        reading.uuid = Some(device.uuid().to_owned());
        reading.changed = in_parts && {
            let parts = self.parts()?;
            !parts.iter().map(Device::uuid).eq(&uuids)
        };
        Ok(reading)
    }

    /// The MIG devices.
    fn parts(&self) -> Result<Vec<Device<'d>>, Error> {
        let devices = self.device.mig_devices().optional()?.unwrap_or_default();
        Ok(devices.into_iter().map(|(_, device)| device).collect())
    }

    /// Instances that have a MIG device, ascending by id; several MIG devices of one instance are one entity.
    ///
    /// An instance without a compute instance runs nothing, and the driver has no handle to read it by.
    fn instances(&self, parts: Vec<Device<'d>>) -> Result<Vec<Instance<'d>>, Error> {
        let mut instances: Vec<Instance<'d>> = Vec::new();
        for device in parts {
            let id = device.gpu_instance_id()?;
            let mut ids = vec![device.uuid().to_owned()];
            if let Some(compute) = device.compute_instance_id().optional()? {
                // How drivers before R470 name it.
                ids.push(format!("MIG-{}/{id}/{compute}", self.device.uuid()));
            }
            if let Some(instance) = instances.iter_mut().find(|instance| instance.id == id) {
                instance.ids.append(&mut ids);
                continue;
            }
            instances.push(Instance {
                id,
                profile: instance_profile(&device.name()?).to_owned(),
                device,
                ids,
            });
        }
        instances.sort_by_key(|instance| instance.id);
        Ok(instances)
    }

    fn texts(&mut self, versions: &VersionTexts) -> Result<Vec<(&'a str, String)>, Error> {
        let mut texts = Vec::new();
        for counter in &self.plan.counters.labels {
            let Source::Text(text) = counter.field.source else {
                continue;
            };
            let value = match text {
                Text::DriverVersion => versions.driver.clone(),
                Text::NvmlVersion => versions.nvml.clone(),
                Text::Serial => self.value(self.device.serial())?,
            };
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                texts.push((counter.name.as_str(), value));
            }
        }
        Ok(texts)
    }
}
