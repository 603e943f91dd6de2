//! Policy files: what they say, and where they are wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn rule(text: &str, cause: Cause) -> Rule {
    Policy::parse("p", text.as_bytes()).unwrap().rule(cause)
}

fn recheck(seconds: u64, checks: &[Check]) -> Rule {
    Rule::Unhealthy(Until::Recheck {
        quiet: Duration::from_secs(seconds),
        checks: checks.iter().copied().collect(),
    })
}

#[rstest]
#[case("never", Rule::Never)]
#[case("untilReset", Rule::Unhealthy(Until::Reset))]
#[case("untilReplaced", Rule::Unhealthy(Until::Replaced))]
#[case("untilRecheck", recheck(300, &Check::USUAL))]
#[case("untilRecheck, quiet: 1m30s", recheck(90, &Check::USUAL))]
#[case("untilRecheck, checks: []", recheck(300, &[]))]
#[case("untilRecheck, checks: [thermal, rowRemapping]", recheck(300, &[Check::Thermal, Check::RowRemapping]))]
fn rules_of_xids(#[case] text: &str, #[case] wanted: Rule) {
    let named = format!("{{version: v1, xids: [{{xids: [7, 8], unhealthy: {text}}}]}}");
    for number in [7, 8] {
        assert_eq!(rule(&named, Cause::Xid(number)), wanted);
    }
    assert_eq!(rule(&named, Cause::Xid(9)), Rule::Unhealthy(Until::Reset));
    let others = format!("{{version: v1, xids: [{{xids: others, unhealthy: {text}}}]}}");
    assert_eq!(rule(&others, Cause::Xid(9)), wanted);
    // The built-in rules stay.
    assert_eq!(rule(&others, Cause::Xid(13)), Rule::Never);
}

#[test]
fn rules_of_conditions() {
    for cause in Cause::CONDITIONS {
        let text = format!(
            "{{version: v1, conditions: {{{}: {{unhealthy: untilReplaced}}}}}}",
            cause.key()
        );
        assert_eq!(rule(&text, cause), Rule::Unhealthy(Until::Replaced));
    }
    // What lasts is seen to be over; what happened needs a while.
    let text = "{version: v1, conditions: {thermal: {unhealthy: untilRecheck}, uncorrectedEcc: {unhealthy: untilRecheck}}}";
    assert_eq!(rule(text, Cause::Thermal), recheck(0, &[]));
    assert_eq!(
        rule(text, Cause::UncorrectedEcc),
        recheck(300, &Check::USUAL)
    );
}

#[rstest]
#[case("{}", "p:1:1: missing field `version`")]
#[case("version: v2", "p:1:10: version \"v2\" is not known: use v1")]
#[case("version: v1\nspeed: 3", "p:2:1: ")]
#[case("version: v1\ninterval: soon", "p:2:11: \"soon\" is no period")]
#[case("version: v1\ninterval: 100ms", "p:2:11: interval is shorter than 1s")]
#[case("version: v1\nxids:\n- xids: some\n  unhealthy: never", "p:3:9: ")]
#[case("version: v1\nxids:\n- xids: [79, x]\n  unhealthy: never", "p:3:14: ")]
#[case("version: v1\nxids:\n- xids: [-1]\n  unhealthy: never", "p:3:10: ")]
#[case("version: v1\nxids:\n- xids: [79]", "p:3:3: missing field `unhealthy`")]
#[case(
    "version: v1\nxids:\n- xids: [79]\n  unhealthy: often",
    "p:4:14: unhealthy: \"often\" is not known: use never, "
)]
#[case(
    "version: v1\nxids:\n- xids: [79]\n  unhealthy: never\n- xids: [1, 79]\n  unhealthy: never",
    "p:5:13: a second rule for XID 79"
)]
#[case(
    "version: v1\nxids:\n- xids: others\n  unhealthy: never\n- xids: others\n  unhealthy: never",
    "p:5:9: a second rule for the others"
)]
#[case(
    "version: v1\nxids:\n- xids: [79]\n  unhealthy: untilReset\n  quiet: 3s",
    "p:5:10: quiet has a meaning with untilRecheck only"
)]
#[case(
    "version: v1\nxids:\n- xids: [79]\n  unhealthy: never\n  checks: [thermal]",
    "p:5:12: checks have a meaning"
)]
#[case(
    "version: v1\nxids:\n- xids: [79]\n  unhealthy: untilRecheck\n  checks: [heat]",
    "p:5:12: unknown check \"heat\": use recoveryAction, "
)]
#[case(
    "version: v1\nxids:\n- xids: [79]\n  unhealthy: untilRecheck\n  quiet: 200h",
    "p:5:10: \"200h\" is no period"
)]
#[case(
    "version: v1\nconditions:\n  driver: {unhealthy: never}",
    "p:3:3: unknown condition \"driver\": use lost, "
)]
#[case(
    "version: v1\nconditions:\n  lost: {unhealthy: never, quiet: 1s}",
    "p:3:"
)]
#[case("version: v1\nconditions:\n  lost: never", "p:3:")]
#[case("", "p:1:1: ")]
fn wrong_files(#[case] text: &str, #[case] says: &str) {
    let error = Policy::parse("p", text.as_bytes()).unwrap_err().to_string();
    assert!(error.starts_with(says), "{error}");
}

#[rstest]
#[case("0s", Some(0))]
#[case("500ms", Some(500))]
#[case("90s", Some(90_000))]
#[case("1h2m3s", Some(3_723_000))]
#[case("", None)]
#[case("5", None)]
#[case("s", None)]
#[case("-5s", None)]
#[case("5 s", None)]
#[case("1.5s", None)]
#[case("5d", None)]
#[case("99999999999999999999s", None)]
#[case("18446744073709551615h", None)]
fn periods(#[case] text: &str, #[case] milliseconds: Option<u64>) {
    assert_eq!(period(text), milliseconds.map(Duration::from_millis));
}

/// The policy that the document shows in full is the built-in one.
#[test]
fn the_documents_policy_is_the_built_in_one() {
    let document = include_str!("../../../docs/device-plugin-health.md");
    let (_, rest) = document
        .split_once("```yaml\n# The built-in rules")
        .unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    let policy = Policy::parse("p", format!("#{text}").as_bytes()).unwrap();
    assert_eq!(policy, Policy::default());
    // It names every key, not only those that it must.
    for cause in Cause::CONDITIONS {
        assert!(text.contains(&format!("\n  {}:", cause.key())), "{cause}");
    }
    for number in 0..200 {
        let cause = Cause::Xid(number);
        if policy.rules.contains_key(&cause) {
            let named = text
                .lines()
                .filter(|line| line.trim_start().starts_with("- xids: ["));
            let words = named.flat_map(|line| line.split(|c: char| !c.is_ascii_digit()));
            assert_eq!(
                words.filter(|word| *word == number.to_string()).count(),
                1,
                "{cause}"
            );
        }
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        let _ = Policy::parse("p", text.as_bytes());
    }

    #[test]
    fn any_document_of_known_words_is_read_or_refused(
        lines in prop::collection::vec("( {0,4}|- )(version|interval|xids|conditions|lost|thermal|unhealthy|quiet|checks): ?(v1|30s|\\[\\]|\\[94, 94\\]|others|never|untilRecheck|\\{\\})?", 0..12)
    ) {
        let text = lines.join("\n");
        if let Err(error) = Policy::parse("p", text.as_bytes()) {
            prop_assert!(error.to_string().starts_with("p:"), "{}", error);
        }
    }
}
