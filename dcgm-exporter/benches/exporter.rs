//! A scrape of eight H100 cut into seven instances each, over loopback; and making its page.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::hint::black_box;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use dcgm_exporter::counters::Counters;
use dcgm_exporter::labels::{Identity, LabelStyle};
use dcgm_exporter::selector::Selector;
use dcgm_exporter::value::{Entity, Value};
use dcgm_exporter::{Config, Exporter, page};
use nvml::{Driver, Options, Session};
use sim_nvml::admin::SimulatedNode;
use sim_nvml::presets::NodeSpec;
use tokio_util::sync::CancellationToken;

/// Profile ids of 1g.10gb and of the compute instance that fills it.
const ONE_G: (u32, u32) = (19, 0);

fn scrape_8x7(c: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let node =
        SimulatedNode::create(folder.path(), &NodeSpec::preset("dgx-h100").unwrap()).unwrap();
    let options = Options::at(node.root());
    let cut = |device: &nvml::Device<'_>| {
        device.set_mig_mode(true)?;
        for _ in 0..7 {
            let instance = device.create_gpu_instance(ONE_G.0, None)?;
            device.create_compute_instance(instance.id, ONE_G.1, None)?;
        }
        Ok(())
    };
    let cuts = Driver::open(&options).unwrap().for_each_gpu(cut).unwrap();
    assert!(cuts.iter().all(Result::is_ok));

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let config = Config {
        address: "127.0.0.1:0".to_owned(),
        interval: Duration::from_secs(1),
        selector: Selector::Flex,
        counters: Counters::default(),
        style: LabelStyle {
            hostname: Some("node-1".to_owned()),
            ..LabelStyle::default()
        },
        health_requires_gpus: false,
        pods: None,
    };
    let exporter = runtime.block_on(Exporter::bind(config)).unwrap();
    let address = exporter.address().unwrap();
    let shutdown = CancellationToken::new();
    let session = Arc::new(Session::new(&options).unwrap());
    let serving = {
        let shutdown = shutdown.clone();
        std::thread::spawn(move || runtime.block_on(exporter.run(session, shutdown)))
    };
    let mut connection = BufReader::new(TcpStream::connect(address).unwrap());
    // Past the second reading, so that the page has everything.
    let mut body = Vec::new();
    while !String::from_utf8_lossy(&body).contains("DCGM_FI_PROF_") {
        std::thread::sleep(Duration::from_millis(100));
        scrape(&mut connection, &mut body);
    }
    c.bench_function("scrape_8x7", |b| {
        b.iter(|| scrape(&mut connection, &mut body))
    });
    shutdown.cancel();
    drop(connection);
    serving.join().unwrap().unwrap();
}

fn scrape(connection: &mut BufReader<TcpStream>, body: &mut Vec<u8>) {
    connection
        .get_mut()
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")
        .unwrap();
    let mut length = 0;
    let mut line = String::new();
    loop {
        line.clear();
        connection.read_line(&mut line).unwrap();
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
    }
    body.resize(length, 0);
    connection.read_exact(body).unwrap();
}

fn render_8x7(c: &mut Criterion) {
    let counters = Counters::default();
    let style = LabelStyle {
        hostname: Some("node-1".to_owned()),
        ..LabelStyle::default()
    };
    let entity = |gpu, id| {
        let identity = Identity {
            gpu,
            uuid: "GPU-9051d5f0-ed50-5568-b16a-a47f67c0f7a7",
            pci_bus_id: "00000000:53:00.0",
            minor: Some(gpu),
            model: "NVIDIA H100 80GB HBM3",
            instance: Some(("1g.10gb", id)),
        };
        let labels = style.render(
            &identity,
            &[("DCGM_FI_DRIVER_VERSION", "580.105.08".to_owned())],
        );
        Entity {
            ids: Vec::new(),
            labels,
            values: vec![Some(Value::Double(0.381_124)); counters.families.len()],
        }
    };
    let entities: Vec<Entity> = (0..8)
        .flat_map(|gpu| (7..14).map(move |id| (gpu, id)))
        .map(|(g, i)| entity(g, i))
        .collect();
    let mut text = String::new();
    c.bench_function("render_8x7", |b| {
        b.iter(|| {
            text.clear();
            page::families(&counters, black_box(&entities), &mut text);
            black_box(text.len())
        });
    });
}

criterion_group!(benches, scrape_8x7, render_8x7);
criterion_main!(benches);
