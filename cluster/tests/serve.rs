//! The endpoint server, spoken to over raw sockets: what it answers, and what it does not let a client do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;
use std::time::Duration;

use cluster::serve::{BindError, Limits, Reply, Routes, Server};
use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const BOUND: Duration = Duration::from_secs(60);

struct Running {
    address: SocketAddr,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

async fn start(limits: Limits) -> Running {
    let server = Server::bind("127.0.0.1:0", limits).await.unwrap();
    let address = server.address().unwrap();
    let routes = Routes::new()
        .get("/metrics", || async { Reply::metrics("up 1\n") })
        .get("/readyz", || async {
            Reply::probe(Err("the driver is not loaded".to_owned()))
        })
        .get("/healthz", || async { Reply::probe(Ok(())) })
        .get("/slow", || async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Reply::text(hyper::StatusCode::OK, "slow")
        })
        .get("/stuck", std::future::pending)
        .get("/large", || async { Reply::metrics(vec![b'x'; 64 << 20]) });
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(server.run(routes, shutdown.clone()));
    Running {
        address,
        shutdown,
        task,
    }
}

/// Sends `request` on a connection of its own and reads until the server closes it.
async fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(BOUND, stream.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    answer
}

fn request(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
}

#[rstest]
#[case::metrics(
    "GET",
    "/metrics",
    "200 OK",
    "content-type: text/plain; version=0.0.4; charset=utf-8",
    "up 1\n"
)]
#[case::query("GET", "/metrics?name=up", "200 OK", "content-length: 5", "up 1\n")]
#[case::head("HEAD", "/metrics", "200 OK", "content-length: 5", "")]
#[case::healthy(
    "GET",
    "/healthz",
    "200 OK",
    "content-type: text/plain; charset=utf-8",
    "ok"
)]
#[case::unready(
    "GET",
    "/readyz",
    "503 Service Unavailable",
    "content-length: 24",
    "the driver is not loaded"
)]
#[case::unknown(
    "GET",
    "/metrics/",
    "404 Not Found",
    "content-length: 10",
    "not found\n"
)]
#[case::unknown_post("POST", "/", "404 Not Found", "content-length: 10", "not found\n")]
#[case::post(
    "POST",
    "/metrics",
    "405 Method Not Allowed",
    "allow: GET, HEAD",
    "only GET and HEAD\n"
)]
#[case::delete(
    "DELETE",
    "/metrics",
    "405 Method Not Allowed",
    "allow: GET, HEAD",
    "only GET and HEAD\n"
)]
#[tokio::test]
async fn answers(
    #[case] method: &str,
    #[case] path: &str,
    #[case] status: &str,
    #[case] header: &str,
    #[case] body: &str,
) {
    let server = start(Limits::default()).await;
    let answer = exchange(server.address, &request(method, path)).await;
    let (head, got) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(
        head.lines().next(),
        Some(format!("HTTP/1.1 {status}").as_str())
    );
    assert!(
        head.lines().any(|line| line.eq_ignore_ascii_case(header)),
        "{header:?} in {head}"
    );
    assert_eq!(got, body);
}

#[tokio::test]
async fn a_connection_serves_many_requests() {
    let server = start(Limits::default()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    for _ in 0..3 {
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n")
            .await
            .unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"up 1\n") {
            let read = timeout(BOUND, stream.read_buf(&mut answer))
                .await
                .unwrap()
                .unwrap();
            assert_ne!(read, 0, "the server closed a connection that was in use");
        }
    }
}

#[tokio::test]
async fn a_head_that_never_ends_costs_a_connection_only_for_a_while() {
    let mut limits = Limits::default();
    limits.head = Duration::from_millis(100);
    limits.connections = 1;
    let server = start(limits).await;
    let mut stuck = TcpStream::connect(server.address).await.unwrap();
    stuck
        .write_all(b"GET /metrics HTTP/1.1\r\nx: ")
        .await
        .unwrap();
    // The only slot comes free again although the first client never finishes.
    let answer = exchange(server.address, &request("GET", "/metrics")).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}

#[tokio::test]
async fn an_answer_nobody_takes_costs_a_connection_only_for_a_while() {
    let mut limits = Limits::default();
    limits.write = Duration::from_millis(100);
    limits.connections = 1;
    let server = start(limits).await;
    let mut stuck = TcpStream::connect(server.address).await.unwrap();
    stuck
        .write_all(request("GET", "/large").as_bytes())
        .await
        .unwrap();
    let answer = exchange(server.address, &request("GET", "/metrics")).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}

/// Limits under which only another client's need frees a place.
fn crowded(connections: usize) -> Limits {
    let mut limits = Limits::default();
    limits.connections = connections;
    limits.patience = Duration::from_millis(50);
    limits.head = Duration::from_secs(3600);
    limits.write = Duration::from_secs(3600);
    limits
}

/// Whether the server closes the connection, having sent whatever it sent before.
async fn is_closed(mut stream: TcpStream) -> bool {
    let mut sink = vec![0; 1 << 20];
    let ended = async { while matches!(stream.read(&mut sink).await, Ok(1..)) {} };
    timeout(BOUND, ended).await.is_ok()
}

