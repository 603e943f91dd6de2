//! What can go wrong between a plugin and the kubelet.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tonic::Code;

/// A failure at a socket, or an answer of the kubelet that is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A folder of the kubelet is not there and cannot be made.
    #[error("folder {path}: {source}; is the kubelet's folder mounted there?", path = path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A socket cannot be made.
    #[error("socket {path}: cannot {action}: {source}", path = path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// The system cannot hold the path of a socket.
    #[error(
        "socket {path}: {length} bytes, and the system takes {limit}; use a shorter folder or plugin name",
        path = path.display(), length = path.as_os_str().len(), limit = crate::socket::LONGEST_PATH
    )]
    PathTooLong {
        /// The socket.
        path: PathBuf,
    },
    /// Something that is no socket has the socket's name. It is left alone.
    #[error("{path} exists and is no socket; remove it", path = path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// Another process serves at the socket's path.
    #[error("socket {path}: another process serves it; stop that one first", path = path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Another process put its own socket in the place of ours while we served.
    #[error("socket {path}: another process has taken it over", path = path.display())]
    Displaced {
        /// The socket.
        path: PathBuf,
    },
    /// A name cannot be part of a socket's file name.
    #[error("{name:?} cannot be part of a socket's name: {reason}")]
    Name {
        /// The name.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// The gRPC server ended by itself.
    #[error("socket {path}: the server failed: {reason}", path = path.display())]
    Server {
        /// The socket.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The kubelet refused a call, or was not there to take it.
    #[error("kubelet at {socket}: {call}: {message} ({code:?})", socket = socket.display())]
    Call {
        /// The kubelet's socket.
        socket: PathBuf,
        /// The call.
        call: &'static str,
        /// The gRPC code.
        code: Code,
        /// What it says.
        message: String,
    },
    /// The kubelet did not answer in time.
    #[error("kubelet at {socket}: {call}: no answer within {} s", after.as_secs_f32(), socket = socket.display())]
    TimedOut {
        /// The kubelet's socket.
        socket: PathBuf,
        /// The call.
        call: &'static str,
        /// How long was waited.
        after: Duration,
    },
}

impl Error {
    /// The same call may succeed later: nobody there, no answer, or an answer that asks for patience.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::TimedOut { .. } => true,
            Self::Call { code, .. } => matches!(
                code,
                Code::Unavailable
                    | Code::ResourceExhausted
                    | Code::Aborted
                    | Code::DeadlineExceeded
            ),
            _ => false,
        }
    }
}
