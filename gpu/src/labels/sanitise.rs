//! From arbitrary text to legal label values.
//!
//! Kubernetes: at most 63 bytes of `[A-Za-z0-9-_.]` that begin and end with a letter or digit, or nothing at all.

/// Longest legal label value, in bytes.
pub const MAX_VALUE: usize = 63;

/// Feature discovery's rule for names: characters outside `[A-Za-z0-9-_. ]` vanish, runs of blanks become one dash.
pub fn name_part(text: &str) -> String {
    let kept: String = text
        .chars()
        .filter(|c| {
            c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') || c.is_ascii_whitespace()
        })
        .collect();
    kept.split_ascii_whitespace().collect::<Vec<_>>().join("-")
}

/// The nearest legal label value: illegal characters vanish, the end is cut, ends are letters or digits.
pub fn legal_value(text: &str) -> String {
    trimmed(&name_part(text), MAX_VALUE)
}

/// Whether Kubernetes takes this as a label value.
pub fn is_legal_value(text: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= MAX_VALUE
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && edge(bytes.first())
        && edge(bytes.last())
}

/// A product label: the model, then suffixes joined with dashes. When it is too long the model is cut, because the
/// suffix is what tells two labels of one node apart.
pub(super) fn product(model: &str, suffixes: &[&str]) -> String {
    let suffix: String = suffixes
        .iter()
        .map(|part| format!("-{}", name_part(part)))
        .collect();
    let mut model = trimmed(&name_part(model), MAX_VALUE.saturating_sub(suffix.len()));
    if model.is_empty() {
        model.push_str("unknown");
    }
    legal_value(&(model + &suffix))
}

/// `text` (ASCII) without leading and trailing punctuation, cut to `max` bytes.
fn trimmed(text: &str, max: usize) -> String {
    let punctuation = |c: char| !c.is_ascii_alphanumeric();
    let text = text.trim_start_matches(punctuation);
    text[..text.len().min(max)]
        .trim_end_matches(punctuation)
        .to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3")]
    #[case("NVIDIA TITAN X (Pascal)", "NVIDIA-TITAN-X-Pascal")]
    #[case("  A  B\tC\n", "A-B-C")]
    #[case("A100/SXM4", "A100SXM4")]
    #[case("Größe 1", "Gre-1")]
    #[case("", "")]
    fn names(#[case] text: &str, #[case] wanted: &str) {
        assert_eq!(name_part(text), wanted);
    }

    #[rstest]
    #[case("-1", "1")]
    #[case("570.124.06", "570.124.06")]
    #[case("..", "")]
    #[case("Standard PC (Q35 + ICH9, 2009)", "Standard-PC-Q35-ICH9-2009")]
    fn values(#[case] text: &str, #[case] wanted: &str) {
        assert_eq!(legal_value(text), wanted);
    }

    #[test]
    fn a_long_model_is_cut_and_the_suffix_stays() {
        // 55 characters of model, 12 of suffix: four too many.
        let model = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition";
        assert_eq!(
            product(model, &["MIG", "1g.24gb"]),
            "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edi-MIG-1g.24gb"
        );
        // 15 characters of suffix: the cut falls right after a dash, which goes too.
        assert_eq!(
            product(model, &["MIG", "1g.24gb.me"]),
            "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-MIG-1g.24gb.me"
        );
        assert_eq!(product("???", &[]), "unknown");
    }

    proptest! {
        #[test]
        fn every_value_is_legal(text in "\\PC{0,90}", suffix in "[a-z0-9.+]{0,12}") {
            prop_assert!(is_legal_value(&legal_value(&text)));
            prop_assert!(is_legal_value(&product(&text, &["MIG", &suffix, "SHARED"])));
        }

        #[test]
        fn a_legal_value_stays_as_it_is(text in "[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?") {
            prop_assert_eq!(legal_value(&text), text);
        }
    }
}
