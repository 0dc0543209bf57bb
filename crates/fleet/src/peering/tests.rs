//! Gateways that tell each other: real limits, real datagrams, and a network and a clock that the test moves.

use std::collections::BTreeMap;

use super::node::PeerNode;
use super::*;
use sluicegate_limiter::{
    Ask, Counting, Fingerprint, Gcra, LimitSpec, MAX_LIMITS, Policy, Report, TokenBucket, Verdict,
};
use sluicegate_time::ManualClock;

const SECRET: [u8; 32] = [7; 32];

/// A gateway of a [`World`].
struct Gateway {
    node: PeerNode,
    limit: Arc<Limit>,
    policy: Arc<Policy>,
}

/// Gateways, and the network between them, millisecond by millisecond; everything random is drawn from a seed.
struct World {
    all: Vec<Option<Gateway>>,
    algorithm: Algorithm,
    interval: Span,
    clock: ManualClock,
    millis: u64,
    started: u64,
    /// Datagrams that are on their way: when each arrives, from where, to where.
    network: BTreeMap<(u64, u64), (usize, usize, Vec<u8>)>,
    sent: u64,
    random: u64,
    /// Of a hundred so many are lost, and the way takes so many milliseconds, up to twice as many.
    lost: u64,
    delay: u64,
    /// Those of one number reach each other.
    side: Vec<u8>,
    /// Datagrams from one to another one that do not arrive.
    blocked: Vec<(usize, usize)>,
    /// The list of each names so many of the first ones.
    listed: usize,
}

fn address(index: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, index as u8 + 1], 7946))
}

fn bucket(rate: &str, burst: u64) -> Algorithm {
    Algorithm::TokenBucket(TokenBucket::new(&[rate.parse().unwrap()], Some(burst), Refill::Greedy).unwrap())
}

fn settings(index: usize, secrets: &[[u8; 32]]) -> PeerSettings {
    PeerSettings {
        listen: address(index),
        peers: Vec::new(),
        interval: Span::from_millis(20),
        secrets: secrets.to_vec(),
        node: format!("gw-{index}").into(),
    }
}

impl World {
    /// Gateways that know each other.
    fn new(gateways: usize, algorithm: Algorithm, seed: u64) -> Self {
        let mut world = Self {
            all: (0..gateways).map(|_| None).collect(),
            algorithm,
            interval: Span::from_millis(20),
            clock: ManualClock::new(),
            millis: 0,
            started: 0,
            network: BTreeMap::new(),
            sent: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            lost: 0,
            delay: 0,
            side: vec![0; gateways],
            blocked: Vec::new(),
            listed: 2,
        };
        (0..gateways).for_each(|index| world.start(index, &[SECRET]));
        world.run(3_000, |_| ());
        assert!(world.all.iter().flatten().all(|own| own.node.living().count() == gateways - 1), "seed {seed}");
        world
    }

    fn start(&mut self, index: usize, secrets: &[[u8; 32]]) {
        self.started += 1;
        let limit = Limit::new(LimitSpec::new("told", self.algorithm.clone()));
        let rates = told_rates(&self.algorithm).unwrap().into_iter().zip(1..).map(|(rate, number)| (number, rate));
        let settings = PeerSettings { interval: self.interval, ..settings(index, secrets) };
        let mut node =
            PeerNode::new(&settings, self.started * 1_000 + index as u64, &Clock::Manual(self.clock.clone()));
        node.bind(vec![Arc::new(PeerBinding::new(Arc::clone(&limit), rates.collect()))]);
        let policy = Policy::new(vec![Arc::clone(&limit)]).unwrap();
        self.all[index] = Some(Gateway { node, limit, policy });
    }

