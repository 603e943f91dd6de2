//! The HTTP server behind `/metrics`, `/healthz` and `/readyz`.
//!
//! It answers GET and HEAD from handlers that a part registers, over HTTP/1.1 without TLS, with a bound on everything a
//! client can make it hold: connections, the time to send a request, the time to take an answer. It knows nothing about
//! what is served.

mod connection;
mod guest;
mod routes;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use guest::Guests;
pub use routes::{METRICS_CONTENT_TYPE, Reply, Routes};

/// Bounds of a server. The defaults suit a metrics endpoint that Prometheus and the kubelet visit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Connections served at once; further ones wait in the socket's backlog.
    pub connections: usize,
    /// How long a connection may go without a request to answer before it is closed for another client, which only happens
    /// when all connections are taken.
    pub patience: Duration,
    /// How long a client may take to send a request's head, and may idle between requests.
    pub head: Duration,
    /// How long a handler may take before the client gets a 503.
    pub handler: Duration,
    /// How long a client may leave an answer untaken.
    pub write: Duration,
    /// How long requests in flight may go on after shutdown was asked for.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            // A kubelet's probe gives up after one second, but asks again before it acts on that.
            patience: Duration::from_secs(1),
            // Longer than the usual scrape interval, so that Prometheus keeps its connection.
            head: Duration::from_secs(75),
            handler: Duration::from_secs(10),
            write: Duration::from_secs(10),
            drain: Duration::from_secs(5),
        }
    }
}

/// Why a server cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The address is none.
    #[error("listen address {address:?} is not of the form HOST:PORT or :PORT")]
    Address {
        /// What was given.
        address: String,
    },
    /// The address is taken, not ours, or not allowed.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// What was given.
        address: String,
        /// What the system says.
        source: io::Error,
    },
}

/// A server that has its port and serves once [`Server::run`] is called.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    limits: Limits,
}

impl Server {
    /// Takes the port `address` names: `HOST:PORT`, or `:PORT` for all addresses of the machine, IPv6 and IPv4, as Go
    /// programs understand it. Port 0 takes a free one.
    ///
    /// # Errors
    /// [`BindError`].
    pub async fn bind(address: &str, limits: Limits) -> Result<Self, BindError> {
        let listen = |result: io::Result<TcpListener>| {
            result.map_err(|source| BindError::Listen {
                address: address.to_owned(),
                source,
            })
        };
        let listener = match address.strip_prefix(':') {
            Some(port) => {
                let port = port.parse().map_err(|_| BindError::Address {
                    address: address.to_owned(),
                })?;
                match open(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))) {
                    // A machine without IPv6.
                    Err(error)
                        if error.raw_os_error().is_some()
                            && error.kind() != io::ErrorKind::AddrInUse =>
                    {
                        listen(open(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))))?
                    }
                    other => listen(other)?,
                }
            }
            None => {
                let mut found = tokio::net::lookup_host(address).await.map_err(|source| {
                    if source.kind() == io::ErrorKind::InvalidInput {
                        BindError::Address {
                            address: address.to_owned(),
                        }
                    } else {
                        BindError::Listen {
                            address: address.to_owned(),
                            source,
                        }
                    }
                })?;
                let Some(first) = found.next() else {
                    return Err(BindError::Address {
                        address: address.to_owned(),
                    });
                };
                listen(open(first))?
            }
        };
        Ok(Self { listener, limits })
    }

    /// The address taken, with the real port when 0 was asked for.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves `routes` until `shutdown` is cancelled; then finishes what is in flight, at most [`Limits::drain`] long.
    pub async fn run(self, routes: Routes, shutdown: CancellationToken) {
        let limits = Arc::new(self.limits);
        let routes = Arc::new(routes);
        let slots = Arc::new(Semaphore::new(limits.connections));
        let mut guests = Guests::default();
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok((stream, peer)) => {
                    // One connection at most waits here; others wait in the backlog, not in our memory.
                    let slot = tokio::select! {
                        () = shutdown.cancelled() => break,
                        slot = place(&slots, &guests, limits.patience) => slot,
                    };
                    let Some(slot) = slot else { break };
                    let guest = guests.admit();
                    let (routes, limits, shutdown) =
                        (routes.clone(), limits.clone(), shutdown.clone());
                    connections.spawn(async move {
                        tokio::select! {
                            () = connection::serve(stream, peer, &routes, &limits, &guest, shutdown) => {}
                            () = guest.must_leave() => {
                                tracing::debug!(%peer, "idle connection closed for another client");
                            }
                        }
                        drop(slot);
                    });
                }
                Err(error) => {
                    // Out of file descriptors, or a client that left in the backlog: both pass, neither may spin.
                    tracing::debug!(%error, "accept");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop(self.listener);
        let drained = tokio::time::timeout(limits.drain, async {
            while connections.join_next().await.is_some() {}
        });
        if drained.await.is_err() {
            connections.abort_all();
        }
    }
}

/// Waits for a place; who idles longest makes it.
async fn place(
    slots: &Arc<Semaphore>,
    guests: &Guests,
    patience: Duration,
) -> Option<OwnedSemaphorePermit> {
    if let Ok(slot) = slots.clone().try_acquire_owned() {
        return Some(slot);
    }
    loop {
        let again = guests.make_room(patience);
        tokio::select! {
            slot = slots.clone().acquire_owned() => return slot.ok(),
            () = tokio::time::sleep_until(again) => {}
        }
    }
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A restarted part must get its port back although old connections linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(128)
}
