//! What has to lie ready on the node before a device is shown to the kubelet: its CDI spec, its device nodes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cdi::{Capabilities, DeviceFiles, Naming, Roots, SpecFolder};
use configuration::plugin::DeviceIdStrategy;

use crate::allocation::{CDI_VENDOR, Imex, Options, Ready};
use crate::hardware::KnownGpu;
use crate::resources::{Gpu, MigDevice};

/// Where the node's files are, and how specs name them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) roots: Roots,
    /// Where the container runtime looks for specs.
    pub(super) specs: PathBuf,
    pub(super) hook_program: Option<PathBuf>,
    pub(super) disabled_hooks: Vec<String>,
}

/// What decides what has to lie ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) gpus: Vec<Gpu>,
    pub(super) driver_version: String,
    pub(super) options: Arc<Options>,
    pub(super) places: Arc<Places>,
}

/// What lies ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Prepared {
    pub(super) ready: Arc<Ready>,
    /// What a device lacks, by UUID.
    pub(super) lacking: BTreeMap<String, String>,
    /// What all devices lack.
    pub(super) all_lack: Option<String>,
    /// What is left out without keeping a device from being used.
    pub(super) notes: Vec<String>,
}

impl Prepared {
    /// Whether nothing that was wanted is left out.
    pub(super) fn is_complete(&self) -> bool {
        self.lacking.is_empty() && self.all_lack.is_none() && self.notes.is_empty()
    }

    /// Why a device cannot be given to containers.
    pub(super) fn fault(&self, uuid: &str) -> Option<String> {
        let own = self.lacking.get(uuid);
        own.or(self.all_lack.as_ref()).cloned()
    }

    /// What people should know; some of it more than once.
    pub(super) fn complaints(&self) -> impl Iterator<Item = String> {
        let lacking = self.lacking.values().chain(&self.all_lack);
        self.notes.iter().chain(lacking).cloned()
    }
}

/// The GPUs that containers can be given under these names: by index, one that left the driver's list gives way to the one that
/// has its index now.
pub(super) fn nameable(known: &[KnownGpu], ids: DeviceIdStrategy) -> Vec<Gpu> {
    let given_away = |one: &KnownGpu| {
        let mut others = known.iter().filter(|other| other.trouble.is_none());
        one.trouble.is_some() && others.any(|other| other.gpu.index == one.gpu.index)
    };
    let all = known.iter();
    all.filter(|one| ids == DeviceIdStrategy::Uuid || !given_away(one))
        .map(|one| one.gpu.clone())
        .collect()
}

impl Wanted {
    /// Prepares it. This reads folders and writes files: not for a thread that must not wait.
    ///
    /// # Errors
    /// The node's files cannot be read, or the specs not written.
    pub(super) fn prepare(&self) -> Result<Prepared, cdi::Error> {
        let files = DeviceFiles::new(&self.places.roots);
        let options = &self.options;
        let mut prepared = Prepared::default();
        let mut ready = Ready::default();
        if options.imex != Imex::No {
            match files.imex_channel(0)? {
                Ok(_) => ready.imex_channel0 = true,
                Err(skipped) if options.imex == Imex::Required => {
                    prepared.all_lack = Some(format!("imex.required: {skipped}"));
                }
                Err(skipped) => prepared.notes.push(skipped.to_string()),
            }
        }
        if options.device_specs && !options.lists.only_cdi() {
            self.device_nodes(&files, &mut ready, &mut prepared)?;
        }
        if options.lists.cdi() {
            self.specs(&mut ready, &mut prepared)?;
        }
        prepared.ready = Arc::new(ready);
        Ok(prepared)
    }

