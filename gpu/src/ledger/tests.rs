//! The ledger against situations made by hand, and against a kubelet that makes them up.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rstest::rstest;

use super::{
    Conflict, Container, Device, Knowledge, Ledger, Listed, MigDevice, Owner, PROVISIONAL, Wanted,
};

/// `0` is a GPU, `0:3` its MIG device with GPU instance 3.
fn device(text: &str) -> Device {
    match text.split_once(':') {
        None => Device {
            gpu: format!("GPU-{text}"),
            mig: None,
        },
        Some((gpu, instance)) => Device {
            gpu: format!("GPU-{gpu}"),
            mig: Some(MigDevice {
                uuid: format!("MIG-{gpu}-{instance}"),
                gpu_instance: instance.parse().unwrap(),
                compute_instance: 0,
            }),
        },
    }
}

/// The inverse of `device`, by UUID.
fn place(uuid: &str) -> Option<Device> {
    match uuid.split('-').collect::<Vec<_>>()[..] {
        ["GPU", gpu] => Some(device(gpu)),
        ["MIG", gpu, instance] => Some(device(&format!("{gpu}:{instance}"))),
        _ => None,
    }
}

/// `0`, `0:3`, either with `/2*4` for the share 2 of 4.
fn wanted(text: &str) -> Wanted {
    let (place, share) = match text.split_once('/') {
        None => (text, None),
        Some((place, share)) => (place, share.split_once('*')),
    };
    Wanted {
        device: device(place),
        share: share.map(|(share, _)| share.parse().unwrap()),
        shares: share.map_or(1, |(_, shares)| shares.parse().unwrap()),
    }
}

/// A resource, or a claim with `claim/`.
fn owner(text: &str) -> Owner {
    match text.strip_prefix("claim/") {
        None => Owner::Resource(text.to_owned()),
        Some(name) => Owner::Claim {
            namespace: "ml".to_owned(),
            name: name.to_owned(),
        },
    }
}

fn container(pod: &str) -> Container {
    Container {
        namespace: "ml".to_owned(),
        pod: pod.to_owned(),
        name: "main".to_owned(),
    }
}

fn listed(by: &str, what: &str, pod: &str) -> Listed {
    let Wanted { device, share, .. } = wanted(what);
    Listed {
        owner: owner(by),
        container: container(pod),
        uuid: device.uuid().to_owned(),
        share,
    }
}

fn grant(ledger: &mut Ledger, by: &str, what: &str, now: Instant) -> Result<(), Conflict> {
    let wanted: Vec<_> = what.split(' ').map(wanted).collect();
    ledger.grant(&owner(by), &wanted, Knowledge::Current, now)
}