    /// A number below a bound (`xorshift64*`).
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound.max(1)
    }

    fn run(&mut self, millis: u64, mut act: impl FnMut(&mut Self)) {
        for _ in 0..millis {
            self.millis += 1;
            self.clock.advance(Span::from_millis(1));
            act(self);
            self.step();
        }
    }

    fn step(&mut self) {
        let now = self.clock.now();
        for index in 0..self.all.len() {
            let is_turn = (self.millis + 7 * index as u64).is_multiple_of(self.interval.as_nanos() / 1_000_000);
            let asks = self.millis % 1_000 == 10 * index as u64;
            let Some(own) = &mut self.all[index] else { continue };
            own.node.turn_members(now);
            if is_turn {
                own.node.tell(now);
            }
            let known: Vec<_> = own.node.living().map(|member| member.address).collect();
            for address in (0..self.listed).map(address).chain(known).filter(|_| asks) {
                own.node.announce_to(address, now);
            }
            own.node.take_changes();
            self.carry(index);
        }
        while let Some(arrival) = self.network.first_entry().filter(|arrival| arrival.key().0 <= self.millis) {
            let (from, to, bytes) = arrival.remove();
            if self.side[from] == self.side[to] && !self.blocked.contains(&(from, to)) {
                self.arrive(to, &bytes);
            }
        }
    }

    fn arrive(&mut self, to: usize, bytes: &[u8]) {
        let now = self.clock.now();
        if let Some(own) = &mut self.all[to] {
            own.node.arrive(bytes, now);
            self.carry(to);
        }
    }

    /// Puts the datagrams that a gateway sends on their way.
    fn carry(&mut self, from: usize) {
        let outgoing = self.all[from].as_mut().map(|own| own.node.take_outgoing()).unwrap_or_default();
        for (to, bytes) in outgoing {
            let to = (0..self.all.len()).find(|index| address(*index) == to).unwrap();
            let arrives = self.millis + self.delay + self.below(self.delay + 1);
            if self.below(100) >= self.lost {
                self.sent += 1;
                self.network.insert((arrives, self.sent), (from, to, bytes));
            }
        }
    }

    /// Whether a gateway admits a request of cost 1 of a key.
    fn ask(&self, index: usize, key: u64) -> bool {
        let Some(own) = &self.all[index] else { return false };
        let key = Fingerprint::known(key);
        let asks = [Ask { key, cost: 1, counting: Counting::AtOnce, ..Ask::default() }; MAX_LIMITS];
        let verdict = own.policy.check(&asks, Span::MAX, self.clock.now(), &mut Report::default());
        matches!(verdict, Verdict::Admitted(_))
    }

    /// As many as a gateway admits at once.
    fn drain(&self, index: usize, key: u64) -> usize {
        (0..10_000).take_while(|_| self.ask(index, key)).count()
    }

    fn dropped(&self, index: usize, reason: DropReason) -> u64 {
        self.all[index].as_ref().unwrap().node.traffic().dropped[reason as usize]
    }
}

/// The seed notes, "Synchronization": three hosts, one bucket of four tokens, refilled by four a second.
#[test]
fn twelve_pass_in_a_cut_and_the_next_one_after_two_and_a_quarter_seconds() {
    let mut world = World::new(3, bucket("4/s", 4), 1);
    for gateway in [0, 2, 1, 1] {
        assert!(world.ask(gateway, 1));
    }
    world.run(21, |_| ());
    assert!((0..3).all(|gateway| !world.ask(gateway, 1)), "all see that none is left");
    // A second later there are four again, and each is on its own.
    world.run(979, |_| ());
    world.side = vec![0, 1, 2];
    assert_eq!([0, 1, 2].map(|gateway| world.drain(gateway, 1)), [4, 4, 4]);
    // Healed at that instant. Each knows after an interval: 4 - 12 = -8, so nine have to come back.
    world.side = vec![0; 3];
    world.run(2_249, |_| ());
    assert!((0..3).all(|gateway| !world.ask(gateway, 1)));
    world.run(1, |_| ());
    assert!(world.ask(1, 1));
    world.run(20, |_| ());
    assert!((0..3).all(|gateway| !world.ask(gateway, 1)), "just one");
}

