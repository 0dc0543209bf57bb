//! `sluicegate limits` and `sluicegate keys`: how the limits of the gateway that runs stand, and single keys of them.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use serde::Deserialize;

use super::admin::escaped;
use super::exceptions::{ChangeKey, block_words, numbers_words};
use super::explain::{quota, time};
use super::query::AdminQuery;
use super::safe::{Safe, quoted};
use super::table::Table;
use super::tell::{tell, tell_again};
use crate::gateway::{KeySeen, TopKeySeen, TopKeysSeen};

/// Arguments of `limits`.
#[derive(Debug, clap::Args)]
pub struct LimitsArguments {
    /// Look again each second, until interrupted.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    asked: AdminQuery,
}

/// Arguments of `keys`.
#[derive(Debug, clap::Args)]
pub struct KeysArguments {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// The keys that a limit refuses and admits most often, within the last five to ten minutes.
    Top {
        /// The name of the limit.
        limit: String,
        #[command(flatten)]
        asked: AdminQuery,
    },
    /// How a key of a limit stands: what is left, and when it is admitted again. Counts nothing.
    Get {
        /// The name of the limit.
        limit: String,
        /// The value of the key, as in `exempt`: an address, an API key; of several parts "one + two". Of a secret also its mark,
        /// as `keys top` shows it, or its `print`, as --json does.
        value: String,
        #[command(flatten)]
        asked: AdminQuery,
    },
    #[command(flatten)]
    Change(ChangeKey),
}

pub const EXAMPLES: &str = "Examples:
  sluicegate limits
  sluicegate limits --watch
  sluicegate limits --json | jq -r '.limits[] | select(.waiting > 0) | .name'";

pub const KEYS_EXAMPLES: &str = "Examples:
  sluicegate keys top per-client              who is noisy, who is refused
  sluicegate keys get per-client 192.0.2.7
  sluicegate keys get per-key k-3f9a27 --json
  sluicegate keys get per-key '[redacted:ebafdae2]'      a secret, as `keys top` shows it
  sluicegate keys get per-key-and-path 'k-3f9a27 + /orders'
  sluicegate keys reset per-key k-3f9a27
  sluicegate keys block per-client 203.0.113.66 --until +2h --reason scraping
  sluicegate keys unblock per-client 203.0.113.66
  sluicegate keys override per-key k-3f9a27 --rate 500/s --until 2026-12-01
  sluicegate keys exceptions                  who is blocked by hand, who has other numbers";

#[derive(Debug, Deserialize)]
struct LimitsAnswer {
    limits: Vec<LimitRow>,
}

