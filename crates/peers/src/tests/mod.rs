//! Tests of the protocol.

mod basics;
mod search;
mod simulation;
mod wire;
mod world;

use sluicegate_time::{Span, Tick};

use crate::rate::DebtBucket;
use crate::*;

const KEY: CountKey = CountKey { limit: 7, fingerprint: 99 };
const MTU: usize = 1_200;

fn at(millis: u64) -> Tick {
    Tick::ZERO + Span::from_millis(millis)
}

fn settings() -> LedgerSettings {
    LedgerSettings {
        max_keys: 1_000,
        max_leftovers: 100,
        max_peers: 50,
        resend_after: Span::from_millis(60),
        grace: Span::from_millis(200),
    }
}

/// Four tokens a second, four at once.
fn four() -> RefillRate {
    RefillRate::new(4, Span::from_secs(1), 4).unwrap()
}

impl SpendLedger {
    /// Spends a cost if its bucket has it, or answers when it will have it: what the limiter and the ledger do together.
    fn admit(&mut self, key: CountKey, cost: u64, now: Tick) -> Result<(), Tick> {
        let rate = self.limits.get(&key.limit).copied().ok_or(Tick::MAX)?;
        let mut bucket = self.rows.get(&key).map_or(DebtBucket::new(0, now), |row| row.bucket);
        if !self.rows.contains_key(&key) {
            bucket = DebtBucket::new(self.own.get(&key).map_or(0, |own| own.missing(&rate, now)), now);
        }
        bucket.take(&rate, cost, now)?;
        self.spend(key, cost, (now, now));
        Ok(())
    }

    /// The next of the datagrams for a peer.
    fn next_outgoing(&mut self, peer: PeerId, now: Tick, max_bytes: usize) -> Option<Datagram> {
        self.outgoing(peer, now, max_bytes, (1, 1_000)).pop()
    }
}

/// Ledgers of as many gateways, each a peer of all others.
fn fleet(settings: LedgerSettings, rate: RefillRate, gateways: u32) -> Vec<SpendLedger> {
    let mut ledgers: Vec<_> =
        (0..gateways).map(|id| SpendLedger::new(settings, [(KEY.limit, rate)], u64::from(id) + 1_000)).collect();
    for_each_pair(&mut ledgers, |ledger, other| {
        assert!(ledger.peer_joined(PeerId(other), u64::from(other) + 1_000, Tick::ZERO));
    });
    ledgers
}

/// Does something at each gateway with each other one.
fn for_each_pair<R>(ledgers: &mut [SpendLedger], mut act: impl FnMut(&mut SpendLedger, u32) -> R) {
    let gateways = u32::try_from(ledgers.len()).unwrap();
    for (id, ledger) in (0..).zip(ledgers) {
        (0..gateways).filter(|other| *other != id).for_each(|other| drop(act(ledger, other)));
    }
}

/// Everybody tells everybody everything, until there is nothing to tell, and at once.
fn tell_all(ledgers: &mut [SpendLedger], now: Tick) {
    let mut has_told = true;
    while has_told {
        has_told = false;
        for from in 0..ledgers.len() {
            for to in (0..ledgers.len()).filter(|to| *to != from) {
                while let Some(datagram) = ledgers[from].next_outgoing(PeerId(to as u32), now, MTU) {
                    let datagram = Datagram::decode(&datagram.encode()).unwrap();
                    assert_eq!(ledgers[to].receive(PeerId(from as u32), &datagram, now, drop), Received::Applied);
                    has_told = true;
                }
            }
        }
    }
}

/// The tokens that are left, below zero too; rounded down.
fn left(ledger: &SpendLedger, rate: RefillRate, now: Tick) -> i64 {
    let missing = ledger.missing(KEY, now).div_ceil(rate.units(1));
    i64::try_from(rate.burst()).unwrap() - i64::try_from(missing).unwrap()
}

fn spend(ledger: &mut SpendLedger, tokens: u64, now: Tick) {
    (0..tokens).for_each(|_| ledger.admit(KEY, 1, now).unwrap());
}

/// The units with which a row would begin that is made now: those that the gateway has spent itself and not told. None if there
/// is a row.
fn leftover(ledger: &SpendLedger, rate: &RefillRate, now: Tick) -> u128 {
    let own = ledger.own.get(&KEY).filter(|_| !ledger.rows.contains_key(&KEY));
    own.map_or(0, |own| own.missing(rate, now))
}
