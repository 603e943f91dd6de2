//! Boards as their drivers describe them, written by hand from captures and vendor tables.
//!
//! Only what names, placement and plans need is exact: ids, indices, slices, counts, placements, memory and engines.

use gpu::{Board, ComputeProfile, Engines, InstanceProfile, Placement};

/// (memory MiB, SMs, engines as CE DEC ENC JPEG OFA)
type Row = (u64, u32, [u32; 5]);

fn engines([copy, decoder, encoder, jpeg, ofa]: [u32; 5]) -> Engines {
    Engines {
        copy,
        decoder,
        encoder,
        jpeg,
        ofa,
    }
}

/// (slices, compute profile id, how many fit)
fn compute(sizes: &[(u32, u32, u32)]) -> Vec<ComputeProfile> {
    sizes
        .iter()
        .map(|&(slices, id, max_instances)| ComputeProfile {
            index: id,
            id,
            slices,
            max_instances,
            multiprocessors: 0,
        })
        .collect()
}

/// A100, H100, H200, GH200, B200, GB200, B300, GB300: eight memory slices, seven compute slices.
/// Rows: 1g, 1g+me, 1g double memory, 2g, 3g, 4g, 7g.
fn seven_of_eight(total_mib: u64, rows: [Row; 7]) -> Board {
    // (enumeration index, id, slices, max, starts, size, compute profiles)
    type Geometry = (
        u32,
        u32,
        u32,
        u32,
        &'static [u32],
        u32,
        &'static [(u32, u32, u32)],
    );
    const GEOMETRY: [Geometry; 7] = [
        (0, 19, 1, 7, &[0, 1, 2, 3, 4, 5, 6], 1, &[(1, 0, 1)]),
        (7, 20, 1, 1, &[0, 1, 2, 3, 4, 5, 6], 1, &[(1, 0, 1)]),
        (9, 15, 1, 4, &[0, 2, 4, 6], 2, &[(1, 7, 1)]),
        (1, 14, 2, 3, &[0, 2, 4], 2, &[(1, 0, 2), (2, 1, 1)]),
        (2, 9, 3, 2, &[0, 4], 4, &[(1, 0, 3), (2, 1, 1), (3, 2, 1)]),
        (3, 5, 4, 1, &[0], 4, &[(1, 0, 4), (2, 1, 2), (4, 3, 1)]),
        (
            4,
            0,
            7,
            1,
            &[0],
            8,
            &[(1, 0, 7), (2, 1, 3), (3, 2, 2), (4, 3, 1), (7, 4, 1)],
        ),
    ];
    let profiles = GEOMETRY.into_iter().zip(rows);
    board(
        total_mib,
        profiles.map(
            |((index, id, slices, max_instances, starts, size, sizes), row)| InstanceProfile {
                index,
                id,
                slices,
                max_instances,
                multiprocessors: row.1,
                memory_mib: row.0,
                engines: engines(row.2),
                placements: starts
                    .iter()
                    .map(|&start| Placement { start, size })
                    .collect(),
                compute: compute(sizes),
            },
        ),
    )
}

fn board(total_mib: u64, profiles: impl Iterator<Item = InstanceProfile>) -> Board {
    let mut profiles = profiles.collect::<Vec<_>>();
    profiles.sort_by_key(|profile| profile.index);
    Board {
        memory_bytes: total_mib << 20,
        profiles,
    }
}

/// A30 and RTX PRO 6000: four slices.
/// Rows: enumeration index, id, slices, max, memory MiB, SMs, engines.
fn four_of_four(total_mib: u64, unit: u32, rows: &[(u32, u32, u32, u32, Row)]) -> Board {
    let profiles = rows
        .iter()
        .map(|&(index, id, slices, max_instances, row)| InstanceProfile {
            index,
            id,
            slices,
            max_instances,
            multiprocessors: row.1,
            memory_mib: row.0,
            engines: engines(row.2),
            placements: (0..4)
                .step_by(slices as usize)
                .map(|start| Placement {
                    start: start * unit,
                    size: slices * unit,
                })
                .collect(),
            compute: compute(match slices {
                1 => &[(1, 0, 1)],
                2 => &[(1, 0, 2), (2, 1, 1)],
                _ => &[(1, 0, 4), (2, 1, 2), (4, 3, 1)],
            }),
        });
    board(total_mib, profiles)
}

pub(crate) fn a30() -> Board {
    four_of_four(
        24576,
        1,
        &[
            (0x0, 14, 1, 4, (5952, 14, [1, 1, 0, 0, 0])),
            (0x7, 21, 1, 1, (5952, 14, [1, 1, 0, 1, 1])),
            (0x1, 5, 2, 2, (11968, 28, [2, 2, 0, 0, 0])),
            (0x8, 6, 2, 1, (11968, 28, [2, 2, 0, 1, 1])),
            (0x3, 0, 4, 1, (24000, 56, [4, 4, 0, 1, 1])),
        ],
    )
}

