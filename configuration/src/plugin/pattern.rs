//! Patterns for product names and MIG profiles: `*` stands for any text, everything else for itself.

use std::fmt;

/// A pattern that must match the whole text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern(String);

impl Pattern {
    /// A pattern, `*NVIDIA A100*` for one. Every text is one.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether all of `text` fits. Takes time in proportion to both lengths.
    pub fn matches(&self, text: &str) -> bool {
        let mut parts = self.0.split('*');
        // `split` yields at least one part.
        let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
            return false;
        };
        let Some(last) = parts.next_back() else {
            return rest.is_empty();
        };
        // The leftmost place of each part leaves the most for those behind it.
        for part in parts {
            let Some(place) = rest.find(part) else {
                return false;
            };
            rest = &rest[place + part.len()..];
        }
        rest.ends_with(last)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::Pattern;

    #[rstest]
    #[case("*", "", true)]
    #[case("*", "NVIDIA H100 80GB HBM3", true)]
    #[case("", "", true)]
    #[case("", "a", false)]
    #[case("*A100*", "NVIDIA A100-SXM4-40GB", true)]
    #[case("A100*", "NVIDIA A100-SXM4-40GB", false)]
    #[case("*40GB", "NVIDIA A100-SXM4-40GB", true)]
    #[case("*80GB", "NVIDIA A100-SXM4-40GB", false)]
    #[case("1g.10gb", "1g.10gb+me", false)]
    #[case("1g.10gb", "1gx10gb", false)]
    #[case("1g.*", "1g.10gb+me", true)]
    #[case("aa*aa", "aaa", false)]
    #[case("aa*aa", "aaaa", true)]
    #[case("a*b*a", "abba", true)]
    #[case("*a100*", "NVIDIA A100", false)]
    fn whole_text(#[case] pattern: &str, #[case] text: &str, #[case] wanted: bool) {
        assert_eq!(Pattern::new(pattern).matches(text), wanted);
    }

    /// The definition, in exponential time.
    fn by_definition(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => {
                (0..=text.len()).any(|skipped| by_definition(rest, &text[skipped..]))
            }
            Some((first, rest)) => text
                .split_first()
                .is_some_and(|(own, others)| own == first && by_definition(rest, others)),
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(pattern in "[ab*]{0,7}", text in "[ab]{0,9}") {
            prop_assert_eq!(
                Pattern::new(pattern.clone()).matches(&text),
                by_definition(pattern.as_bytes(), text.as_bytes())
            );
        }
    }
}
