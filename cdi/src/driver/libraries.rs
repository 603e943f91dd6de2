//! The driver's libraries, under all names that they have on the host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gpu::installation::LIBRARY_FOLDERS;

use crate::root::file_name;
use crate::{Error, Root};

/// Folders below that of the libraries which have some of them, or links to them.
const BELOW: [&str; 3] = ["", "vdpau", "gbm"];

/// Libraries that come with the driver under versions of their own.
const OTHER_VERSIONS: [&str; 2] = ["libnvidia-egl-", "libnvidia-nvvm70.so."];

/// A library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Library {
    /// Below the driver's root, behind all links.
    pub(super) file: PathBuf,
    /// Its own name, from the folder of libraries.
    pub(super) own_name: PathBuf,
    /// Names that lead to it, from the folder of libraries.
    pub(super) links: Vec<PathBuf>,
}

/// The folder of the libraries of this version, behind all links.
pub(super) fn folder(root: &Root, version: &str) -> Result<PathBuf, Error> {
    for library in ["libcuda", "libnvidia-ml"] {
        for folder in LIBRARY_FOLDERS {
            let file = root.resolve(format!("/{folder}/{library}.so.{version}"))?;
            if let Some(folder) = file.as_deref().and_then(Path::parent) {
                return Ok(folder.to_owned());
            }
        }
    }
    Err(Error::NoDriver {
        root: root.here("/"),
        version: version.to_owned(),
    })
}

/// The libraries in it, by name.
pub(super) fn discover(root: &Root, folder: &Path, version: &str) -> Result<Vec<Library>, Error> {
    let ours = |file: &Path| {
        let name = file_name(file);
        name.strip_suffix(version)
            .is_some_and(|stem| stem.ends_with(".so."))
            || (name.contains(".so.") && OTHER_VERSIONS.iter().any(|other| name.starts_with(other)))
    };
    let mut names: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    for below in BELOW {
        for name in root.list(folder.join(below))? {
            let path = folder.join(below).join(&name);
            // Thousands of other files lie here; a look at each link costs one call, following it costs five.
            let candidate = name.contains(".so") && (ours(&path) || root.here(&path).is_symlink());
            if !candidate {
                continue;
            }
            let Some(file) = root.resolve(&path)? else {
                continue;
            };
            if ours(&file) && root.here(&file).is_file() {
                names
                    .entry(file)
                    .or_default()
                    .push(Path::new(below).join(name));
            }
        }
    }
    let library = |(file, mut links): (PathBuf, Vec<PathBuf>)| {
        let own = links
            .iter()
            .position(|name| name.file_name() == file.file_name());
        // A file elsewhere that only links here lead to goes by its own name too.
        let own_name = own.map_or_else(|| file_name(&file).into(), |own| links.remove(own));
        Library {
            file,
            own_name,
            links,
        }
    };
    Ok(names.into_iter().map(library).collect())
}
