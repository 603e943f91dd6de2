//! The page of `/metrics`: two families, written by hand.

use std::fmt::Write as _;

use super::supervisor::State;

/// The page. Names of resources need no escapes.
pub(super) fn page(state: &State) -> String {
    let wanted = || state.reports.iter().filter(|(_, report)| report.wanted);
    let mut page = String::from(
        "# HELP lathe_mps_daemon_ready Whether a resource's MPS daemon serves all that is configured.\n# TYPE lathe_mps_daemon_ready gauge\n",
    );
    // Writing to a String cannot fail.
    for (resource, report) in wanted() {
        let ready = u8::from(report.ready);
        let _ = writeln!(
            page,
            "lathe_mps_daemon_ready{{resource=\"{resource}\"}} {ready}"
        );
    }
    page.push_str(
        "# HELP lathe_mps_daemon_starts_total Starts of a resource's MPS daemon.\n# TYPE lathe_mps_daemon_starts_total counter\n",
    );
    for (resource, report) in wanted() {
        let starts = report.starts;
        let _ = writeln!(
            page,
            "lathe_mps_daemon_starts_total{{resource=\"{resource}\"}} {starts}"
        );
    }
    page
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::mps::Report;

    #[test]
    fn a_page_has_the_wanted_resources() {
        let report = |ready, starts| Report {
            wanted: starts > 0,
            ready,
            starts,
            trouble: None,
        };
        let mut state = State::default();
        state
            .reports
            .insert("gpu".parse().unwrap(), report(true, 1));
        state
            .reports
            .insert("small".parse().unwrap(), report(false, 7));
        state
            .reports
            .insert("old".parse().unwrap(), report(false, 0));
        let page = page(&state);
        let values: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            values,
            [
                "lathe_mps_daemon_ready{resource=\"nvidia.com/gpu\"} 1",
                "lathe_mps_daemon_ready{resource=\"nvidia.com/small\"} 0",
                "lathe_mps_daemon_starts_total{resource=\"nvidia.com/gpu\"} 1",
                "lathe_mps_daemon_starts_total{resource=\"nvidia.com/small\"} 7",
            ]
        );
    }
}
