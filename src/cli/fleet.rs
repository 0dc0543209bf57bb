//! `sluicegate fleet`: limits that several gateways share.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use rustls::crypto::aws_lc_rs;

use super::fleet_status::{self, StatusArguments};

pub const EXAMPLES: &str = "Examples:
  sluicegate fleet status                         how the gateway that runs on gateway.toml sees its fleet
  (umask 077; sluicegate fleet key > fleet.key)   the secret of a fleet: the same file for each of its gateways";

const KEY_EXAMPLES: &str = "Example:
  (umask 077; sluicegate fleet key > fleet.key)   the same file for each gateway of the fleet";

const STATUS_EXAMPLES: &str = "Examples:
  sluicegate fleet status -c gw-1.toml
  sluicegate fleet status -c gw-1.toml --watch    again each second

Exit 1: the gateway cannot be asked, or is in no fleet.";

/// Bytes of the secret that the gateways of a fleet share.
const SECRET_BYTES: usize = 32;

/// Arguments of `fleet`.
#[derive(Debug, clap::Args)]
pub struct FleetArguments {
    #[command(subcommand)]
    command: FleetCommand,
}

#[derive(Debug, Subcommand)]
enum FleetCommand {
    /// Print a new secret, 64 hexadecimal digits: for `secret_file` of [fleet].
    #[command(after_help = KEY_EXAMPLES)]
    Key,
    /// Show how the running gateway sees its fleet: gateways, store, limits and their bounds. Needs [admin].
    #[command(after_help = STATUS_EXAMPLES)]
    Status(StatusArguments),
}

/// Does what the arguments say.
pub fn run(path: &Path, arguments: &FleetArguments) -> ExitCode {
    match &arguments.command {
        FleetCommand::Key => match key() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("cannot print a secret: {error}");
                ExitCode::FAILURE
            }
        },
        FleetCommand::Status(arguments) => fleet_status::status(path, arguments),
    }
}

fn key() -> io::Result<()> {
    let mut secret = [0; SECRET_BYTES];
    let generator = aws_lc_rs::default_provider().secure_random;
    generator.fill(&mut secret).map_err(|_| io::Error::other("the operating system gives no random bytes"))?;
    let mut digits = String::with_capacity(2 * SECRET_BYTES);
    for byte in secret {
        // Writing into a String cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{digits}")?;
    out.flush()
}
