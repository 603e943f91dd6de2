//! Two sources that say the same things: what the first does not say is taken from the second.

use super::{Flags, GfdFlags, Imex, PluginFile, PluginFlags};

impl PluginFile {
    /// This file under flags and environment variables, which win over it.
    #[must_use]
    pub fn under(self, flags: Flags, imex: Imex) -> Self {
        Self {
            flags: flags.or(self.flags),
            imex: imex.or(self.imex),
            ..self
        }
    }
}

impl Imex {
    /// What `self` does not say is taken from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            channel0: self.channel0.or(other.channel0),
            required: self.required.or(other.required),
        }
    }
}

impl Flags {
    /// What `self` does not say is taken from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            mig_strategy: self.mig_strategy.or(other.mig_strategy),
            fail_on_init_error: self.fail_on_init_error.or(other.fail_on_init_error),
            mps_root: self.mps_root.or(other.mps_root),
            driver_root: self.driver_root.or(other.driver_root),
            dev_root: self.dev_root.or(other.dev_root),
            gdrcopy: self.gdrcopy.or(other.gdrcopy),
            gds: self.gds.or(other.gds),
            mofed: self.mofed.or(other.mofed),
            use_node_feature_api: self.use_node_feature_api.or(other.use_node_feature_api),
            discovery_strategy: self.discovery_strategy.or(other.discovery_strategy),
            plugin: self.plugin.or(other.plugin),
            gfd: self.gfd.or(other.gfd),
        }
    }
}

impl PluginFlags {
    fn or(self, other: Self) -> Self {
        Self {
            pass_device_specs: self.pass_device_specs.or(other.pass_device_specs),
            device_list_strategies: self.device_list_strategies.or(other.device_list_strategies),
            device_id_strategy: self.device_id_strategy.or(other.device_id_strategy),
            cdi_annotation_prefix: self.cdi_annotation_prefix.or(other.cdi_annotation_prefix),
            cdi_hook_path: self.cdi_hook_path.or(other.cdi_hook_path),
            container_driver_root: self.container_driver_root.or(other.container_driver_root),
            allocation_policy: self.allocation_policy.or(other.allocation_policy),
        }
    }
}

impl GfdFlags {
    fn or(self, other: Self) -> Self {
        Self {
            oneshot: self.oneshot.or(other.oneshot),
            no_timestamp: self.no_timestamp.or(other.no_timestamp),
            sleep_interval: self.sleep_interval.or(other.sleep_interval),
            output_file: self.output_file.or(other.output_file),
            machine_type_file: self.machine_type_file.or(other.machine_type_file),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn file(text: &str) -> PluginFile {
        PluginFile::parse("f", text.as_bytes()).unwrap().0
    }

    /// A file with every flag; `n` makes the values differ.
    fn full(n: usize) -> PluginFile {
        let pick = |words: [&str; 2]| words[n].to_owned();
        let (truth, strategy) = (pick(["true", "false"]), pick(["single", "mixed"]));
        let text = format!(
            "flags: {{migStrategy: {strategy}, failOnInitError: {truth}, mpsRoot: /m{n}, nvidiaDriverRoot: /d{n}, \
             nvidiaDevRoot: /v{n}, gdrcopyEnabled: {truth}, gdsEnabled: {truth}, mofedEnabled: {truth}, \
             useNodeFeatureAPI: {truth}, deviceDiscoveryStrategy: {}, \
             plugin: {{passDeviceSpecs: {truth}, deviceListStrategy: {}, deviceIDStrategy: {}, \
             cdiAnnotationPrefix: p{n}/, nvidiaCTKPath: /c{n}, containerDriverRoot: /r{n}, \
             sharedDevicesAllocationPolicy: {}}}, \
             gfd: {{oneshot: {truth}, noTimestamp: {truth}, sleepInterval: {n}s, outputFile: /o{n}, machineTypeFile: /t{n}}}}}\n\
             imex: {{channelIDs: {}, required: {truth}}}\n",
            pick(["nvml", "auto"]),
            pick(["envvar", "cdi-cri"]),
            pick(["uuid", "index"]),
            pick(["packed", "distinct"]),
            pick(["[0]", "[]"]),
        );
        file(&text)
    }

    #[test]
    fn what_is_said_wins_and_what_is_not_said_stays() {
        let (a, b) = (full(0), full(1));
        assert_ne!(a, b);
        let over = |flags: &PluginFile, file: &PluginFile| {
            file.clone().under(flags.flags.clone(), flags.imex.clone())
        };
        assert_eq!(over(&a, &b), a);
        assert_eq!(over(&PluginFile::default(), &b), b);
        assert_eq!(over(&a, &PluginFile::default()), a);
    }

    #[test]
    fn the_rest_of_the_file_stays() {
        let text = "devices: {exclude: [0]}\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}\n";
        let with_flags = file(text).under(full(0).flags, Imex::default());
        assert_eq!(with_flags.devices, file(text).devices);
        assert_eq!(with_flags.sharing, file(text).sharing);
    }
}
