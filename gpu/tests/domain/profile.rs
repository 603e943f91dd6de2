//! The grammar of profile names.

use std::collections::BTreeSet;

use gpu::{Attributes, Profile};
use proptest::prelude::*;
use rstest::rstest;

fn profile(name: &str) -> Profile {
    name.parse().unwrap()
}

#[rstest]
#[case("1g.5gb", 1, 1, 5)]
#[case("7g.80gb", 7, 7, 80)]
#[case("1c.3g.40gb", 1, 3, 40)]
#[case("1g.0gb", 1, 1, 0)]
#[case("12g.1024gb", 12, 12, 1024)]
fn sizes_are_read(#[case] name: &str, #[case] compute: u32, #[case] slices: u32, #[case] gb: u32) {
    let profile = profile(name);
    let sizes = (
        profile.compute_slices(),
        profile.slices(),
        profile.memory_gb(),
    );
    assert_eq!(sizes, (compute, slices, gb));
    assert_eq!(profile.to_string(), name);
}

#[rstest]
#[case::compute_equal_to_slices("3c.3g.40gb", "3g.40gb")]
#[case::attributes_in_any_order("1g.24gb+me,gfx", "1g.24gb+gfx,me")]
#[case::dotted_attribute("2g.48gb+me.all", "2g.48gb+me.all")]
#[case::negative_attribute("1g.24gb-me", "1g.24gb-me")]
#[case::part_with_attribute("1c.2g.48gb+me.all", "1c.2g.48gb+me.all")]
fn names_are_canonical(#[case] name: &str, #[case] canonical: &str) {
    assert_eq!(profile(name).to_string(), canonical);
}

#[rstest]
#[case("1g.10gb", "mig-1g.10gb")]
#[case("1g.10gb+me", "mig-1g.10gb.me")]
#[case("1g.24gb+me.all", "mig-1g.24gb.me.all")]
#[case("1g.24gb+gfx,me", "mig-1g.24gb.gfx.me")]
#[case("1g.24gb-me", "mig-1g.24gb-me")]
#[case("1c.3g.40gb", "mig-1c.3g.40gb")]
fn resources_are_named_like_upstream(#[case] name: &str, #[case] resource: &str) {
    assert_eq!(profile(name).resource_name(), resource);
    assert_eq!(format!("mig-{}", profile(name).label_name()), resource);
}

#[rstest]
#[case("", "it is empty")]
#[case("1g", "as part 2")]
#[case("10gb", "as part 1")]
#[case("1g.10", r#"followed by "gb" as part 2"#)]
#[case("1g.10GB", r#"followed by "gb" as part 2"#)]
#[case("g.10gb", r#"followed by "g" as part 1"#)]
#[case(" 1g.10gb", r#"followed by "g" as part 1"#)]
#[case("1g.10gb ", r#"followed by "gb" as part 2"#)]
#[case("1g.-5gb", r#"followed by "gb" as part 2"#)]
#[case("1x.3g.40gb", r#"followed by "c" as part 1"#)]
#[case("1c.3g.40gb.5", "as part 3")]
#[case("٣g.40gb", r#"followed by "g" as part 1"#)]
#[case("01g.10gb", "leading zero")]
#[case("1g.010gb", "leading zero")]
#[case("0g.10gb", "0 slices")]
#[case("0c.1g.10gb", "0 slices")]
#[case("4c.3g.40gb", "4 compute slices do not fit")]
#[case("99999999999999999999g.10gb", "larger than 999")]
#[case("1g.4294967296gb", "larger than 99999")]
#[case("1g.10gb+", r#"attribute """#)]
#[case("1g.10gb+me,", r#"attribute """#)]
#[case("1g.10gb+2me", r#"attribute "2me""#)]
#[case("1g.10gb+.me", r#"attribute ".me""#)]
#[case("1g.10gb+me.", r#"attribute "me.""#)]
#[case("1g.10gb+me,me", "twice")]
#[case("1g.10gb+me-gfx", r#"attribute "me-gfx""#)]
#[case("1g.10gb-me+gfx", r#"attribute "me+gfx""#)]
fn an_error_names_what_is_wrong(#[case] name: &str, #[case] problem: &str) {
    let message = name.parse::<Profile>().unwrap_err().to_string();
    assert!(message.contains(problem), "{message}");
    assert!(!message.contains('\n'), "{message}");
}

#[test]
fn an_error_does_not_repeat_megabytes() {
    let message = "9"
        .repeat(1 << 20)
        .parse::<Profile>()
        .unwrap_err()
        .to_string();
    assert!(message.len() < 400, "{} bytes", message.len());
}

#[test]
fn order_is_by_slices_then_memory_then_compute() {
    let sorted = [
        "1g.10gb",
        "1g.10gb+me",
        "1g.20gb",
        "1c.3g.40gb",
        "3g.40gb",
        "7g.80gb",
    ];
    let set = sorted
        .iter()
        .rev()
        .map(|name| profile(name))
        .collect::<BTreeSet<_>>();
    let names = set.iter().map(Profile::to_string).collect::<Vec<_>>();
    assert_eq!(names, sorted);
}

#[test]
fn serialised_as_its_name_also_as_a_key() {
    let counts = std::collections::BTreeMap::from([(profile("1g.10gb+me"), 1)]);
    let json = serde_json::to_string(&counts).unwrap();
    assert_eq!(json, r#"{"1g.10gb+me":1}"#);
    assert_eq!(
        serde_json::from_str::<std::collections::BTreeMap<Profile, u32>>(&json).unwrap(),
        counts
    );
    assert!(serde_json::from_str::<Profile>(r#""2x""#).is_err());
}

#[test]
fn empty_attribute_sets_are_none() {
    let plain = Profile::new(1, 10);
    for empty in [
        Attributes::With(BTreeSet::new()),
        Attributes::Without(BTreeSet::new()),
    ] {
        assert_eq!(plain.clone().with_attributes(empty), plain);
    }
}

fn attributes() -> impl Strategy<Value = Attributes> {
    let names = || prop::collection::btree_set("[a-zA-Z]([a-z0-9.]{0,6}[a-z0-9])?", 0..4);
    prop_oneof![
        Just(Attributes::None),
        names().prop_map(Attributes::With),
        names().prop_map(Attributes::Without),
    ]
}

proptest! {
    #[test]
    fn what_is_printed_reads_the_same(
        (slices, compute) in (1_u32..=999).prop_flat_map(|slices| (Just(slices), 1..=slices)),
        gb in 0_u32..=99_999,
        attributes in attributes(),
    ) {
        let profile = Profile::new(slices, gb).with_compute_slices(compute).with_attributes(attributes);
        prop_assert_eq!(profile.to_string().parse::<Profile>().unwrap(), profile);
    }

    #[test]
    fn whatever_is_read_has_one_spelling(text in "[0-9cgb.+,\\-a-e]{0,24}") {
        if let Ok(profile) = text.parse::<Profile>() {
            let printed = profile.to_string();
            prop_assert_eq!(printed.parse::<Profile>().unwrap(), profile);
        }
    }

    #[test]
    fn no_text_is_too_strange(text in any::<String>()) {
        let _ = text.parse::<Profile>();
    }
}
