//! `[[limit]]`

use std::ops::RangeInclusive;

use super::doubts;
use super::names::{Name, name};
use super::sections::TIMEOUTS;
use super::with_causes;
use crate::admission::{KeyError, KeyExpr, OnMissingKey};
use crate::config::findings::{Finding, quoted};
use crate::config::model::LimitRule;
use crate::config::reader::{Node, Reader};
use crate::limiter::{
    Algorithm, Bound, LimitSpec, MAX_COUNT, MAX_RATES, MAX_SLOTS, Mode, OnFull, Rate, TimerWheel, TimerWheelError,
};
use crate::time::Span;

const STATUS: u16 = 429;
const MAX_KEYS: u64 = 1_000_000;

/// A refusal is the client's or the server's error, never a success.
const STATUSES: RangeInclusive<u64> = 400..=599;

/// A request that waits longer than this has no client any more.
const WAITS: RangeInclusive<Span> = Span::ZERO..=Span::from_secs(3_600);

const QUEUES: RangeInclusive<u64> = 1..=1_000_000;

/// The upper end is 10 GB of small keys.
const KEYS: RangeInclusive<u64> = 1..=100_000_000;

const JITTERS: RangeInclusive<Span> = Span::ZERO..=Span::from_secs(3_600);

/// What one request may cost.
pub(super) const COSTS: RangeInclusive<u64> = 1..=MAX_COUNT;

const KEY_SOURCES: &str =
    "keys are client-ip, header:NAME, cookie:NAME, query:NAME, host, method, path, route, basic:user and global";

const LATER_ALGORITHMS: [&str; 10] = [
    "token-bucket",
    "gcra",
    "leaky-bucket",
    "fixed-window",
    "sliding-window",
    "sliding-counter",
    "sliding-log",
    "smooth-bursty",
    "warm-up",
    "concurrency",
];

const LATER: [&str; 20] = [
    "active",
    "align",
    "bandwidth",
    "burst",
    "cold_factor",
    "cost_from_response",
    "count_refused",
    "count_when",
    "exempt",
    "max_burst_seconds",
    "max_cost",
    "max_in_flight",
    "max_waiting",
    "min_difference",
    "penalty",
    "plans",
    "refill",
    "refusal",
    "slot_limit",
    "warm_up",
];

/// Lowers one; its name also where the rest is wrong.
pub(super) fn lower(mut reader: Reader<'_>) -> (Option<Name>, Option<LimitRule>) {
    let name = name(&mut reader, "per-client");
    let key = match reader.optional("key") {
        Some(node) => key(node),
        None => client_ip(),
    };
    let on_missing_key = choice(
        &mut reader,
        "on_missing_key",
        &[("client-ip", OnMissingKey::ClientIp), ("skip", OnMissingKey::Skip), ("refuse", OnMissingKey::Refuse)],
    );
    let (rates, algorithm, rate_place) = algorithm(&mut reader);
    let mode = choice(&mut reader, "mode", &[("enforce", Mode::Enforce), ("shadow", Mode::Shadow), ("off", Mode::Off)]);
    let on_full = choice(
        &mut reader,
        "on_full",
        &[("evict-oldest", OnFull::EvictOldest), ("allow", OnFull::Allow), ("refuse", OnFull::Refuse)],
    );
    let keys_node = reader.optional("max_keys");
    let max_keys = keys_node.as_ref().map_or(Some(MAX_KEYS), |node| node.integer(KEYS));
    let (max_wait, max_queue) = waiting(&mut reader);
    let timeout_node = reader.optional("timeout");
    let timeout = timeout_node.as_ref().map_or(Some(None), |node| node.duration_or_none(&TIMEOUTS));
    let status = reader.optional("status").map_or(Some(u64::from(STATUS)), |node| node.integer(STATUSES));
    let retry_after_jitter =
        reader.optional("retry_after_jitter").map_or(Some(Span::ZERO), |node| node.duration(&JITTERS));
    let cost_node = reader.optional("cost");
    let cost = cost_node.as_ref().map_or(Some(None), |node| cost(node).map(Some));
    if let (Some(node), Some(Some(cost))) = (&cost_node, cost)
        && mode != Some(Mode::Off)
    {
        check_fits(node, cost, &rates, None);
    }
    if mode.is_some_and(|mode| mode != Mode::Off) {
        if let (Some(Algorithm::TimerWheel(wheel)), Some(rate_place)) = (&algorithm, &rate_place) {
            doubts::check_rates(rate_place, wheel);
            doubts::check_table(keys_node.as_ref().unwrap_or(rate_place), wheel, max_keys.unwrap_or(0));
        }
        // In shadow mode nobody waits and no timeout of a limit holds.
        if let (Some(Mode::Enforce), Some(node), Some(max_wait), Some(Some(timeout))) =
            (mode, &timeout_node, max_wait, timeout)
        {
            doubts::check_wait(node, max_wait, timeout);
        }
    }
    reader.done(&LATER);
    let limit = (|| {
        Some(LimitRule {
            spec: LimitSpec {
                name: name.as_ref()?.text.clone(),
                algorithm: algorithm?,
                mode: mode?,
                max_wait: max_wait?,
                max_queue: max_queue?,
                max_keys: max_keys?,
                on_full: on_full?,
            },
            key: key?,
            on_missing_key: on_missing_key?,
            timeout: timeout?,
            status: u16::try_from(status?).ok()?,
            cost: cost?,
            retry_after_jitter: retry_after_jitter?,
        })
    })();
    (name, limit)
}

