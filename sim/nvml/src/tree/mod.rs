//! The node as files: `/sys`, `/proc`, `/dev` and the folders of the kubelet and of NFD, under the node's root.
//!
//! The parts below render the state into a map from paths to entries; this one makes the disk match, touching only what
//! differs. Who may make device nodes gets them, since a container runtime hands on nothing else: each stands for the null
//! device, harmless whatever GPU the machine has. For everybody else they are plain files.

mod dev;
mod driver;
mod pci;
mod proc;

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use crate::admin::LIBRARY_FOLDER;
use crate::model::{DriverState, Gpu, GpuInstance, Node};

/// One thing in the tree. Folders above it come by themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A folder that exists even when empty.
    Folder,
    /// A file with this content.
    File(Vec<u8>),
    /// A file that others write (`reset`): created empty, its content left alone.
    Touch(u32),
    /// A device node; the mode bits are those of the real node.
    Device(u32),
    /// The table of capability minors, which is long and never changes.
    MigMinors,
    /// A program.
    Program(String),
    /// A symbolic link to this target.
    Link(PathBuf),
}

/// Paths relative to the node's root.
pub(crate) type Tree = BTreeMap<PathBuf, Entry>;

/// Folders in which nothing but what the state asks for may lie.
const MANAGED: &[&str] = &[
    "proc/driver/nvidia/gpus",
    "proc/driver/nvidia/capabilities",
    "dev/nvidia-caps",
    "sys/bus/pci",
    "sys/devices",
];

/// Marks that files are behind the state: written before the state, removed when the files have caught up, so that the
/// next writer mends what a killed one left.
const PENDING_FILE: &str = "tree.pending";

/// Ids of GPU instances, each with those of its compute instances.
type Instances = Vec<(u32, Vec<u32>)>;

fn instances(gpu: &Gpu) -> Instances {
    let ids = |instance: &GpuInstance| {
        (
            instance.id,
            instance.compute.iter().map(|compute| compute.id).collect(),
        )
    };
    gpu.mig.instances.iter().map(ids).collect()
}

/// What of the state shows in files, but for the instances. Two states with the same frame differ in no other file.
#[derive(PartialEq)]
struct Frame<'a> {
    driver: (DriverState, &'a str),
    boots: u32,
    removed: Vec<bool>,
    processes: Vec<(u32, &'a str)>,
}

fn frame(node: &Node) -> Frame<'_> {
    Frame {
        driver: (node.driver.state, &node.driver.version),
        boots: node.boots,
        removed: node.gpus.iter().map(|gpu| gpu.removed).collect(),
        processes: node
            .workloads
            .iter()
            .map(|workload| (workload.pid, workload.name.as_str()))
            .collect(),
    }
}

/// Positions of the GPUs whose instances differ.
fn recut<'a>(before: &'a Node, after: &'a Node) -> impl Iterator<Item = usize> + 'a {
    let pairs = before.gpus.iter().zip(&after.gpus).enumerate();
    pairs
        .filter(|(_, (old, new))| instances(old) != instances(new))
        .map(|(position, _)| position)
}

/// Whether the driver's own files are there.
fn driver_present(node: &Node) -> bool {
    node.driver.state != DriverState::Unloaded
}

/// What changes while a node runs.
fn moving(node: &Node) -> Tree {
    let mut tree = Tree::new();
    pci::render(node, &mut tree);
    proc::render(node, &mut tree);
    dev::render(node, &mut tree);
    for gpu in &node.gpus {
        render_instances(node, gpu, &mut tree);
    }
    tree
}

/// The files of one GPU's instances.
fn render_instances(node: &Node, gpu: &Gpu, tree: &mut Tree) {
    if driver_present(node) && !gpu.removed {
        proc::render_instances(gpu, tree);
    }
    dev::render_instances(gpu, tree);
}

/// What never changes.
fn fixed(node: &Node) -> Tree {
    let mut tree = Tree::new();
    for folder in [
        "etc/kubernetes/node-feature-discovery/features.d",
        "var/lib/kubelet/device-plugins",
        "var/lib/kubelet/plugins",
        "var/lib/kubelet/plugins_registry",
        "var/lib/kubelet/pod-resources",
        "run/nvidia",
        "var/run/cdi",
    ] {
        tree.insert(folder.into(), Entry::Folder);
    }
    let dmi = [
        ("product_name", &node.machine.product),
        ("sys_vendor", &node.machine.vendor),
    ];
    for (name, value) in dmi {
        tree.insert(
            format!("sys/class/dmi/id/{name}").into(),
            Entry::File(format!("{value}\n").into_bytes()),
        );
    }
    tree.insert(
        "usr/bin/nvidia-smi".into(),
        Entry::Program(reset_program(node)),
    );
    driver::render(&node.driver.version, &mut tree);
    tree
}

/// The node's `nvidia-smi`: hands over to the program that made the node. NVML has no reset, so this is how clients ask
/// for one.
fn reset_program(node: &Node) -> String {
    let command = node.command.as_deref().unwrap_or(Path::new("lathe"));
    format!(
        "#!/bin/sh\ncommand={}\nexec \"${{LATHE_SIM_COMMAND:-$command}}\" sim nvidia-smi --root {} \"$@\"\n",
        quoted(command),
        quoted(&node.root)
    )
}

/// A path as one word of a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

