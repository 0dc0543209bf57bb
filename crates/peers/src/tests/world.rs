//! The simulator: gateways and the network between them, millisecond by millisecond, everything drawn from a seed.

use std::collections::BTreeMap;

use super::*;

/// The run of one seed.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) seed: u64,
    pub(super) gateways: u32,
    pub(super) rate: RefillRate,
    pub(super) grace: u64,
    pub(super) millis: u64,
    pub(super) interval: u64,
    /// The longest way of a datagram, in milliseconds. Each takes its own, so that they overtake each other.
    pub(super) delay: u64,
    /// Of a hundred datagrams so many are lost, and so many arrive twice.
    pub(super) lost: u64,
    pub(super) twice: u64,
    /// Of a thousand milliseconds of a gateway so many have a request.
    pub(super) demand: Vec<u64>,
    pub(super) largest_cost: u64,
    /// So many of each in a run.
    pub(super) cuts: u64,
    pub(super) crashes: u64,
    pub(super) evictions: u64,
}

/// A cost that was admitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spend {
    pub(super) at: u64,
    pub(super) gateway: usize,
    incarnation: u64,
    epoch: u64,
    /// The count with it.
    count: u64,
    pub(super) cost: u64,
}

pub(super) struct Gateway {
    pub(super) ledger: SpendLedger,
    /// Down until then.
    down_until: u64,
    side: bool,
    /// A bucket that only its own spend since the last crash or eviction is taken out of: the missing units, and when.
    own: (u128, u64),
    /// The units charged of each life and epoch of a peer.
    charged: BTreeMap<(usize, u64, u64), u128>,
    /// The count heard of each.
    heard: BTreeMap<(usize, u64, u64), u64>,
}

enum Event {
    Arrives { from: usize, to: usize, datagram: Datagram },
    Joined { at: usize, peer: usize, incarnation: u64 },
    Gone { at: usize, peer: usize },
    Cut,
    Heal,
    Crash { gateway: usize },
    Evict { gateway: usize },
}

pub(super) struct World {
    pub(super) setting: Setting,
    pub(super) gateways: Vec<Gateway>,
    pub(super) spends: Vec<Spend>,
    /// So many of them, from the first on, have been heard by everybody.
    heard: usize,
    /// The tokens of each life of the key: gateway, incarnation, epoch.
    spent: BTreeMap<(usize, u64, u64), u64>,
    events: BTreeMap<(u64, u64), Event>,
    random: u64,
    number: u64,
    pub(super) now: u64,
    is_cut: bool,
    /// The time in which there was a cut, all together; crashes and evictions so far.
    pub(super) cut_millis: u64,
    pub(super) losses: u64,
    /// The level of a bucket that all spends are taken out of: the largest of any stretch, less its refill.
    pub(super) level: u128,
    level_at: u64,
    /// The longest time after which a live gateway had heard of a spend, with no cut or crash.
    pub(super) longest_lag: u64,
    pub(super) is_quiet: bool,
}

impl World {
    pub(super) fn new(setting: Setting) -> Self {
        let ledgers = fleet(
            LedgerSettings { grace: Span::from_millis(setting.grace), ..settings() },
            setting.rate,
            setting.gateways,
        );
        let gateway = |ledger| Gateway {
            ledger,
            down_until: 0,
            side: false,
            own: (0, 0),
            charged: BTreeMap::new(),
            heard: BTreeMap::new(),
        };
        let mut world = Self {
            gateways: ledgers.into_iter().map(gateway).collect(),
            spends: Vec::new(),
            heard: 0,
            spent: BTreeMap::new(),
            events: BTreeMap::new(),
            random: setting.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            number: 0,
            now: 0,
            is_cut: false,
            cut_millis: 0,
            losses: 0,
            level: 0,
            level_at: 0,
            longest_lag: 0,
            is_quiet: false,
            setting,
        };
        world.plan();
        world
    }

