//! The members: SWIM by `foca`, where time is an argument and messages are bytes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

use foca::{Codec as _, Config, Foca, NoCustomBroadcast, Notification, PeriodicParams, Runtime, Timer};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

use super::identity::{MemberCodec, PeerIdentity};
use super::seal::MAX_CARRIED;
use sluicegate_time::{Tick, Wall};

/// One of the members is asked so often whether it lives.
const PROBES: Duration = Duration::from_millis(500);
/// After so long without an answer others are asked to ask it: longer than the way there and back, as far as gateways of one fleet
/// lie apart.
const ANSWERS: Duration = Duration::from_millis(200);
/// One that does not answer has so long to deny that it is dead.
const SUSPECTS: Duration = Duration::from_secs(2);
/// Addresses of members that are dead are asked again for so long, and then forgotten.
const FORGETS: Duration = Duration::from_secs(3_600);
/// Members are asked for their members so often, and those that are dead whether they live.
const ASKS: Duration = Duration::from_secs(1);

/// A change of the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MemberChange {
    /// It lives from now on.
    Up(PeerIdentity),
    /// It is dead.
    Down(PeerIdentity),
    /// It has said that it goes.
    Left(PeerIdentity),
    /// It is another one at the same address, which lives if the one before did.
    Renewed(PeerIdentity),
}

/// The members of a fleet, as this gateway knows them.
pub(super) struct Membership {
    foca: Foca<PeerIdentity, MemberCodec, SmallRng, NoCustomBroadcast>,
    effects: Effects,
    is_leaving: bool,
}

/// The wishes of the protocol.
#[derive(Default)]
struct Effects {
    now: Tick,
    timers: BTreeMap<(Tick, u64), Timer<PeerIdentity>>,
    submitted: u64,
    messages: Vec<(SocketAddr, Vec<u8>)>,
    changes: Vec<MemberChange>,
    /// The others have called this gateway dead.
    is_defunct: bool,
    /// A member knows this life of it.
    is_joined: bool,
}

impl Runtime<PeerIdentity> for &mut Effects {
    fn notify(&mut self, notification: Notification<'_, PeerIdentity>) {
        match notification {
            Notification::MemberUp(member) => self.changes.push(MemberChange::Up(member.clone())),
            Notification::MemberDown(member) => self.changes.push(MemberChange::Down(member.clone())),
            Notification::Rename(_, member) => self.changes.push(MemberChange::Renewed(member.clone())),
            Notification::Defunct => (self.is_defunct, self.is_joined) = (true, false),
            Notification::Active => self.is_joined = true,
            Notification::Idle => self.is_joined = false,
            Notification::Rejoin(_) => {}
        }
    }

    fn send_to(&mut self, to: PeerIdentity, data: &[u8]) {
        self.messages.push((to.address, data.to_vec()));
    }

    fn submit_after(&mut self, event: Timer<PeerIdentity>, after: Duration) {
        self.submitted += 1;
        self.timers.insert((self.now + after.into(), self.submitted), event);
    }
}

impl Membership {
    /// A gateway that knows no other one yet.
    pub(super) fn new(identity: PeerIdentity) -> Self {
        let random = SmallRng::seed_from_u64(identity.incarnation);
        Self {
            foca: Foca::new(identity, config(), random, MemberCodec),
            effects: Effects::default(),
            is_leaving: false,
        }
    }

    /// The members that live, without this gateway.
    #[cfg(test)]
    fn living(&self) -> impl Iterator<Item = &PeerIdentity> {
        self.foca.iter_members().map(foca::Member::id)
    }

    /// Whether a member is known to know this gateway. If not it has to ask to be taken in, also those that it takes to live.
    pub(super) fn is_joined(&self) -> bool {
        self.effects.is_joined
    }

    /// A message about members has come. `false`: it is none.
    pub(super) fn hear(&mut self, message: &[u8], (now, wall): (Tick, Wall)) -> bool {
        self.effects.now = now;
        let heard = self.foca.handle_data(message, &mut self.effects);
        self.note_leave(message);
        self.live_on(wall);
        // One of a state that is over is a message all the same.
        matches!(heard, Ok(()) | Err(foca::Error::DataFromOurselves | foca::Error::IndirectForOurselves))
    }

    /// Asks the gateway at an address to take this one in.
    pub(super) fn announce_to(&mut self, address: SocketAddr, now: Tick) {
        self.effects.now = now;
        // A message that cannot be made is one that is lost.
        drop(self.foca.announce(PeerIdentity::unknown(address), &mut self.effects));
    }

