//! Calls that hang, drivers that go and come back, GPUs that move.

use std::time::Duration;

use nvml::{Code, Driver, Error, Options, Session};
use sim_nvml::model::{Effect, Fault};

use crate::{Node, eventually};

/// Still long enough for a call that does not hang, on a machine that is busy.
const SHORT: Duration = Duration::from_secs(10);

fn hang(node: &Node, symbol: &str, gpu: Option<usize>) -> u64 {
    let fault = Fault {
        gpu,
        ..Fault::new(symbol, Effect::Hang)
    };
    node.sim.inject(fault).unwrap()
}

#[test]
fn a_call_that_hangs_costs_only_its_gpu() {
    let node = Node::of("h100-sxm5-80gb", 4);
    let driver = Driver::open(&Options {
        call_timeout: SHORT,
        ..node.options()
    })
    .unwrap();
    let fault = hang(&node, "nvmlDeviceGetSerial", Some(1));
    let snapshot = driver.snapshot().unwrap();
    let failed: Vec<_> = snapshot.failed().collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    let (index, error) = failed[0];
    assert_eq!(index, 1);
    assert!(error.is_hung() && error.is_transient());
    assert_eq!(error.call(), Some("nvmlDeviceGetSerial"));
    assert!(error.gpu().unwrap().uuid.is_some());

    // While it hangs, the GPU is refused without another wait: no call of the batch is made.
    let refused = driver
        .gpu(1)
        .run(|_| -> Result<(), Error> { panic!("must not run") });
    assert_eq!(refused.unwrap_err().call(), Some("nvmlDeviceGetSerial"));
    assert!(driver.gpu(0).info().is_ok());

    node.sim.clear(fault).unwrap();
    eventually("the GPU's return", || driver.gpu(1).info().is_ok());
}

#[test]
fn a_gpu_is_found_while_another_hangs() {
    let node = Node::of("h100-sxm5-80gb", 2);
    // Its call timeout is longer than this test is patient.
    let driver = node.open();
    let state = node.sim.state().unwrap();
    let uuids: Vec<String> = state.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    for (index, uuid) in (0..).zip(&uuids) {
        assert_eq!(driver.find(uuid).unwrap().index(), index);
    }
    let fault = hang(&node, "nvmlDeviceGetSerial", Some(0));
    let (entered, inside) = std::sync::mpsc::channel();
    let begun = driver.gpu(0).spawn(
        move |device| {
            entered.send(()).unwrap();
            device.info()
        },
        |_| {},
    );
    begun.unwrap();
    inside.recv().unwrap();
    let (found, answer) = std::sync::mpsc::channel();
    let (seeker, wanted) = (driver.clone(), uuids[1].clone());
    std::thread::spawn(move || found.send(seeker.find(&wanted).map(|gpu| gpu.index())));
    let answer = answer.recv_timeout(Duration::from_secs(40));
    node.sim.clear(fault).unwrap();
    assert_eq!(answer.expect("nobody waits for GPU 0"), Ok(1));
}

#[test]
fn a_batch_that_hung_goes_no_further() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let driver = Driver::open(&Options {
        call_timeout: SHORT,
        ..node.options()
    })
    .unwrap();
    let gpu = driver.gpu(0);
    eventually("a first answer", || {
        gpu.run(|d| d.set_mig_mode(true)).is_ok()
    });
    let fault = hang(&node, "nvmlDeviceGetSerial", None);
    let error = gpu
        .run(|d| {
            // The serial number comes too late for the caller, who has given up: nothing may be created any more.
            d.serial()?;
            d.create_gpu_instance(19, None)
        })
        .unwrap_err();
    assert!(error.is_hung());
    node.sim.clear(fault).unwrap();
    eventually("the GPU's return", || {
        gpu.run(|d| d.layout())
            .is_ok_and(|l| l.instances.is_empty())
    });
    assert!(node.sim.state().unwrap().gpus[0].mig.instances.is_empty());
}

