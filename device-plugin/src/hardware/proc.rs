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

/// The MIG devices of the board with a minor, as GPU instance and compute instance; `None` where that is hidden.
pub(super) fn instances(root: &Path, minor: u32) -> Option<BTreeSet<(u32, u32)>> {
    let all = root.join("proc/driver/nvidia/capabilities");
    if !all.is_dir() {
        return None;
    }
    let folder = all.join(format!("gpu{minor}/mig"));
    let mut found = BTreeSet::new();
    // Without instances there need not even be a folder.
    for instance in names(&folder).unwrap_or_default() {
        let Some(id) = number(&instance, "gi") else {
            continue;
        };
        let inside = names(&folder.join(&instance)).unwrap_or_default();
        found.extend(
            inside
                .iter()
                .filter_map(|name| Some((id, number(name, "ci")?))),
        );
    }
    Some(found)
}

fn number(name: &str, prefix: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.parse().ok()
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn instances_are_folders_with_numbers() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(instances(root.path(), 3), None, "hidden");
        let all = root.path().join("proc/driver/nvidia/capabilities");
        fs::create_dir_all(all.join("mig")).unwrap();
        assert_eq!(instances(root.path(), 3), Some(BTreeSet::new()));
        let mig = all.join("gpu3/mig");
        for folder in [
            "gi2/ci0",
            "gi2/ci1",
            "gi11/ci0",
            "gi5",
            "other/ci0",
            "gi7/x",
        ] {
            fs::create_dir_all(mig.join(folder)).unwrap();
        }
        fs::write(mig.join("gi2/access"), "DeviceFileMinor: 426\n").unwrap();
        let wanted = [(2, 0), (2, 1), (11, 0)];
        assert_eq!(instances(root.path(), 3), Some(wanted.into()));
        assert_eq!(instances(root.path(), 4), Some(BTreeSet::new()));
    }
}
