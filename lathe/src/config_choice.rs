//! The flags that say how a node's label chooses one of several named configurations, shared by all parts that have any.

use clap::builder::NonEmptyStringValueParser;
use cluster::named_config::{Fallback, Rules};

/// How one is chosen. Names, variables and defaults are those of NVIDIA's config-manager.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ConfigChoice {
    /// The node's label that names its configuration
    #[arg(long, env = "NODE_LABEL", value_name = "KEY", default_value = cluster::named_config::DEFAULT_LABEL,
          value_parser = NonEmptyStringValueParser::new())]
    node_label: String,

    /// The configuration of nodes without the label
    #[arg(long, env = "DEFAULT_CONFIG", value_name = "NAME")]
    default_config: Option<String>,

    /// What to try without label and default, in this order: named (the one called default), single (the only one), empty
    #[arg(
        long,
        env = "FALLBACK_STRATEGIES",
        value_name = "STRATEGY",
        value_delimiter = ',',
        value_parser = |word: &str| word.trim().parse::<Fallback>()
    )]
    fallback_strategies: Vec<Fallback>,
}

impl ConfigChoice {
    pub(crate) fn rules(&self) -> Rules {
        Rules {
            label: self.node_label.clone(),
            default: self.default_config.clone().filter(|name| !name.is_empty()),
            fallbacks: self.fallback_strategies.clone(),
        }
    }
}
