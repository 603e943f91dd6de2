//! MIG from mode to compute instance and back.

use std::{collections::BTreeMap, ffi::CString};

use nvml_wrapper_sys::bindings::*;
use rstest::rstest;
use sim_nvml::Code;

use crate::driver::{Driver, code, get, string, text, version};

fn create(driver: &Driver, gpu: nvmlDevice_t, profile: u32) -> Result<u32, Code> {
    let instance = get!(driver, nvmlDeviceCreateGpuInstance(gpu, profile))?;
    Ok(get!(driver, nvmlGpuInstanceGetInfo(instance)).unwrap().id)
}

fn instance(driver: &Driver, gpu: nvmlDevice_t, id: u32) -> nvmlGpuInstance_t {
    get!(driver, nvmlDeviceGetGpuInstanceById(gpu, id)).unwrap()
}

/// Profile ids to create in order, and the instance ids that drivers from R510 on gave (captures and documentation).
#[rstest]
#[case("h100-sxm5-80gb", &[19; 7], &[13, 11, 12, 7, 8, 9, 10])]
#[case("h100-sxm5-80gb", &[9, 9], &[2, 1])]
#[case("h100-sxm5-80gb", &[19, 14, 5], &[13, 5, 1])]
#[case("a100-sxm4-40gb", &[9, 19, 14, 19], &[2, 7, 4, 8])]
#[case("h100-sxm5-80gb", &[19, 19, 14], &[13, 11, 3])]
#[case("h100-sxm5-80gb", &[14, 19, 19, 19, 19, 19], &[5, 13, 7, 8, 9, 10])]
#[case("gh200-96gb", &[15, 15, 15], &[5, 3, 4])]
#[case("h200-sxm-141gb", &[9, 14, 19, 19], &[2, 3, 9, 10])]
#[case("a30-24gb", &[5, 14, 14], &[1, 5, 6])]
#[case("rtx-pro-6000-96gb", &[14, 14, 5], &[3, 4, 2])]
fn placements_are_chosen_as_the_driver_chooses(
    #[case] board: &str,
    #[case] profiles: &[u32],
    #[case] ids: &[u32],
) {
    let driver = Driver::with(board, 1);
    let gpu = driver.partitioned(0);
    let created: Vec<u32> = profiles
        .iter()
        .map(|profile| create(&driver, gpu, *profile).unwrap())
        .collect();
    assert_eq!(created, ids);
}

#[test]
fn what_does_not_fit_is_refused_with_insufficient_resources() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.partitioned(0);
    for profile in [19, 19, 14] {
        create(&driver, gpu, profile).unwrap();
    }
    assert_eq!(create(&driver, gpu, 9), Err(Code::INSUFFICIENT_RESOURCES));
    assert_eq!(
        get!(driver, nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, 9)),
        Ok(0)
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, 19)),
        Ok(3)
    );
    assert_eq!(create(&driver, gpu, 77), Err(Code::INVALID_ARGUMENT));
}

