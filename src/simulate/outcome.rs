//! The outcome of a simulation, as JSON has it.

use std::cmp::Reverse;
use std::collections::HashSet;

use serde::Serialize;

use super::counts::{Counts, KeyName, KeysTaken, LimitCounts};
use super::series::SeriesStep;
use super::skipped::{SkipReason, SkippedLines};
use super::trial::Trial;
use super::waits::Waits;
use crate::admission::KeyExpr;
use crate::config::Model;
use crate::limiter::{Algorithm, Mode};
use crate::time::{Span, Wall};

/// Keys that are shown of each limit.
const TOP: usize = 10;

/// The outcome of a file, and of the one beside it.
#[derive(Clone, Debug, Serialize)]
pub struct Simulated {
    /// The first instant (RFC 3339); `None` if there was no request.
    pub from: Option<String>,
    /// From the first instant on, how long the requests came.
    pub seconds: f64,
    /// Of the file that was asked about.
    #[serde(flatten)]
    pub candidate: SimulationOutcome,
    /// Of the file beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<SimulationOutcome>,
    /// The lines that took no part, by their reasons.
    pub skipped_lines: Vec<SkippedLines>,
    /// How exact it is.
    pub notes: Vec<String>,
    /// Length of a step of `series`, in seconds.
    pub step_seconds: f64,
}

/// The outcome of one file.
#[derive(Clone, Debug, Serialize)]
pub struct SimulationOutcome {
    /// The file.
    pub file: String,
    /// Requests of the log.
    pub requests: u64,
    /// Lines of the log that took no part.
    pub skipped: u64,
    /// Requests that were admitted, at once or later.
    pub admitted: u64,
    /// Requests that a limit refused, at once or after a wait in vain.
    pub refused: u64,
    /// Requests that no route takes.
    pub no_route: u64,
    /// Requests that are malformed.
    pub malformed: u64,
    /// Requests of clients that `[client]` denies.
    pub denied: u64,
    /// The limits, in the file's order.
    pub limits: Vec<LimitOutcome>,
    /// Admitted and refused requests by the step of their arrival.
    pub series: Vec<SeriesStep>,
}

/// The outcome of a limit. In shadow mode it admits and refuses what it would if it were enforced.
#[derive(Clone, Debug, Serialize)]
pub struct LimitOutcome {
    /// Its name.
    pub name: String,
    /// `enforce`, `shadow` or `off`.
    pub mode: &'static str,
    /// Its algorithm.
    pub algorithm: &'static str,
    /// The sources of its keys in the log.
    pub key_from: String,
    /// Requests that it admitted, at once or later. Those that another limit refused were counted by none.
    pub admitted: u64,
    /// Requests that it refused, at once or after a wait in vain.
    pub refused: u64,
    /// The part of both that it refused, from 0 to 1.
    pub refused_share: f64,
    /// Requests that it admitted after they had waited in its queue.
    pub waited: u64,
    /// So long waited half of those, at most.
    pub p50_wait_ms: f64,
    /// So long waited 99 of 100 of those, at most.
    pub p99_wait_ms: f64,
    /// The longest wait of those.
    pub max_wait_ms: f64,
    /// The keys that it hurt most: those that it refused most often, then those that waited most often.
    pub keys: Vec<KeyOutcome>,
    /// Admitted and refused requests by the step of their arrival.
    pub series: Vec<SeriesStep>,
}

/// The outcome of a key.
#[derive(Clone, Debug, Serialize)]
pub struct KeyOutcome {
    /// Source and value of each part, secrets redacted; long ones cut.
    pub key: KeyName,
    /// Its fingerprint, under the secret of both files.
    #[serde(skip)]
    pub(super) print: u64,
    /// How often it was refused, at most.
    pub refused: u64,
    /// By how much `refused` may be too high.
    #[serde(skip_serializing_if = "is_zero")]
    pub excess: u64,
    /// How often it was admitted, as far as that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admitted: Option<u64>,
    /// How often it was admitted after it had waited.
    pub waited: u64,
    /// So long waited 99 of 100 of those, at most.
    pub p99_wait_ms: f64,
    /// How often the limit of this name refused it in the other file, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_refused: Option<u64>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Simulated {
    /// Of what was counted.
    pub(super) fn of(
        (name, candidate): (&str, &Trial),
        baseline: Option<(&str, &Trial)>,
        skipped: (u64, Vec<SkippedLines>),
        notes: Vec<String>,
    ) -> Self {
        let series = &candidate.counts.series;
        let seconds = |span: Span| span.as_nanos() as f64 / 1e9;
        let baseline = baseline.map(|(name, trial)| (trial, SimulationOutcome::of(name, trial, skipped.0)));
        let mut outcome = SimulationOutcome::of(name, candidate, skipped.0);
        if let Some((trial, _)) = &baseline {
            compare(&mut outcome, candidate, trial);
        }
        Self {
            from: series.start().map(|start| Wall::from_nanos(start.as_nanos()).timestamp().to_string()),
            seconds: series.start().map_or(0.0, |start| seconds(candidate.counts.last.since(start))),
            candidate: outcome,
            baseline: baseline.map(|(_, outcome)| outcome),
            skipped_lines: skipped.1,
            notes,
            step_seconds: seconds(series.width()),
        }
    }
}

