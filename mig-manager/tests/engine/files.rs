//! Files that go out: export, checkpoint, generated configs, and what coming back from them gives.

use mig_manager::checkpoint::Checkpoint;
use mig_manager::engine::Request;
use mig_manager::generate::default_config;
use mig_manager::output::Format;
use rstest::rstest;

use super::{Node, OFF, all};

#[test]
fn export_says_what_there_is_and_applies_again() {
    let node = Node::of("h100-sxm5-80gb", 3);
    node.apply(&all("1g.10gb: 2, 1c.3g.40gb: 2")).unwrap();
    node.apply("- {devices: [2], mig-enabled: false}").unwrap();
    let exported = node.engine().export("current").unwrap().unwrap();
    assert_eq!(
        Format::Yaml.write("config", &exported).unwrap(),
        "version: v1\nmig-configs:\n  current:\n  - devices:\n    - 0\n    - 1\n    mig-enabled: true\n    mig-devices:\n      \
         1c.3g.40gb: 2\n      1g.10gb: 2\n  - devices:\n    - 2\n    mig-enabled: false\n    mig-devices: {}\n"
    );
    let request = Request::of(&exported, None).unwrap();
    assert!(node.engine().assert(&request).unwrap().is_empty());
}

#[test]
fn checkpoint_brings_back_exact_placements() {
    let node = Node::of("a100-sxm4-40gb", 2);
    // Two steps, so that the placements are not those that one apply would choose.
    node.apply(&all("1g.5gb: 7")).unwrap();
    node.apply("- {devices: [0], mig-enabled: true, mig-devices: {1g.5gb: 3, 1c.3g.20gb: 2}}\n- {devices: [1], mig-enabled: false}")
        .unwrap();
    let before = node.layouts();
    let checkpoint = node.engine().checkpoint().unwrap();
    let json = Format::Json.write("checkpoint", &checkpoint).unwrap();

    node.apply(&all("7g.40gb: 1")).unwrap();
    let read = Checkpoint::parse("c.json", json.as_bytes()).unwrap();
    assert_eq!(read, checkpoint);
    node.engine()
        .apply(&Request::restore(read), &|_| {})
        .unwrap();
    assert_eq!(node.layouts(), before);
}

#[test]
fn checkpoint_is_in_mig_parteds_format() {
    let node = Node::of("a100-sxm4-40gb", 2);
    node.apply("- {devices: [0], mig-enabled: true, mig-devices: {3g.20gb: 1}}")
        .unwrap();
    let uuids: Vec<String> = node
        .sim
        .state()
        .unwrap()
        .gpus
        .iter()
        .map(|g| g.uuid.clone())
        .collect();
    let checkpoint = serde_json::to_value(node.engine().checkpoint().unwrap()).unwrap();
    let start =
        checkpoint["MigState"]["Devices"][0]["GpuInstances"][0]["Placement"]["Start"].clone();
    // 3g has enumeration index 2 (and id 9); its whole compute instance has index 2.
    assert_eq!(
        checkpoint,
        serde_json::json!({
            "Version": "v1",
            "MigState": {"Devices": [
                {"UUID": uuids[0], "MigMode": 1, "GpuInstances": [{
                    "ProfileID": 2,
                    "Placement": {"Start": start, "Size": 4},
                    "ComputeInstances": [
                        {"ProfileID": 2, "EngProfileID": 0, "Placement": {"Start": 0, "Size": 3}}
                    ],
                }]},
                {"UUID": uuids[1], "MigMode": 0, "GpuInstances": null},
            ]}
        })
    );
}

#[test]
fn checkpoint_that_mig_parted_wrote() {
    let node = Node::of("a100-sxm4-40gb", 1);
    let uuid = node.sim.state().unwrap().gpus[0].uuid.clone();
    let written = format!(
        r#"{{"Version":"v1","MigState":{{"Devices":[{{"UUID":"{uuid}","MigMode":1,"GpuInstances":[
            {{"ProfileID":0,"Placement":{{"Start":6,"Size":1}},"ComputeInstances":[{{"ProfileID":0,"EngProfileID":0}}]}},
            {{"ProfileID":2,"Placement":{{"Start":0,"Size":4}},"ComputeInstances":[
                {{"ProfileID":0,"EngProfileID":0}},{{"ProfileID":1,"EngProfileID":0}}]}}]}}]}}}}"#
    );
    let checkpoint = Checkpoint::parse("c.json", written.as_bytes()).unwrap();
    node.engine()
        .apply(&Request::restore(checkpoint), &|_| {})
        .unwrap();
    assert_eq!(node.layouts(), ["on 9@0/1+2 19@6/1"]);
}

