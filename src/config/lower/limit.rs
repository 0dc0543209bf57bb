//! `[[limit]]`

use std::ops::RangeInclusive;

use super::algorithm::{self, Lowered, QUEUES};
use super::cost;
use super::count_when;
use super::doubts;
use super::exempt;
use super::refusal;
use super::schedule;
use crate::config::findings::{Finding, quoted};
use crate::config::key;
use crate::config::kind::Context;
use crate::config::model::LimitRule;
use crate::config::names::{Name, name};
use crate::config::reader::{Node, Reader};
use crate::config::sections::server::TIMEOUTS;
use crate::config::token::with_causes;
use crate::limiter::{Algorithm, CalendarRate, LimitSpec, MAX_COUNT, MAX_RATES, Mode, Penalty, Rate};
use crate::time::Span;
use crate::words::Word;

const STATUS: u16 = 429;
const MAX_KEYS: u64 = 1_000_000;

/// A request that waits longer than this has no client any more.
pub(super) const WAITS: RangeInclusive<Span> = Span::ZERO..=Span::from_secs(3_600);

/// The upper end is 10 GB of small keys.
const KEYS: RangeInclusive<u64> = 1..=100_000_000;

const JITTERS: RangeInclusive<Span> = Span::ZERO..=Span::from_secs(3_600);

/// Refusals before a penalty.
const REFUSALS: RangeInclusive<u64> = 1..=1_000_000;

/// Below a second it would be a rate, and above a month the process hardly remembers.
const PENALTY_TIMES: RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(30 * 86_400);

/// What one request may cost.
pub(super) const COSTS: RangeInclusive<u64> = 1..=MAX_COUNT;

/// Lowers one; its name also where the rest is wrong.
pub(super) fn lower(mut reader: Reader<'_>, context: &Context<'_>) -> (Option<Name>, Option<LimitRule>) {
    let name = name(&mut reader, "per-client");
    let key = match reader.optional("key") {
        Some(node) => key::key(&node, context).ok(),
        None => key::client_ip(),
    };
    let key_is_secret = reader.optional("key_is_secret").map_or(Some(None), |node| node.boolean().map(Some));
    let on_missing_key = word(&mut reader, "on_missing_key");
    let Numbers { algorithm, place, mode, wait_node, max_wait, max_queue } = numbers(&mut reader);
    let on_full = word(&mut reader, "on_full");
    let keys_node = reader.optional("max_keys");
    let max_keys = keys_node.as_ref().map_or(Some(MAX_KEYS), |node| node.integer(KEYS));
    let timeout_node = reader.optional("timeout");
    let timeout = timeout_node.as_ref().map_or(Some(None), |node| node.duration_or_none(&TIMEOUTS));
    let status_node = reader.optional("status");
    let status = status_node.as_ref().map_or(Some(u64::from(STATUS)), |node| node.integer(refusal::STATUSES));
    let retry_after_jitter =
        reader.optional("retry_after_jitter").map_or(Some(Span::ZERO), |node| node.duration(&JITTERS));
    let penalty = reader.optional("penalty").map_or(Some(None), |node| penalty(&node).map(Some));
    let count_when = count_when::lower(&mut reader, algorithm.as_ref());
    let (cost, cost_from_response) = cost::lower_with_response(&mut reader, algorithm.as_ref());
    if mode != Some(Mode::Off) {
        cost.check_fits(algorithm.as_ref(), None);
    }
    if mode.is_some_and(|mode| mode != Mode::Off) {
        if let (Some(algorithm), Some(place)) = (&algorithm, &place) {
            doubts::check_table(keys_node.as_ref().unwrap_or(place), algorithm, max_keys.unwrap_or(0));
            if let (Some(max_wait), Some(cost)) = (max_wait, cost.fixed()) {
                doubts::check_turns(wait_node.as_ref().unwrap_or(place), algorithm, max_wait, cost);
            }
        }
        // In shadow mode nobody waits and no timeout of a limit holds.
        if let (Some(Mode::Enforce), Some(node), Some(max_wait), Some(Some(timeout))) =
            (mode, &timeout_node, max_wait, timeout)
        {
            doubts::check_wait(node, max_wait, timeout);
        }
    }
    let exempt = exempt::lower(&mut reader, key.as_ref());
    let refusal = refusal::lower(&mut reader, context.files);
    if let (Some(node), Some(Some(refusal))) = (&status_node, &refusal)
        && refusal.status.is_some()
    {
        node.on_key().error("`status` beside the `status` of `refusal`", "remove one of the two");
    }
    let active = schedule::lower(&mut reader);
    reader.misplaced("bandwidth", "bytes have a section of their own: [[bandwidth]], which a [[route]] names");
    reader.done(&[]);
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
                penalty: penalty?,
                sharing: None,
            },
            key: key?,
            key_is_secret: key_is_secret?,
            on_missing_key: on_missing_key?,
            timeout: timeout?,
            status: u16::try_from(status?).ok()?,
            count_when: count_when?,
            cost: cost.cost()?,
            cost_from_response: cost_from_response?,
            exempt: exempt?,
            retry_after_jitter: retry_after_jitter?,
            refusal: refusal?,
            active: active?,
        })
    })();
    (name, limit)
}

