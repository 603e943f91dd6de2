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
    /// Whether that is only that nobody has answered yet.
    waiting: bool,
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
            waiting: false,
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
        self.waiting
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
        self.waiting = false;
        let (found, trouble) = match (&mut self.origin, &config.source) {
            (Origin::Named(selection), _) => {
                let selection = selection.borrow_and_update().clone();
                let trouble = selection.trouble;
                // Of this selection, not of what is there by the time that somebody asks.
                self.waiting = trouble
                    .as_ref()
                    .is_some_and(named_config::Trouble::is_waiting);
                let trouble = trouble.map(|trouble| trouble.to_string());
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::time::Duration;

    use serde_json::json;
    use sim_kubernetes::{Options, Server};
    use tokio::time::timeout;

    use super::*;

    const BOUND: Duration = Duration::from_secs(30);

    /// The answer of the API server comes between a look and the question what the look saw.
    #[tokio::test]
    async fn trouble_and_whether_it_is_waiting_are_of_one_look() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), "version: v1\n").unwrap();
        let server = Server::start(Options::default()).await.unwrap();
        let object = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": "n", "labels": { named_config::DEFAULT_LABEL: "a" } }
        });
        server.seed([object]).unwrap();
        let kubeconfig = folder.path().join(".kubeconfig");
        std::fs::write(&kubeconfig, server.kubeconfig()).unwrap();
        let client = cluster::client("test", Some(&kubeconfig)).await.unwrap();
        let node = Node::watch(client, "n");
        let mut config = Config::new(folder.path());
        let source = named_config::Source::Folder(folder.path().to_owned());
        config.source = Source::Named(named_config::Rules::default(), source);
        let mut choice = Choice::start(&config, Some(&node)).unwrap();
        assert!(choice.trouble().is_some() && choice.is_waiting());
        while choice.in_force().is_none() {
            timeout(BOUND, choice.changed()).await.expect("an answer");
            assert!(choice.trouble().is_some() && choice.is_waiting());
            choice.look(&config);
        }
        assert!(choice.trouble().is_none() && !choice.is_waiting());
    }
}
