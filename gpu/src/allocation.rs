//! Which devices a container should get, of those that are free.
//!
//! [`nearest`] is for whole GPUs: the set that works best together, and leaves sets that work well for whoever comes next.
//! [`shares`] is for MIG devices and shares of devices: spread, packed, or each of another GPU.

mod nearest;
mod shares;

pub use nearest::nearest;
pub use shares::{Few, Policy, Share, ShareState, shares};