/// What of a limit a plan may have otherwise.
#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
pub(super) struct Numbers<'t> {
    pub(super) algorithm: Option<Algorithm>,
    /// Where most that can be said of the algorithm is said.
    pub(super) place: Option<Node<'t>>,
    pub(super) mode: Option<Mode>,
    pub(super) wait_node: Option<Node<'t>>,
    pub(super) max_wait: Option<Span>,
    pub(super) max_queue: Option<Option<u64>>,
}

/// Reads them.
pub(super) fn numbers<'t>(reader: &mut Reader<'t>) -> Numbers<'t> {
    let Lowered { algorithm, place } = algorithm::lower(reader);
    let mode = word(reader, "mode");
    let wait_node = reader.optional("max_wait");
    let (max_wait, max_queue) = waiting(reader, wait_node.as_ref(), algorithm.as_ref(), place.as_ref());
    if let (Some(algorithm), Some(place), Some(Mode::Enforce | Mode::Shadow)) = (&algorithm, &place, mode) {
        doubts::check_rates(place, algorithm);
    }
    Numbers { algorithm, place, mode, wait_node, max_wait, max_queue }
}

/// `penalty = { after = 20, within = "1m", block = "10m" }`.
fn penalty(node: &Node<'_>) -> Option<Penalty> {
    const EXAMPLE: &str = "{ after = 20, within = \"1m\", block = \"10m\" }";
    let mut reader = node.table("`penalty`", EXAMPLE)?;
    let after = reader.required("after", "20").map(|node| node.integer(REFUSALS));
    let within = reader.required("within", "\"1m\"").map(|node| node.duration(&PENALTY_TIMES));
    let block = reader.required("block", "\"10m\"").map(|node| node.duration(&PENALTY_TIMES));
    reader.done(&[]);
    match Penalty::new(after??, within??, block??) {
        Ok(penalty) => Some(penalty),
        Err(error) => {
            node.error(error.to_string(), format!("write penalty = {EXAMPLE}"));
            None
        }
    }
}

/// Reports a cost that the limit never admits. `limit` is its name where the cost is the route's.
pub(super) fn check_fits(node: &Node<'_>, cost: u64, algorithm: Option<&Algorithm>, limit: Option<&str>) {
    let Some(Largest { cost: most, what, raise }) = algorithm.map(largest) else { return };
    if cost > most {
        let of = limit.map(|name| format!(" of the limit {}", quoted(name))).unwrap_or_default();
        let message = format!("a cost of {cost} never fits into {what}{of}: every request would be refused");
        node.error(message, format!("lower the cost to at most {most}, or raise {raise}"));
    }
}

/// The largest cost that a limit admits.
pub(super) struct Largest {
    pub(super) cost: u64,
    /// What it has to fit into.
    pub(super) what: String,
    /// What would let more in.
    pub(super) raise: &'static str,
}