    /// The device nodes that the kubelet is told of.
    fn device_nodes(
        &self,
        files: &DeviceFiles<'_>,
        ready: &mut Ready,
        prepared: &mut Prepared,
    ) -> Result<(), cdi::Error> {
        let path = |node: cdi::Node| node.path;
        ready.control_nodes = files.control()?.into_iter().map(path).collect();
        let capabilities = if self.gpus.iter().any(|gpu| !gpu.mig.is_empty()) {
            files.capabilities()?
        } else {
            Capabilities::default()
        };
        for gpu in self.gpus.iter().map(described) {
            let own = match files.gpu(&gpu)? {
                Ok(node) => path(node),
                Err(skipped) => {
                    let uuids = gpu.mig.iter().map(|mig| mig.uuid.clone());
                    let uuids = uuids.chain([gpu.uuid.clone()]);
                    let lacking = uuids.map(|uuid| (uuid, skipped.to_string()));
                    prepared.lacking.extend(lacking);
                    continue;
                }
            };
            for mig in &gpu.mig {
                match files.mig(&gpu, mig, &capabilities)? {
                    Ok(nodes) => {
                        let nodes = [own.clone()].into_iter().chain(nodes.into_iter().map(path));
                        ready.device_nodes.insert(mig.uuid.clone(), nodes.collect());
                    }
                    Err(skipped) => {
                        let lacking = (mig.uuid.clone(), skipped.to_string());
                        prepared.lacking.extend([lacking]);
                    }
                }
            }
            ready.device_nodes.insert(gpu.uuid, vec![own]);
        }
        Ok(())
    }

    fn specs(&self, ready: &mut Ready, prepared: &mut Prepared) -> Result<(), cdi::Error> {
        let options = &self.options;
        let chosen = cdi::Options {
            vendor: CDI_VENDOR.to_owned(),
            naming: match options.ids {
                DeviceIdStrategy::Uuid => Naming::Uuid,
                DeviceIdStrategy::Index => Naming::Index,
            },
            hook_program: self.places.hook_program.clone(),
            disabled_hooks: self.places.disabled_hooks.clone(),
            imex_channels: if ready.imex_channel0 {
                vec![0]
            } else {
                Vec::new()
            },
            gdrcopy: options.gdrcopy,
            gds: options.gds,
            mofed: options.mofed,
        };
        let gpus: Vec<cdi::Gpu> = self.gpus.iter().map(described).collect();
        let made = cdi::generate(&self.places.roots, &self.driver_version, &gpus, &chosen)?;
        SpecFolder::open(&self.places.specs)?.replace(CDI_VENDOR, &made.specs)?;
        let has = |class| made.class(class).is_some();
        ready.gdrcopy = has(cdi::classes::GDRCOPY);
        ready.gds = has(cdi::classes::GDS);
        ready.mofed = has(cdi::classes::MOFED);
        let named = |uuid: &str, index: String| match options.ids {
            DeviceIdStrategy::Uuid => made.device(cdi::classes::GPU, uuid),
            DeviceIdStrategy::Index => made.device(cdi::classes::GPU, &index),
        };
        let notes: Vec<String> = made.skipped.iter().map(ToString::to_string).collect();
        for gpu in &self.gpus {
            let own = (gpu.uuid.as_str(), gpu.index.to_string());
            let mig = gpu.mig.iter();
            let mig = mig.map(|mig| (mig.uuid.as_str(), format!("{}:{}", gpu.index, mig.index)));
            for (uuid, index) in mig.chain([own]) {
                if named(uuid, index).is_none() {
                    let about = |note: &&String| note.contains(uuid) || note.contains(&gpu.uuid);
                    let why = notes.iter().find(about).cloned();
                    let why = why.unwrap_or_else(|| format!("{uuid}: not in the CDI spec"));
                    prepared.lacking.insert(uuid.to_owned(), why);
                }
            }
        }
        prepared.notes.extend(notes);
        Ok(())
    }

    /// What is still ready of `former`, when preparing this failed with `why`: what has not changed since.
    pub(super) fn after_failure(&self, former: Option<&(Self, Prepared)>, why: &str) -> Prepared {
        let former = former.filter(|(then, _)| {
            then.options == self.options
                && then.places == self.places
                && then.driver_version == self.driver_version
        });
        let mut prepared = former.map_or_else(Prepared::default, |(_, now)| now.clone());
        let then: &[Gpu] = former.map_or(&[], |(then, _)| &then.gpus);
        for gpu in &self.gpus {
            let same = |then: &&Gpu| {
                (then.index, &then.uuid, then.minor) == (gpu.index, &gpu.uuid, gpu.minor)
            };
            let then = then.iter().find(same);
            let mut lacking = |uuid: &str| {
                prepared.lacking.insert(uuid.to_owned(), why.to_owned());
            };
            if then.is_none() {
                lacking(&gpu.uuid);
            }
            let known = |mig: &MigDevice| then.is_some_and(|then| then.mig.contains(mig));
            for mig in gpu.mig.iter().filter(|mig| !known(mig)) {
                lacking(&mig.uuid);
            }
        }
        prepared
    }
}

