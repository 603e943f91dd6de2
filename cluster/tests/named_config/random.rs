//! Whatever happens to a node's label and to its configurations: once things are quiet, the node has what the rules say.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use cluster::named_config::{Rules, Selection, Source, follow};
use cluster::node::Node;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;
use sim_kubernetes::Server;
use tokio::time::timeout;

use crate::LABEL;
use crate::common::{BOUND, NAME, client, node, server, until};

/// The configuration of nodes without the label.
const DEFAULT: &str = "a";

#[derive(Clone, Debug)]
enum Step {
    Label(Option<&'static str>),
    Write(&'static str, u8),
    Remove(&'static str),
    BreakWatches,
    /// Milliseconds in which nothing happens: less or more than it takes to settle.
    Pause(u16),
}

fn name() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("a"), Just("b"), Just("c")]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::option::of(name()).prop_map(Step::Label),
        4 => (name(), any::<u8>()).prop_map(|(name, text)| Step::Write(name, text)),
        2 => name().prop_map(Step::Remove),
        1 => Just(Step::BreakWatches),
        3 => prop_oneof![Just(1), Just(60), Just(250)].prop_map(Step::Pause),
    ]
}

/// What the steps come to, by the rules.
#[derive(Debug, Default)]
struct Model {
    label: Option<&'static str>,
    configs: BTreeMap<&'static str, String>,
}

impl Model {
    fn take(&mut self, step: &Step) {
        match step {
            Step::Label(value) => self.label = *value,
            Step::Write(name, text) => {
                self.configs.insert(name, text.to_string());
            }
            Step::Remove(name) => {
                self.configs.remove(name);
            }
            Step::BreakWatches | Step::Pause(_) => {}
        }
    }

    fn agrees(&self, selection: &Selection) -> bool {
        let name = self.label.unwrap_or(DEFAULT);
        match self.configs.get(name) {
            // What is in force then depends on what was seen on the way.
            None => selection.trouble.is_some(),
            Some(text) => {
                let in_force = selection.in_force.as_ref();
                selection.trouble.is_none()
                    && in_force.is_some_and(|choice| {
                        choice.name.as_deref() == Some(name) && *choice.content == **text
                    })
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Folder,
    ConfigMap,
}

/// The hand that carries the steps out.
struct Hand<'a> {
    server: &'a Server,
    folder: &'a Path,
    place: Place,
    configs: BTreeMap<&'static str, String>,
}

impl Hand<'_> {
    async fn carry_out(&mut self, step: &Step) {
        match step {
            Step::Label(value) => {
                let labels = value.map_or(json!({}), |value| json!({ LABEL: value }));
                self.server.seed([node(labels)]).unwrap();
            }
            Step::Write(name, text) => {
                self.configs.insert(name, text.to_string());
                if let Place::Folder = self.place {
                    fs::write(self.folder.join(name), text.to_string()).unwrap();
                }
                self.put();
            }
            Step::Remove(name) => {
                let was_there = self.configs.remove(name).is_some();
                if let (Place::Folder, true) = (self.place, was_there) {
                    fs::remove_file(self.folder.join(name)).unwrap();
                }
                self.put();
            }
            Step::BreakWatches => self.server.faults().break_watches(),
            Step::Pause(time) => tokio::time::sleep(Duration::from_millis((*time).into())).await,
        }
    }

    fn put(&self) {
        if let Place::ConfigMap = self.place {
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": "configs", "namespace": "default" },
                "data": self.configs,
            });
            self.server.seed([object]).unwrap();
        }
    }
}

/// Carries the steps out, the first of them before anybody looks.
async fn play(place: Place, begin: usize, steps: Vec<Step>) {
    let server = server().await;
    let folder = tempfile::tempdir().unwrap();
    let mut model = Model::default();
    let mut hand = Hand {
        server: &server,
        folder: folder.path(),
        place,
        configs: BTreeMap::new(),
    };
    hand.put();
    let source = match place {
        Place::Folder => Source::Folder(folder.path().to_owned()),
        Place::ConfigMap => Source::ConfigMap {
            namespace: "default".to_owned(),
            name: "configs".to_owned(),
        },
    };
    let rules = Rules {
        default: Some(DEFAULT.to_owned()),
        ..Rules::default()
    };
    let client = client(&server).await;
    let mut seen = None;
    for (index, step) in steps.iter().enumerate() {
        if index == begin.min(steps.len() - 1) {
            seen = Some(follow(
                &Node::watch(client.clone(), NAME),
                rules.clone(),
                &source,
            ));
        }
        hand.carry_out(step).await;
        model.take(step);
    }
    let mut seen = seen.unwrap();
    let lasts = async {
        loop {
            until(&mut seen, |selection| model.agrees(selection)).await;
            // An agreement passes where the label is known anew and the ConfigMap not yet, or the other way round.
            let differs = seen.wait_for(|selection| !model.agrees(selection));
            if timeout(Duration::from_millis(700), differs).await.is_err() {
                return;
            }
        }
    };
    let agreed = timeout(BOUND, lasts).await;
    let last = seen.borrow().clone();
    assert!(agreed.is_ok(), "{steps:?}: {model:?} {last:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3, max_shrink_iters: 0, ..ProptestConfig::default() })]

    // Each case plays many sequences at once: most of the time is spent waiting for things to be quiet.
    #[test]
    fn in_the_end_the_node_has_what_the_rules_say(
        plays in vec((prop_oneof![Just(Place::Folder), Just(Place::ConfigMap)], 0..12usize, vec(step(), 1..25)), 16)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(futures::future::join_all(
            plays.into_iter().map(|(place, begin, steps)| play(place, begin, steps)),
        ));
    }
}
