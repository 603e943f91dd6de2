//! A plugin's own unix socket: how it comes to be, stays, and goes, and the gRPC server behind it.
//!
//! The kubelet looks at sockets the moment they appear, deletes those it finds when it starts, and keeps dialling one that
//! a killed plugin left behind. So a socket appears under its name only when it already listens, is made again when its
//! file vanishes (connections that are open stay so), replaces a dead one of the same name but never a live one, and is
//! removed at the end unless it is somebody else's by then.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::folder::Changes;
use crate::{Error, Folder};

/// Bytes of a path that fit into a socket address: 108 (unix(7)) less the NUL at the end and the dot of the hidden name.
pub(crate) const LONGEST_PATH: usize = 106;

/// How long calls in flight may go on after shutdown was asked for.
const DRAIN: Duration = Duration::from_secs(2);

/// Pause after a failed accept: out of file descriptors, most likely. It passes, and may not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause between attempts to make the socket again.
const RESTORE_PAUSE: Duration = Duration::from_secs(10);

/// Which file a path leads to. A listening socket holds its inode, so the number is not given to another file meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inode {
    device: u64,
    number: u64,
}

/// A socket that listens; it serves once [`Endpoint::run`] is called. Until then connections wait in its backlog.
#[derive(Debug)]
pub(crate) struct Endpoint {
    path: PathBuf,
    folder: Folder,
    listener: UnixListener,
    /// The file that is ours.
    inode: watch::Sender<Inode>,
}

impl Endpoint {
    /// Makes the socket `name` in `folder`.
    pub(crate) async fn open(folder: &Folder, name: &str) -> Result<Self, Error> {
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            return Err(Error::Name {
                name: name.to_owned(),
                reason: "it must be a file name, and not a hidden one, which the kubelet overlooks",
            });
        }
        let path = folder.path().join(name);
        let (listener, inode) = make(&path).await?;
        Ok(Self {
            path,
            folder: folder.clone(),
            listener,
            inode: watch::Sender::new(inode),
        })
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Tells whether the socket is in its place.
    pub(crate) fn presence(&self) -> Presence {
        Presence {
            path: self.path.clone(),
            inode: self.inode.subscribe(),
        }
    }

    /// Serves `routes` until `shutdown`, and keeps the socket in its place.
    ///
    /// # Errors
    /// [`Error::Displaced`] when another process takes the socket over.
    pub(crate) async fn run(
        mut self,
        routes: Routes,
        shutdown: CancellationToken,
    ) -> Result<(), Error> {
        let (sender, mut receiver) = mpsc::channel::<UnixStream>(16);
        let incoming = futures::stream::poll_fn(move |context| {
            receiver
                .poll_recv(context)
                .map(|stream| stream.map(Ok::<_, io::Error>))
        });
        let end = CancellationToken::new();
        let server = Server::builder()
            .add_routes(routes)
            .serve_with_incoming_shutdown(incoming, end.clone().cancelled_owned());
        let mut server = std::pin::pin!(server);
        let kept = tokio::select! {
            kept = self.keep(&sender, &shutdown) => kept,
            ended = server.as_mut() => return Err(self.failed(ended.err())),
        };
        // The file goes first, so that nobody new comes while the rest is finished.
        let path = self.path.clone();
        drop(self);
        end.cancel();
        if tokio::time::timeout(DRAIN, server).await.is_err() {
            tracing::debug!(socket = %path.display(), "calls in flight were cut off");
        }
        kept
    }

    fn failed(&self, error: Option<tonic::transport::Error>) -> Error {
        Error::Server {
            path: self.path.clone(),
            reason: error.map_or_else(|| "it ended by itself".to_owned(), |error| describe(&error)),
        }
    }

