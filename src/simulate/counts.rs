//! Counts of a trial: of all, by limit, by key, and over time.

use std::collections::HashMap;

use super::logged::Logged;
use super::series::Series;
use super::waits::Waits;
use crate::admission::{ClientIp, KeyPart};
use crate::config::Model;
use crate::gateway::{Offline, OfflineRoute};
use crate::limiter::{Fingerprint, Report};
use crate::redact::{Clip, ClipEnd, Redactor};
use crate::telemetry::TopKeys;
use crate::time::{Span, Tick};

/// Sets of eight keys of each limit: the counts of so many keys are exact, in the mean of a hash.
const SETS: usize = 256;
/// Keys of each limit whose waits are told apart.
const MAX_WAITED: usize = 1_024;

/// Bytes that are shown of a part of a key.
const MAX_SHOWN: usize = 128;

/// Counts.
pub(super) struct Counts {
    /// Requests that came.
    pub(super) requests: u64,
    /// When the last one came.
    pub(super) last: Tick,
    pub(super) admitted: u64,
    pub(super) refused: u64,
    pub(super) no_route: u64,
    pub(super) malformed: u64,
    pub(super) denied: u64,
    /// Whether keys are told apart.
    has_keys: bool,
    /// By their places in the file.
    pub(super) limits: Vec<LimitCounts>,
    /// Admitted and refused of all, and then of each limit.
    pub(super) series: Series,
}

/// Counts of one limit.
pub(super) struct LimitCounts {
    pub(super) admitted: u64,
    pub(super) refused: u64,
    /// Of those with a key that takes more than an access log has fields for.
    pub(super) taken: KeysTaken,
    /// Those that were admitted after they had waited in its queue.
    pub(super) waits: Waits,
    /// How often each key came, and how often it was refused.
    pub(super) asked: Option<TopKeys<KeyName>>,
    pub(super) hurt: Option<TopKeys<KeyName>>,
    /// Those waits by key, of the first keys that waited.
    pub(super) waited: HashMap<u64, (KeyName, Waits)>,
}

/// Requests by where their key came from.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeysTaken {
    /// The values of its parts.
    pub(super) values: u64,
    /// Marks in place of one of them.
    pub(super) marks: u64,
    /// The address of the client, since the log lacks a part.
    pub(super) addresses: u64,
}

/// Whether a value is a mark, as logs have it in place of one that may be a secret.
fn is_mark(value: &str) -> bool {
    value.starts_with("[redacted:") && value.ends_with(']')
}

/// Source and value of each part of a key, secrets redacted.
pub(super) type KeyName = Vec<(String, String)>;

/// A limit, by its place in a route.
type LimitPlace<'r> = (&'r OfflineRoute, usize);

/// A request whose fate is known.
pub(super) struct Ending<'e> {
    pub(super) offline: &'e Offline,
    pub(super) redactor: &'e Redactor,
    pub(super) logged: &'e Logged,
    pub(super) client: &'e ClientIp,
}

impl Counts {
    pub(super) fn new(model: &Model, has_keys: bool) -> Self {
        let limits = model.limits.iter().map(|_| LimitCounts {
            admitted: 0,
            refused: 0,
            taken: KeysTaken::default(),
            waits: Waits::default(),
            asked: None,
            hurt: None,
            waited: HashMap::new(),
        });
        Self {
            requests: 0,
            last: Tick::ZERO,
            admitted: 0,
            refused: 0,
            no_route: 0,
            malformed: 0,
            denied: 0,
            has_keys,
            limits: limits.collect(),
            series: Series::new(model.limits.len() + 1),
        }
    }

    /// A request comes.
    pub(super) fn arrive(&mut self, at: Tick) {
        self.requests += 1;
        self.last = at;
        self.series.reach(at);
    }

    /// It was refused, by the limit at this place of this route.
    pub(super) fn refused(&mut self, ending: &Ending<'_>, at: LimitPlace<'_>, key: Option<Fingerprint>) {
        self.refused += 1;
        self.series.add(ending.logged.at, 0, false);
        self.of_limit(ending, at, key, false);
    }

