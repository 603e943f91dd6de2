//! PCI bus ids, and what the kernel tells of the GPU behind one.

use crate::{Error, Root};

/// The name that sysfs and procfs give a device: `00000000:18:00.0` is `0000:18:00.0` there. `None` for what is no bus id.
pub(super) fn sysfs(bus_id: &str) -> Option<String> {
    let (domain, rest) = bus_id.split_once(':')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_hexdigit());
    let place = rest.split([':', '.']).collect::<Vec<_>>();
    if !digits(domain) || place.len() != 3 || !place.iter().all(|part| digits(part)) {
        return None;
    }
    let domain = u32::from_str_radix(domain, 16).ok()?;
    Some(format!("{domain:04x}:{}", rest.to_ascii_lowercase()))
}

/// The minor number that the driver's own file of a GPU says.
pub(super) fn minor(node: &Root, bus_id: &str) -> Result<Option<u32>, Error> {
    let Some(address) = sysfs(bus_id) else {
        return Ok(None);
    };
    let file = node.read(format!("/proc/driver/nvidia/gpus/{address}/information"))?;
    Ok(file.as_deref().and_then(device_minor))
}

fn device_minor(information: &str) -> Option<u32> {
    information.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "Device Minor").then(|| value.trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("00000000:18:00.0", Some("0000:18:00.0"))]
    #[case("0000:3B:00.0", Some("0000:3b:00.0"))]
    #[case("00010000:C1:00.0", Some("10000:c1:00.0"))]
    #[case("", None)]
    #[case("18:00.0", None)]
    #[case("0000:18:00", None)]
    #[case("0000:../00.0", None)]
    #[case("fffffffff:18:00.0", None)]
    fn names_in_sysfs(#[case] bus_id: &str, #[case] wanted: Option<&str>) {
        assert_eq!(sysfs(bus_id).as_deref(), wanted);
    }

    #[rstest]
    #[case("Model: \t\t X\nDevice Minor: \t 5\nGPU Excluded:\t No\n", Some(5))]
    #[case("Device Minor: \t ?\n", None)]
    #[case("", None)]
    fn minors_in_procfs(#[case] file: &str, #[case] wanted: Option<u32>) {
        assert_eq!(device_minor(file), wanted);
    }

    proptest! {
        #[test]
        fn a_name_is_one_part_of_a_path(bus_id in "[0-9a-fA-F./:-]{0,16}") {
            if let Some(name) = sysfs(&bus_id) {
                prop_assert!(!name.contains('/') && name != "..");
                prop_assert_eq!(sysfs(&name), Some(name.clone()));
            }
        }

        #[test]
        fn no_file_breaks_it(file in "(Device Minor)?[: \ta-z0-9\n]{0,20}") {
            let _ = device_minor(&file);
        }
    }
}
