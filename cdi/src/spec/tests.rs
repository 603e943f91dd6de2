//! Versions and refusals, against the rules of the format's own parser.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rstest::rstest;

use super::*;

fn kind() -> Kind {
    Kind::new("vendor.com", "gpu").unwrap()
}

/// Edits with one plain device node.
fn edits() -> ContainerEdits {
    ContainerEdits {
        device_nodes: vec![node("/dev/a")],
        ..ContainerEdits::default()
    }
}

fn node(path: &str) -> DeviceNode {
    DeviceNode {
        path: path.into(),
        ..DeviceNode::default()
    }
}

fn device(name: &str, container_edits: ContainerEdits) -> Device {
    Device {
        name: name.into(),
        container_edits,
        ..Device::default()
    }
}

fn mount() -> Mount {
    Mount {
        host_path: "/a".into(),
        container_path: "/b".into(),
        ..Mount::default()
    }
}

fn rdt(change: impl FnOnce(&mut IntelRdt)) -> ContainerEdits {
    let mut rdt = IntelRdt::default();
    change(&mut rdt);
    ContainerEdits {
        intel_rdt: Some(rdt),
        ..ContainerEdits::default()
    }
}

#[rstest]
#[case::plain(edits(), Version::V0_3)]
#[case::mount(ContainerEdits { mounts: vec![mount()], ..edits() }, Version::V0_3)]
#[case::hook(ContainerEdits { hooks: vec![hook("createContainer", "/a")], ..edits() }, Version::V0_3)]
#[case::mount_type(
    ContainerEdits { mounts: vec![Mount { kind: Some("tmpfs".into()), ..mount() }], ..edits() },
    Version::V0_4
)]
#[case::host_path(
    ContainerEdits { device_nodes: vec![DeviceNode { host_path: Some("/x".into()), ..node("/a") }], ..edits() },
    Version::V0_5
)]
#[case::gids(ContainerEdits { additional_gids: vec![44], ..edits() }, Version::V0_7)]
#[case::rdt(rdt(|rdt| rdt.clos_id = Some("a".into())), Version::V0_7)]
#[case::monitoring(rdt(|rdt| rdt.enable_monitoring = true), Version::V1_1)]
#[case::schemata(rdt(|rdt| rdt.schemata = vec!["L3:0=f".into()]), Version::V1_1)]
#[case::net(ContainerEdits { net_devices: vec![net("eth1", "rdma0")], ..edits() }, Version::V1_1)]
fn the_lowest_version_that_has_what_is_used(#[case] part: ContainerEdits, #[case] wanted: Version) {
    let of_device = Spec::new(
        kind(),
        vec![device("a", part.clone())],
        ContainerEdits::default(),
    );
    let of_all = Spec::new(kind(), vec![device("a", edits())], part);
    assert_eq!(of_device.unwrap().version(), wanted);
    assert_eq!(of_all.unwrap().version(), wanted);
}

#[rstest]
#[case("vendor.com/gpu", "a0", Version::V0_3)]
#[case("vendor.com/gpu", "0", Version::V0_5)]
#[case("vendor.com/gpu", "0:1", Version::V0_5)]
#[case("vendor.com/gpu.v1", "a", Version::V0_6)]
fn names_need_versions_too(#[case] kind: &str, #[case] name: &str, #[case] wanted: Version) {
    let spec = Spec::new(
        kind.parse().unwrap(),
        vec![device(name, edits())],
        ContainerEdits::default(),
    );
    assert_eq!(spec.unwrap().version(), wanted);
}

#[test]
fn annotations_need_0_6() {
    let annotations: BTreeMap<_, _> = [("vendor.com/a".to_owned(), "b".to_owned())].into();
    let noted = Device {
        annotations: annotations.clone(),
        ..device("a", edits())
    };
    let none = ContainerEdits::default();
    let of_device = Spec::new(kind(), vec![noted], none.clone()).unwrap();
    let of_spec = Spec::annotated(kind(), annotations, vec![device("a", edits())], none).unwrap();
    assert_eq!(
        (of_device.version(), of_spec.version()),
        (Version::V0_6, Version::V0_6)
    );
}

