//! What the driver installed, and where a container gets it.
//!
//! # How a program in a container finds the driver's libraries
//! NVIDIA's tools mount each library at its path on the host, under its full name (`libcuda.so.570.124.06`), and have an OCI hook
//! make the links (`libcuda.so.1`) and rebuild the image's `ld.so.cache`. Where the hook program is installed and allowed, specs made
//! here do the same. Where it is not, mounts alone have to do:
//!
//! * **Links** cannot be mounted, but a file can be mounted under each name that has a link on the host. All names are one inode,
//!   and the dynamic loader loads an inode once, so that two names of one library do not become two libraries.
//! * **The loader looks, after its cache, in folders that are built into it**: `/usr/lib/<triplet>` on Debian, Ubuntu and what is made
//!   from them, `/usr/lib64` on Red Hat, SUSE and theirs. Which of the two an image has is unknown before it runs, and the other
//!   folder means nothing to it. So each library appears in both, wherever it lies on the host: a container looks the same on
//!   every node.
//! * `LD_LIBRARY_PATH` is left alone: environment in a spec replaces the image's own value, on which images depend.
//! * **`libcuda.so` appears in `/usr/local/nvidia/lib64` as well.** NVIDIA's images, and those made from them, have that folder in
//!   their `LD_LIBRARY_PATH`; programs that look the library up by themselves, in that variable or in what `ldconfig -p` prints
//!   (Triton's compiler), find it there, where nothing rebuilds the cache.
//!
//! What remains without hooks: `ldconfig -p` does not list the driver, and an image whose own cache names another `libcuda.so.1`, in
//! another folder, loads that one. Images without glibc cannot load the driver either way.
//!
//! Programs appear in `/usr/bin`, everything else at its own path. 32-bit libraries and X.org modules are left out.

mod files;
mod libraries;

use std::path::{Path, PathBuf};

use libraries::Library;

use crate::hooks::{Hooks, LinkInContainer};
use crate::root::{file_name, text};
use crate::spec::{ContainerEdits, Mount};
use crate::{Error, Root};

/// Where NVIDIA's images look first.
const NVIDIA_FOLDER: &str = "/usr/local/nvidia/lib64";

/// The folders that are built into the loaders of both families of distributions.
#[cfg(target_arch = "aarch64")]
const LOADER_FOLDERS: [&str; 2] = ["/usr/lib/aarch64-linux-gnu", "/usr/lib64"];
/// The folders that are built into the loaders of both families of distributions.
#[cfg(not(target_arch = "aarch64"))]
const LOADER_FOLDERS: [&str; 2] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"];

/// Read-only, and good for nothing but reading and running.
pub(crate) const READ_ONLY: &[&str] = &["ro", "nosuid", "nodev", "rbind", "rprivate"];

/// Sockets: connecting to one takes write access.
const SOCKET: &[&str] = &["nosuid", "nodev", "rbind", "rprivate", "noexec"];

/// A file or folder of the driver and where a container gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Placed {
    /// Below the driver's root, behind all links.
    file: PathBuf,
    /// In the container.
    at: PathBuf,
}

/// The files of an installed driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverFiles {
    root: Root,
    version: String,
    folder: PathBuf,
    libraries: Vec<Library>,
    files: Vec<Placed>,
    sockets: Vec<Placed>,
}

impl DriverFiles {
    /// Finds what a driver of this version installed below its root. `node` is where `/sys` is.
    pub fn discover(root: &Root, node: &Root, version: &str) -> Result<Self, Error> {
        let folder = libraries::folder(root, version)?;
        let mut found = files::programs(root)?;
        found.extend(files::firmware(root, node, version)?);
        found.extend(files::configuration(root)?);
        Ok(Self {
            libraries: libraries::discover(root, &folder, version)?,
            sockets: files::sockets(root)?,
            root: root.clone(),
            version: version.to_owned(),
            folder,
            files: found,
        })
    }

