//! Nodes on disk, as people and other processes meet them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

/// A node whose library is an empty file: nothing here loads it.
pub(crate) fn node(spec: &NodeSpec) -> (tempfile::TempDir, SimulatedNode) {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("stand-in.so");
    fs::write(&library, "").unwrap();
    let node = SimulatedNode::create_with(&folder.path().join("root"), spec, &library).unwrap();
    (folder, node)
}

#[test]
fn every_preset_makes_a_node() {
    let expected = [
        ("dgx-a100", 8, "NVIDIA A100-SXM4-40GB"),
        ("dgx-h100", 8, "NVIDIA H100 80GB HBM3"),
        ("hgx-h200", 8, "NVIDIA H200"),
        ("dgx-b200", 8, "NVIDIA B200"),
        ("gb200-tray", 4, "NVIDIA GB200"),
        ("a30x4", 4, "NVIDIA A30"),
        ("mixed", 2, "NVIDIA A100-PCIE-40GB"),
        ("dgx-station-a100", 5, "NVIDIA A100-SXM4-40GB"),
    ];
    assert_eq!(
        presets::names().collect::<Vec<_>>(),
        expected.map(|(name, _, _)| name)
    );
    for (name, count, product) in expected {
        let (_folder, node) = node(&NodeSpec::preset(name).unwrap());
        let state = node.state().unwrap();
        assert_eq!((state.name.as_str(), state.gpus.len()), (name, count));
        assert_eq!(state.gpus[0].board.product, product);
        assert!(
            node.root()
                .join("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
                .is_file()
        );
    }
}