    /// It was admitted by all limits that `report` has lines of, but for those in shadow mode that would have refused it; if it
    /// has waited, so long, for the limit at that place.
    pub(super) fn admitted(
        &mut self,
        ending: &Ending<'_>,
        route: &OfflineRoute,
        report: &Report,
        waited: Option<(Option<usize>, Span)>,
    ) {
        self.admitted += 1;
        self.series.add(ending.logged.at, 0, true);
        for line in report.lines().iter().filter(|line| line.rate == 0) {
            let would_refuse = report.shadow_refusals().any(|shadow| shadow == line.limit);
            self.of_limit(ending, (route, line.limit), report.key(line.limit), !would_refuse);
        }
        if let Some((Some(place), span)) = waited {
            self.waited(ending, (route, place), report.key(place), span);
        }
    }

    /// It has waited so long for the limit at this place.
    fn waited(&mut self, ending: &Ending<'_>, at: LimitPlace<'_>, key: Option<Fingerprint>, span: Span) {
        let Some(index) = index(at) else { return };
        let Some(limit) = self.limits.get_mut(index) else { return };
        limit.waits.add(span);
        let Some(key) = key.map(Fingerprint::bits).filter(|_| self.has_keys) else { return };
        if limit.waited.len() < MAX_WAITED || limit.waited.contains_key(&key) {
            let of_key = limit.waited.entry(key).or_insert_with(|| (ending.key_name(at, index), Waits::default()));
            of_key.1.add(span);
        }
    }

    fn of_limit(&mut self, ending: &Ending<'_>, at: LimitPlace<'_>, key: Option<Fingerprint>, is_admitted: bool) {
        let Some(index) = index(at) else { return };
        let Some(limit) = self.limits.get_mut(index) else { return };
        self.series.add(ending.logged.at, index + 1, is_admitted);
        if is_admitted {
            limit.admitted += 1;
        } else {
            limit.refused += 1;
        }
        if self.has_keys && ending.has_hidden_key(index) {
            let parts = ending.parts(at);
            let taken = match parts.iter().any(|part| part.source.contains(':')) {
                false => &mut limit.taken.addresses,
                true if parts.iter().any(|part| is_mark(&part.value)) => &mut limit.taken.marks,
                true => &mut limit.taken.values,
            };
            *taken += 1;
        }
        if let Some(key) = key.filter(|_| self.has_keys) {
            let name = || ending.key_name(at, index);
            limit.asked.get_or_insert_with(|| TopKeys::new(SETS)).add(key.bits(), name);
            if !is_admitted {
                limit.hurt.get_or_insert_with(|| TopKeys::new(SETS)).add(key.bits(), name);
            }
        }
    }
}

/// The place in the file of the limit at this place of this route.
fn index((route, place): LimitPlace<'_>) -> Option<usize> {
    route.limits.get(place).copied()
}

impl Ending<'_> {
    /// Whether an access log without keys lacks a part of the limit's key.
    fn has_hidden_key(&self, limit: usize) -> bool {
        self.offline.model.limits.get(limit).is_some_and(|rule| !rule.key.is_in_access_log())
    }

    fn parts(&self, (route, place): LimitPlace<'_>) -> Vec<KeyPart> {
        let view: &dyn crate::admission::RequestView = self.logged;
        route.rules.describe_key(view, self.client, place)
    }

    fn key_name(&self, at: LimitPlace<'_>, limit: usize) -> KeyName {
        let parts = self.parts(at);
        let is_secret = self.offline.model.limits.get(limit).and_then(|rule| rule.key_is_secret);
        let shown = |part: KeyPart| {
            // Of a mark it would be another one, which finds nothing.
            if is_mark(&part.value) {
                return (part.source, part.value);
            }
            let value = Clip::own(part.value, MAX_SHOWN);
            let text = self.redactor.key_part(&part.source, &value.text, value.end, is_secret).into_owned();
            (part.source, if value.end == ClipEnd::Cut { text + "…" } else { text })
        };
        parts.into_iter().map(shown).collect()
    }
}
