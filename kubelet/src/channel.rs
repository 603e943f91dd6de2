//! Calls to the kubelet's own sockets, each with a deadline.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::{Error, socket};

/// A channel to `socket`. It connects with the first call, and again after the kubelet has been restarted.
pub(crate) fn open(socket: &Path, call: &'static str) -> Result<Channel, Error> {
    let unusable = |message: String| Error::Call {
        socket: socket.to_owned(),
        call,
        code: Code::InvalidArgument,
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

/// The connection failed, before or during the call. tonic calls the one Unavailable and the other Unknown.
pub(crate) fn is_broken(status: &Status) -> bool {
    std::error::Error::source(status).is_some_and(|cause| cause.is::<tonic::transport::Error>())
}

fn failed(socket: PathBuf, call: &'static str, status: &Status) -> Error {
    let mut message = status.message().to_owned();
    // What happened to the connection is in the causes; tonic's message says "transport error" or "tcp connect error".
    if let Some(cause) = std::error::Error::source(status) {
        let causes = socket::describe(cause);
        if !message.contains(&causes) {
            message = format!("{message}: {causes}");
        }
    }
    Error::Call {
        socket,
        call,
        code: if is_broken(status) {
            Code::Unavailable
        } else {
            status.code()
        },
        message,
    }
}