#[test]
fn opening_is_bounded_and_heals() {
    let node = Node::of("t4-16gb", 1);
    let fault = hang(&node, "nvmlInit_v2", None);
    let options = Options {
        call_timeout: SHORT,
        write_timeout: SHORT,
        ..node.options()
    };
    let session = Session::with_pauses(&options, Duration::ZERO, Duration::ZERO).unwrap();
    let error = session.driver().unwrap_err();
    assert_eq!((error.is_hung(), error.call()), (true, Some("nvmlInit_v2")));
    // Trying again starts no second thread that hangs: the first is asked.
    assert_eq!(session.driver().unwrap_err().call(), Some("nvmlInit_v2"));
    node.sim.clear(fault).unwrap();
    eventually("the driver's return", || {
        session.driver().is_ok_and(|driver| driver.count() == Ok(1))
    });
}

#[test]
fn a_driver_that_is_unloaded_comes_back_by_itself() {
    let node = Node::of("h100-sxm5-80gb", 2);
    let session = Session::with_pauses(&node.options(), Duration::ZERO, Duration::ZERO).unwrap();
    let driver = session.driver().unwrap();
    let gpu = driver.gpu(0);
    let uuid = gpu.info().unwrap().uuid;
    let generation = driver.generation();

    node.sim.unload_driver().unwrap();
    let error = driver.snapshot().unwrap_err();
    assert!(error.is_driver_gone(), "{error}");
    assert!(driver.is_gone());
    let error = session.driver().unwrap_err();
    assert_eq!(error.code(), Some(Code::DRIVER_NOT_LOADED));
    // Everybody learns the same meanwhile.
    assert_eq!(
        gpu.info().unwrap_err().code(),
        Some(Code::DRIVER_NOT_LOADED)
    );

    node.sim.load_driver().unwrap();
    session.wait(Duration::from_secs(60)).unwrap();
    assert!(!driver.is_gone());
    assert_eq!(driver.generation(), generation + 1);
    // Handles from before go on working: it is the same board.
    assert_eq!(gpu.info().unwrap().uuid, uuid);
}

#[test]
fn a_library_that_does_not_fit_the_kernel_module_is_a_missing_driver() {
    let node = Node::of("t4-16gb", 1);
    node.sim.mismatch_driver().unwrap();
    let error = Driver::open(&node.options()).unwrap_err();
    assert_eq!(error.code(), Some(Code::LIB_RM_VERSION_MISMATCH));
    assert!(error.is_driver_gone());
}

#[test]
fn a_handle_never_reaches_another_board() {
    let node = Node::of("h100-sxm5-80gb", 3);
    let driver = node.open();
    let first = driver.gpu(0);
    let second = driver.gpu(1).info().unwrap().uuid;
    first.info().unwrap();
    node.sim.fall_off(0).unwrap();
    assert!(first.info().unwrap_err().is_gpu_lost());
    // Opened again, the driver no longer counts it, and its index goes to the next.
    driver.reopen().unwrap();
    assert_eq!(driver.count(), Ok(2));
    match first.info().unwrap_err() {
        Error::Moved { found, .. } => assert_eq!(found, second),
        other => panic!("{other}"),
    }
    assert_eq!(driver.gpu(0).info().unwrap().uuid, second);
}

#[test]
fn a_closed_driver_is_no_client_and_says_so() {
    let node = Node::of("t4-16gb", 1);
    let driver = node.open();
    assert_eq!(node.sim.state().unwrap().clients.len(), 1);
    driver.close().unwrap();
    assert_eq!(node.sim.state().unwrap().clients.len(), 0);
    assert_eq!(driver.count(), Err(Error::Closed));
    driver.reopen().unwrap();
    assert_eq!(driver.count(), Ok(1));
    drop(driver);
    assert_eq!(node.sim.state().unwrap().clients.len(), 0);
}

