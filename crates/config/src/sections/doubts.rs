//! Settings of a limit that are valid one by one, and hardly meant together: warnings.

use std::ops::RangeInclusive;

use crate::reader::Node;
use sluicegate_limiter::{Algorithm, Bound, OnFailure, Rate, StoreSharing, TimerWheel};
use sluicegate_time::Span;

/// A request that waits longer than this has no client any more.
pub(super) const WAITS: RangeInclusive<Span> = Span::ZERO..=Span::from_secs(3_600);

/// Bytes that a full table of one limit may take without a word.
const QUIET_TABLE_BYTES: u64 = 1 << 30;

/// Warns of a table that could take more than 1 GiB.
pub(super) fn check_table(place: &Node<'_>, algorithm: &Algorithm, max_keys: u64) {
    let key_bytes = algorithm.bytes_per_key();
    // Tables are at most three quarters full.
    let bytes = max_keys.saturating_mul(key_bytes).saturating_mul(4) / 3;
    if bytes > QUIET_TABLE_BYTES {
        let fits = QUIET_TABLE_BYTES * 3 / 4 / key_bytes.max(1);
        let tenths = bytes.saturating_mul(10) >> 30;
        let (whole, tenth) = (tenths / 10, tenths % 10);
        let message = format!("{max_keys} keys of {key_bytes} bytes each may take {whole}.{tenth} GiB of memory");
        let or = match algorithm {
            Algorithm::TimerWheel(_) | Algorithm::SlidingWindow(_) => ", or have fewer slots",
            Algorithm::SlidingLog(_) => ", or use sliding-counter",
            _ => "",
        };
        place.warning(message, format!("if that is too much, set max_keys = {fits}{or}"));
    }
}

/// Warns of a wait that the timeout of the same limit always cuts short.
pub(super) fn check_wait(timeout_node: &Node<'_>, max_wait: Span, timeout: Span) {
    if max_wait > timeout {
        let message = format!("`timeout` = {timeout} ends a request before its `max_wait` = {max_wait} does");
        timeout_node.warning(message, format!("set max_wait below {timeout}, or a longer timeout"));
    }
}

/// Warns of a head that is waited for longer than the whole exchange may take.
pub(crate) fn check_response(node: &Node<'_>, response_timeout: Option<Span>, timeout: Option<Span>) {
    let Some(timeout) = timeout.filter(|timeout| response_timeout.is_none_or(|head| head > *timeout)) else { return };
    let shown = response_timeout.map_or_else(|| "none".to_owned(), |head| head.to_string());
    let message = format!("`timeout` = {timeout} ends a request before its `response_timeout` = {shown} does");
    node.warning(message, format!("set response_timeout below {timeout}, or a longer timeout"));
}

/// From such a window on a quota is surely not meant to be granted twice.
const LONG: Span = Span::from_secs(24 * 3_600);

/// Warns of a shared limit with a quota that an outage grants again, and of one whose window ends while a grant is held.
pub(crate) fn check_sharing(node: &Node<'_>, algorithm: &Algorithm, sharing: &StoreSharing) {
    let rates = || algorithm.rates().iter().enumerate();
    let long = rates().find(|(_, rate)| rate.window() >= LONG && sharing.on_failure != OnFailure::Closed);
    if let Some((index, _)) = long {
        let (rate, on_failure) = (algorithm.rate_text(index), sharing.on_failure.word());
        let message = format!(
            "on_failure = \"{on_failure}\" may admit {rate} again: a gateway without the store counts a key that it has not seen from nothing"
        );
        node.warning(message, "where that quota must hold, set on_failure = \"closed\" in [fleet]");
    }
    let held = sharing.hold;
    let short = rates().find(|(_, rate)| !sharing.is_strict() && rate.window().as_nanos() / 2 <= held.as_nanos());
    if let Some((_, rate)) = short {
        let message =
            format!("a grant is held for up to {held}, so all gateways together may admit a multiple of {rate}");
        node.warning(message, "use shared = \"strict\", or a longer window of the same rate; `check` shows the bound");
    }
}

/// Warns of a limit that gateways share without a store, with a quota that each of them would grant in a cut.
pub(crate) fn check_told(node: &Node<'_>, algorithm: &Algorithm) {
    if let Some(index) = algorithm.rates().iter().position(|rate| rate.window() >= LONG) {
        let rate = algorithm.rate_text(index);
        let message =
            format!("a gateway that is cut off from the others, or that is killed and started, may admit {rate} again");
        node.warning(message, "where that quota must hold, share it through a `store` in [fleet]");
    }
}

