//! The partition config as users write it: what is taken, and where and how a bad file is refused.

use gpu::PciId;
use mig_manager::config::{Config, Devices, SelectionError};
use mig_manager::output::Format;
use mig_manager::strict::{DocumentError, MAX_BYTES, Position};
use rstest::rstest;

const EVERYTHING: &str = r#"
# The forms mig-parted documents.
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  all-enabled:
    - devices: all
      mig-enabled: true
      mig-devices: {}
  custom:
    - device-filter: "0x20B010DE"
      devices: [1, 0, 1]
      mig-enabled: false
      mig-devices: {}
    - device-filter: ["0x233010DE:0x16C110DE", "0x233110DE"]
      devices: all
      mig-enabled: true
      mig-devices:
        "1g.10gb": 2
        "1g.10gb+me": 0
        "1c.3g.40gb": 1
"#;

fn parse(text: &str) -> Result<Config, DocumentError> {
    Config::parse("config.yaml", text.as_bytes())
}

#[test]
fn every_form() {
    let config = parse(EVERYTHING).unwrap();
    assert_eq!(
        config.names().collect::<Vec<_>>(),
        ["all-disabled", "all-enabled", "custom"]
    );
    let (name, specs) = config.select(Some("custom")).unwrap();
    assert_eq!(name, "custom");
    assert_eq!(specs[0].devices, Devices::Indices(vec![0, 1]));
    assert!(!specs[0].mig_enabled);
    let h100 = |subsystem| PciId {
        device: 0x2330_10DE,
        subsystem,
    };
    assert!(specs[1].passes(h100(0x16C1_10DE)));
    assert!(!specs[1].passes(h100(0x16C0_10DE)));
    assert_eq!(specs[1].devices, Devices::All);
    let counts: Vec<_> = specs[1]
        .mig_devices
        .iter()
        .map(|(p, n)| (p.to_string(), *n))
        .collect();
    // The zero count is gone: it asks for nothing.
    assert_eq!(
        counts,
        [("1g.10gb".to_owned(), 2), ("1c.3g.40gb".to_owned(), 1)]
    );
}

#[test]
fn json_is_taken_too() {
    let json = "{\n\t\"version\": \"v1\",\n\t\"mig-configs\": {\"a\": [{\"devices\": [0],\n\t\t\"mig-enabled\": true, \"mig-devices\": {\"7g.80gb\": 1}}]}}";
    let config = parse(json).unwrap();
    assert_eq!(config.select(None).unwrap().0, "a");
}

