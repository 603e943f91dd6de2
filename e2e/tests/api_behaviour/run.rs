//! Runs the table against one server, several cases at a time, and reports every difference at once.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{FutureExt, StreamExt, future, stream};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::compare::compare;
use crate::exchange::{Answer, Api, Events};
use crate::table::{self, Case, Step, fill, filled};

/// How many cases run at once.
const AT_ONCE: usize = 8;
/// How long a step that takes controllers may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs every case, or those with `LATHE_CASE` in their file's or their own name.
pub(crate) async fn table(api: &Api) {
    let only = std::env::var("LATHE_CASE").unwrap_or_default();
    let cases: Vec<(String, Case)> = table::read()
        .into_iter()
        .filter(|(file, case)| format!("{file}: {}", case.case).contains(&only))
        .collect();
    let count = cases.len();
    let failures: Vec<String> = stream::iter(cases.into_iter().enumerate())
        .map(|(number, (file, case))| async move {
            let namespace = format!("case-{number}-{}", std::process::id());
            let found = std::panic::AssertUnwindSafe(one(api, &case, &namespace))
                .catch_unwind()
                .await
                .unwrap_or_else(|panic| vec![message(panic.as_ref())]);
            (!found.is_empty())
                .then(|| format!("{file}: {}\n    {}", case.case, found.join("\n    ")))
        })
        .buffer_unordered(AT_ONCE)
        .filter_map(future::ready)
        .collect()
        .await;
    assert!(
        failures.is_empty(),
        "{} of {count} cases failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
    eprintln!("{count} cases");
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "panicked".to_owned())
}

fn request(line: String, body: Option<Value>) -> Step {
    Step {
        request: Some(line),
        body,
        ..Step::default()
    }
}

/// Runs one case; what differed.
async fn one(api: &Api, case: &Case, namespace: &str) -> Vec<String> {
    let new = json!({"metadata": {"name": namespace}});
    let created = api
        .send(&request("POST /api/v1/namespaces".to_owned(), Some(new)))
        .await;
    assert_eq!(created.code, 201, "the namespace: {}", created.body);
    // Pods are refused while the account they run under is missing; a controller makes it, sooner or later.
    let account = json!({"metadata": {"name": "default"}});
    let path = format!("POST /api/v1/namespaces/{namespace}/serviceaccounts");
    api.send(&request(path, Some(account))).await;

    let mut state = State {
        names: BTreeMap::from([("ns".to_owned(), namespace.to_owned())]),
        watches: BTreeMap::new(),
    };
    let mut found = Vec::new();
    for (place, step) in case.steps.iter().enumerate() {
        let result = std::panic::AssertUnwindSafe(state.step(api, step))
            .catch_unwind()
            .await;
        let differs = result.unwrap_or_else(|panic| vec![message(panic.as_ref())]);
        if !differs.is_empty() {
            found = differs;
            let line = step.request.as_deref().unwrap_or("");
            found.insert(0, format!("step {}: {line}", place + 1));
            break;
        }
    }
    for path in &case.cleanup {
        api.send(&request(format!("DELETE {}", state.filled(path)), None))
            .await;
    }
    let pods = format!("DELETE /api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0");
    api.send(&request(pods, None)).await;
    api.send(&request(
        format!("DELETE /api/v1/namespaces/{namespace}"),
        None,
    ))
    .await;
    found
}

/// What a case has so far.
struct State {
    names: BTreeMap<String, String>,
    watches: BTreeMap<String, Events>,
}

impl State {
    fn filled(&self, text: &str) -> String {
        filled(text, &self.names)
    }

