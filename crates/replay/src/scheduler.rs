//! The order and the times in which letters go: pure, time is an argument.
//!
//! - Each try waits for its turn in the limiter's own leaky bucket, so that `10/s` is one each 100 ms, retries too.
//! - Letters of one key and one client go in their order: the next when the one before has its fate. Clients of a key take
//!   turns, and while a letter of one waits to be tried again, those of others go. A limit without room is asked by none of
//!   its key before it has some.
//! - A try that may be repeated is, after a random time of [0, min(30 s, 200 ms x 2^n)), n from 0 ("full jitter": Brooker,
//!   "Exponential Backoff And Jitter", AWS 2015), and not before the answer's `Retry-After`.
//! - At most [`MAX_WAITING`] letters and [`MAX_WAITING_BYTES`] are in memory, of which a key has at most half of what others leave:
//!   its caller reads on when there is room, and comes back for what had none.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::rc::Rc;
use std::sync::Arc;

use super::request::ReplayRequest;
use sluicegate_http_client::SendError;
use sluicegate_limiter::{Algorithm, Fingerprint, KeyHasher, LeakyBucket, Limit, LimitSpec, Rate};
use sluicegate_time::{Span, Tick};

/// Tries of one letter, unless the operator says otherwise.
pub const MAX_TRIES: u32 = 8;
/// Letters in memory.
const MAX_WAITING: usize = 4096;
/// Bytes of them.
const MAX_WAITING_BYTES: usize = 64 * 1024 * 1024;
/// The first bound of the jitter, which doubles, and the last one.
const FIRST_JITTER: Span = Span::from_millis(200);
const MOST_JITTER: Span = Span::from_secs(30);
/// Letters of one order under way at once, each of another client.
const PARALLEL_OF_ORDER: usize = 8;
/// How long a replay waits for a server that asks for patience.
const MOST_PATIENCE: Span = Span::from_secs(60 * 60);

/// Something that waits in a lineup: a letter, or what one is made of when its turn has come.
pub trait Queued {
    /// Those with the same one wait for the same room.
    type Order: Clone + Eq + Hash + Ord;

    /// Its own.
    fn order(&self) -> Self::Order;

    /// Of its order, those of one client go one after the other.
    fn client(&self) -> u128 {
        0
    }

    /// About how many bytes it holds.
    fn bytes(&self) -> usize;

    /// The groups that it is of, and how many of each may be under way at once.
    fn groups(&self) -> Vec<(Group, usize)> {
        Vec::new()
    }
}

/// Letters that share places, such as those of a client.
pub type Group = (u8, u128);

impl Queued for ReplayRequest {
    type Order = Rc<str>;

    fn order(&self) -> Rc<str> {
        self.order.as_str().into()
    }

    fn bytes(&self) -> usize {
        Self::bytes(self)
    }
}

/// A letter that is under way.
#[derive(Debug)]
pub struct InFlightReplay<T = ReplayRequest> {
    /// The letter.
    pub letter: T,
    /// The number of this try, from 1.
    pub number: u32,
}

/// The next thing to do.
#[derive(Debug)]
pub enum NextSend<T = ReplayRequest> {
    /// Send this.
    Send(Box<InFlightReplay<T>>),
    /// Nothing before then, unless an answer comes.
    Wait(Tick),
    /// Nothing until an answer comes.
    Busy,
    /// Nothing is left.
    Idle,
}

/// The outcome of a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TryOutcome {
    /// An answer with this status, and when its server wants to be asked again.
    Answered(u16, Option<Span>),
    /// A limit of the gateway has no room before then. That is no try.
    NoRoom(Span),
    /// None.
    Failed(SendError),
}

/// The fate of a letter after a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was taken, with this status.
    Sent(u16),
    /// It is set aside.
    Parked(String),
    /// It is tried again, not before then.
    Again(Tick),
}