fn hook(name: &str, path: &str) -> Hook {
    Hook {
        hook_name: name.into(),
        path: path.into(),
        ..Hook::default()
    }
}

fn net(host: &str, name: &str) -> NetDevice {
    NetDevice {
        host_interface_name: host.into(),
        name: name.into(),
    }
}

fn of(change: impl FnOnce(&mut ContainerEdits)) -> ContainerEdits {
    let mut part = edits();
    change(&mut part);
    part
}

#[rstest]
#[case(of(|e| e.env = vec!["A".into()]), "variable \"A\": it is written NAME=value")]
#[case(of(|e| e.env = vec!["=a".into()]), "variable \"=a\": it is written NAME=value")]
#[case(of(|e| e.device_nodes = vec![node("")]), "device node \"\": its path is empty")]
#[case(
    of(|e| e.device_nodes = vec![DeviceNode { kind: Some('x'), ..node("/a") }]),
    "device node \"/a\": its type is b, c, u or p"
)]
#[case(
    of(|e| e.device_nodes = vec![DeviceNode { permissions: Some("rx".into()), ..node("/a") }]),
    "device node \"/a\": its permissions are letters of rwm, or none"
)]
#[case(of(|e| e.hooks = vec![hook("created", "/a")]), "hook \"created\": there is no such moment")]
#[case(of(|e| e.hooks = vec![hook("poststop", "")]), "hook \"poststop\": its program is empty")]
#[case(
    of(|e| e.hooks = vec![Hook { env: vec!["A".into()], ..hook("poststop", "/a") }]),
    "variable \"A\": it is written NAME=value"
)]
#[case(
    of(|e| e.mounts = vec![Mount { host_path: String::new(), ..mount() }]),
    "mount \"/b\": its host path is empty"
)]
#[case(
    of(|e| e.mounts = vec![Mount { container_path: String::new(), ..mount() }]),
    "mount \"/a\": its container path is empty"
)]
#[case(
    rdt(|rdt| rdt.clos_id = Some("a/b".into())),
    "closID \"a/b\": it is a file name, or / for the root class"
)]
#[case(of(|e| e.net_devices = vec![net("", "a")]), "interface \"a\": its host name is empty")]
#[case(of(|e| e.net_devices = vec![net("a", "")]), "interface \"a\": its name is empty")]
#[case(
    of(|e| e.net_devices = vec![net("a", "b"), net("a", "c")]),
    "interface \"a\": it is there twice"
)]
#[case(
    of(|e| e.net_devices = vec![net("a", "c"), net("b", "c")]),
    "interface \"c\": it is there twice"
)]
fn refused_edits(#[case] part: ContainerEdits, #[case] why: &str) {
    let of_device = Spec::new(
        kind(),
        vec![device("a", part.clone())],
        ContainerEdits::default(),
    );
    let of_all = Spec::new(kind(), vec![device("a", edits())], part);
    assert_eq!(
        of_device.unwrap_err().to_string(),
        format!("device \"a\": {why}")
    );
    assert_eq!(
        of_all.unwrap_err().to_string(),
        format!("edits of all devices: {why}")
    );
}

#[rstest]
#[case(of(|e| e.device_nodes = vec![DeviceNode { permissions: Some("none".into()), ..node("/a") }]))]
#[case(of(|e| e.device_nodes = vec![DeviceNode { kind: Some('c'), permissions: Some("rwm".into()), ..node("/a") }]))]
#[case(of(|e| e.env = vec!["A=".into(), "B=b=c".into()]))]
#[case(rdt(|rdt| rdt.clos_id = Some("/".into())))]
fn taken_edits(#[case] part: ContainerEdits) {
    let spec = Spec::new(kind(), vec![device("a", part)], ContainerEdits::default());
    assert!(spec.is_ok(), "{spec:?}");
}

