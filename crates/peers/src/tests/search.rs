//! A search over all states of a few gateways: every interleaving of requests, datagrams that are late, repeated, lost or
//! overtaken, steps of time, crashes and evictions. The actions are the ledger's own functions.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet};
use std::hash::{Hash, Hasher};

use super::*;

/// The size of a search.
#[derive(Clone, Copy)]
struct Bounds {
    gateways: u32,
    rate: RefillRate,
    grace: u64,
    /// Steps of time, a millisecond each.
    millis: u64,
    /// Datagrams on their way at once.
    in_flight: usize,
    /// Datagrams, all together.
    tells: u64,
    /// Whether datagrams without counts are sent too.
    acknowledges: bool,
    /// Requests that are admitted, all together.
    spends: u64,
    crashes: u32,
    evictions: u32,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Admit(usize),
    Tell(usize, usize),
    /// It arrives, and may once more.
    Deliver(usize),
    /// It will not arrive, or not once more.
    Lose(usize),
    Wait,
    Crash(usize),
    Evict(usize),
}

/// A life of a key at a gateway: incarnation and epoch.
type Life = (u64, u64);

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    ledgers: Vec<SpendLedger>,
    network: Vec<(usize, usize, Datagram)>,
    millis: u64,
    tells: u64,
    crashes: u32,
    evictions: u32,
    /// The level of a bucket that all spends are taken out of.
    level: u128,
    /// Of each gateway a bucket with its own spends since a crash or an eviction.
    own: Vec<u128>,
    /// The tokens of these.
    own_spent: Vec<u64>,
    /// The tokens that were spent in each life of the key.
    spent: BTreeMap<Life, u64>,
    /// Of each gateway, since a crash or an eviction: the count it knows of each life, and the units it charged for it.
    known: Vec<BTreeMap<Life, (u64, u128)>>,
}

impl State {
    fn new(bounds: &Bounds) -> Self {
        let settings =
            LedgerSettings { resend_after: Span::from_millis(1), grace: Span::from_millis(bounds.grace), ..settings() };
        let gateways = bounds.gateways as usize;
        Self {
            ledgers: fleet(settings, bounds.rate, bounds.gateways),
            network: Vec::new(),
            millis: 0,
            tells: 0,
            crashes: 0,
            evictions: 0,
            level: 0,
            own: vec![0; gateways],
            own_spent: vec![0; gateways],
            spent: BTreeMap::new(),
            known: vec![BTreeMap::new(); gateways],
        }
    }

    fn actions(&self, bounds: &Bounds) -> Vec<Action> {
        let mut actions = Vec::new();
        let gateways = 0..self.ledgers.len();
        if self.spent.values().sum::<u64>() < bounds.spends {
            actions.extend(gateways.clone().map(Action::Admit));
        }
        if self.network.len() < bounds.in_flight && self.tells < bounds.tells {
            let pairs = gateways.clone().flat_map(|from| gateways.clone().map(move |to| (from, to)));
            actions.extend(pairs.filter(|(from, to)| from != to).map(|(from, to)| Action::Tell(from, to)));
        }
        for index in 0..self.network.len() {
            actions.extend([Action::Deliver(index), Action::Lose(index)]);
        }
        if self.millis < bounds.millis {
            actions.push(Action::Wait);
        }
        if self.crashes < bounds.crashes {
            actions.extend(gateways.clone().map(Action::Crash));
        }
        if self.evictions < bounds.evictions {
            actions.extend(gateways.map(Action::Evict));
        }
        actions
    }

