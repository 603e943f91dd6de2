//! `lathe dcgm-exporter` as a manifest of NVIDIA's exporter starts it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rstest::rstest;
use sim_nvml::admin::SimulatedNode;
use sim_nvml::model::{Effect, Fault, Personality};
use sim_nvml::presets::NodeSpec;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);

fn node() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    SimulatedNode::create(folder.path(), &NodeSpec::uniform("t4-16gb", 2).unwrap()).unwrap();
    folder
}

fn command(root: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lathe"));
    command
        .arg("dcgm-exporter")
        .env("LATHE_ROOT", root)
        .env("NODE_NAME", "node-1");
    command
}

struct Exporter {
    process: Child,
    address: String,
    /// What it logged until it served.
    log: String,
    /// Gives what it logged after that, once it has ended.
    rest: Option<JoinHandle<String>>,
}

impl Exporter {
    /// Starts on a free port, which the log names.
    fn start(command: &mut Command) -> Self {
        let mut process = command
            .args(["-a", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(process.stderr.take().unwrap());
        let mut log = String::new();
        let address = loop {
            let begin = log.len();
            assert!(stderr.read_line(&mut log).unwrap() > 0, "it ended:\n{log}");
            if let Some((_, address)) = log[begin..].split_once("address=") {
                break address.trim().to_owned();
            }
        };
        // Else it would block on a full pipe.
        let rest = std::thread::spawn(move || {
            let mut rest = String::new();
            let _ = stderr.read_to_string(&mut rest);
            rest
        });
        Self {
            process,
            address,
            log,
            rest: Some(rest),
        }
    }

    fn page(&self) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Ends it, and gives all that it logged.
    fn into_log(mut self) -> String {
        let rest = self.rest.take().unwrap();
        let served = std::mem::take(&mut self.log);
        self.stop();
        served + &rest.join().unwrap()
    }

    /// Asks it to end, as the kubelet does, and waits.
    fn stop(mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn it_serves_until_it_is_asked_to_end() {
    let node = node();
    let exporter = Exporter::start(&mut command(node.path()));
    let page = exporter.page();
    let temperatures = page
        .lines()
        .filter(|line| line.starts_with("DCGM_FI_DEV_GPU_TEMP{"));
    assert_eq!(
        temperatures
            .filter(|line| line.contains(r#"hostname="node-1""#))
            .count(),
        2,
        "{page}"
    );
    assert_eq!(exporter.stop(), Some(0));
}

#[test]
fn flags_of_the_original() {
    let node = node();
    let file = node.path().join("counters.csv");
    std::fs::write(
        &file,
        "dcgm_gpu_temp, gauge, \"Hot, or not\"\nDCGM_FI_DRIVER_VERSION, label, x\n",
    )
    .unwrap();
    let mut command = command(node.path());
    command
        .args([
            "-o",
            "-n",
            "--rbmn",
            "-k",
            "--kubernetes-gpu-id-type",
            "uid",
            "-d",
            "g:1",
            "-c",
            "500",
            "-f",
        ])
        .arg(&file);
    let exporter = Exporter::start(&mut command);
    assert!(
        exporter.log.contains("flags=\"--kubernetes-gpu-id-type\""),
        "{}",
        exporter.log
    );
    let page = exporter.page();
    assert!(
        page.contains("# HELP dcgm_gpu_temp Hot, or not\n# TYPE dcgm_gpu_temp gauge\n"),
        "{page}"
    );
    let samples: Vec<&str> = page.lines().filter(|line| line.contains("{gpu=")).collect();
    assert_eq!(samples.len(), 1, "{page}");
    assert!(
        samples[0].starts_with(r#"dcgm_gpu_temp{gpu="1",uuid="GPU-"#),
        "{}",
        samples[0]
    );
    assert!(
        samples[0].contains(r#"modelName="Tesla-T4",DCGM_FI_DRIVER_VERSION="580.105.08"} "#),
        "{}",
        samples[0]
    );
}

/// Manifests name the file of NVIDIA's image, which is not in ours.
#[test]
fn the_shipped_counter_file_is_built_in() {
    let node = node();
    let mut command = command(node.path());
    command.env(
        "DCGM_EXPORTER_COLLECTORS",
        "/etc/dcgm-exporter/dcp-metrics-included.csv",
    );
    assert!(
        Exporter::start(&mut command)
            .page()
            .contains("DCGM_FI_DEV_POWER_USAGE{")
    );
}

/// Cuts GPU 0 into as many instances of a profile as given, or makes it whole; what it was cut into before goes first.
fn cut(driver: &nvml::Driver, parts: Option<(u32, u32, usize)>) {
    let cut = move |device: &nvml::Device<'_>| {
        for instance in device.layout()?.instances {
            for compute in instance.compute {
                device.destroy_compute_instance(instance.id, compute.id)?;
            }
            device.destroy_gpu_instance(instance.id)?;
        }
        let Some((profile, compute_profile, count)) = parts else {
            return device.set_mig_mode(false).map(drop);
        };
        device.set_mig_mode(true)?;
        for _ in 0..count {
            let instance = device.create_gpu_instance(profile, None)?;
            device.create_compute_instance(instance.id, compute_profile, None)?;
        }
        Ok(())
    };
    let begun = Instant::now();
    // A mode change turns away all handles, those of this process too.
    while let Err(error) = driver.gpu(0).run(cut) {
        assert!(begun.elapsed() < PATIENCE, "{error}");
    }
}

/// The samples of GPU 0 in a family, as what they belong to: a profile, or nothing for the whole GPU.
fn owners(page: &str, family: &str) -> Vec<String> {
    page.lines()
        .filter(|line| line.starts_with(&format!("{family}{{gpu=\"0\"")))
        .map(|line| {
            let profile = line.split_once("GPU_I_PROFILE=\"");
            profile
                .map_or("", |(_, rest)| &rest[..rest.find('"').unwrap()])
                .to_owned()
        })
        .collect()
}

#[test]
fn while_gpus_are_cut_anew_pages_stay_whole_and_the_log_quiet() {
    let folder = tempfile::tempdir().unwrap();
    let spec = NodeSpec::uniform("h100-sxm5-80gb", 2).unwrap();
    let node = SimulatedNode::create(folder.path(), &spec).unwrap();
    // Slow enough that most changes fall into a reading, and readings into changes.
    for call in ["nvmlDeviceGetMemoryInfo*", "nvmlGpuInstanceDestroy"] {
        node.inject(Fault::new(call, Effect::Delay(3000))).unwrap();
    }
    let exporter = Exporter::start(command(folder.path()).args(["-c", "100"]));
    let driver = nvml::Driver::open(&nvml::Options::at(folder.path())).unwrap();
    let layouts = [
        (Some((19, 0, 7)), vec!["1g.10gb"; 7]),
        (Some((9, 2, 2)), vec!["3g.40gb"; 2]),
        (None, vec![""]),
    ];
    let latest = Arc::new(Mutex::new(Vec::new()));
    let shown = Arc::clone(&latest);
    let cutter = std::thread::spawn(move || {
        for (layout, owners) in layouts.iter().cycle().take(15) {
            cut(&driver, *layout);
            std::thread::sleep(Duration::from_millis(250));
            // On a slow machine it takes longer until a page says so.
            let begun = Instant::now();
            while *shown.lock().unwrap() != *owners {
                assert!(begun.elapsed() < PATIENCE, "never shown: {owners:?}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    });
    let mut seen = BTreeSet::new();
    while !cutter.is_finished() {
        let page = exporter.page();
        let owners_of = |family| owners(&page, family);
        let temperatures = owners_of("DCGM_FI_DEV_GPU_TEMP");
        let kinds: BTreeSet<&String> = temperatures.iter().collect();
        assert!(kinds.len() <= 1, "two layouts at once: {page}");
        assert_eq!(owners_of("DCGM_FI_DEV_FB_USED"), temperatures, "{page}");
        seen.extend(kinds.into_iter().cloned());
        *latest.lock().unwrap() = temperatures;
    }
    cutter.join().unwrap();
    let wanted = ["", "1g.10gb", "3g.40gb"].map(str::to_owned);
    assert_eq!(seen, BTreeSet::from(wanted));
    let log = exporter.into_log();
    assert!(!log.contains("WARN"), "{log}");
}

/// Flags and variables without effect here, too, say yes or no or nothing.
#[rstest]
#[case::log_format("DCGM_EXPORTER_LOG_FORMAT", "xml", "not text or json")]
#[case::flag_with_effect("DCGM_EXPORTER_DEBUG", "perhaps", "--debug")]
#[case::flag_without("DCGM_EXPORTER_DUMP_ENABLED", "perhaps", "--dump-enabled")]
fn a_variable_with_a_wrong_value_is_a_usage_error(
    #[case] variable: &str,
    #[case] value: &str,
    #[case] message: &str,
) {
    let folder = node();
    let output = assert_cmd::Command::from_std(command(folder.path()))
        .args(["-a", "127.0.0.1:0"])
        .env(variable, value)
        .timeout(PATIENCE)
        .assert()
        .code(2)
        .get_output()
        .clone();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.starts_with("error: ") && error.contains(message) && error.contains(value),
        "{error}"
    );
}

#[rstest]
#[case::the_originals_variable(&[("DCGM_EXPORTER_LOG_FORMAT", "json")], &[], true)]
#[case::empty_is_not_set(&[("DCGM_EXPORTER_LOG_FORMAT", "")], &[], false)]
#[case::lathes_own_goes_before(&[("DCGM_EXPORTER_LOG_FORMAT", "json"), ("LATHE_LOG_FORMAT", "text")], &[], false)]
#[case::the_flag_goes_before(&[("DCGM_EXPORTER_LOG_FORMAT", "text")], &["--log-format", "json"], true)]
fn the_format_of_the_log(
    #[case] variables: &[(&str, &str)],
    #[case] flags: &[&str],
    #[case] json: bool,
) {
    let folder = node();
    // It ends by itself, with the log's one line before: that a flag has no effect.
    let output = assert_cmd::Command::from_std(command(folder.path()))
        .args(["--dump-enabled", "-a", "nowhere"])
        .args(flags)
        .envs(variables.iter().copied())
        .timeout(PATIENCE)
        .assert()
        .failure()
        .get_output()
        .clone();
    let error = String::from_utf8(output.stderr).unwrap();
    let line = error.lines().find(|line| line.contains("--dump-enabled"));
    assert_eq!(line.unwrap().starts_with('{'), json, "{error}");
}

#[rstest]
#[case::selector(&["-d", "x"], "is neither f, g nor i")]
#[case::interval(&["-c", "1"], "100..=86400000")]
#[case::missing_file(&["-f", "/no/such/file"], "/no/such/file")]
#[case::bad_file(&["-f", "COUNTERS"], "line 2: unknown field \"DCGM_FI_DEV_GPU_TEMPS\"")]
#[case::address(&["-a", "nowhere"], "HOST:PORT")]
#[case::device(&["-d", "g:7", "-a", "127.0.0.1:0"], "there is no GPU 7, only 2 GPUs")]
fn what_is_wrong_is_said(#[case] flags: &[&str], #[case] message: &str) {
    let node = node();
    let file = node.path().join("counters.csv");
    std::fs::write(&file, "# counters\nDCGM_FI_DEV_GPU_TEMPS, gauge, x\n").unwrap();
    let flags = flags.iter().map(|flag| {
        if *flag == "COUNTERS" {
            file.as_os_str()
        } else {
            flag.as_ref()
        }
    });
    let mut command = assert_cmd::Command::from_std(command(node.path()));
    let output = command
        .args(flags)
        .timeout(PATIENCE)
        .assert()
        .failure()
        .get_output()
        .clone();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(message), "{error}");
}

/// On a driver for which every process that has its library open holds the GPUs, which is what real ones do before a reset.
#[test]
fn a_change_by_hand_finds_the_gpus_free() {
    let folder = tempfile::tempdir().unwrap();
    let spec = NodeSpec {
        personality: Some(Personality {
            clients_hold: true,
            ..Personality::default()
        }),
        ..NodeSpec::uniform("a100-sxm4-40gb", 1).unwrap()
    };
    let node = SimulatedNode::create(folder.path(), &spec).unwrap();
    let exporter = Exporter::start(&mut command(folder.path()));
    assert!(exporter.page().contains("DCGM_FI_DEV_GPU_TEMP{"));
    let mig = |arguments: &[&str]| {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lathe"));
        let command = command.arg("mig").args(arguments);
        let output = command.env("LATHE_ROOT", folder.path()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        output.stdout
    };
    let config = folder.path().join("config.yaml");
    std::fs::write(&config, mig(&["generate-config"])).unwrap();
    mig(&["apply", "-f", config.to_str().unwrap(), "-c", "all-3g.20gb"]);
    assert_eq!(node.state().unwrap().gpus[0].mig.instances.len(), 2);
}
