//! How GPUs and names are listed for people.

/// `GPU 3`, or `GPUs 0-2, 5`.
pub(crate) fn gpus(indices: impl IntoIterator<Item = u32>) -> String {
    let mut indices: Vec<u32> = indices.into_iter().collect();
    indices.sort_unstable();
    indices.dedup();
    let runs: Vec<String> = indices
        .chunk_by(|one, next| one.checked_add(1) == Some(*next))
        .map(|run| match run {
            [first, .., last] => format!("{first}-{last}"),
            _ => run.iter().map(u32::to_string).collect(),
        })
        .collect();
    let noun = if indices.len() == 1 { "GPU" } else { "GPUs" };
    format!("{noun} {}", runs.join(", "))
}

/// The first names, and how many more there are.
pub(crate) fn names(names: &[String]) -> String {
    const SHOWN: usize = 20;
    let (shown, rest) = names.split_at(names.len().min(SHOWN));
    let shown = shown.join(", ");
    match rest.len() {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    #[rstest]
    #[case(&[3], "GPU 3")]
    #[case(&[0, 1], "GPUs 0-1")]
    #[case(&[5, 2, 0, 1, 7], "GPUs 0-2, 5, 7")]
    #[case(&[u32::MAX, 0, 0], "GPUs 0, 4294967295")]
    fn gpus_are_listed_in_runs(#[case] indices: &[u32], #[case] expected: &str) {
        assert_eq!(super::gpus(indices.iter().copied()), expected);
    }

    #[test]
    fn long_lists_of_names_end() {
        let many: Vec<String> = (0..23).map(|n| format!("c{n}")).collect();
        assert_eq!(super::names(&many[..2]), "c0, c1");
        let all = super::names(&many);
        assert!(all.ends_with("c18, c19 and 3 more"), "{all}");
    }
}