    /// Does what is due.
    pub(super) fn turn(&mut self, (now, wall): (Tick, Wall)) {
        self.effects.now = now;
        while let Some(timer) = self.effects.timers.first_entry().filter(|timer| timer.key().0 <= now) {
            let timer = timer.remove();
            // A cycle that was held up says so; it begins anew.
            drop(self.foca.handle_timer(timer, &mut self.effects));
        }
        self.live_on(wall);
    }

    /// When something is due.
    pub(super) fn next_turn(&self) -> Option<Tick> {
        self.effects.timers.first_key_value().map(|((at, _), _)| *at)
    }

    /// Says to some that this gateway goes. From then on it is no member.
    pub(super) fn leave(&mut self, now: Tick) {
        self.effects.now = now;
        self.is_leaving = true;
        drop(self.foca.leave_cluster(&mut self.effects));
    }

    /// Messages that are to be sent, and changes, since the last time.
    pub(super) fn take(&mut self) -> (Vec<(SocketAddr, Vec<u8>)>, Vec<MemberChange>) {
        (std::mem::take(&mut self.effects.messages), std::mem::take(&mut self.effects.changes))
    }

    /// A member whose own message says that it is dead has left.
    fn note_leave(&mut self, message: &[u8]) {
        for change in &mut self.effects.changes {
            if let MemberChange::Down(member) = change
                && MemberCodec.decode_header(message).is_ok_and(|header| header.src == *member)
            {
                *change = MemberChange::Left(member.clone());
            }
        }
    }

    /// One that was called dead while it was cut off, or is taken for a process before it, says that it lives.
    fn live_on(&mut self, wall: Wall) {
        if std::mem::take(&mut self.effects.is_defunct) && !self.is_leaving {
            let again = self.foca.identity().again(wall);
            drop(self.foca.change_identity(again, &mut self.effects));
        }
    }
}

