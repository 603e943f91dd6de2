//! What a hardware event means for devices: whether its XID matters ([`Xids`]) and whom it hits ([`EventPlace`]).

mod place;
mod xids;

pub use place::EventPlace;
pub use xids::{IGNORED, Xids};
