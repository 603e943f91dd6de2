//! The boards that come with the simulator, one YAML file each.
//!
//! The numbers are captures and vendor documents; a field that is an estimate is listed in the file under `inferred`.

use crate::model::Board;

/// A board that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No board of this name.
    #[error("there is no board `{0}`; there are {list}", list = names().collect::<Vec<_>>().join(", "))]
    Unknown(String),
    /// The board's text is not a board.
    #[error("board `{name}`: {reason}")]
    Malformed {
        /// Name of the board.
        name: String,
        /// What is wrong, with line and column.
        reason: String,
    },
}

macro_rules! boards {
    ($($name:literal),+ $(,)?) => {
        const BOARDS: &[(&str, &str)] = &[$(($name, include_str!(concat!("../boards/", $name, ".yaml")))),+];
    };
}

boards![
    "a30-24gb",
    "a100-sxm4-40gb",
    "a100-pcie-40gb",
    "a100-sxm4-80gb",
    "a100-pcie-80gb",
    "h100-sxm5-80gb",
    "h100-pcie-80gb",
    "h100-nvl-94gb",
    "gh200-96gb",
    "gh200-144gb",
    "h200-sxm-141gb",
    "h200-nvl-141gb",
    "b200-180gb",
    "gb200-186gb",
    "b300-269gb",
    "gb300-278gb",
    "rtx-pro-6000-96gb",
    "l40s-48gb",
    "t4-16gb",
];

/// Boards that are only part of a preset.
const PARTS: &[(&str, &str)] = &[("dgx-display", include_str!("../boards/dgx-display.yaml"))];

/// Names of the boards, in the order of their generations.
pub fn names() -> impl Iterator<Item = &'static str> {
    BOARDS.iter().map(|(name, _)| *name)
}

/// The board of a name.
pub fn load(name: &str) -> Result<Board, Error> {
    let (_, text) = BOARDS
        .iter()
        .chain(PARTS)
        .find(|(known, _)| *known == name)
        .ok_or_else(|| Error::Unknown(name.to_owned()))?;
    parse(name, text)
}

/// A board from YAML text.
pub fn parse(name: &str, text: &str) -> Result<Board, Error> {
    serde_saphyr::from_str(text).map_err(|error| Error::Malformed {
        name: name.to_owned(),
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests;
