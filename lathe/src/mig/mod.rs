//! `lathe mig`: the partition engine on the command line, with the flags of `nvidia-mig-parted`.
//!
//! Turns flags into a request and the outcome into text and an exit code; what happens in between is the engine's.

mod arguments;
mod file;
mod outcome;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use mig_manager::checkpoint::Checkpoint;
use mig_manager::config::Config;
use mig_manager::engine::{Engine, Event, Options, Request};
use mig_manager::hooks::Hooks;
use mig_manager::strict;

use arguments::{
    ApplyArgs, AssertArgs, ChangeArgs, CheckpointArgs, Command, ExportArgs, GenerateArgs, PlanArgs,
    RestoreArgs,
};
pub(crate) use arguments::{Args, FailurePolicy};
use outcome::{Failure, Outcome};

/// Runs one `lathe mig` command; says on standard error why it failed.
pub(crate) fn run(args: &Args) -> ExitCode {
    let root = &args.root;
    let outcome = match &args.command {
        Command::Plan(args) => plan(root, args),
        Command::Apply(args) => apply(root, args),
        Command::Assert(args) => assert(root, args),
        Command::Export(args) => export(root, args),
        Command::Checkpoint(args) => checkpoint(root, args),
        Command::Restore(args) => restore(root, args),
        Command::GenerateConfig(args) => generate(root, args),
    };
    outcome::report(outcome, args.command.format())
}

fn engine(root: &Path, options: Options) -> Result<Engine, Failure> {
    let driver = nvml::Driver::open(&nvml::Options::at(root))?;
    Ok(Engine::new(driver, options))
}

fn request(config: &Path, selected: Option<&str>) -> Result<Request, Failure> {
    Ok(Request::of(&Config::read(config)?, selected)?)
}

fn plan(root: &Path, args: &PlanArgs) -> Result<Outcome, Failure> {
    let config = &args.config;
    let request = request(&config.config_file, config.selected())?.mode_only(config.mode_only);
    let mut options = Options::at(root);
    if let Some(folder) = &args.state_dir {
        options.state_dir.clone_from(folder);
    }
    let plan = engine(root, options)?.plan(&request)?;
    Ok(Outcome::Plan(plan))
}

fn apply(root: &Path, args: &ApplyArgs) -> Result<Outcome, Failure> {
    let config = &args.config;
    let request = request(&config.config_file, config.selected())?.mode_only(config.mode_only);
    let environment = [
        (
            "MIG_PARTED_CONFIG_FILE",
            config.config_file.display().to_string(),
        ),
        ("MIG_PARTED_SELECTED_CONFIG", request.name().to_owned()),
        ("MIG_PARTED_SKIP_RESET", args.skip_reset.to_string()),
        ("MIG_PARTED_MODE_CHANGE_ONLY", config.mode_only.to_string()),
    ];
    let options = Options {
        skip_reset: args.skip_reset,
        ..change_options(root, &args.change, environment)?
    };
    let applied = engine(root, options)?.apply(&request, &Event::log)?;
    Ok(Outcome::Applied {
        applied,
        done: "MIG configuration applied successfully",
    })
}

fn restore(root: &Path, args: &RestoreArgs) -> Result<Outcome, Failure> {
    let file = &args.checkpoint_file;
    let name = file.display().to_string();
    let checkpoint = Checkpoint::parse(&name, &strict::read(file)?)?;
    let request = Request::restore(checkpoint).mode_only(args.mode_only);
    let environment = [
        ("MIG_PARTED_CHECKPOINT_FILE", name),
        ("MIG_PARTED_MODE_CHANGE_ONLY", args.mode_only.to_string()),
    ];
    let options = change_options(root, &args.change, environment)?;
    let applied = engine(root, options)?.apply(&request, &Event::log)?;
    Ok(Outcome::Applied {
        applied,
        done: "MIG configuration restored successfully",
    })
}

/// Long enough for the parts that hold the GPUs only to look at them, and that let go when they see a change begin.
const IN_USE_WAIT: Duration = Duration::from_secs(5);

/// Options of a command that changes the node. As in mig-parted, hooks see the command's flags as environment variables.
fn change_options<const N: usize>(
    root: &Path,
    args: &ChangeArgs,
    environment: [(&str, String); N],
) -> Result<Options, Failure> {
    let mut options = Options::at(root);
    options.on_failure = args.on_failure.into();
    options.in_use_wait = IN_USE_WAIT;
    options.lock_wait = args.lock_wait;
    options.change_limit = args.timeout;
    if let Some(folder) = &args.state_dir {
        options.state_dir.clone_from(folder);
    }
    if let Some(file) = args.hooks_file() {
        let mut env: BTreeMap<String, String> = environment
            .into_iter()
            .map(|(k, v)| (k.to_owned(), v))
            .collect();
        env.insert(
            "MIG_PARTED_HOOKS_FILE".to_owned(),
            file.display().to_string(),
        );
        options.hooks = Hooks::read(file)?;
        options.hooks.env = env;
        options.hooks.timeout = args.hook_timeout;
    }
    Ok(options)
}

fn assert(root: &Path, args: &AssertArgs) -> Result<Outcome, Failure> {
    let config = &args.config;
    let request = request(&config.config_file, config.selected())?.mode_only(config.mode_only);
    if args.valid_config {
        return Ok(Outcome::Holds("Selected MIG configuration is valid"));
    }
    let differences = engine(root, Options::at(root))?.assert(&request)?;
    Ok(if !differences.is_empty() {
        Outcome::Differs(differences)
    } else if config.mode_only {
        Outcome::Holds("Selected MIG mode settings from configuration currently applied")
    } else {
        Outcome::Holds("Selected MIG configuration currently applied")
    })
}

fn export(root: &Path, args: &ExportArgs) -> Result<Outcome, Failure> {
    match engine(root, Options::at(root))?.export(&args.config_label)? {
        Some(config) => Ok(Outcome::Config {
            config,
            file: None,
            format: args.output_format.into(),
        }),
        None => Err(Failure::no_gpus()),
    }
}

fn checkpoint(root: &Path, args: &CheckpointArgs) -> Result<Outcome, Failure> {
    Ok(Outcome::Checkpoint {
        checkpoint: engine(root, Options::at(root))?.checkpoint()?,
        file: args.checkpoint_file.clone(),
    })
}

fn generate(root: &Path, args: &GenerateArgs) -> Result<Outcome, Failure> {
    Ok(Outcome::Config {
        config: engine(root, Options::at(root))?.generate()?,
        file: args.output_file().map(Path::to_owned),
        format: args.output_format.into(),
    })
}