#[derive(Debug, Deserialize)]
struct LimitRow {
    name: String,
    plan: Option<String>,
    mode: String,
    algorithm: String,
    rates: Vec<String>,
    key: String,
    keys: u64,
    max_keys: u64,
    waiting: u64,
    blocks: u64,
    routes: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct KeysAnswer {
    keys: Vec<KeySeen>,
}

/// Lists the limits. Exit 1: the gateway cannot be asked.
pub fn run(path: &Path, arguments: &LimitsArguments) -> ExitCode {
    tell_again(arguments.watch, || {
        arguments.asked.pages(path, "/api/v1/limits", "limits", |answer| {
            serde_json::from_value::<LimitsAnswer>(answer).map(|limits| show_limits(&limits.limits))
        })
    })
}

/// Shows a key, or the first ones. Exit 1: the gateway cannot be asked, or there is no such limit or value.
pub fn keys(path: &Path, arguments: &KeysArguments) -> ExitCode {
    tell(match &arguments.command {
        KeysCommand::Top { limit, asked } => {
            let target = format!("/api/v1/limits/{}/keys", escaped(limit));
            asked.look(path, &target, |answer| serde_json::from_value::<TopKeysSeen>(answer).map(|top| show_top(&top)))
        }
        KeysCommand::Get { limit, value, asked } => {
            let target = format!("/api/v1/limits/{}/keys/{}", escaped(limit), escaped(value));
            asked.look(path, &target, |answer| {
                serde_json::from_value::<KeysAnswer>(answer).map(|keys| show_keys(&keys.keys))
            })
        }
        KeysCommand::Change(change) => change.run(path),
    })
}

fn show_limits(limits: &[LimitRow]) -> String {
    let mut out = String::new();
    for LimitRow { name, plan, mode, algorithm, rates, key, keys, max_keys, waiting, blocks, routes } in limits {
        let plan = plan.as_ref().map(|plan| format!(" of plan {plan}")).unwrap_or_default();
        let mode = if mode == "enforce" { String::new() } else { format!(" ({mode})") };
        let rates = if rates.is_empty() { String::new() } else { format!(" {}", rates.join(" and ")) };
        let _ = writeln!(out, "{name}{plan}{mode}: {algorithm}{rates} per {key}");
        let _ = write!(out, "  {keys} of {max_keys} keys, {waiting} waiting");
        if *blocks > 0 {
            let _ = write!(out, ", {blocks} blocks begun");
        }
        let routes = if routes.is_empty() { "no route".to_owned() } else { routes.join(", ") };
        let _ = writeln!(out, "; on {routes}");
    }
    out
}

fn show_top(top: &TopKeysSeen) -> String {
    let mut out = format!("{}, since {}\n", Safe(&top.limit), Safe(&top.since));
    for (head, none, keys) in [
        ("REFUSED MOST", "Nobody was refused.", &top.refused),
        ("ADMITTED MOST", "Nobody was admitted.", &top.admitted),
    ] {
        if keys.is_empty() {
            let _ = writeln!(out, "\n{none}");
            continue;
        }
        let mut table = Table::default();
        table.row([head, "COUNT"].map(str::to_owned));
        for TopKeySeen { key, count, excess, .. } in keys {
            let parts: Vec<String> = key.iter().map(|(source, value)| format!("{source}={}", Safe(value))).collect();
            let about = if *excess > 0 { "<=" } else { "" };
            table.row([parts.join(" "), format!("{about}{count}")]);
        }
        let _ = write!(out, "\n{}", table.text());
    }
    if let Some(first) = top.refused.first().or(top.admitted.first()) {
        let (limit, key) = (quoted(&top.limit), quoted(&name_for_commands(first, &top.by)));
        let _ = writeln!(
            out,
            "\nTo block the first of them for an hour:\n  sluicegate keys block {limit} {key} --until +1h"
        );
    }
    out
}

/// A key as commands take it: its value or its mark, and its print where a command would take the value for something else.
fn name_for_commands(seen: &TopKeySeen, by: &str) -> String {
    let join = |parts: Vec<&str>| parts.join(" + ");
    let sources = join(seen.key.iter().map(|(source, _)| source.as_str()).collect());
    let value = join(seen.key.iter().map(|(_, value)| value.as_str()).collect());
    let is_plain = |own: char| own.is_ascii_alphanumeric() || " +-._:/@=[]".contains(own);
    let is_value =
        sources == by && !value.starts_with("print:") && !value.starts_with('-') && value.chars().all(is_plain);
    if is_value { value } else { seen.print.clone() }
}

fn show_keys(keys: &[KeySeen]) -> String {
    let mut out = String::new();
    for seen in keys {
        let plan = seen.plan.as_ref().map(|plan| format!(", plan {plan}")).unwrap_or_default();
        let mode = if seen.mode == "enforce" { String::new() } else { format!(" ({})", seen.mode) };
        let _ = writeln!(out, "{}{mode}{plan}, key {}", seen.limit, Safe(&seen.key));
        for rate in &seen.rates {
            let _ = writeln!(out, "  {}", quota(rate));
        }
        let next = seen.next_ms.map(|next| format!(", room in {}", time(next))).unwrap_or_default();
        let _ = writeln!(out, "  a request: {}{next}", seen.decision);
        let block = seen.block.as_ref().map(block_words);
        for words in block.into_iter().chain(seen.own_numbers.as_ref().map(numbers_words)) {
            let _ = writeln!(out, "  {words}");
        }
    }
    out
}