impl fmt::Display for TryOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered(status, _) => write!(f, "status {status}"),
            Self::NoRoom(span) => write!(f, "no room for {span}"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

/// Whether a try that ended so may be repeated.
fn is_retriable(outcome: &TryOutcome) -> bool {
    match outcome {
        TryOutcome::Answered(status, _) => matches!(status, 408 | 425 | 429 | 502 | 503 | 504),
        TryOutcome::NoRoom(_) | TryOutcome::Failed(SendError::Connect(_)) => true,
        // It may have been done.
        TryOutcome::Failed(SendError::Late | SendError::Broken(_)) => false,
    }
}

/// Whether a try that ended so is the last one, and if so, whether it was taken.
pub(super) fn is_final(outcome: &TryOutcome) -> Option<bool> {
    match outcome {
        TryOutcome::Answered(200..=299, _) => Some(true),
        outcome if is_retriable(outcome) => None,
        _ => Some(false),
    }
}

/// The fate of a letter after so many tries, of which the last ended so. `random` is any number.
fn judge(outcome: &TryOutcome, tries: u32, patience: Patience, random: u64, now: Tick) -> Verdict {
    match outcome {
        TryOutcome::Answered(status @ 200..=299, _) => return Verdict::Sent(*status),
        TryOutcome::NoRoom(span) => return Verdict::Again(now + *span),
        outcome if !is_retriable(outcome) => return Verdict::Parked(outcome.to_string()),
        _ => {}
    }
    let Patience { max_tries, most } = patience;
    if tries >= max_tries {
        return Verdict::Parked(format!("{outcome} after {tries} tries"));
    }
    let floor = if let TryOutcome::Answered(_, after) = outcome { after.unwrap_or(Span::ZERO) } else { Span::ZERO };
    if floor > most {
        return Verdict::Parked(format!("{outcome}, which asks for a retry in {floor}"));
    }
    Verdict::Again(now + Span::full_jitter(FIRST_JITTER, MOST_JITTER, tries, random).max(floor))
}

/// How long a letter is tried.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    max_tries: u32,
    /// A server that asks for more patience is not waited for.
    most: Span,
}

impl Patience {
    /// That of a replay.
    pub fn tries(max_tries: u32) -> Self {
        Self { max_tries: max_tries.max(1), most: MOST_PATIENCE }
    }

    /// Until somebody else gives it up.
    pub const ENDLESS: Self = Self { max_tries: u32::MAX, most: Span::MAX };
}

/// A letter that waits.
struct QueuedRequest<T> {
    letter: T,
    tries: u32,
}

/// The letters of one order.
struct OrderQueue<T> {
    /// By client, in order; of those with a letter under way too.
    clients: HashMap<u128, VecDeque<QueuedRequest<T>>>,
    /// Clients whose first letter may go, in their turns.
    ready: VecDeque<u128>,
    /// Their limit has no room before then.
    closed_until: Option<Tick>,
    /// Whether it is among the orders that are ready.
    is_listed: bool,
    waiting: usize,
    under_way: usize,
}

impl<T> Default for OrderQueue<T> {
    fn default() -> Self {
        let (clients, ready, closed_until, is_listed, waiting, under_way) = Default::default();
        Self { clients, ready, closed_until, is_listed, waiting, under_way }
    }
}

impl<T> OrderQueue<T> {
    fn may_go(&self) -> bool {
        self.closed_until.is_none() && self.under_way < PARALLEL_OF_ORDER && !self.ready.is_empty()
    }
}

/// Something that waits for a time: an order for room, or the first letter of one of its clients for its next try.
type Sleeper<O> = (O, Option<u128>);

/// Those, the next one first; the number keeps their order at one instant.
type Sleepers<O> = BinaryHeap<Reverse<(Tick, u64, Sleeper<O>)>>;

/// How many letters of a group are under way, and clients whose first letter waits for one of them.
type GroupQueue<O> = (usize, VecDeque<(O, u128)>);

/// The letters that are waiting, and the pace.
pub struct ReplayScheduler<T: Queued = ReplayRequest> {
    pace: Arc<Limit>,
    pace_key: Fingerprint,
    /// The turn of the next try: when the bucket has let the one before go.
    turn: Tick,
    parallel: usize,
    patience: Patience,
    random: u64,
    lines: HashMap<T::Order, OrderQueue<T>>,
    /// Orders of which a letter may go.
    ready: VecDeque<T::Order>,
    later: Sleepers<T::Order>,
    order: u64,
    /// How many letters of each group are under way, and clients whose first letter waits for one of them.
    groups: HashMap<Group, GroupQueue<T::Order>>,
    waiting: usize,
    bytes: usize,
    in_flight: usize,
}

impl<T: Queued> ReplayScheduler<T> {
    /// Nobody yet. `seed` makes the jitter.
    pub fn new(rate: Rate, parallel: usize, patience: Patience, seed: u64) -> Option<Self> {
        let bucket = LeakyBucket::new(&[rate], None).ok()?;
        let pace = Limit::new(LimitSpec { max_keys: 1, ..LimitSpec::new("replay", Algorithm::LeakyBucket(bucket)) });
        Some(Self {
            pace,
            pace_key: KeyHasher::random().start().finish(),
            turn: Tick::ZERO,
            parallel: parallel.max(1),
            patience,
            random: seed,
            lines: HashMap::new(),
            ready: VecDeque::new(),
            later: BinaryHeap::new(),
            order: 0,
            groups: HashMap::new(),
            waiting: 0,
            bytes: 0,
            in_flight: 0,
        })
    }

    /// Whether another letter may come.
    pub fn has_room(&self) -> bool {
        self.waiting < MAX_WAITING && self.bytes < MAX_WAITING_BYTES
    }

