//! The trap of plugin registration: the kubelet's `:authority` is the percent-encoded path of the socket.
//!
//! Sent as frames by hand (RFC 9113, RFC 7541), since no client in Rust can send such a header.

use std::path::Path;

use kubelet::dra::{Claim, Config, Driver, Plugin, PreparedDevice};
use kubelet::registration::{Kind, PluginInfo, Registration, socket_name};
use kubelet::{Folder, Paths};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use crate::bounded;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// What grpc-go makes of a socket's path: `/` is escaped, `@` is not.
fn authority(socket: &Path) -> String {
    socket.to_str().unwrap().replace('/', "%2F")
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A header as a literal without indexing and without Huffman coding.
fn header(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        // An integer with a prefix of seven bits, of which one more byte is enough here.
        match u8::try_from(text.len()).unwrap() {
            length @ 0..127 => block.push(length),
            length => block.extend([127, length - 127]),
        }
        block.extend(text.as_bytes());
    }
}

const GET_INFO: &str = "/pluginregistration.Registration/GetInfo";

/// Makes a call; returns the kind and the payload of the first frame that answers it.
async fn call(socket: &Path, method: &str, authority: &str) -> (u8, Vec<u8>) {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        header(&mut block, name, value);
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes.extend(frame(HEADERS, END_HEADERS, 1, &block));
    // An empty message: not compressed, no bytes.
    bytes.extend(frame(DATA, END_STREAM, 1, &[0; 5]));
    stream.write_all(&bytes).await.unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await.unwrap();
        if head[5..] == 1_u32.to_be_bytes() {
            return (head[3], payload);
        }
    }
}

#[tokio::test]
async fn an_at_sign_in_the_sockets_name_lets_the_kubelet_in() {
    let scratch = tempfile::tempdir().unwrap();
    let registry = Folder::open(scratch.path()).await.unwrap();
    let name = socket_name("gpu.nvidia.com", None);
    let info = PluginInfo {
        kind: Kind::Dra,
        name: "gpu.nvidia.com".to_owned(),
        endpoint: "/dra.sock".into(),
        versions: vec!["v1.DRAPlugin".to_owned()],
    };
    let registration = Registration::open(&registry, &name, info).await.unwrap();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(registration.run(shutdown.clone()));
    let socket = scratch.path().join(&name);

    let (kind, _) = bounded(call(&socket, GET_INFO, &authority(&socket))).await;
    assert_eq!(kind, HEADERS);

    // The same server, had the socket the name that the kubelet's documentation proposes.
    let plain = scratch.path().join("gpu.nvidia.com-reg.sock");
    let (kind, payload) = bounded(call(&socket, GET_INFO, &authority(&plain))).await;
    assert_eq!(kind, RST_STREAM);
    assert_eq!(payload, 1_u32.to_be_bytes(), "PROTOCOL_ERROR");

    shutdown.cancel();
    bounded(task).await.unwrap().unwrap();
}

struct Nothing;

impl Driver for Nothing {
    type Error = String;

    async fn prepare(&self, _: Claim) -> Result<Vec<PreparedDevice>, String> {
        Ok(Vec::new())
    }

    async fn unprepare(&self, _: Claim) -> Result<(), String> {
        Ok(())
    }
}

#[tokio::test]
async fn a_kubelet_that_dials_the_service_in_the_same_way_is_let_in() {
    for instance in [None, Some("b3a7".to_owned())] {
        let scratch = tempfile::tempdir().unwrap();
        let config = Config {
            driver: "gpu.example.com".to_owned(),
            paths: Paths::below(Path::new("/"), scratch.path()),
            instance,
        };
        let plugin = Plugin::open(&config, Nothing, None).await.unwrap();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(plugin.run(shutdown.clone()));
        let folder = scratch.path().join("plugins/gpu.example.com");
        let socket = std::fs::read_dir(folder)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        let method = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources";
        let (kind, _) = bounded(call(&socket, method, &authority(&socket))).await;
        assert_eq!(kind, HEADERS);
        shutdown.cancel();
        bounded(task).await.unwrap().unwrap();
    }
}
