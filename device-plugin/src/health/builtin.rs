//! The rules that hold where no policy file says otherwise.
//!
//! NVIDIA's plugin ignores six XIDs and takes every other as unhealthy until the plugin restarts. Here those others are
//! unhealthy until the GPU is reset, unless the vendor's catalogue of XIDs asks for no reset: then a recheck brings the
//! device back. Numbers that the catalogue does not name stay unhealthy until a reset.

use std::time::Duration;

use super::cause::Cause;
use super::rule::{Rule, Until};

/// Between looks at a GPU that is not well.
pub(super) const INTERVAL: Duration = Duration::from_secs(30);

/// How long trouble that ends by itself must be over. The vendor names no time; a job that hits the same defect again
/// does so sooner.
const QUIET: Duration = Duration::from_secs(300);

/// XIDs that NVIDIA's plugin ignores: the program on the GPU is at fault, and the GPU is well.
const IGNORED: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// XIDs after which the vendor asks for no reset: at most the program on the GPU has to start again. Of 63 (rows wait to be
/// remapped) and 154 (the recovery action changed) the rest is in what the checks look at.
const TRANSIENT: [u64; 9] = [63, 92, 94, 121, 137, 154, 157, 160, 161];

/// XIDs after which the vendor asks for a reset or a reboot (46 to 158 without 48, 74 and 144 to 150), or for an investigation:
/// judgement, since a device that nobody has looked into must not come back by itself.
const FATAL: [u64; 22] = [
    46, 48, 62, 64, 74, 79, 95, 119, 120, 136, 140, 143, 144, 145, 146, 147, 148, 149, 150, 155,
    156, 158,
];

/// The rules, XIDs without a rule of their own aside.
pub(super) fn rules() -> impl Iterator<Item = (Cause, Rule)> {
    let xids = |numbers: &'static [u64], rule: fn(Cause) -> Rule| {
        let causes = numbers.iter().map(|number| Cause::Xid(*number));
        causes.map(move |cause| (cause, rule(cause)))
    };
    let conditions = Cause::CONDITIONS.into_iter();
    xids(&IGNORED, |_| Rule::Never)
        .chain(xids(&TRANSIENT, |cause| {
            Rule::Unhealthy(Until::recheck(cause, QUIET))
        }))
        .chain(xids(&FATAL, |_| Rule::Unhealthy(Until::Reset)))
        .chain(conditions.map(|cause| (cause, condition(cause))))
}

/// The rule of an XID that no rule names.
pub(super) const OTHER_XIDS: Rule = Rule::Unhealthy(Until::Reset);

/// How long trouble must be over where a rule does not say: what lasts is seen to be over.
pub(super) const fn quiet(cause: Cause) -> Duration {
    if cause.lasts() { Duration::ZERO } else { QUIET }
}

/// The rule of a cause that is no XID.
pub(super) fn condition(cause: Cause) -> Rule {
    let while_it_lasts = || Rule::Unhealthy(Until::recheck(cause, Duration::ZERO));
    match cause {
        // The device cannot be used, or nobody would hear of its trouble; over when it is over.
        Cause::Driver | Cause::Lost | Cause::Reshaping | Cause::Unwatched => while_it_lasts(),
        // The driver itself recommends to drain or reset: no new pods meanwhile.
        Cause::RecoveryAction | Cause::RowRemapPending => while_it_lasts(),
        Cause::Unavailable => Rule::Unhealthy(Until::recheck(cause, INTERVAL)),
        Cause::UncontainedPoison => Rule::Unhealthy(Until::Reset),
        Cause::RowRemapFailure => Rule::Unhealthy(Until::Replaced),
        // As NVIDIA's plugin: the XID that comes with the event decides. It looks at neither counters nor heat.
        Cause::UncorrectedEcc
        | Cause::CorrectedEccStorm
        | Cause::ContainedPoison
        | Cause::Thermal
        | Cause::Xid(_) => Rule::Never,
    }
}
