//! `sluicegate fleet`: limits that several gateways share.

use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;

use super::fleet_status::{self, StatusArguments};
use super::key;

pub const EXAMPLES: &str = "Examples:
  sluicegate fleet status                         how the gateway that runs on gateway.toml sees its fleet
  (umask 077; sluicegate fleet key > fleet.key)   the secret of a fleet: the same file for each of its gateways";

const KEY_EXAMPLES: &str = "Example:
  (umask 077; sluicegate fleet key > fleet.key)   the same file for each gateway of the fleet";

const STATUS_EXAMPLES: &str = "Examples:
  sluicegate fleet status -c gw-1.toml
  sluicegate fleet status -c gw-1.toml --watch    again each second

Exit 1: the gateway cannot be asked, or is in no fleet.";

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
    /// Show how the running gateway sees its fleet: gateways, the store if there is one, limits and their bounds. Needs [admin].
    #[command(after_help = STATUS_EXAMPLES)]
    Status(StatusArguments),
}

/// Does what the arguments say.
pub fn run(path: &Path, arguments: &FleetArguments) -> ExitCode {
    match &arguments.command {
        FleetCommand::Key => key::print(),
        FleetCommand::Status(arguments) => fleet_status::status(path, arguments),
    }
}
