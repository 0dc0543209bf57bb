//! Who goes next, and when: pure, time is an argument.
//!
//! - Each try waits for its turn in the limiter's own leaky bucket, so that `10/s` is one each 100 ms, retries too.
//! - Letters of one key go in their order: the next when the one before has its fate.
//! - A try that may be repeated is, after a random time of [0, min(30 s, 200 ms x 2^n)), n from 0 ("full jitter": Brooker,
//!   "Exponential Backoff And Jitter", AWS 2015), and not before the answer's `Retry-After`.
//! - At most [`MAX_WAITING`] letters and [`MAX_WAITING_BYTES`] are in memory; its caller reads on when there is room.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use super::letter::Letter;
use crate::http_client::SendError;
use crate::limiter::{Algorithm, Fingerprint, KeyHasher, LeakyBucket, Limit, LimitSpec, Mode, OnFull, Rate};
use crate::time::{Span, Tick};

/// Tries of one letter, unless the operator says otherwise.
pub const MAX_TRIES: u32 = 8;
/// Letters in memory.
const MAX_WAITING: usize = 4096;
/// Bytes of them.
const MAX_WAITING_BYTES: usize = 64 * 1024 * 1024;
/// The first bound of the jitter, which doubles, and the last one.
const FIRST_JITTER: Span = Span::from_millis(200);
const MOST_JITTER: Span = Span::from_secs(30);
/// A server that asks for more patience is not waited for.
const MOST_PATIENCE: Span = Span::from_secs(60 * 60);

/// A letter that is under way.
#[derive(Debug)]
pub struct Sending {
    /// The letter.
    pub letter: Letter,
    /// The number of this try, from 1.
    pub number: u32,
}

/// What to do now.
#[derive(Debug)]
pub enum Next {
    /// Send this.
    Send(Box<Sending>),
    /// Nothing before then, unless an answer comes.
    Wait(Tick),
    /// Nothing until an answer comes.
    Busy,
    /// Nothing is left.
    Idle,
}

/// What came of a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// An answer with this status, and when its server wants to be asked again.
    Answered(u16, Option<Span>),
    /// None.
    Failed(SendError),
}

/// What becomes of a letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was taken, with this status.
    Sent(u16),
    /// It is set aside.
    Parked(String),
    /// It is tried again, not before then.
    Again(Tick),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered(status, _) => write!(f, "status {status}"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

/// Whether a try that ended so may be repeated.
fn is_retriable(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Answered(status, _) => matches!(status, 408 | 425 | 429 | 502 | 503 | 504),
        Outcome::Failed(SendError::Connect(_)) => true,
        // It may have been done.
        Outcome::Failed(SendError::Late | SendError::Broken(_)) => false,
    }
}

/// The longest random time after so many tries.
fn most_jitter(tries: u32) -> Span {
    let doubled = FIRST_JITTER.as_nanos().checked_shl(tries.saturating_sub(1)).unwrap_or(u64::MAX);
    let is_exact = tries <= 20;
    if is_exact { Span::from_nanos(doubled).min(MOST_JITTER) } else { MOST_JITTER }
}

/// The fate of a letter after so many tries, of which the last ended so. `random` is any number.
fn judge(outcome: &Outcome, tries: u32, max_tries: u32, random: u64, now: Tick) -> Verdict {
    match outcome {
        Outcome::Answered(status @ 200..=299, _) => return Verdict::Sent(*status),
        outcome if !is_retriable(outcome) => return Verdict::Parked(outcome.to_string()),
        _ => {}
    }
    if tries >= max_tries {
        return Verdict::Parked(format!("{outcome} after {tries} tries"));
    }
    let floor = if let Outcome::Answered(_, after) = outcome { after.unwrap_or(Span::ZERO) } else { Span::ZERO };
    if floor > MOST_PATIENCE {
        return Verdict::Parked(format!("{outcome}, which asks for a retry in {floor}"));
    }
    let most = most_jitter(tries).as_nanos();
    let jitter = Span::from_nanos(random % most);
    Verdict::Again(now + jitter.max(floor))
}

/// A letter that waits.
struct Item {
    letter: Letter,
    tries: u32,
}

