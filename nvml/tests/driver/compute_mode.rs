//! Compute mode: set, read, refused.

use nvml::{Activation, Code, ComputeMode};

use crate::Node;

#[test]
fn a_mode_lasts_until_it_is_set_again() {
    let node = Node::of("h100-sxm5-80gb", 2);
    let driver = node.open();
    let mode = |index: u32| driver.gpu(index).run(|device| device.compute_mode());
    assert_eq!(mode(0), Ok(ComputeMode::Default));
    for wanted in [ComputeMode::ExclusiveProcess, ComputeMode::Prohibited] {
        let set = driver
            .gpu(0)
            .run(move |device| device.set_compute_mode(wanted));
        assert_eq!(set, Ok(()));
        assert_eq!(mode(0), Ok(wanted));
        assert_eq!(mode(1), Ok(ComputeMode::Default));
    }
}

#[test]
fn a_gpu_in_mig_mode_has_none() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let driver = node.open();
    let gpu = driver.gpu(0);
    assert_eq!(
        gpu.run(|device| device.set_mig_mode(true)),
        Ok(Activation::Done)
    );
    let set = gpu.run(|device| device.set_compute_mode(ComputeMode::ExclusiveProcess));
    assert_eq!(set.unwrap_err().code(), Some(Code::NOT_SUPPORTED));
}

#[test]
fn a_number_that_is_no_mode_is_refused() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let driver = node.open();
    let set = driver
        .gpu(0)
        .run(|device| device.set_compute_mode(ComputeMode::Other(9)));
    assert_eq!(set.unwrap_err().code(), Some(Code::INVALID_ARGUMENT));
}
