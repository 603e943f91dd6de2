//! How help is ordered: what a command takes itself comes first, what all commands take comes last.

/// Where help lists the flags about logs.
pub(crate) const LOGGING: &str = "Logging";

/// Place of a flag that a group of commands shares. clap numbers a command's own flags from 0, and puts `--help` at 999.
pub(crate) const SHARED: usize = 900;
