//! Standard output and standard error for all commands: whatever becomes of the reader, a command does not crash on it.

use std::io::{self, ErrorKind, Write as _};

/// Writes to standard output. A reader that has gone (`lathe … | head -1`) has seen enough: that is no error.
///
/// # Errors
/// Anything else, such as a full disk.
pub(crate) fn say(text: &str) -> io::Result<()> {
    match write(text) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes to standard output for as long as somebody reads.
///
/// # Errors
/// Also that the reader has gone.
pub(crate) fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// A line on standard error, for whoever listens.
pub(crate) fn complain(line: &str) {
    // There is nowhere left to say that it could not be said; the exit code tells.
    let _told = writeln!(io::stderr().lock(), "{line}");
}

/// An error with its causes, in one line. A cause that the text before it quotes already is not said again.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        match text.contains(&cause) {
            true => {}
            false if text.is_empty() => text = cause,
            false => text = format!("{text}: {cause}"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context as _;

    use super::chain;

    #[derive(Debug, thiserror::Error)]
    #[error("port 1: {0}; is it taken?")]
    struct Quoting(#[source] io::Error);

    #[test]
    fn a_cause_is_said_once() {
        let taken = || Quoting(io::Error::other("in use"));
        let plain = Err::<(), _>(io::Error::other("in use")).context("port 1");
        let quoting = Err::<(), _>(taken()).context("serving");
        let told = |result: anyhow::Result<()>| result.err().map(|error| chain(&error));
        assert_eq!(told(plain).as_deref(), Some("port 1: in use"));
        assert_eq!(
            told(quoting).as_deref(),
            Some("serving: port 1: in use; is it taken?")
        );
    }
}