/// Rows: enumeration index, profile id, slices, how many fit, SMs, MiB, engines (CE, DEC, ENC, JPEG, OFA), starts, size.
type Row = (u32, u32, u32, u32, u32, u64, [u32; 5], &'static [u32], u32);

const H100: &[Row] = &[
    (
        0,
        19,
        1,
        7,
        16,
        9984,
        [1, 1, 0, 1, 0],
        &[0, 1, 2, 3, 4, 5, 6],
        1,
    ),
    (1, 14, 2, 3, 32, 20096, [2, 2, 0, 2, 0], &[0, 2, 4], 2),
    (2, 9, 3, 2, 60, 40448, [3, 3, 0, 3, 0], &[0, 4], 4),
    (3, 5, 4, 1, 64, 40448, [4, 4, 0, 4, 0], &[0], 4),
    (4, 0, 7, 1, 132, 81152, [8, 7, 0, 7, 1], &[0], 8),
    (
        7,
        20,
        1,
        1,
        16,
        9984,
        [1, 1, 0, 1, 1],
        &[0, 1, 2, 3, 4, 5, 6],
        1,
    ),
    (9, 15, 1, 4, 26, 20096, [1, 1, 0, 1, 0], &[0, 2, 4, 6], 2),
];

const A100: &[Row] = &[
    (
        0,
        19,
        1,
        7,
        14,
        4864,
        [1, 0, 0, 0, 0],
        &[0, 1, 2, 3, 4, 5, 6],
        1,
    ),
    (1, 14, 2, 3, 28, 9856, [2, 1, 0, 0, 0], &[0, 2, 4], 2),
    (2, 9, 3, 2, 42, 19968, [3, 2, 0, 0, 0], &[0, 4], 4),
    (3, 5, 4, 1, 56, 19968, [4, 2, 0, 0, 0], &[0], 4),
    (4, 0, 7, 1, 98, 40192, [7, 5, 0, 1, 1], &[0], 8),
    (
        7,
        20,
        1,
        1,
        14,
        4864,
        [1, 1, 0, 1, 1],
        &[0, 1, 2, 3, 4, 5, 6],
        1,
    ),
    (9, 15, 1, 4, 14, 9856, [1, 1, 0, 0, 0], &[0, 2, 4, 6], 2),
];

#[rstest]
#[case("h100-sxm5-80gb", H100)]
#[case("a100-sxm4-40gb", A100)]
fn profiles_are_those_of_the_board_and_holes_are_not_supported(
    #[case] board: &str,
    #[case] rows: &[Row],
) {
    let driver = Driver::with(board, 1);
    let gpu = driver.gpu(0);
    let rows: BTreeMap<u32, &Row> = rows.iter().map(|row| (row.0, row)).collect();
    for index in 0..0x20 {
        let info = get!(driver, nvmlDeviceGetGpuInstanceProfileInfo(gpu, index));
        let Some((_, id, slices, count, sms, mib, engines, starts, size)) = rows.get(&index) else {
            // The 13.3 header has 18 indices.
            let expected = if index < 18 {
                Code::NOT_SUPPORTED
            } else {
                Code::INVALID_ARGUMENT
            };
            assert_eq!(info.map(|info| info.id), Err(expected), "index {index}");
            continue;
        };
        let info = info.unwrap();
        assert_eq!(
            (info.id, info.sliceCount, info.instanceCount),
            (*id, *slices, *count)
        );
        assert_eq!((info.multiprocessorCount, info.memorySizeMB), (*sms, *mib));
        let found = [
            info.copyEngineCount,
            info.decoderCount,
            info.encoderCount,
            info.jpegCount,
            info.ofaCount,
        ];
        assert_eq!(found, *engines, "profile {id}");

        // Placements are answered with MIG off, and a null array asks for their number.
        let mut number = 0;
        let null = std::ptr::null_mut();
        let asked = code!(
            driver,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu, *id, null, &mut number)
        );
        assert_eq!((asked, number as usize), (Code::SUCCESS, starts.len()));
        let mut places = vec![
            nvmlGpuInstancePlacement_t {
                start: 99,
                size: 99
            };
            starts.len()
        ];
        code!(
            driver,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                gpu,
                *id,
                places.as_mut_ptr(),
                &mut number
            )
        );
        let places: Vec<_> = places
            .iter()
            .map(|place| (place.start, place.size))
            .collect();
        assert_eq!(
            places,
            starts
                .iter()
                .map(|start| (*start, *size))
                .collect::<Vec<_>>()
        );
    }
}

#[test]
fn profile_infos_come_in_three_versions() {
    let driver = Driver::with("rtx-pro-6000-96gb", 1);
    let gpu = driver.gpu(0);
    let mut second: nvmlGpuInstanceProfileInfo_v2_t = unsafe { std::mem::zeroed() };
    second.version = version::<nvmlGpuInstanceProfileInfo_v2_t>(2);
    assert_eq!(
        code!(
            driver,
            nvmlDeviceGetGpuInstanceProfileInfoByIdV(gpu, 47, &mut second)
        ),
        Code::SUCCESS
    );
    assert_eq!(
        (
            second.id,
            second.multiprocessorCount,
            string(&second.name).as_str()
        ),
        (47, 46, "MIG 1g.24gb+gfx")
    );
    let mut third: nvmlGpuInstanceProfileInfo_v3_t = unsafe { std::mem::zeroed() };
    third.version = version::<nvmlGpuInstanceProfileInfo_v3_t>(3);
    // 0xA is one slice with graphics.
    let place = (&raw mut third).cast();
    assert_eq!(
        code!(
            driver,
            nvmlDeviceGetGpuInstanceProfileInfoV(gpu, 0xA, place)
        ),
        Code::SUCCESS
    );
    assert_eq!((third.id, third.capabilities), (47, 2), "graphics is bit 2");
    third.version = version::<nvmlGpuInstanceProfileInfo_v3_t>(4);
    let place = (&raw mut third).cast();
    let refused = code!(
        driver,
        nvmlDeviceGetGpuInstanceProfileInfoV(gpu, 0xA, place)
    );
    assert_eq!(refused, Code::ARGUMENT_VERSION_MISMATCH);
}

