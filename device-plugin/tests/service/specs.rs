//! The CDI specs on the node, whatever others do to them.

use std::fs;

use rstest::rstest;

use crate::rig::Setup;

/// Runtimes cannot start a container whose devices no spec names.
#[rstest]
#[case::deleted(|path: &std::path::Path| fs::remove_file(path).unwrap())]
#[case::overwritten(|path: &std::path::Path| fs::write(path, "{}").unwrap())]
#[case::with_its_folder(|path: &std::path::Path| fs::remove_dir_all(path.parent().unwrap()).unwrap())]
#[tokio::test]
async fn a_spec_that_somebody_spoils_is_made_again(#[case] spoil: impl Fn(&std::path::Path)) {
    let setup = Setup::new().file("flags: {plugin: {deviceListStrategy: cdi-cri}}");
    let rig = setup.start().await;
    rig.until("gpu 2").await;
    let path = rig
        .config
        .cdi_folder
        .join("k8s.device-plugin.nvidia.com-gpu.json");
    let good = fs::read_to_string(&path).unwrap();
    assert!(good.contains(&rig.uuid(1)), "{good}");
    for _ in 0..2 {
        spoil(&path);
        let whole = || fs::read_to_string(&path).is_ok_and(|now| now == good);
        rig.until_so("the spec is whole again", |_| whole()).await;
    }
    assert_eq!(rig.held(), [("gpu".to_owned(), (2, 0))].into());
}