pub(crate) fn rtx_pro_6000() -> Board {
    four_of_four(
        97887,
        3,
        &[
            (0x0, 14, 1, 4, (24192, 46, [1, 1, 1, 1, 0])),
            (0x7, 21, 1, 1, (24192, 46, [1, 1, 1, 1, 1])),
            (0xA, 47, 1, 4, (24192, 46, [1, 1, 1, 1, 0])),
            (0xF, 65, 1, 1, (24192, 46, [1, 4, 4, 4, 1])),
            (0xD, 67, 1, 4, (24192, 46, [1, 0, 0, 0, 0])),
            (0x1, 5, 2, 2, (48512, 94, [2, 2, 2, 2, 0])),
            (0xB, 35, 2, 2, (48512, 94, [2, 2, 2, 2, 0])),
            (0x10, 64, 2, 1, (48512, 94, [2, 4, 4, 4, 1])),
            (0xE, 66, 2, 2, (48512, 94, [2, 0, 0, 0, 0])),
            (0x3, 0, 4, 1, (97408, 188, [4, 4, 4, 4, 1])),
            (0xC, 32, 4, 1, (97408, 188, [4, 4, 4, 4, 1])),
        ],
    )
}

/// A100, memory of 1g, 2g, 4g, 7g.
fn a100(total_mib: u64, [one, two, four, all]: [u64; 4]) -> Board {
    seven_of_eight(
        total_mib,
        [
            (one, 14, [1, 0, 0, 0, 0]),
            (one, 14, [1, 1, 0, 1, 1]),
            (two, 14, [1, 1, 0, 0, 0]),
            (two, 28, [2, 1, 0, 0, 0]),
            (four, 42, [3, 2, 0, 0, 0]),
            (four, 56, [4, 2, 0, 0, 0]),
            (all, 98, [7, 5, 0, 1, 1]),
        ],
    )
}

pub(crate) fn a100_40() -> Board {
    a100(40960, [4864, 9856, 19968, 40192])
}

pub(crate) fn a100_80() -> Board {
    a100(81920, [9728, 19968, 40192, 80640])
}

/// H100, H200 and GH200, memory of 1g, 2g, 4g, 7g.
fn hopper(total_mib: u64, [one, two, four, all]: [u64; 4]) -> Board {
    seven_of_eight(
        total_mib,
        [
            (one, 16, [1, 1, 0, 1, 0]),
            (one, 16, [1, 1, 0, 1, 1]),
            (two, 26, [1, 1, 0, 1, 0]),
            (two, 32, [2, 2, 0, 2, 0]),
            (four, 60, [3, 3, 0, 3, 0]),
            (four, 64, [4, 4, 0, 4, 0]),
            (all, 132, [8, 7, 0, 7, 1]),
        ],
    )
}

pub(crate) fn h100_80() -> Board {
    hopper(81559, [9984, 20096, 40448, 81152])
}

pub(crate) fn h100_nvl() -> Board {
    hopper(95830, [10880, 22016, 47232, 94848])
}

pub(crate) fn gh200_96() -> Board {
    hopper(97900, [11264, 23552, 47616, 95232])
}

pub(crate) fn gh200_144() -> Board {
    hopper(147_456, [17920, 36096, 72704, 145_408])
}

pub(crate) fn h200() -> Board {
    hopper(143_771, [16384, 33024, 71168, 143_104])
}

/// Blackwell, memory of 1g, 2g, 4g, 7g. `copy` are the copy engines of the seven rows.
fn blackwell(total_mib: u64, [one, two, four, all]: [u64; 4], copy: [u32; 7]) -> Board {
    seven_of_eight(
        total_mib,
        [
            (one, 18, [copy[0], 1, 0, 1, 0]),
            (one, 18, [copy[1], 1, 0, 1, 1]),
            (two, 30, [copy[2], 1, 0, 1, 0]),
            (two, 36, [copy[3], 2, 0, 2, 0]),
            (four, 70, [copy[4], 3, 0, 3, 0]),
            (four, 72, [copy[5], 4, 0, 4, 0]),
            (all, 148, [copy[6], 7, 0, 7, 1]),
        ],
    )
}

/// Copy engines as captured.
const CAPTURED: [u32; 7] = [2, 2, 2, 4, 6, 8, 16];
/// Copy engines as the vendor's table for B200 has them, at odds with the capture.
const DOCUMENTED: [u32; 7] = [2, 2, 2, 3, 6, 8, 16];

pub(crate) fn b200() -> Board {
    blackwell(183_359, [22528, 45312, 91136, 182_272], CAPTURED)
}

pub(crate) fn gb200() -> Board {
    blackwell(189_471, [22528, 46592, 94208, 188_416], CAPTURED)
}

pub(crate) fn b300() -> Board {
    blackwell(275_000, [34560, 68608, 137_216, 274_432], DOCUMENTED)
}

pub(crate) fn gb300() -> Board {
    blackwell(284_208, [35072, 70656, 141_312, 283_648], DOCUMENTED)
}

/// Every board, by name.
pub(crate) fn boards() -> Vec<(&'static str, Board)> {
    vec![
        ("a30", a30()),
        ("a100-40", a100_40()),
        ("a100-80", a100_80()),
        ("h100-80", h100_80()),
        ("h100-nvl", h100_nvl()),
        ("gh200-96", gh200_96()),
        ("gh200-144", gh200_144()),
        ("h200", h200()),
        ("b200", b200()),
        ("gb200", gb200()),
        ("b300", b300()),
        ("gb300", gb300()),
        ("rtx-pro-6000", rtx_pro_6000()),
    ]
}
