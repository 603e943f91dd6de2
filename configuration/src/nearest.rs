//! Which of the known names a mistyped one most resembles.

/// Up to `limit` of `known` that are like `name`, most alike first.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>, limit: usize) -> Vec<String> {
    // Longer input cannot be a typo of a name; bound the quadratic work.
    let name: Vec<char> = name.chars().take(64).collect();
    let mut ranked: Vec<(usize, &str)> = known
        .map(|k| (distance(&name, k), k))
        .filter(|(d, k)| *d <= 2.max(k.len() / 3))
        .collect();
    ranked.sort_unstable();
    ranked
        .into_iter()
        .take(limit)
        .map(|(_, k)| k.to_owned())
        .collect()
}

/// Levenshtein distance.
fn distance(a: &[char], b: &str) -> usize {
    let mut row: Vec<usize> = (0..=a.len()).collect();
    for (j, cb) in b.chars().take(64).enumerate() {
        let mut diagonal = j;
        let mut left = j + 1;
        for (ca, cell) in a.iter().zip(row.iter_mut().skip(1)) {
            let above = *cell;
            left = (diagonal + usize::from(*ca != cb))
                .min(above + 1)
                .min(left + 1);
            diagonal = above;
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = j + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let known = [
            "all-1g.10gb",
            "all-1g.20gb",
            "all-7g.80gb",
            "all-disabled",
            "custom",
        ];
        let near = |name| nearest(name, known.into_iter(), 2);
        assert_eq!(near("all-1g.10g"), ["all-1g.10gb", "all-1g.20gb"]);
        assert_eq!(near("all-disable"), ["all-disabled"]);
        assert!(near("").is_empty());
        assert!(near(&"x".repeat(100_000)).is_empty());
    }

    #[test]
    fn edit_distance() {
        let d = |a: &str, b| distance(&a.chars().collect::<Vec<_>>(), b);
        assert_eq!(d("kitten", "sitting"), 3);
        assert_eq!(d("", "abc"), 3);
        assert_eq!(d("abc", ""), 3);
        assert_eq!(d("same", "same"), 0);
    }
}
