//! Where a node keeps its files: the driver library, programs, and paths under the node root.

use std::path::{Component, Path, PathBuf};

use gpu::installation::{LIBRARY_FOLDERS, PROGRAM_FOLDERS};

/// The name that every client loads; the file behind it is `libnvidia-ml.so.<driver version>`.
pub(crate) const SONAME: &str = "libnvidia-ml.so.1";

/// How many symbolic links are followed before giving up, as the kernel does (`ELOOP`).
const MAX_LINKS: usize = 40;

/// The driver library under `root`, or the folders that were searched for it.
pub(crate) fn library(root: &Path) -> Result<PathBuf, Vec<PathBuf>> {
    find(root, &LIBRARY_FOLDERS, SONAME).ok_or_else(|| {
        LIBRARY_FOLDERS
            .iter()
            .map(|folder| root.join(folder))
            .collect()
    })
}

/// The driver library under `root`, where there is one. The driver's other libraries lie beside it.
#[must_use]
pub fn driver_library(root: &Path) -> Option<PathBuf> {
    library(root).ok()
}

/// A program of the driver under `root`, such as `nvidia-cuda-mps-control`, where there is one.
#[must_use]
pub fn program(root: &Path, name: &str) -> Option<PathBuf> {
    find(root, &PROGRAM_FOLDERS, name)
}

fn find(root: &Path, folders: &[&str], name: &str) -> Option<PathBuf> {
    folders.iter().find_map(|folder| {
        let path = resolve(root, &Path::new(folder).join(name))?;
        path.is_file().then_some(path)
    })
}

/// Follows symbolic links as they would be followed with `root` as `/`: on a mounted root file system an absolute link
/// points into that file system, not into ours, and `..` does not leave it.
fn resolve(root: &Path, relative: &Path) -> Option<PathBuf> {
    if root == Path::new("/") {
        return Some(root.join(relative));
    }
    let mut inside = PathBuf::new();
    let mut rest: Vec<PathBuf> = vec![relative.to_path_buf()];
    let mut links = 0;
    while let Some(path) = rest.pop() {
        let mut components = path.components();
        let Some(first) = components.next() else {
            continue;
        };
        let after = components.as_path();
        if !after.as_os_str().is_empty() {
            rest.push(after.to_path_buf());
        }
        match first {
            Component::RootDir => inside.clear(),
            Component::ParentDir => {
                inside.pop();
            }
            Component::Normal(name) => {
                let candidate = inside.join(name);
                match std::fs::read_link(root.join(&candidate)) {
                    Ok(target) => {
                        links += 1;
                        if links > MAX_LINKS {
                            return None;
                        }
                        rest.push(target);
                    }
                    Err(_) => inside = candidate,
                }
            }
            Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Some(root.join(inside))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn node(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        root
    }

    #[test]
    fn the_library_is_found_in_the_usual_folders() {
        for folder in LIBRARY_FOLDERS {
            let file = format!("{folder}/libnvidia-ml.so.1");
            let root = node(&[&file]);
            assert_eq!(library(root.path()), Ok(root.path().join(file)));
        }
    }

    #[test]
    fn a_missing_library_tells_where_it_was_looked_for() {
        let root = node(&[]);
        let searched = library(root.path()).unwrap_err();
        assert!(searched.contains(&root.path().join("usr/lib64")));
    }

    #[test]
    fn absolute_links_stay_under_the_root() {
        let root = node(&["usr/lib64/libnvidia-ml.so.580.1"]);
        symlink(
            "/usr/lib64/libnvidia-ml.so.580.1",
            root.path().join("usr/lib64/libnvidia-ml.so.1"),
        )
        .unwrap();
        assert_eq!(
            library(root.path()),
            Ok(root.path().join("usr/lib64/libnvidia-ml.so.580.1"))
        );
    }

    #[test]
    fn linked_folders_and_parent_links_stay_under_the_root() {
        let root = node(&["data/lib/libnvidia-ml.so.1"]);
        fs::create_dir_all(root.path().join("usr")).unwrap();
        symlink("../../../../data/lib", root.path().join("usr/lib64")).unwrap();
        assert_eq!(
            library(root.path()),
            Ok(root.path().join("data/lib/libnvidia-ml.so.1"))
        );
    }

    #[test]
    fn a_link_to_itself_ends() {
        let root = node(&["usr/lib64/x"]);
        let link = root.path().join("usr/lib64/libnvidia-ml.so.1");
        symlink("libnvidia-ml.so.1", link).unwrap();
        assert!(library(root.path()).is_err());
    }
}