    /// The driver's version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// What every container that uses the driver gets of it.
    pub fn edits(&self, hooks: Option<&Hooks>) -> ContainerEdits {
        let cached = hooks.filter(|hooks| hooks.update_cache());
        let mut mounts = Vec::new();
        let mut mount = |file: &Path, at: &Path, options: &[&str]| {
            mounts.push(Mount {
                host_path: text(&self.root.on_host(file)),
                container_path: text(at),
                options: options.iter().map(|option| (*option).to_owned()).collect(),
                kind: None,
            });
        };
        for library in &self.libraries {
            let places = match cached {
                Some(_) => vec![self.folder.join(&library.own_name)],
                None => without_cache(library),
            };
            for at in places {
                mount(&library.file, &at, READ_ONLY);
            }
        }
        for placed in &self.files {
            mount(&placed.file, &placed.at, READ_ONLY);
        }
        for placed in &self.sockets {
            mount(&placed.file, &placed.at, SOCKET);
        }
        mounts.sort_by(|a, b| a.container_path.cmp(&b.container_path));
        let folder = cached.map_or(LOADER_FOLDERS[0].into(), |_| text(&self.folder));
        ContainerEdits {
            env: vec![
                // Scripts of images look libcuda up here; NVIDIA's tools set it too.
                format!("NVIDIA_CTK_LIBCUDA_DIR={folder}"),
                // Keeps NVIDIA's runtime, where it is the node's default, from adding what an image asks for in this variable.
                "NVIDIA_VISIBLE_DEVICES=void".into(),
            ],
            hooks: hooks.map_or_else(Vec::new, |hooks| {
                hooks.of_driver(&self.links(), &self.folders())
            }),
            mounts,
            ..ContainerEdits::default()
        }
    }

    /// The links that `ldconfig` does not make: it makes one per library, named as the library says.
    fn links(&self) -> Vec<LinkInContainer> {
        let of_library = |library: &Library| {
            let links = library
                .links
                .iter()
                .filter(|name| !made_by_ldconfig(library, name));
            links
                .map(|name| LinkInContainer {
                    at: self.folder.join(name),
                    target: relative(name, &library.own_name),
                })
                .collect::<Vec<_>>()
        };
        self.libraries.iter().flat_map(of_library).collect()
    }

    /// The folders in which a container that has a cache finds libraries.
    fn folders(&self) -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> = self
            .libraries
            .iter()
            .filter_map(|library| Some(self.folder.join(&library.own_name).parent()?.to_owned()))
            .collect();
        folders.sort();
        folders.dedup();
        folders
    }
}

/// Every name of a library in every folder where a loader without a cache looks.
fn without_cache(library: &Library) -> Vec<PathBuf> {
    let names = || library.links.iter().chain([&library.own_name]);
    let mut places: Vec<PathBuf> = LOADER_FOLDERS
        .iter()
        .flat_map(|folder| names().map(|name| Path::new(folder).join(name)))
        .collect();
    if stem(&library.own_name) == "libcuda" {
        let links = library.links.iter();
        places.extend(links.map(|name| Path::new(NVIDIA_FOLDER).join(name)));
    }
    places
}

/// `libcuda.so.1` of `libcuda.so.570.124.06`: same folder, same stem, and something after `.so`.
fn made_by_ldconfig(library: &Library, link: &Path) -> bool {
    link.parent() == library.own_name.parent()
        && stem(link) == stem(&library.own_name)
        && !file_name(link).ends_with(".so")
}

/// What comes before `.so`.
fn stem(name: &Path) -> &str {
    let name = file_name(name);
    name.split_once(".so").map_or(name, |(stem, _)| stem)
}

/// What a link says that leads from one name to another in the same folder or in the one above.
fn relative(link: &Path, file: &Path) -> PathBuf {
    let up = link.components().count().saturating_sub(1);
    let mut target: PathBuf = std::iter::repeat_n("..", up).collect();
    if link.parent() == file.parent() {
        target = PathBuf::from(file_name(file));
    } else {
        target.push(file);
    }
    target
}

#[cfg(test)]
mod tests;
