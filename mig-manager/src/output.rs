//! Structured output, YAML or JSON, the way every subcommand writes it.

use serde::Serialize;

/// How structured output is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// YAML.
    #[default]
    Yaml,
    /// Indented JSON.
    Json,
}

/// Structured output could not be written, which no input of ours makes happen.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {what}: {reason}")]
pub struct WriteError {
    what: &'static str,
    reason: String,
}

impl Format {
    /// `value` in this format, ending with a newline. `what` names it in the error.
    ///
    /// # Errors
    /// [`WriteError`] when the value cannot be expressed in the format.
    pub fn write<T: Serialize>(self, what: &'static str, value: &T) -> Result<String, WriteError> {
        let written = match self {
            Self::Yaml => {
                let mut options = serde_saphyr::SerializerOptions::default();
                options.compact_list_indent = true;
                serde_saphyr::to_string_with_options(value, options).map_err(|e| e.to_string())
            }
            Self::Json => serde_json::to_string_pretty(value).map_err(|e| e.to_string()),
        };
        let mut text = written.map_err(|reason| WriteError { what, reason })?;
        if !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(text)
    }
}