#[test]
fn closing_is_bounded_and_heals() {
    let node = Node::of("t4-16gb", 1);
    let driver = Driver::open(&Options {
        write_timeout: SHORT,
        ..node.options()
    })
    .unwrap();
    let fault = hang(&node, "nvmlShutdown", None);
    let error = driver.close().unwrap_err();
    assert_eq!(
        (error.is_hung(), error.call()),
        (true, Some("nvmlShutdown"))
    );
    // It cannot be used meanwhile, and whoever asks learns what hangs.
    assert_eq!(driver.count().unwrap_err().call(), Some("nvmlShutdown"));
    node.sim.clear(fault).unwrap();
    eventually("the driver's return", || driver.reopen().is_ok());
    assert_eq!(driver.count(), Ok(1));
}

#[test]
fn many_threads_share_one_gpu_one_after_the_other() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let gpu = node.open().gpu(0);
    gpu.run(|d| d.set_mig_mode(true)).unwrap();
    // Each batch leaves the GPU as it found it; were two to overlap, one would see the other's instance.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    gpu.run(|d| {
                        assert_eq!(d.layout()?.instances, []);
                        let id = d.create_gpu_instance(0, None)?.id;
                        d.destroy_gpu_instance(id)
                    })
                    .unwrap();
                }
            });
        }
    });
}

#[test]
fn a_batch_cannot_wait_for_its_own_gpu() {
    let node = Node::of("t4-16gb", 1);
    let gpu = node.open().gpu(0);
    let same = gpu.clone();
    let error = gpu.run(move |_| same.run(|d| d.name())).unwrap_err();
    assert!(matches!(error, Error::System { .. }), "{error}");
}

#[test]
fn several_gpus_are_reset_in_one_go_and_others_left_alone() {
    let node = Node::of("a100-sxm4-40gb", 3);
    let driver = node.open();
    for answer in driver.for_each_gpu(|d| d.set_mig_mode(true)).unwrap() {
        answer.unwrap();
    }
    for index in 0..3 {
        let gpu = driver.gpu(index);
        gpu.run(|d| d.create_gpu_instance(19, None)).unwrap();
    }
    let generation = driver.generation();
    let results = driver.reset(&[driver.gpu(0), driver.gpu(2)]).unwrap();
    assert_eq!(results, [Ok(()), Ok(())]);
    assert_eq!(driver.generation(), generation + 1);
    let snapshot = driver.snapshot().unwrap();
    // Instances do not survive a reset; the mode does on this board.
    let left: Vec<usize> = snapshot
        .present()
        .map(|info| info.layout.as_ref().unwrap().instances.len())
        .collect();
    assert_eq!(left, [0, 1, 0]);
    assert!(snapshot.present().all(|info| info.mig.unwrap().current));
}

#[test]
fn a_lost_gpu_is_reset_by_where_it_was() {
    let node = Node::of("a100-sxm4-40gb", 2);
    let driver = node.open();
    let gpu = driver.gpu(1);
    let uuid = gpu.info().unwrap().uuid;
    node.sim.lose(1).unwrap();
    assert!(gpu.info().unwrap_err().is_gpu_lost());
    gpu.reset().unwrap();
    assert_eq!(gpu.info().unwrap().uuid, uuid);
}

#[test]
fn a_gpu_whose_call_hangs_stops_resets_within_bounds() {
    let node = Node::of("a100-sxm4-40gb", 2);
    let driver = Driver::open(&Options {
        call_timeout: SHORT,
        write_timeout: SHORT,
        ..node.options()
    })
    .unwrap();
    let fault = hang(&node, "nvmlDeviceGetSerial", Some(0));
    assert!(driver.gpu(0).run(|d| d.serial()).unwrap_err().is_hung());
    // NVML cannot be shut down around a call; the caller learns which GPU is in the way, and everything stays open.
    let error = driver.gpu(1).reset().unwrap_err();
    assert_eq!(
        (error.is_hung(), error.call()),
        (true, Some("nvmlDeviceGetSerial"))
    );
    assert_eq!(error.gpu().unwrap().index, 0);
    assert!(driver.gpu(1).info().is_ok());
    node.sim.clear(fault).unwrap();
    eventually("the reset", || driver.gpu(1).reset().is_ok());
}

