//! Folders that stand for `/`: where a process sees them, and where the container runtime does.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use crate::Error;

/// Each takes microseconds and fails only when a rename falls into it.
const TRIES: u32 = 128;

/// A folder that stands for `/`, under its two names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    here: PathBuf,
    host: PathBuf,
}

impl Root {
    /// What this process sees at `here`, the host has at `host`.
    pub fn new(here: impl Into<PathBuf>, host: impl Into<PathBuf>) -> Self {
        Self {
            here: here.into(),
            host: host.into(),
        }
    }

    /// A folder that has one name for both.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self::new(path.clone(), path)
    }

    /// Where this process sees a path of the root.
    pub fn here(&self, inside: impl AsRef<Path>) -> PathBuf {
        below(&self.here, inside.as_ref())
    }

    /// Where the host, and so the container runtime, has a path of the root.
    pub fn on_host(&self, inside: impl AsRef<Path>) -> PathBuf {
        below(&self.host, inside.as_ref())
    }

    /// The path behind all symbolic links, followed as they would be with the root as `/`: an absolute link stays below the root
    /// and `..` does not leave it. `None` when there is nothing, or its path is not UTF-8: a spec cannot have it.
    pub(crate) fn resolve(&self, inside: impl AsRef<Path>) -> Result<Option<PathBuf>, Error> {
        let inside = inside.as_ref();
        let failed = |source: io::Error| Error::Read {
            path: self.here(inside),
            source,
        };
        let root = match rustix::fs::open(
            &self.here,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        ) {
            Ok(root) => root,
            Err(error) if nothing_there(error.kind()) => return Ok(None),
            Err(error) => return Err(failed(error.into())),
        };
        let found = match open_inside(&root, inside) {
            Ok(found) => found,
            // A link to itself leads nowhere either.
            Err(Errno::LOOP) => return Ok(None),
            Err(error) if nothing_there(error.kind()) => return Ok(None),
            Err(error) => return Err(failed(error.into())),
        };
        // The kernel knows the path that it opened; comparing with the root's own takes links above the root out of both.
        let name = |fd: i32| fs::read_link(format!("/proc/self/fd/{fd}"));
        let (root, found) = (
            name(root.as_raw_fd()).map_err(failed)?,
            name(found.as_raw_fd()).map_err(failed)?,
        );
        Ok(found
            .strip_prefix(&root)
            .ok()
            .filter(|path| path.to_str().is_some())
            .map(|path| Path::new("/").join(path)))
    }

    /// Whether there is something at this path, behind all links.
    pub(crate) fn has(&self, inside: impl AsRef<Path>) -> Result<bool, Error> {
        Ok(self.resolve(inside)?.is_some())
    }

    /// Names in a folder, sorted; none when there is no such folder. Names that are not UTF-8 are left out: a spec cannot have them.
    pub(crate) fn list(&self, inside: impl AsRef<Path>) -> Result<Vec<String>, Error> {
        let Some(folder) = self.resolve(inside)? else {
            return Ok(Vec::new());
        };
        let path = self.here(folder);
        let failed = |source: io::Error| Error::Read {
            path: path.clone(),
            source,
        };
        let listing = match fs::read_dir(&path) {
            Ok(listing) => listing,
            Err(error) if nothing_there(error.kind()) => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut names = Vec::new();
        for entry in listing {
            let name = entry.map_err(failed)?.file_name();
            names.extend(name.to_str().map(str::to_owned));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// The content of a file; `None` when there is no such file.
    pub(crate) fn read(&self, inside: impl AsRef<Path>) -> Result<Option<String>, Error> {
        let Some(file) = self.resolve(inside)? else {
            return Ok(None);
        };
        let path = self.here(file);
        match fs::read_to_string(&path) {
            Ok(content) => Ok(Some(content)),
            Err(error) if nothing_there(error.kind()) => Ok(None),
            Err(source) => Err(Error::Read { path, source }),
        }
    }
}

/// Opens a path as it is with `root` as `/`. The kernel gives up when something anywhere is renamed or mounted while it goes up a
/// `..`; all it asks for is another try.
fn open_inside(root: &OwnedFd, inside: &Path) -> rustix::io::Result<OwnedFd> {
    let open = || {
        openat2(
            root,
            inside,
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        )
    };
    let mut found = open();
    for _ in 1..TRIES {
        match found {
            Err(Errno::AGAIN | Errno::INTR) => found = open(),
            _ => break,
        }
    }
    found
}

fn below(root: &Path, inside: &Path) -> PathBuf {
    root.join(inside.strip_prefix("/").unwrap_or(inside))
}

fn nothing_there(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// A path as text of a spec.
pub(crate) fn text(path: &Path) -> String {
    path.as_os_str().to_string_lossy().into_owned()
}

/// The last part of a path.
pub(crate) fn file_name(path: &Path) -> &str {
    path.file_name().and_then(OsStr::to_str).unwrap_or_default()
}

/// The roots of a node. On most, all three are `/`; a driver in a container image of its own has its files, and perhaps its device
/// nodes, elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// The node: `/proc`, `/sys`, hooks.
    pub node: Root,
    /// Where the driver is installed.
    pub driver: Root,
    /// Where `/dev` is.
    pub devices: Root,
}

impl Roots {
    /// Everything below one folder.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let root = Root::at(path);
        Self {
            node: root.clone(),
            driver: root.clone(),
            devices: root,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::os::unix::fs::symlink;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/", "/usr/lib", "/usr/lib")]
    #[case("/run/nvidia/driver", "/usr/lib", "/run/nvidia/driver/usr/lib")]
    #[case("/run/nvidia/driver/", "usr/lib", "/run/nvidia/driver/usr/lib")]
    fn paths_on_the_host(#[case] host: &str, #[case] inside: &str, #[case] wanted: &str) {
        assert_eq!(
            Root::new("/driver-root", host).on_host(inside),
            Path::new(wanted)
        );
    }

    #[test]
    fn links_stay_below_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("outside");
        fs::write(&outside, "").unwrap();
        let here = folder.path().join("root");
        fs::create_dir_all(here.join("usr/lib")).unwrap();
        fs::write(here.join("usr/lib/a.so.1"), "").unwrap();
        symlink("usr/lib", here.join("lib")).unwrap();
        symlink("/usr/lib/a.so.1", here.join("usr/lib/a.so")).unwrap();
        symlink(
            "../../../../../../usr/lib/a.so.1",
            here.join("usr/lib/up.so"),
        )
        .unwrap();
        symlink(&outside, here.join("usr/lib/out.so")).unwrap();
        symlink("self", here.join("self")).unwrap();
        let root = Root::at(&here);
        for name in [
            "usr/lib/a.so.1",
            "/lib/a.so",
            "lib/up.so",
            "lib/../lib/a.so",
        ] {
            let found = root.resolve(name).unwrap();
            assert_eq!(
                found.as_deref(),
                Some(Path::new("/usr/lib/a.so.1")),
                "{name}"
            );
        }
        for name in ["lib/out.so", "self", "nothing", "usr/lib/a.so.1/b"] {
            assert_eq!(root.resolve(name).unwrap(), None, "{name}");
        }
    }

    #[test]
    fn a_linked_root_is_the_folder_behind_the_link() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("root")).unwrap();
        fs::write(folder.path().join("root/a"), "").unwrap();
        symlink("root", folder.path().join("link")).unwrap();
        let root = Root::at(folder.path().join("link"));
        assert_eq!(
            root.resolve("/a").unwrap().as_deref(),
            Some(Path::new("/a"))
        );
    }

    #[test]
    fn a_root_that_is_not_there_is_empty() {
        let root = Root::at("/nothing/here");
        assert_eq!(root.resolve("/a").unwrap(), None);
        assert_eq!(root.list("/").unwrap(), Vec::<String>::new());
        assert_eq!(root.read("/a").unwrap(), None);
    }

    #[test]
    fn renames_elsewhere_do_not_disturb() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().join("root");
        fs::create_dir_all(here.join("a/b")).unwrap();
        fs::write(here.join("c"), "").unwrap();
        symlink("../../c", here.join("a/b/link")).unwrap();
        let stop = AtomicBool::new(false);
        let started = Barrier::new(2);
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        fs::create_dir(&one).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                started.wait();
                while !stop.load(Ordering::Relaxed) {
                    fs::rename(&one, &other).unwrap();
                    fs::rename(&other, &one).unwrap();
                }
            });
            started.wait();
            let root = Root::at(&here);
            let all: Result<Vec<_>, _> = (0..20_000).map(|_| root.resolve("a/b/link")).collect();
            stop.store(true, Ordering::Relaxed);
            let found = all.unwrap();
            assert!(
                found
                    .iter()
                    .all(|path| path.as_deref() == Some(Path::new("/c")))
            );
        });
    }
}
