//! What workloads do to the hardware, and its sums over time.

use serde::{Deserialize, Serialize};

/// Activity of a workload, an instance or a GPU. The first block is fractions of what the place it runs in can do (0 to
/// 1), the second is traffic in MB/s. The same fields, summed over seconds, are the integrals that meters keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Load {
    /// Multiprocessors with at least one warp.
    pub sm: f64,
    /// Resident warps of those possible.
    pub occupancy: f64,
    /// Tensor pipe.
    pub tensor: f64,
    /// FP64 pipe.
    pub fp64: f64,
    /// FP32 pipe.
    pub fp32: f64,
    /// FP16 pipe.
    pub fp16: f64,
    /// Integer pipe.
    pub integer: f64,
    /// Memory bandwidth.
    pub dram: f64,
    /// Video encoders.
    pub encoder: f64,
    /// Video decoders.
    pub decoder: f64,
    /// JPEG engines.
    pub jpeg: f64,
    /// Optical flow.
    pub ofa: f64,
    /// PCIe, from the GPU to the host.
    pub pcie_tx: f64,
    /// PCIe, from the host to the GPU.
    pub pcie_rx: f64,
    /// NVLink, all links, sent.
    pub nvlink_tx: f64,
    /// NVLink, all links, received.
    pub nvlink_rx: f64,
}

impl Load {
    /// A training-like mix at this utilisation in percent; more than 100 counts as 100.
    pub fn compute(percent: u32) -> Self {
        let level = f64::from(percent.min(100)) / 100.0;
        Load {
            sm: level,
            occupancy: 0.45 * level,
            tensor: 0.55 * level,
            fp64: 0.0,
            fp32: 0.20 * level,
            fp16: 0.10 * level,
            integer: 0.15 * level,
            dram: 0.60 * level,
            pcie_tx: 900.0 * level,
            pcie_rx: 2400.0 * level,
            nvlink_tx: 40_000.0 * level,
            nvlink_rx: 40_000.0 * level,
            ..Load::default()
        }
    }

    fn zip(
        self,
        other: Load,
        fraction: impl Fn(f64, f64) -> f64,
        traffic: impl Fn(f64, f64) -> f64,
    ) -> Load {
        Load {
            sm: fraction(self.sm, other.sm),
            occupancy: fraction(self.occupancy, other.occupancy),
            tensor: fraction(self.tensor, other.tensor),
            fp64: fraction(self.fp64, other.fp64),
            fp32: fraction(self.fp32, other.fp32),
            fp16: fraction(self.fp16, other.fp16),
            integer: fraction(self.integer, other.integer),
            dram: fraction(self.dram, other.dram),
            encoder: fraction(self.encoder, other.encoder),
            decoder: fraction(self.decoder, other.decoder),
            jpeg: fraction(self.jpeg, other.jpeg),
            ofa: fraction(self.ofa, other.ofa),
            pcie_tx: traffic(self.pcie_tx, other.pcie_tx),
            pcie_rx: traffic(self.pcie_rx, other.pcie_rx),
            nvlink_tx: traffic(self.nvlink_tx, other.nvlink_tx),
            nvlink_rx: traffic(self.nvlink_rx, other.nvlink_rx),
        }
    }

    /// Adds a load that runs on `share` of the place: fractions shrink with it and saturate, traffic adds as it is.
    pub fn plus(self, other: Load, share: f64) -> Load {
        self.zip(
            other,
            |a, b| (a + b.clamp(0.0, 1.0) * share).min(1.0),
            |a, b| a + b.max(0.0),
        )
    }

    /// Adds `rate` held for `seconds` to an integral.
    pub fn integrate(self, rate: Load, seconds: f64) -> Load {
        self.zip(rate, |a, b| a + b * seconds, |a, b| a + b * seconds)
    }

    /// Mean rate between two integrals `seconds` apart.
    pub fn mean_since(self, earlier: Load, seconds: f64) -> Load {
        self.zip(earlier, |a, b| (a - b) / seconds, |a, b| (a - b) / seconds)
    }

    /// Whether it does anything.
    pub fn is_idle(&self) -> bool {
        *self == Load::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_and_saturate() {
        let one = Load {
            sm: 0.8,
            pcie_tx: 100.0,
            ..Load::default()
        };
        let both = Load::default().plus(one, 0.5).plus(one, 0.5);
        assert_eq!((both.sm, both.pcie_tx), (0.8, 200.0));
        assert_eq!(both.plus(one, 1.0).sm, 1.0);
    }

    #[test]
    fn a_mean_undoes_an_integral() {
        let rate = Load {
            sm: 0.5,
            nvlink_rx: 10.0,
            ..Load::default()
        };
        let sum = Load::default().integrate(rate, 4.0);
        assert_eq!((sum.sm, sum.nvlink_rx), (2.0, 40.0));
        assert_eq!(sum.mean_since(Load::default(), 4.0), rate);
    }
}
