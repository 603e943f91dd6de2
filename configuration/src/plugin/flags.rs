//! The section `flags`: what flags and environment variables of the parts say too.

use std::path::PathBuf;
use std::str::FromStr;

use gpu::labels::MigStrategy;

/// The word is none of those allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is not known: use {allowed}")]
pub struct UnknownWord {
    /// What was given, shortened.
    pub word: String,
    /// What there is.
    pub allowed: &'static str,
}

/// An enum that is written as one of a few words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ } $allowed:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl $name {
            /// The word for it.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl FromStr for $name {
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<Self, UnknownWord> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(UnknownWord { word: text.chars().take(40).collect(), allowed: $allowed }),
                }
            }
        }
    };
}

words! {
    /// How the container runtime learns of devices.
    DeviceListStrategy {
        /// Environment variable `NVIDIA_VISIBLE_DEVICES`.
        Envvar = "envvar",
        /// Mounts below `/var/run/nvidia-container-devices`.
        VolumeMounts = "volume-mounts",
        /// CDI names in annotations of the container.
        CdiAnnotations = "cdi-annotations",
        /// CDI names in the CRI's own field.
        CdiCri = "cdi-cri"
    } "envvar, volume-mounts, cdi-annotations or cdi-cri"
}

words! {
    /// What a device is called towards the container runtime.
    DeviceIdStrategy {
        /// By UUID.
        Uuid = "uuid",
        /// By index.
        Index = "index"
    } "uuid or index"
}

words! {
    /// Which of several shares a container gets.
    AllocationPolicy {
        /// Of the devices with the fewest shares taken.
        Distributed = "distributed",
        /// Of the devices with the most shares taken.
        Packed = "packed",
        /// Each of a different physical GPU.
        Distinct = "distinct"
    } "distributed, packed or distinct"
}

words! {
    /// Where devices are looked for.
    DiscoveryStrategy {
        /// The first that works.
        Auto = "auto",
        /// The driver library.
        Nvml = "nvml",
        /// Integrated GPUs of Tegra systems.
        Tegra = "tegra",
        /// GPUs bound to vfio-pci.
        Vfio = "vfio"
    } "auto, nvml, tegra or vfio"
}

/// `flags`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `migStrategy`.
    pub mig_strategy: Option<MigStrategy>,
    /// `failOnInitError`.
    pub fail_on_init_error: Option<bool>,
    /// `mpsRoot`, on the host.
    pub mps_root: Option<PathBuf>,
    /// `nvidiaDriverRoot`, on the host.
    pub driver_root: Option<PathBuf>,
    /// `nvidiaDevRoot`, on the host.
    pub dev_root: Option<PathBuf>,
    /// `gdrcopyEnabled`.
    pub gdrcopy: Option<bool>,
    /// `gdsEnabled`.
    pub gds: Option<bool>,
    /// `mofedEnabled`.
    pub mofed: Option<bool>,
    /// `useNodeFeatureAPI`.
    pub use_node_feature_api: Option<bool>,
    /// `deviceDiscoveryStrategy`.
    pub discovery_strategy: Option<DiscoveryStrategy>,
    /// `plugin`.
    pub plugin: PluginFlags,
    /// `gfd`.
    pub gfd: GfdFlags,
}

/// `flags.plugin`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginFlags {
    /// `passDeviceSpecs`.
    pub pass_device_specs: Option<bool>,
    /// `deviceListStrategy`, one or several, in the order of the file and each once.
    pub device_list_strategies: Option<Vec<DeviceListStrategy>>,
    /// `deviceIDStrategy`.
    pub device_id_strategy: Option<DeviceIdStrategy>,
    /// `cdiAnnotationPrefix`.
    pub cdi_annotation_prefix: Option<String>,
    /// `nvidiaCTKPath`: the program that hooks of CDI specs run.
    pub cdi_hook_path: Option<PathBuf>,
    /// `containerDriverRoot`: where the driver root is mounted in the plugin's own container.
    pub container_driver_root: Option<PathBuf>,
    /// `sharedDevicesAllocationPolicy`.
    pub allocation_policy: Option<AllocationPolicy>,
}

/// `flags.gfd`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GfdFlags {
    /// `oneshot`.
    pub oneshot: Option<bool>,
    /// `noTimestamp`.
    pub no_timestamp: Option<bool>,
    /// `sleepInterval`, as written: feature discovery knows the notation.
    pub sleep_interval: Option<String>,
    /// `outputFile`.
    pub output_file: Option<PathBuf>,
    /// `machineTypeFile`.
    pub machine_type_file: Option<PathBuf>,
}