/// The key expression of `key` or `hash_key`: a part, or an array of parts.
pub(super) fn key(node: Node<'_>) -> Option<KeyExpr> {
    let place = node.place();
    let nodes = node.one_or_many();
    let parts = super::each(&nodes, |part| {
        let text = part.text("a key in quotes", "\"client-ip\" or [\"client-ip\", \"header:x-api-key\"]")?;
        match KeyExpr::parse(&[text]) {
            Ok(_) => Some(text),
            Err(KeyError::NotInThisVersion(_)) => {
                part.error(format!("the key {} is not in this version", quoted(text)), KEY_SOURCES);
                None
            }
            Err(error) => {
                part.error(format!("{} is no key", quoted(text)), key_remedy(&error));
                None
            }
        }
    })?;
    match KeyExpr::parse(&parts) {
        Ok(key) => Some(key),
        Err(error) => {
            place.error(format!("{} cannot be made of these parts", place.label()), key_remedy(&error));
            None
        }
    }
}

fn key_remedy(error: &KeyError) -> String {
    match error {
        KeyError::Unknown(_, Some(near)) => format!("did you mean \"{near}\"?"),
        KeyError::Unknown(_, None) => KEY_SOURCES.to_owned(),
        other => with_causes(other),
    }
}

/// The key of whoever does not say otherwise.
pub(super) fn client_ip() -> Option<KeyExpr> {
    KeyExpr::parse(&["client-ip"]).ok()
}

/// What one request costs.
pub(super) fn cost(node: &Node<'_>) -> Option<u64> {
    match node.as_text() {
        Some(text) if text == "content-length" || text.starts_with("header:") => {
            node.later("whole numbers");
            None
        }
        _ => node.integer(COSTS),
    }
}

/// Reports a cost that no window of the limit can hold. `limit` is its name where the cost is the route's.
pub(super) fn check_fits(node: &Node<'_>, cost: u64, rates: &[Rate], limit: Option<&str>) {
    // All rates must hold, so the smallest decides.
    let Some(tightest) = rates.iter().min_by_key(|rate| rate.limit()) else { return };
    if cost > tightest.limit() {
        let of = limit.map(|name| format!(" of the limit {}", quoted(name))).unwrap_or_default();
        let message =
            format!("a cost of {cost} never fits into the rate {tightest}{of}: every request would be refused");
        node.error(message, format!("lower the cost to at most {}, or raise the rate", tightest.limit()));
    }
}

