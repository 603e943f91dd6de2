//! What the dispatch path and the trace can see of an argument without knowing the function it belongs to.

use serde_json::Value;

use super::{
    handle::{Handle, Named},
    pointer::{In, Out, Text},
};

/// An argument of an exported function.
pub(super) trait Argument {
    /// How the trace shows it; `None` for places where the caller wants an answer.
    fn traced(&self) -> Option<Value>;

    /// The handle, when it is one: the first of a call says which GPU the call is about.
    fn handle(&self) -> Option<Handle> {
        None
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Argument for $number {
            fn traced(&self) -> Option<Value> {
                Some(Value::from(*self))
            }
        }
    )*};
}
numbers! { i32 u32 u64 }

impl<T> Argument for Out<T> {
    fn traced(&self) -> Option<Value> {
        None
    }
}

impl<T: Copy + Shown> Argument for In<T> {
    fn traced(&self) -> Option<Value> {
        Some(self.get().map_or(Value::Null, |value| value.shown()))
    }
}

impl Argument for Text {
    fn traced(&self) -> Option<Value> {
        Some(self.get().map_or(Value::Null, Value::from))
    }
}

impl Argument for Handle {
    fn traced(&self) -> Option<Value> {
        Some(Value::from(match self.named() {
            Some(Named::Gpu { gpu }) => format!("gpu{gpu}"),
            Some(Named::MigDevice {
                gpu,
                instance,
                compute,
            }) => format!("gpu{gpu}/mig{instance}.{compute}"),
            Some(Named::Instance { gpu, instance }) => format!("gpu{gpu}/gi{instance}"),
            Some(Named::Compute {
                gpu,
                instance,
                compute,
            }) => format!("gpu{gpu}/gi{instance}/ci{compute}"),
            Some(Named::EventSet { number } | Named::SystemEventSet { number }) => {
                format!("set{number}")
            }
            Some(Named::Sample { number }) => format!("sample{number}"),
            None => format!("{:#x}", self.bits()),
        }))
    }

    fn handle(&self) -> Option<Handle> {
        Some(*self)
    }
}

/// A struct passed in, as the trace shows it.
pub(super) trait Shown {
    /// The fields worth reading.
    fn shown(&self) -> Value;
}
