//! The lathe binary.
fn main() {}