    /// `None` if nothing happens; an error if something happens that must not.
    fn after(&self, action: Action, bounds: &Bounds) -> Option<Result<Self, String>> {
        let mut next = self.clone();
        let checked = match action {
            Action::Admit(gateway) => next.admit(gateway, bounds)?,
            Action::Tell(from, to) => {
                let told = next.ledgers[from].next_outgoing(PeerId(to as u32), at(next.millis), MTU)?;
                if told.entries.is_empty() && !bounds.acknowledges {
                    return None;
                }
                next.tells += 1;
                next.network.push((from, to, told));
                next.network.sort_unstable();
                Ok(())
            }
            Action::Deliver(index) => {
                let (from, to, datagram) = next.network[index].clone();
                next.deliver(from, to, &datagram, bounds)
            }
            Action::Lose(index) => {
                next.network.remove(index);
                Ok(())
            }
            Action::Wait => {
                next.millis += 1;
                let leak = bounds.rate.refilled(Span::from_millis(1));
                next.level = next.level.saturating_sub(leak);
                next.own.iter_mut().for_each(|own| *own = own.saturating_sub(leak));
                Ok(())
            }
            Action::Crash(gateway) => {
                next.crash(gateway, bounds);
                Ok(())
            }
            Action::Evict(gateway) => {
                next.ledgers[gateway].rows.get(&KEY)?;
                next.evictions += 1;
                next.ledgers[gateway].evict(KEY);
                next.lose(gateway);
                Ok(())
            }
        };
        Some(checked.and_then(|()| next.check_own()).map(|()| next))
    }

    fn admit(&mut self, gateway: usize, bounds: &Bounds) -> Option<Result<(), String>> {
        let ledger = &mut self.ledgers[gateway];
        ledger.admit(KEY, 1, at(self.millis)).ok()?;
        let (rate, life) = (bounds.rate, (ledger.incarnation(), ledger.own[&KEY].epoch));
        *self.spent.entry(life).or_default() += 1;
        self.level += rate.units(1);
        self.own[gateway] += rate.units(1);
        self.own_spent[gateway] += 1;
        Some(self.check_bounds(gateway, bounds))
    }

    fn check_bounds(&self, gateway: usize, bounds: &Bounds) -> Result<(), String> {
        let rate = bounds.rate;
        let burst = rate.units(rate.burst());
        let losses = u128::from(self.crashes + self.evictions);
        let lag = rate.refilled(Span::from_millis(self.millis));
        let hard = burst + (u128::from(bounds.gateways) - 1 + losses) * (burst + lag);
        if self.level > hard {
            return Err(format!("{} above the hard bound {hard}", self.level));
        }
        // Exact: it admits no more than the burst and the spends that it cannot know.
        let spent: u64 = self.spent.values().sum();
        let ledger = &self.ledgers[gateway];
        let own = self.own_spent[gateway];
        let known: u64 = self.known[gateway].values().map(|(count, _)| count).sum();
        let exact = burst + rate.units(spent - own - known);
        if bounds.grace > bounds.millis && self.level > exact {
            return Err(format!("{} above {exact} at {}", self.level, ledger.incarnation()));
        }
        Ok(())
    }

    fn deliver(&mut self, from: usize, to: usize, datagram: &Datagram, bounds: &Bounds) -> Result<(), String> {
        let (rate, now) = (bounds.rate, at(self.millis));
        let ledger = &mut self.ledgers[to];
        // A row that is made anew begins with the leftovers of its own.
        let leftover = leftover(ledger, &rate, now);
        let before = ledger.missing(KEY, now);
        let received = ledger.receive(PeerId(from as u32), datagram, now, drop);
        let charged = ledger.missing(KEY, now) - before;
        let Some(entry) = datagram.entries.first().filter(|_| received == Received::Applied) else {
            return if charged == 0 { Ok(()) } else { Err(format!("{received:?} charged {charged}")) };
        };
        let life = (datagram.incarnation, entry.epoch);
        let (count, sum) = self.known[to].entry(life).or_default();
        *count = entry.count.max(*count);
        *sum += charged.saturating_sub(leftover);
        let spent = rate.units(self.spent.get(&life).copied().unwrap_or_default());
        if *sum > spent {
            return Err(format!("{sum} charged of {spent}"));
        }
        Ok(())
    }

    fn crash(&mut self, gateway: usize, bounds: &Bounds) {
        self.crashes += 1;
        self.lose(gateway);
        let settings = self.ledgers[gateway].settings;
        let incarnation = 2_000 + u64::from(self.crashes) * 10 + gateway as u64;
        self.ledgers[gateway] = SpendLedger::new(settings, [(KEY.limit, bounds.rate)], incarnation);
        for other in (0..self.ledgers.len()).filter(|other| *other != gateway) {
            let theirs = self.ledgers[other].incarnation();
            self.ledgers[gateway].peer_joined(PeerId(other as u32), theirs, Tick::ZERO);
            self.ledgers[other].peer_joined(PeerId(gateway as u32), incarnation, Tick::ZERO);
        }
    }