#[rstest]
#[case::empty("", 1, 1, "end of file")]
#[case::only_a_comment("# nothing\n", 2, 1, "end of file")]
#[case::scalar("hello", 1, 1, "")]
#[case::no_version(
    "mig-configs: {a: [{devices: all, mig-enabled: false}]}",
    1,
    1,
    "version"
)]
#[case::wrong_version(
    "version: v2\nmig-configs: {a: [{devices: all, mig-enabled: false}]}",
    1,
    10,
    "unknown version \"v2\""
)]
#[case::unknown_top_key("version: v1\nmig-config: {}\n", 2, 1, "mig-config")]
#[case::unknown_spec_key(
    "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: false\n    mig-device: {}\n",
    6,
    5,
    "mig-device"
)]
#[case::duplicate_config(
    "version: v1\nmig-configs:\n  a: [{devices: all, mig-enabled: false}]\n  a: [{devices: all, mig-enabled: false}]\n",
    4,
    3,
    "duplicate"
)]
#[case::duplicate_field(
    "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: false\n    devices: all\n",
    6,
    5,
    "duplicate"
)]
#[case::duplicate_profile(
    "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {1g.5gb: 1, 1g.5gb: 2}\n",
    6,
    30,
    "duplicate"
)]
#[case::same_profile_spelt_differently(
    "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {1g.5gb: 1, 1c.1g.5gb: 2}\n",
    6,
    30,
    "1g.5gb is given twice"
)]
#[case::no_configs("version: v1\nmig-configs: {}\n", 2, 14, "mig-configs is empty")]
#[case::null_configs("version: v1\nmig-configs:\n", 2, 12, "mapping")]
#[case::no_specs(
    "version: v1\nmig-configs:\n  a: []\n",
    3,
    6,
    "config \"a\" has no specs"
)]
#[case::empty_devices(
    "version: v1\nmig-configs:\n  a:\n  - devices: []\n    mig-enabled: false\n",
    4,
    14,
    "empty list"
)]
#[case::devices_word(
    "version: v1\nmig-configs:\n  a:\n  - devices: some\n    mig-enabled: false\n",
    4,
    14,
    "write `all` or a list"
)]
#[case::devices_number(
    "version: v1\nmig-configs:\n  a:\n  - devices: 3\n    mig-enabled: false\n",
    4,
    14,
    "`all` or a list of GPU indices"
)]
#[case::negative_index(
    "version: v1\nmig-configs:\n  a:\n  - devices: [0, -1]\n    mig-enabled: false\n",
    4,
    18,
    "-1 is no GPU index"
)]
#[case::fractional_index(
    "version: v1\nmig-configs:\n  a:\n  - devices: [0.5]\n    mig-enabled: false\n",
    4,
    15,
    ""
)]
#[case::no_devices(
    "version: v1\nmig-configs:\n  a:\n  - mig-enabled: false\n",
    4,
    5,
    "devices"
)]
#[case::no_mig_enabled(
    "version: v1\nmig-configs:\n  a:\n  - devices: all\n",
    4,
    5,
    "mig-enabled"
)]
#[case::enabled_is_a_number(
    "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: 1\n",
    5,
    18,
    "bool"
)]
#[case::enabled_without_devices(
    "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: true\n",
    5,
    18,
    "mig-devices is missing"
)]
#[case::disabled_with_devices(
    "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: false\n    mig-devices: {1g.5gb: 1}\n",
    6,
    18,
    "must be empty or absent"
)]
#[case::negative_count(
    "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {1g.5gb: -1}\n",
    6,
    27,
    "-1 is no count"
)]
#[case::huge_count(
    "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {1g.5gb: 99999999999999999999}\n",
    6,
    27,
    ""
)]
#[case::all_zero(
    "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {1g.5gb: 0, 2g.10gb: 0}\n",
    6,
    18,
    "every count is 0"
)]
#[case::bad_profile(
    "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: true\n    mig-devices:\n      1g5gb: 1\n",
    7,
    7,
    "not a MIG profile"
)]
#[case::malformed_filter(
    "version: v1\nmig-configs:\n  a:\n  - device-filter: A100\n    devices: all\n    mig-enabled: false\n",
    4,
    20,
    "malformed device-filter \"A100\""
)]
#[case::malformed_filter_in_a_list(
    "version: v1\nmig-configs:\n  a:\n  - device-filter: ['0x20B010DE', '0x20B0 10DE']\n    devices: all\n    mig-enabled: false\n",
    4,
    35,
    "malformed device-filter"
)]
#[case::number_as_filter(
    "version: v1\nmig-configs:\n  a:\n  - device-filter: 0x20B010DE\n    devices: all\n    mig-enabled: false\n",
    4,
    20,
    "in quotes"
)]
#[case::tab_indent("version: v1\nmig-configs:\n\ta: 1\n", 3, 2, "tab")]
#[case::two_documents(
    "version: v1\nmig-configs: {a: [{devices: all, mig-enabled: false}]}\n---\nversion: v1\n",
    3,
    1,
    "a second document begins here"
)]
fn refused(#[case] text: &str, #[case] line: u64, #[case] column: u64, #[case] says: &str) {
    let error = parse(text).unwrap_err();
    let shown = error.to_string();
    assert!(
        shown.starts_with(&format!("config.yaml:{line}:{column}: ")),
        "{shown}"
    );
    assert!(shown.contains(says), "{shown}");
    assert_eq!(shown.lines().count(), 1, "{shown}");
}