#[rstest]
#[case(vec![], SpecError::NoDevice)]
#[case(vec![device("a", edits()), device("a", edits())], SpecError::Twice("a".into()))]
#[case(vec![device("a", ContainerEdits::default())], SpecError::Empty("a".into()))]
fn refused_devices(#[case] devices: Vec<Device>, #[case] why: SpecError) {
    let refused = Spec::new(kind(), devices, edits());
    assert_eq!(refused, Err(why));
}

#[rstest]
#[case("a", true)]
#[case("vendor.com/a_B.c", true)]
#[case("vendor.com/", false)]
#[case("Vendor.com/a", false)]
#[case("vendor..com/a", false)]
#[case("a/b/c", false)]
#[case("-a", false)]
#[case("a b", false)]
fn annotation_keys(#[case] key: &str, #[case] taken: bool) {
    let noted = Device {
        annotations: [(key.to_owned(), String::new())].into(),
        ..device("a", edits())
    };
    let spec = Spec::new(kind(), vec![noted], ContainerEdits::default());
    assert_eq!(spec.is_ok(), taken, "{spec:?}");
}

/// Every field, under the name that the format gives it.
#[test]
fn the_file_of_everything() {
    let part = ContainerEdits {
        env: vec!["A=b".into()],
        device_nodes: vec![DeviceNode {
            path: "/dev/a".into(),
            host_path: Some("/host/dev/a".into()),
            kind: Some('c'),
            major: Some(195),
            minor: Some(0),
            file_mode: Some(0o666),
            permissions: Some("rw".into()),
            uid: Some(1),
            gid: Some(2),
        }],
        net_devices: vec![net("eth1", "rdma0")],
        hooks: vec![Hook {
            args: vec!["a".into(), "\"b\"".into()],
            env: vec!["C=d".into()],
            timeout: Some(3),
            ..hook("createContainer", "/bin/a")
        }],
        mounts: vec![Mount {
            options: vec!["ro".into()],
            kind: Some("bind".into()),
            ..mount()
        }],
        intel_rdt: Some(IntelRdt {
            clos_id: Some("c".into()),
            l3_cache_schema: Some("L3:0=f".into()),
            mem_bw_schema: Some("MB:0=20".into()),
            schemata: vec!["L2:0=f".into()],
            enable_monitoring: true,
        }),
        additional_gids: vec![44],
    };
    let annotations: BTreeMap<_, _> = [("k".to_owned(), "v".to_owned())].into();
    let device = Device {
        annotations: annotations.clone(),
        ..device("a", part)
    };
    let spec = Spec::annotated(kind(), annotations, vec![device], edits()).unwrap();
    let wanted = r#"{
  "cdiVersion": "1.1.0",
  "kind": "vendor.com/gpu",
  "annotations": {
    "k": "v"
  },
  "devices": [
    {
      "name": "a",
      "annotations": {"k": "v"},
      "containerEdits": {"env": ["A=b"], "deviceNodes": [{"path": "/dev/a", "hostPath": "/host/dev/a", "type": "c", "major": 195, "minor": 0, "fileMode": 438, "permissions": "rw", "uid": 1, "gid": 2}], "netDevices": [{"hostInterfaceName": "eth1", "name": "rdma0"}], "hooks": [{"hookName": "createContainer", "path": "/bin/a", "args": ["a", "\"b\""], "env": ["C=d"], "timeout": 3}], "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro"], "type": "bind"}], "intelRdt": {"closID": "c", "l3CacheSchema": "L3:0=f", "memBwSchema": "MB:0=20", "schemata": ["L2:0=f"], "enableMonitoring": true}, "additionalGids": [44]}
    }
  ],
  "containerEdits": {
    "deviceNodes": [
      {"path": "/dev/a"}
    ]
  }
}
"#;
    assert_eq!(String::from_utf8(spec.to_json()).unwrap(), wanted);
}