    /// Whether it is time to read the log once more for keys that had no room.
    pub fn has_run_low(&self) -> bool {
        self.waiting < MAX_WAITING / 4
    }

    /// Whether a letter of this key may come: one key does not take the room of all others.
    pub fn has_room_for(&self, order: &T::Order) -> bool {
        let own = self.lines.get(order).map_or(0, |line| line.waiting);
        own <= (MAX_WAITING - self.waiting.min(MAX_WAITING)) / 2
    }

    /// Takes a letter, behind those of its key and client.
    pub fn offer(&mut self, letter: T) {
        self.waiting += 1;
        self.bytes += letter.bytes();
        let (key, client) = (letter.order(), letter.client());
        let line = self.lines.entry(key.clone()).or_default();
        line.waiting += 1;
        let queue = line.clients.entry(client).or_insert_with(|| {
            line.ready.push_back(client);
            VecDeque::new()
        });
        queue.push_back(QueuedRequest { letter, tries: 0 });
        self.list(key);
    }

    /// Takes a letter as [`offer`](Self::offer) does; if it is the first of its key, none of that goes before then.
    pub fn offer_for(&mut self, letter: T, due: Tick) {
        let key = letter.order();
        if !self.lines.contains_key(&key) {
            self.close(key, due);
        }
        self.offer(letter);
    }

    /// The limit of an order has no room before then.
    fn close(&mut self, key: T::Order, due: Tick) {
        self.lines.entry(key.clone()).or_default().closed_until = Some(due);
        self.sleep((key, None), due);
    }

    fn sleep(&mut self, sleeper: Sleeper<T::Order>, due: Tick) {
        self.order += 1;
        self.later.push(Reverse((due, self.order, sleeper)));
    }

    /// Lists an order of which a letter may go.
    fn list(&mut self, key: T::Order) {
        if let Some(line) = self.lines.get_mut(&key).filter(|line| !line.is_listed && line.may_go()) {
            line.is_listed = true;
            self.ready.push_back(key);
        }
    }

    fn awake(&mut self, (key, client): Sleeper<T::Order>) {
        if let Some(line) = self.lines.get_mut(&key) {
            match client {
                Some(client) => line.ready.push_back(client),
                None => line.closed_until = None,
            }
            self.list(key);
        }
    }

    /// These keys, and these clients of theirs, do not wait for a time of before any more.
    pub fn wake(&mut self, clients: &HashSet<(T::Order, u128)>) {
        let keys: HashSet<_> = clients.iter().map(|(key, _)| key).collect();
        let later = std::mem::take(&mut self.later);
        let (woken, rest) = later.into_iter().partition(|Reverse((_, _, (key, client)))| match client {
            Some(client) => clients.contains(&(key.clone(), *client)),
            None => keys.contains(key),
        });
        self.later = rest;
        let woken: BinaryHeap<_> = woken;
        self.awake_all(woken);
    }

    /// Nobody waits for a time of before any more.
    pub fn hurry(&mut self) {
        let later = std::mem::take(&mut self.later);
        self.awake_all(later);
    }

    fn awake_all(&mut self, sleepers: Sleepers<T::Order>) {
        // The one that is due first is the last one there.
        for Reverse((_, _, sleeper)) in sleepers.into_sorted_vec().into_iter().rev() {
            self.awake(sleeper);
        }
    }

    /// How many letters are under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The next thing to do.
    pub fn next(&mut self, now: Tick) -> NextSend<T> {
        while let Some(Reverse((due, _, _))) = self.later.peek()
            && *due <= now
            && let Some(Reverse((_, _, (key, client)))) = self.later.pop()
        {
            // It may have been closed again meanwhile, for longer.
            let closed_until = self.lines.get(&key).and_then(|line| line.closed_until);
            if client.is_some() || closed_until.is_none_or(|until| until <= now) {
                self.awake((key, client));
            }
        }
        let later = self.later.peek().map(|Reverse((due, _, _))| *due);
        if self.in_flight >= self.parallel || self.ready.is_empty() {
            return self.wait_for(later);
        }
        if now < self.turn {
            return NextSend::Wait(self.turn);
        }
        let Some(QueuedRequest { letter, tries }) = self.pop_ready() else { return self.wait_for(later) };
        self.turn = self.pace.charge(self.pace_key, 1, now);
        self.in_flight += 1;
        NextSend::Send(Box::new(InFlightReplay { letter, number: tries + 1 }))
    }

    /// The next thing to do where nothing can go now, and something may later.
    fn wait_for(&self, later: Option<Tick>) -> NextSend<T> {
        match later {
            Some(due) if self.in_flight < self.parallel => NextSend::Wait(due),
            _ if self.in_flight > 0 => NextSend::Busy,
            _ => NextSend::Idle,
        }
    }