#[rstest]
// What the kubelet does by itself: the same id again.
#[case("gpu 0", "gpu 0", None)]
#[case("gpu 0/1*4", "gpu 0/1*4", None)]
#[case("gpu 0/0*2 0/1*2", "gpu 0/0*2 0/1*2", None)]
#[case("gpu 0:3", "gpu 0:3", None)]
// Other devices.
#[case("gpu 0", "gpu 1", None)]
#[case("mig 0:3", "mig 0:4", None)]
#[case("mig 0:3", "gpu 1", None)]
#[case("claim/a 0:3", "mig 0:4", None)]
// One device under two names.
#[case("gpu 0", "a100 0", Some("GPU-0"))]
#[case("mig 0:3", "mig.small 0:3", Some("MIG-0-3"))]
// A GPU and its parts.
#[case("gpu 0", "mig 0:3", Some("MIG-0-3"))]
#[case("mig 0:3", "gpu 0", Some("GPU-0"))]
#[case("mig 0:3", "gpu 1 0", Some("GPU-0"))]
#[case("mig 0:3", "mig 0:3/0*2", None)]
// Shares.
#[case("gpu 0/0*2", "gpu 0/1*2", None)]
#[case("gpu 0/0*2 0/1*2", "gpu.shared 0/0*2", Some("GPU-0"))]
#[case("gpu 0/0*4 0/1*4 0/2*4", "gpu 0/0*2", Some("GPU-0"))]
#[case("gpu 0/0*4", "gpu.shared 0/0*4", None)]
#[case("gpu 0/0*4", "gpu 0", Some("GPU-0"))]
// Shared from now on: who had it alone has one of the shares.
#[case("gpu 0", "gpu 0/0*4 0/1*4 0/2*4", None)]
#[case("gpu 0", "gpu 0/0*4 0/1*4 0/2*4 0/3*4", Some("GPU-0"))]
#[case("claim/a 0", "claim/b 0/0*4", Some("GPU-0"))]
#[case("gpu 0/0*4", "mig 0:3/0*4", Some("MIG-0-3"))]
// A plugin and a DRA driver.
#[case("claim/a 0", "gpu 0", Some("GPU-0"))]
#[case("gpu 0", "claim/a 0", Some("GPU-0"))]
#[case("claim/a 0", "claim/a 0", None)]
#[case("claim/a 0", "claim/b 0", Some("GPU-0"))]
#[case("claim/a 0:3", "gpu 0", Some("GPU-0"))]
#[case("claim/a 0/0*4", "gpu 0/1*4", Some("GPU-0"))]
#[case("claim/a 0/0*4", "claim/b 0/1*4", None)]
fn second_grants(#[case] first: &str, #[case] second: &str, #[case] refused: Option<&str>) {
    let now = Instant::now();
    let part = |text: &'static str| text.split_once(' ').unwrap();
    let first: &'static str = first.to_owned().leak();
    let second: &'static str = second.to_owned().leak();
    let mut ledger = Ledger::default();
    let (by, what) = part(first);
    grant(&mut ledger, by, what, now).unwrap();
    let before = ledger.clone();
    let (by, what) = part(second);
    let answer = grant(&mut ledger, by, what, now);
    let device = answer.as_ref().err().map(|conflict| match conflict {
        Conflict::Held { device, .. } | Conflict::Shares { device, .. } => device.as_str(),
    });
    assert_eq!(device, refused, "{answer:?}");
    if refused.is_some() {
        assert_eq!(ledger, before, "a refusal leaves nothing behind");
    }
}

/// A container keeps the nodes of its GPU instance, which are numbered: whoever gets the number next gets them too.
#[test]
fn a_former_gpu_instance_leads_to_the_present_one() {
    let now = Instant::now();
    let mut ledger = Ledger::default();
    grant(&mut ledger, "mig-1g.10gb", "0:3", now).unwrap();
    let mut anew = wanted("0:3");
    anew.device.mig.as_mut().unwrap().uuid = "MIG-anew".to_owned();
    let owner = owner("mig-2g.20gb");
    assert!(
        ledger
            .grant(&owner, &[anew], Knowledge::Current, now)
            .is_err()
    );
}

#[test]
fn refusals_name_who_has_it() {
    let now = Instant::now();
    let mut ledger = Ledger::default();
    grant(&mut ledger, "nvidia.com/mig-1g.10gb", "0:7", now).unwrap();
    let starting = grant(&mut ledger, "nvidia.com/gpu", "0", now).unwrap_err();
    assert_eq!(
        starting.to_string(),
        "GPU-0 cannot be given: a pod that is starting has MIG-0-7 as nvidia.com/mig-1g.10gb; end that pod first"
    );
    let list = vec![listed("nvidia.com/mig-1g.10gb", "0:7", "train")];
    ledger.reconcile(list, place, now + Duration::from_secs(1));
    let running = grant(&mut ledger, "nvidia.com/gpu", "0", now).unwrap_err();
    assert_eq!(
        running.to_string(),
        "GPU-0 cannot be given: container main of pod ml/train has MIG-0-7 as nvidia.com/mig-1g.10gb; end that pod first"
    );
    grant(&mut ledger, "claim/one", "1/0*2", now).unwrap();
    grant(&mut ledger, "claim/two", "1/1*2", now).unwrap();
    let shares = grant(&mut ledger, "claim/three", "1/2*2", now).unwrap_err();
    assert_eq!(
        shares.to_string(),
        "GPU-1 cannot be given: it has 2 shares, and as many containers have one; for one, a pod that is starting has GPU-1 through claim ml/two; end one of those pods first"
    );
}

