//! `sluicegate simulate`: what a file would have done with recorded traffic.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde::Serialize;

use super::explain::time;
use super::progress::ProgressBar;
use super::safe::Safe;
use super::table::Table;
use super::tell::tell;
use crate::config::{self, Certificates};
use crate::gateway::Offline;
use crate::limiter::KeyHasher;
use crate::simulate::{
    Grouped, KeyOutcome, LimitOutcome, Logs, Simulated, SimulationOutcome, SimulationProgress, Suggestion, Tried, html,
    simulate, suggest,
};
use crate::time::Clock;

/// Arguments of `simulate`.
#[derive(Debug, clap::Args)]
pub struct SimulateArguments {
    /// Logs, the oldest first, plain or compressed by gzip or zstd; - is standard input. The gateway's access log or its
    /// dead letters, the combined format of nginx and Apache, JSON lines, or CSV whose first line names ts, client, path and
    /// others.
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,
    /// A file beside the other: the numbers of both are shown.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// The host of requests of which the log says none, as in the combined format.
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Find the smallest rate of this limit, or number in flight, at which it refuses at most --refused of its requests.
    #[arg(long, value_name = "LIMIT")]
    suggest: Option<String>,
    /// The part of the requests that --suggest may refuse, 0% to 100%.
    #[arg(long, value_name = "SHARE", default_value = "1%", requires = "suggest", value_parser = percent)]
    refused: f64,
    /// Write a page with plots, in one file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// `1%` or `0.5%`, as a part of 1.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok();
    let share = number.filter(|number| (0.0..=100.0).contains(number)).map(|number| number / 100.0);
    share.ok_or_else(|| "a share is written as a percentage from 0% to 100%, like 1% or 0.5%".to_owned())
}

pub const EXAMPLES: &str = "Examples:
  sluicegate simulate access.log -c candidate.toml
  sluicegate simulate access.log.1.gz access.log -c candidate.toml --baseline gateway.toml
  sluicegate simulate access.log --html report.html
  sluicegate simulate access.log --suggest per-client --refused 0.5%
  zcat nginx.log.gz | sluicegate simulate - --host www.example.com
  sluicegate simulate access.log --json | jq '.limits[] | {name, refused}'";

/// The answer, as JSON has it.
#[derive(Serialize)]
struct SimulationAnswer {
    #[serde(flatten)]
    simulated: Simulated,
    #[serde(skip_serializing_if = "Option::is_none")]
    suggest: Option<Suggestion>,
}

/// Simulates. Exit 1: a file is wrong, or a log cannot be read.
pub fn run(path: &Path, arguments: &SimulateArguments) -> ExitCode {
    tell(answer(path, arguments).and_then(|answer| {
        if let Some(page) = &arguments.html {
            fs::write(page, html(&answer.simulated))
                .map_err(|error| format!("{}: {error}", Safe(&page.display().to_string())))?;
        }
        if arguments.json {
            return serde_json::to_string_pretty(&answer).map(|json| json + "\n").map_err(|error| error.to_string());
        }
        Ok(show(&answer))
    }))
}

fn answer(path: &Path, arguments: &SimulateArguments) -> Result<SimulationAnswer, String> {
    let SimulateArguments { logs, baseline, host, refused, .. } = arguments;
    let baseline_file = baseline.as_deref();
    // Equal keys have equal fingerprints in both.
    let hasher = KeyHasher::random();
    let candidate = tried(path, &hasher)?;
    let baseline = baseline.as_deref().map(|path| tried(path, &hasher)).transpose()?;
    if let Some(page) = &arguments.html {
        spare(page, logs.iter().map(PathBuf::as_path).chain(baseline_file).chain([path]))?;
    }
    let logs = Logs { files: logs.clone(), host: host.clone() };
    let mut bar = ProgressBar::new();
    let mut progress = |SimulationProgress { bytes, of, requests }| {
        bar.show(bytes, of, || format!("{} requests", Grouped(requests)));
    };
    let found = arguments.suggest.as_ref().map(|limit| {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        suggest(&logs, (path, &text), limit, *refused, &mut progress).map_err(|error| Safe(&error).to_string())
    });
    let suggest = found.transpose()?;
    let simulated = simulate(&logs, candidate, baseline, &mut progress).map_err(|error| Safe(&error).to_string());
    bar.clear();
    Ok(SimulationAnswer { simulated: simulated?, suggest })
}

