//! The effect of exceptions of single keys on a request: it is refused, or has a policy of its own. All of it is cold.

use std::sync::Arc;

use super::exceptions::{KeyAction, KeyException, PendingKeyAction};
use super::identity::KeyFacts;
use super::terms::Terms;
use super::view::RequestView;
use sluicegate_limiter::{Ask, Fingerprint, Limit, Policy, Refusal, RefusalReason};
use sluicegate_time::{Span, Tick};

/// The limit at this place of the route refuses the key, whatever else holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockedByHand {
    pub(super) limit: usize,
    pub(super) until: Option<Tick>,
    /// As the limit counts it.
    pub(super) key: Fingerprint,
}

impl BlockedByHand {
    /// The refusal. It has no numbers, since it is not about any.
    pub(super) fn refusal(self) -> Refusal {
        let Self { limit, until, key: _ } = self;
        let why = RefusalReason::Blocked;
        // No penalty has made it.
        let blocked_until = None;
        Refusal { limit, why, retry_at: until, quota: 0, window: Span::ZERO, remaining: 0, blocked_until }
    }
}

/// Whether some limit has exceptions, of whatever key.
#[inline]
pub(super) fn are_any(terms: &Terms<'_>) -> bool {
    terms.limits.iter().any(|rule| rule.exceptions.are_any())
}

/// The exceptions of the request's key in the limit at this place of its route. A request that lacks the key has none:
/// its stand-in is no value of the key.
pub(super) fn of_request<V: RequestView + ?Sized>(
    terms: &Terms<'_>,
    place: usize,
    sources: &KeyFacts<'_, V>,
    now: Tick,
) -> Option<KeyException> {
    let rule = terms.limits.get(place).filter(|rule| rule.exceptions.are_any())?;
    rule.exceptions.find(|hasher| rule.key.fingerprint(sources, hasher).ok(), now)
}

/// The block by hand that ends last, of those that the request meets.
#[cold]
#[inline(never)]
pub(super) fn blocked<V: RequestView + ?Sized>(
    terms: &Terms<'_>,
    sources: &KeyFacts<'_, V>,
    now: Tick,
) -> Option<BlockedByHand> {
    let blocks = terms.limits.iter().enumerate().filter_map(|(limit, rule)| {
        let until = of_request(terms, limit, sources, now)?.block?.until;
        let until = until.zip(terms.limits.get(limit)).map(|(until, rule)| rule.exceptions.tick(until));
        let key = rule.key.fingerprint(sources, &rule.hasher).ok()?;
        Some(BlockedByHand { limit, until, key })
    });
    // Of several the first; one without an end is the last of all.
    blocks.reduce(|one, other| if ends(other.until) > ends(one.until) { other } else { one })
}

fn ends(until: Option<Tick>) -> Tick {
    until.unwrap_or(Tick::MAX)
}

/// The policy of a request whose key has numbers of its own in some limit that it asks; `None`: it has none.
#[cold]
#[inline(never)]
pub(super) fn own_policy<V: RequestView + ?Sized>(
    terms: &Terms<'_>,
    sources: &KeyFacts<'_, V>,
    asks: &mut [Ask],
    now: Tick,
) -> Option<Arc<Policy>> {
    let mut own: Option<Vec<Arc<Limit>>> = None;
    let asked = asks.iter_mut().enumerate().filter(|(_, ask)| ask.key.is_some());
    for (place, ask) in asked.take_while(|(place, _)| *place < terms.limits.len()) {
        let numbers = of_request(terms, place, sources, now).and_then(|exception| exception.numbers?.limit);
        let Some(numbers) = numbers else { continue };
        let limits = own.get_or_insert_with(|| terms.policy.limits().to_vec());
        if let Some(limit) = limits.get_mut(place) {
            *limit = numbers;
        }
        // The numbers of the operator hold, whatever a proxy says.
        ask.at_most = None;
    }
    // A limit of one key is in no policy but for this place, so there is none twice.
    Policy::new(own?).ok()
}

/// Does what another gateway has had done with this key, and what this one could not do before it came: it knows the key by the
/// fleet's secret, and counts it by its own.
#[cold]
#[inline(never)]
pub(super) fn act<V: RequestView + ?Sized>(terms: &Terms<'_>, sources: &KeyFacts<'_, V>, asks: &[Ask], now: Tick) {
    for (place, limit) in terms.policy.limits().iter().enumerate() {
        let Some(key) = asks.get(place).and_then(|ask| ask.key) else { continue };
        let Some(exception) = of_request(terms, place, sources, now) else { continue };
        let Some(once) = exception.once.filter(|once| once.begins()) else { continue };
        let own = exception.numbers.and_then(|numbers| numbers.limit);
        carry_out(once.act, own.iter().chain([limit]), key, now);
    }
}

/// The same for one key, unless it was done before.
pub(super) fn act_once<'l>(
    once: &PendingKeyAction,
    limits: impl Iterator<Item = &'l Arc<Limit>>,
    key: Fingerprint,
    now: Tick,
) {
    if once.begins() {
        carry_out(once.act, limits, key, now);
    }
}

fn carry_out<'l>(act: KeyAction, limits: impl Iterator<Item = &'l Arc<Limit>>, key: Fingerprint, now: Tick) {
    for limit in limits {
        match act {
            KeyAction::Reset => limit.forget_key(key, now),
            KeyAction::EndBlock => limit.end_block(key, now),
        };
    }
}