fn config() -> Config {
    const THREE: NonZeroUsize = NonZeroUsize::new(3).unwrap();
    let ask = |members| Some(PeriodicParams { frequency: ASKS, num_members: members });
    Config {
        probe_period: PROBES,
        probe_rtt: ANSWERS,
        num_indirect_probes: THREE,
        // Each change goes to so many: enough for fifty members that lose some.
        max_transmissions: const { NonZeroU8::new(10).unwrap() },
        suspect_to_down_after: SUSPECTS,
        remove_down_after: Some(FORGETS),
        max_packet_size: const { NonZeroUsize::new(MAX_CARRIED).unwrap() },
        notify_down_members: true,
        periodic_announce: ask(NonZeroUsize::MIN),
        periodic_announce_to_down_members: ask(THREE),
        periodic_gossip: Some(PeriodicParams { frequency: Duration::from_millis(500), num_members: THREE }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_time::Span;

    /// Some gateways, and a network that delivers at once what is not cut off.
    struct World {
        all: Vec<Option<Membership>>,
        /// Where each is: those of one number reach each other.
        side: Vec<u8>,
        ahead: Vec<u64>,
        millis: u64,
        changes: Vec<(u64, usize, MemberChange)>,
    }

    fn address(index: usize) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, index as u8 + 1], 7946))
    }

    impl World {
        fn new(gateways: usize) -> Self {
            let mut world = Self {
                all: (0..gateways).map(|_| None).collect(),
                side: vec![0; gateways],
                ahead: vec![100; gateways],
                millis: 0,
                changes: Vec::new(),
            };
            (0..gateways).for_each(|index| world.start(index));
            world
        }

        fn time(&self, index: usize) -> (Tick, Wall) {
            let millis = Span::from_millis(self.millis);
            (Tick::ZERO + millis, Wall::from_nanos(self.ahead[index] * 1_000_000_000) + millis)
        }

        fn start(&mut self, index: usize) {
            let (_, wall) = self.time(index);
            let incarnation = self.millis * 100 + index as u64 + 1;
            let node = format!("gw-{index}").into();
            self.all[index] = Some(Membership::new(PeerIdentity::new(address(index), &node, incarnation, wall)));
        }

        fn run(&mut self, millis: u64) {
            for _ in 0..millis / 10 {
                self.millis += 10;
                for index in 0..self.all.len() {
                    let (now, wall) = self.time(index);
                    let Some(own) = &mut self.all[index] else { continue };
                    own.turn((now, wall));
                    if self.millis.is_multiple_of(1_000) {
                        // The list of each names the first two.
                        own.announce_to(address(0), now);
                        own.announce_to(address(1), now);
                    }
                }
                while self.deliver() {}
            }
        }

        fn deliver(&mut self) -> bool {
            let mut any = false;
            for from in 0..self.all.len() {
                let Some(own) = &mut self.all[from] else { continue };
                let (messages, changes) = own.take();
                self.changes.extend(changes.into_iter().map(|change| (self.millis, from, change)));
                for (to, message) in messages {
                    any = true;
                    let to = (0..self.all.len()).find(|index| address(*index) == to).unwrap();
                    let time = self.time(to);
                    if let Some(peer) = self.all[to].as_mut().filter(|_| self.side[from] == self.side[to]) {
                        assert!(peer.hear(&message, time));
                    }
                }
            }
            any
        }

        /// The gateways that each knows to live.
        fn living(&self, index: usize) -> Vec<usize> {
            let own = self.all[index].as_ref().unwrap();
            let mut all: Vec<_> =
                own.living().map(|peer| (0..9).find(|at| address(*at) == peer.address).unwrap()).collect();
            all.sort_unstable();
            all
        }
    }

    #[test]
    fn gateways_find_each_other_see_a_death_in_three_seconds_and_a_new_life() {
        let mut world = World::new(5);
        world.run(3_000);
        assert!((0..5).all(|index| world.living(index).len() == 4), "the fourth and fifth are in no list");
        world.all[4] = None;
        world.run(4_500);
        assert_eq!([0, 1, 2, 3].map(|index| world.living(index).len()), [3; 4]);
        let down =
            |(at, _, change): &(u64, usize, MemberChange)| matches!(change, MemberChange::Down(_)).then_some(*at);
        let seen: Vec<_> = world.changes.iter().filter_map(down).collect();
        assert!(seen.len() == 4 && seen.iter().all(|at| (5_000..=7_000).contains(at)), "{seen:?}");
        world.start(4);
        world.run(2_000);
        assert!((0..5).all(|index| world.living(index).len() == 4));
        // One that goes says so.
        let time = world.time(2).0;
        world.all[2].as_mut().unwrap().leave(time);
        while world.deliver() {}
        world.all[2] = None;
        world.run(500);
        assert_eq!(world.living(0), [1, 3, 4]);
        let left =
            |(_, at, change): &(u64, usize, MemberChange)| matches!(change, MemberChange::Left(_)).then_some(*at);
        assert!(world.changes.iter().any(|change| left(change).is_some()), "{:?}", world.changes.last());
    }

    #[test]
    fn a_cut_heals_by_itself_in_the_same_life() {
        let mut world = World::new(4);
        world.run(2_000);
        world.side = vec![0, 0, 1, 1];
        world.run(6_000);
        assert_eq!([0, 1, 2, 3].map(|index| world.living(index)), [vec![1], vec![0], vec![3], vec![2]]);
        world.side = vec![0; 4];
        world.run(3_000);
        assert!((0..4).all(|index| world.living(index).len() == 3));
        let lives = |index: usize| world.all[index].as_ref().unwrap().living().map(|peer| peer.incarnation).max();
        assert_eq!(lives(0), Some(4), "the process is the same");
    }

    /// Its first messages of the new life may be lost: then no member asks it, and it has to ask those that it takes to live.
    #[test]
    fn one_that_was_called_dead_has_not_joined_until_it_is_heard() {
        let mut world = World::new(2);
        world.run(2_000);
        let (_, wall) = world.time(1);
        let own = world.all[1].as_mut().unwrap();
        assert!(own.is_joined());
        let before = own.foca.identity().clone();
        (&mut own.effects).notify(Notification::Defunct);
        own.live_on(wall);
        assert!(foca::Identity::win_addr_conflict(own.foca.identity(), &before));
        // All of its messages are lost, until it asks again.
        own.take();
        assert_eq!((own.is_joined(), own.living().count()), (false, 1));
        world.run(2_000);
        assert!(world.all[1].as_ref().unwrap().is_joined());
        assert_eq!((world.living(0), world.living(1)), (vec![1], vec![0]));
    }

    #[test]
    fn a_new_life_by_a_clock_that_was_set_back_is_taken_in_soon() {
        let mut world = World::new(3);
        world.run(2_000);
        world.all[2] = None;
        world.run(500);
        // A day back; the others still think that the one before lives.
        world.ahead[2] = 0;
        world.start(2);
        world.run(30_000);
        let seen = world.all[0].as_ref().unwrap().living().map(|peer| peer.incarnation).max();
        assert_eq!(seen, Some(250_003));
        assert_eq!((world.living(2), world.living(1)), (vec![0, 1], vec![0, 2]));
    }
}
