//! Pages of the program that only the start needed: code, constants, tables of the dynamic linker.
//!
//! The kernel maps 64 KiB of a program around each byte of it that runs, so a part that has read its flags, its
//! configuration and the API server's certificate has mapped most of the program, and runs little of it from then on.

use std::ffi::c_void;

use rustix::mm::Advice;

/// Unmaps the program's code and constants. What is used next is mapped again, from the page cache, without a read.
///
/// Nothing happens where the system does not say what is mapped. Libraries stay as they are: the driver's may be closed, and
/// something else be mapped in its place, meanwhile.
pub fn unmap_start() {
    let Ok(smaps) = std::fs::read_to_string("/proc/self/smaps") else {
        return;
    };
    let Ok(program) = std::fs::read_link("/proc/self/exe") else {
        return;
    };
    for (start, end) in unchanged(&smaps, &program.to_string_lossy()) {
        // SAFETY: the mapping is the program's own, which stays where it is until the end. It is private, not writable, and has
        // no page of its own (relocated constants would be some): each page is that of the file, so it comes back as it was. The
        // range is not dereferenced here.
        let given = unsafe {
            rustix::mm::madvise(
                std::ptr::without_provenance_mut::<c_void>(start),
                end - start,
                Advice::LinuxDontNeed,
            )
        };
        if let Err(error) = given {
            tracing::debug!(%error, "what only the start needed stays mapped");
        }
    }
}

/// The mappings of `/proc/<pid>/smaps` (proc_pid_smaps(5)) that show the file `program` as it is there.
fn unchanged(smaps: &str, program: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        match line.split_once(':') {
            // Bytes that differ from the file's.
            Some(("Anonymous", size)) if size.trim() == "0 kB" => found.extend(current.take()),
            Some((name, _)) if name.bytes().all(|c| c.is_ascii_alphabetic() || c == b'_') => {}
            _ => current = shown(line, program),
        }
    }
    found
}

/// The range of a mapping's first line, when it shows the file and nobody can write there.
fn shown(line: &str, program: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (range, permissions) = (words.next()?, words.next()?);
    let (_offset, _device, _inode) = (words.next()?, words.next()?, words.next()?);
    if !matches!(permissions, "r-xp" | "r--p") || words.next()? != program {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    (start < end).then_some((start, end))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    const PROGRAM: &str = "/usr/bin/lathe";
    const RANGE: Option<(usize, usize)> = Some((0x55d0_c0e0_0000, 0x55d0_c0f0_0000));

    #[rstest]
    #[case::code("r-xp 00040000 fe:01 123 /usr/bin/lathe", 0, RANGE)]
    #[case::relocated_code("r-xp 00040000 fe:01 123 /usr/bin/lathe", 4, None)]
    #[case::constants("r--p 00140000 fe:01 123 /usr/bin/lathe", 0, RANGE)]
    #[case::relocated_constants("r--p 00140000 fe:01 123 /usr/bin/lathe", 92, None)]
    #[case::data("rw-p 00140000 fe:01 123 /usr/bin/lathe", 0, None)]
    #[case::writable_code("rwxp 00140000 fe:01 123 /usr/bin/lathe", 0, None)]
    #[case::another_file("r-xp 00040000 fe:01 123 /usr/lib/libm.so.6", 0, None)]
    #[case::shared("r-xs 00140000 fe:01 123 /usr/bin/lathe", 0, None)]
    #[case::no_file("r-xp 00000000 00:00 0", 0, None)]
    #[case::the_kernels("r-xp 00000000 00:00 0 [vdso]", 0, None)]
    fn mappings(
        #[case] first: &str,
        #[case] anonymous: u32,
        #[case] wanted: Option<(usize, usize)>,
    ) {
        let mapping = format!(
            "55d0c0e00000-55d0c0f00000 {first}\nSize: 1024 kB\nPrivate_Dirty: 0 kB\nAnonymous: {anonymous} kB\nVmFlags: rd ex mr\n"
        );
        assert_eq!(unchanged(&mapping, PROGRAM), Vec::from_iter(wanted));
        let other = "7f0000000000-7f0000001000 rw-p 00000000 00:00 0\nAnonymous: 0 kB\n";
        let all = format!("{other}{mapping}{other}");
        assert_eq!(unchanged(&all, PROGRAM), Vec::from_iter(wanted));
    }

    #[rstest]
    #[case("")]
    #[case("x-y r-xp 0 0 0 /usr/bin/lathe\nAnonymous: 0 kB")]
    #[case("2000-1000 r-xp 0 0 0 /usr/bin/lathe\nAnonymous: 0 kB")]
    #[case("Anonymous: 0 kB")]
    fn no_mappings(#[case] smaps: &str) {
        assert_eq!(unchanged(smaps, PROGRAM), []);
    }

    /// Bytes of mapped files that are resident.
    fn resident_files() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("RssFile:"));
        let kib = line.unwrap().split_ascii_whitespace().nth(1).unwrap();
        kib.parse::<u64>().unwrap() << 10
    }

    #[test]
    fn what_was_unmapped_is_there_when_it_is_used() {
        let sorted = || {
            let mut numbers: Vec<u32> = (0..1000).rev().collect();
            numbers.sort_unstable();
            numbers.first().copied()
        };
        assert_eq!(sorted(), Some(0));
        let before = resident_files();
        unmap_start();
        let after = resident_files();
        assert!(after < before, "{before} and then {after}");
        assert_eq!(sorted(), Some(0));
    }
}
