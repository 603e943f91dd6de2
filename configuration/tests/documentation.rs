//! The examples of docs/device-plugin-configuration.md are files that work, and together they have every key.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use configuration::plugin::PluginFile;

/// The YAML blocks of the page.
fn examples() -> Vec<&'static str> {
    let page = include_str!("../../docs/device-plugin-configuration.md");
    let blocks = page.split("```yaml\n").skip(1);
    blocks
        .map(|rest| rest.split("```").next().unwrap())
        .collect()
}

#[test]
fn every_example_is_read_without_a_notice() {
    let examples = examples();
    assert!(examples.len() >= 5, "{}", examples.len());
    for example in examples {
        let (_, notices) = PluginFile::parse("example", example.as_bytes())
            .unwrap_or_else(|error| panic!("{error}\n{example}"));
        assert!(notices.is_empty(), "{notices:?}\n{example}");
    }
}

#[test]
fn every_key_has_an_example() {
    let keys = "version migStrategy failOnInitError mpsRoot nvidiaDriverRoot nvidiaDevRoot gdrcopyEnabled gdsEnabled \
        mofedEnabled useNodeFeatureAPI deviceDiscoveryStrategy passDeviceSpecs deviceListStrategy deviceIDStrategy \
        cdiAnnotationPrefix nvidiaCTKPath containerDriverRoot sharedDevicesAllocationPolicy oneshot noTimestamp \
        sleepInterval outputFile machineTypeFile include exclude gpus mig pattern name timeSlicing mps renameByDefault \
        failRequestsGreaterThanOne resources replicas devices rename channelIDs required";
    let examples = examples().concat();
    for key in keys.split_whitespace() {
        assert!(examples.contains(&format!("{key}:")), "{key}");
    }
}
