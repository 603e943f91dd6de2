//! Tells when the content of a file changes, so that an edited ConfigMap takes effect without anybody saying so.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::WatchedFolder;

/// A file that is being watched. Dropping it ends the watch.
#[derive(Debug)]
pub struct WatchedFile {
    path: PathBuf,
    content: Option<u64>,
    folder: WatchedFolder,
}

impl WatchedFile {
    /// Begins to watch `path`, which need not exist yet.
    pub fn new(path: &Path) -> Self {
        Self::within(WatchedFolder::new(folder_of(path)), path)
    }

    fn within(folder: WatchedFolder, path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            // Read once it is watched, so that no change falls between.
            content: digest(path),
            folder,
        }
    }

    /// Returns when the content is another than before. Dropped and called again, it misses nothing.
    pub async fn changed(&mut self) {
        loop {
            self.folder.settled().await;
            let content = digest(&self.path);
            if content != self.content {
                self.content = content;
                return;
            }
        }
    }
}

/// A ConfigMap volume swaps a link beside the file, and an editor replaces the file, so watching the file itself would go on
/// watching what is no longer there.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// More than any configuration may have: what lies beyond is nobody's business.
const MAX_BYTES: u64 = 4 << 20;

/// `None` when the file cannot be read.
fn digest(path: &Path) -> Option<u64> {
    let mut content = Vec::new();
    let file = File::open(path).ok()?;
    file.take(MAX_BYTES).read_to_end(&mut content).ok()?;
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::super::folder::SETTLE;
    use super::*;

    const BOUND: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_rewritten_file_is_noticed_and_an_untouched_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        fs::write(&path, "a").unwrap();
        let mut file = WatchedFile::new(&path);
        fs::write(&path, "a").unwrap();
        fs::write(folder.path().join("other"), "b").unwrap();
        assert!(
            timeout(SETTLE * 3, file.changed()).await.is_err(),
            "the content is the same"
        );
        fs::write(&path, "b").unwrap();
        timeout(BOUND, file.changed()).await.unwrap();
    }

    #[tokio::test]
    async fn a_swapped_config_map_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for (version, content) in [("v1", "a"), ("v2", "b")] {
            fs::create_dir(root.join(version)).unwrap();
            fs::write(root.join(version).join("config.yaml"), content).unwrap();
        }
        symlink("v1", root.join("..data")).unwrap();
        symlink("..data/config.yaml", root.join("config.yaml")).unwrap();
        let mut file = WatchedFile::new(&root.join("config.yaml"));
        symlink("v2", root.join("..data_tmp")).unwrap();
        fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
        timeout(BOUND, file.changed()).await.unwrap();
    }

    #[tokio::test]
    async fn a_file_that_appears_later_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        let mut file = WatchedFile::new(&path);
        fs::write(&path, "a").unwrap();
        timeout(BOUND, file.changed()).await.unwrap();
    }

    #[tokio::test]
    async fn a_file_whose_folder_comes_later_is_noticed() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("later/config.yaml");
        let looked_at =
            WatchedFolder::looked_at(&scratch.path().join("later"), Duration::from_millis(10));
        let mut file = WatchedFile::within(looked_at, &path);
        assert!(
            timeout(SETTLE, file.changed()).await.is_err(),
            "there is nothing"
        );
        fs::create_dir(path.parent().unwrap()).unwrap();
        fs::write(&path, "b").unwrap();
        timeout(BOUND, file.changed()).await.unwrap();
    }
}
