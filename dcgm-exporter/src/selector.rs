//! Which GPUs and GPU instances are exported: dcgm-exporter's device selector.
//!
//! `f`: of a GPU that is cut into instances the instances, of any other the GPU. `g`: GPUs. `i`: instances. `g` and `i`
//! take numbers, `g:0,2-4`, and can be joined with `+`. A GPU's number is its index. An instance's is DCGM's: eight times
//! the index of its GPU, plus its place among that GPU's instances in the order of their ids.

use std::fmt;
use std::str::FromStr;

/// DCGM's limits: GPUs of a node, and the numbers each has for its instances.
const MAX_GPUS: u32 = 32;
pub(crate) const NUMBERS_PER_GPU: u32 = 8;
const MAX_ID: u32 = MAX_GPUS * NUMBERS_PER_GPU - 1;

/// A selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// Instances where there are some, else the GPU.
    Flex,
    /// What is named.
    Named {
        /// GPUs, if selected at all.
        gpus: Option<Ids>,
        /// GPU instances, if selected at all.
        instances: Option<Ids>,
    },
}

/// Numbers of one kind of entity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ids {
    /// Every one.
    All,
    /// These, ascending.
    These(Vec<u32>),
}

impl Ids {
    /// Whether the number is among them.
    pub fn contains(&self, id: u32) -> bool {
        match self {
            Self::All => true,
            Self::These(ids) => ids.binary_search(&id).is_ok(),
        }
    }

    /// The numbers that are named one by one.
    pub fn named(&self) -> &[u32] {
        match self {
            Self::All => &[],
            Self::These(ids) => ids,
        }
    }
}

/// The text is no device selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device selector {text:?}: {fault}; use f, g, i, g:0,2-4 or g+i")]
pub struct SelectorError {
    /// What was given.
    pub text: String,
    /// What is wrong with it.
    pub fault: SelectorFault,
}

/// What is wrong with a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectorFault {
    /// A part that begins with neither `f`, `g` nor `i`.
    Part(String),
    /// A kind given twice, or `f` together with another.
    Twice,
    /// Not a number, or more than any node has.
    Number(String),
    /// A range that ends before it begins.
    Range(String),
}

impl fmt::Display for SelectorFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Part(part) => write!(f, "{part:?} is neither f, g nor i"),
            Self::Twice => f.write_str("f stands alone, g and i at most once each"),
            Self::Number(text) => write!(f, "{text:?} is not a number from 0 to {MAX_ID}"),
            Self::Range(text) => write!(f, "{text:?} ends before it begins"),
        }
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        parse(text).map_err(|fault| SelectorError {
            text: text.to_owned(),
            fault,
        })
    }
}

fn parse(text: &str) -> Result<Selector, SelectorFault> {
    if text.trim() == "f" {
        return Ok(Selector::Flex);
    }
    let (mut gpus, mut instances) = (None, None);
    for part in text.split('+').map(str::trim) {
        let (kind, numbers) = match part.split_once(':') {
            None => (part, Ids::All),
            Some((kind, numbers)) => (kind, ids(numbers)?),
        };
        let slot = match kind {
            "g" => &mut gpus,
            "i" => &mut instances,
            "f" => return Err(SelectorFault::Twice),
            _ => return Err(SelectorFault::Part(part.to_owned())),
        };
        if slot.replace(numbers).is_some() {
            return Err(SelectorFault::Twice);
        }
    }
    Ok(Selector::Named { gpus, instances })
}

fn ids(text: &str) -> Result<Ids, SelectorFault> {
    let mut ids = Vec::new();
    for part in text.split(',').map(str::trim) {
        match part.split_once('-') {
            None => ids.push(number(part)?),
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if last < first {
                    return Err(SelectorFault::Range(part.to_owned()));
                }
                ids.extend(first..=last);
            }
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(Ids::These(ids))
}

fn number(text: &str) -> Result<u32, SelectorFault> {
    text.parse()
        .ok()
        .filter(|&n| n <= MAX_ID)
        .ok_or_else(|| SelectorFault::Number(text.to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn these(ids: &[u32]) -> Option<Ids> {
        Some(Ids::These(ids.to_vec()))
    }

    #[rstest]
    #[case("f", Selector::Flex)]
    #[case("g", Selector::Named { gpus: Some(Ids::All), instances: None })]
    #[case("i", Selector::Named { gpus: None, instances: Some(Ids::All) })]
    #[case("g:0,2-4", Selector::Named { gpus: these(&[0, 2, 3, 4]), instances: None })]
    #[case("i:7,7,1", Selector::Named { gpus: None, instances: these(&[1, 7]) })]
    #[case("g+i", Selector::Named { gpus: Some(Ids::All), instances: Some(Ids::All) })]
    #[case("g:0-1+i:3", Selector::Named { gpus: these(&[0, 1]), instances: these(&[3]) })]
    fn selectors(#[case] text: &str, #[case] wanted: Selector) {
        assert_eq!(text.parse(), Ok(wanted));
    }

    #[rstest]
    #[case("", SelectorFault::Part(String::new()))]
    #[case("x", SelectorFault::Part("x".to_owned()))]
    #[case("f+g", SelectorFault::Twice)]
    #[case("g:1+g:2", SelectorFault::Twice)]
    #[case("g:", SelectorFault::Number(String::new()))]
    #[case("g:1,-2", SelectorFault::Number(String::new()))]
    #[case("g:4-2", SelectorFault::Range("4-2".to_owned()))]
    #[case("i:0-4294967295", SelectorFault::Number("4294967295".to_owned()))]
    fn not_selectors(#[case] text: &str, #[case] fault: SelectorFault) {
        assert_eq!(
            text.parse::<Selector>(),
            Err(SelectorError {
                text: text.to_owned(),
                fault
            })
        );
    }

    proptest! {
        #[test]
        fn any_text_gives_an_answer(text in "[fgi:+0-9,\\- ]{0,40}") {
            let _ = text.parse::<Selector>();
        }
    }
}
