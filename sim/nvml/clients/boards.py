"""What NVIDIA's boards report, by PCI device id.

The numbers come from captures and from the vendor's documents, never from the simulation. What no source gives is None,
and is not compared. Memory is in MiB, power in watts, clocks in MHz (graphics, memory, video).
"""

from collections import namedtuple

Board = namedtuple(
    "Board",
    "name architecture capability memory reserved multiprocessors power clocks bar1 pcie nvlink banks thermal addressing"
    " profiles slices",
    defaults=[None] * 10,
)

# index: what GetGpuInstanceProfileInfo takes. id: what creation takes. size and starts: memory slices. preference: the
# instance ids that the driver tries when no placement is given. memory: every value that a driver of some branch gives.
# engines: copy, decoder, encoder, JPEG, optical flow. compute: (enumeration index, how many fit), ids equal indices.
Profile = namedtuple("Profile", "id index names slices count memory sm engines starts size preference compute")

SEVEN = (0, 1, 2, 3, 4, 5, 6)
ONE_PREFERENCE = (13, 11, 12, 7, 8, 9, 10)
TWO_PREFERENCE = (5, 3, 4)


def eight(names, memory, sm, engines):
    """The profiles of a board with eight memory slices. The four arguments go by profile id."""
    shape = {
        19: (0, 1, 7, SEVEN, 1, ONE_PREFERENCE, ((0, 1),)),
        20: (7, 1, 1, SEVEN, 1, ONE_PREFERENCE, ((0, 1),)),
        15: (9, 1, 4, (0, 2, 4, 6), 2, TWO_PREFERENCE + (6,), ((7, 1),)),
        14: (1, 2, 3, (0, 2, 4), 2, TWO_PREFERENCE, ((0, 2), (1, 1))),
        9: (2, 3, 2, (0, 4), 4, (2, 1), ((0, 3), (1, 1), (2, 1))),
        5: (3, 4, 1, (0,), 4, (1,), ((0, 4), (1, 2), (3, 1))),
        0: (4, 7, 1, (0,), 8, (0,), ((0, 7), (1, 3), (2, 2), (3, 1), (4, 1))),
    }
    return [
        Profile(pid, index, names[pid], slices, count, memory[pid], sm[pid], engines[pid], starts, size, preference, compute)
        for pid, (index, slices, count, starts, size, preference, compute) in shape.items()
    ]


def named(one, double, two, three, four, seven):
    """Profile names from the sizes in GB of the six kinds."""
    both = [size if isinstance(size, tuple) else (size,) for size in (one, double, two, three, four, seven)]
    one, double, two, three, four, seven = both
    return {
        19: [f"1g.{size}gb" for size in one],
        20: [f"1g.{size}gb+me" for size in one],
        15: [f"1g.{size}gb" for size in double],
        14: [f"2g.{size}gb" for size in two],
        9: [f"3g.{size}gb" for size in three],
        5: [f"4g.{size}gb" for size in four],
        0: [f"7g.{size}gb" for size in seven],
    }


def sized(one, two, half, whole):
    """Memory of the profiles: 19 and 20, 15 and 14, 9 and 5, 0."""
    return {19: one, 20: one, 15: two, 14: two, 9: half, 5: half, 0: whole}


A100_SM = {19: 14, 20: 14, 15: 14, 14: 28, 9: 42, 5: 56, 0: 98}
A100_ENGINES = {
    19: (1, 0, 0, 0, 0), 20: (1, 1, 0, 1, 1), 15: (1, 1, 0, 0, 0), 14: (2, 1, 0, 0, 0),
    9: (3, 2, 0, 0, 0), 5: (4, 2, 0, 0, 0), 0: (7, 5, 0, 1, 1),
}
A100_40 = eight(
    named(5, 10, 10, 20, 20, 40), sized((4864,), (9856,), (19968,), (40192,)), A100_SM, A100_ENGINES)
A100_80 = eight(
    named(10, 20, 20, 40, 40, 80),
    sized((9728, 9984), (19968,), (40192,), range(80384, 80897)), A100_SM, A100_ENGINES)

HOPPER_SM = {19: 16, 20: 16, 15: 26, 14: 32, 9: 60, 5: 64, 0: 132}
# The PCIe card has 114 multiprocessors in all; no capture shows how its profiles share them.
NO_SM = dict.fromkeys(HOPPER_SM)
HOPPER_ENGINES = {
    19: (1, 1, 0, 1, 0), 20: (1, 1, 0, 1, 1), 15: (1, 1, 0, 1, 0), 14: (2, 2, 0, 2, 0),
    9: (3, 3, 0, 3, 0), 5: (4, 4, 0, 4, 0), 0: (8, 7, 0, 7, 1),
}


def hopper(names, memory, sm=HOPPER_SM):
    return eight(names, memory, sm, HOPPER_ENGINES)