/// In any stretch all together admit at most what the crate's docs say: `B + r t + (N - 1) (B + r l)`.
#[test]
fn every_stretch_keeps_the_bound_with_loss_a_cut_and_a_restart() {
    for (seed, algorithm) in (1..=6).zip([bucket("100/s", 20), bucket("50/s", 50)].into_iter().cycle()) {
        let (rate, burst) = if seed % 2 == 1 { (100.0, 20.0) } else { (50.0, 50.0) };
        let mut world = World::new(5, algorithm, seed);
        (world.lost, world.delay) = (10, 50);
        let mut admitted: Vec<u64> = Vec::new();
        let mut load = |world: &mut World| {
            let passed = (0..5).map(|gateway| (0..2).filter(|_| world.ask(gateway, 1)).count() as u64).sum();
            admitted.push(passed);
        };
        world.run(4_000, &mut load);
        world.side = vec![0, 0, 1, 1, 1];
        world.run(3_000, &mut load);
        world.side = vec![0; 5];
        world.run(4_000, &mut load);
        world.all[4] = None;
        world.run(500, &mut load);
        world.start(4, &[SECRET]);
        world.run(4_000, &mut load);
        // Of 15.5 seconds; the lag in the quiet parts is below a second, the cut and the restart have their own.
        let check = |from: usize, until: usize, lag: f64, parts: f64| {
            let mut level: f64 = 0.0;
            let mut most: f64 = 0.0;
            for passed in &admitted[from..until] {
                level = (level - rate / 1_000.0).max(0.0) + *passed as f64;
                most = most.max(level);
            }
            let bound = burst + (parts - 1.0) * (burst + rate * lag);
            assert!(most <= bound, "seed {seed}: {most} of {bound} between {from} and {until}");
            most
        };
        let quiet = check(0, 4_000, 0.7, 5.0);
        // The cut of three seconds, and the time until they have found each other.
        check(0, 11_000, 5.7, 5.0);
        // After the heal, and after the restart, all are one again.
        check(8_500, 11_000, 0.7, 5.0);
        check(13_500, admitted.len(), 0.7, 5.0);
        let all: u64 = admitted[8_000..11_000].iter().sum();
        assert!(all as f64 >= rate * 3.0 - (4.0 * burst + 5.0 * rate * 0.7), "seed {seed}: {all}");
        println!(
            "seed {seed}: at most {quiet:.0} at once beside a burst of {burst}, by five gateways with 10% loss and 50 to 100 ms"
        );
    }
}

#[test]
fn one_that_dies_is_a_stranger_and_its_next_life_is_heard() {
    let mut world = World::new(3, bucket("4/m", 4), 3);
    assert_eq!(world.drain(2, 1), 4);
    world.run(40, |_| ());
    assert!(!world.ask(0, 1));
    world.all[2] = None;
    world.run(100, |_| ());
    world.start(2, &[SECRET]);
    // It hears of the others what they have spent, and not what it has itself: that costs a burst.
    world.run(3_000, |_| ());
    assert_eq!(world.drain(2, 1), 4);
    world.run(40, |_| ());
    assert!(!world.ask(0, 1) && !world.ask(1, 1));
    assert_eq!(world.drain(0, 2), 4);
    world.run(40, |_| ());
    assert!(!world.ask(2, 2));
}

/// The next process has the counts of the one before, which had heard of the others.
#[test]
fn a_process_that_takes_over_is_not_charged_twice() {
    for takes_over in [true, false] {
        let mut world = World::new(3, bucket("6/m", 60), 9);
        assert_eq!([0, 1].map(|index| (0..20).filter(|_| world.ask(index, 1)).count()), [20, 20]);
        world.run(100, |_| ());
        let before = Arc::clone(&world.all[2].as_ref().unwrap().limit);
        world.all[2] = None;
        world.start(2, &[SECRET]);
        if takes_over {
            let (next, now) = (Arc::clone(&world.all[2].as_ref().unwrap().limit), world.clock.now());
            let copied = before.copy_keys(now, |records| {
                next.take_over_keys(records, now);
                Ok::<_, ()>(())
            });
            copied.unwrap();
        }
        world.run(3_000, |_| ());
        assert_eq!(world.drain(2, 1), 20, "60 less what the others have spent");
    }
}

/// The way back alone is open for a while: one is called dead, says that it lives, and is not heard.
#[test]
fn gateways_find_each_other_after_a_cut_of_one_direction() {
    for seed in 1..=20 {
        let mut world = World::new(2, bucket("4/m", 4), seed);
        world.listed = 1;
        world.blocked = vec![(1, 0)];
        world.run(4_000 + 100 * seed, |_| ());
        world.blocked.clear();
        // Most of the first messages after it are lost.
        world.lost = 70;
        world.run(2_000, |_| ());
        world.lost = 0;
        world.run(5_000, |_| ());
        let knows = |own: usize| world.all[own].as_ref().unwrap().node.living().count();
        assert_eq!((knows(0), knows(1)), (1, 1), "seed {seed}");
        assert_eq!(world.drain(1, 1), 4);
        world.run(40, |_| ());
        assert!(!world.ask(0, 1), "seed {seed}: it is heard again");
    }
}