#[test]
fn a_reset_that_the_driver_refuses_says_why_and_everything_goes_on() {
    let node = Node::of("t4-16gb", 2);
    let program = node.sim.root().join("usr/bin/nvidia-smi");
    let script = "#!/bin/sh\necho 'GPU is primary or in use'\nexit 255\n";
    // Written by another process: see `tests` in `reset.rs`.
    let written = std::process::Command::new("sh")
        .args(["-c", "printf '%s' \"$1\" > \"$0\" && chmod 755 \"$0\""])
        .arg(&program)
        .arg(script)
        .status();
    assert!(written.unwrap().success());
    let driver = node.open();
    match driver.gpu(1).reset() {
        Err(Error::Reset { gpu, reason }) => {
            assert_eq!(gpu.index, 1);
            assert_eq!(reason, "GPU is primary or in use");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(driver.snapshot().unwrap().failed().count(), 0);
}

#[test]
fn a_suspended_session_holds_no_gpu_and_goes_on_afterwards() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let session = Session::new(&node.options()).unwrap();
    let driver = session.driver().unwrap();
    let stream = driver.watch(nvml::EventMask::XID).unwrap();
    let next = || {
        stream
            .next_within(Duration::from_secs(60))
            .unwrap()
            .unwrap()
            .kind
    };
    assert_eq!(next(), nvml::EventKind::Watching);
    assert_eq!(node.sim.state().unwrap().clients.len(), 1);

    session.suspend().unwrap();
    assert_eq!(node.sim.state().unwrap().clients.len(), 0);
    assert_eq!(session.driver().err(), Some(Error::Closed));
    assert_eq!(session.attempt().err(), Some(Error::Closed));
    let waited = session.wait(Duration::from_millis(10));
    assert_eq!(waited.err(), Some(Error::Closed));
    assert_eq!(driver.gpu(0).info().err(), Some(Error::Closed));

    session.resume();
    assert!(session.driver().is_ok());
    assert_eq!(next(), nvml::EventKind::Watching);
    assert!(driver.gpu(0).info().is_ok());
}

#[test]
fn an_attempt_waits_for_no_pause() {
    let node = Node::of("t4-16gb", 1);
    node.sim.unload_driver().unwrap();
    let hour = Duration::from_secs(3600);
    let session = Session::with_pauses(&node.options(), hour, hour).unwrap();
    assert!(session.driver().is_err());
    node.sim.load_driver().unwrap();
    assert!(session.driver().is_err(), "the pause lasts");
    assert!(session.attempt().is_ok());
}

#[test]
fn a_batch_that_nobody_waits_for() {
    let node = Node::of("t4-16gb", 1);
    let driver = Driver::open(&Options {
        call_timeout: SHORT,
        ..node.options()
    })
    .unwrap();
    let fault = hang(&node, "nvmlDeviceGetSerial", None);
    let (sender, answers) = std::sync::mpsc::channel();
    let gpu = driver.gpu(0);
    gpu.spawn(|d| d.serial(), move |answer| sender.send(answer).unwrap())
        .unwrap();
    eventually("the hang", || {
        gpu.check()
            .is_err_and(|error| error.call() == Some("nvmlDeviceGetSerial"))
    });
    assert!(
        gpu.spawn(|d| d.serial(), |_| panic!("not begun"))
            .is_err_and(|e| e.is_hung())
    );
    node.sim.clear(fault).unwrap();
    // Late, but it comes.
    assert!(
        answers
            .recv_timeout(Duration::from_secs(60))
            .unwrap()
            .is_ok()
    );
    eventually("the GPU's return", || gpu.check().is_ok());
}