/// A word with a default, which is the first one.
fn choice<T: Copy>(reader: &mut Reader<'_>, key: &'static str, words: &[(&'static str, T)]) -> Option<T> {
    match reader.optional(key) {
        Some(node) => node.choice(words, &[]),
        None => words.first().map(|(_, meaning)| *meaning),
    }
}

/// The algorithm, its rates also where the rest is wrong, and their place.
fn algorithm<'t>(reader: &mut Reader<'t>) -> (Vec<Rate>, Option<Algorithm>, Option<Node<'t>>) {
    let known = match reader.optional("algorithm") {
        Some(node) => node.choice(&[("timer-wheel", ())], &LATER_ALGORITHMS),
        None => Some(()),
    };
    let bounds = [("sliding", Bound::Sliding), ("slot", Bound::Slot), ("strict", Bound::Strict)];
    let bound = choice(reader, "bound", &bounds);
    let slots_node = reader.optional("slots");
    let slots = match &slots_node {
        Some(node) => node.integer(1..=u64::from(MAX_SLOTS)).map(|slots| u32::try_from(slots).ok()),
        None => Some(None),
    };
    // An algorithm of a later version may do without a rate.
    let rate_node = if known.is_some() { reader.required("rate", "\"100/s\"") } else { reader.optional("rate") };
    let Some(rate_node) = rate_node else { return (Vec::new(), None, None) };
    let rate_place = rate_node.place();
    let rates = rates(rate_node);
    let (Some(()), Some(rates), Some(bound), Some(slots)) = (known, &rates, bound, slots) else {
        return (rates.unwrap_or_default(), None, Some(rate_place));
    };
    if let (Bound::Slot, Some(node), Some(2..)) = (bound, &slots_node, slots) {
        node.warning("`slots` has no effect: bound = \"slot\" always has one slot", "remove `slots`, or the bound");
    }
    let algorithm = match TimerWheel::new(rates, slots, bound) {
        Ok(wheel) => Some(Algorithm::TimerWheel(wheel)),
        Err(error) => {
            report(&error, slots_node.as_ref().unwrap_or(&rate_place), &rate_place);
            None
        }
    };
    (rates.clone(), algorithm, Some(rate_place))
}

fn report(error: &TimerWheelError, slots_node: &Node<'_>, rate_node: &Node<'_>) {
    match error {
        TimerWheelError::Slots { rate, slots, nearest } => {
            let message = format!("{slots} slots do not divide the window of {rate}");
            let help = format!("use slots = {nearest}, the nearest that does (equal slots of at least 1ms)");
            slots_node.error(message, help);
        }
        other => rate_node.error("`rate` makes no timer wheel", other.to_string()),
    }
}

fn rates(node: Node<'_>) -> Option<Vec<Rate>> {
    let place = node.place();
    let nodes = node.one_or_many();
    if nodes.is_empty() || nodes.len() > MAX_RATES {
        place.error(format!("`rate` has {} rates", nodes.len()), format!("give 1 to {MAX_RATES}; all of them hold"));
        return None;
    }
    super::each(&nodes, |node| {
        let text = node.text("a rate in quotes", "\"100/s\" or [\"100/s\", \"20/100ms\"]")?;
        match text.parse::<Rate>() {
            Ok(rate) => Some(rate),
            Err(error) => {
                node.error(format!("{} is no rate", quoted(text)), with_causes(&error));
                None
            }
        }
    })
}

/// `max_wait` and `max_queue`.
#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
fn waiting(reader: &mut Reader<'_>) -> (Option<Span>, Option<Option<u64>>) {
    let max_wait = reader.optional("max_wait").map_or(Some(Span::ZERO), |node| node.duration(&WAITS));
    let queue_node = reader.optional("max_queue");
    if let (Some(node), Some(Span::ZERO)) = (&queue_node, max_wait) {
        let message = "`max_queue` has no effect: nobody waits while `max_wait` is 0s";
        node.push(Finding::warning(node.key_span(), message).help("add max_wait = \"1s\", or remove max_queue"));
    }
    (max_wait, queue_node.map_or(Some(None), |node| node.integer(QUEUES).map(Some)))
}
