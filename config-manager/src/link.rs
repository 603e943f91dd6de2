//! A symbolic link that is there at every moment, pointing at the old target or at the new one.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Makes `link` point at `target` in place of the link or file that is there. The answer is whether that was a change.
///
/// # Errors
/// The system's: there is no such folder, it is not writable, a folder is in the way.
pub(crate) fn place(link: &Path, target: &Path) -> io::Result<bool> {
    if fs::read_link(link).is_ok_and(|current| current == target) {
        return Ok(false);
    }
    let new = beside(link)?;
    match fs::remove_file(&new) {
        // Left there by one that was killed.
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    symlink(target, &new)?;
    if let Err(error) = fs::rename(&new, link) {
        // What matters is why the link is not there.
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    Ok(true)
}

/// A hidden name in the same folder.
fn beside(link: &Path) -> io::Result<PathBuf> {
    let Some(name) = link.file_name() else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it names no file",
        ));
    };
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(".new");
    Ok(link.with_file_name(hidden))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Before {
        Nothing,
        OtherLink,
        BrokenLink,
        File,
        Leftover,
    }

    #[rstest]
    #[case(Before::Nothing)]
    #[case(Before::OtherLink)]
    #[case(Before::BrokenLink)]
    #[case(Before::File)]
    #[case(Before::Leftover)]
    fn whatever_was_there_is_replaced(#[case] before: Before) {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("config.yaml");
        match before {
            Before::Nothing => {}
            Before::OtherLink => symlink("/dev/null", &link).unwrap(),
            Before::BrokenLink => symlink("gone", &link).unwrap(),
            Before::File => fs::write(&link, "x").unwrap(),
            Before::Leftover => symlink("x", folder.path().join(".config.yaml.new")).unwrap(),
        }
        let target = Path::new("/configs/a");
        assert!(place(&link, target).unwrap());
        assert_eq!(fs::read_link(&link).unwrap(), target);
        assert!(!place(&link, target).unwrap(), "it is right already");
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "nothing is left beside it"
        );
    }

    #[test]
    fn a_folder_in_the_way_stays() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("config.yaml");
        fs::create_dir(&link).unwrap();
        place(&link, Path::new("/configs/a")).unwrap_err();
        assert!(link.is_dir());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[rstest]
    #[case("/does/not/exist/config.yaml")]
    #[case("/")]
    fn a_place_where_nothing_can_be_is_an_error(#[case] link: &str) {
        place(Path::new(link), Path::new("/configs/a")).unwrap_err();
    }
}