    fn lose(&mut self, gateway: usize) {
        self.own[gateway] = 0;
        self.own_spent[gateway] = 0;
        self.known[gateway].clear();
    }

    /// No budget from nothing: of a bucket at least its own spends are missing.
    fn check_own(&self) -> Result<(), String> {
        for (ledger, own) in self.ledgers.iter().zip(&self.own) {
            let missing = ledger.missing(KEY, at(self.millis));
            if missing < *own {
                return Err(format!("{missing} missing of {own}"));
            }
        }
        Ok(())
    }

    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

/// Depth first, which needs little memory. A fault is shown with a way to it. Answers the number of states.
fn search(name: &str, bounds: Bounds) -> usize {
    let first = State::new(&bounds);
    let mut visited = HashSet::from([first.fingerprint()]);
    let mut queue = vec![(first, Vec::new())];
    let mut admitted = 0;
    while let Some((state, way)) = queue.pop() {
        for action in state.actions(&bounds) {
            let Some(result) = state.after(action, &bounds) else { continue };
            let way: Vec<_> = way.iter().copied().chain([action]).collect();
            let next = result.unwrap_or_else(|fault| panic!("{name}: {fault} after {way:?}"));
            admitted = admitted.max(next.spent.values().sum());
            if visited.insert(next.fingerprint()) {
                assert!(visited.len() < 3_000_000, "{name}: too many states");
                queue.push((next, way));
            }
        }
    }
    println!("{name}: {} states, at most {admitted} admitted", visited.len());
    visited.len()
}

fn small(limit: u64, window: u64, burst: u64) -> RefillRate {
    RefillRate::new(limit, Span::from_millis(window), burst).unwrap()
}

/// More steps of time where there is time.
fn long() -> u64 {
    u64::from(std::env::var_os("SLUICEGATE_LONG").is_some())
}

fn two() -> Bounds {
    Bounds {
        gateways: 2,
        rate: small(1, 2, 1),
        grace: 10,
        millis: 1 + long(),
        in_flight: 2,
        tells: 3,
        acknowledges: false,
        spends: 4,
        crashes: 0,
        evictions: 0,
    }
}

#[test]
fn two_gateways_of_one_token_keep_the_bounds_in_every_state() {
    assert!(search("2 gateways, L 1", Bounds { millis: 2 + long(), ..two() }) > 10_000);
    assert!(search("2 gateways, L 1, acks", Bounds { acknowledges: true, tells: 4, ..two() }) > 10_000);
    assert!(search("2 gateways, L 1, a crash", Bounds { crashes: 1, ..two() }) > 10_000);
    assert!(search("2 gateways, L 1, an eviction", Bounds { evictions: 1, ..two() }) > 5_000);
}

#[test]
fn two_gateways_of_two_tokens_keep_the_bounds_in_every_state() {
    let two = || Bounds { rate: small(2, 4, 2), spends: 4 + long(), ..two() };
    assert!(search("2 gateways, L 2", two()) > 10_000);
    assert!(search("2 gateways, L 2, a crash", Bounds { crashes: 1, tells: 2 + long(), ..two() }) > 10_000);
    assert!(search("2 gateways, L 2, an eviction", Bounds { evictions: 1, tells: 2 + long(), ..two() }) > 10_000);
}

#[test]
fn a_grace_that_has_passed_makes_no_budget() {
    assert!(search("2 gateways, L 1, short grace", Bounds { grace: 1, millis: 2 + long(), ..two() }) > 10_000);
    assert!(search("2 gateways, L 1, short grace, a crash", Bounds { grace: 1, crashes: 1, ..two() }) > 10_000);
}

#[test]
fn three_gateways_of_one_token_keep_the_bounds_in_every_state() {
    let three = || Bounds { gateways: 3, millis: 1, ..two() };
    assert!(search("3 gateways, L 1", Bounds { tells: 2 + long(), ..three() }) > 10_000);
    assert!(search("3 gateways, L 1, an eviction", Bounds { evictions: 1, tells: 2, ..three() }) > 10_000);
}
