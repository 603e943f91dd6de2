//! `nvidia-cuda-mps-control` of the node's driver: where it is, how it is started, and how one talks to it.
//!
//! Started without arguments it is the front end of the daemon whose pipe directory is in its environment: it reads commands
//! from its standard input and writes answers. With `-f` it is the daemon itself, in the foreground, so that it is this
//! process's child and its end is seen at once.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

/// The program's name.
const NAME: &str = "nvidia-cuda-mps-control";

/// In the environment of a daemon and of its servers, so that they are known for ours: the pipe directory.
pub(super) const MARK: &str = "LATHE_MPS_PIPE_DIRECTORY";

/// No answer is longer.
const MAX_ANSWER: u64 = 64 << 10;

/// What went wrong with the program.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProgramError {
    /// It is not there.
    #[error("there is no {NAME} in the program folders below {}: is the driver installed, with its CUDA programs?", root.display())]
    Missing {
        /// The node root.
        root: PathBuf,
    },
    /// Its libraries cannot be gathered.
    #[error("cannot link the driver's libraries in {}: {source}", folder.display())]
    Libraries {
        /// Where the links go.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It cannot be started, or its pipe broke.
    #[error("cannot run {}: {source}", program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It says no.
    #[error("{NAME} failed at {command:?} ({status}){}{said}", if said.is_empty() { "" } else { ": " })]
    Failed {
        /// What was asked.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// Its words.
        said: String,
    },
    /// It says nothing.
    #[error("{NAME} did not answer {command:?} within {} s", after.as_secs())]
    Late {
        /// What was asked.
        command: String,
        /// The time it had.
        after: Duration,
    },
    /// It says what nobody understands.
    #[error("{NAME} answered {command:?} with {said:?}")]
    Answer {
        /// What was asked.
        command: String,
        /// Its words.
        said: String,
    },
}

