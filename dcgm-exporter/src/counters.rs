//! Which fields are exported: the built-in set, or a counter file.
//!
//! A counter file has three columns: field, type, help. `#` begins a comment line, blanks around a column do not count,
//! and a help text with a comma is quoted as in CSV. A file replaces the built-in set. Every faulty row is reported, with
//! its line, and a file with one is not used at all.

use std::fmt;

use crate::fields::{self, FIELDS, Field, Kind, Source};

/// One exported family, or one label.
#[derive(Clone, Debug)]
pub struct Counter {
    /// The field.
    pub field: &'static Field,
    /// The name it was asked for by, which is the family's.
    pub name: String,
    /// The type it is declared with.
    pub kind: Kind,
    /// Help text.
    pub help: String,
}

/// The exported families and labels.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Families, ascending by field id.
    pub families: Vec<Counter>,
    /// Labels, ascending by name.
    pub labels: Vec<Counter>,
}

/// A row that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowError {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not three columns.
    #[error("{0} columns instead of 3 (field, type, help); quote a help text that has a comma")]
    Columns(usize),
    /// A quote that is not closed, or text around a quoted column.
    #[error("a quoted column does not end before the next comma or the end of the line")]
    Quote,
    /// No field has this name.
    #[error("unknown field {0:?}")]
    Field(String),
    /// A name of dcgm-exporter 1.x without the switch that allows it.
    #[error("{0:?} is a name of dcgm-exporter 1.x: use --use-old-namespace with it")]
    OldName(String),
    /// No such type.
    #[error("unknown type {0:?}: use gauge, counter, histogram, summary or label")]
    Type(String),
    /// The field is there already.
    #[error("the field is in line {0} already")]
    Twice(usize),
}

/// A counter file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct FileError(pub Vec<RowError>);

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, row) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            write!(f, "{separator}line {}: {}", row.line, row.fault)?;
        }
        Ok(())
    }
}

impl Default for Counters {
    /// The 25 families and the label of dcgm-exporter's default file.
    fn default() -> Self {
        Self::new(
            FIELDS
                .iter()
                .filter(|field| field.default)
                .map(|field| Counter {
                    field,
                    name: field.name.to_owned(),
                    kind: field.kind,
                    help: field.help.to_owned(),
                }),
        )
    }
}

impl Counters {
    fn new(counters: impl Iterator<Item = Counter>) -> Self {
        let (mut labels, mut families): (Vec<_>, Vec<_>) =
            counters.partition(|counter| counter.kind == Kind::Label);
        labels.sort_by(|a, b| a.name.cmp(&b.name));
        families.sort_by_key(|counter| counter.field.id);
        Self { families, labels }
    }

    /// Names of what is asked for and cannot be collected: fields without a source here, texts as families, numbers as
    /// labels.
    pub(crate) fn without_source(&self) -> Vec<&str> {
        let is_text = |counter: &&Counter| matches!(counter.field.source, Source::Text(_));
        let is_nothing = |counter: &&Counter| matches!(counter.field.source, Source::Nothing);
        let families = self
            .families
            .iter()
            .filter(|counter| is_text(counter) || is_nothing(counter));
        let labels = self.labels.iter().filter(|counter| !is_text(counter));
        families
            .chain(labels)
            .map(|counter| counter.name.as_str())
            .collect()
    }

    /// Reads a counter file. 1.x names are taken only with `old_namespace`.
    ///
    /// # Errors
    /// All rows that cannot be used.
    pub fn parse(text: &str, old_namespace: bool) -> Result<Self, FileError> {
        let mut counters: Vec<(usize, Counter)> = Vec::new();
        let mut errors = Vec::new();
        for (line, text) in (1..).zip(text.trim_start_matches('\u{feff}').lines()) {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            match row(text, old_namespace, &counters) {
                Ok(counter) => counters.push((line, counter)),
                Err(fault) => errors.push(RowError { line, fault }),
            }
        }
        if errors.is_empty() {
            Ok(Self::new(counters.into_iter().map(|(_, counter)| counter)))
        } else {
            Err(FileError(errors))
        }
    }
}

fn row(text: &str, old_namespace: bool, before: &[(usize, Counter)]) -> Result<Counter, Fault> {
    let [name, kind, help] =
        <[String; 3]>::try_from(columns(text)?).map_err(|columns| Fault::Columns(columns.len()))?;
    let field = fields::find(&name, old_namespace).ok_or_else(|| {
        if fields::find(&name, true).is_some() {
            Fault::OldName(name.clone())
        } else {
            Fault::Field(name.clone())
        }
    })?;
    let kind = Kind::from_name(&kind).ok_or(Fault::Type(kind))?;
    if let Some((line, _)) = before
        .iter()
        .find(|(_, other)| std::ptr::eq(other.field, field))
    {
        return Err(Fault::Twice(*line));
    }
    Ok(Counter {
        field,
        name,
        kind,
        help,
    })
}

/// Splits a line at commas outside quotes; `""` inside quotes is a quote.
fn columns(text: &str) -> Result<Vec<String>, Fault> {
    let mut columns = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let (column, after) = match rest.strip_prefix('"') {
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                (rest[..end].trim_end().to_owned(), &rest[end..])
            }
            Some(quoted) => unquote(quoted).ok_or(Fault::Quote)?,
        };
        columns.push(column);
        match after.trim_start().strip_prefix(',') {
            Some(next) => rest = next,
            None if after.trim_start().is_empty() => return Ok(columns),
            None => return Err(Fault::Quote),
        }
    }
}

