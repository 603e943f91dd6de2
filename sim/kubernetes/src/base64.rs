//! Base64, which Secrets are written in.

/// Encodes with padding.
pub(crate) fn encode(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk
            .iter()
            .chain([0, 0].iter())
            .take(3)
            .fold(0_usize, |group, &byte| group << 8 | usize::from(byte));
        for place in 0..4 {
            if place <= chunk.len() {
                text.push(char::from(ALPHABET[group >> (18 - 6 * place) & 63]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::encode;

    // RFC 4648, section 10.
    #[rstest]
    #[case("", "")]
    #[case("f", "Zg==")]
    #[case("fo", "Zm8=")]
    #[case("foo", "Zm9v")]
    #[case("foob", "Zm9vYg==")]
    #[case("fooba", "Zm9vYmE=")]
    #[case("foobar", "Zm9vYmFy")]
    fn vectors(#[case] plain: &str, #[case] encoded: &str) {
        assert_eq!(encode(plain.as_bytes()), encoded);
    }
}
