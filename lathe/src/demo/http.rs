//! One GET over loopback: what a Prometheus would do.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const BOUND: Duration = Duration::from_secs(30);

/// Largest page taken: forty times what 8 GPUs with 7 instances each make.
const LARGEST: u64 = 16 << 20;

/// The body of `GET path`.
///
/// # Errors
/// No connection, no answer within 30 s, or a status other than 200.
pub(crate) async fn get(address: SocketAddr, path: &str) -> anyhow::Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.take(LARGEST).read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer = tokio::time::timeout(BOUND, exchange)
        .await
        .with_context(|| format!("no answer from http://{address}{path}"))?
        .with_context(|| format!("reading http://{address}{path}"))?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .with_context(|| format!("http://{address}{path} did not answer in HTTP"))?;
    let status = head.lines().next().unwrap_or_default();
    if !status.starts_with("HTTP/1.1 200") {
        bail!("http://{address}{path} answered {status:?}");
    }
    Ok(body.to_owned())
}