    /// The first letter that may go whose groups have places. Clients whose first letter has none wait for them.
    fn pop_ready(&mut self) -> Option<QueuedRequest<T>> {
        while let Some(key) = self.ready.pop_front() {
            let Some(line) = self.lines.get_mut(&key) else { continue };
            line.is_listed = false;
            if !line.may_go() {
                continue;
            }
            let Some(client) = line.ready.pop_front() else { continue };
            let first = line.clients.get_mut(&client).and_then(VecDeque::pop_front);
            let Some(first) = first else {
                self.list(key);
                continue;
            };
            let groups = first.letter.groups();
            let is_full =
                |(group, most): &&(Group, usize)| self.groups.get(group).is_some_and(|(count, _)| count >= most);
            if let Some((group, _)) = groups.iter().find(is_full) {
                if let Some(queue) = line.clients.get_mut(&client) {
                    queue.push_front(first);
                }
                if let Some((_, waiting)) = self.groups.get_mut(group) {
                    waiting.push_back((key.clone(), client));
                }
                self.list(key);
                continue;
            }
            line.waiting -= 1;
            line.under_way += 1;
            for (group, _) in groups {
                self.groups.entry(group).or_default().0 += 1;
            }
            self.list(key);
            return Some(first);
        }
        None
    }

    /// A letter is not under way any more.
    fn land(&mut self, letter: &T) {
        self.in_flight -= 1;
        if let Some(line) = self.lines.get_mut(&letter.order()) {
            line.under_way = line.under_way.saturating_sub(1);
        }
        for (group, _) in letter.groups() {
            let Some((count, waiting)) = self.groups.get_mut(&group) else { continue };
            *count = count.saturating_sub(1);
            // Those whose limit has no room leave the place to others.
            let mut woken = Vec::new();
            while let Some((key, client)) = waiting.pop_front() {
                let Some(line) = self.lines.get_mut(&key) else { continue };
                line.ready.push_back(client);
                let takes_it = line.may_go();
                woken.push(key);
                if takes_it {
                    break;
                }
            }
            if *count == 0 && waiting.is_empty() {
                self.groups.remove(&group);
            }
            for key in woken {
                self.list(key);
            }
        }
        self.list(letter.order());
    }

    /// Takes the outcome of a try.
    pub fn done(&mut self, sending: InFlightReplay<T>, outcome: &TryOutcome, now: Tick) -> Verdict {
        let random = self.draw();
        let verdict = judge(outcome, sending.number, self.patience, random, now);
        if let Verdict::Again(due) = &verdict {
            let InFlightReplay { letter, number } = sending;
            let (key, client, is_closed) = (letter.order(), letter.client(), matches!(outcome, TryOutcome::NoRoom(_)));
            if is_closed {
                self.close(key.clone(), *due);
            } else {
                self.sleep((key.clone(), Some(client)), *due);
            }
            self.land(&letter);
            if let Some(line) = self.lines.get_mut(&key) {
                let tries = if is_closed { number - 1 } else { number };
                line.waiting += 1;
                line.clients.entry(client).or_default().push_front(QueuedRequest { letter, tries });
                if is_closed {
                    line.ready.push_front(client);
                }
            }
            return verdict;
        }
        self.forget(sending);
        verdict
    }

    /// A letter has its fate: the next of its key and client may go.
    pub fn forget(&mut self, sending: InFlightReplay<T>) {
        let letter = sending.letter;
        let (key, client) = (letter.order(), letter.client());
        self.waiting -= 1;
        self.bytes -= letter.bytes();
        if let Some(line) = self.lines.get_mut(&key) {
            if line.clients.get(&client).is_some_and(|queue| !queue.is_empty()) {
                line.ready.push_back(client);
            } else {
                line.clients.remove(&client);
            }
            if line.clients.is_empty() {
                self.lines.remove(&key);
            }
        }
        self.land(&letter);
    }

    /// A try was lost, and its letter with it. Others of its key and client do not go any more.
    pub fn lost(&mut self) {
        self.in_flight -= 1;
    }