/// The text up to the closing quote, and what follows it.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut column = String::new();
    let mut rest = text;
    loop {
        let end = rest.find('"')?;
        column.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(next) => {
                column.push('"');
                rest = next;
            }
            None => return Some((column, rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_file_replaces_the_built_in_set_and_is_sorted_by_id() {
        let counters = Counters::parse(
            "# Format\n\
             \n\
             DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).\n\
             \tDCGM_FI_DEV_DEC_UTIL , gauge ,  Decoder.  \r\n\
             DCGM_FI_DEV_SM_CLOCK, counter, \"Clock, \"\"SM\"\".\"\n\
             DCGM_FI_DRIVER_VERSION, label, Driver Version\n\
             DCGM_FI_DEV_SERIAL, label,",
            false,
        )
        .unwrap();
        let rows: Vec<_> = counters
            .families
            .iter()
            .map(|c| (c.name.as_str(), c.kind, c.help.as_str()))
            .collect();
        assert_eq!(
            rows,
            [
                ("DCGM_FI_DEV_SM_CLOCK", Kind::Counter, "Clock, \"SM\"."),
                (
                    "DCGM_FI_DEV_GPU_TEMP",
                    Kind::Gauge,
                    "GPU temperature (in C)."
                ),
                ("DCGM_FI_DEV_DEC_UTIL", Kind::Gauge, "Decoder."),
            ]
        );
        let labels: Vec<_> = counters.labels.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(labels, ["DCGM_FI_DEV_SERIAL", "DCGM_FI_DRIVER_VERSION"]);
    }

    #[rstest]
    #[case("DCGM_FI_DEV_GPU_TEMP, gauge", Fault::Columns(2))]
    #[case("DCGM_FI_DEV_GPU_TEMP, gauge, warm, hot", Fault::Columns(4))]
    #[case("DCGM_FI_DEV_GPU_TEMPS, gauge, x", Fault::Field("DCGM_FI_DEV_GPU_TEMPS".to_owned()))]
    #[case("dcgm_gpu_temp, gauge, x", Fault::OldName("dcgm_gpu_temp".to_owned()))]
    #[case("DCGM_FI_DEV_GPU_TEMP, gouge, x", Fault::Type("gouge".to_owned()))]
    #[case("DCGM_FI_DEV_GPU_TEMP, gauge, \"x", Fault::Quote)]
    #[case("DCGM_FI_DEV_GPU_TEMP, gauge, \"x\" y", Fault::Quote)]
    #[case("DCGM_FI_DEV_GPU_TEMP_CELSIUS, gauge, x", Fault::Twice(1))]
    fn a_faulty_row_is_named_by_its_line(#[case] row: &str, #[case] fault: Fault) {
        let text = format!("DCGM_FI_DEV_GPU_TEMP, gauge, x\n# note\n{row}\n");
        let text = if matches!(fault, Fault::Twice(_)) {
            text
        } else {
            text.replacen("DCGM_FI_DEV_GPU_TEMP,", "DCGM_FI_DEV_SM_CLOCK,", 1)
        };
        assert_eq!(
            Counters::parse(&text, false).unwrap_err(),
            FileError(vec![RowError { line: 3, fault }])
        );
    }

    #[test]
    fn all_faulty_rows_are_reported() {
        let error = Counters::parse("a,b,c\nDCGM_FI_DEV_GPU_TEMP,gauge,x\nb", false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 1: unknown field \"a\"; line 3: 1 columns instead of 3 (field, type, help); \
             quote a help text that has a comma"
        );
    }

    #[test]
    fn what_cannot_be_collected_is_known() {
        let file = "DCGM_EXP_P2P_STATUS, gauge, x\nDCGM_FI_DEV_SERIAL, gauge, x\nDCGM_FI_DEV_SM_CLOCK, label, x\n\
                    DCGM_FI_DEV_GPU_TEMP, gauge, x\nDCGM_FI_DRIVER_VERSION, label, x";
        assert_eq!(
            Counters::parse(file, false).unwrap().without_source(),
            [
                "DCGM_FI_DEV_SERIAL",
                "DCGM_EXP_P2P_STATUS",
                "DCGM_FI_DEV_SM_CLOCK"
            ]
        );
        assert!(Counters::default().without_source().is_empty());
    }

    #[test]
    fn old_names_come_with_the_old_namespace_and_stay_the_familys_name() {
        let counters = Counters::parse("dcgm_gpu_temp, gauge, x", true).unwrap();
        assert_eq!(
            (
                counters.families[0].name.as_str(),
                counters.families[0].field.id
            ),
            ("dcgm_gpu_temp", 150)
        );
    }

    proptest! {
        #[test]
        fn any_text_gives_an_answer(text in "(\\PC|[,\"\n#]){0,200}") {
            let _ = Counters::parse(&text, true);
        }

        #[test]
        fn a_quoted_help_comes_back(help in "\\PC{0,40}") {
            let row = format!("DCGM_FI_DEV_GPU_TEMP,gauge,\"{}\"", help.replace('"', "\"\""));
            let counters = Counters::parse(&row, false).unwrap();
            prop_assert_eq!(&counters.families[0].help, &help);
        }
    }
}
