//! The command line. Thin: it reads arguments, prints, and turns results into exit codes.
//!
//! Data goes to stdout, errors to stderr. Caller: `main`.

mod admin;
mod banner;
mod blocks;
mod check;
mod config;
mod dead_letters;
mod exceptions;
mod explain;
mod firewall;
mod fleet;
mod fleet_status;
mod import_rls;
mod init;
mod key;
mod limits;
mod log;
mod man;
mod overload;
mod peers_report;
mod progress;
mod query;
mod requests;
mod run;
mod running;
mod safe;
mod schema;
mod simulate;
mod table;
mod tell;
mod token;
mod until;
mod upgrade;
mod upstreams;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

const EXAMPLES: &str = "Examples:
  sluicegate init                             write a gateway.toml to begin with
  sluicegate                                  run on ./gateway.toml
  sluicegate run -c /etc/sluicegate/gateway.toml
  sluicegate check -c candidate.toml          say what is wrong with a file, exit 1 if anything is
  sluicegate dead-letters ls --since 10m      who was refused, and why
  sluicegate explain GET /x --live            what would become of a request now
  sluicegate simulate access.log -c new.toml  what a file would have done with yesterday's traffic
  kill -HUP $(cat /run/sluicegate/pid)        read the file again; it is also watched
  kill -TERM $(cat /run/sluicegate/pid)       finish what is in flight, then end
  sluicegate upgrade                          let the binary that lies there now take over, without a gap

/run/sluicegate/pid stands for the pid_file of [server]. It names one gateway: signals by the name of the program would reach
every gateway of the machine, and commands such as `limits --watch`.";

/// A front door that admits each client at the rate you chose.
#[derive(Debug, Parser)]
#[command(name = "sluicegate", version, about, after_help = EXAMPLES, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The configuration file.
    #[arg(short, long, value_name = "FILE", default_value = "gateway.toml", global = true)]
    config: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway (what happens without a command).
    #[command(after_help = "Examples:
  sluicegate run
  sluicegate run -c /etc/sluicegate/gateway.toml
  RUST_LOG=debug sluicegate run")]
    Run,
    /// Write a configuration file to begin with: one listener, one limit, two servers that answer by themselves.
    #[command(after_help = init::EXAMPLES)]
    Init,
    /// Check a configuration file: exits 0 if it is valid and the gateway could write where it says; otherwise lists all errors and
    /// exits 1.
    #[command(after_help = "Examples:
  sluicegate check
  sluicegate check -c candidate.toml && mv candidate.toml gateway.toml
  sluicegate check --strict --json            for a pipeline: warnings fail, findings as JSON
  sluicegate check --gateways 5               the bounds of shared limits with five gateways
  sluicegate check --health                   is the gateway that runs on this file alive?")]
    Check(check::CheckArguments),
    /// Say what would become of a request, and why: the route, the client, each limit, the decision, the server.
    #[command(after_help = explain::EXAMPLES)]
    Explain(explain::ExplainArguments),
    /// Say what a configuration file would have done with recorded traffic, and what another one beside it.
    #[command(after_help = simulate::EXAMPLES)]
    Simulate(simulate::SimulateArguments),
    /// Read the dead-letter log: who was refused or timed out, and why.
    #[command(after_help = dead_letters::EXAMPLES)]
    DeadLetters(dead_letters::DeadLettersArguments),
    /// Gateways that share limits: prepare them, see how they stand.
    #[command(after_help = fleet::EXAMPLES)]
    Fleet(fleet::FleetArguments),
    /// List the limits of the gateway that runs: their numbers, keys in the table, who waits.
    #[command(after_help = limits::EXAMPLES)]
    Limits(limits::LimitsArguments),
    /// Look at a key of a limit of the gateway that runs.
    #[command(after_help = limits::KEYS_EXAMPLES)]
    Keys(limits::KeysArguments),
    /// Show the servers of the gateway that runs: their states, and why.
    #[command(after_help = upstreams::EXAMPLES)]
    Upstreams(upstreams::UpstreamsArguments),
    /// List the keys that are blocked in the gateway that runs, or the commands by which the kernel blocks their addresses.
    #[command(after_help = blocks::EXAMPLES)]
    Blocks(blocks::BlocksArguments),
    /// Show what presses the gateway that runs, and how far its adaptive limits are scaled; or scale them by hand.
    #[command(after_help = overload::EXAMPLES)]
    Overload(overload::OverloadArguments),
    /// List the requests in flight of the gateway that runs, or cancel one.
    #[command(after_help = requests::EXAMPLES)]
    Requests(requests::RequestsArguments),
    /// Read, compare and change the rules of the gateway that runs, and take a change back.
    #[command(after_help = config::EXAMPLES)]
    Config(config::ConfigArguments),
    /// Let another process take over from the gateway that runs, such as a new version, without a gap.
    #[command(after_help = upgrade::EXAMPLES)]
    Upgrade(upgrade::UpgradeArguments),
    /// Make a token for the admin interface, and its line of [admin].
    #[command(after_help = token::EXAMPLES)]
    Token(token::TokenArguments),
    /// Turn the rules of envoyproxy/ratelimit into a configuration file.
    #[command(after_help = import_rls::EXAMPLES)]
    ImportRls(import_rls::ImportArguments),
    /// Print the JSON Schema of the configuration file, for editors.
    #[command(after_help = schema::EXAMPLES)]
    Schema,
    /// Print a completion script for a shell.
    #[command(after_help = "Example:
  sluicegate completions bash > /etc/bash_completion.d/sluicegate")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one for every command.
    #[command(after_help = man::EXAMPLES)]
    Man(man::ManArguments),
}

/// Reads the command line and does what it says.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command.unwrap_or(Command::Run) {
        Command::Run => run::run(&arguments.config),
        Command::Init => init::run(&arguments.config),
        Command::Check(check) => check::check(&arguments.config, &check),
        Command::Explain(question) => explain::run(&arguments.config, &question),
        Command::Simulate(command) => simulate::run(&arguments.config, &command),
        Command::DeadLetters(command) => dead_letters::run(&arguments.config, &command),
        Command::Fleet(command) => fleet::run(&arguments.config, &command),
        Command::Limits(command) => limits::run(&arguments.config, &command),
        Command::Keys(command) => limits::keys(&arguments.config, &command),
        Command::Upstreams(command) => upstreams::run(&arguments.config, &command),
        Command::Blocks(command) => blocks::run(&arguments.config, &command),
        Command::Overload(command) => overload::run(&arguments.config, &command),
        Command::Requests(command) => requests::run(&arguments.config, &command),
        Command::Config(command) => config::run(&arguments.config, &command),
        Command::Upgrade(command) => upgrade::run(&arguments.config, &command),
        Command::Token(command) => token::run(&command),
        Command::ImportRls(command) => import_rls::run(&command),
        Command::Schema => schema::run(),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "sluicegate", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
        Command::Man(pages) => man::run(Arguments::command(), &pages),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn no_command_means_run_on_gateway_toml() {
        let arguments = Arguments::parse_from(["sluicegate"]);
        assert!(arguments.command.is_none());
        assert_eq!(arguments.config, PathBuf::from("gateway.toml"));
    }

    #[test]
    fn the_file_may_come_before_or_after_the_command() {
        for line in [["sluicegate", "-c", "x", "check"], ["sluicegate", "check", "-c", "x"]] {
            let arguments = Arguments::parse_from(line);
            assert_eq!(arguments.config, PathBuf::from("x"));
            assert!(matches!(arguments.command, Some(Command::Check(_))));
        }
    }
}