/// Counts that were caught before a gateway began anew are not for this life of it.
#[test]
fn what_was_caught_before_a_receiver_began_anew_does_nothing() {
    let mut world = World::new(2, bucket("4/d", 4), 8);
    let now = world.clock.now();
    assert!(world.ask(0, 1));
    world.all[0].as_mut().unwrap().node.tell(now);
    let caught: Vec<_> = world.all[0].as_mut().unwrap().node.take_outgoing();
    world.start(1, &[SECRET]);
    let before = world.dropped(1, DropReason::Stranger);
    for (_, bytes) in &caught {
        world.arrive(1, bytes);
    }
    world.run(50, |_| ());
    for (_, bytes) in &caught {
        world.arrive(1, bytes);
    }
    assert!(caught.len() == 1 && world.dropped(1, DropReason::Stranger) >= before + 2);
    assert_eq!(world.drain(1, 1), 3, "once: it was told again");
}

#[test]
fn what_is_forged_repeated_cut_or_too_long_is_counted_and_does_nothing() {
    let mut world = World::new(2, bucket("4/m", 4), 4);
    // What gateway 0 tells is caught, and arrives later.
    assert!(world.ask(0, 1));
    world.run(40, |_| ());
    assert!(world.ask(0, 1));
    let now = world.clock.now();
    world.all[0].as_mut().unwrap().node.tell(now);
    let told = world.all[0].as_mut().unwrap().node.take_outgoing().pop().unwrap().1;
    let reasons = DropReason::ALL;
    let before = reasons.map(|reason| world.dropped(1, reason));
    for place in 0..told.len() {
        let mut changed = told.clone();
        changed[place] ^= 0x40;
        world.arrive(1, &changed);
        world.arrive(1, &told[..place]);
    }
    world.arrive(1, &[1; 1_201]);
    world.arrive(1, &[]);
    let mut node = PeerNode::new(&settings(0, &[[8; 32]]), 1_000, &Clock::Manual(world.clock.clone()));
    node.announce_to(address(1), now);
    let stranger = node.take_outgoing().pop().unwrap().1;
    world.arrive(1, &stranger);
    assert_eq!(world.drain(1, 1), 3, "nothing of that was charged");
    world.arrive(1, &told);
    assert_eq!(world.drain(1, 1), 0);
    for _ in 0..10 {
        world.arrive(1, &told);
    }
    let after = reasons.map(|reason| world.dropped(1, reason));
    let counted: Vec<_> = reasons
        .iter()
        .zip(before.iter().zip(after))
        .map(|(reason, (before, after))| (reason.word(), after - before))
        .collect();
    let (length, shortest) = (told.len() as u64, 42);
    let expected = [
        ("too-long", 1),
        // The version changed, cut below the least, and nothing at all.
        ("malformed", 1 + shortest + 1),
        ("forged", length - 1 + length - shortest + 1),
        ("replayed", 10),
        ("stranger", 0),
    ];
    assert_eq!(counted, expected);
    world.run(1_000, |_| ());
    assert_eq!(world.all[1].as_ref().unwrap().node.living().count(), 1, "it goes on");
}

/// Messages about members have no number of their own: without the one of the datagram a gateway could be called dead again by what
/// was said of it once.
#[test]
fn a_repeated_message_about_members_is_counted_and_not_heard() {
    let mut world = World::new(3, bucket("4/m", 4), 10);
    world.all[2] = None;
    let mut next = PeerNode::new(&settings(2, &[SECRET]), 99, &Clock::Manual(world.clock.clone()));
    next.announce_to(address(1), world.clock.now());
    let (_, asks) = next.take_outgoing().pop().unwrap();
    let figures = |world: &World| {
        let traffic = world.all[1].as_ref().unwrap().node.traffic();
        (traffic.received, traffic.dropped[DropReason::Replayed as usize])
    };
    let before = figures(&world);
    for _ in 0..3 {
        world.arrive(1, &asks);
    }
    assert_eq!(figures(&world), (before.0 + 1, before.1 + 2));
}

