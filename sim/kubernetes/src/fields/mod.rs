//! Who set which field: schemas that say how fields merge, sets of field paths, and the `managedFields` of objects.

pub(crate) mod compare;
pub(crate) mod managers;
#[cfg(test)]
mod model_test;
pub(crate) mod schema;
pub(crate) mod set;
