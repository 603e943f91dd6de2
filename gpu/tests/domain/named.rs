//! Named configurations per board and on mixed nodes.

use gpu::{Board, NamedSpec, PciId, named_configs};
use rstest::rstest;

use crate::boards::{
    a30, a100_40, a100_80, b200, b300, gb200, gb300, gh200_96, gh200_144, h100_80, h100_nvl, h200,
    rtx_pro_6000,
};

fn id(device: u32) -> PciId {
    PciId {
        device: device << 16 | 0x10DE,
        subsystem: 0x1234_10DE,
    }
}

fn any(device: u32) -> PciId {
    PciId {
        subsystem: 0,
        ..id(device)
    }
}

/// `2×1g.10gb+1×2g.20gb`, filters as hex in front.
fn text(specs: &[NamedSpec]) -> String {
    let specs = specs.iter().map(|spec| {
        let filter = spec
            .filter
            .iter()
            .map(|id| format!("{:04X}", id.device >> 16))
            .collect::<Vec<_>>();
        let devices = spec
            .devices
            .iter()
            .map(|(name, count)| format!("{count}×{name}"))
            .collect::<Vec<_>>();
        let filter = if filter.is_empty() {
            String::new()
        } else {
            format!("[{}] ", filter.join(" "))
        };
        format!(
            "{filter}{}",
            if spec.mig_enabled {
                devices.join(" ")
            } else {
                "off".to_owned()
            }
        )
    });
    specs.collect::<Vec<_>>().join(" | ")
}

/// The configurations that mig-parted ships for each product, by name: profile counts in the order 1g, 1g+me, 1g double
/// memory, 2g, 3g, 4g, 7g; and the balanced mix.
#[rstest]
#[case(a100_40(), ["1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"])]
#[case(a100_80(), ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"])]
#[case(h100_80(), ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"])]
#[case(h100_nvl(), ["1g.12gb", "1g.12gb+me", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb"])]
#[case(gh200_96(), ["1g.12gb", "1g.12gb+me", "1g.24gb", "2g.24gb", "3g.48gb", "4g.48gb", "7g.96gb"])]
#[case(h200(), ["1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"])]
#[case(gh200_144(), ["1g.18gb", "1g.18gb+me", "1g.36gb", "2g.36gb", "3g.72gb", "4g.72gb", "7g.144gb"])]
#[case(b200(), ["1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"])]
#[case(gb200(), ["1g.23gb", "1g.23gb+me", "1g.47gb", "2g.47gb", "3g.93gb", "4g.93gb", "7g.186gb"])]
#[case(b300(), ["1g.34gb", "1g.34gb+me", "1g.67gb", "2g.67gb", "3g.135gb", "4g.135gb", "7g.269gb"])]
#[case(gb300(), ["1g.35gb", "1g.35gb+me", "1g.70gb", "2g.70gb", "3g.139gb", "4g.139gb", "7g.278gb"])]
fn boards_of_seven_slices(#[case] board: Board, #[case] names: [&str; 7]) {
    let configs = named_configs(&[(id(0x2330), board)]);
    assert_eq!(configs.len(), 7 + 3);
    for (name, count) in names.into_iter().zip([7, 1, 4, 3, 2, 1, 1]) {
        let config = format!("all-{}", name.replace('+', "."));
        assert_eq!(text(&configs[&config]), format!("{count}×{name}"));
    }
    let [one, _, _, two, three, ..] = names;
    assert_eq!(
        text(&configs["all-balanced"]),
        format!("2×{one} 1×{two} 1×{three}")
    );
    assert_eq!(text(&configs["all-enabled"]), "");
    assert_eq!(text(&configs["all-disabled"]), "off");
}

