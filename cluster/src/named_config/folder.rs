//! Configurations as the files of a folder: a ConfigMap mounted into the pod, or a folder of the node.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{MAX_BYTES, Trouble};
use crate::watched::WatchedFolder;

#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    place: String,
    watched: WatchedFolder,
}

impl Folder {
    pub(super) fn new(path: &Path, place: String) -> Self {
        Self {
            path: path.to_owned(),
            place,
            watched: WatchedFolder::new(path),
        }
    }

    /// Returns when something may be different.
    pub(super) async fn changed(&mut self) {
        self.watched.settled().await;
    }

    /// Files, or links to files. Names that begin with a dot are the kubelet's (`..data`) or an editor's.
    pub(super) fn names(&self) -> Result<BTreeSet<String>, Trouble> {
        let unreadable = |error: io::Error| Trouble::SourceUnreadable {
            place: self.place.clone(),
            why: error.to_string(),
        };
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(&self.path).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            // A name that is no text can be neither a label's value nor a flag's.
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            // A link into nowhere is a key that was just taken out of the ConfigMap.
            let is_file = fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_file());
            if !name.starts_with('.') && is_file {
                names.insert(name);
            }
        }
        Ok(names)
    }

    /// What the file `name` says, one of [`Folder::names`].
    pub(super) fn content(&self, name: &str) -> Result<Arc<str>, Trouble> {
        let mut bytes = Vec::new();
        File::open(self.path.join(name))
            .and_then(|file| file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes))
            .map_err(|error| Trouble::Unreadable {
                name: name.to_owned(),
                place: self.place.clone(),
                why: error.to_string(),
            })?;
        text(bytes, name, &self.place)
    }
}

/// `bytes` as a configuration.
pub(super) fn text(bytes: Vec<u8>, name: &str, place: &str) -> Result<Arc<str>, Trouble> {
    let (name, place) = (name.to_owned(), place.to_owned());
    if bytes.len() > MAX_BYTES {
        return Err(Trouble::TooLarge { name, place });
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text.into()),
        Err(error) => Err(Trouble::NotText {
            name,
            place,
            at: error.utf8_error().valid_up_to(),
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::os::unix::fs::symlink;

    use super::*;

    fn folder(path: &Path) -> Folder {
        Folder::new(path, "here".to_owned())
    }

    #[tokio::test]
    async fn the_kubelets_own_entries_and_folders_are_no_configurations() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path();
        fs::create_dir(path.join("..2024_01_01")).unwrap();
        fs::write(path.join("..2024_01_01/a"), "text").unwrap();
        symlink("..2024_01_01", path.join("..data")).unwrap();
        symlink("..data/a", path.join("a")).unwrap();
        symlink("..data/removed", path.join("removed")).unwrap();
        fs::write(path.join(".b.swp"), "").unwrap();
        fs::create_dir(path.join("folder")).unwrap();
        symlink("folder", path.join("link-to-folder")).unwrap();
        let folder = folder(path);
        assert_eq!(folder.names().unwrap(), BTreeSet::from(["a".to_owned()]));
        assert_eq!(&*folder.content("a").unwrap(), "text");
    }

    #[tokio::test]
    async fn what_cannot_be_used_is_told_by_name() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path();
        fs::write(path.join("full"), vec![b'x'; MAX_BYTES]).unwrap();
        fs::write(path.join("large"), vec![b'x'; MAX_BYTES + 1]).unwrap();
        fs::write(path.join("binary"), b"ab\xff").unwrap();
        let folder = folder(path);
        assert_eq!(folder.content("full").unwrap().len(), MAX_BYTES);
        let (name, place) = ("large".to_owned(), "here".to_owned());
        assert_eq!(
            folder.content("large"),
            Err(Trouble::TooLarge { name, place })
        );
        let (name, place) = ("binary".to_owned(), "here".to_owned());
        let at = 2;
        assert_eq!(
            folder.content("binary"),
            Err(Trouble::NotText { name, place, at })
        );
        let trouble = folder.content("gone").unwrap_err();
        assert!(
            matches!(&trouble, Trouble::Unreadable { name, .. } if name == "gone"),
            "{trouble}"
        );
    }

    #[tokio::test]
    async fn a_folder_that_is_not_there_is_told() {
        let trouble = folder(Path::new("/does/not/exist")).names().unwrap_err();
        assert!(
            trouble
                .to_string()
                .starts_with("here cannot be read: No such file"),
            "{trouble}"
        );
    }
}