#[test]
fn one_with_another_secret_is_alone_and_a_secret_is_replaced_without_a_break() {
    let mut world = World::new(2, bucket("4/m", 4), 5);
    world.all.push(None);
    world.side.push(0);
    world.start(2, &[[8; 32]]);
    world.run(3_000, |_| ());
    assert_eq!(world.all[2].as_ref().unwrap().node.living().count(), 0);
    assert!(world.dropped(0, DropReason::Forged) > 0 && world.ask(2, 1));
    // First all know the new one, then all use it.
    for secrets in [[SECRET, [8; 32]], [[8; 32], SECRET]] {
        for index in 0..2 {
            world.start(index, &secrets);
            world.run(2_500, |_| ());
            let knows = |own: usize, other: usize| {
                world.all[own].as_ref().unwrap().node.living().any(|peer| peer.address == address(other))
            };
            assert!(knows(0, 1) && knows(1, 0));
        }
    }
    world.run(2_000, |_| ());
    assert!(world.all.iter().flatten().all(|own| own.node.living().count() == 2), "the third is among them now");
}

#[test]
fn keys_are_told_by_the_numbers_of_their_limits_and_the_most_spent_first() {
    let mut world = World::new(2, Algorithm::Gcra(Gcra::new(&["1/s".parse().unwrap()], Some(9)).unwrap()), 6);
    for key in 1..=2_000 {
        assert!(world.ask(0, key));
    }
    assert_eq!(world.drain(0, 3_000), 9);
    // 16 datagrams a turn: the one with the most is among the first.
    world.run(21, |_| ());
    assert!(!world.ask(1, 3_000));
    let told = |world: &World| (1..=2_000).filter(|key| world.drain(1, *key) == 8).count();
    let after_one = world.all[1].as_ref().unwrap().node.keys();
    assert!((300..=600).contains(&after_one), "{after_one} keys in a turn of sixteen datagrams");
    world.run(200, |_| ());
    assert_eq!(world.all[1].as_ref().unwrap().node.keys(), 2_001);
    assert_eq!(told(&world), 2_000);
    // A limit that is no more among those that are shared is told no longer.
    let limit = Arc::clone(&world.all[0].as_ref().unwrap().limit);
    world.all[0].as_mut().unwrap().node.bind(Vec::new());
    assert!(world.ask(0, 5_000));
    world.run(100, |_| ());
    assert_eq!((world.drain(1, 5_000), limit.key_count()), (9, 2_002));
}

/// Bytes a second, and how much is admitted beside the limit, where 10,000 requests a second ask for 1,000 keys. A fleet of 3 as a
/// test, of 10 and 30 where `SLUICEGATE_FIGURES` asks for them.
#[test]
fn figures_of_fleets() {
    let sizes: &[usize] = if std::env::var_os("SLUICEGATE_FIGURES").is_some() { &[3, 10, 30] } else { &[3] };
    for gateways in sizes {
        let mut world = World::new(*gateways, bucket("8/s", 8), 7);
        world.delay = 1;
        let traffic = |world: &World| {
            world.all.iter().flatten().map(|own| own.node.traffic()).fold((0, 0, 0), |(bytes, sent, untold), own| {
                (bytes + own.sent_bytes, sent + own.sent, untold + own.untold)
            })
        };
        let mut levels = vec![(0_f64, 0_u64); 1_001];
        let (mut most, mut passed) = (0_f64, 0_u64);
        let before = traffic(&world);
        let seconds = 5;
        world.run(seconds * 1_000, |world| {
            for _ in 0..10 {
                let (gateway, key) = (world.below(*gateways as u64) as usize, 1 + world.below(1_000));
                if world.ask(gateway, key) {
                    let (level, at) = &mut levels[key as usize];
                    *level = (*level - 8.0 * (world.millis - *at) as f64 / 1_000.0).max(0.0) + 1.0;
                    (*at, passed) = (world.millis, passed + 1);
                    most = most.max(*level);
                }
            }
        });
        let after = traffic(&world);
        let a_second = |all: u64| all / seconds / *gateways as u64;
        println!(
            "{gateways} gateways: {} bytes and {} datagrams a second sent by each; at most {most:.1} at once of a burst of 8; {passed} admitted",
            a_second(after.0 - before.0),
            a_second(after.1 - before.1),
        );
        assert_eq!(after.2, 0, "nothing is left untold");
        assert!(most <= 8.0 + (*gateways as f64 - 1.0) * (8.0 + 8.0 * 0.1), "{most}");
        assert!(passed >= 8 * 1_000 * (seconds - 1), "{passed}");
    }
}