#[test]
fn a_list_confirms_and_frees() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut ledger = Ledger::default();
    grant(&mut ledger, "gpu", "0 1", at(0)).unwrap();
    // Only GPU-0 is listed yet; the other is too young to be dropped.
    ledger.reconcile(vec![listed("gpu", "0", "a")], place, at(1));
    assert!(grant(&mut ledger, "a100", "0", at(2)).is_err());
    assert!(grant(&mut ledger, "a100", "1", at(2)).is_err());
    // The pod ends: a list without it frees GPU-0 at once.
    ledger.reconcile(vec![], place, at(3));
    assert_eq!(grant(&mut ledger, "a100", "0", at(3)), Ok(()));
    // Nobody ever confirmed GPU-1.
    let last = start + PROVISIONAL - Duration::from_millis(1);
    assert!(grant(&mut ledger, "a100", "1", last).is_err());
    assert_eq!(grant(&mut ledger, "a100", "1", start + PROVISIONAL), Ok(()));
}

#[test]
fn a_list_from_before_a_grant_does_not_speak_of_it() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut ledger = Ledger::default();
    ledger.reconcile(vec![listed("gpu", "0", "former")], place, at(0));
    grant(&mut ledger, "gpu", "0", at(5)).unwrap();
    ledger.reconcile(vec![listed("gpu", "0", "former")], place, at(4));
    let holders: Vec<_> = ledger.holders().map(|holder| holder.container).collect();
    assert_eq!(holders, [None]);
    ledger.reconcile(vec![listed("gpu", "0", "new")], place, at(6));
    let holders: Vec<_> = ledger.holders().map(|holder| holder.container).collect();
    assert_eq!(holders, [Some(container("new"))]);
}

#[test]
fn claims_granted_here_last_until_released() {
    let start = Instant::now();
    let late = start + 2 * PROVISIONAL;
    let mut ledger = Ledger::default();
    grant(&mut ledger, "claim/own", "0", start).unwrap();
    ledger.reconcile(vec![listed("claim/foreign", "1", "a")], place, late);
    assert!(grant(&mut ledger, "gpu", "0", late).is_err());
    assert!(grant(&mut ledger, "gpu", "1", late).is_err());
    ledger.reconcile(vec![], place, late);
    assert!(grant(&mut ledger, "gpu", "0", late).is_err());
    assert_eq!(grant(&mut ledger, "gpu", "1", late), Ok(()));
    ledger.release(&owner("claim/own"));
    assert_eq!(grant(&mut ledger, "gpu", "0", late), Ok(()));
}

#[test]
fn without_a_list_only_what_is_certain_counts() {
    let now = Instant::now();
    let mut ledger = Ledger::default();
    ledger.reconcile(
        vec![listed("gpu", "0", "a"), listed("claim/foreign", "1", "a")],
        place,
        now,
    );
    grant(&mut ledger, "gpu", "2", now).unwrap();
    grant(&mut ledger, "claim/own", "3", now).unwrap();
    let refused = [0, 1, 2, 3].map(|gpu| {
        let wanted = [wanted(&gpu.to_string())];
        let answer = ledger.grant(&owner("a100"), &wanted, Knowledge::Stale, now);
        answer.is_err()
    });
    assert_eq!(refused, [false, false, false, true]);
}

#[test]
fn devices_that_are_gone_keep_their_place() {
    let now = Instant::now();
    let gone = |uuid: &str| place(uuid).filter(|device| device.mig.is_none());
    let list = || vec![listed("mig", "0:3", "a")];
    let mut ledger = Ledger::default();
    ledger.reconcile(list(), place, now);
    ledger.reconcile(list(), gone, now);
    assert!(grant(&mut ledger, "gpu", "0", now).is_err());
    // After a restart nobody knows whose part it was.
    let mut ledger = Ledger::default();
    ledger.reconcile(list(), gone, now);
    assert_eq!(grant(&mut ledger, "gpu", "0", now), Ok(()));
}

/// What happens on a node.
#[derive(Clone, Debug)]
enum Event {
    /// A pod asks for the id at this position of what the node offers under its present configuration.
    Ask(usize),
    /// The pod at this position ends.
    End(usize),
    /// The configuration changes to this one.
    Configure(usize),
    /// The plugin is restarted.
    Restart,
}