#[test]
fn ten_megabytes_of_nesting() {
    let error = Config::parse("deep.yaml", &vec![b'['; 10 << 20]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("deep.yaml:1:{}: larger than 1048576 bytes", MAX_BYTES + 1)
    );
}

#[rstest]
#[case::flow("[", 17)]
#[case::flow_maps("{a: ", 17)]
fn nesting_below_the_size_limit(#[case] opener: &str, #[case] levels: usize) {
    let text = opener.repeat(100_000);
    let DocumentError::Invalid { position, .. } = parse(&text).unwrap_err() else {
        panic!("not a place in the document");
    };
    assert!(
        position.column <= (levels * opener.len()) as u64,
        "{position}"
    );
}

#[test]
fn block_nesting() {
    let text: String = (0..1000)
        .map(|n| format!("{}a:\n", " ".repeat(n)))
        .collect();
    assert!(matches!(parse(&text), Err(DocumentError::Invalid { .. })));
}

#[test]
fn billion_laughs() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..12 {
        let refs = vec![format!("*a{}", n - 1); 9].join(", ");
        text.push_str(&format!("a{n}: &a{n} [{refs}]\n"));
    }
    assert!(matches!(parse(&text), Err(DocumentError::Invalid { .. })));
}

#[test]
fn binary() {
    let error = Config::parse("b", b"version: v1\nmig\xff\xfe\x00configs").unwrap_err();
    assert_eq!(error.to_string(), "b:2:4: not text in UTF-8");
    assert!(Config::parse("b", b"\x00\x01\x02\x03").is_err());
}

#[test]
fn missing_file() {
    let error = Config::read("/nonexistent/config.yaml".as_ref()).unwrap_err();
    assert!(error.to_string().starts_with("/nonexistent/config.yaml: "));
}

#[test]
fn selecting() {
    let config = parse(EVERYTHING).unwrap();
    assert_eq!(
        config.select(Some("all-disable")).unwrap_err().to_string(),
        "no config named \"all-disable\"; did you mean all-disabled?"
    );
    let one_of = config.select(Some("production")).unwrap_err().to_string();
    let names: Vec<&str> = config.names().collect();
    assert_eq!(
        one_of,
        format!(
            "no config named \"production\"; choose one of {}",
            names.join(", ")
        )
    );
    assert!(matches!(
        config.select(None),
        Err(SelectionError::Ambiguous { count: 3, .. })
    ));
    let one =
        parse("version: v1\nmig-configs: {only: [{devices: all, mig-enabled: false}]}").unwrap();
    assert_eq!(one.select(None).unwrap().0, "only");
}

#[test]
fn written_as_mig_parted_writes_it() {
    let config = parse(EVERYTHING).unwrap();
    let written = Format::Yaml.write("config", &config).unwrap();
    assert_eq!(
        written,
        r#"version: v1
mig-configs:
  all-disabled:
  - devices: all
    mig-enabled: false
    mig-devices: {}
  all-enabled:
  - devices: all
    mig-enabled: true
    mig-devices: {}
  custom:
  - device-filter: "0x20B010DE"
    devices:
    - 0
    - 1
    mig-enabled: false
    mig-devices: {}
  - device-filter:
    - 0x233010DE:0x16C110DE
    - "0x233110DE"
    devices: all
    mig-enabled: true
    mig-devices:
      1c.3g.40gb: 1
      1g.10gb: 2
"#
    );
    assert_eq!(parse(&written).unwrap(), config);
    let json = Format::Json.write("config", &config).unwrap();
    assert_eq!(parse(&json).unwrap(), config);
    assert_eq!(Position { line: 2, column: 3 }.to_string(), "2:3");
}