/// A page is not written over what is read.
fn spare<'p>(page: &Path, mut read: impl Iterator<Item = &'p Path>) -> Result<(), String> {
    let Ok(written) = fs::canonicalize(page) else { return Ok(()) };
    if read.any(|path| fs::canonicalize(path).is_ok_and(|path| path == written)) {
        return Err(format!("--html {}: that file is read; name another one", Safe(&page.display().to_string())));
    }
    Ok(())
}

fn tried(path: &Path, hasher: &KeyHasher) -> Result<Tried, String> {
    let loaded =
        config::load(path, Certificates::PlansAlone(Clock::system().wall_now())).map_err(|error| error.to_string())?;
    let offline = Offline::with(Arc::new(loaded.model), hasher).map_err(|error| error.to_string())?;
    Ok(Tried { file: path.display().to_string(), offline })
}

fn share(part: u64, of: u64) -> String {
    if of == 0 { String::new() } else { format!(" ({:.1}%)", part as f64 * 100.0 / of as f64) }
}

/// For people. Writing into a String cannot fail.
fn show(SimulationAnswer { simulated, suggest }: &SimulationAnswer) -> String {
    let mut out = String::new();
    let Simulated { candidate, baseline, skipped_lines, notes, .. } = simulated;
    let from = simulated.from.as_ref().map(|from| format!(" from {from} on")).unwrap_or_default();
    let length = time((simulated.seconds * 1e3) as u64);
    let _ = writeln!(out, "{} requests in {length}{from}", Grouped(candidate.requests));
    for skipped in skipped_lines {
        let more = if skipped.count > skipped.first.len() as u64 { ", …" } else { "" };
        let first: Vec<String> = skipped.first.iter().map(|place| Safe(place).to_string()).collect();
        let words = skipped_words(skipped.reason);
        let _ = writeln!(out, "{} lines skipped, {words}: {}{more}", Grouped(skipped.count), first.join(", "));
    }
    let _ = writeln!(out);
    write_totals(&mut out, candidate, baseline.as_ref());
    write_limits(&mut out, candidate, baseline.as_ref());
    for limit in &candidate.limits {
        write_keys(&mut out, limit, baseline.is_some());
    }
    if let Some(Suggestion { limit, key, value, refused_share, goal }) = suggest {
        let (share, goal) = (refused_share * 100.0, goal * 100.0);
        let _ = writeln!(
            out,
            "\nSuggestion: {key} = {value} of {limit}, the smallest that refuses at most {goal}%: {share:.3}%"
        );
    }
    for note in notes {
        let _ = writeln!(out, "\nNote: {}", Safe(note));
    }
    out
}

/// Numbers of all, a column for each file.
fn write_totals(out: &mut String, candidate: &SimulationOutcome, baseline: Option<&SimulationOutcome>) {
    let mut table = Table::default();
    let head = |own: &SimulationOutcome| Safe(&own.file).to_string();
    table.row([String::new(), head(candidate), baseline.map(head).unwrap_or_default()]);
    let others = baseline.map(|own| (own.fates(), own.requests));
    for (at, (name, number)) in candidate.fates().into_iter().enumerate() {
        let cell = |number: u64, of: u64| Grouped(number).to_string() + &share(number, of);
        let other = others.and_then(|(fates, of)| fates.get(at).map(|(_, number)| (*number, of)));
        // The first two are always shown.
        if at < 2 || number > 0 || other.is_some_and(|(number, _)| number > 0) {
            let other = other.map(|(number, of)| cell(number, of)).unwrap_or_default();
            table.row([name.to_owned(), cell(number, candidate.requests), other]);
        }
    }
    out.push_str(&table.text());
}

