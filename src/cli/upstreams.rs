//! `sluicegate upstreams`: how the servers of the gateway that runs stand.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use serde::Deserialize;
use serde_json::Value;

use super::admin::{AdminArguments, Gateway, Request};
use crate::config::{self, Certificates};
use crate::time::Span;

/// Arguments of `upstreams`.
#[derive(Debug, clap::Args)]
pub struct UpstreamsArguments {
    /// This upstream alone.
    name: Option<String>,
    #[command(flatten)]
    admin: AdminArguments,
    /// As the admin interface answers it.
    #[arg(long)]
    json: bool,
}

pub const EXAMPLES: &str = "Examples:
  sluicegate upstreams
  sluicegate upstreams app
  sluicegate upstreams --json
  curl -X POST 'http://127.0.0.1:9900/api/v1/upstreams/app/servers/127.0.0.1:9001?state=drain'   # or off, up";

#[derive(Debug, Deserialize)]
struct Answer {
    upstreams: Vec<Upstream>,
}

#[derive(Debug, Deserialize)]
struct Upstream {
    #[serde(rename = "upstream")]
    name: String,
    balance: String,
    panic: bool,
    breaker: Option<String>,
    in_flight: Option<u64>,
    max_in_flight: Option<u64>,
    pending: Option<u64>,
    servers: Vec<Server>,
}

#[derive(Debug, Deserialize)]
struct Server {
    #[serde(rename = "server")]
    name: String,
    state: String,
    reason: String,
    since_ms: f64,
    weight: u32,
    backup: bool,
    share_percent: u32,
    in_flight: u64,
    answered: u64,
    failed: u64,
    latency_ms: f64,
}

/// Shows them. Exit 1: the gateway cannot be asked, or has no such upstream.
pub fn run(path: &Path, arguments: &UpstreamsArguments) -> ExitCode {
    match look(path, arguments) {
        Ok(text) => {
            // Nobody reads any more.
            let _ = write!(io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn look(path: &Path, arguments: &UpstreamsArguments) -> Result<String, String> {
    let load =
        || config::load(path, Certificates::Unread).map(|loaded| loaded.model).map_err(|error| error.to_string());
    let gateway = Gateway::of(&arguments.admin, load, path)?;
    let address = gateway.shown();
    let body = gateway.ask(&Request::get("/api/v1/upstreams"))?;
    let unreadable = |error| format!("{address}: an answer that tells of no upstreams: {error}");
    let mut shown: Value = serde_json::from_str(&body).map_err(unreadable)?;
    if let (Some(name), Some(Value::Array(all))) = (&arguments.name, shown.get_mut("upstreams")) {
        all.retain(|upstream| upstream["upstream"] == **name);
        if all.is_empty() {
            return Err(format!("{address}: the gateway that runs has no upstream {name:?}"));
        }
    }
    if arguments.json {
        return Ok(format!("{shown:#}\n"));
    }
    serde_json::from_value::<Answer>(shown).map(|answer| answer.show()).map_err(unreadable)
}

impl Answer {
    fn show(&self) -> String {
        let mut out = String::new();
        for (place, upstream) in self.upstreams.iter().enumerate() {
            // Writing into a String cannot fail.
            let _ = upstream.write(place > 0, &mut out);
        }
        out
    }
}

impl Upstream {
    fn write(&self, after_another: bool, out: &mut String) -> std::fmt::Result {
        let panic = if self.panic { ", PANIC: all servers are out and get requests as if none were" } else { "" };
        if after_another {
            writeln!(out)?;
        }
        let breaker = self.breaker.as_ref().map(|state| format!(", breaker {state}")).unwrap_or_default();
        let most = self.max_in_flight.map(|most| format!(" of {most}")).unwrap_or_default();
        let places = match (self.in_flight, self.pending) {
            (Some(in_flight), Some(pending)) => format!(", {in_flight}{most} in flight, {pending} pending"),
            _ => String::new(),
        };
        writeln!(out, "{} ({}{breaker}{places}{panic})", self.name, self.balance)?;
        let width = self.servers.iter().map(|server| server.name.chars().count()).max().unwrap_or(0).max(6);
        writeln!(
            out,
            "  {:width$}  {:<10}  {:>8}  {:>9}  {:>10}  {:>10}  {:>10}  REASON",
            "SERVER", "STATE", "SINCE", "IN FLIGHT", "ANSWERED", "FAILED", "LATENCY"
        )?;
        for server in &self.servers {
            let Server { state, in_flight, answered, failed, .. } = server;
            let since = since(server.since_ms);
            let latency = if *answered > 0 { format!("{:.1} ms", server.latency_ms) } else { "-".to_owned() };
            let line = format!(
                "  {:width$}  {state:<10}  {since:>8}  {in_flight:>9}  {answered:>10}  {failed:>10}  {latency:>10}  {}",
                server.name,
                server.notes()
            );
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

impl Server {
    fn notes(&self) -> String {
        let weight = (self.weight != 1).then(|| format!("weight {}", self.weight));
        let share = (self.state == "slow-start").then(|| format!("{}% of its share", self.share_percent));
        let backup = self.backup.then(|| "backup".to_owned());
        let reason = (!self.reason.is_empty()).then(|| self.reason.clone());
        [backup, weight, share, reason].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

/// In whole seconds, or in milliseconds below one.
fn since(millis: f64) -> String {
    let millis = millis.max(0.0) as u64;
    let rounded = if millis >= 1_000 { millis / 1_000 * 1_000 } else { millis };
    Span::from_millis(rounded).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_a_table_for_people() {
        let answer: Answer = serde_json::from_str(
            r#"{"upstreams": [{"upstream": "app", "balance": "hash", "panic": false, "breaker": "open", "in_flight": 3, "max_in_flight": 8, "pending": 1, "servers": [
                {"server": "127.0.0.1:9001", "state": "up", "reason": "", "since_ms": 61500.0, "weight": 1,
                 "backup": false, "share_percent": 100, "in_flight": 3, "answered": 1200, "failed": 0, "latency_ms": 1.26},
                {"server": "127.0.0.1:9002", "state": "ejected", "reason": "5 failures in a row", "since_ms": 250.0,
                 "weight": 2, "backup": true, "share_percent": 0, "in_flight": 0, "answered": 0, "failed": 5, "latency_ms": 0.0}
            ]}]}"#,
        )
        .unwrap();
        assert_eq!(
            answer.show(),
            "\
app (hash, breaker open, 3 of 8 in flight, 1 pending)
  SERVER          STATE          SINCE  IN FLIGHT    ANSWERED      FAILED     LATENCY  REASON
  127.0.0.1:9001  up               61s          3        1200           0      1.3 ms
  127.0.0.1:9002  ejected        250ms          0           0           5           -  backup; weight 2; 5 failures in a row
"
        );
    }
}