/// The program and the environment in which it is one daemon's.
#[derive(Clone, Debug)]
pub(super) struct Program {
    path: PathBuf,
    environment: Vec<(&'static str, OsString)>,
    answer: Duration,
}

impl Program {
    /// Looks for the program below the node root. `links` is a folder of ours for links to the driver's libraries.
    pub(super) fn locate(
        root: &Path,
        links: &Path,
        pipe: &Path,
        log: &Path,
        answer: Duration,
    ) -> Result<Self, ProgramError> {
        let path = nvml::driver_program(root, NAME).ok_or_else(|| ProgramError::Missing {
            root: root.to_owned(),
        })?;
        let own = |name: &str| std::env::var_os(name);
        let mut libraries = own("LD_LIBRARY_PATH");
        if root != Path::new("/") {
            // The node's own folder would bring the node's C library along, which does not go with this container's loader.
            link_libraries(root, links).map_err(|source| ProgramError::Libraries {
                folder: links.to_owned(),
                source,
            })?;
            libraries = Some(links.into());
        }
        // The server's program lies beside it.
        let folders = path.parent().map(Path::to_owned).into_iter();
        let usual = own("PATH").unwrap_or_default();
        let folders = std::env::join_paths(folders.chain(std::env::split_paths(&usual)));
        let mut environment = vec![
            ("CUDA_MPS_PIPE_DIRECTORY", pipe.into()),
            ("CUDA_MPS_LOG_DIRECTORY", log.into()),
            (MARK, pipe.into()),
            ("PATH", folders.unwrap_or(usual)),
        ];
        environment.extend(libraries.map(|folder| ("LD_LIBRARY_PATH", folder)));
        Ok(Self {
            path,
            environment,
            answer,
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .kill_on_drop(true);
        command
    }

    fn failed_to_run(&self, source: io::Error) -> ProgramError {
        ProgramError::Run {
            program: self.path.clone(),
            source,
        }
    }

    /// Starts the daemon, which sees these GPUs only.
    pub(super) fn start(&self, visible: &str) -> Result<Child, ProgramError> {
        self.command()
            .arg("-f")
            .env("CUDA_VISIBLE_DEVICES", visible)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // A group of its own: a signal from the terminal is not for it, and all of it can be ended.
            .process_group(0)
            .spawn()
            .map_err(|source| self.failed_to_run(source))
    }

    /// Says a command to the daemon and waits for the answer, within bounds.
    pub(super) async fn ask(&self, command: &str) -> Result<String, ProgramError> {
        let answered = tokio::time::timeout(self.answer, self.talk(command)).await;
        answered.unwrap_or_else(|_| {
            Err(ProgramError::Late {
                command: command.to_owned(),
                after: self.answer,
            })
        })
    }

    async fn talk(&self, command: &str) -> Result<String, ProgramError> {
        let run = |source| self.failed_to_run(source);
        let mut child = self
            .command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(run)?;
        let (input, output, errors) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let say = async {
            if let Some(mut input) = input {
                // It may end without reading, and say why.
                let _ = input.write_all(format!("{command}\n").as_bytes()).await;
            }
        };
        let hear = async {
            let mut said = Vec::new();
            if let Some(output) = output {
                output.take(MAX_ANSWER).read_to_end(&mut said).await?;
            }
            Ok(String::from_utf8_lossy(&said).into_owned())
        };
        let complaints = async {
            let mut said = Vec::new();
            if let Some(errors) = errors {
                errors.take(MAX_ANSWER).read_to_end(&mut said).await?;
            }
            Ok(String::from_utf8_lossy(&said).into_owned())
        };
        let ((), said, complaints) = tokio::join!(say, hear, complaints);
        let (said, complaints) = (said.map_err(run)?, complaints.map_err(run)?);
        let status = child.wait().await.map_err(run)?;
        if status.success() {
            return Ok(said);
        }
        let said = if complaints.trim().is_empty() {
            said
        } else {
            complaints
        };
        Err(ProgramError::Failed {
            command: command.to_owned(),
            status,
            said: line(&said),
        })
    }
}

/// Text as one line of bounded length.
pub(super) fn line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(300).collect()
}

/// Links the driver's own libraries, and nothing else, into a folder.
fn link_libraries(root: &Path, links: &Path) -> io::Result<()> {
    std::fs::create_dir_all(links)?;
    for entry in std::fs::read_dir(links)? {
        std::fs::remove_file(entry?.path())?;
    }
    let library = nvml::driver_library(root);
    let Some(folder) = library.as_deref().and_then(Path::parent) else {
        return Ok(());
    };
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        let is_drivers = text.starts_with("libcuda.so") || text.starts_with("libnvidia-");
        if is_drivers && text.contains(".so") {
            std::os::unix::fs::symlink(entry.path(), links.join(&name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn only_the_drivers_libraries_are_linked() {
        let node = tempfile::tempdir().unwrap();
        let folder = node.path().join("usr/lib64");
        std::fs::create_dir_all(&folder).unwrap();
        for name in [
            "libcuda.so.1",
            "libnvidia-ml.so.1",
            "libnvidia-ptxjitcompiler.so.575.57.08",
            "libc.so.6",
            "libcudart.so.12",
            "libnvidia-container.la",
        ] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let links = node.path().join("links");
        for _ in 0..2 {
            link_libraries(node.path(), &links).unwrap();
            let entries = std::fs::read_dir(&links).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            assert_eq!(
                names,
                [
                    "libcuda.so.1",
                    "libnvidia-ml.so.1",
                    "libnvidia-ptxjitcompiler.so.575.57.08"
                ]
            );
            assert!(links.join("libcuda.so.1").is_file());
        }
    }

    #[test]
    fn a_node_without_the_program_says_where_it_was_looked_for() {
        let node = tempfile::tempdir().unwrap();
        let links = node.path().join("links");
        let error = Program::locate(
            node.path(),
            &links,
            Path::new("p"),
            Path::new("l"),
            Duration::ZERO,
        );
        assert!(matches!(error, Err(ProgramError::Missing { .. })));
    }
}
