//! MIG: mode, instances, and what the driver refuses.

use gpu::Placement;
use nvml::{Activation, Code, Driver, Error, Gpu};
use rstest::rstest;
use sim_nvml::admin::WorkloadSpec;

use crate::Node;

fn with_mig(board: &str) -> (Node, Driver, Gpu) {
    let node = Node::of(board, 1);
    let driver = node.open();
    let gpu = driver.gpu(0);
    assert_eq!(gpu.run(|d| d.set_mig_mode(true)), Ok(Activation::Done));
    (node, driver, gpu)
}

fn create(gpu: &Gpu, profile: u32) -> Result<u32, Error> {
    gpu.run(move |d| Ok(d.create_gpu_instance(profile, None)?.id))
}

/// The driver's own choice of place, seen through the ids it gives; the orders are those of captures and documents.
#[rstest]
#[case::seven_small("h100-sxm5-80gb", &[19; 7], &[13, 11, 12, 7, 8, 9, 10])]
#[case::halves("h100-sxm5-80gb", &[9, 9], &[2, 1])]
#[case::mixed("a100-sxm4-40gb", &[9, 19, 14, 19], &[2, 7, 4, 8])]
#[case::double_memory("gh200-96gb", &[15, 15, 15], &[5, 3, 4])]
#[case::a30("a30-24gb", &[5, 5], &[1, 2])]
fn instances_get_the_ids_of_real_boards(
    #[case] board: &str,
    #[case] profiles: &[u32],
    #[case] ids: &[u32],
) {
    let (_node, _driver, gpu) = with_mig(board);
    let given: Vec<u32> = profiles.iter().map(|&p| create(&gpu, p).unwrap()).collect();
    assert_eq!(given, ids);
}

#[test]
fn an_instance_lives_from_creation_to_destruction() {
    let (_node, _driver, gpu) = with_mig("h100-sxm5-80gb");
    let at = Placement { start: 4, size: 4 };
    let made = gpu
        .run(move |d| d.create_gpu_instance(9, Some(at)))
        .unwrap();
    // A half that starts at slice 4 has id 2.
    assert_eq!((made.id, made.profile_id, made.placement), (2, 9, at));
    assert_eq!(gpu.run(|d| d.remaining_capacity(9)), Ok(1));

    // A GPU instance without compute instances is no MIG device, yet it is there.
    let layout = gpu.run(|d| d.layout()).unwrap();
    assert!(layout.mig_enabled);
    assert_eq!(layout.instances, std::slice::from_ref(&made));
    assert_eq!(gpu.info().unwrap().mig_devices, []);

    // 3c has the id 2 and is the whole instance.
    let inside = gpu.run(|d| d.create_compute_instance(2, 2, None)).unwrap();
    assert_eq!((inside.id, inside.profile_id), (0, 2));
    assert_eq!(inside.placement, Placement { start: 0, size: 3 });
    assert_eq!(gpu.run(|d| d.remaining_compute_capacity(2, 2)), Ok(0));

    let info = gpu.info().unwrap();
    let device = &info.mig_devices[0];
    assert_eq!((device.gpu_instance, device.compute_instance), (2, 0));
    assert!(device.uuid.starts_with("MIG-"));
    assert_eq!(
        device.name.as_deref(),
        Some("NVIDIA H100 80GB HBM3 MIG 3g.40gb")
    );
    let size = device.attributes.unwrap();
    assert_eq!((size.multiprocessors, size.memory_mib), (60, 40448));
    assert_eq!((size.gpu_slices, size.compute_slices), (3, 3));
    // With an instance, its profile's insides are known: 1c, 2c, 3c with 3, 1 and 1 of them.
    let board = info.board.unwrap();
    let three = board.profiles.iter().find(|p| p.id == 9).unwrap();
    let inside: Vec<_> = three
        .compute
        .iter()
        .map(|c| (c.id, c.slices, c.max_instances))
        .collect();
    assert_eq!(inside, [(0, 1, 3), (1, 2, 1), (2, 3, 1)]);

    let error = gpu.run(|d| d.destroy_gpu_instance(2)).unwrap_err();
    assert!(error.is_in_use());
    assert_eq!(error.call(), Some("nvmlGpuInstanceDestroy"));
    gpu.run(|d| d.destroy_compute_instance(2, 0)).unwrap();
    gpu.run(|d| d.destroy_gpu_instance(2)).unwrap();
    let error = gpu.run(|d| d.destroy_gpu_instance(2)).unwrap_err();
    assert_eq!(error.code(), Some(Code::NOT_FOUND));
    assert_eq!(gpu.run(|d| d.layout()).unwrap().instances, []);
}

