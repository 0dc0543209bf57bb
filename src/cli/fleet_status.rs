//! `sluicegate fleet status`: how the gateway that runs sees its fleet.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use serde::Deserialize;

use super::admin::{AdminArguments, Gateway, Request};
use super::running;
use super::tell::tell_again;
use crate::config::Model;
use crate::fleet::WITHOUT_PLACE;

/// Names of members that are shown.
const NAMES: usize = 8;

/// Arguments of `fleet status`.
#[derive(Debug, clap::Args)]
pub struct StatusArguments {
    /// Look again each second, until interrupted.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    admin: AdminArguments,
}

/// The answer of `/api/v1/fleet`.
#[derive(Debug, Deserialize)]
struct FleetAnswer {
    mode: String,
    #[serde(flatten)]
    report: Option<FleetReport>,
}

#[derive(Debug, Deserialize)]
struct FleetReport {
    since: String,
    member: String,
    is_newcomer: bool,
    gateways: u32,
    members: Vec<String>,
    on_failure: String,
    deadline_ms: f64,
    store: StoreRow,
    limits: Vec<FleetLimitRow>,
}

#[derive(Debug, Deserialize)]
struct StoreRow {
    address: String,
    product: Option<String>,
    version: Option<String>,
    evicts: Option<String>,
    circuit: String,
    p50_ms: f64,
    p99_ms: f64,
    recent_exchanges: u64,
    answered: u64,
    failed: u64,
    timed_out: u64,
    last_error: Option<String>,
    #[serde(default)]
    nodes: Vec<NodeRow>,
}

#[derive(Debug, Deserialize)]
struct NodeRow {
    address: String,
    slots: u16,
    circuit: String,
    last_error: Option<String>,
}

#[derive(Debug, Deserialize)]
struct FleetLimitRow {
    #[serde(rename = "limit")]
    name: String,
    plan: Option<String>,
    shared: String,
    leased: u64,
    debt: u64,
    debt_lost: u64,
    waiting: u64,
    unanswered: u64,
    bounds: Vec<FleetBound>,
}

#[derive(Debug, Deserialize)]
struct FleetBound {
    text: String,
}

