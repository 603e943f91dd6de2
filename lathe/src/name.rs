//! The names the binary may be started under.
//!
//! An image of Lathe carries links named after NVIDIA's programs, so that a manifest's `command:` keeps working after an
//! image swap: `nvidia-mig-parted apply …` becomes `lathe mig apply …`,
//! also in what help and errors say.

use std::ffi::OsString;
use std::path::Path;

/// Upstream program name and the subcommand that stands in for it.
const ALIASES: [(&str, &str); 7] = [
    ("nvidia-mig-parted", "mig"),
    ("nvidia-mig-manager", "mig-manager"),
    ("gpu-feature-discovery", "feature-discovery"),
    ("dcgm-exporter", "dcgm-exporter"),
    ("nvidia-device-plugin", "device-plugin"),
    ("config-manager", "config-manager"),
    ("mps-control-daemon", "mps-daemon"),
];

/// The argument list with the subcommand put in when the program was started under an upstream name.
pub(crate) fn arguments(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    let alias = args
        .first()
        .and_then(|program| Path::new(program).file_name())
        .and_then(|program| ALIASES.iter().find(|(name, _)| program == *name));
    if let Some((_, subcommand)) = alias {
        args.splice(..1, ["lathe", subcommand].map(OsString::from));
    }
    args
}

#[cfg(test)]
mod tests {
    use super::arguments;
    use std::ffi::OsString;

    fn check(given: &[&str], expected: &[&str]) {
        let given = given.iter().map(OsString::from);
        let expected: Vec<OsString> = expected.iter().map(OsString::from).collect();
        assert_eq!(arguments(given), expected);
    }

    #[test]
    fn upstream_names_select_their_part() {
        check(
            &["/usr/bin/nvidia-mig-parted", "apply", "-f", "-"],
            &["lathe", "mig", "apply", "-f", "-"],
        );
        check(&["nvidia-mig-manager"], &["lathe", "mig-manager"]);
        check(
            &["./gpu-feature-discovery", "--oneshot"],
            &["lathe", "feature-discovery", "--oneshot"],
        );
        check(
            &["dcgm-exporter", "-a", ":9400"],
            &["lathe", "dcgm-exporter", "-a", ":9400"],
        );
        check(
            &["mps-control-daemon", "mount-shm"],
            &["lathe", "mps-daemon", "mount-shm"],
        );
        check(
            &["nvidia-device-plugin", "--pass-device-specs"],
            &["lathe", "device-plugin", "--pass-device-specs"],
        );
        check(
            &["/usr/bin/config-manager", "--oneshot"],
            &["lathe", "config-manager", "--oneshot"],
        );
    }

    #[test]
    fn other_names_change_nothing() {
        check(&["lathe", "mig", "plan"], &["lathe", "mig", "plan"]);
        check(&["/opt/lathe-0.1/lathe"], &["/opt/lathe-0.1/lathe"]);
        check(&[], &[]);
    }
}
