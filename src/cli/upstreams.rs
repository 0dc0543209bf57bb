//! `sluicegate upstreams`: how the servers of the gateway that runs stand.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use serde::Deserialize;
use serde_json::Value;

use super::admin::{AdminArguments, Gateway, Request, escaped};
use super::running;
use super::tell::{tell, tell_again};
use crate::balance::Service;
use crate::time::Span;
use crate::words::Word as _;

/// Arguments of `upstreams`.
#[derive(Debug, clap::Args)]
pub struct UpstreamsArguments {
    /// This upstream alone.
    name: Option<String>,
    /// Set this server of it, written as the file does, with --state or --weight.
    #[arg(long, value_name = "ADDRESS", requires = "name")]
    server: Option<String>,
    /// up: it takes requests. drain: it gets no new ones. off: none, and its health is not checked.
    #[arg(long, value_parser = state, requires = "server")]
    state: Option<Service>,
    /// Its share of the requests beside the other servers' weights, 1 to 1000.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000), requires = "server")]
    weight: Option<u32>,
    /// Take it out though it is the last one in service.
    #[arg(long, requires = "state")]
    force: bool,
    /// Look again each second, until interrupted.
    #[arg(long)]
    watch: bool,
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
  sluicegate upstreams app --watch
  sluicegate upstreams app --server 10.0.0.1:8080 --state drain     # or off, up
  sluicegate upstreams app --server 10.0.0.1:8080 --weight 5";

#[derive(Debug, Deserialize)]
struct UpstreamsAnswer {
    upstreams: Vec<UpstreamRow>,
}

#[derive(Debug, Deserialize)]
struct UpstreamRow {
    #[serde(rename = "upstream")]
    name: String,
    balance: String,
    panic: bool,
    breaker: Option<String>,
    in_flight: Option<u64>,
    max_in_flight: Option<u64>,
    pending: Option<u64>,
    servers: Vec<ServerRow>,
}

#[derive(Debug, Deserialize)]
struct ServerRow {
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

/// Shows them, or sets a server. Exit 1: the gateway cannot be asked, or has no such upstream or server.
pub fn run(path: &Path, arguments: &UpstreamsArguments) -> ExitCode {
    let gateway = match Gateway::of(&arguments.admin, || running::model(path), path) {
        Ok(gateway) => gateway,
        Err(error) => return tell(Err(error)),
    };
    match (&arguments.name, &arguments.server) {
        (Some(name), Some(server)) => tell(set(&gateway, name, server, arguments)),
        _ => tell_again(arguments.watch, || look(&gateway, arguments)),
    }
}

/// Sets a server, and shows its upstream as it stands then.
fn set(gateway: &Gateway, name: &str, server: &str, arguments: &UpstreamsArguments) -> Result<String, String> {
    let state = arguments.state.map(|state| format!("state={}", state.word()));
    let weight = arguments.weight.map(|weight| format!("weight={weight}"));
    let force = arguments.force.then(|| "force=true".to_owned());
    let query: Vec<String> = state.into_iter().chain(weight).chain(force).collect();
    if query.is_empty() {
        return Err("say what is to become of the server: --state or --weight".to_owned());
    }
    let target = format!("/api/v1/upstreams/{}/servers/{}?{}", escaped(name), escaped(server), query.join("&"));
    let answer = gateway.ask(&Request { method: "POST", target: &target, body: None, fields: &[] })?;
    shown(gateway, serde_json::from_str(&answer).unwrap_or_default(), arguments)
}

fn look(gateway: &Gateway, arguments: &UpstreamsArguments) -> Result<String, String> {
    let mut all = gateway.pages("/api/v1/upstreams", "upstreams")?;
    if let (Some(name), Some(Value::Array(all))) = (&arguments.name, all.get_mut("upstreams")) {
        all.retain(|upstream| upstream["upstream"] == **name);
        if all.is_empty() {
            return Err(format!("{}: the gateway that runs has no upstream {name:?}", gateway.shown()));
        }
    }
    shown(gateway, all, arguments)
}

fn shown(gateway: &Gateway, answer: Value, arguments: &UpstreamsArguments) -> Result<String, String> {
    if arguments.json {
        return Ok(format!("{answer:#}\n"));
    }
    let shown = serde_json::from_value::<UpstreamsAnswer>(answer).map(|answer| answer.show());
    shown.map_err(|error| format!("{}: an answer that tells of no upstreams: {error}", gateway.shown()))
}

fn state(text: &str) -> Result<Service, String> {
    Service::from_word(text).ok_or_else(|| "up, drain or off".to_owned())
}

impl UpstreamsAnswer {
    fn show(&self) -> String {
        let mut out = String::new();
        for (place, upstream) in self.upstreams.iter().enumerate() {
            // Writing into a String cannot fail.
            let _ = upstream.write(place > 0, &mut out);
        }
        out
    }
}

impl UpstreamRow {
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
            let ServerRow { state, in_flight, answered, failed, .. } = server;
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

impl ServerRow {
    fn notes(&self) -> String {
        let weight = (self.weight != 1).then(|| format!("weight {}", self.weight));
        let share = (self.state == "slow-start").then(|| format!("{}% of its share", self.share_percent));
        let backup = self.backup.then(|| "backup".to_owned());
        let reason = (!self.reason.is_empty()).then(|| self.reason.clone());
        [backup, weight, share, reason].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

/// In whole seconds, or in milliseconds below one.
pub fn since(millis: f64) -> String {
    let millis = millis.max(0.0) as u64;
    let rounded = if millis >= 1_000 { millis / 1_000 * 1_000 } else { millis };
    Span::from_millis(rounded).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_a_table_for_people() {
        let answer: UpstreamsAnswer = serde_json::from_str(
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