    /// A number by splitmix64 (Steele, Lea, Flood, 2014).
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, Method};
    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_secs(1_000_000) + Span::from_millis(millis)
    }

    fn letter(id: usize, order: &str) -> ReplayRequest {
        ReplayRequest {
            id: id.to_string(),
            order: order.to_owned(),
            origin: None,
            request_id: None,
            method: Method::GET,
            host: "a.example".to_owned(),
            target: "/".to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            was_sealed: false,
        }
    }

    fn lineup(rate: &str, parallel: usize, max_tries: u32) -> ReplayScheduler {
        ReplayScheduler::new(rate.parse().unwrap(), parallel, Patience::tries(max_tries), 7).unwrap()
    }

    fn sending(lineup: &mut ReplayScheduler, now: Tick) -> Option<InFlightReplay> {
        match lineup.next(now) {
            NextSend::Send(sending) => Some(*sending),
            _ => None,
        }
    }

    const EIGHT: Patience = Patience { max_tries: 8, most: MOST_PATIENCE };
    const OK: TryOutcome = TryOutcome::Answered(200, None);
    const BUSY: TryOutcome = TryOutcome::Answered(503, None);

    #[test]
    fn tries_are_paced_by_a_leaky_bucket_retries_too() {
        let mut lineup = lineup("10/s", 8, 8);
        (0..5).for_each(|id| lineup.offer(letter(id, &id.to_string())));
        let mut sent = Vec::new();
        for millis in 0..1_000 {
            while let Some(one) = sending(&mut lineup, at(millis)) {
                sent.push(millis);
                // The first is tried twice.
                let outcome = if sent.len() == 1 { TryOutcome::Answered(429, Some(Span::ZERO)) } else { OK };
                lineup.done(one, &outcome, at(millis));
            }
        }
        assert_eq!(sent, [0, 100, 200, 300, 400, 500]);
        assert!(matches!(lineup.next(at(2_000)), NextSend::Idle));
    }

    #[test]
    fn a_key_waits_for_its_first_letter_and_others_do_not() {
        let mut lineup = lineup("1000/s", 8, 8);
        for (id, order) in [(1, "a"), (2, "a"), (3, "b")] {
            lineup.offer(letter(id, order));
        }
        let first = sending(&mut lineup, at(0)).unwrap();
        let other = sending(&mut lineup, at(1)).unwrap();
        assert_eq!((first.letter.id.as_str(), other.letter.id.as_str()), ("1", "3"));
        assert!(matches!(lineup.next(at(2)), NextSend::Busy));
        let patience = TryOutcome::Answered(503, Some(Span::from_secs(7)));
        assert_eq!(lineup.done(first, &patience, at(2)), Verdict::Again(at(7_002)), "Retry-After is a floor");
        lineup.done(other, &OK, at(3));
        assert!(matches!(lineup.next(at(3)), NextSend::Wait(due) if due == at(7_002)));
        let again = sending(&mut lineup, at(7_002)).unwrap();
        assert_eq!((again.letter.id.as_str(), again.number), ("1", 2));
        assert_eq!(
            lineup.done(again, &TryOutcome::Answered(404, None), at(7_003)),
            Verdict::Parked("status 404".to_owned())
        );
        assert_eq!(sending(&mut lineup, at(7_004)).unwrap().letter.id, "2", "a letter that is parked holds nobody up");
    }

    #[test]
    fn what_may_be_repeated_is_repeated_and_nothing_else() {
        let now = at(0);
        let is_again = |outcome: &TryOutcome| matches!(judge(outcome, 1, EIGHT, 5, now), Verdict::Again(_));
        let again: Vec<u16> = (100..600).filter(|status| is_again(&TryOutcome::Answered(*status, None))).collect();
        assert_eq!(again, [408, 425, 429, 502, 503, 504]);
        let sent: Vec<u16> = (100..600)
            .filter(|status| matches!(judge(&TryOutcome::Answered(*status, None), 1, EIGHT, 5, now), Verdict::Sent(_)))
            .collect();
        assert_eq!((sent.first(), sent.last(), sent.len()), (Some(&200), Some(&299), 100));
        assert!(is_again(&TryOutcome::Failed(SendError::Connect("refused".to_owned()))));
        for maybe_done in [SendError::Late, SendError::Broken("reset".to_owned())] {
            assert!(!is_again(&TryOutcome::Failed(maybe_done)));
        }
        assert_eq!(judge(&BUSY, 8, EIGHT, 5, now), Verdict::Parked("status 503 after 8 tries".to_owned()));
        let in_a_year = TryOutcome::Answered(503, Some(Span::from_secs(365 * 86_400)));
        assert_eq!(
            judge(&in_a_year, 1, EIGHT, 5, now),
            Verdict::Parked("status 503, which asks for a retry in 365d".to_owned())
        );
    }

    #[test]
    fn a_limit_without_room_costs_no_try_and_is_asked_again_when_it_has_some() {
        let mut lineup = lineup("1000/s", 8, 2);
        lineup.offer(letter(1, "a"));
        let mut now = at(0);
        for _ in 0..20 {
            let one = sending(&mut lineup, now).unwrap();
            assert_eq!(one.number, 1);
            let due = now + Span::from_millis(250);
            assert_eq!(lineup.done(one, &TryOutcome::NoRoom(Span::from_millis(250)), now), Verdict::Again(due));
            assert!(matches!(lineup.next(now), NextSend::Wait(next) if next == due));
            now = due;
        }
        let one = sending(&mut lineup, now).unwrap();
        assert_eq!(lineup.done(one, &OK, now), Verdict::Sent(200));
    }

    #[test]
    fn whoever_waits_goes_at_once_when_all_hurry() {
        let mut lineup = lineup("1000/s", 8, 8);
        ["a", "b"].into_iter().enumerate().for_each(|(id, order)| lineup.offer_for(letter(id, order), at(5)));
        assert!(matches!(lineup.next(at(0)), NextSend::Wait(due) if due == at(5)));
        for millis in [5, 6] {
            let one = sending(&mut lineup, at(millis)).unwrap();
            lineup.done(one, &TryOutcome::NoRoom(Span::from_secs(3_600 - millis)), at(millis));
        }
        assert!(sending(&mut lineup, at(10)).is_none());
        lineup.hurry();
        let orders = [20, 21].map(|millis| sending(&mut lineup, at(millis)).unwrap().letter.order);
        assert_eq!(orders, ["b", "a"], "those that are due first go first");
    }

    /// A letter of an order, and of a client.
    #[derive(Debug)]
    struct Shared(u32, u8, u128);

    impl Queued for Shared {
        type Order = u8;

        fn order(&self) -> u8 {
            self.1
        }

        fn bytes(&self) -> usize {
            1
        }

        fn client(&self) -> u128 {
            self.2
        }
    }

    fn shared(parallel: usize) -> ReplayScheduler<Shared> {
        ReplayScheduler::new("1000000/s".parse().unwrap(), parallel, Patience::ENDLESS, 7).unwrap()
    }

    #[test]
    fn clients_of_a_key_take_turns_and_none_waits_for_the_next_try_of_another() {
        let mut lineup = shared(1);
        for (id, client) in [(1, 1), (2, 1), (3, 2), (4, 3), (5, 2)] {
            lineup.offer_for(Shared(id, 0, client), at(0));
        }
        let mut now = at(0);
        let mut next = |lineup: &mut ReplayScheduler<Shared>| {
            now = now + Span::from_millis(1);
            match lineup.next(now) {
                NextSend::Send(sending) => Some((*sending, now)),
                _ => None,
            }
        };
        let (first, now) = next(&mut lineup).unwrap();
        assert_eq!(first.letter.0, 1);
        lineup.done(first, &TryOutcome::Answered(503, Some(Span::from_secs(60))), now);
        for expected in [3, 4] {
            let (one, now) = next(&mut lineup).unwrap();
            assert_eq!(one.letter.0, expected);
            lineup.done(one, &OK, now);
        }
        let (last, now) = next(&mut lineup).unwrap();
        assert_eq!(last.letter.0, 5);
        // A limit without room is asked by no letter, and the one that has asked it goes first when it has some.
        lineup.done(last, &TryOutcome::NoRoom(Span::from_millis(50)), now);
        lineup.offer_for(Shared(6, 0, 4), now);
        assert!(next(&mut lineup).is_none());
        let mut again = Vec::new();
        for _ in 0..100 {
            if let Some((one, now)) = next(&mut lineup) {
                again.push(one.letter.0);
                lineup.done(one, &OK, now);
            }
        }
        assert_eq!(again, [5, 6], "the next of the first client waits for its first");
        lineup.wake(&HashSet::from([(0, 1)]));
        assert_eq!(next(&mut lineup).unwrap().0.letter.0, 1);
    }

    #[test]
    fn clients_of_a_key_are_under_way_at_once_each_with_one_letter() {
        let mut lineup = shared(100);
        for id in 0..30 {
            lineup.offer(Shared(id, 0, u128::from(id % 15)));
        }
        lineup.offer(Shared(99, 1, 0));
        let mut under_way = Vec::new();
        let mut now = at(0);
        for _ in 0..100 {
            now = now + Span::from_millis(1);
            if let NextSend::Send(sending) = lineup.next(now) {
                under_way.push(sending);
            }
        }
        let mut ids: Vec<_> = under_way.iter().map(|sending| sending.letter.0).collect();
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7, 99]);
        for sending in under_way {
            lineup.forget(*sending);
        }
        assert_eq!(lineup.in_flight(), 0);
    }

    /// A letter of a client, of which two may be under way.
    struct OfClient(u32, u128);

    impl Queued for OfClient {
        type Order = u32;

        fn order(&self) -> u32 {
            self.0
        }

        fn bytes(&self) -> usize {
            1
        }

        fn groups(&self) -> Vec<(Group, usize)> {
            vec![((0, self.1), 2)]
        }
    }

    #[test]
    fn a_group_has_its_places_and_no_more() {
        let mut lineup = ReplayScheduler::new("1000000/s".parse().unwrap(), 4, Patience::ENDLESS, 7).unwrap();
        for (order, client) in [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2)] {
            lineup.offer(OfClient(order, client));
        }
        let mut now = at(0);
        let mut next = |lineup: &mut ReplayScheduler<OfClient>| {
            now = now + Span::from_millis(1);
            match lineup.next(now) {
                NextSend::Send(sending) => Some(*sending),
                _ => None,
            }
        };
        let (first, second) = (next(&mut lineup).unwrap(), next(&mut lineup).unwrap());
        let other = next(&mut lineup).unwrap();
        assert_eq!((first.letter.0, second.letter.0, other.letter.0), (1, 2, 5), "nobody waits for places of others");
        assert!(next(&mut lineup).is_none() && matches!(lineup.next(at(9)), NextSend::Busy));
        lineup.done(first, &BUSY, at(10));
        assert_eq!(next(&mut lineup).unwrap().letter.0, 3, "a try that is over gives its place back");
        lineup.forget(second);
        assert_eq!(next(&mut lineup).unwrap().letter.0, 4);
        lineup.forget(other);
        assert_eq!(lineup.groups.len(), 1);
    }

    #[test]
    fn a_key_that_is_woken_does_not_wait_and_others_do() {
        let mut lineup = lineup("1000/s", 8, 8);
        for (id, order) in [(1, "a"), (2, "b")] {
            lineup.offer_for(letter(id, order), at(60_000));
        }
        lineup.wake(&HashSet::from([("b".into(), 0)]));
        assert_eq!(sending(&mut lineup, at(0)).unwrap().letter.order, "b");
        assert!(matches!(lineup.next(at(1)), NextSend::Wait(due) if due == at(60_000)));
    }

    #[test]
    fn endless_patience_gives_nothing_up_that_may_be_repeated() {
        let busy = TryOutcome::Answered(503, Some(Span::from_secs(365 * 86_400)));
        let verdict = judge(&busy, u32::MAX - 1, Patience::ENDLESS, 5, at(0));
        assert_eq!(verdict, Verdict::Again(at(0) + Span::from_secs(365 * 86_400)));
        assert!(matches!(judge(&TryOutcome::Answered(404, None), 1, Patience::ENDLESS, 5, at(0)), Verdict::Parked(_)));
    }

    #[test]
    fn jitter_is_full_and_doubles_up_to_30_seconds() {
        let patience = Patience { max_tries: 100, ..EIGHT };
        let most = |tries| match judge(&BUSY, tries, patience, u64::MAX, at(0)) {
            Verdict::Again(due) => due.since(at(0)).as_millis_ceil(),
            _ => panic!("again"),
        };
        assert_eq!(
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 99].map(most),
            [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000, 30_000]
        );
        // All of the range, evenly: each tenth of it has a tenth of 10,000 draws, within a fifth.
        let mut lineup = lineup("1/s", 1, 8);
        let mut tenths = [0; 10];
        for _ in 0..10_000 {
            let random = lineup.draw();
            let Verdict::Again(due) = judge(&BUSY, 3, EIGHT, random, at(0)) else { panic!("again") };
            tenths[(due.since(at(0)).as_nanos() / 80_000_000) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (800..1_200).contains(count)), "{tenths:?}");
    }

    #[test]
    fn a_key_has_at_most_half_of_what_it_leaves() {
        let mut lineup = lineup("1/s", 1, 8);
        let mut count = 0;
        while lineup.has_room() && lineup.has_room_for(&"a".into()) {
            lineup.offer(letter(count, "a"));
            count += 1;
        }
        assert_eq!(count, MAX_WAITING / 3 + 1);
        assert!(lineup.has_room() && lineup.has_room_for(&"b".into()));
    }

    #[test]
    fn memory_is_bounded_by_letters_and_by_bytes() {
        let mut lineup = lineup("1/s", 1, 8);
        let mut count = 0;
        while lineup.has_room() {
            lineup.offer(letter(count, &count.to_string()));
            count += 1;
        }
        assert_eq!(count, MAX_WAITING);
        let mut large = letter(0, "a");
        large.body = vec![0; 1 << 20].into();
        let mut lineup = self::lineup("1/s", 1, 8);
        let mut count = 0;
        while lineup.has_room() {
            lineup.offer(large.clone());
            count += 1;
        }
        assert_eq!(count, 64);
    }

    proptest! {
        /// Every letter has one fate, those of a client and key in their order, whatever waits; and at the end nothing is kept.
        #[test]
        fn clients_that_share_a_key_have_their_order_and_none_is_forgotten(
            letters in proptest::collection::vec((0_u8..3, 0_u128..4), 1..60),
            outcomes in proptest::collection::vec(0_u8..6, 1..50),
            wakes in proptest::collection::vec((0_u8..9, 0_u8..3, 0_u128..4), 1..50),
            parallel in 1_usize..7,
        ) {
            let mut lineup = shared(parallel);
            let mut offered = letters.iter().enumerate();
            let (mut under_way, mut fates) = (Vec::<(u64, InFlightReplay<Shared>)>::new(), Vec::new());
            let mut closed = HashMap::<u8, u64>::new();
            let (mut millis, mut tries) = (0, 0);
            while fates.len() < letters.len() {
                prop_assert!(millis < 3_000_000, "it never ends");
                if let Some((id, (order, client))) = offered.next() {
                    lineup.offer_for(Shared(id as u32, *order, *client), at(millis));
                }
                match wakes[millis as usize % wakes.len()] {
                    (0, ..) => { lineup.hurry(); closed.clear(); }
                    (1, order, client) => { lineup.wake(&HashSet::from([(order, client)])); closed.remove(&order); }
                    _ => {}
                }
                while let NextSend::Send(one) = lineup.next(at(millis)) {
                    let Shared(_, order, client) = one.letter;
                    prop_assert!(closed.get(&order).is_none_or(|until| *until <= millis), "its limit has no room");
                    let same = |(_, other): &&(u64, InFlightReplay<Shared>)| other.letter.1 == order && other.letter.2 == client;
                    prop_assert!(!under_way.iter().any(|one| same(&one)), "two of a client and key at once");
                    under_way.push((millis + 3, *one));
                    prop_assert!(under_way.len() <= parallel);
                }
                let (over, rest): (Vec<_>, Vec<_>) = under_way.into_iter().partition(|(due, _)| *due <= millis);
                under_way = rest;
                for (_, one) in over {
                    tries += 1;
                    let outcome = match outcomes[tries % outcomes.len()] {
                        0 => BUSY,
                        1 => {
                            closed.insert(one.letter.1, millis + 40);
                            TryOutcome::NoRoom(Span::from_millis(40))
                        }
                        2 => TryOutcome::Answered(404, None),
                        _ => OK,
                    };
                    let Shared(id, order, client) = one.letter;
                    if !matches!(lineup.done(one, &outcome, at(millis)), Verdict::Again(_)) {
                        fates.push((order, client, id));
                    } else if outcomes.iter().all(|outcome| *outcome < 2) {
                        return Ok(());
                    }
                }
                millis += 1;
            }
            prop_assert!(matches!(lineup.next(at(millis + 100_000)), NextSend::Idle));
            prop_assert!(lineup.lines.is_empty() && lineup.in_flight() == 0 && lineup.waiting == 0);
            for (order, client) in letters {
                let of: Vec<_> = fates.iter().filter(|fate| (fate.0, fate.1) == (order, client)).map(|fate| fate.2).collect();
                prop_assert!(of.is_sorted(), "{of:?}");
            }
        }

        /// Every letter has one fate; letters of a key have theirs in order; no more are under way than asked for; tries are a
        /// turn apart.
        #[test]
        fn every_letter_has_one_fate_and_each_key_its_order(
            keys in proptest::collection::vec(0_u8..5, 1..60),
            outcomes in proptest::collection::vec(0_u8..4, 1..50),
            parallel in 1_usize..5,
            latency in 1_u64..40,
        ) {
            let mut lineup = lineup("100/s", parallel, 3);
            keys.iter().enumerate().for_each(|(id, key)| lineup.offer(letter(id, &key.to_string())));
            let mut under_way: Vec<(u64, InFlightReplay)> = Vec::new();
            let (mut fates, mut turns, mut tries) = (Vec::new(), Vec::new(), 0);
            let mut millis = 0;
            while fates.len() < keys.len() {
                prop_assert!(millis < 3_000_000, "it never ends");
                while let Some(one) = sending(&mut lineup, at(millis)) {
                    turns.push(millis);
                    under_way.push((millis + latency, one));
                    prop_assert!(under_way.len() <= parallel);
                }
                let (over, rest): (Vec<_>, Vec<_>) = under_way.into_iter().partition(|(due, _)| *due <= millis);
                under_way = rest;
                for (_, one) in over {
                    tries += 1;
                    let outcome = match outcomes[tries % outcomes.len()] {
                        0 | 1 => OK,
                        2 => BUSY,
                        _ => TryOutcome::Failed(SendError::Late),
                    };
                    let (id, order) = (one.letter.id.clone(), one.letter.order.clone());
                    if !matches!(lineup.done(one, &outcome, at(millis)), Verdict::Again(_)) {
                        fates.push((order, id.parse::<usize>().unwrap()));
                    }
                }
                millis += 1;
            }
            prop_assert!(matches!(lineup.next(at(millis)), NextSend::Idle));
            prop_assert!(turns.windows(2).all(|two| two[1] - two[0] >= 10), "{turns:?}");
            let mut ids: Vec<_> = fates.iter().map(|(_, id)| *id).collect();
            ids.sort_unstable();
            prop_assert_eq!(ids, (0..keys.len()).collect::<Vec<_>>());
            for key in 0..5_u8 {
                let of_key: Vec<_> = fates.iter().filter(|(order, _)| *order == key.to_string()).map(|(_, id)| *id).collect();
                prop_assert!(of_key.is_sorted(), "{of_key:?}");
            }
        }
    }
}
