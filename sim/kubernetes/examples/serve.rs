//! Runs the server alone, with the objects of the YAML or JSON files given, until ctrl-C:
//! `cargo run -p sim-kubernetes --example serve -- nodes.json`.

use std::error::Error;

use sim_kubernetes::{Options, Server};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut objects = Vec::new();
    for file in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&file)?;
        objects.push(serde_saphyr::from_str(&text)?);
    }
    let server = Server::start(Options {
        objects,
        ..Options::default()
    })
    .await?;
    print!("{}", server.kubeconfig());
    tokio::signal::ctrl_c().await?;
    server.shutdown().await;
    Ok(())
}
