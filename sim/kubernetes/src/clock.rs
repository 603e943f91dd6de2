//! Times and identifiers as the API writes them.

use std::hash::{BuildHasher, Hasher, RandomState};

use jiff::Timestamp;

/// Now, in RFC 3339 with whole seconds, as `metav1.Time` is written.
pub(crate) fn now() -> String {
    seconds(Timestamp::now())
}

/// `time` in RFC 3339 with whole seconds.
pub(crate) fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn random() -> u64 {
    // RandomState is seeded by the operating system and differs at each call, which is all that is asked of ids here.
    RandomState::new().build_hasher().finish()
}

/// A version 4 UUID.
pub(crate) fn uid() -> String {
    let (high, low) = (random(), random());
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        0x8000 | ((low >> 48) & 0x3fff),
        low & 0xffff_ffff_ffff,
    )
}

/// Five characters for a generated name, from the alphabet of the real server (no vowels, no look-alikes).
pub(crate) fn name_suffix() -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut rest = random();
    (0..5)
        .map(|_| {
            let letter = ALPHABET[(rest % ALPHABET.len() as u64) as usize];
            rest /= ALPHABET.len() as u64;
            char::from(letter)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_do_not_repeat() {
        let ids: BTreeSet<String> = (0..1000).map(|_| uid()).collect();
        assert_eq!(ids.len(), 1000);
        for id in ids {
            let lengths: Vec<usize> = id.split('-').map(str::len).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
            assert_eq!(id.as_bytes()[14], b'4', "{id}");
            assert!(b"89ab".contains(&id.as_bytes()[19]), "{id}");
        }
        let names: BTreeSet<String> = (0..1000).map(|_| name_suffix()).collect();
        assert!(names.len() > 990, "{}", names.len());
        assert!(names.iter().all(|name| name.len() == 5));
    }
}
