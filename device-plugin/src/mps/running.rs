//! A daemon that runs: started, spoken to, ended.

use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::Child;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::log;
use super::plan::Daemon;
use super::program::{Program, ProgramError, line};
use super::protocol;

/// The pause between two questions to a daemon that is starting.
const STARTING: Duration = Duration::from_millis(50);

/// How long the last words of a daemon that ended are waited for: its servers may have its standard error open still.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Bytes of a daemon's standard error that are read as one line; of more, several are made.
const MAX_LINE: u64 = 4 << 10;

/// See the module's words. Dropped, it is killed.
pub(super) struct Running {
    program: Program,
    child: Child,
    last_words: watch::Receiver<String>,
    _tasks: Tasks,
}

/// Tasks that end with their daemon.
struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

impl Running {
    /// Starts it on `visible` GPUs, and takes its logs over.
    pub(super) fn start(
        program: Program,
        visible: &str,
        logs: &Path,
        resource: &str,
    ) -> Result<Self, ProgramError> {
        log::shorten(logs);
        let follow = log::follow(logs.to_owned(), resource.to_owned());
        let mut tasks = Tasks(vec![tokio::spawn(follow)]);
        let mut child = program.start(visible)?;
        let (words, last_words) = watch::channel(String::new());
        if let Some(errors) = child.stderr.take() {
            let hear = hear(errors, words, resource.to_owned());
            tasks.0.push(tokio::spawn(hear));
        }
        Ok(Self {
            program,
            child,
            last_words,
            _tasks: tasks,
        })
    }

    /// Waits for its first answer.
    ///
    /// # Errors
    /// Why there is none within `limit`.
    pub(super) async fn up(&mut self, limit: Duration) -> Result<(), String> {
        let program = self.program.clone();
        let answers = async {
            while let Err(error) = percentage(&program).await {
                tracing::debug!(%error, "not up yet");
                sleep(STARTING).await;
            }
        };
        tokio::select! {
            reason = self.ended() => Err(reason),
            up = timeout(limit, answers) => up.map_err(|_| {
                format!("it did not answer within {} s of its start", limit.as_secs())
            }),
        }
    }

    /// Waits for its end and says how it was.
    pub(super) async fn ended(&mut self) -> String {
        let how = match self.child.wait().await {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        // They were written before it ended, and may not have been read yet.
        let read = async { while self.last_words.changed().await.is_ok() {} };
        let _ = timeout(LAST_WORDS, read).await;
        let words = self.last_words.borrow();
        let colon = if words.is_empty() { "" } else { ": " };
        format!("its daemon ended ({how}){colon}{}", *words)
    }

    /// Asks for its default thread percentage.
    pub(super) async fn percentage(&self) -> Result<f64, ProgramError> {
        percentage(&self.program).await
    }

    /// Sets limits: of servers that start from now on, and of those that run.
    pub(super) async fn limit(&self, limits: &Daemon) -> Result<(), ProgramError> {
        for command in protocol::defaults(limits) {
            self.program.ask(&command).await?;
        }
        for server in protocol::pids(&self.program.ask(protocol::SERVERS).await?) {
            for command in protocol::of_server(server, limits) {
                self.program.ask(&command).await?;
            }
        }
        Ok(())
    }

    /// What cannot be told counts as clients: they would be ended otherwise.
    pub(super) async fn any_clients(&self) -> bool {
        let Ok(servers) = self.program.ask(protocol::SERVERS).await else {
            return true;
        };
        for server in protocol::pids(&servers) {
            match self.program.ask(&protocol::clients(server)).await {
                Ok(clients) if protocol::pids(&clients).is_empty() => {}
                _ => return true,
            }
        }
        false
    }

    /// Asks it to end, and kills it when it has not within `limit`.
    pub(super) async fn quit(mut self, limit: Duration) {
        if let Err(error) = self.program.ask(protocol::QUIT).await {
            tracing::debug!(%error, "the daemon was asked to end");
        }
        if timeout(limit, self.ended()).await.is_err() {
            // Killing is done at once; what hangs in the driver is not waited for for ever.
            let _ = timeout(limit, self.child.kill()).await;
        }
    }
}

async fn percentage(program: &Program) -> Result<f64, ProgramError> {
    let said = program.ask(protocol::GET_PERCENTAGE).await?;
    protocol::percentage(&said).ok_or_else(|| ProgramError::Answer {
        command: protocol::GET_PERCENTAGE.to_owned(),
        said: line(&said),
    })
}

/// Takes what a daemon writes to its standard error over into our log, and keeps the last of it. Whatever it writes is read to
/// the end: a daemon whose standard error nobody reads is killed by writing there.
async fn hear(errors: impl AsyncRead + Unpin, words: watch::Sender<String>, resource: String) {
    let mut errors = BufReader::new(errors);
    loop {
        let mut text = Vec::new();
        let mut bounded = (&mut errors).take(MAX_LINE);
        match bounded.read_until(b'\n', &mut text).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = line(&String::from_utf8_lossy(&text));
        if !text.is_empty() {
            tracing::warn!(resource, "{text}");
            words.send_replace(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whatever_a_daemon_writes_is_read_to_the_end() {
        let long = [b'x'; 3 * MAX_LINE as usize];
        let written = [b"no text: \xff\xfe\n\n", &long[..], b"\nlast words\n \n"].concat();
        let (words, last_words) = watch::channel(String::new());
        hear(&written[..], words, "nvidia.com/gpu".to_owned()).await;
        assert_eq!(*last_words.borrow(), "last words");
    }
}