    fn fill(&self, step: &Step) -> Step {
        let mut step = step.clone();
        let values = [&mut step.body, &mut step.object, &mut step.error];
        values
            .into_iter()
            .flatten()
            .for_each(|value| fill(value, &self.names));
        step.exact
            .values_mut()
            .for_each(|value| fill(value, &self.names));
        step.events
            .iter_mut()
            .flatten()
            .for_each(|value| fill(value, &self.names));
        for text in [&mut step.request, &mut step.watch, &mut step.text]
            .into_iter()
            .flatten()
        {
            *text = self.filled(text);
        }
        for text in &mut step.warnings {
            *text = filled(text, &self.names);
        }
        step.race = step.race.iter().map(|step| self.fill(step)).collect();
        step
    }

    /// Does one step; what differed.
    async fn step(&mut self, api: &Api, step: &Step) -> Vec<String> {
        let step = self.fill(step);
        if let Some(path) = &step.watch {
            let events = api.watch(path, step.accept.as_deref()).await;
            self.watches.insert(step.name, events);
            return Vec::new();
        }
        if let Some(expected) = &step.events {
            return self.events(&step, expected).await;
        }
        if !step.race.is_empty() {
            let mut codes: Vec<u16> = future::join_all(step.race.iter().map(|step| api.send(step)))
                .await
                .iter()
                .map(|answer| answer.code)
                .collect();
            codes.sort_unstable();
            let differs = codes != step.codes;
            return Vec::from_iter(
                differs.then(|| format!("expected {:?}, got {codes:?}", step.codes)),
            );
        }
        let deadline = Instant::now() + PATIENCE;
        let mut pause = Duration::from_millis(50);
        loop {
            let answer = api.send(&step).await;
            let differs = differences(&step, &answer);
            if differs.is_empty() {
                for (name, pointer) in &step.save {
                    let value = answer
                        .body
                        .pointer(pointer)
                        .unwrap_or_else(|| panic!("nothing at {pointer}"));
                    let text = value
                        .as_str()
                        .map_or_else(|| value.to_string(), str::to_owned);
                    self.names.insert(name.clone(), text);
                }
                return differs;
            }
            if !step.eventually || Instant::now() > deadline {
                return differs;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    async fn events(&mut self, step: &Step, expected: &[Value]) -> Vec<String> {
        let events = self
            .watches
            .get_mut(&step.name)
            .expect("a watch of this name");
        let mut found = Vec::new();
        for (place, expected) in expected.iter().enumerate() {
            let Some(event) = events.next().await else {
                found.push(format!(
                    "event {place}: expected {expected}, the watch ended"
                ));
                return found;
            };
            compare(
                expected,
                Some(&event),
                false,
                &format!("event {place}"),
                &mut found,
            );
        }
        while step.end
            && let Some(event) = events.next().await
        {
            // Nobody promises how many bookmarks there are.
            if event["type"] != "BOOKMARK" {
                found.push(format!("expected the end of the watch, got {event}"));
            }
        }
        found
    }
}

/// Where an answer is not what its step expects.
fn differences(step: &Step, answer: &Answer) -> Vec<String> {
    let mut found = Vec::new();
    let code = match &step.error {
        Some(error) => error["code"]
            .as_u64()
            .and_then(|code| u16::try_from(code).ok()),
        None => Some(step.code.unwrap_or(200)),
    };
    if code != Some(answer.code) {
        // The rest would differ too, and hide the point.
        let expected = code.unwrap_or_default();
        found.push(format!(
            "expected {expected}, got {} {}",
            answer.code, answer.body
        ));
        return found;
    }
    if let Some(error) = &step.error {
        let mut whole =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"});
        for (name, field) in error.as_object().into_iter().flatten() {
            whole[name] = field.clone();
        }
        compare(&whole, Some(&answer.body), true, "", &mut found);
    }
    if let Some(object) = &step.object {
        compare(object, Some(&answer.body), false, "", &mut found);
    }
    for (pointer, value) in &step.exact {
        compare(
            value,
            answer.body.pointer(pointer),
            true,
            pointer,
            &mut found,
        );
    }
    let (expected, actual) = (json!(step.warnings), json!(answer.warnings));
    compare(&expected, Some(&actual), true, "warnings", &mut found);
    found
}