/// The letters that are waiting, and the pace.
pub struct Lineup {
    pace: Arc<Limit>,
    pace_key: Fingerprint,
    /// The turn of the next try, once it has one.
    turn: Option<Tick>,
    parallel: usize,
    max_tries: u32,
    random: u64,
    /// By key, in order; of those with a letter under way too.
    queues: HashMap<Rc<str>, VecDeque<Item>>,
    /// Keys whose first letter may go.
    ready: VecDeque<Rc<str>>,
    /// Keys whose first letter has to wait.
    later: BinaryHeap<Reverse<(Tick, u64, Rc<str>)>>,
    order: u64,
    waiting: usize,
    bytes: usize,
    in_flight: usize,
}

impl Lineup {
    /// Nobody yet. `seed` makes the jitter.
    pub fn new(rate: Rate, parallel: usize, max_tries: u32, seed: u64) -> Option<Self> {
        let bucket = LeakyBucket::new(&[rate], None).ok()?;
        let pace = Limit::new(LimitSpec {
            name: "replay".into(),
            algorithm: Algorithm::LeakyBucket(bucket),
            mode: Mode::Enforce,
            max_wait: Span::ZERO,
            max_queue: None,
            max_keys: 1,
            on_full: OnFull::EvictOldest,
            penalty: None,
            sharing: None,
        });
        Some(Self {
            pace,
            pace_key: KeyHasher::random().start().finish(),
            turn: None,
            parallel: parallel.max(1),
            max_tries: max_tries.max(1),
            random: seed,
            queues: HashMap::new(),
            ready: VecDeque::new(),
            later: BinaryHeap::new(),
            order: 0,
            waiting: 0,
            bytes: 0,
            in_flight: 0,
        })
    }

    /// Whether another letter may come.
    pub fn has_room(&self) -> bool {
        self.waiting < MAX_WAITING && self.bytes < MAX_WAITING_BYTES
    }

    /// Takes a letter, behind those of its key.
    pub fn offer(&mut self, letter: Letter) {
        self.waiting += 1;
        self.bytes += letter.bytes();
        let key: Rc<str> = letter.order.as_str().into();
        let queue = self.queues.entry(Rc::clone(&key)).or_insert_with(|| {
            self.ready.push_back(key);
            VecDeque::new()
        });
        queue.push_back(Item { letter, tries: 0 });
    }

    /// How many letters are under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// What to do now.
    pub fn next(&mut self, now: Tick) -> Next {
        while let Some(Reverse((due, _, _))) = self.later.peek()
            && *due <= now
            && let Some(Reverse((_, _, key))) = self.later.pop()
        {
            self.ready.push_back(key);
        }
        let later = self.later.peek().map(|Reverse((due, _, _))| *due);
        if self.in_flight >= self.parallel || self.ready.is_empty() {
            return match later {
                Some(due) if self.in_flight < self.parallel => Next::Wait(due),
                _ if self.in_flight > 0 => Next::Busy,
                _ => Next::Idle,
            };
        }
        let turn = *self.turn.get_or_insert_with(|| self.pace.charge(self.pace_key, 1, now));
        if now < turn {
            return Next::Wait(turn);
        }
        let first = self.ready.pop_front().and_then(|key| self.queues.get_mut(&key)?.pop_front());
        let Some(Item { letter, tries }) = first else { return Next::Wait(now) };
        self.turn = None;
        self.in_flight += 1;
        Next::Send(Box::new(Sending { letter, number: tries + 1 }))
    }

    /// Takes the outcome of a try.
    pub fn done(&mut self, sending: Sending, outcome: &Outcome, now: Tick) -> Verdict {
        let Sending { letter, number } = sending;
        self.in_flight -= 1;
        let random = self.draw();
        let verdict = judge(outcome, number, self.max_tries, random, now);
        let key: Rc<str> = letter.order.as_str().into();
        if let Verdict::Again(due) = &verdict {
            if let Some(queue) = self.queues.get_mut(&key) {
                queue.push_front(Item { letter, tries: number });
            }
            self.order += 1;
            self.later.push(Reverse((*due, self.order, key)));
            return verdict;
        }
        self.waiting -= 1;
        self.bytes -= letter.bytes();
        if self.queues.get(&key).is_some_and(|queue| !queue.is_empty()) {
            self.ready.push_back(key);
        } else {
            self.queues.remove(&key);
        }
        verdict
    }

    /// A try was lost, and its letter with it. Others of its key do not go any more.
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
