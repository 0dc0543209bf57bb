//! How limits stand, and single keys of them: read only.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::exceptions::{BlockSeen, Id, KeyedExceptions, NumbersSeen, print_text};
use super::explain::{RateSeen, rates_of};
use super::fleet;
use super::live::{LiveLimits, counted};
use super::live_state::LiveState;
use super::terms::hasher_of;
use crate::config::{LimitId, LimitRule, Model, nearest};
use crate::dead_letter::KeyName;
use crate::limiter::{Ask, Counting, Fingerprint, KeyHasher, Limit, LimitSpec, Peeked, Policy, Report};
use crate::proxy::{CountedKey, KeyTop, RouteLimit, Snapshot};
use crate::redact::{Clip, ClipEnd, Redactor, is_terminal_control};
use crate::time::{Clock, Span, Tick};

/// How a key of a limit stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySeen {
    /// The limit.
    pub limit: String,
    /// The plan, if the numbers are those of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// The value, redacted if it is a secret.
    pub key: String,
    /// `enforce`, `shadow` or `off`.
    pub mode: String,
    /// How each rate stands.
    pub rates: Vec<RateSeen>,
    /// How many more requests of cost 1 would be admitted now; that of the tightest rate.
    pub room: Option<u64>,
    /// The answer to a request of cost 1: `admitted`, `refused` or `waits`; in shadow mode `refused` if it would be.
    pub decision: String,
    /// Until one would be admitted, if it is not at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_ms: Option<u64>,
    /// It is blocked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<BlockSeen>,
    /// The numbers are those of this key alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_numbers: Option<NumbersSeen>,
}

/// Between the parts of a key.
const JOINT: &str = " + ";
/// Characters of a value that are shown.
const MAX_SHOWN: usize = 256;

/// The keys that a limit meets most often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopKeysSeen {
    /// The limit.
    pub limit: String,
    /// The parts of its key.
    pub by: String,
    /// Since when they are counted (RFC 3339): five to ten minutes ago.
    pub since: String,
    /// Those that it refused most often, the first one first; in shadow mode, that it would have refused.
    pub refused: Vec<TopKeySeen>,
    /// Those that it admitted most often.
    pub admitted: Vec<TopKeySeen>,
}

/// A key that came often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopKeySeen {
    /// Source and value of each part, secrets redacted.
    pub key: Vec<(String, String)>,
    /// The print of the value, which commands take in the value's place.
    pub print: String,
    /// How often, at most.
    pub count: u64,
    /// By how much `count` may be too high.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub excess: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// All limits, in the file's order, those of plans behind those that they override.
pub fn list(model: &Model, limits: &LiveLimits) -> Value {
    let of = |(id, spec, key): (LimitId, &LimitSpec, &_)| {
        let (limit, _) = limits.get(&id)?;
        let stats = limit.stats();
        let rule = model.limits.iter().find(|rule| rule.spec.name == id.limit)?;
        let routes = model.routes.iter().filter(|route| route.limits.iter().any(|own| own.spec.name == id.limit));
        Some(json!({
            "name": &*id.limit,
            "plan": id.plan.as_deref(),
            "mode": spec.mode.word(),
            "algorithm": spec.algorithm.name(),
            "rates": spec.algorithm.rates().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "key": ToString::to_string(key),
            "shared": spec.sharing.is_some(),
            "scheduled": rule.active.is_some(),
            "max_wait_ms": spec.max_wait.as_millis_ceil(),
            "keys": stats.keys,
            "max_keys": spec.max_keys,
            "waiting": stats.waiting,
            "blocks": stats.blocks,
            "evicted_live": stats.evicted_live,
            "refused_full": stats.refused_full,
            "routes": routes.map(|route| &*route.name).collect::<Vec<_>>(),
        }))
    };
    json!({ "limits": model.counted().filter_map(of).collect::<Vec<_>>() })
}

/// Says that there is no limit of this name, and which one may be meant.
pub fn no_limit_of(model: &Model, name: &str) -> String {
    no_limit(name, model.limits.iter().map(|rule| &*rule.spec.name))
}

fn no_limit<'l>(name: &str, all: impl Iterator<Item = &'l str>) -> String {
    let near = nearest(name, all).map(|near| format!(" Did you mean {near:?}?")).unwrap_or_default();
    format!("There is no limit {name:?}.{near}")
}

/// The keys that the limit called `name` admits and refuses most often.
///
/// # Errors
/// There is no such limit: in words.
pub fn top_keys(snapshot: &Snapshot, redactor: &Redactor, name: &str, clock: &Clock) -> Result<Value, String> {
    let limit = snapshot.limits.iter().find(|limit| &*limit.spec.spec.name == name);
    let RouteLimit { spec: rule, keys } = limit.ok_or_else(|| no_limit_of(&snapshot.model, name))?;
    let shown = |keys: Vec<CountedKey>| {
        let shown = |CountedKey { print, name, count, excess }| TopKeySeen {
            key: parts(redactor, &name, rule.key_is_secret),
            print: print_text(print),
            count,
            excess,
        };
        keys.into_iter().map(shown).collect()
    };
    let KeyTop { since, admitted, refused } = keys.top(clock.now());
    let top = TopKeysSeen {
        limit: name.to_owned(),
        by: rule.key.to_string(),
        since: format!("{:.3}", clock.wall(since).timestamp()),
        refused: shown(refused),
        admitted: shown(admitted),
    };
    serde_json::to_value(top).map_err(|error| error.to_string())
}