#[rstest]
#[case(a30(), &[
    ("all-1g.6gb", "4×1g.6gb"), ("all-1g.6gb.me", "1×1g.6gb+me"), ("all-2g.12gb", "2×2g.12gb"),
    ("all-2g.12gb.me", "1×2g.12gb+me"), ("all-4g.24gb", "1×4g.24gb"), ("all-balanced", "2×1g.6gb 1×2g.12gb"),
])]
#[case(rtx_pro_6000(), &[
    ("all-1g.24gb", "4×1g.24gb"), ("all-1g.24gb.gfx", "4×1g.24gb+gfx"), ("all-1g.24gb.me", "1×1g.24gb+me"),
    ("all-1g.24gb.me.all", "1×1g.24gb+me.all"), ("all-1g.24gb-me", "4×1g.24gb-me"), ("all-2g.48gb", "2×2g.48gb"),
    ("all-2g.48gb.gfx", "2×2g.48gb+gfx"), ("all-2g.48gb.me.all", "1×2g.48gb+me.all"),
    ("all-2g.48gb-me", "2×2g.48gb-me"), ("all-4g.96gb", "1×4g.96gb"), ("all-4g.96gb.gfx", "1×4g.96gb+gfx"),
    ("all-balanced", "2×1g.24gb 1×2g.48gb"),
])]
fn boards_of_four_slices(#[case] board: Board, #[case] expected: &[(&str, &str)]) {
    let configs = named_configs(&[(id(0x20B7), board)]);
    assert_eq!(configs.len(), expected.len() + 2);
    for (name, devices) in expected {
        assert_eq!(text(&configs[*name]), *devices);
    }
}

/// A30 drivers were seen with wrong counts: what geometry forbids is not promised.
#[test]
fn a_count_that_geometry_forbids_is_lowered() {
    let mut board = a30();
    board
        .profiles
        .iter_mut()
        .for_each(|profile| profile.max_instances = 7);
    let configs = named_configs(&[(id(0x20B7), board)]);
    assert_eq!(text(&configs["all-1g.6gb"]), "4×1g.6gb");
    assert_eq!(text(&configs["all-2g.12gb"]), "2×2g.12gb");
    assert_eq!(text(&configs["all-4g.24gb"]), "1×4g.24gb");
}

#[test]
fn equal_gpus_need_no_filter() {
    let boards = vec![(id(0x2330), h100_80()); 8];
    assert_eq!(named_configs(&boards), named_configs(&boards[..1]));
}

/// The same name means seven of id 19 on one kind and four of id 15 on the other.
#[test]
fn gpus_of_two_kinds_are_told_apart() {
    let boards = [
        (id(0x2330), h100_80()),
        (id(0x20B0), a100_40()),
        (id(0x20B2), a100_80()),
        (id(0x2330), h100_80()),
    ];
    let configs = named_configs(&boards);
    assert_eq!(
        text(&configs["all-1g.10gb"]),
        "[20B0] 4×1g.10gb | [20B2 2330] 7×1g.10gb"
    );
    assert_eq!(text(&configs["all-7g.40gb"]), "[20B0] 1×7g.40gb");
    assert_eq!(configs["all-7g.40gb"][0].filter, [any(0x20B0)]);
    assert_eq!(text(&configs["all-enabled"]), "");
    let mut shuffled = boards.clone();
    shuffled.reverse();
    assert_eq!(named_configs(&shuffled), configs);
}

#[test]
fn the_subsystem_is_named_where_it_makes_a_difference() {
    let other = PciId {
        subsystem: 0x5678_10DE,
        ..id(0x2339)
    };
    let configs = named_configs(&[(id(0x2339), h100_80()), (other, h100_nvl())]);
    assert_eq!(configs["all-1g.10gb"][0].filter, [id(0x2339)]);
    assert_eq!(configs["all-1g.12gb"][0].filter, [other]);
    let same = named_configs(&[(id(0x2339), h100_80()), (other, h100_80())]);
    assert_eq!(same["all-1g.10gb"][0].filter, []);
}

#[test]
fn without_mig_there_is_still_on_and_off() {
    let names = named_configs(&[]).into_keys().collect::<Vec<_>>();
    assert_eq!(names, ["all-disabled", "all-enabled"]);
}
