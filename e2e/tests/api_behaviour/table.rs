//! The form of the table: cases, each a series of steps. Knows no server.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// One behaviour.
///
/// In every string of it `$ns` stands for a namespace of the case's own (and makes names of cluster-scoped objects
/// unique), and `$name` for what an earlier step saved. Expected strings may hold the marks of [`crate::compare`].
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    /// What is promised.
    pub(crate) case: String,
    pub(crate) steps: Vec<Step>,
    /// Paths deleted at the end, beside the namespace and what is in it.
    #[serde(default)]
    pub(crate) cleanup: Vec<String>,
}

/// One step: a request, a watch that starts, or the events of a watch.
#[derive(Debug, Clone, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Step {
    /// Method and path of a request.
    pub(crate) request: Option<String>,
    /// Several requests sent at the same time; `codes` says how they end, sorted.
    pub(crate) race: Vec<Step>,
    pub(crate) codes: Vec<u16>,
    /// Path of a watch that starts; its events are `events` of later steps.
    pub(crate) watch: Option<String>,
    /// The name of the watch, where a case has several.
    pub(crate) name: String,
    /// The next events of a watch, bookmarks too.
    pub(crate) events: Option<Vec<Value>>,
    /// Whether the watch ends after them.
    pub(crate) end: bool,

    /// The format of a patch: `json`, `merge`, `strategic`, `apply`.
    pub(crate) patch: Option<String>,
    /// The body; `text` sends it as it stands.
    pub(crate) body: Option<Value>,
    pub(crate) text: Option<String>,
    /// Headers.
    pub(crate) accept: Option<String>,
    pub(crate) content: Option<String>,
    pub(crate) agent: Option<String>,

    /// The HTTP status; 200 when nothing is said.
    pub(crate) code: Option<u16>,
    /// What the answer holds, at least.
    pub(crate) object: Option<Value>,
    /// What the answer holds at these JSON pointers, no more and no less.
    pub(crate) exact: BTreeMap<String, Value>,
    /// The whole `Status` of a failure, less what every failure has.
    pub(crate) error: Option<Value>,
    /// The texts of the `Warning` headers.
    pub(crate) warnings: Vec<String>,
    /// JSON pointers into the answer whose values are saved under a name.
    pub(crate) save: BTreeMap<String, String>,
    /// Whether the answer may take a while to become what is expected: a controller has its part in it.
    pub(crate) eventually: bool,
}

/// The whole table, by file.
pub(crate) fn read() -> Vec<(String, Case)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api_behaviour/cases");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let cases: Vec<Case> = serde_saphyr::from_str(&text)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        all.extend(cases.into_iter().map(|case| (name.clone(), case)));
    }
    all
}

/// Replaces `$name` in every string.
pub(crate) fn fill(value: &mut Value, names: &BTreeMap<String, String>) {
    match value {
        Value::String(text) => *text = filled(text, names),
        Value::Array(items) => items.iter_mut().for_each(|item| fill(item, names)),
        Value::Object(map) => {
            let old = std::mem::take(map);
            for (key, mut field) in old {
                fill(&mut field, names);
                map.insert(filled(&key, names), field);
            }
        }
        _ => {}
    }
}

/// `text` with every `$name` replaced. Longer names go first, or `$ns2` would be taken for `$ns`.
pub(crate) fn filled(text: &str, names: &BTreeMap<String, String>) -> String {
    let mut filled = text.to_owned();
    for (name, value) in names.iter().rev() {
        filled = filled.replace(&format!("${name}"), value);
    }
    filled
}