/// Source and value of each part of a key, as they may be shown.
pub fn parts(redactor: &Redactor, name: &KeyName, is_secret: Option<bool>) -> Vec<(String, String)> {
    let shown = |(source, value): &(String, Clip)| {
        let text = redactor.key_part(source, &value.text, value.end, is_secret).into_owned();
        (source.clone(), if value.end == ClipEnd::Cut { text + "…" } else { text })
    };
    name.parts.iter().map(shown).collect()
}

/// A key in one line, as it may be shown.
pub fn shown_name(redactor: &Redactor, name: &KeyName, is_secret: Option<bool>) -> String {
    let parts: Vec<_> = parts(redactor, name, is_secret).into_iter().map(|(_, shown)| shown).collect();
    one_line(&parts.join(JOINT))
}

/// A value of a limit's key, as somebody names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedKey {
    /// By which the limit counts it.
    pub print: Fingerprint,
    /// As it may be shown.
    pub shown: String,
}

/// Reads a value of the key of a limit.
///
/// # Errors
/// It is none; in words that do not repeat it.
pub fn named_key(
    model: &Model,
    (hasher, redactor): (&KeyHasher, &Redactor),
    rule: &LimitRule,
    value: &str,
) -> Result<NamedKey, String> {
    let of_fleet = fleet::hasher(model);
    let hasher = hasher_of(&rule.spec, hasher, of_fleet.as_ref());
    let print = rule.key.fingerprint_of_value(value, model.client.address_form(), hasher).map_err(|_| {
        format!(
            "That is no value of the key {} of limit {:?}: write it as in exempt, see docs/limits.md.",
            rule.key, &*rule.spec.name
        )
    })?;
    Ok(NamedKey { print, shown: shown(redactor, &rule.key.to_string(), value, rule.key_is_secret) })
}

/// How a key of the limit called `name` stands: one line for its own numbers, one for those of each plan, and one for numbers that
/// this key alone has. `own`: its exceptions.
pub fn key(
    model: &Model,
    lasting: &LiveState,
    (name, key): (&str, &NamedKey),
    own: &[(Id, KeyedExceptions)],
    now: Tick,
) -> Vec<KeySeen> {
    let clock = &lasting.clock;
    let seen = |(id, spec, _): (LimitId, &LimitSpec, &_)| {
        let (limit, _) = lasting.limits.get(&id).filter(|_| *id.limit == *name)?;
        let ask = Ask { key: Some(key.print), cost: 1, counting: Counting::AtOnce, ..Ask::default() };
        let (peeked, report) = peek(limit, ask, now)?;
        let block = own.iter().find_map(|(_, entry)| entry.exception.block.as_ref());
        let (decision, until) = match peeked {
            _ if block.is_some() => {
                ("refused", block.and_then(|block| block.until).map(|until| clock.offset().tick(until)))
            }
            Peeked::Admitted if report.has_shadow_refusals() => ("refused", None),
            Peeked::Admitted => ("admitted", None),
            Peeked::Waits { until, .. } => ("waits", Some(until)),
            Peeked::Refused(refusal) => ("refused", refusal.retry_at),
        };
        let numbers = own.iter().find(|(own, _)| id.key == Some(own.print));
        let numbers = numbers.and_then(|(_, entry)| Some((entry.exception.numbers.as_ref()?, entry)));
        Some(KeySeen {
            limit: name.to_owned(),
            plan: id.plan.map(|plan| plan.to_string()),
            key: key.shown.clone(),
            mode: spec.mode.word().to_owned(),
            room: report.lines().iter().map(|line| line.remaining).min(),
            rates: rates_of(report.lines()),
            decision: decision.to_owned(),
            next_ms: until.map(|at: Tick| at.since(now).as_millis_ceil()),
            block: BlockSeen::of(block, limit.blocked_until(key.print, now).map(|until| clock.wall(until))),
            own_numbers: numbers.map(|(numbers, entry)| NumbersSeen::of(numbers, entry.misfit.as_ref())),
        })
    };
    let prints: Vec<_> = own.iter().map(|(id, _)| Some(id.print)).collect();
    let of_this_key = |id: &LimitId| id.key.is_none() || prints.contains(&id.key);
    counted(model, &lasting.of_keys).filter(|(id, ..)| of_this_key(id)).filter_map(seen).collect()
}

fn peek(limit: &Arc<Limit>, ask: Ask, now: Tick) -> Option<(Peeked, Report)> {
    let policy = Policy::new(vec![Arc::clone(limit)]).ok()?;
    let mut report = Report::default();
    let peeked = policy.peek(&[ask], Span::MAX, now, &mut report);
    Some((peeked, report))
}

/// A value as it may be shown, on one line: each part by the rule for its source.
pub fn shown(redactor: &Redactor, key: &str, value: &str, is_secret: Option<bool>) -> String {
    let parts = key.split(JOINT).zip(value.split(JOINT));
    let parts: Vec<_> =
        parts.map(|(source, value)| redactor.key_part(source, value.trim(), ClipEnd::Whole, is_secret)).collect();
    one_line(&parts.join(JOINT))
}

fn one_line(shown: &str) -> String {
    shown.chars().take(MAX_SHOWN).map(|own| if is_terminal_control(own) { '?' } else { own }).collect()
}
