//! `sluicegate blocks`: the keys that are blocked now, for people and for the packet filter of the kernel.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::thread;

use clap::ValueEnum;
use ipnet::IpNet;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::admin::{AdminArguments, Gateway};
use super::firewall::{BlockedNetworks, FilterFormat, GivenBlocks, without_overlaps};
use super::running;
use super::safe::Safe;
use super::table::Table;
use super::tell::{AGAIN, tell, tell_again};
use crate::gateway::BlockRow;
use crate::time::{Clock, Wall};

/// Arguments of `blocks`.
#[derive(Debug, clap::Args)]
pub struct BlocksArguments {
    /// table or json: all blocks. nft or ipset: the commands that fill sets of the kernel with those that may be exported.
    #[arg(long, value_enum, default_value_t = BlocksFormat::Table)]
    format: BlocksFormat,
    /// Look again each second, until interrupted. nft and ipset: print a transaction for each change, whose last line is "# ---".
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    admin: AdminArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BlocksFormat {
    Table,
    Json,
    Nft,
    Ipset,
}

/// Nanoseconds by which the clock of the machine was set, rather than moved.
const STEP: u64 = 1_000_000_000;

pub const EXAMPLES: &str = "Examples:
  sluicegate blocks
  sluicegate blocks --watch
  sluicegate blocks --format json
  sluicegate blocks --format nft | nft -f -           once; each element ends by itself
  sluicegate blocks --format ipset | ipset restore
  systemctl enable --now sluicegate-nft               each change, see docs/pressure.md";

#[derive(Debug, Deserialize)]
struct BlocksAnswer {
    blocks: Vec<BlockRow>,
}

/// Shows them. Exit 1: the gateway cannot be asked, or the command that reads the transactions has ended.
pub fn run(path: &Path, arguments: &BlocksArguments) -> ExitCode {
    let gateway = match Gateway::of(&arguments.admin, || running::model(path), path) {
        Ok(gateway) => gateway,
        Err(error) => return tell(Err(error)),
    };
    let format = match arguments.format {
        BlocksFormat::Table => return tell_again(arguments.watch, || table(&gateway)),
        BlocksFormat::Json => return tell_again(arguments.watch, || Ok(format!("{:#}\n", read(&gateway)?))),
        BlocksFormat::Nft => FilterFormat::Nft,
        BlocksFormat::Ipset => FilterFormat::Ipset,
    };
    let mut given = GivenBlocks::none(format);
    let clock = Clock::system();
    let mut look = || {
        let wanted = exported(&gateway)?;
        // It may run since before the clock of the machine was set: by the old time the kernel was told other ends.
        if clock.follow_wall().unsigned_abs() > STEP {
            given = GivenBlocks::none(format);
        }
        Ok(given.change(&wanted, clock.wall_now()))
    };
    if arguments.watch { follow(look) } else { tell(look()) }
}

/// Prints each change, until its reader has ended: the command that does what they say has ended, and so this is no success.
fn follow(mut look: impl FnMut() -> Result<String, String>) -> ExitCode {
    let mut said = String::new();
    loop {
        match look() {
            Ok(change) => {
                said.clear();
                let mut out = io::stdout().lock();
                if out.write_all(change.as_bytes()).and_then(|()| out.flush()).is_err() {
                    return ExitCode::FAILURE;
                }
            }
            // Said once, and asked again each second: the kernel keeps what it has until the ends.
            Err(error) if error != said => {
                eprintln!("sluicegate: {error}");
                said = error;
            }
            Err(_) => {}
        }
        thread::sleep(AGAIN);
    }
}

fn read(gateway: &Gateway) -> Result<Value, String> {
    gateway.pages("/api/v1/blocks", "blocks")
}

fn rows(gateway: &Gateway) -> Result<Vec<BlockRow>, String> {
    let answer: Result<BlocksAnswer, _> = serde_json::from_value(read(gateway)?);
    answer.map(|answer| answer.blocks).map_err(|error| unreadable(gateway, &error))
}

fn unreadable(gateway: &Gateway, error: &dyn std::error::Error) -> String {
    format!("{}: an answer that cannot be read: {error}", gateway.shown())
}

/// The addresses that the kernel may block. An address that several limits block ends with the last of them.
fn exported(gateway: &Gateway) -> Result<BlockedNetworks, String> {
    let mut all = Vec::new();
    for row in rows(gateway)?.into_iter().filter(|row| row.exported) {
        let Some(address) = row.address else { continue };
        all.push((
            network(&address).map_err(|error| unreadable(gateway, &error))?,
            match row.until {
                Some(until) => Some(instant(&until).map_err(|error| unreadable(gateway, &error))?),
                None => None,
            },
        ));
    }
    Ok(without_overlaps(all))
}

fn network(text: &str) -> Result<IpNet, ipnet::AddrParseError> {
    text.parse().or_else(|error| text.parse::<std::net::IpAddr>().map(IpNet::from).map_err(|_| error))
}

fn instant(text: &str) -> Result<Wall, jiff::Error> {
    let at: Timestamp = text.parse()?;
    Ok(Wall::from_nanos(u64::try_from(at.as_nanosecond()).unwrap_or(0)))
}

fn table(gateway: &Gateway) -> Result<String, String> {
    let rows = rows(gateway)?;
    if rows.is_empty() {
        return Ok("No key is blocked.\n".to_owned());
    }
    let mut table = Table::default();
    table.row(["KEY", "LIMIT", "BLOCKED", "UNTIL", "KERNEL"].map(str::to_owned));
    for BlockRow { limit, plan, key, kind, until, exported, why_not, .. } in rows {
        let key: Vec<_> = key.iter().map(|(_, value)| Safe(value).to_string()).collect();
        let limit = match plan {
            Some(plan) => format!("{} ({})", Safe(&limit), Safe(&plan)),
            None => Safe(&limit).to_string(),
        };
        let by = if kind == "penalty" { "by a penalty" } else { "by hand" };
        let kernel = match why_not {
            Some(why) => format!("no: {}", Safe(&why)),
            None => (if exported { "yes" } else { "no" }).to_owned(),
        };
        let until = until.as_deref().unwrap_or("no end");
        table.row([key.join(" + "), limit, by.to_owned(), Safe(until).to_string(), kernel]);
    }
    Ok(table.text())
}
