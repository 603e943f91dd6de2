//! The rule by which a name is chosen: label, default, fallbacks. Values in, a value out.

use std::collections::BTreeSet;

use super::{Fallback, Reason, Rules, Trouble};

/// The name that the fallback `named` looks for.
const NAMED: &str = "default";

/// What was chosen; no name is the empty configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) name: Option<String>,
    pub(super) reason: Reason,
}

/// Chooses among `available` for a node whose label has the value `label`. `place` is where they lie, for the error.
///
/// # Errors
/// [`Trouble::NoSuchConfig`] or [`Trouble::NothingChosen`].
pub(super) fn choose(
    label: Option<&str>,
    rules: &Rules,
    available: &BTreeSet<String>,
    place: &str,
) -> Result<Chosen, Trouble> {
    let wanted = match (
        label.filter(|value| !value.is_empty()),
        rules.default.as_deref(),
    ) {
        (Some(name), _) => Some((name, Reason::Label)),
        (None, Some(name)) => Some((name, Reason::Default)),
        (None, None) => None,
    };
    if let Some((name, reason)) = wanted {
        return if available.contains(name) {
            Ok(chosen(Some(name), reason))
        } else {
            Err(Trouble::NoSuchConfig {
                name: name.to_owned(),
                reason,
                place: place.to_owned(),
                available: available.iter().cloned().collect(),
            })
        };
    }
    rules
        .fallbacks
        .iter()
        .find_map(|fallback| {
            let name = match fallback {
                Fallback::Named => Some(available.get(NAMED)?.as_str()),
                Fallback::Single if available.len() == 1 => Some(available.first()?.as_str()),
                Fallback::Single => return None,
                Fallback::Empty => None,
            };
            Some(chosen(name, Reason::Fallback(*fallback)))
        })
        .ok_or_else(|| Trouble::NothingChosen {
            label: rules.label.clone(),
            place: place.to_owned(),
            available: available.iter().cloned().collect(),
        })
}

fn chosen(name: Option<&str>, reason: Reason) -> Chosen {
    Chosen {
        name: name.map(str::to_owned),
        reason,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;

    use super::Fallback::{Empty, Named, Single};
    use super::*;

    fn outcome(
        label: Option<&str>,
        default: Option<&str>,
        fallbacks: &[Fallback],
        names: &[&str],
    ) -> Result<(Option<String>, Reason), Trouble> {
        let rules = Rules {
            label: "key".to_owned(),
            default: default.map(str::to_owned),
            fallbacks: fallbacks.to_vec(),
        };
        let available = names.iter().map(|name| (*name).to_owned()).collect();
        choose(label, &rules, &available, "here").map(|chosen| (chosen.name, chosen.reason))
    }

    #[rstest]
    #[case::label(Some("a"), None, &[], &["a", "b"], Some("a"), Reason::Label)]
    #[case::label_wins(Some("a"), Some("b"), &[Named, Empty], &["a", "b", "default"], Some("a"), Reason::Label)]
    #[case::no_label(None, Some("b"), &[Named, Empty], &["a", "b", "default"], Some("b"), Reason::Default)]
    #[case::empty_label(Some(""), Some("b"), &[], &["a", "b"], Some("b"), Reason::Default)]
    #[case::named(None, None, &[Named, Single], &["a", "default"], Some("default"), Reason::Fallback(Named))]
    #[case::single(None, None, &[Named, Single], &["a"], Some("a"), Reason::Fallback(Single))]
    #[case::in_order(None, None, &[Single, Named], &["default"], Some("default"), Reason::Fallback(Single))]
    #[case::several(None, None, &[Single, Named], &["a", "default"], Some("default"), Reason::Fallback(Named))]
    #[case::empty(None, None, &[Named, Single, Empty], &["a", "b"], None, Reason::Fallback(Empty))]
    #[case::empty_first(None, None, &[Empty, Named], &["default"], None, Reason::Fallback(Empty))]
    #[case::empty_of_none(None, None, &[Named, Single, Empty], &[], None, Reason::Fallback(Empty))]
    fn the_first_that_applies_is_chosen(
        #[case] label: Option<&str>,
        #[case] default: Option<&str>,
        #[case] fallbacks: &[Fallback],
        #[case] names: &[&str],
        #[case] name: Option<&str>,
        #[case] reason: Reason,
    ) {
        let expected = (name.map(str::to_owned), reason);
        assert_eq!(outcome(label, default, fallbacks, names), Ok(expected));
    }

    #[rstest]
    // Whoever names a configuration gets that one or none.
    #[case::label(Some("x"), Some("a"), Reason::Label)]
    #[case::default(None, Some("x"), Reason::Default)]
    #[case::path(None, Some("../x"), Reason::Default)]
    #[case::case_matters(Some("A"), None, Reason::Label)]
    fn a_name_that_does_not_exist_is_no_reason_to_fall_back(
        #[case] label: Option<&str>,
        #[case] default: Option<&str>,
        #[case] by: Reason,
    ) {
        let trouble = outcome(label, default, &[Named, Single, Empty], &["a"]).unwrap_err();
        let Trouble::NoSuchConfig {
            name,
            reason,
            available,
            ..
        } = trouble
        else {
            panic!("{trouble}")
        };
        assert_eq!(Some(name.as_str()), label.or(default));
        assert_eq!(reason, by);
        assert_eq!(available, ["a"]);
    }

    #[rstest]
    #[case(&[], &["a"])]
    #[case(&[Named], &["a"])]
    #[case(&[Single], &["a", "b"])]
    #[case(&[Named, Single], &[])]
    fn where_nothing_applies_nothing_is_chosen(
        #[case] fallbacks: &[Fallback],
        #[case] names: &[&str],
    ) {
        let trouble = outcome(None, None, fallbacks, names).unwrap_err();
        assert!(
            matches!(&trouble, Trouble::NothingChosen { label, available, .. } if label == "key" && available == names),
            "{trouble}"
        );
    }
}