#[test]
fn explicit_placements_must_be_offered_and_free() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.partitioned(0);
    let place = |start, size| nvmlGpuInstancePlacement_t { start, size };
    let at = |profile, place| {
        get!(
            driver,
            nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile, &place)
        )
    };
    assert!(at(9, place(4, 4)).is_ok());
    assert_eq!(at(9, place(4, 4)).err(), Some(Code::INSUFFICIENT_RESOURCES));
    assert_eq!(
        at(9, place(0, 3)).err(),
        Some(Code::INVALID_ARGUMENT),
        "3g takes four memory slices"
    );
    assert_eq!(at(9, place(2, 4)).err(), Some(Code::INVALID_ARGUMENT));
    assert!(at(19, place(2, 1)).is_ok());
    let null = std::ptr::null();
    let refused = get!(
        driver,
        nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 19, null)
    );
    assert_eq!(refused.err(), Some(Code::INVALID_ARGUMENT));
    let infos: Vec<(u32, u32, u32)> = [2, 9]
        .map(|id| get!(driver, nvmlGpuInstanceGetInfo(instance(&driver, gpu, id))).unwrap())
        .map(|info| (info.profileId, info.placement.start, info.placement.size))
        .into();
    assert_eq!(infos, [(9, 4, 4), (19, 2, 1)]);
}

/// Compute instances of a 3g: 1c ×3, 2c ×1, 3c ×1; enumeration index and id agree.
#[test]
fn compute_instances_share_the_slices_of_their_gpu_instance() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.partitioned(0);
    create(&driver, gpu, 9).unwrap();
    let parent = instance(&driver, gpu, 2);
    for (index, count, sms) in [(0, 3, 16), (1, 1, 32), (2, 1, 60)] {
        let info = get!(
            driver,
            nvmlGpuInstanceGetComputeInstanceProfileInfo(parent, index, 0)
        )
        .unwrap();
        assert_eq!(
            (info.id, info.instanceCount, info.multiprocessorCount),
            (index, count, sms)
        );
        assert_eq!(
            info.sharedCopyEngineCount, 3,
            "engines are the GPU instance's"
        );
    }
    let hole = get!(
        driver,
        nvmlGpuInstanceGetComputeInstanceProfileInfo(parent, 3, 0)
    );
    assert_eq!(hole.err(), Some(Code::NOT_SUPPORTED));
    let beyond = get!(
        driver,
        nvmlGpuInstanceGetComputeInstanceProfileInfo(parent, 9, 0)
    );
    assert_eq!(beyond.err(), Some(Code::INVALID_ARGUMENT));
    let engines = get!(
        driver,
        nvmlGpuInstanceGetComputeInstanceProfileInfo(parent, 0, 1)
    );
    assert_eq!(engines.err(), Some(Code::INVALID_ARGUMENT));

    let one = get!(driver, nvmlGpuInstanceCreateComputeInstance(parent, 0)).unwrap();
    assert_eq!(
        get!(
            driver,
            nvmlGpuInstanceGetComputeInstanceRemainingCapacity(parent, 0)
        ),
        Ok(2)
    );
    let full = get!(driver, nvmlGpuInstanceCreateComputeInstance(parent, 2));
    assert_eq!(full.err(), Some(Code::INSUFFICIENT_RESOURCES));
    let two = get!(driver, nvmlGpuInstanceCreateComputeInstance(parent, 1)).unwrap();
    let infos =
        [one, two].map(|compute| get!(driver, nvmlComputeInstanceGetInfo_v2(compute)).unwrap());
    assert_eq!(
        infos.map(|info| (info.id, info.profileId, info.placement.size)),
        [(0, 0, 1), (1, 1, 2)]
    );
    assert!(
        infos
            .iter()
            .all(|info| info.device == gpu && info.gpuInstance == parent)
    );

    assert_eq!(
        code!(driver, nvmlGpuInstanceDestroy(parent)),
        Code::IN_USE,
        "compute instances are inside"
    );
    assert_eq!(
        code!(driver, nvmlComputeInstanceDestroy(one)),
        Code::SUCCESS
    );
    assert_eq!(
        code!(driver, nvmlComputeInstanceDestroy(two)),
        Code::SUCCESS
    );
    assert_eq!(code!(driver, nvmlGpuInstanceDestroy(parent)), Code::SUCCESS);
}

