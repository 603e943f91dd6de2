//! Go's notation for durations, which flags and configuration files of the programs we stand in for use.

use std::time::Duration;

/// The text is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration: write it like 60s, 1m30s, 500ms or infinite")]
pub struct BadDuration(pub String);

/// How long to wait between two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// This long.
    Every(Duration),
    /// Only events make it look again.
    Infinite,
}

impl std::str::FromStr for Interval {
    type Err = BadDuration;

    fn from_str(text: &str) -> Result<Self, BadDuration> {
        if text == "infinite" {
            return Ok(Self::Infinite);
        }
        let duration = parse(text).ok_or_else(|| BadDuration(text.to_owned()))?;
        // Zero would be a busy loop.
        if duration.is_zero() {
            Err(BadDuration(text.to_owned()))
        } else {
            Ok(Self::Every(duration))
        }
    }
}

/// A sequence of decimal numbers with units, `0` alone needs none.
fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(rest.len());
        seconds += number
            * match &rest[..end] {
                "ns" => 1e-9,
                "us" | "µs" | "μs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = &rest[end..];
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("60s", Interval::Every(Duration::from_secs(60)))]
    #[case("1m30s", Interval::Every(Duration::from_secs(90)))]
    #[case("1.5h", Interval::Every(Duration::from_secs(5400)))]
    #[case("500ms", Interval::Every(Duration::from_millis(500)))]
    #[case("infinite", Interval::Infinite)]
    fn intervals(#[case] text: &str, #[case] wanted: Interval) {
        assert_eq!(text.parse(), Ok(wanted));
    }

    #[rstest]
    fn not_intervals(
        #[values(
            "", "60", "s", "-1s", "1x", "0", "0s", "1.2.3s", "1s2", "Infinite", "9e99h"
        )]
        text: &str,
    ) {
        assert_eq!(text.parse::<Interval>(), Err(BadDuration(text.to_owned())));
    }
}
