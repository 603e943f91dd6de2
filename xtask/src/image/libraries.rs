//! Which shared libraries go into an image.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use super::archive::Entry;

/// What NVIDIA's driver library is linked with beyond what Rust programs are. Since glibc 2.34 these are empty, but the
/// loader still wants the files.
const OF_THE_DRIVER: [&str; 3] = ["libdl.so.2", "libpthread.so.0", "librt.so.1"];

/// The libraries that `binary` and the driver's library need, each where the loader looks for it.
pub(super) fn of(binary: &Path) -> anyhow::Result<Vec<Entry>> {
    let output = Command::new("ldd")
        .arg(binary)
        .output()
        .context("running ldd")?;
    if !output.status.success() {
        bail!(
            "ldd {}: {}",
            binary.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let needed = parse(&String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("libraries of {}", binary.display()))?;
    let beside = needed
        .iter()
        .find(|path| path.file_name().is_some_and(|name| name == "libc.so.6"))
        .and_then(|path| path.parent())
        .context("the program is not linked with libc.so.6")?
        .to_owned();
    let mut all = needed;
    all.extend(OF_THE_DRIVER.map(|name| beside.join(name)));
    all.iter().map(|path| entry(path)).collect()
}

fn entry(path: &Path) -> anyhow::Result<Entry> {
    let inside = path.strip_prefix("/").unwrap_or(path);
    let inside = inside.to_str().context("a library's path is not text")?;
    // Links are followed: one file under the name the loader asks for.
    let source = path
        .canonicalize()
        .with_context(|| format!("looking for {}", path.display()))?;
    Ok(Entry::program(inside, &source))
}

/// The paths in what `ldd` prints: `name => path (address)`, `path (address)` for the loader, and the kernel's own
/// library, which is no file.
fn parse(text: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.ends_with("not found") {
            bail!("{line}");
        }
        let place = line.split_once("=> ").map_or(line, |(_, place)| place);
        let place = place.split(" (").next().unwrap_or(place);
        if place.starts_with('/') {
            paths.push(PathBuf::from(place));
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::parse;
    use std::path::Path;

    #[test]
    fn ldd_is_read() {
        let text = "\tlinux-vdso.so.1 (0x00007fe1)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007fe2)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007fe3)\n";
        assert_eq!(
            parse(text).unwrap(),
            [
                Path::new("/lib/x86_64-linux-gnu/libm.so.6"),
                Path::new("/lib64/ld-linux-x86-64.so.2")
            ]
        );
        let missing = parse("\tlibx.so.1 => not found\n").unwrap_err();
        assert_eq!(missing.to_string(), "libx.so.1 => not found");
    }
}