#[rstest]
#[case::silent("")]
#[case::half_a_head("GET /metrics HTTP/1.1\r\nx: ")]
#[case::kept_alive("GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n")]
#[case::answer_untaken("GET /large HTTP/1.1\r\nhost: test\r\n\r\n")]
#[tokio::test]
async fn clients_that_hold_connections_for_nothing_keep_nobody_out(#[case] said: &str) {
    let server = start(crowded(3)).await;
    let mut idle = Vec::new();
    for _ in 0..9 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(said.as_bytes()).await.unwrap();
        idle.push(stream);
    }
    for _ in 0..3 {
        let answer = exchange(server.address, &request("GET", "/metrics")).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }
    for stream in idle.drain(..6) {
        assert!(is_closed(stream).await);
    }
}

#[tokio::test]
async fn a_full_server_cuts_no_request_short() {
    // Less than the handler takes.
    let mut limits = crowded(1);
    limits.patience = Duration::from_millis(200);
    let server = start(limits).await;
    let mut busy = TcpStream::connect(server.address).await.unwrap();
    busy.write_all(request("GET", "/slow").as_bytes())
        .await
        .unwrap();
    let next = exchange(server.address, &request("GET", "/slow")).await;
    let mut slow = String::new();
    timeout(BOUND, busy.read_to_string(&mut slow))
        .await
        .unwrap()
        .unwrap();
    assert!(slow.ends_with("slow"), "{slow}");
    assert!(next.ends_with("slow"), "{next}");
}

#[tokio::test]
async fn a_server_with_room_leaves_idle_connections_alone() {
    let mut limits = crowded(2);
    limits.patience = Duration::ZERO;
    let server = start(limits).await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    exchange(server.address, &request("GET", "/healthz")).await;
    idle.write_all(request("GET", "/metrics").as_bytes())
        .await
        .unwrap();
    let mut answer = String::new();
    timeout(BOUND, idle.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(answer.ends_with("up 1\n"), "{answer}");
}

#[tokio::test]
async fn a_handler_that_never_answers_is_given_up() {
    let mut limits = Limits::default();
    limits.handler = Duration::from_millis(50);
    let server = start(limits).await;
    let answer = exchange(server.address, &request("GET", "/stuck")).await;
    assert!(
        answer.starts_with("HTTP/1.1 503 Service Unavailable"),
        "{answer}"
    );
}

#[tokio::test]
async fn an_oversized_head_is_refused() {
    let server = start(Limits::default()).await;
    let long = format!(
        "GET /metrics HTTP/1.1\r\nhost: test\r\nx: {}\r\n\r\n",
        "y".repeat(32 * 1024)
    );
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    // The server may close before all of it is sent.
    let _ = stream.write_all(long.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = timeout(BOUND, stream.read_to_end(&mut answer))
        .await
        .unwrap();
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"),
        "{:?}",
        String::from_utf8_lossy(&answer)
    );
}

#[tokio::test]
async fn shutdown_finishes_what_is_in_flight_and_closes_what_idles() {
    let mut limits = Limits::default();
    limits.drain = BOUND;
    let server = start(limits).await;
    let idle = TcpStream::connect(server.address).await.unwrap();
    let mut busy = TcpStream::connect(server.address).await.unwrap();
    busy.write_all(request("GET", "/slow").as_bytes())
        .await
        .unwrap();
    // An answer on a later connection shows that both are accepted.
    exchange(server.address, &request("GET", "/healthz")).await;
    server.shutdown.cancel();
    let mut answer = String::new();
    timeout(BOUND, busy.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(answer.ends_with("slow"), "{answer}");
    timeout(BOUND, server.task).await.unwrap().unwrap();
    drop(idle);
    assert!(
        TcpStream::connect(server.address).await.is_err(),
        "the port is free"
    );
}

#[tokio::test]
async fn shutdown_is_bounded() {
    let mut limits = Limits::default();
    limits.drain = Duration::from_millis(50);
    let server = start(limits).await;
    let mut stuck = TcpStream::connect(server.address).await.unwrap();
    stuck
        .write_all(request("GET", "/stuck").as_bytes())
        .await
        .unwrap();
    exchange(server.address, &request("GET", "/healthz")).await;
    server.shutdown.cancel();
    timeout(BOUND, server.task).await.unwrap().unwrap();
}

#[rstest]
#[case::no_port("localhost")]
#[case::word(":http")]
#[case::too_large(":65536")]
#[case::empty("")]
#[tokio::test]
async fn addresses_that_are_none_are_refused(#[case] address: &str) {
    let error = Server::bind(address, Limits::default()).await.unwrap_err();
    assert!(matches!(error, BindError::Address { .. }), "{error:?}");
}

#[tokio::test]
async fn a_taken_port_is_said_so() {
    let first = Server::bind("127.0.0.1:0", Limits::default())
        .await
        .unwrap();
    let address = first.address().unwrap().to_string();
    let error = Server::bind(&address, Limits::default()).await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with(&format!("cannot listen on {address}: ")),
        "{error}"
    );
}

#[tokio::test]
async fn a_bare_port_listens_on_ipv4_too() {
    let server = Server::bind(":0", Limits::default()).await.unwrap();
    let port = server.address().unwrap().port();
    let shutdown = CancellationToken::new();
    let routes = Routes::new().get("/healthz", || async { Reply::probe(Ok(())) });
    tokio::spawn(server.run(routes, shutdown.clone()));
    let answer = exchange(
        SocketAddr::from(([127, 0, 0, 1], port)),
        &request("GET", "/healthz"),
    )
    .await;
    assert!(answer.ends_with("ok"), "{answer}");
}
