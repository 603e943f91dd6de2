//! Which configuration is in force: reads it where it comes from, and again when it changes. A bad one never comes into force.

use std::path::Path;
use std::sync::Arc;

use cluster::named_config::{self, Selection};
use cluster::node::Node;
use cluster::watched::WatchedFile;
use configuration::document;
use tokio::sync::watch;

use super::config::{Config, ServiceError, Source};
use super::settings::{Settings, SettingsError};

/// Follows the configuration.
pub(crate) struct Choice {
    flags: (configuration::plugin::Flags, configuration::plugin::Imex),
    origin: Origin,
    in_force: Option<Arc<Settings>>,
    /// Why what should be in force is not.
    trouble: Option<String>,
}

enum Origin {
    Flags,
    File(WatchedFile),
    Named(watch::Receiver<Selection>),
}

impl Choice {
    /// Reads the configuration once. A file must be good then; a configuration that a label names may come later.
    pub(crate) fn start(config: &Config, node: Option<&Node>) -> Result<Self, ServiceError> {
        let mut choice = Self {
            flags: (config.flags.clone(), config.imex.clone()),
            origin: Origin::Flags,
            in_force: None,
            trouble: None,
        };
        match &config.source {
            Source::None => {
                let settings = choice.settings("the command line", b"")?;
                choice.in_force = Some(Arc::new(settings));
            }
            Source::File(path) => {
                // Watched before it is read, so that no change falls between.
                choice.origin = Origin::File(WatchedFile::new(path));
                choice.in_force = Some(Arc::new(choice.read(path)?));
            }
            Source::Named(rules, source) => {
                let node = node.ok_or(ServiceError::NoNode)?;
                let selection = named_config::follow(node, rules.clone(), source);
                choice.origin = Origin::Named(selection);
                choice.look(config);
            }
        }
        Ok(choice)
    }

    pub(crate) fn in_force(&self) -> Option<&Arc<Settings>> {
        self.in_force.as_ref()
    }

    /// Why what should be in force is not.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Whether the trouble is only that nobody has answered yet.
    pub(crate) fn is_waiting(&self) -> bool {
        match &self.origin {
            Origin::Named(selection) => {
                let selection = selection.borrow();
                let trouble = selection.trouble.as_ref();
                trouble.is_some_and(named_config::Trouble::is_waiting)
            }
            _ => false,
        }
    }

    /// Waits until there may be something new to [`Choice::look`] at.
    pub(crate) async fn changed(&mut self) {
        match &mut self.origin {
            Origin::Flags => std::future::pending().await,
            Origin::File(file) => file.changed().await,
            Origin::Named(selection) => {
                if selection.changed().await.is_err() {
                    std::future::pending().await
                }
            }
        }
    }

    /// Looks at the configuration (again); whether another came into force.
    pub(crate) fn look(&mut self, config: &Config) -> bool {
        let (found, trouble) = match (&mut self.origin, &config.source) {
            (Origin::Named(selection), _) => {
                let selection = selection.borrow_and_update().clone();
                let trouble = selection.trouble.map(|trouble| trouble.to_string());
                let Some(choice) = selection.in_force else {
                    self.trouble = trouble;
                    return false;
                };
                let name = match &choice.name {
                    Some(name) => format!("config {name}"),
                    None => "the empty config".to_owned(),
                };
                let found = self.settings(&name, choice.content.as_bytes());
                (found, trouble)
            }
            (Origin::File(_), Source::File(path)) => (self.read(path), None),
            _ => return false,
        };
        match found {
            Ok(settings) => {
                self.trouble = trouble;
                let is_new = self.in_force.as_deref() != Some(&settings);
                self.in_force = Some(Arc::new(settings));
                is_new
            }
            Err(error) => {
                self.trouble = Some(trouble.unwrap_or_else(|| error.to_string()));
                false
            }
        }
    }

    fn read(&self, path: &Path) -> Result<Settings, SettingsError> {
        let text = document::read(path)?;
        self.settings(&path.display().to_string(), &text)
    }

    fn settings(&self, name: &str, text: &[u8]) -> Result<Settings, SettingsError> {
        let (flags, imex) = &self.flags;
        let (settings, notices) = Settings::new(name, text, flags, imex)?;
        for notice in notices {
            tracing::warn!("{notice}");
        }
        Ok(settings)
    }
}