/// Warns of a wait in which no turn comes: of requests that come at once all but the first are refused, where they were
/// surely meant to go one after the other.
pub(crate) fn check_turns(wait_node: &Node<'_>, algorithm: &Algorithm, max_wait: Span, cost: u64) {
    let (turn, apart, is) = match algorithm {
        Algorithm::LeakyBucket(bucket) => (longest_turn(bucket.rates(), cost), "requests leave", "is"),
        // That of a cost of 1 is an error already.
        Algorithm::WarmUp(warm_up) if warm_up.coldest() <= max_wait => {
            let nanos = warm_up.coldest().as_nanos().saturating_mul(cost);
            (Span::from_nanos(nanos), "cold requests are up to", "may be")
        }
        _ => return,
    };
    if max_wait.is_zero() || turn <= max_wait {
        return;
    }
    let (at_cost, cheaper) = match cost {
        1 => (String::new(), ""),
        cost => (format!(" at a cost of {cost}"), "a smaller cost, "),
    };
    let longer = if turn <= *WAITS.end() { format!("max_wait = \"{turn}\" or more, ") } else { String::new() };
    let help = match (longer.as_str(), cheaper) {
        ("", "") => "use a faster rate".to_owned(),
        ("", _) => "use a smaller cost, or a faster rate".to_owned(),
        _ => format!("set {longer}{cheaper}or a faster rate"),
    };
    let message =
        format!("{apart} {turn} apart{at_cost}, and wait at most {max_wait}: of two at once one {is} refused");
    wait_node.warning(message, help);
}

/// How far apart requests of a cost leave by the slowest of the rates.
fn longest_turn(rates: &[Rate], cost: u64) -> Span {
    let turn = |rate: &Rate| {
        let nanos = u128::from(rate.window().as_nanos()) * u128::from(cost);
        Span::from_nanos(u64::try_from(nanos.div_ceil(u128::from(rate.limit()))).unwrap_or(u64::MAX))
    };
    rates.iter().map(turn).max().unwrap_or_default()
}

/// Warns of a sliding counter of one: of that the window before weighs nothing, once it is rounded down.
fn check_counter(rate_node: &Node<'_>, algorithm: &Algorithm) {
    let Algorithm::SlidingCounter(counter) = algorithm else { return };
    if let Some(index) = counter.rates().iter().position(|rate| rate.limit() == 1) {
        let rate = algorithm.rate_text(index);
        let message = format!("a sliding-counter of {rate} admits two at once across the edge of its windows");
        rate_node
            .warning(message, "use algorithm = \"gcra\" or \"timer-wheel\", or a larger rate over a longer window");
    }
}

/// Warns of each rate that can never refuse anything, because another one does so first, and of rates that are not kept.
pub(super) fn check_rates(rate_node: &Node<'_>, algorithm: &Algorithm) {
    check_counter(rate_node, algorithm);
    let covers = |a, b| match algorithm {
        Algorithm::TimerWheel(wheel) => covers(wheel, a, b),
        other => has_less(other.rates(), a, b),
    };
    for (index, rate) in algorithm.rates().iter().enumerate() {
        let stricter = algorithm.rates().iter().enumerate().find(|(other_index, other)| {
            let is_twin = *other == rate;
            // Of two that are the same the later one is too many.
            *other_index != index && (!is_twin || *other_index < index) && covers(*other_index, index)
        });
        if let Some((stricter, _)) = stricter {
            let (rate, stricter) = (algorithm.rate_text(index), algorithm.rate_text(stricter));
            let message = format!("the rate {rate} never refuses anything: {stricter} is stricter over every span");
            rate_node.warning(message, format!("remove \"{rate}\", or give it a smaller count"));
        }
    }
}

/// Whether rate `a` has no more than rate `b` for a window of the same length.
fn has_less(rates: &[Rate], a: usize, b: usize) -> bool {
    let (Some(a), Some(b)) = (rates.get(a), rates.get(b)) else { return false };
    a.window() == b.window() && a.limit() <= b.limit()
}

/// Whether rate `a` surely admits no more than rate `b` does over all that `b` counts. When in doubt, no.
fn covers(wheel: &TimerWheel, a: usize, b: usize) -> bool {
    let shape = |index| {
        let rate: &Rate = wheel.rates().get(index)?;
        let window = rate.window().as_nanos();
        Some((rate.limit(), window, window / u64::from(wheel.slots_of(index)?.max(1))))
    };
    let (Some((limit, window, slot)), Some((other_limit, other_window, other_slot))) = (shape(a), shape(b)) else {
        return false;
    };
    if window == other_window {
        return limit <= other_limit;
    }
    let spans = if wheel.bound() == Bound::Slot {
        // Windows are aligned: those of one rate lie within, or are filled by, those of the other.
        if window.is_multiple_of(other_window) {
            1
        } else if other_window.is_multiple_of(window) {
            other_window / window
        } else {
            return false;
        }
    } else {
        // Of its window a rate is sure of all but one slot; the other counts at most a slot more than its window.
        other_window.saturating_add(other_slot).div_ceil((window - slot).max(1))
    };
    limit.saturating_mul(spans) <= other_limit
}
