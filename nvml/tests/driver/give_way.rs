//! A session that lets go of the GPUs while the MIG engine's journal says that they are changed.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use nvml::{Error, GiveWay, Session};

use crate::Node;

const BOUND: Duration = Duration::from_secs(60);

fn session(node: &Node) -> (Arc<Session>, GiveWay, Receiver<()>) {
    let session = Arc::new(Session::new(&node.options()).unwrap());
    session.driver().unwrap();
    let (told, tells) = mpsc::channel();
    let give_way = session.give_way(move || told.send(()).unwrap_or(()));
    (session, give_way.unwrap(), tells)
}

/// The journal comes as the engine makes it: a draft that is renamed.
fn begin(node: &Node) {
    let folder = node.sim.root().join("var/lib/lathe/mig");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("journal.new"), "x").unwrap();
    std::fs::rename(folder.join("journal.new"), folder.join("journal")).unwrap();
}

fn end(node: &Node) {
    std::fs::remove_file(node.sim.root().join("var/lib/lathe/mig/journal")).unwrap();
}

#[test]
fn gpus_are_let_go_while_they_are_changed() {
    let node = Node::of("a100-sxm4-40gb", 1);
    let (session, _give_way, tells) = session(&node);
    // The folders come with the first change, and stay for the second.
    for _ in 0..2 {
        begin(&node);
        tells.recv_timeout(BOUND).unwrap();
        assert_eq!(session.driver().err(), Some(Error::Closed));
        assert_eq!(node.sim.state().unwrap().clients.len(), 0);
        end(&node);
        tells.recv_timeout(BOUND).unwrap();
        assert!(session.driver().is_ok());
    }
}

#[test]
fn who_starts_during_a_change_lets_go_too() {
    let node = Node::of("a100-sxm4-40gb", 1);
    begin(&node);
    let (session, _give_way, tells) = session(&node);
    tells.recv_timeout(BOUND).unwrap();
    assert_eq!(session.driver().err(), Some(Error::Closed));
}

#[test]
fn who_gives_way_no_longer_has_the_gpus_again() {
    let node = Node::of("a100-sxm4-40gb", 1);
    let (session, give_way, tells) = session(&node);
    begin(&node);
    tells.recv_timeout(BOUND).unwrap();
    drop(give_way);
    session.wait(BOUND).unwrap();
    // The thread has ended with its channel.
    assert_eq!(tells.recv(), Err(mpsc::RecvError));
}

#[test]
fn the_journal_of_an_engine_that_was_killed_long_ago_keeps_nobody_out() {
    let node = Node::of("a100-sxm4-40gb", 1);
    begin(&node);
    let journal = node.sim.root().join("var/lib/lathe/mig/journal");
    let file = std::fs::File::options()
        .append(true)
        .open(&journal)
        .unwrap();
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(600);
    file.set_modified(long_ago).unwrap();
    let (session, _give_way, tells) = session(&node);
    assert!(tells.recv_timeout(Duration::from_millis(300)).is_err());
    assert!(session.driver().is_ok());
}
