//! Pages of program code that only the start needed.
//!
//! The kernel maps 64 KiB of a program around each byte of it that runs, so a part that has read its flags, its
//! configuration and the API server's certificate has mapped most of the program, and runs little of it from then on.

use std::ffi::c_void;

use rustix::mm::Advice;

/// Unmaps the program's code, and its libraries'. What runs next is mapped again, from the page cache, without a read.
///
/// Nothing happens where the system does not say what is mapped.
pub fn unmap_code() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else {
        return;
    };
    for (start, end) in maps.lines().filter_map(code) {
        // SAFETY: the mapping is private, of a file, and not writable: each of its pages is that of the file, so it comes back
        // as it was. The range is not dereferenced here.
        let given = unsafe {
            rustix::mm::madvise(
                std::ptr::without_provenance_mut::<c_void>(start),
                end - start,
                Advice::LinuxDontNeed,
            )
        };
        if let Err(error) = given {
            tracing::debug!(%error, "program code stays mapped");
        }
    }
}

/// The range of a line of `/proc/<pid>/maps` (proc_pid_maps(5)), if it is code of a file that nobody can have changed.
fn code(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (range, permissions) = (words.next()?, words.next()?);
    let (_offset, _device, _inode) = (words.next()?, words.next()?, words.next()?);
    let path = words.next()?;
    if permissions != "r-xp" || !path.starts_with('/') {
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

    #[rstest]
    #[case("55d0c0e00000-55d0c0f00000 r-xp 00040000 fe:01 123 /usr/bin/lathe", Some((0x55d0_c0e0_0000, 0x55d0_c0f0_0000)))]
    #[case::data(
        "55d0c0f00000-55d0c0f10000 rw-p 00140000 fe:01 123 /usr/bin/lathe",
        None
    )]
    #[case::relocated(
        "55d0c0f00000-55d0c0f10000 r--p 00140000 fe:01 123 /usr/bin/lathe",
        None
    )]
    #[case::writable_code(
        "55d0c0f00000-55d0c0f10000 rwxp 00140000 fe:01 123 /usr/bin/lathe",
        None
    )]
    #[case::shared(
        "55d0c0f00000-55d0c0f10000 r-xs 00140000 fe:01 123 /usr/bin/lathe",
        None
    )]
    #[case::anonymous("7f0000000000-7f0000001000 r-xp 00000000 00:00 0", None)]
    #[case::the_kernels("7ffc00000000-7ffc00002000 r-xp 00000000 00:00 0 [vdso]", None)]
    #[case::empty("", None)]
    #[case::no_numbers("x-y r-xp 0 0 0 /lathe", None)]
    fn lines(#[case] line: &str, #[case] wanted: Option<(usize, usize)>) {
        assert_eq!(code(line), wanted);
    }

    /// Bytes of mapped files that are resident.
    fn resident_files() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("RssFile:"));
        let kib = line.unwrap().split_ascii_whitespace().nth(1).unwrap();
        kib.parse::<u64>().unwrap() << 10
    }

    #[test]
    fn code_that_was_unmapped_runs_on() {
        let sorted = || {
            let mut numbers: Vec<u32> = (0..1000).rev().collect();
            numbers.sort_unstable();
            numbers.first().copied()
        };
        assert_eq!(sorted(), Some(0));
        let before = resident_files();
        unmap_code();
        let after = resident_files();
        assert!(after < before, "{before} and then {after}");
        assert_eq!(sorted(), Some(0));
    }
}
