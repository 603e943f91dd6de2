//! Lets containers into the folders of a daemon where SELinux is on.
//!
//! Containers may use what is labelled `container_file_t`; a folder on the node has another label. Entries that MPS makes later
//! get the label of their folder. On a node without SELinux files have no label, and nothing is done.

use std::path::Path;

use rustix::io::Errno;

const ATTRIBUTE: &str = "security.selinux";

const TYPE: &str = "container_file_t";

/// Labels a file or folder.
///
/// # Errors
/// There is a label, and it cannot be changed.
pub(super) fn admit_containers(path: &Path) -> Result<(), Errno> {
    let mut buffer = [0_u8; 1024];
    let length = match rustix::fs::getxattr(path, ATTRIBUTE, &mut buffer[..]) {
        Ok(length) => length,
        // The file system has no labels, or this file has none.
        Err(Errno::OPNOTSUPP | Errno::NODATA) => return Ok(()),
        Err(error) => return Err(error),
    };
    let label = buffer.get(..length).unwrap_or_default();
    let Some(wanted) = relabelled(&String::from_utf8_lossy(label)) else {
        return Ok(());
    };
    rustix::fs::setxattr(
        path,
        ATTRIBUTE,
        wanted.as_bytes(),
        rustix::fs::XattrFlags::REPLACE,
    )
}

/// The label with another type: `user:role:type:level`. `None` when it has that type already, or is no label.
fn relabelled(label: &str) -> Option<String> {
    let label = label.trim_end_matches('\0');
    let mut parts = label.splitn(4, ':');
    let (user, role, kind) = (parts.next()?, parts.next()?, parts.next()?);
    // `s0`: no categories, or only containers of the same ones would get in.
    (kind != TYPE || parts.next().is_some_and(|level| level != "s0"))
        .then(|| format!("{user}:{role}:{TYPE}:s0"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(
        "system_u:object_r:var_run_t:s0\0",
        Some("system_u:object_r:container_file_t:s0")
    )]
    #[case("system_u:object_r:container_file_t:s0\0", None)]
    #[case("system_u:object_r:container_file_t:s0", None)]
    #[case(
        "system_u:object_r:container_file_t:s0:c1,c2",
        Some("system_u:object_r:container_file_t:s0")
    )]
    #[case("unlabeled", None)]
    fn labels(#[case] label: &str, #[case] wanted: Option<&str>) {
        assert_eq!(relabelled(label).as_deref(), wanted);
    }

    #[test]
    fn without_labels_nothing_is_done() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(admit_containers(folder.path()), Ok(()));
    }
}