    /// A number below a bound (`xorshift64*`).
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound.max(1)
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.number += 1;
        self.events.insert((at, self.number), event);
    }

    fn plan(&mut self) {
        let (millis, gateways) = (self.setting.millis, self.setting.gateways.into());
        for _ in 0..self.setting.cuts {
            let begin = self.below(millis);
            let end = begin + 1 + self.below(millis / 4);
            self.schedule(begin, Event::Cut);
            self.schedule(end.min(millis), Event::Heal);
        }
        for _ in 0..self.setting.crashes {
            let (at, gateway) = (self.below(millis), self.below(gateways) as usize);
            self.schedule(at, Event::Crash { gateway });
        }
        for _ in 0..self.setting.evictions {
            let (at, gateway) = (self.below(millis), self.below(gateways) as usize);
            self.schedule(at, Event::Evict { gateway });
        }
    }

    pub(super) fn run(&mut self, mut look: impl FnMut(&Self)) {
        for millis in 0..self.setting.millis {
            self.step(millis);
            look(self);
        }
    }

    /// No requests, no cut and no loss any more: everybody hears of everything.
    pub(super) fn settle(&mut self) {
        self.setting.demand.iter_mut().for_each(|demand| *demand = 0);
        (self.setting.lost, self.is_quiet) = (0, true);
        let end = self.setting.millis;
        self.schedule(end, Event::Heal);
        (end..end + 3_000).for_each(|millis| self.step(millis));
    }

    fn step(&mut self, millis: u64) {
        self.now = millis;
        self.cut_millis += u64::from(self.is_cut);
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= millis) {
            let event = entry.remove();
            self.happen(event);
        }
        for index in 0..self.gateways.len() {
            if self.gateways[index].down_until > millis {
                continue;
            }
            let demand = self.setting.demand[index];
            while self.below(1_000) < demand && self.ask(index) {}
            if (millis + index as u64 * 7).is_multiple_of(self.setting.interval) {
                self.tell(index);
            }
            self.assert_own(index);
        }
        self.measure_lag();
    }

    fn ask(&mut self, index: usize) -> bool {
        let (cost, now) = (1 + self.below(self.setting.largest_cost), at(self.now));
        let gateway = &mut self.gateways[index];
        if gateway.ledger.admit(KEY, cost, now).is_err() {
            return false;
        }
        let (rate, epoch) = (self.setting.rate, gateway.ledger.own[&KEY].epoch);
        let (count, incarnation) = (gateway.ledger.own[&KEY].count, gateway.ledger.incarnation());
        let leaked =
            |(missing, from): (u128, u64)| missing.saturating_sub(rate.refilled(Span::from_millis(self.now - from)));
        gateway.own = (leaked(gateway.own) + rate.units(cost), self.now);
        self.level = leaked((self.level, self.level_at)) + rate.units(cost);
        self.level_at = self.now;
        *self.spent.entry((index, incarnation, epoch)).or_default() += cost;
        self.spends.push(Spend { at: self.now, gateway: index, incarnation, epoch, count, cost });
        true
    }

    fn tell(&mut self, from: usize) {
        for to in (0..self.gateways.len()).filter(|to| *to != from) {
            let told = self.gateways[from].ledger.next_outgoing(PeerId(to as u32), at(self.now), MTU);
            let Some(datagram) = told else { continue };
            let copies = 1 + u64::from(self.below(100) < self.setting.twice);
            for _ in 0..copies {
                let arrives = self.now + self.below(self.setting.delay + 1);
                if self.below(100) >= self.setting.lost {
                    self.schedule(arrives, Event::Arrives { from, to, datagram: datagram.clone() });
                }
            }
        }
    }

    fn is_apart(&self, one: usize, other: usize) -> bool {
        self.is_cut && self.gateways[one].side != self.gateways[other].side
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrives { from, to, datagram } => {
                if !self.is_apart(from, to) && self.gateways[to].down_until <= self.now {
                    self.arrive(from, to, &datagram);
                }
            }
            Event::Joined { at, peer, incarnation } => {
                if self.gateways[peer].ledger.incarnation() == incarnation {
                    self.gateways[at].ledger.peer_joined(PeerId(peer as u32), incarnation, Tick::ZERO);
                }
            }
            Event::Gone { at, peer } => {
                if self.is_apart(at, peer) || self.gateways[peer].down_until > self.now {
                    self.gateways[at].ledger.peer_gone(PeerId(peer as u32));
                }
            }
            Event::Cut => self.cut(),
            Event::Heal => self.heal(),
            Event::Crash { gateway } => self.crash(gateway),
            Event::Evict { gateway } => {
                self.losses += 1;
                let gateway = &mut self.gateways[gateway];
                gateway.ledger.evict(KEY);
                gateway.own = (0, 0);
                gateway.charged.clear();
                gateway.heard.clear();
            }
        }
    }

    fn cut(&mut self) {
        self.is_cut = true;
        for index in 0..self.gateways.len() {
            self.gateways[index].side = self.below(2) == 0;
        }
        self.for_each_pair(|world, at, peer| {
            // Some see that the others are gone, after a while; some never do.
            if world.below(2) == 0 {
                let when = world.now + world.below(400);
                world.schedule(when, Event::Gone { at, peer });
            }
        });
    }

    fn heal(&mut self) {
        self.is_cut = false;
        self.for_each_pair(|world, at, peer| {
            let when = world.now + if world.is_quiet { 0 } else { world.below(100) };
            let incarnation = world.gateways[peer].ledger.incarnation();
            world.schedule(when, Event::Joined { at, peer, incarnation });
        });
    }

    fn for_each_pair(&mut self, mut act: impl FnMut(&mut Self, usize, usize)) {
        for one in 0..self.gateways.len() {
            (0..self.gateways.len()).filter(|other| *other != one).for_each(|other| act(self, one, other));
        }
    }

    fn crash(&mut self, index: usize) {
        self.losses += 1;
        let incarnation = 5_000 + self.below(1 << 40);
        let down_until = self.now + self.below(500);
        let limits = [(KEY.limit, self.setting.rate)];
        let ledger = SpendLedger::new(self.gateways[index].ledger.settings, limits, incarnation);
        let side = self.gateways[index].side;
        self.gateways[index] =
            Gateway { ledger, down_until, side, own: (0, 0), charged: BTreeMap::new(), heard: BTreeMap::new() };
        for other in (0..self.gateways.len()).filter(|other| *other != index) {
            let theirs = self.gateways[other].ledger.incarnation();
            self.gateways[index].ledger.peer_joined(PeerId(other as u32), theirs, Tick::ZERO);
            let when = self.now + self.below(300);
            self.schedule(when, Event::Gone { at: other, peer: index });
            let when = down_until + self.below(200);
            self.schedule(when, Event::Joined { at: other, peer: index, incarnation });
        }
    }

    fn arrive(&mut self, from: usize, to: usize, datagram: &Datagram) {
        let (rate, now, seed) = (self.setting.rate, at(self.now), self.setting.seed);
        let gateway = &mut self.gateways[to];
        let before = gateway.ledger.missing(KEY, now);
        let leftover = leftover(&gateway.ledger, &rate, now);
        let datagram = Datagram::decode(&datagram.encode()).unwrap();
        let received = gateway.ledger.receive(PeerId(from as u32), &datagram, now, drop);
        let charged = gateway.ledger.missing(KEY, now) - before;
        assert!(charged == 0 || received == Received::Applied, "seed {seed}: {received:?} charged {charged}");
        let Some(entry) = datagram.entries.first().filter(|_| received == Received::Applied) else { return };
        let life = (from, datagram.incarnation, entry.epoch);
        let spent = self.spent.get(&life).copied().unwrap_or_default();
        let all = gateway.charged.entry(life).or_default();
        *all += charged.saturating_sub(leftover);
        assert!(*all <= rate.units(spent), "seed {seed}: {all} charged of {spent} tokens of {life:?} at {to}");
        let heard = gateway.heard.entry(life).or_default();
        *heard = entry.count.max(*heard);
    }

    /// No budget from nothing: of a bucket at least the gateway's own spend is missing.
    fn assert_own(&self, index: usize) {
        let (gateway, rate) = (&self.gateways[index], self.setting.rate);
        let (own, from) = gateway.own;
        let own = own.saturating_sub(rate.refilled(Span::from_millis(self.now - from)));
        let missing = gateway.ledger.missing(KEY, at(self.now));
        assert!(missing >= own, "seed {}: {missing} missing of {own} at {index}, {}", self.setting.seed, self.now);
    }

    /// The longest time that a spend has not been heard by somebody now. Only where nothing but the network loses spends.
    fn measure_lag(&mut self) {
        if self.setting.cuts + self.setting.crashes + self.setting.evictions > 0 {
            return;
        }
        let is_heard = |spend: &Spend| {
            let life = (spend.gateway, spend.incarnation, spend.epoch);
            let mut others = self.gateways.iter().enumerate().filter(|(index, _)| *index != spend.gateway);
            others.all(|(_, gateway)| gateway.heard.get(&life).is_some_and(|heard| *heard >= spend.count))
        };
        self.heard += self.spends.iter().skip(self.heard).take_while(|spend| is_heard(spend)).count();
        let oldest = self.spends.get(self.heard).map_or(0, |spend| self.now - spend.at);
        self.longest_lag = self.longest_lag.max(oldest);
    }

    /// The tokens that all admitted after one instant, up to another.
    pub(super) fn admitted(&self, after: Option<u64>, until: u64) -> u64 {
        let to = self.spends.partition_point(|spend| spend.at <= until);
        let from = after.map_or(0, |after| self.spends.partition_point(|spend| spend.at <= after));
        self.spends[from..to].iter().map(|spend| spend.cost).sum()
    }
}