impl SimulationOutcome {
    /// Each fate of a request, and how many had it.
    pub fn fates(&self) -> [(&'static str, u64); 5] {
        [
            ("admitted", self.admitted),
            ("refused", self.refused),
            ("no route", self.no_route),
            ("malformed", self.malformed),
            ("denied", self.denied),
        ]
    }

    fn of(file: &str, trial: &Trial, skipped: u64) -> Self {
        let counts = &trial.counts;
        let Counts { requests, admitted, refused, no_route, malformed, denied, .. } = *counts;
        let model = &trial.offline.model;
        Self {
            file: file.to_owned(),
            requests,
            skipped,
            admitted,
            refused,
            no_route,
            malformed,
            denied,
            limits: (0..model.limits.len()).filter_map(|at| LimitOutcome::of(model, counts, at)).collect(),
            series: counts.series.of(0),
        }
    }
}

impl LimitOutcome {
    fn of(model: &Model, counts: &Counts, at: usize) -> Option<Self> {
        let (spec, own) = (&model.limits.get(at)?.spec, counts.limits.get(at)?);
        let all = own.admitted + own.refused;
        Some(Self {
            name: spec.name.to_string(),
            mode: spec.mode.word(),
            algorithm: spec.algorithm.name(),
            key_from: key_from(&model.limits.get(at)?.key, own.taken),
            admitted: own.admitted,
            refused: own.refused,
            refused_share: if all == 0 { 0.0 } else { own.refused as f64 / all as f64 },
            waited: own.waits.total(),
            p50_wait_ms: own.waits.percentile(50).in_millis(),
            p99_wait_ms: own.waits.percentile(99).in_millis(),
            max_wait_ms: own.waits.longest().in_millis(),
            keys: keys(own),
            series: counts.series.of(at + 1),
        })
    }
}

/// The sources of a limit's keys, in words.
fn key_from(key: &KeyExpr, taken: KeysTaken) -> String {
    let KeysTaken { values, marks, addresses } = taken;
    let all = [
        (values, "by its values"),
        (marks, "by marks in place of its values"),
        (addresses, "by the client's address, since the log lacks it"),
    ];
    let found: Vec<String> =
        all.iter().filter(|(count, _)| *count > 0).map(|(count, how)| format!("{count} {how}")).collect();
    if found.is_empty() { key.to_string() } else { format!("{key}: {}", found.join(", ")) }
}

/// The keys that a limit hurt most.
fn keys(own: &LimitCounts) -> Vec<KeyOutcome> {
    let outcome = |key: u64, name: &KeyName, refused: u64, excess: u64| {
        let asked = own.asked.as_ref().and_then(|asked| asked.count_of(key)).map(|(count, _)| count);
        let waits = own.waited.get(&key).map(|(_, waits)| waits);
        KeyOutcome {
            key: name.clone(),
            print: key,
            refused,
            excess,
            admitted: asked.map(|asked| asked.saturating_sub(refused)),
            waited: waits.map_or(0, Waits::total),
            p99_wait_ms: waits.map_or(0.0, |waits| waits.percentile(99).in_millis()),
            baseline_refused: None,
        }
    };
    let refused = own.hurt.as_ref().map(|hurt| hurt.top(TOP)).unwrap_or_default();
    let is_refused = |key: u64| refused.iter().any(|top| top.key == key);
    let mut waited: Vec<_> = own.waited.iter().filter(|(key, _)| !is_refused(**key)).collect();
    waited.sort_by_key(|(key, (_, waits))| (Reverse(waits.total()), **key));
    let refused = refused.iter().map(|top| outcome(top.key, top.name, top.count, top.excess));
    let waited = waited.iter().map(|(key, (name, _))| outcome(**key, name, 0, 0));
    refused.chain(waited).take(TOP).collect()
}

/// Adds how often the other file refused the keys that are shown, where its limit of that name counts by the same key.
fn compare(outcome: &mut SimulationOutcome, own: &Trial, other: &Trial) {
    for (limit, rule) in outcome.limits.iter_mut().zip(&own.offline.model.limits) {
        let mut rules = other.offline.model.limits.iter().zip(&other.counts.limits);
        let same = rules.find(|(other, _)| other.spec.name == rule.spec.name && other.key == rule.key);
        let Some((_, counts)) = same else { continue };
        for key in &mut limit.keys {
            let refused = counts.hurt.as_ref().and_then(|hurt| hurt.count_of(key.print));
            key.baseline_refused = Some(refused.map_or(0, |(count, _)| count));
        }
    }
}

/// Remarks on how exact it is, for the reader.
pub(super) fn notes(trial: &Trial, log: LogFacts, skipped: &[SkippedLines]) -> Vec<String> {
    let mut notes = Vec::new();
    if trial.counts.requests == 0 {
        notes.push("No line of the logs is a request.".to_owned());
    }
    if log.has_spread {
        notes.push(
            "Times are known to the second: requests of one second are spread evenly over it, as pacing algorithms see it."
                .to_owned(),
        );
    }
    if log.has_bursts && !log.has_fractions {
        notes.push(
            "All times are whole seconds, so requests of one second come at once, which pacing algorithms refuse: log the \
             milliseconds."
                .to_owned(),
        );
    }
    let limits = &trial.offline.model.limits;
    let with = |has: fn(&KeysTaken) -> bool| {
        let own = limits.iter().zip(&trial.counts.limits).filter(|(_, counts)| has(&counts.taken));
        own.map(|(rule, _)| &*rule.spec.name).collect::<Vec<_>>().join(", ")
    };
    let (marked, by_address) = (with(|taken| taken.marks > 0), with(|taken| taken.addresses > 0));
    if !marked.is_empty() {
        notes.push(format!(
            "The log has marks in place of the values of keys ({marked}): `exempt` values, plans of keys and numbers of single keys are \
             unknown, so they count as any other."
        ));
    }
    if !by_address.is_empty() {
        notes.push(format!(
            "Requests of which the log lacks the key are counted by the client's address ({by_address}), which may be another \
             count than the gateway's. An access log in JSON has marks of the keys of limits that run."
        ));
    }
    let counts_in_flight = limits.iter().any(|rule| matches!(rule.spec.algorithm, Algorithm::Concurrency(_)));
    let is_late = skipped.iter().any(|own| own.reason == SkipReason::OutOfOrder.word());
    if counts_in_flight && is_late {
        notes.push(
            "Requests that lasted longer than ten minutes are among those out of order: limits on requests in flight lack them. \
             Sort the log by ts for them."
                .to_owned(),
        );
    }
    if counts_in_flight && !log.has_lengths {
        notes.push("The log has no took_ms: for limits on requests in flight every request ends at once.".to_owned());
    }
    if limits.iter().any(|rule| rule.spec.sharing.is_some()) {
        notes.push("Limits that are shared count as if this gateway were the only one.".to_owned());
    }
    if trial.lacks_used {
        notes.push(LACKS_USED.to_owned());
    }
    let unasked = unasked(trial);
    if let Some(first) = unasked.first().filter(|_| trial.counts.requests > 0) {
        let more = if unasked.len() > 1 { format!(", as were {} others", unasked.len() - 1) } else { String::new() };
        notes.push(format!(
            "The limit {first} was asked of no request{more}: none takes a route with it, or the log lacks its key."
        ));
    }
    if trial.counts.no_route > 0 {
        notes.push(format!(
            "{} requests match no route. A log that has no hosts needs --host NAME, if routes ask for a host.",
            trial.counts.no_route
        ));
    }
    notes
}

/// Of limits with `cost_from_response`.
const LACKS_USED: &str = "The log lacks what some responses stated (`used`, in the access log in JSON of limits with cost_from_response): \
     they keep their estimates.";

/// Facts about the logs as a whole.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogFacts {
    /// Requests were spread over their second.
    pub(super) has_spread: bool,
    /// Some line says how long its request took.
    pub(super) has_lengths: bool,
    /// Some instant is no whole second.
    pub(super) has_fractions: bool,
    /// Some instant is that of two requests.
    pub(super) has_bursts: bool,
}

/// The limits that are in use and were asked of no request.
fn unasked(trial: &Trial) -> Vec<&str> {
    let model = &trial.offline.model;
    let limits = model.routes.iter().flat_map(|route| &route.limits);
    let used: HashSet<&str> = limits.map(|limit| &*limit.spec.name).collect();
    let rules = model.limits.iter().zip(&trial.counts.limits);
    rules
        .filter(|(rule, counts)| {
            used.contains(&*rule.spec.name) && rule.spec.mode != Mode::Off && counts.admitted + counts.refused == 0
        })
        .map(|(rule, _)| &*rule.spec.name)
        .collect()
}
