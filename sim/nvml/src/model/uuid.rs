//! UUIDs that depend on nothing but a name, and the seeded numbers behind serials and noise.
//!
//! The driver hashes with SHA-1 over values nobody outside sees; only its determinism matters, so a small hash does.

/// A 64-bit mix of a word (the finaliser of SplitMix64): every input bit changes every output bit.
pub fn mix(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A 64-bit hash of a text under a key.
pub fn hash(key: u64, text: &str) -> u64 {
    text.bytes()
        .fold(mix(key), |state, byte| mix(state ^ u64::from(byte)))
}

/// The UUID of a name in a name space, marked as version 5 (derived from a name), without a prefix.
pub fn derived(space: &str, name: &str) -> String {
    let key = hash(0, space);
    let high = hash(key, name);
    let low = hash(key ^ 0x5A5A_5A5A_5A5A_5A5A, name);
    let high = (high & !0xF000) | 0x5000;
    let low = (low & !(0b11 << 62)) | 0b10 << 62;
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xFFFF,
        high & 0xFFFF,
        low >> 48,
        low & 0xFFFF_FFFF_FFFF
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_the_shape_of_version_five() {
        let uuid = derived("gpu", "seed/0");
        let groups: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(groups, [8, 4, 4, 4, 12]);
        assert_eq!(uuid.as_bytes()[14], b'5');
        assert!(matches!(uuid.as_bytes()[19], b'8' | b'9' | b'a' | b'b'));
    }

    #[test]
    fn same_name_same_uuid_other_name_other_uuid() {
        assert_eq!(derived("mig", "a/1/0"), derived("mig", "a/1/0"));
        assert_ne!(derived("mig", "a/1/0"), derived("mig", "a/0/1"));
        assert_ne!(derived("mig", "a"), derived("gpu", "a"));
    }
}
