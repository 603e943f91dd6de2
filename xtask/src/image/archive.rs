//! One image as an archive in the format of `docker save`: `manifest.json`, a configuration, a layer.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

/// One thing in the layer; its path is relative to the image's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    path: String,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Folder,
    /// An executable file with what this file of the host holds.
    Program(PathBuf),
    Link(String),
}

impl Entry {
    pub(super) fn folder(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            what: What::Folder,
        }
    }

    pub(super) fn program(path: &str, source: &Path) -> Self {
        Self {
            path: path.to_owned(),
            what: What::Program(source.to_owned()),
        }
    }

    pub(super) fn link(path: &str, to: &str) -> Self {
        Self {
            path: path.to_owned(),
            what: What::Link(to.to_owned()),
        }
    }
}

/// What becomes one image.
#[derive(Clone, Debug)]
pub(super) struct Image {
    /// Name and tag.
    pub(super) name: String,
    /// Command line of its containers.
    pub(super) entrypoint: Vec<String>,
    /// What lies in it; folders above are added.
    pub(super) entries: Vec<Entry>,
}

impl Image {
    /// Writes the archive; returns the size of the layer in bytes.
    pub(super) fn write(&self, file: &Path) -> anyhow::Result<usize> {
        let layer = self.layer()?;
        let configuration = serde_json::to_vec(&json!({
            "architecture": architecture()?,
            "os": "linux",
            "config": {"Entrypoint": self.entrypoint, "Env": ["PATH=/usr/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", digest(&layer))]},
        }))?;
        let configuration_name = format!("{}.json", digest(&configuration));
        let manifest = serde_json::to_vec(&json!([{
            "Config": configuration_name, "RepoTags": [self.name], "Layers": ["layer.tar"],
        }]))?;
        // Readers of a half-written archive would get half an image.
        let draft = file.with_extension("draft");
        let mut archive = Builder::new(File::create(&draft)?);
        for (name, data) in [
            (configuration_name.as_str(), &configuration),
            ("layer.tar", &layer),
            ("manifest.json", &manifest),
        ] {
            append(&mut archive, name, EntryType::Regular, 0o644, data)?;
        }
        archive.into_inner()?.sync_all()?;
        std::fs::rename(&draft, file)?;
        Ok(layer.len())
    }

    fn layer(&self) -> anyhow::Result<Vec<u8>> {
        let mut entries = self.entries.clone();
        let parents: BTreeSet<String> = entries
            .iter()
            .flat_map(|entry| above(&entry.path))
            .collect();
        entries.extend(parents.iter().map(|folder| Entry::folder(folder)));
        // A folder sorts before what lies in it.
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        entries.dedup();
        let mut layer = Builder::new(Vec::new());
        for entry in &entries {
            match &entry.what {
                What::Folder => append(
                    &mut layer,
                    &format!("{}/", entry.path),
                    EntryType::Directory,
                    0o755,
                    &[],
                )?,
                What::Program(source) => {
                    let mut data = Vec::new();
                    File::open(source)
                        .and_then(|mut file| file.read_to_end(&mut data))
                        .with_context(|| format!("reading {}", source.display()))?;
                    append(&mut layer, &entry.path, EntryType::Regular, 0o755, &data)?;
                }
                What::Link(to) => {
                    let mut header = header(EntryType::Symlink, 0o777, 0);
                    layer.append_link(&mut header, &entry.path, to)?;
                }
            }
        }
        Ok(layer.into_inner()?)
    }
}

/// The folders above a path, outermost first.
fn above(path: &str) -> Vec<String> {
    path.match_indices('/')
        .filter_map(|(end, _)| path.get(..end))
        .map(str::to_owned)
        .collect()
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn append<W: io::Write>(
    archive: &mut Builder<W>,
    path: &str,
    kind: EntryType,
    mode: u32,
    data: &[u8],
) -> io::Result<()> {
    let mut header = header(
        kind,
        mode,
        u64::try_from(data.len()).map_err(io::Error::other)?,
    );
    archive.append_data(&mut header, path, data)
}

fn digest(data: &[u8]) -> String {
    Sha256::digest(data)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The name that images have for the processor this runs on.
fn architecture() -> anyhow::Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("images have no name for the processor {other}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn paths(layer: &[u8]) -> Vec<String> {
        let mut archive = tar::Archive::new(layer);
        let paths = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            assert_eq!(entry.header().mtime().unwrap(), 0);
            entry.path().unwrap().display().to_string()
        });
        paths.collect()
    }

    #[test]
    fn an_archive_names_what_it_holds_by_digest() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        std::fs::write(&program, "#!").unwrap();
        let image = Image {
            name: "localhost/x:1".to_owned(),
            entrypoint: vec!["/usr/bin/x".to_owned()],
            entries: vec![
                Entry::link("usr/bin/y", "x"),
                Entry::program("usr/bin/x", &program),
                Entry::folder("tmp"),
            ],
        };
        let file = folder.path().join("x.tar");
        image.write(&file).unwrap();
        let first = std::fs::read(&file).unwrap();
        image.write(&file).unwrap();
        assert_eq!(first, std::fs::read(&file).unwrap(), "the same every time");

        let mut found = std::collections::BTreeMap::new();
        for entry in tar::Archive::new(&first[..]).entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            found.insert(name, data);
        }
        let manifest: serde_json::Value = serde_json::from_slice(&found["manifest.json"]).unwrap();
        let configuration = &found[manifest[0]["Config"].as_str().unwrap()];
        let configuration: serde_json::Value = serde_json::from_slice(configuration).unwrap();
        let layer = &found["layer.tar"];
        assert_eq!(
            configuration["rootfs"]["diff_ids"][0],
            format!("sha256:{}", digest(layer))
        );
        assert_eq!(manifest[0]["RepoTags"][0], "localhost/x:1");
        assert_eq!(
            paths(layer),
            ["tmp/", "usr/", "usr/bin/", "usr/bin/x", "usr/bin/y"]
        );
    }

    #[test]
    fn digests_are_sha_256() {
        // The vector for the empty message in FIPS 180-4's test data.
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest(b""), empty);
    }
}