#[test]
fn the_same_place_gives_the_same_mig_uuid() {
    let (_node, _driver, gpu) = with_mig("h100-sxm5-80gb");
    let make = || {
        gpu.run(|d| {
            let id = d.create_gpu_instance(19, None)?.id;
            d.create_compute_instance(id, 0, None)
        })
        .unwrap();
        gpu.info().unwrap().mig_devices[0].uuid.clone()
    };
    let first = make();
    gpu.run(|d| {
        d.destroy_compute_instance(13, 0)?;
        d.destroy_gpu_instance(13)
    })
    .unwrap();
    assert_eq!(make(), first);
}

#[test]
fn no_room_is_its_own_code() {
    let (_node, _driver, gpu) = with_mig("h100-sxm5-80gb");
    assert_eq!(create(&gpu, 0), Ok(0));
    let error = create(&gpu, 19).unwrap_err();
    assert_eq!(error.code(), Some(Code::INSUFFICIENT_RESOURCES));
    assert!(
        error.to_string().contains("INSUFFICIENT_RESOURCES (23)"),
        "{error}"
    );
}

#[test]
fn a_full_gpu_lists_everything_it_holds() {
    let (_node, _driver, gpu) = with_mig("a100-sxm4-80gb");
    gpu.run(|d| {
        for _ in 0..7 {
            let id = d.create_gpu_instance(19, None)?.id;
            d.create_compute_instance(id, 0, None)?;
        }
        Ok(())
    })
    .unwrap();
    let info = gpu.info().unwrap();
    let layout = info.layout.unwrap();
    let ids: Vec<u32> = layout.instances.iter().map(|i| i.id).collect();
    assert_eq!(ids, [7, 8, 9, 10, 11, 12, 13]);
    assert!(layout.instances.iter().all(|i| i.compute.len() == 1));
    assert_eq!(info.mig_devices.len(), 7);
}

#[test]
fn ampere_waits_for_a_reset_while_the_gpu_is_in_use() {
    let node = Node::of("a100-sxm4-40gb", 2);
    let driver = node.open();
    let gpu = driver.gpu(1);
    let pid = node
        .sim
        .run_workload(WorkloadSpec {
            gpu: 1,
            ..WorkloadSpec::default()
        })
        .unwrap();
    assert_eq!(gpu.run(|d| d.set_mig_mode(true)), Ok(Activation::InUse));
    let mode = gpu.info().unwrap().mig.unwrap();
    assert_eq!((mode.current, mode.pending), (false, true));

    // While somebody computes, a reset changes nothing (a file cannot say "busy" here, as the kernel would).
    gpu.reset().unwrap();
    assert!(!gpu.info().unwrap().mig.unwrap().current);

    node.sim.stop_workload(pid).unwrap();
    let before = driver.generation();
    gpu.reset().unwrap();
    assert_eq!(driver.generation(), before + 1);
    let mode = gpu.info().unwrap().mig.unwrap();
    assert_eq!((mode.current, mode.pending), (true, true));
    // The other GPU was left alone, and both can be used through handles from before.
    assert!(!driver.gpu(0).info().unwrap().mig.unwrap().pending);
}

#[test]
fn hopper_changes_its_mode_at_once_unless_somebody_computes() {
    let (node, _driver, gpu) = with_mig("h100-sxm5-80gb");
    assert!(gpu.info().unwrap().mig.unwrap().current);
    assert_eq!(gpu.run(|d| d.set_mig_mode(false)), Ok(Activation::Done));
    node.sim.run_workload(WorkloadSpec::default()).unwrap();
    assert_eq!(gpu.run(|d| d.set_mig_mode(true)), Ok(Activation::InUse));
}

#[test]
fn mig_is_absent_where_the_board_has_none() {
    let node = Node::of("t4-16gb", 1);
    let gpu = node.open().gpu(0);
    assert!(gpu.run(|d| d.mig_mode()).unwrap_err().is_absent());
    assert!(gpu.run(|d| d.set_mig_mode(true)).unwrap_err().is_absent());
    assert_eq!(gpu.run(|d| d.layout()), Ok(gpu::Layout::default()));
}
