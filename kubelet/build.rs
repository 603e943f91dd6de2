//! Turns the message declarations in `proto/` into Rust, one folder of output for each module of `src/api.rs`.

use std::error::Error;
use std::path::PathBuf;

/// Module and root file. Compiled one by one, because several packages are called `v1` on the wire.
const MODULES: [(&str, &str); 5] = [
    ("registration", "registration.proto"),
    ("device_plugin", "device_plugin.proto"),
    ("pod_resources", "pod_resources.proto"),
    ("dra", "dra_v1beta1.proto"),
    ("health", "dra_health_v1alpha1.proto"),
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for (module, file) in MODULES {
        let folder = out.join(module);
        std::fs::create_dir_all(&folder)?;
        let declarations = protox::compile([file], ["proto"])?;
        tonic_prost_build::configure()
            .out_dir(folder)
            .emit_rerun_if_changed(false)
            .compile_fds(declarations)?;
    }
    Ok(())
}
