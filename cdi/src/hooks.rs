//! NVIDIA's hook program, where a node has it: it makes links and rebuilds the loader's cache in a container that is being made.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::root::{file_name, text};
use crate::spec::Hook;
use crate::{Error, Root, Skipped};

const SYMLINKS: &str = "create-symlinks";
const CACHE: &str = "update-ldcache";
const NODES: &str = "disable-device-node-modification";

/// The program, and which of its hooks may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hooks {
    program: PathBuf,
    disabled: BTreeSet<String>,
}

/// A link to make in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkInContainer {
    /// Where.
    pub(crate) at: PathBuf,
    /// What it says.
    pub(crate) target: PathBuf,
}

impl Hooks {
    /// The hooks of a program, a path of the host, if it is there. `disabled` names hooks that must not be used; `all` is all.
    pub fn find(
        node: &Root,
        program: &Path,
        disabled: impl IntoIterator<Item = String>,
    ) -> Result<Result<Self, Skipped>, Error> {
        if !node.has(program)? {
            return Ok(Err(Skipped::NoHook {
                path: node.here(program),
            }));
        }
        Ok(Ok(Self {
            program: node.on_host(program),
            disabled: disabled.into_iter().collect(),
        }))
    }

    fn enabled(&self, hook: &str) -> bool {
        !self.disabled.contains(hook) && !self.disabled.contains("all")
    }

    /// Whether the loader's cache gets rebuilt: then libraries may lie in any folder and need no links.
    pub(crate) fn update_cache(&self) -> bool {
        self.enabled(CACHE)
    }

    /// The hooks for the driver's files.
    pub(crate) fn of_driver(&self, links: &[LinkInContainer], folders: &[PathBuf]) -> Vec<Hook> {
        let mut hooks = Vec::new();
        if self.update_cache() {
            hooks.extend(self.symlinks(links));
            hooks.push(
                self.hook(
                    CACHE,
                    folders
                        .iter()
                        .flat_map(|folder| ["--folder".into(), text(folder)]),
                ),
            );
        }
        // Older programs do not know it and fail; those under the newer name take no notice of hooks that they do not know.
        if self.enabled(NODES) && file_name(&self.program) == "nvidia-cdi-hook" {
            hooks.push(self.hook(NODES, []));
        }
        hooks
    }

    /// The hook that makes links, if there are any to make.
    pub(crate) fn symlinks(&self, links: &[LinkInContainer]) -> Option<Hook> {
        let arguments = links.iter().flat_map(|link| {
            let link = format!("{}::{}", link.target.display(), link.at.display());
            ["--link".to_owned(), link]
        });
        (self.enabled(SYMLINKS) && !links.is_empty()).then(|| self.hook(SYMLINKS, arguments))
    }

    fn hook(&self, name: &str, arguments: impl IntoIterator<Item = String>) -> Hook {
        let program = file_name(&self.program);
        // In nvidia-ctk, hooks are below a subcommand; nvidia-cdi-hook has nothing else.
        let subcommand = (program == "nvidia-ctk").then_some("hook");
        let words = [Some(program), subcommand, Some(name)];
        let words = words.into_iter().flatten().map(str::to_owned);
        Hook {
            hook_name: "createContainer".into(),
            path: text(&self.program),
            args: words.chain(arguments).collect(),
            ..Hook::default()
        }
    }
}