    /// Takes connections and watches the file until `shutdown`.
    async fn keep(
        &mut self,
        connections: &mpsc::Sender<UnixStream>,
        shutdown: &CancellationToken,
    ) -> Result<(), Error> {
        let mut changes: Changes = self.folder.changes();
        let pauses = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(RESTORE_PAUSE)
            .without_max_times();
        let mut pause = pauses.build();
        // The file may have vanished between `open` and now.
        let mut look_again = Some(Duration::ZERO);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = changes.next() => look_again = Some(Duration::ZERO),
                () = tokio::time::sleep(look_again.unwrap_or_default()), if look_again.is_some() => {
                    look_again = match self.restore().await {
                        Ok(()) => {
                            pause = pauses.build();
                            None
                        }
                        Err(error @ Error::Displaced { .. }) => return Err(error),
                        Err(error) => {
                            tracing::warn!(%error, "the plugin's socket is gone and cannot be made again yet");
                            Some(pause.next().unwrap_or(RESTORE_PAUSE))
                        }
                    };
                }
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        // The server takes connections as long as it runs.
                        let _ = connections.send(stream).await;
                    }
                    Err(error) => {
                        tracing::debug!(%error, "accept");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    /// Makes the socket again if its file is gone.
    async fn restore(&mut self) -> Result<(), Error> {
        match inode(&self.path) {
            Ok(Some(found)) if found == *self.inode.borrow() => Ok(()),
            Ok(Some(_)) => Err(Error::Displaced {
                path: self.path.clone(),
            }),
            Ok(None) => {
                self.folder
                    .restore()
                    .await
                    .map_err(|source| Error::Folder {
                        path: self.folder.path().to_owned(),
                        source,
                    })?;
                let (listener, inode) = make(&self.path).await.map_err(|error| match error {
                    // It was not there a moment ago.
                    Error::InUse { path } | Error::NotASocket { path } => Error::Displaced { path },
                    error => error,
                })?;
                self.listener = listener;
                self.inode.send_replace(inode);
                tracing::info!(socket = %self.path.display(), "made the socket again");
                Ok(())
            }
            Err(source) => Err(Error::Socket {
                path: self.path.clone(),
                action: "look at it",
                source,
            }),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if matches!(inode(&self.path), Ok(Some(found)) if found == *self.inode.borrow()) {
            // Nothing is left to be done about a failure, and the next start copes with it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Whether an endpoint's socket is in its place.
#[derive(Clone, Debug)]
pub(crate) struct Presence {
    path: PathBuf,
    inode: watch::Receiver<Inode>,
}

impl Presence {
    /// Waits until the path leads to the socket that listens: after the kubelet has deleted it, until it is made again.
    pub(crate) async fn there(&mut self) {
        loop {
            let ours = *self.inode.borrow_and_update();
            if matches!(inode(&self.path), Ok(Some(found)) if found == ours) {
                return;
            }
            if self.inode.changed().await.is_err() {
                // The endpoint ended; whoever waits is about to be told.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Makes a listening socket at `path`: first under a hidden name, then renamed, so that it appears at once and complete.
async fn make(path: &Path) -> Result<(UnixListener, Inode), Error> {
    if path.as_os_str().len() > LONGEST_PATH {
        return Err(Error::PathTooLong {
            path: path.to_owned(),
        });
    }
    let failed = |action: &'static str| {
        let path = path.to_owned();
        move |source| Error::Socket {
            path,
            action,
            source,
        }
    };
    refuse_taken(path).await?;
    let hidden = hidden(path);
    match std::fs::remove_file(&hidden) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("remove what a former run left")(error));
        }
        _ => {}
    }
    let listener = StdListener::bind(&hidden).map_err(failed("bind it"))?;
    let placed = || {
        // Only the kubelet connects, and it runs as root, or as who we are.
        std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let found = inode(&hidden)?.ok_or(io::ErrorKind::NotFound)?;
        std::fs::rename(&hidden, path)?;
        Ok(found)
    };
    let inode = placed().map_err(|source| {
        let _ = std::fs::remove_file(&hidden);
        failed("put it in its place")(source)
    })?;
    let listener = UnixListener::from_std(listener).map_err(failed("listen on it"))?;
    Ok((listener, inode))
}

/// Fails when `path` is taken by anything but a socket on which nobody listens.
async fn refuse_taken(path: &Path) -> Result<(), Error> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => {
            return Err(Error::NotASocket {
                path: path.to_owned(),
            });
        }
        Err(source) => {
            return Err(Error::Socket {
                path: path.to_owned(),
                action: "look at it",
                source,
            });
        }
    }
    match UnixStream::connect(path).await {
        // Nobody listens any more, or it vanished meanwhile.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
            ) =>
        {
            Ok(())
        }
        // A full backlog (EAGAIN) is somebody's as well.
        Ok(_) | Err(_) => Err(Error::InUse {
            path: path.to_owned(),
        }),
    }
}

/// The name under which a socket is prepared; the kubelet overlooks names that begin with a dot.
fn hidden(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    path.with_file_name(name)
}

/// What `path` leads to.
fn inode(path: &Path) -> io::Result<Option<Inode>> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(Inode {
            device: metadata.dev(),
            number: metadata.ino(),
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// An error with its causes in one line: tonic's own text is "transport error".
pub(crate) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let line = error.to_string();
        if !text.contains(&line) {
            text.push_str(": ");
            text.push_str(&line);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    struct Running {
        folder: Folder,
        path: PathBuf,
        shutdown: CancellationToken,
        task: tokio::task::JoinHandle<Result<(), Error>>,
        _scratch: tempfile::TempDir,
    }

    async fn running() -> Running {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::open(scratch.path()).await.unwrap();
        let endpoint = Endpoint::open(&folder, "a.sock").await.unwrap();
        let path = endpoint.path().to_owned();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(endpoint.run(Routes::default(), shutdown.clone()));
        Running {
            folder,
            path,
            shutdown,
            task,
            _scratch: scratch,
        }
    }

    async fn bounded<T>(future: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(60), future)
            .await
            .expect("in time")
    }

    fn entries(folder: &Folder) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn a_socket_is_there_while_it_serves_and_only_then() {
        let running = running().await;
        assert_eq!(entries(&running.folder), ["a.sock"]);
        UnixStream::connect(&running.path).await.unwrap();
        running.shutdown.cancel();
        bounded(running.task).await.unwrap().unwrap();
        assert!(entries(&running.folder).is_empty());
    }

    #[tokio::test]
    async fn a_socket_that_was_deleted_comes_back_and_open_connections_stay() {
        let running = running().await;
        let mut changes = running.folder.changes();
        let old = UnixStream::connect(&running.path).await.unwrap();
        for _ in 0..3 {
            std::fs::remove_file(&running.path).unwrap();
            while !running.path.exists() {
                bounded(changes.next()).await;
            }
            UnixStream::connect(&running.path).await.unwrap();
        }
        let mut byte = [0];
        // The server's own settings frame waits to be read: an end would be zero bytes or an error.
        bounded(old.readable()).await.unwrap();
        assert_eq!(old.try_read(&mut byte).unwrap(), 1);
        running.shutdown.cancel();
        bounded(running.task).await.unwrap().unwrap();
        assert!(entries(&running.folder).is_empty());
    }

    #[tokio::test]
    async fn a_dead_socket_is_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("a.sock");
        // Closing a listener leaves its file, as a killed process does.
        drop(StdListener::bind(&path).unwrap());
        drop(StdListener::bind(scratch.path().join(".a.sock")).unwrap());
        let folder = Folder::open(scratch.path()).await.unwrap();
        let endpoint = Endpoint::open(&folder, "a.sock").await.unwrap();
        UnixStream::connect(endpoint.path()).await.unwrap();
        assert_eq!(entries(&folder), ["a.sock"]);
    }

    #[tokio::test]
    async fn a_live_socket_is_left_alone() {
        let running = running().await;
        let error = Endpoint::open(&running.folder, "a.sock").await.unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
        UnixStream::connect(&running.path).await.unwrap();
        running.shutdown.cancel();
        bounded(running.task).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_file_of_that_name_is_left_alone() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::write(scratch.path().join("a.sock"), "mine").unwrap();
        let folder = Folder::open(scratch.path()).await.unwrap();
        let error = Endpoint::open(&folder, "a.sock").await.unwrap_err();
        assert!(matches!(error, Error::NotASocket { .. }), "{error}");
        assert_eq!(
            std::fs::read_to_string(scratch.path().join("a.sock")).unwrap(),
            "mine"
        );
    }

    #[tokio::test]
    async fn whoever_is_displaced_ends_and_leaves_the_other_ones_socket() {
        let running = running().await;
        let other = running.folder.path().join("other.sock");
        let _listener = StdListener::bind(&other).unwrap();
        std::fs::rename(&other, &running.path).unwrap();
        let error = bounded(running.task).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Displaced { .. }), "{error}");
        assert_eq!(entries(&running.folder), ["a.sock"]);
    }