/// Writes the whole tree of a new node; a state without a root has none.
pub(crate) fn create(node: &Node) -> io::Result<()> {
    if node.root.as_os_str().is_empty() {
        return Ok(());
    }
    let mut tree = fixed(node);
    tree.append(&mut moving(node));
    apply(&node.root, &Tree::new(), &tree)
}

/// The node's root as this process sees it: a container has it mounted elsewhere, and the state's folder with it.
fn root_here<'a>(folder: &'a Path, node: &'a Node) -> &'a Path {
    let depth = Path::new(LIBRARY_FOLDER).components().count();
    let above = folder.ancestors().nth(depth);
    above
        .filter(|_| folder.ends_with(LIBRARY_FOLDER))
        .unwrap_or(&node.root)
}

/// Announces in the state's folder that files may lag behind the state from now on, if the change from `before` to
/// `after` shows in them. Returns whether `follow` has to be called.
pub(crate) fn announce(folder: &Path, before: &Node, after: &Node) -> io::Result<bool> {
    let same = || frame(before) == frame(after) && recut(before, after).next().is_none();
    if after.root.as_os_str().is_empty() || same() {
        return Ok(false);
    }
    fs::write(folder.join(PENDING_FILE), "")?;
    Ok(true)
}

/// Brings the files from one state to the next.
pub(crate) fn follow(folder: &Path, before: &Node, after: &Node) -> io::Result<()> {
    let root = root_here(folder, after);
    if frame(before) == frame(after) {
        // By far the most frequent change, and the one whose time counts.
        let (mut from, mut to) = (Tree::new(), Tree::new());
        for position in recut(before, after) {
            render_instances(before, &before.gpus[position], &mut from);
            render_instances(after, &after.gpus[position], &mut to);
        }
        apply(root, &from, &to)?;
    } else {
        apply(root, &moving(before), &moving(after))?;
    }
    fs::remove_file(folder.join(PENDING_FILE))
}

/// Mends the files when a writer died between the state and them.
pub(crate) fn mend(folder: &Path, node: &Node) -> io::Result<()> {
    let pending = folder.join(PENDING_FILE);
    if !pending.try_exists()? {
        return Ok(());
    }
    let root = root_here(folder, node);
    let mut found = Tree::new();
    for managed in MANAGED {
        scan(root, Path::new(managed), &mut found)?;
    }
    apply(root, &found, &moving(node))?;
    fs::remove_file(pending)
}

/// Everything below a folder, as entries whose content is unknown and so differs from every wanted one.
fn scan(root: &Path, folder: &Path, found: &mut Tree) -> io::Result<()> {
    let listing = match fs::read_dir(root.join(folder)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        listing => listing?,
    };
    for entry in listing {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            scan(root, &path, found)?;
        } else {
            found.insert(path, Entry::Folder);
        }
    }
    Ok(())
}

fn apply(root: &Path, from: &Tree, to: &Tree) -> io::Result<()> {
    for path in from.keys().filter(|path| !to.contains_key(*path)) {
        remove(root, path)?;
    }
    for (path, entry) in to
        .iter()
        .filter(|(path, entry)| from.get(*path) != Some(*entry))
    {
        let target = root.join(path);
        let failed = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", target.display()))
        };
        write(&target, entry).map_err(failed)?;
    }
    Ok(())
}

fn write(target: &Path, entry: &Entry) -> io::Result<()> {
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    match entry {
        Entry::Folder => fs::create_dir_all(target),
        Entry::File(content) => replace(target, content, 0o644),
        Entry::MigMinors => replace(target, proc::mig_minors().as_bytes(), 0o644),
        Entry::Program(text) => replace(target, text.as_bytes(), 0o755),
        Entry::Touch(mode) => {
            if !target.try_exists()? {
                fs::File::create(target)?;
            }
            fs::set_permissions(target, fs::Permissions::from_mode(*mode))
        }
        Entry::Device(mode) => {
            if target.symlink_metadata().is_err() {
                device(target)?;
            }
            fs::set_permissions(target, fs::Permissions::from_mode(*mode))
        }
        Entry::Link(to) => {
            let temporary = beside(target);
            match fs::remove_file(&temporary) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            symlink(to, &temporary)?;
            fs::rename(&temporary, target)
        }
    }
}

/// A device node, or a plain file for who may make none (and where a file system has none).
fn device(target: &Path) -> io::Result<()> {
    const NULL: (u32, u32) = (1, 3);
    let number = rustix::fs::makedev(NULL.0, NULL.1);
    let kind = rustix::fs::FileType::CharacterDevice;
    match rustix::fs::mknodat(
        rustix::fs::CWD,
        target,
        kind,
        rustix::fs::Mode::RUSR,
        number,
    ) {
        Ok(()) => Ok(()),
        Err(_) => fs::File::create(target).map(drop),
    }
}

/// Readers see the old content or the new one.
fn replace(target: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let temporary = beside(target);
    fs::write(&temporary, content)?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(mode))?;
    fs::rename(&temporary, target)
}

fn beside(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.new"))
}

/// Removes an entry, and the folders above it that it leaves empty, up to the managed ones.
fn remove(root: &Path, path: &Path) -> io::Result<()> {
    let target = root.join(path);
    let removed = if target.symlink_metadata().is_ok_and(|data| data.is_dir()) {
        fs::remove_dir(&target)
    } else {
        fs::remove_file(&target)
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    for parent in path
        .ancestors()
        .skip(1)
        .filter(|parent| parent.components().count() > 1)
    {
        if MANAGED.iter().any(|managed| Path::new(managed) == parent)
            || fs::remove_dir(root.join(parent)).is_err()
        {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
