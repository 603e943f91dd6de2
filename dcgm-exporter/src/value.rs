//! What was read: values, and the entities they belong to.

/// One value, printed as DCGM's type of the field prints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// An integer.
    Int(u64),
    /// A number with six decimals.
    Double(f64),
    /// The number of an XID error; it brings two labels of its own.
    Xid(u32),
}

/// A GPU or a GPU instance with the values of every family, in the order of the families; `None` is absent.
#[derive(Clone, Debug, PartialEq)]
pub struct Entity {
    /// The labels of its samples, rendered, without braces.
    pub labels: String,
    /// The ids by which pods hold it.
    pub ids: Vec<String>,
    /// One slot per family.
    pub values: Vec<Option<Value>>,
}

/// A driver call that failed on a GPU, and not because the hardware lacks what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The GPU's index.
    pub gpu: u32,
    /// Its UUID, when it is known.
    pub uuid: Option<String>,
    /// The call, or what several of them read.
    pub call: String,
    /// NVML's name of the code, or what stands for it when the call did not return.
    pub code: String,
}

/// Stands for a code where a GPU's layout changed again and again while it was read.
const CHANGING: &str = "CHANGING";

impl Failure {
    /// The layout of a GPU changed again and again while it was read.
    pub(crate) fn changing(gpu: u32, uuid: Option<String>) -> Self {
        Self {
            gpu,
            uuid,
            call: "MIG devices".to_owned(),
            code: CHANGING.to_owned(),
        }
    }

    /// Whether it may come from a change of the layout in the middle of a reading: a handle then names nothing any more.
    pub(crate) fn is_fleeting(&self) -> bool {
        matches!(
            self.code.as_str(),
            CHANGING | "INVALID_ARGUMENT" | "NOT_FOUND"
        )
    }
}