/// All rates must hold, so the smallest decides.
pub(super) fn largest(algorithm: &Algorithm) -> Largest {
    let cost = algorithm.largest_cost();
    let tightest = || {
        let rates = algorithm.rates().iter().enumerate();
        rates.min_by_key(|(_, rate)| rate.limit()).map(|(index, _)| algorithm.rate_text(index))
    };
    let (what, raise) = match algorithm {
        Algorithm::TokenBucket(_) | Algorithm::Gcra(_) => (format!("a burst of {cost}"), "the burst"),
        Algorithm::Concurrency(_) => (format!("a max_in_flight of {cost}"), "max_in_flight"),
        Algorithm::SlidingWindow(_) => (format!("a slot_limit of {cost}"), "slot_limit"),
        Algorithm::LeakyBucket(_) | Algorithm::SmoothBursty(_) | Algorithm::WarmUp(_) => {
            ("a hundred years".to_owned(), "the rate")
        }
        _ => (format!("the rate {}", tightest().unwrap_or_default()), "the rate"),
    };
    Largest { cost, what, raise }
}

/// A word with a default, which is the first one.
pub(super) fn word<W: Word>(reader: &mut Reader<'_>, key: &'static str) -> Option<W> {
    match reader.optional(key) {
        Some(node) => node.word().ok(),
        None => W::ALL.first().copied(),
    }
}

/// The rates of `rate`, one or an array.
pub(super) fn rates(node: Node<'_>) -> Option<Vec<Rate>> {
    listed_rates(node, "\"100/s\" or [\"100/s\", \"20/100ms\"]", |node, text| match text.parse::<Rate>() {
        Ok(rate) => Some(rate),
        Err(error) => {
            let help = if CalendarRate::is_per_month(text) {
                "months are windows of a calendar: algorithm = \"fixed-window\" with align = \"calendar\"".to_owned()
            } else {
                with_causes(&error)
            };
            node.error(format!("{} is no rate", quoted(text)), help);
            None
        }
    })
}

/// The rates of `rate`, one or an array, each as `read` has it.
pub(super) fn listed_rates<T>(
    node: Node<'_>,
    example: &str,
    read: impl Fn(&Node<'_>, &str) -> Option<T>,
) -> Option<Vec<T>> {
    let place = node.place();
    let nodes = node.one_or_many();
    if nodes.is_empty() || nodes.len() > MAX_RATES {
        place.error(format!("`rate` has {} rates", nodes.len()), format!("give 1 to {MAX_RATES}; all of them hold"));
        return None;
    }
    super::each(&nodes, |node| {
        let text = node.text("a rate in quotes", example)?;
        read(node, text)
    })
}

/// `max_wait` and `max_queue`.
#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
fn waiting(
    reader: &mut Reader<'_>,
    wait_node: Option<&Node<'_>>,
    algorithm: Option<&Algorithm>,
    place: Option<&Node<'_>>,
) -> (Option<Span>, Option<Option<u64>>) {
    let default = algorithm.map_or(Span::ZERO, Algorithm::default_max_wait);
    let max_wait = wait_node.map_or(Some(default), |node| node.duration(&WAITS));
    if let (Some(Algorithm::WarmUp(warm_up)), Some(max_wait), Some(place)) = (algorithm, max_wait, place)
        && warm_up.coldest() > max_wait
    {
        // Of a cold key only the first request would ever get in.
        let (coldest, node) = (warm_up.coldest(), wait_node.unwrap_or(place));
        let message = format!("cold requests are up to {coldest} apart, and wait at most {max_wait}");
        node.error(message, format!("set max_wait = \"{coldest}\" or more, a smaller cold_factor, or a faster rate"));
    }
    if let (Some(Algorithm::LeakyBucket(_)), Some(node), Some(Span::ZERO)) = (algorithm, wait_node, max_wait) {
        node.warning("a leaky bucket makes requests wait: with max_wait = 0s it refuses them", "remove max_wait");
    }
    // A leaky bucket has its own word for it, and another one has been reported.
    if matches!(algorithm, Some(Algorithm::LeakyBucket(_))) {
        return (max_wait, Some(None));
    }
    let queue_node = reader.optional("max_queue");
    if let (Some(node), Some(Span::ZERO)) = (&queue_node, max_wait) {
        let message = "`max_queue` has no effect: nobody waits while `max_wait` is 0s";
        node.push(Finding::warning(node.key_span(), message).help("add max_wait = \"1s\", or remove max_queue"));
    }
    (max_wait, queue_node.map_or(Some(None), |node| node.integer(QUEUES).map(Some)))
}
