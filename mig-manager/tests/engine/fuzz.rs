//! Anything may be in a file: the parsers answer, and what they take they can write and read again.
//!
//! Under `cargo test` each target runs a bounded number of generated inputs; `cargo bolero test` runs them for as long as
//! wanted.

use bolero::check;
use gpu::Profile;
use mig_manager::checkpoint::Checkpoint;
use mig_manager::config::Config;
use mig_manager::hooks::Hooks;
use mig_manager::output::Format;

const ITERATIONS: usize = 2_000;

/// Bytes that are mostly pieces of real files, so that more than the first token is reached.
fn pieces(choices: &[u8]) -> String {
    const PIECES: [&str; 32] = [
        "version: v1\n",
        "version: ",
        "mig-configs:\n",
        "  a:\n",
        "  - ",
        "    ",
        "devices: ",
        "all",
        "[0, 1]",
        "\n",
        "mig-enabled: ",
        "true",
        "false",
        "mig-devices: ",
        "{}",
        "{1g.10gb: 7}",
        "1g.10gb+me: ",
        "-1",
        "0",
        "device-filter: ",
        "'0x20B010DE'",
        "'0x20B010DE:0x16C110DE'",
        "hooks:\n",
        "  apply-start:\n",
        "command: true\n",
        "args: ",
        "&x ",
        "*x",
        "<<: ",
        "\u{0}",
        "\"",
        "99999999999999999999",
    ];
    choices
        .iter()
        .map(|c| PIECES[usize::from(*c) % PIECES.len()])
        .collect()
}

fn config_holds(bytes: &[u8]) {
    match Config::parse("f", bytes) {
        Ok(config) => {
            for format in [Format::Yaml, Format::Json] {
                let written = format.write("config", &config).unwrap();
                assert_eq!(
                    Config::parse("f", written.as_bytes()).unwrap(),
                    config,
                    "{written}"
                );
            }
        }
        Err(error) => {
            let text = error.to_string();
            assert!(
                text.starts_with("f:") && text.lines().count() == 1,
                "{text}"
            );
        }
    }
}

#[test]
fn config_from_bytes() {
    check!().with_iterations(ITERATIONS).for_each(config_holds);
}

#[test]
fn config_from_pieces() {
    check!()
        .with_type::<Vec<u8>>()
        .with_iterations(ITERATIONS)
        .for_each(|choices| config_holds(pieces(choices).as_bytes()));
}

#[test]
fn hooks_from_pieces_and_bytes() {
    check!()
        .with_type::<Vec<u8>>()
        .with_iterations(ITERATIONS)
        .for_each(|choices| {
            for bytes in [choices.as_slice(), pieces(choices).as_bytes()] {
                if let Err(error) = Hooks::parse("f", bytes) {
                    assert!(error.to_string().starts_with("f:"), "{error}");
                }
            }
        });
}

#[test]
fn checkpoint_from_bytes() {
    check!()
        .with_iterations(ITERATIONS)
        .for_each(|bytes: &[u8]| {
            if let Err(error) = Checkpoint::parse("f", bytes) {
                assert!(error.to_string().starts_with("f:"), "{error}");
            }
        });
}

#[test]
fn profile_grammar() {
    check!()
        .with_type::<Vec<u8>>()
        .with_iterations(ITERATIONS)
        .for_each(|choices| {
            const PIECES: [&str; 14] = [
                "1", "7", "0", "c", "g", ".", "gb", "+", "-", "me", "me.all", "gfx", ",", "\u{663}",
            ];
            let text: String = choices
                .iter()
                .map(|c| PIECES[usize::from(*c) % PIECES.len()])
                .collect();
            if let Ok(profile) = text.parse::<Profile>() {
                assert_eq!(profile.to_string().parse::<Profile>().unwrap(), profile);
            }
        });
}
