//! `sluicegate fleet`: what several gateways share.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Subcommand;
use rustls::crypto::aws_lc_rs;

pub const EXAMPLES: &str = "Examples:
  (umask 077; sluicegate fleet key > fleet.key)   the secret of a fleet: the same file for each of its gateways";

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
    #[command(after_help = EXAMPLES)]
    Key,
}

/// Does what the arguments say.
pub fn run(arguments: &FleetArguments) -> ExitCode {
    match arguments.command {
        FleetCommand::Key => match key() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("cannot print a secret: {error}");
                ExitCode::FAILURE
            }
        },
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