/// What is offered of two GPUs: resource and id.
fn offers(configuration: usize) -> Vec<(&'static str, String)> {
    let both = |resource, ids: &[&str]| {
        let per_gpu = |gpu| ids.iter().map(move |id| (resource, id.replace('#', gpu)));
        per_gpu("0").chain(per_gpu("1")).collect()
    };
    match configuration {
        0 => both("gpu", &["#"]),
        1 => both("a100", &["#"]),
        2 => both("gpu", &["#/0*2", "#/1*2"]),
        3 => both("gpu.shared", &["#/0*4", "#/1*4", "#/2*4", "#/3*4"]),
        4 => both("mig", &["#:1", "#:2"]),
        _ => both("mig.shared", &["#:1/0*2", "#:1/1*2"]),
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0_usize..8).prop_map(Event::Ask),
        3 => (0_usize..8).prop_map(Event::End),
        2 => (0_usize..6).prop_map(Event::Configure),
        1 => Just(Event::Restart),
    ]
}

proptest! {
    /// A kubelet that knows its own resources and nothing else: it never gives an id of a resource twice. Whatever the
    /// configuration does meanwhile, no device gets more holders than it may have; and what it does by itself, between two
    /// changes of the configuration, is never refused.
    #[test]
    fn no_device_beyond_its_shares(events in proptest::collection::vec(event(), 1..60)) {
        let mut now = Instant::now();
        let mut ledger = Ledger::default();
        let mut configuration = 0;
        let mut pods: Vec<(&str, String)> = Vec::new();
        for (turn, event) in events.into_iter().enumerate() {
            now += Duration::from_secs(1);
            let list = |pods: &[(&str, String)]| {
                pods.iter().map(|(by, id)| listed(by, id, "pod")).collect::<Vec<_>>()
            };
            if turn % 2 == 0 || matches!(event, Event::End(_)) {
                ledger.reconcile(list(&pods), place, now);
            }
            match event {
                Event::Ask(position) => {
                    let offers = offers(configuration);
                    let (by, id) = offers[position % offers.len()].clone();
                    let share = |id: &str| id.split('*').next().map(str::to_owned);
                    if pods.iter().any(|(other, held)| *other == by && share(held) == share(&id)) {
                        continue;
                    }
                    let mut answer = grant(&mut ledger, by, &id, now);
                    if answer.is_err() {
                        ledger.reconcile(list(&pods), place, now);
                        answer = grant(&mut ledger, by, &id, now);
                    }
                    if answer.is_ok() {
                        pods.push((by, id));
                    } else {
                        prop_assert!(pods.iter().any(|(other, held)| *other != by || held.contains('/') != id.contains('/')));
                    }
                }
                // A pod that ends sooner holds its devices until then.
                Event::End(position) if position < pods.len() => {
                    pods.remove(position);
                    now += PROVISIONAL;
                }
                Event::End(_) => {}
                Event::Configure(to) => configuration = to,
                Event::Restart => {
                    // By then, every grant has been confirmed or has become too old.
                    now += PROVISIONAL;
                    ledger.reconcile(list(&pods), place, now);
                    let mut rebuilt = Ledger::default();
                    rebuilt.reconcile(list(&pods), place, now);
                    prop_assert_eq!(&rebuilt, &ledger);
                    ledger = rebuilt;
                }
            }
            let mut holders = BTreeMap::<String, Vec<Wanted>>::new();
            for (_, id) in &pods {
                let held = wanted(id);
                holders.entry(held.device.gpu.clone()).or_default().push(held);
            }
            for held in holders.values() {
                let devices: BTreeSet<_> = held.iter().map(|one| &one.device).collect();
                let whole = devices.iter().any(|device| device.mig.is_none());
                prop_assert!(!whole || devices.len() == 1, "a GPU and its parts: {held:?}");
                for device in devices {
                    let on: Vec<_> = held.iter().filter(|one| one.device == *device).collect();
                    let most = on.iter().map(|one| one.shares as usize).max().unwrap_or(1);
                    prop_assert!(on.len() <= most, "{device:?} beyond its shares: {held:?}");
                }
            }
        }
    }
}
