//! Hooks: commands a user runs around an apply, in the file format of nvidia-mig-parted.
//!
//! Knows how to read the file and run one point's commands; when a point is reached is the engine's business.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use configuration::nearest::nearest;
use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::strict::{self, DocumentError, Entries, Position};

/// How much of a failed hook's output its error carries.
const KEPT_OUTPUT: usize = 4096;

/// How long after a hook's end its output may still come, from children it left running.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// The points of an apply at which hooks run, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    /// Before anything else.
    ApplyStart,
    /// Before MIG mode changes on any GPU.
    PreApplyMode,
    /// Before instances change on any GPU.
    PreApplyConfig,
    /// At the end, whatever happened.
    ApplyExit,
}

impl Point {
    const ALL: [Self; 4] = [
        Self::ApplyStart,
        Self::PreApplyMode,
        Self::PreApplyConfig,
        Self::ApplyExit,
    ];

    /// Its name in the hooks file.
    pub fn name(self) -> &'static str {
        match self {
            Self::ApplyStart => "apply-start",
            Self::PreApplyMode => "pre-apply-mode",
            Self::PreApplyConfig => "pre-apply-config",
            Self::ApplyExit => "apply-exit",
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The hooks of an apply and what they are run with.
#[derive(Clone, Debug, Default)]
pub struct Hooks {
    points: BTreeMap<Point, Vec<Hook>>,
    /// Variables every hook gets; they win over the hook's own, as in mig-parted.
    pub env: BTreeMap<String, String>,
    /// How long one command may take; zero means [`Hooks::DEFAULT_TIMEOUT`].
    pub timeout: Duration,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hook {
    command: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
    #[serde(default)]
    workdir: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    version: Spanned<String>,
    #[serde(default)]
    hooks: Option<Entries<Option<Vec<Spanned<Hook>>>>>,
}

/// Why a hook stopped an apply.
#[derive(Debug, thiserror::Error)]
#[error("hook {point}: {command}: {failure}")]
pub struct HookError {
    /// Where in the apply.
    pub point: Point,
    /// The command as the file gives it.
    pub command: String,
    /// How it failed.
    pub failure: HookFailure,
}

/// How a hook failed.
#[derive(Debug, thiserror::Error)]
pub enum HookFailure {
    /// It could not be started.
    #[error("cannot start it: {0}")]
    Start(std::io::Error),
    /// It was not found in this process's `PATH`.
    #[error("no such command in PATH")]
    NotFound,
    /// It ended with an error; the end of its output.
    #[error("{status}{}", quoted(.output))]
    Exit {
        /// Exit code or signal.
        status: ExitStatus,
        /// The end of what it printed.
        output: String,
    },
    /// It took longer than allowed and was killed with everything it had started in its process group.
    #[error("killed after {} s{}", .after.as_secs_f32(), quoted(.output))]
    Timeout {
        /// The time it had.
        after: Duration,
        /// The end of what it printed.
        output: String,
    },
}

fn quoted(output: &str) -> String {
    match output.trim() {
        "" => String::new(),
        // Neither a second line nor anything that a terminal would obey.
        text => {
            let line = text.replace('\n', " | ").replace(char::is_control, " ");
            format!("; it printed: {line}")
        }
    }
}

impl Hooks {
    /// What one command gets when nothing else is said: mig-parted's own unit allows 480 s for a whole apply.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(240);

    /// Reads and checks a hooks file.
    ///
    /// # Errors
    /// [`DocumentError`] with file, line and column.
    pub fn read(path: &Path) -> Result<Self, DocumentError> {
        let bytes = strict::read(path)?;
        Self::parse(&path.display().to_string(), &bytes)
    }

    /// Checks a hooks document. `file` is what errors name.
    ///
    /// # Errors
    /// [`DocumentError`] with file, line and column.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, DocumentError> {
        let raw: RawFile = strict::parse(file, bytes)?;
        if raw.version.value != "v1" {
            let message = "unknown version: only \"v1\" exists";
            return Err(DocumentError::invalid(
                file,
                Position::of(&raw.version),
                message,
            ));
        }
        let mut points = BTreeMap::new();
        for (name, hooks) in raw.hooks.unwrap_or_default().0 {
            let Some(point) = Point::ALL.into_iter().find(|p| p.name() == name.value) else {
                return Err(DocumentError::invalid(
                    file,
                    Position::of(&name),
                    unknown(&name.value),
                ));
            };
            let mut checked = Vec::new();
            for hook in hooks.unwrap_or_default() {
                if hook.value.command.is_empty() {
                    let message = "a hook needs a command";
                    return Err(DocumentError::invalid(file, Position::of(&hook), message));
                }
                checked.push(hook.value);
            }
            points.insert(point, checked);
        }
        Ok(Self {
            points,
            ..Self::default()
        })
    }

    /// Whether the file has commands for this point.
    pub fn has(&self, point: Point) -> bool {
        self.points
            .get(&point)
            .is_some_and(|hooks| !hooks.is_empty())
    }

    /// Runs the commands of a point one after the other, up to the first that fails.
    ///
    /// # Errors
    /// [`HookError`] with the command and the end of its output.
    pub fn run(&self, point: Point) -> Result<(), HookError> {
        for hook in self.points.get(&point).into_iter().flatten() {
            tracing::debug!(%point, command = hook.command, "running hook");
            let output = self.run_one(hook).map_err(|failure| HookError {
                point,
                command: hook.command.clone(),
                failure,
            })?;
            tracing::debug!(%point, command = hook.command, output, "hook done");
        }
        Ok(())
    }

    fn run_one(&self, hook: &Hook) -> Result<String, HookFailure> {
        let timeout = match self.timeout {
            Duration::ZERO => Self::DEFAULT_TIMEOUT,
            set => set,
        };
        let program = find(&hook.command).ok_or(HookFailure::NotFound)?;
        let (mut reader, writer) = std::io::pipe().map_err(HookFailure::Start)?;
        let mut command = Command::new(program);
        command
            .args(&hook.args)
            .env_clear()
            .envs(&hook.envs)
            .envs(&self.env)
            .stdin(Stdio::null())
            .stdout(writer.try_clone().map_err(HookFailure::Start)?)
            .stderr(writer)
            .process_group(0);
        if let Some(dir) = hook.workdir.as_ref().filter(|d| !d.as_os_str().is_empty()) {
            command.current_dir(dir);
        }
        let child = command.spawn().map_err(HookFailure::Start)?;
        // The command holds the write ends of the pipe: reading would never end while it lives.
        drop(command);

        let tail = Arc::new(Mutex::new(Vec::new()));
        let (closed_guard, closed) = mpsc::channel::<()>();
        let shared = Arc::clone(&tail);
        thread::spawn(move || {
            let _closed_guard = closed_guard;
            let mut chunk = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut chunk) {
                let mut tail = shared.lock().unwrap_or_else(PoisonError::into_inner);
                tail.extend_from_slice(chunk.get(..n).unwrap_or_default());
                let surplus = tail.len().saturating_sub(KEPT_OUTPUT);
                tail.drain(..surplus);
            }
        });
        let ended = wait(child, timeout);
        // A command may leave children that hold the pipe open: do not wait for them.
        let _closed_or_late = closed.recv_timeout(OUTPUT_GRACE);
        let tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        let output = String::from_utf8_lossy(&tail).into_owned();
        match ended {
            Ok(status) if status.success() => Ok(output),
            Ok(status) => Err(HookFailure::Exit { status, output }),
            Err(None) => Err(HookFailure::Timeout {
                after: timeout,
                output,
            }),
            Err(Some(error)) => Err(HookFailure::Start(error)),
        }
    }
}

/// Waits for the end of a command; kills its process group when the time is over (`Err(None)`).
fn wait(mut child: Child, timeout: Duration) -> Result<ExitStatus, Option<std::io::Error>> {
    let group = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    let (send, ended) = mpsc::channel();
    thread::spawn(move || {
        let _receiver_gone = send.send(child.wait());
    });
    match ended.recv_timeout(timeout) {
        Ok(status) => status.map_err(Some),
        Err(_) => {
            if let Some(group) = group {
                let killed =
                    rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                if let Err(error) = killed {
                    return Err(Some(error.into()));
                }
            }
            Err(None)
        }
    }
}

/// The program a command names. As in mig-parted it is looked up with this process's `PATH`, not the hook's.
fn find(command: &str) -> Option<OsString> {
    if command.contains('/') {
        return Some(command.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(command))
        .find(|candidate| candidate.is_file())
        .map(PathBuf::into_os_string)
}

fn unknown(name: &str) -> String {
    let near = nearest(name, Point::ALL.into_iter().map(Point::name), 1);
    let shown: String = name.chars().take(40).collect();
    match near.first() {
        Some(near) => format!("unknown hook {shown:?}: did you mean {near}?"),
        None => format!(
            "unknown hook {shown:?}: {} exist",
            Point::ALL.map(Point::name).join(", ")
        ),
    }
}