#[test]
fn mig_devices_describe_their_instances() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.partitioned(0);
    // The capture: 3g, 2g, 1g, 1g take ids 2, 3, 9, 10; memory 40448, 20096, 9984, 9984 MiB; SMs 60, 32, 16, 16.
    for (profile, compute) in [(9, 2), (14, 1), (19, 0), (19, 0)] {
        let id = create(&driver, gpu, profile).unwrap();
        get!(
            driver,
            nvmlGpuInstanceCreateComputeInstance(instance(&driver, gpu, id), compute)
        )
        .unwrap();
    }
    assert_eq!(get!(driver, nvmlDeviceGetMaxMigDeviceCount(gpu)), Ok(7));
    let expected = [
        (2, "NVIDIA H100 80GB HBM3 MIG 3g.40gb", 40448, 60, 3),
        (3, "NVIDIA H100 80GB HBM3 MIG 2g.20gb", 20096, 32, 2),
        (9, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9984, 16, 1),
        (10, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9984, 16, 1),
    ];
    let mut uuids = Vec::new();
    for (index, (id, name, mib, sms, slices)) in expected.into_iter().enumerate() {
        let device = get!(
            driver,
            nvmlDeviceGetMigDeviceHandleByIndex(gpu, index as u32)
        )
        .unwrap();
        assert_eq!(get!(driver, nvmlDeviceIsMigDeviceHandle(device)), Ok(1));
        assert_eq!(get!(driver, nvmlDeviceGetGpuInstanceId(device)), Ok(id));
        assert_eq!(get!(driver, nvmlDeviceGetComputeInstanceId(device)), Ok(0));
        assert_eq!(get!(driver, nvmlDeviceGetIndex(device)), Ok(index as u32));
        assert_eq!(
            get!(driver, nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)),
            Ok(gpu)
        );
        assert_eq!(text!(driver, nvmlDeviceGetName(device)).unwrap(), name);
        assert_eq!(
            get!(driver, nvmlDeviceGetMemoryInfo(device)).unwrap().total,
            mib << 20
        );
        let attributes = get!(driver, nvmlDeviceGetAttributes_v2(device)).unwrap();
        assert_eq!(
            (attributes.multiprocessorCount, attributes.memorySizeMB),
            (sms, mib)
        );
        assert_eq!(
            (
                attributes.gpuInstanceSliceCount,
                attributes.computeInstanceSliceCount
            ),
            (slices, slices)
        );
        let uuid = text!(driver, nvmlDeviceGetUUID(device)).unwrap();
        let by_uuid = CString::new(uuid.as_str()).unwrap();
        assert_eq!(
            get!(driver, nvmlDeviceGetHandleByUUID(by_uuid.as_ptr())),
            Ok(device)
        );
        let parent = text!(driver, nvmlDeviceGetUUID(gpu)).unwrap();
        let earlier = CString::new(format!("MIG-{parent}/{id}/0")).unwrap();
        assert_eq!(
            get!(driver, nvmlDeviceGetHandleByUUID(earlier.as_ptr())),
            Ok(device)
        );
        uuids.push(uuid);
    }
    assert_eq!(
        get!(driver, nvmlDeviceGetMigDeviceHandleByIndex(gpu, 4)).err(),
        Some(Code::NOT_FOUND)
    );
    uuids.dedup();
    assert_eq!(uuids.len(), 4);
    assert!(
        uuids
            .iter()
            .all(|uuid| uuid.starts_with("MIG-") && uuid.len() == 40)
    );
}

#[test]
fn the_same_geometry_has_the_same_uuid_again() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.partitioned(0);
    let make = || {
        let id = create(&driver, gpu, 14).unwrap();
        let parent = instance(&driver, gpu, id);
        let compute = get!(driver, nvmlGpuInstanceCreateComputeInstance(parent, 1)).unwrap();
        let device = get!(driver, nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)).unwrap();
        (
            text!(driver, nvmlDeviceGetUUID(device)).unwrap(),
            parent,
            compute,
        )
    };
    let (first, parent, compute) = make();
    assert_eq!(
        code!(driver, nvmlComputeInstanceDestroy(compute)),
        Code::SUCCESS
    );
    assert_eq!(code!(driver, nvmlGpuInstanceDestroy(parent)), Code::SUCCESS);
    assert_eq!(make().0, first);
}

#[test]
fn lists_hold_the_instances_of_one_profile() {
    let driver = Driver::with("a100-sxm4-40gb", 1);
    let gpu = driver.partitioned(0);
    for profile in [19, 14, 19] {
        create(&driver, gpu, profile).unwrap();
    }
    let mut instances = [std::ptr::null_mut(); 7];
    let mut count = 0;
    code!(
        driver,
        nvmlDeviceGetGpuInstances(gpu, 19, instances.as_mut_ptr(), &mut count)
    );
    let ids: Vec<u32> = instances[..count as usize]
        .iter()
        .map(|instance| get!(driver, nvmlGpuInstanceGetInfo(*instance)).unwrap().id)
        .collect();
    // Creation gave 13 and then 7, as 11 and 12 lie under the 2g; lists ascend.
    assert_eq!(ids, [7, 13]);
    assert_eq!(
        get!(driver, nvmlDeviceGetGpuInstanceById(gpu, 12)).err(),
        Some(Code::NOT_FOUND)
    );
}
