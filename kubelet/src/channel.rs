//! Calls to the kubelet's own sockets, each with a deadline.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::{Error, socket};

/// A channel to `socket`. It connects with the first call, and again after the kubelet has been restarted.
pub(crate) fn open(socket: &Path, call: &'static str) -> Result<Channel, Error> {
    let unusable = |message: String| Error::Call {
        socket: socket.to_owned(),
        call,
        code: tonic::Code::InvalidArgument,
        message,
    };
    let path = socket
        .to_str()
        .ok_or_else(|| unusable("the path is not UTF-8".to_owned()))?;
    let endpoint = Endpoint::from_shared(format!("unix:{path}"))
        .map_err(|error| unusable(socket::describe(&error)))?;
    Ok(endpoint.connect_lazy())
}

/// Waits for `answer` at most `bound`.
pub(crate) async fn bounded<T>(
    socket: &Path,
    call: &'static str,
    bound: Duration,
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<T, Error> {
    match tokio::time::timeout(bound, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(status)) => Err(failed(socket.to_owned(), call, &status)),
        Err(_) => Err(Error::TimedOut {
            socket: socket.to_owned(),
            call,
            after: bound,
        }),
    }
}

fn failed(socket: PathBuf, call: &'static str, status: &Status) -> Error {
    let mut message = status.message().to_owned();
    // What happened to the connection is in the causes; tonic's message says "transport error" or "tcp connect error".
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let line = error.to_string();
        if !message.contains(&line) {
            message.push_str(": ");
            message.push_str(&line);
        }
        cause = error.source();
    }
    Error::Call {
        socket,
        call,
        code: status.code(),
        message,
    }
}