/// Shows it once, or again and again. Exit 1: the gateway cannot be asked, or is in no fleet.
pub fn status(path: &Path, arguments: &StatusArguments) -> ExitCode {
    let gateway = match Gateway::of(&arguments.admin, || model(path), path) {
        Ok(gateway) => gateway,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    tell_again(arguments.watch, || look(&gateway))
}

fn model(path: &Path) -> Result<Model, String> {
    let model = running::model(path)?;
    if model.fleet.is_none() {
        return Err(format!("{}: there is no [fleet], so nothing is shared", path.display()));
    }
    Ok(model)
}

fn look(gateway: &Gateway) -> Result<String, String> {
    let body = gateway.ask(&Request::get("/api/v1/fleet"))?;
    let answer: FleetAnswer =
        serde_json::from_str(&body).map_err(|error| format!("an answer that is no status: {error}"))?;
    match answer.report {
        Some(report) => Ok(report.show(&answer.mode)),
        None => Err("the gateway that runs is in no fleet".to_owned()),
    }
}

impl FleetReport {
    fn show(&self, mode: &str) -> String {
        let mut out = String::new();
        // Writing into a String cannot fail.
        let _ = self.write(mode, &mut out);
        out
    }

    fn write(&self, mode: &str, out: &mut String) -> std::fmt::Result {
        let Self { since, member, gateways, store, .. } = self;
        let newcomer = if self.is_newcomer && mode == "shared" {
            ", a newcomer: without credit until the others know it"
        } else {
            ""
        };
        writeln!(out, "{member}: {mode} since {since}{newcomer}")?;
        let names: Vec<&str> = self.members.iter().take(NAMES).map(String::as_str).collect();
        let more = if self.members.len() > NAMES { ", …" } else { "" };
        writeln!(out, "gateways    {gateways}: {}{more}", names.join(", "))?;
        let server = match (&store.product, &store.version) {
            (Some(product), Some(version)) => format!("{product} {version}"),
            _ => "not connected".to_owned(),
        };
        writeln!(out, "store       {}, {server}, circuit {}", store.address, store.circuit)?;
        // A single server has been named.
        for node in store.nodes.iter().filter(|node| node.address != store.address) {
            let slots = if node.slots > 0 { format!(", {} slots", node.slots) } else { String::new() };
            let error = node.last_error.as_ref().filter(|_| node.circuit != "closed");
            let error = error.map(|error| format!(": {error}")).unwrap_or_default();
            writeln!(out, "node        {}{slots}, circuit {}{error}", node.address, node.circuit)?;
        }
        match (store.p50_ms, store.p99_ms, store.recent_exchanges) {
            (.., 0) => writeln!(out, "latency     unknown: no exchange yet")?,
            (p50, p99, last) => writeln!(out, "latency     p50 {p50} ms, p99 {p99} ms, of the last {last} exchanges")?,
        }
        writeln!(
            out,
            "exchanges   {} answered, {} failed, {} timed out",
            store.answered, store.failed, store.timed_out
        )?;
        writeln!(out, "on failure  {}, after {} ms at most", self.on_failure, self.deadline_ms)?;
        if let Some(error) = &store.last_error {
            let when = if mode == "alone" { "error" } else { "last error" };
            writeln!(out, "{when:<12}{error}")?;
        }
        if let Some(policy) = &store.evicts {
            writeln!(out, "warning     the store evicts keys ({policy}): set its maxmemory-policy to noeviction")?;
        }
        self.write_limits(out)
    }

    fn write_limits(&self, out: &mut String) -> std::fmt::Result {
        let name = |limit: &FleetLimitRow| match &limit.plan {
            Some(plan) => format!("{}/{plan}", limit.name),
            None => limit.name.clone(),
        };
        let width = self.limits.iter().map(|limit| name(limit).chars().count()).max().unwrap_or(0).max(5);
        writeln!(
            out,
            "\n{:width$}  SHARED  {:>10}  {:>10}  {:>7}  BOUND OF ALL GATEWAYS",
            "LIMIT", "LEASED", "DEBT", "WAITING"
        )?;
        for limit in &self.limits {
            let FleetLimitRow { shared, leased, debt, waiting, bounds, .. } = limit;
            let bounds: Vec<&str> = bounds.iter().map(|bound| &*bound.text).collect();
            let counts = [(limit.debt_lost, "of debt lost"), (limit.unanswered, "requests without an answer")];
            let counts = counts.iter().filter(|(count, _)| *count > 0);
            let counts: Vec<String> = counts.map(|(count, what)| format!(" ({count} {what})")).collect();
            let bounds = bounds.join("; ");
            writeln!(
                out,
                "{:width$}  {shared:6}  {leased:>10}  {debt:>10}  {waiting:>7}  {bounds}{}",
                name(limit),
                counts.concat()
            )?;
        }
        if !self.limits.is_empty() {
            writeln!(out, "{WITHOUT_PLACE}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = r#"{
        "mode": "alone", "since": "2026-11-24T00:00:00.000Z", "member": "gw-1-0000beef", "is_newcomer": true,
        "gateways": 3, "members": ["gw-1-0000beef", "gw-2-00000001", "gw-3-00000002"], "on_failure": "fair", "deadline_ms": 10.0,
        "store": {"address": "127.0.0.1:6379", "product": null, "version": null, "evicts": null, "circuit": "open",
                  "p50_ms": 0.41, "p99_ms": 1.2, "recent_exchanges": 1024, "answered": 5000, "failed": 3, "timed_out": 1,
                  "last_error": "it is gone"},
        "limits": [
            {"limit": "per-key", "plan": null, "shared": "lease", "leased": 12, "debt": 3, "debt_lost": 0, "waiting": 0, "unanswered": 0,
             "bounds": [{"most": 124, "within_ms": 800.0, "text": "at most 124 in any 800ms"}]},
            {"limit": "per-key", "plan": "gold", "shared": "strict", "leased": 0, "debt": 0, "debt_lost": 7, "waiting": 2, "unanswered": 5,
             "bounds": [{"most": 9, "within_ms": null, "text": "at most 9 at once, then 9/s"}]}
        ]
    }"#;

    #[test]
    fn a_status_is_a_page_for_people() {
        let answer: FleetAnswer = serde_json::from_str(ANSWER).unwrap();
        let shown = answer.report.unwrap().show(&answer.mode);
        assert_eq!(
            shown,
            "\
gw-1-0000beef: alone since 2026-11-24T00:00:00.000Z
gateways    3: gw-1-0000beef, gw-2-00000001, gw-3-00000002
store       127.0.0.1:6379, not connected, circuit open
latency     p50 0.41 ms, p99 1.2 ms, of the last 1024 exchanges
exchanges   5000 answered, 3 failed, 1 timed out
on failure  fair, after 10 ms at most
error       it is gone

LIMIT         SHARED      LEASED        DEBT  WAITING  BOUND OF ALL GATEWAYS
per-key       lease           12           3        0  at most 124 in any 800ms
per-key/gold  strict           0           0        2  at most 9 at once, then 9/s (7 of debt lost) (5 requests without an answer)
a key without a place in the store (max_keys) may have L/N more at each gateway
"
        );
    }

    #[test]
    fn a_gateway_without_a_fleet_has_no_report() {
        let answer: FleetAnswer = serde_json::from_str(r#"{"mode": "off"}"#).unwrap();
        assert!(answer.report.is_none());
    }
}
