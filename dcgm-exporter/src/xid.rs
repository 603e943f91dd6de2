//! What XID errors mean, for the `err_msg` label. dcgm-exporter's own texts differ in wording, so match on `err_code`.

/// A short meaning; for a number that is not in the catalogue, that it is not.
pub(crate) fn meaning(xid: u32) -> &'static str {
    gpu::xid_meaning(u64::from(xid)).unwrap_or("unknown error")
}