/// A line for each limit, and below it that of the other file.
fn write_limits(out: &mut String, candidate: &SimulationOutcome, baseline: Option<&SimulationOutcome>) {
    let mut table = Table::default();
    table.row(["LIMIT", "ADMITTED", "REFUSED", "SHARE", "WAITED", "P99 WAIT"].map(str::to_owned));
    for limit in &candidate.limits {
        table.row(limit_row(&limit.name, limit));
        let other = baseline.and_then(|own| own.limits.iter().find(|other| other.name == limit.name));
        match (baseline, other) {
            (Some(_), Some(other)) => table.row(limit_row("  baseline", other)),
            (Some(_), None) => table.row(["  not in the baseline".to_owned()]),
            (None, _) => {}
        }
    }
    for gone in baseline.into_iter().flat_map(|own| &own.limits) {
        if !candidate.limits.iter().any(|own| own.name == gone.name) {
            table.row(limit_row(&format!("{} (baseline only)", gone.name), gone));
        }
    }
    let _ = write!(out, "\n{}", table.text());
    let mut table = Table::default();
    let width = candidate.limits.iter().map(|limit| limit.key_from.chars().count()).max().unwrap_or(0);
    // The last column stands to the left.
    table.row(["LIMIT".to_owned(), format!("{:<width$}", "KEY")]);
    for limit in &candidate.limits {
        table.row([limit.name.clone(), format!("{:<width$}", limit.key_from)]);
    }
    let _ = write!(out, "\n{}", table.text());
}

fn limit_row(name: &str, limit: &LimitOutcome) -> [String; 6] {
    let LimitOutcome { mode, admitted, refused, waited, p99_wait_ms, .. } = limit;
    let mode = if *mode == "enforce" { String::new() } else { format!(" ({mode})") };
    [
        format!("{name}{mode}"),
        Grouped(*admitted).to_string(),
        Grouped(*refused).to_string(),
        share(*refused, admitted + refused).trim().to_owned(),
        Grouped(*waited).to_string(),
        wait(*waited, *p99_wait_ms),
    ]
}

/// The keys that a limit hurts most.
fn write_keys(out: &mut String, limit: &LimitOutcome, has_baseline: bool) {
    if limit.keys.is_empty() {
        return;
    }
    let mut table = Table::default();
    let other = if has_baseline { "BASELINE" } else { "" };
    let name = format!("HURT MOST BY {}", limit.name);
    table.row([&name, "REFUSED", "ADMITTED", "WAITED", "P99 WAIT", other].map(str::to_owned));
    for key in &limit.keys {
        table.row(key_row(key));
    }
    let _ = write!(out, "\n{}", table.text());
}

fn key_row(key: &KeyOutcome) -> [String; 6] {
    let parts: Vec<String> = key.key.iter().map(|(source, value)| format!("{source}={}", Safe(value))).collect();
    // It is too high by the excess at most.
    let about = if key.excess > 0 { "<=" } else { "" };
    [
        parts.join(" "),
        format!("{about}{}", Grouped(key.refused)),
        key.admitted.map(|own| Grouped(own).to_string()).unwrap_or_default(),
        Grouped(key.waited).to_string(),
        wait(key.waited, key.p99_wait_ms),
        key.baseline_refused.map(|own| Grouped(own).to_string()).unwrap_or_default(),
    ]
}

fn wait(waited: u64, p99_wait_ms: f64) -> String {
    if waited == 0 { "-".to_owned() } else { time(p99_wait_ms.ceil() as u64) }
}

fn skipped_words(reason: &str) -> &str {
    match reason {
        "broken" => "of no known form",
        "too-long" => "too long",
        "no-time" => "without an instant (ts)",
        "no-client" => "without the address of a client",
        "no-path" => "without a path",
        "aggregate" => "that count requests and do not say them",
        "out-of-order" => {
            "earlier than what was simulated by then: older logs come first, or it lasted longer than ten minutes"
        }
        "cut" => "the compressed data break off or are damaged",
        other => other,
    }
}