    #[tokio::test]
    async fn the_folder_itself_may_vanish() {
        let running = running().await;
        let mut changes = running.folder.changes();
        std::fs::remove_dir_all(running.folder.path()).unwrap();
        while UnixStream::connect(&running.path).await.is_err() {
            bounded(changes.next()).await;
        }
        running.shutdown.cancel();
        bounded(running.task).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn an_endpoint_that_never_ran_leaves_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::open(scratch.path()).await.unwrap();
        drop(Endpoint::open(&folder, "a.sock").await.unwrap());
        assert!(entries(&folder).is_empty());
    }

    #[tokio::test]
    async fn a_path_may_be_as_long_as_the_system_takes() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::open(scratch.path()).await.unwrap();
        let room = LONGEST_PATH - scratch.path().as_os_str().len() - 1;
        let endpoint = Endpoint::open(&folder, &"a".repeat(room)).await.unwrap();
        UnixStream::connect(endpoint.path()).await.unwrap();
        let error = Endpoint::open(&folder, &"a".repeat(room + 1))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::PathTooLong { .. }), "{error}");
        assert!(error.to_string().contains("107 bytes"), "{error}");
    }

    #[tokio::test]
    async fn names_are_file_names() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::open(scratch.path()).await.unwrap();
        for name in ["", ".hidden", "a/b", ".."] {
            let error = Endpoint::open(&folder, name).await.unwrap_err();
            assert!(matches!(error, Error::Name { .. }), "{name:?}: {error}");
        }
    }
}
