//! `sluicegate fleet status`: how the gateway that runs sees its fleet.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use serde::Deserialize;

use super::admin::{AdminArguments, Gateway, Request};
use super::peers_report::PeersReport;
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
    gateways: u32,
    #[serde(flatten)]
    with: FleetWith,
    limits: Vec<FleetLimitRow>,
}

/// With a store or without.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum FleetWith {
    Store { is_newcomer: bool, members: Vec<String>, on_failure: String, deadline_ms: f64, store: StoreRow },
    Peers { peers: PeersReport },
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
    #[serde(default)]
    leased: u64,
    #[serde(default)]
    debt: u64,
    #[serde(default)]
    debt_lost: u64,
    #[serde(default)]
    waiting: u64,
    #[serde(default)]
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
        let Self { since, member, gateways, .. } = self;
        let (is_newcomer, members, on_failure, deadline_ms, store) = match &self.with {
            FleetWith::Peers { peers } => {
                writeln!(out, "{member}: {mode} since {since}")?;
                peers.write(*gateways, out)?;
                return self.write_bounds(out);
            }
            FleetWith::Store { is_newcomer, members, on_failure, deadline_ms, store } => {
                (*is_newcomer, members, on_failure, deadline_ms, store)
            }
        };
        let newcomer =
            if is_newcomer && mode == "shared" { ", a newcomer: without credit until the others know it" } else { "" };
        writeln!(out, "{member}: {mode} since {since}{newcomer}")?;
        let names: Vec<&str> = members.iter().take(NAMES).map(String::as_str).collect();
        let more = if members.len() > NAMES { ", …" } else { "" };
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
        writeln!(out, "on failure  {on_failure}, after {deadline_ms} ms at most")?;
        if let Some(error) = &store.last_error {
            let when = if mode == "alone" { "error" } else { "last error" };
            writeln!(out, "{when:<12}{error}")?;
        }
        if let Some(policy) = &store.evicts {
            writeln!(out, "warning     the store evicts keys ({policy}): set its maxmemory-policy to noeviction")?;
        }
        self.write_limits(out)
    }

    /// The limits of a fleet without a store.
    fn write_bounds(&self, out: &mut String) -> std::fmt::Result {
        let width = self.width();
        writeln!(out, "\n{:width$}  BOUND OF ALL GATEWAYS THAT LIVE, at the longest of the last lags", "LIMIT")?;
        for limit in &self.limits {
            let bounds: Vec<&str> = limit.bounds.iter().map(|bound| &*bound.text).collect();
            writeln!(out, "{:width$}  {}", name(limit), bounds.join("; "))?;
        }
        Ok(())
    }

    /// Of the names of limits, in characters.
    fn width(&self) -> usize {
        self.limits.iter().map(|limit| name(limit).chars().count()).max().unwrap_or(0).max(5)
    }

    fn write_limits(&self, out: &mut String) -> std::fmt::Result {
        let width = self.width();
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

fn name(limit: &FleetLimitRow) -> String {
    match &limit.plan {
        Some(plan) => format!("{}/{plan}", limit.name),
        None => limit.name.clone(),
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
    fn a_fleet_without_a_store_shows_its_gateways_and_the_way_between_them() {
        let answer = r#"{
            "mode": "shared", "since": "2026-11-28T00:00:00.000Z", "member": "gw-1-0000beef", "gateways": 2,
            "peers": {
                "listen": "10.0.0.1:7946", "error": null, "topology": "full", "transport": "udp",
                "gateways": [
                    {"node": "gw-2", "address": "10.0.0.2:7946", "state": "alive", "since": "2026-11-28T00:00:00.000Z"},
                    {"node": "gw-3", "address": "10.0.0.3:7946", "state": "dead", "since": "2026-11-28T00:01:00.000Z"}
                ],
                "lag_p50_ms": 1.5, "lag_p99_ms": 20.25, "lag_max_ms": 140.5, "keys": 1000,
                "sent": {"datagrams": 5, "bytes": 900}, "received": {"datagrams": 4, "bytes": 800},
                "dropped": {"too-long": 0, "malformed": 0, "forged": 3, "replayed": 0, "stranger": 1}, "untold": 7, "evicted": 0
            },
            "limits": [{"limit": "per-key", "plan": "gold", "shared": "peers", "bounds": [{"text": "at most 9 at once, then 9/s"}]}]
        }"#;
        let answer: FleetAnswer = serde_json::from_str(answer).unwrap();
        assert_eq!(
            answer.report.unwrap().show(&answer.mode),
            "\
gw-1-0000beef: shared since 2026-11-28T00:00:00.000Z
listens     10.0.0.1:7946, udp, full
gateways    2
alive       gw-2 at 10.0.0.2:7946 since 2026-11-28T00:00:00.000Z
dead        gw-3 at 10.0.0.3:7946 since 2026-11-28T00:01:00.000Z
lag         p50 1.5 ms, p99 20.25 ms, at most 140.5 ms, there and back
warning     one that is dead or cut off: in a cut each side has the whole of each limit
keys        1000
sent        5 datagrams, 900 bytes
received    4 datagrams, 800 bytes
dropped     3 forged, 1 stranger
untold      7 of what was admitted here

LIMIT         BOUND OF ALL GATEWAYS THAT LIVE, at the longest of the last lags
per-key/gold  at most 9 at once, then 9/s
"
        );
    }

    #[test]
    fn a_gateway_without_a_fleet_has_no_report() {
        let answer: FleetAnswer = serde_json::from_str(r#"{"mode": "off"}"#).unwrap();
        assert!(answer.report.is_none());
    }
}
