//! Ages as `kubectl` prints them (`k8s.io/apimachinery/pkg/util/duration.HumanDuration`).

use jiff::Timestamp;
use serde_json::Value;

use crate::json;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// A span in seconds in at most two units, the second only while it still says something.
pub(crate) fn human(seconds: i64) -> String {
    let two = |large: i64, unit: &str, rest: i64, small: &str| {
        if rest == 0 {
            format!("{large}{unit}")
        } else {
            format!("{large}{unit}{rest}{small}")
        }
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..=0 => "0s".to_owned(),
        1..120 => format!("{seconds}s"),
        120..600 => two(seconds / MINUTE, "m", seconds % MINUTE, "s"),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => two(seconds / HOUR, "h", seconds % HOUR / MINUTE, "m"),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => two(seconds / DAY, "d", seconds % DAY / HOUR, "h"),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => two(seconds / YEAR, "y", seconds % YEAR / DAY, "d"),
        _ => format!("{}y", seconds / YEAR),
    }
}

/// How long ago the time at `path` is.
pub(crate) fn since(object: &Value, path: &[&str]) -> String {
    match json::text(object, path).parse::<Timestamp>() {
        Ok(time) => human(Timestamp::now().as_second() - time.as_second()),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// The age of an object.
pub(crate) fn of(object: &Value) -> Value {
    Value::from(since(object, &["metadata", "creationTimestamp"]))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::human;

    // The table of duration_test.go, and the edges between its rows.
    #[rstest]
    #[case(-2, "<invalid>")]
    #[case(-1, "0s")]
    #[case(0, "0s")]
    #[case(70, "70s")]
    #[case(119, "119s")]
    #[case(120, "2m")]
    #[case(190, "3m10s")]
    #[case(599, "9m59s")]
    #[case(600, "10m")]
    #[case(10_799, "179m")]
    #[case(10_800, "3h")]
    #[case(11_100, "3h5m")]
    #[case(28_799, "7h59m")]
    #[case(28_800, "8h")]
    #[case(172_799, "47h")]
    #[case(172_800, "2d")]
    #[case(176_400, "2d1h")]
    #[case(691_199, "7d23h")]
    #[case(691_200, "8d")]
    #[case(2 * 365 * 86_400 - 1, "729d")]
    #[case(2 * 365 * 86_400, "2y")]
    #[case((2 * 365 + 3) * 86_400, "2y3d")]
    #[case(8 * 365 * 86_400, "8y")]
    fn ages(#[case] seconds: i64, #[case] expected: &str) {
        assert_eq!(human(seconds), expected);
    }
}
