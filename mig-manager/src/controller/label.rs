//! The labels the controller reads and writes on its Node. Names and values are NVIDIA's, so that whatever watches them
//! keeps working.

/// The label that says which configuration the node shall have.
pub const CONFIG: &str = "nvidia.com/mig.config";

/// The label that says how far the controller is with it.
pub const STATE: &str = "nvidia.com/mig.config.state";

/// The values of [`STATE`]. NVIDIA's manager has a fourth, `rebooting`, for changes that need a reboot; this controller
/// does not reboot a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A change runs, or waits for the driver.
    Pending,
    /// The GPUs are cut as [`CONFIG`] says.
    Success,
    /// They are not; an Event says why, and it is tried again.
    Failed,
}

impl Progress {
    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Success => "success",
            Self::Failed => "failed",
        }
    }
}
