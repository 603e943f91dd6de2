//! One chore at a time on a cluster: two that start or end its processes at once would lose sight of some.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// What `up` may take at most, and some more.
const PATIENCE: Duration = Duration::from_secs(400);

/// Held while a chore starts or ends processes. An abstract socket: it leaves no file, and its name is free again however
/// its holder ends.
pub(super) struct Turn {
    _socket: UnixListener,
}

/// Waits until nobody else holds the turn of this cluster.
pub(super) fn take(id: &str) -> anyhow::Result<Turn> {
    take_within(id, PATIENCE)
}

fn take_within(id: &str, patience: Duration) -> anyhow::Result<Turn> {
    let address = SocketAddr::from_abstract_name(format!("lathe-{id}"))?;
    let began = Instant::now();
    loop {
        match UnixListener::bind_addr(&address) {
            Ok(socket) => return Ok(Turn { _socket: socket }),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error).context("taking the cluster's turn"),
        }
        if began.elapsed() > patience {
            bail!(
                "another `cargo xtask cluster` has been at work on this cluster for {patience:?}"
            );
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::take_within;
    use std::time::Duration;

    #[test]
    fn a_turn_is_held_by_one_until_it_ends() {
        let id = format!("turn-{}", std::process::id());
        let held = take_within(&id, Duration::ZERO).unwrap();
        assert!(take_within(&id, Duration::ZERO).is_err());
        assert!(take_within(&format!("{id}-other"), Duration::ZERO).is_ok());
        drop(held);
        // A program that another test starts has this process' sockets for a moment, until it becomes itself.
        assert!(take_within(&id, Duration::from_secs(60)).is_ok());
    }
}