H100_80_MEMORY = sized((9984,), (20096,), (40448,), (81152,))
H100_80_NAMES = named(10, 20, 20, 40, 40, 80)
H200_NAMES = named(18, 35, 35, 71, 71, 141)
# Drivers of branch 590 give a little more.
H200_MEMORY = sized((16384,), (33024, 33280), (71168, 71424), (143104,))

B200_ENGINES = {
    19: (2, 1, 0, 1, 0), 20: (2, 1, 0, 1, 1), 15: (2, 1, 0, None, 0), 14: (4, 2, 0, 2, 0),
    9: (6, 3, 0, 3, 0), 5: (8, 4, 0, 4, 0), 0: (16, 7, 0, 7, 1),
}


def blackwell(names, memory, sm):
    return eight(names, memory, sm, B200_ENGINES)


B200 = blackwell(
    named(23, 45, 45, 90, 90, 180), sized((22528, 20992), (45312,), None, None),
    {19: 18, 20: 18, 15: 30, 14: 36, 9: None, 5: None, 0: 148})
GB200 = blackwell(
    named((23, 24), 47, 47, (93, 95), (93, 95), (186, 189)), sized((22528, 20480), (46592,), None, None),
    {19: 18, 20: 18, 15: 32, 14: 38, 9: None, 5: None, 0: 152})
# A capture shows 33.75 GiB for 1g.34gb; by the rule that names profiles, a board of 269 GB would call that 1g.67gb.
B300 = blackwell(
    named(34, 67, 67, 135, 135, 269), sized((34560, 34304), None, None, None), NO_SM)
GB300 = blackwell(
    named((35, 31), 70, 70, (139, 126), (139, 126), (278, 251)), sized(None, None, None, None), NO_SM)

QUARTERS = (0, 1, 2, 3)
C1, C2, C4 = ((0, 1),), ((0, 2), (1, 1)), ((0, 4), (1, 2), (3, 1))
# Sources differ on whether a plain 1g has a decoder.
A30 = [
    Profile(14, 0, ["1g.6gb"], 1, 4, (5952,), 14, (1, None, 0, 0, 0), QUARTERS, 1, (3, 4, 5, 6), C1),
    Profile(21, 7, ["1g.6gb+me"], 1, 1, (5952,), 14, (1, 1, 0, 1, 1), QUARTERS, 1, (3, 4, 5, 6), C1),
    Profile(5, 1, ["2g.12gb"], 2, 2, (11968,), 28, (2, 2, 0, 0, 0), (0, 2), 2, (1, 2), C2),
    Profile(6, 8, ["2g.12gb+me"], 2, 1, (11968,), 28, (2, 2, 0, 1, 1), (0, 2), 2, (1, 2), C2),
    Profile(0, 3, ["4g.24gb"], 4, 1, (24000,), 56, (4, 4, 0, 1, 1), (0,), 4, (0,), C4),
]

# Units of a twelfth. Which compute profiles the graphics profiles offer is not known.
# Sizes come in GiB with two digits, which several drivers round in their own way.
ONE, TWO, FOUR = range(23674, 24198), range(47616, 48528), range(95621, 97413)
THIRDS, HALVES = (0, 3, 6, 9), (0, 6)
RTX_PRO = [
    Profile(14, 0, ["1g.24gb"], 1, 4, ONE, 46, (1, 1, 1, 1, 0), THIRDS, 3, (3, 4, 5, 6), C1),
    Profile(21, 7, ["1g.24gb+me"], 1, 1, ONE, 46, (1, 1, 1, 1, 1), THIRDS, 3, (3, 4, 5, 6), C1),
    Profile(47, 0xA, ["1g.24gb+gfx"], 1, 4, ONE, 46, (1, 1, 1, 1, 0), THIRDS, 3, (3, 4, 5, 6), None),
    Profile(65, 0xF, ["1g.24gb+me.all"], 1, 1, ONE, 46, (1, 4, 4, 4, 1), THIRDS, 3, (3, 4, 5, 6), C1),
    Profile(67, 0xD, ["1g.24gb-me"], 1, 4, ONE, 46, (1, 0, 0, 0, 0), THIRDS, 3, (3, 4, 5, 6), C1),
    Profile(5, 1, ["2g.48gb"], 2, 2, TWO, 94, (2, 2, 2, 2, 0), HALVES, 6, (1, 2), C2),
    Profile(35, 0xB, ["2g.48gb+gfx"], 2, 2, TWO, 94, (2, 2, 2, 2, 0), HALVES, 6, (1, 2), None),
    Profile(64, 0x10, ["2g.48gb+me.all"], 2, 1, TWO, 94, (2, 4, 4, 4, 1), HALVES, 6, (1, 2), C2),
    Profile(66, 0xE, ["2g.48gb-me"], 2, 2, TWO, 94, (2, 0, 0, 0, 0), HALVES, 6, (1, 2), C2),
    Profile(0, 3, ["4g.96gb"], 4, 1, FOUR, 188, (4, 4, 4, 4, 1), (0,), 12, (0,), C4),
    Profile(32, 0xC, ["4g.96gb+gfx"], 4, 1, FOUR, 188, (4, 4, 4, 4, 1), (0,), 12, (0,), None),
]