fn described(gpu: &Gpu) -> cdi::Gpu {
    cdi::Gpu {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        minor: gpu.minor,
        bus_id: gpu.bus_id.clone(),
        mig: gpu
            .mig
            .iter()
            .map(|mig| cdi::Mig {
                index: mig.index,
                uuid: mig.uuid.clone(),
                gpu_instance: mig.gpu_instance,
                compute_instance: mig.compute_instance,
            })
            .collect(),
    }
}

/// The folder whose `dev` has the device nodes, seen from here: the driver's root if it has them, as for NVIDIA's plugin.
pub(super) fn device_root(driver: &Path, node: &Path) -> PathBuf {
    if driver.join("dev/nvidiactl").exists() {
        driver.to_owned()
    } else {
        node.to_owned()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use configuration::plugin::PluginFile;

    use super::*;
    use crate::hardware::{Cause, Trouble};

    fn wanted(gpus: Vec<Gpu>, options: &str) -> Wanted {
        let (file, _) = PluginFile::parse("f", options.as_bytes()).unwrap();
        Wanted {
            gpus,
            driver_version: "1".to_owned(),
            options: Arc::new(Options::new(&file).unwrap()),
            places: Arc::new(Places {
                roots: Roots::at("/nowhere"),
                specs: PathBuf::from("/nowhere"),
                hook_program: None,
                disabled_hooks: Vec::new(),
            }),
        }
    }

    fn gpu(index: u32, mig: &[(&str, u32)]) -> Gpu {
        Gpu {
            index,
            uuid: format!("GPU-{index}"),
            minor: Some(index),
            mig: (0..)
                .zip(mig)
                .map(|(index, &(uuid, gpu_instance))| MigDevice {
                    index,
                    uuid: uuid.to_owned(),
                    gpu_instance,
                    compute_instance: 0,
                    profile: None,
                    attributes: None,
                })
                .collect(),
            ..Gpu::default()
        }
    }

    #[test]
    fn an_index_is_that_of_the_gpu_that_has_it_now() {
        let known = |uuid: &str, index, cause: Option<Cause>| KnownGpu {
            gpu: Gpu {
                uuid: uuid.to_owned(),
                ..gpu(index, &[])
            },
            trouble: cause.map(|cause| Trouble {
                cause,
                text: String::new(),
            }),
            ..KnownGpu::default()
        };
        let inventory = [
            known("a", 0, None),
            known("b", 1, Some(Cause::Absent)),
            known("c", 1, None),
            known("d", 2, Some(Cause::Lost)),
        ];
        let named = |ids| {
            let gpus = nameable(&inventory, ids).into_iter();
            gpus.map(|gpu| gpu.uuid).collect::<Vec<_>>()
        };
        assert_eq!(named(DeviceIdStrategy::Index), ["a", "c", "d"]);
        assert_eq!(named(DeviceIdStrategy::Uuid), ["a", "b", "c", "d"]);
    }

    #[test]
    fn after_a_failure_what_did_not_change_is_still_ready() {
        let then = wanted(vec![gpu(0, &[("MIG-a", 1), ("MIG-b", 2)])], "");
        let former = (then, Prepared::default());
        let now = wanted(vec![gpu(0, &[("MIG-a", 1), ("MIG-c", 2)]), gpu(1, &[])], "");
        let prepared = now.after_failure(Some(&former), "disk full");
        let fault = |uuid: &str| prepared.fault(uuid);
        let full = Some("disk full".to_owned());
        assert_eq!(
            ["GPU-0", "MIG-a", "MIG-c", "GPU-1"].map(fault),
            [None, None, full.clone(), full]
        );
    }

    #[test]
    fn after_a_failure_nothing_is_ready_that_is_called_otherwise() {
        let former = (wanted(vec![gpu(0, &[])], ""), Prepared::default());
        let now = wanted(
            vec![gpu(0, &[])],
            "flags: {plugin: {deviceIDStrategy: index}}",
        );
        let prepared = now.after_failure(Some(&former), "disk full");
        assert_eq!(prepared.fault("GPU-0").as_deref(), Some("disk full"));
        assert_eq!(
            now.after_failure(None, "x").fault("GPU-0").as_deref(),
            Some("x")
        );
    }
}