#[rstest]
#[case::other_gpu("GPU-00000000-0000-0000-0000-000000000000", 2, 4, "not in this node")]
#[case::profile_index("", 16, 4, "profile index 16")]
#[case::placement("", 2, 3, "3g.40gb cannot lie at")]
fn checkpoint_that_does_not_suit(
    #[case] uuid: &str,
    #[case] profile: u32,
    #[case] size: u32,
    #[case] says: &str,
) {
    let node = Node::of("h100-sxm5-80gb", 1);
    let own = node.sim.state().unwrap().gpus[0].uuid.clone();
    let uuid = if uuid.is_empty() { &own } else { uuid };
    let json = format!(
        r#"{{"Version":"v1","MigState":{{"Devices":[{{"UUID":"{uuid}","MigMode":1,"GpuInstances":[
            {{"ProfileID":{profile},"Placement":{{"Start":0,"Size":{size}}},"ComputeInstances":null}}]}}]}}}}"#
    );
    let checkpoint = Checkpoint::parse("c.json", json.as_bytes()).unwrap();
    let error = node
        .engine()
        .apply(&Request::restore(checkpoint), &|_| {})
        .unwrap_err();
    assert_eq!(error.exit_code(), 3, "{error}");
    assert!(error.to_string().contains(says), "{error}");
    assert_eq!(node.changes(), [""; 0]);
}

#[rstest]
#[case::version(r#"{"Version":"v2","MigState":{"Devices":null}}"#, "version")]
#[case::mode(
    r#"{"Version":"v1","MigState":{"Devices":[{"UUID":"GPU-1","MigMode":7,"GpuInstances":null}]}}"#,
    "MigMode"
)]
#[case::off_with_instances(
    r#"{"Version":"v1","MigState":{"Devices":[{"UUID":"GPU-1","MigMode":0,"GpuInstances":[
        {"ProfileID":0,"Placement":{"Start":0,"Size":1},"ComputeInstances":null}]}]}}"#,
    "although MigMode is 0"
)]
#[case::twice(
    r#"{"Version":"v1","MigState":{"Devices":[{"UUID":"GPU-1","MigMode":1,"GpuInstances":null},
        {"UUID":"GPU-1","MigMode":0,"GpuInstances":null}]}}"#,
    "GPU-1 is there twice"
)]
#[case::unknown_key(r#"{"Version":"v1","MigState":{"Devices":null},"Extra":1}"#, "Extra")]
#[case::not_json("\u{0}\u{1}", "")]
fn bad_checkpoint(#[case] text: &str, #[case] says: &str) {
    let error = Checkpoint::parse("c.json", text.as_bytes())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("c.json:") && error.contains(says),
        "{error}"
    );
}

/// Every generated layout of every board can be applied and then holds.
#[rstest]
fn generated_layouts_work(
    #[values(
        "a30-24gb",
        "a100-sxm4-40gb",
        "a100-pcie-80gb",
        "h100-sxm5-80gb",
        "h100-nvl-94gb",
        "gh200-96gb",
        "h200-sxm-141gb",
        "b200-180gb",
        "gb300-278gb",
        "rtx-pro-6000-96gb"
    )]
    board: &str,
) {
    let node = Node::of(board, 1);
    let config = node.engine().generate().unwrap();
    let names: Vec<&str> = config.names().collect();
    for expected in ["all-disabled", "all-enabled", "all-balanced"] {
        assert!(names.contains(&expected), "{names:?}");
    }
    for name in names {
        let request = Request::of(&config, Some(name)).unwrap();
        node.engine()
            .apply(&request, &|_| {})
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(node.engine().assert(&request).unwrap().is_empty(), "{name}");
    }
    node.apply(OFF).unwrap();
}

/// What the shipped config says of a board is what the board's own driver would have led to.
#[rstest]
fn default_config_suits_every_board(
    #[values(
        "a30-24gb",
        "a100-sxm4-40gb",
        "a100-pcie-40gb",
        "a100-sxm4-80gb",
        "a100-pcie-80gb",
        "h100-sxm5-80gb",
        "h100-pcie-80gb",
        "h100-nvl-94gb",
        "gh200-96gb",
        "gh200-144gb",
        "h200-sxm-141gb",
        "h200-nvl-141gb",
        "b200-180gb",
        "gb200-186gb",
        "b300-269gb",
        "gb300-278gb",
        "rtx-pro-6000-96gb"
    )]
    board: &str,
) {
    let node = Node::of(board, 1);
    let generated = node.engine().generate().unwrap();
    let shipped = default_config().unwrap();
    for name in generated.names() {
        let (_, specs) = shipped
            .select(Some(name))
            .unwrap_or_else(|e| panic!("{board}: {e}"));
        let (_, own) = generated.select(Some(name)).unwrap();
        let plan = node
            .engine()
            .plan(&Request::of(&shipped, Some(name)).unwrap())
            .unwrap();
        assert!(plan.problem().is_none(), "{board} {name}");
        let counts: Vec<_> = specs.iter().map(|s| &s.mig_devices).collect();
        assert!(
            counts.contains(&&own[0].mig_devices),
            "{board} {name}: {counts:?}"
        );
    }
}

#[test]
fn mixed_node_gets_filters() {
    let node = Node::preset("dgx-station-a100");
    let config = node.engine().generate().unwrap();
    let request = Request::of(&config, Some("all-balanced")).unwrap();
    node.engine().apply(&request, &|_| {}).unwrap();
    assert!(node.engine().assert(&request).unwrap().is_empty());
}