NVLINK3, NVLINK4, NVLINK5 = (12, 25781, 4), (18, 26562, 6), (18, 53125, 7)

# thermal: (shutdown, slowdown, highest operating) in degrees, or T.limit distances with sign where the board reports those.
BOARDS = {
    0x20B7: Board("NVIDIA A30", 7, (8, 0), 24576, None, 56, (165, None, None), (1440, 1215, None),
                  profiles=A30, slices=4),
    0x20B0: Board("NVIDIA A100-SXM4-40GB", 7, (8, 0), 40960, 518, 108, (400, 100, 400), (1410, 1215, 1290),
                  65536, (4, 4), NVLINK3, 640, (92, 89, 85), "hmm", A100_40, 8),
    0x20F1: Board("NVIDIA A100-PCIE-40GB", 7, (8, 0), 40960, 518, 108, (250, None, None), (1410, 1215, None),
                  profiles=A100_40, slices=8),
    0x20B2: Board("NVIDIA A100-SXM4-80GB", 7, (8, 0), 81920, None, 108, (400, None, None), (1410, 1593, None),
                  nvlink=NVLINK3, profiles=A100_80, slices=8),
    0x20B5: Board("NVIDIA A100 80GB PCIe", 7, (8, 0), 81920, None, 108, (300, None, None), (1410, 1593, None),
                  profiles=A100_80, slices=8),
    0x2330: Board("NVIDIA H100 80GB HBM3", 9, (9, 0), 81559, 480, 132, (700, 200, 700), (1980, 2619, 1545),
                  131072, (5, 5), NVLINK4, 2560, (-8, -2, 0), "hmm", hopper(H100_80_NAMES, H100_80_MEMORY), 8),
    0x2331: Board("NVIDIA H100 PCIe", 9, (9, 0), 81559, 480, 114, (350, None, None), None,
                  profiles=hopper(H100_80_NAMES, H100_80_MEMORY, NO_SM), slices=8),
    0x2321: Board("NVIDIA H100 NVL", 9, (9, 0), 95830, None, 132, (400, None, None), None,
                  profiles=hopper(named(12, 24, 24, 47, 47, 94),
                                  sized((10880, 11008), (22016, 22144), (47232, 47488), (94848,))), slices=8),
    0x2342: Board("NVIDIA GH200 480GB", 9, (9, 0), None, None, 132, None, None,
                  profiles=hopper(named(12, 24, 24, 48, 48, 96),
                                  sized((11264,), (23552,), (47616,), (95232,))), slices=8),
    0x2348: Board("NVIDIA GH200 144G HBM3e", 9, (9, 0), None, None, 132, None, None,
                  profiles=hopper(named(18, 36, 36, 72, 72, 144),
                                  sized((17920,), (36096,), None, None)), slices=8),
    0x2335: Board("NVIDIA H200", 9, (9, 0), 143771, 614, 132, (700, 200, 700), (1980, 3201, 1545),
                  262144, (5, 5), NVLINK4, 3072, (-8, -2, 0), None, hopper(H200_NAMES, H200_MEMORY), 8),
    0x233B: Board("NVIDIA H200 NVL", 9, (9, 0), 143771, None, 132, (600, None, None), None,
                  profiles=hopper(H200_NAMES, H200_MEMORY), slices=8),
    0x2901: Board("NVIDIA B200", 10, (10, 0), 183359, 728, 148, (1000, 200, 1000), (1965, 3996, 1965),
                  262144, (5, 5), NVLINK5, 3840, (-5, -3, None), "none", B200, 8),
    0x2941: Board("NVIDIA GB200", 10, (10, 0), 189471, 742, 152, (1200, 200, 1200), (2062, 3996, 1890),
                  262144, (5, 6), NVLINK5, 3968, (-5, -2, None), "ats", GB200, 8),
    0x3182: Board("NVIDIA B300 SXM6 AC", 10, (10, 3), None, None, None, None, None, profiles=B300, slices=8),
    0x31C2: Board("NVIDIA GB300", 10, (10, 3), 284208, 947, 152, (1400, 200, 1400), (2070, 3996, 1912),
                  524288, (6, 6), NVLINK5, 5952, (-5, -2, None), "ats", GB300, 8),
    0x2BB5: Board("NVIDIA RTX PRO 6000 Blackwell Server Edition", 10, (12, 0), 97887, None, 188,
                  (600, None, None), None, profiles=RTX_PRO, slices=12),
    0x26B9: Board("NVIDIA L40S", 8, (8, 9), 46068, 609, 142, (350, 100, 350), (2520, 9001, 1965),
                  65536, (4, 4), None, 192, (-5, -2, None), "hmm"),
    0x1EB8: Board("Tesla T4", 6, (7, 5), 15360, 448, 40, (70, 60, 70), (1590, 5001, 1470),
                  256, (3, 3), None, None, (96, 93, 85), "hmm"),
}
