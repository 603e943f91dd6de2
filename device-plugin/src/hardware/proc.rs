//! What the driver shows in `/proc` without being asked: which boards there are, how they are cut, whether there is a
//! driver at all.
//!
//! `/proc` sends no notifications, so this is read once a second. It is what tells of changes that come without an event:
//! boards that are added, instances on drivers that do not report MIG changes or not to an unprivileged process, a driver
//! that is loaded. A few directory listings; no GPU is asked for them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Bus ids of the boards that the driver has, as the kernel writes them; `None` where that is hidden (container toolkits
/// cover `/proc/driver/nvidia`) or there is no driver.
pub(super) fn boards(root: &Path) -> Option<BTreeSet<String>> {
    names(&root.join("proc/driver/nvidia/gpus"))
}

/// The instances of the board with a minor, as `giN` and `giN/ciM`; `None` where that is hidden.
pub(super) fn instances(root: &Path, minor: u32) -> Option<BTreeSet<String>> {
    let all = root.join("proc/driver/nvidia/capabilities");
    if !all.is_dir() {
        return None;
    }
    let folder = all.join(format!("gpu{minor}/mig"));
    let mut found = BTreeSet::new();
    // Without instances there need not even be a folder.
    for instance in names(&folder).unwrap_or_default() {
        for inside in names(&folder.join(&instance)).unwrap_or_default() {
            found.insert(format!("{instance}/{inside}"));
        }
    }
    Some(found)
}

/// The driver's own description of its version; `None` where that is hidden or there is no driver.
pub(super) fn version(root: &Path) -> Option<String> {
    fs::read_to_string(root.join("proc/driver/nvidia/version")).ok()
}

fn names(folder: &Path) -> Option<BTreeSet<String>> {
    let entries = fs::read_dir(folder).ok()?;
    let names = entries.flatten().map(|entry| entry.file_name());
    Some(
        names
            .map(|name| name.to_string_lossy().into_owned())
            .collect(),
    )
}
