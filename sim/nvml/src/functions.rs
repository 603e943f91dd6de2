//! The names of the functions that the driver library exports.

const LIST: &str = include_str!("../symbols.txt");

/// All of them, older versions included, in no order that means anything.
pub fn all() -> impl Iterator<Item = &'static str> {
    LIST.lines().filter(|line| !line.starts_with('#'))
}
