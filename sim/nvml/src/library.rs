//! Where the built driver library is.

use std::{
    env,
    path::{Path, PathBuf},
};

/// File name of the built library.
pub const FILE: &str = "libsim_nvml.so";
/// Environment variable that names the library and goes before every search.
pub const VARIABLE: &str = "LATHE_SIM_LIBRARY";

/// The library is in none of the places searched.
#[derive(Debug, thiserror::Error)]
#[error(
    "the simulated driver library {FILE} is in none of {searched:?}: build it with `cargo build`, or set {VARIABLE}"
)]
pub struct NotFound {
    /// Paths that were tried.
    pub searched: Vec<PathBuf>,
}

/// Finds the library: `LATHE_SIM_LIBRARY`, then beside the running program, in `deps/` below, in the folder above (test
/// programs live in `deps/` themselves), then in `../lib/lathe` of an installation.
pub fn locate() -> Result<PathBuf, NotFound> {
    let program = env::current_exe().ok();
    search(
        env::var_os(VARIABLE).map(PathBuf::from),
        program.as_deref().and_then(Path::parent),
    )
}

fn search(named: Option<PathBuf>, folder: Option<&Path>) -> Result<PathBuf, NotFound> {
    let searched: Vec<PathBuf> = match (named, folder) {
        (Some(named), _) => vec![named],
        (None, None) => Vec::new(),
        (None, Some(folder)) => ["", "deps", "..", "../lib/lathe"]
            .map(|sub| folder.join(sub).join(FILE))
            .into(),
    };
    searched
        .iter()
        .find(|path| path.is_file())
        .cloned()
        .ok_or(NotFound { searched })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    #[test]
    fn a_name_goes_before_the_search_and_must_exist() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), "").unwrap();
        let named = folder.path().join("missing.so");
        assert_eq!(
            search(Some(named.clone()), Some(folder.path()))
                .unwrap_err()
                .searched,
            [named]
        );
        assert_eq!(
            search(None, Some(folder.path())).unwrap(),
            folder.path().join(FILE)
        );
    }

    #[test]
    fn test_programs_find_it_beside_or_above() {
        let folder = tempfile::tempdir().unwrap();
        let deps = folder.path().join("deps");
        fs::create_dir(&deps).unwrap();
        assert_eq!(search(None, Some(&deps)).unwrap_err().searched.len(), 4);
        fs::write(folder.path().join(FILE), "").unwrap();
        assert_eq!(
            search(None, Some(&deps)).unwrap(),
            deps.join("..").join(FILE)
        );
    }
}
