//! The tree against what a driver's files look like.
