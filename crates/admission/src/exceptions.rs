//! Exceptions of single keys of a limit, made by an operator: blocks by hand, and other numbers.
//!
//! A limit has one table of them, shared by all workers and by all configurations that have the limit: a change holds for the
//! next request. Nearly no limit has any, so a request pays one load of a flag for each of its limits, and all else is cold.
//!
//! An end is a time of the wall clock, with which that of a request is compared. So no timer is needed, and what has ended is removed when the table is
//! written the next time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use sluicegate_limiter::{Fingerprint, KeyHasher, Limit};
use sluicegate_time::{Tick, Wall, WallOffset};

/// The exceptions of one limit's keys.
#[derive(Debug)]
pub struct KeyExceptions {
    are_any: AtomicBool,
    books: RwLock<Box<[KeyBook]>>,
    offset: WallOffset,
}

/// Exceptions whose keys are known by one secret. A gateway of a fleet knows those of the fleet by the fleet's, whichever one the
/// limit counts by.
#[derive(Debug)]
pub struct KeyBook {
    /// Makes the fingerprints.
    pub hasher: KeyHasher,
    /// The exceptions.
    pub keys: HashMap<Fingerprint, KeyException>,
}

/// The exceptions of one key.
#[derive(Clone, Debug, Default)]
pub struct KeyException {
    /// It is refused.
    pub block: Option<Block>,
    /// It has numbers of its own.
    pub numbers: Option<OwnNumbers>,
    /// Something is to be done when it comes the next time.
    pub once: Option<Arc<PendingKeyAction>>,
}

/// Something that is done with a key once, when its next request comes.
#[derive(Debug)]
pub struct PendingKeyAction {
    /// The action.
    pub act: KeyAction,
    /// From then on it would change nothing.
    pub until: Wall,
    is_done: AtomicBool,
}

words! {
    /// Something that is done with the counts of a key.
    pub enum KeyAction {
        /// They are forgotten.
        Reset = "reset",
        /// The block of a penalty ends.
        EndBlock = "unblock",
    }
}

/// A block by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its end; `None`: it has none.
    pub until: Option<Wall>,
    /// Its maker.
    pub made: Made,
}

/// Numbers in the place of the limit's.
#[derive(Clone, Debug)]
pub struct OwnNumbers {
    /// Their end; `None`: they have none.
    pub until: Option<Wall>,
    /// Their maker.
    pub made: Made,
    /// As they are written.
    pub text: Arc<str>,
    /// The limit that counts by them; `None`: they do not fit the limit as it is now, and do not hold.
    pub limit: Option<Arc<Limit>>,
}

/// The origin of an exception.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// When.
    pub at: Wall,
    /// By whom.
    pub by: Arc<str>,
    /// Why, in the words of who made it.
    pub reason: Option<Arc<str>>,
}

impl KeyExceptions {
    /// The tick at which an end is.
    pub(super) fn tick(&self, end: Wall) -> Tick {
        self.offset.tick(end)
    }

    /// Replaces all of them.
    pub fn replace(&self, books: impl IntoIterator<Item = KeyBook>) {
        let books: Box<[KeyBook]> = books.into_iter().filter(|book| !book.keys.is_empty()).collect();
        let are_any = !books.is_empty();
        let old = std::mem::replace(&mut *self.books.write().unwrap_or_else(PoisonError::into_inner), books);
        self.are_any.store(are_any, Ordering::Release);
        // It may be large: not under the lock.
        drop(old);
    }

    /// Whether there is any.
    #[inline]
    pub fn are_any(&self) -> bool {
        self.are_any.load(Ordering::Relaxed)
    }

    /// Those of the key that `print` makes by the secret of each book; what holds at `now`.
    pub(super) fn find(&self, print: impl Fn(&KeyHasher) -> Option<Fingerprint>, now: Tick) -> Option<KeyException> {
        let now = self.offset.wall(now);
        let books = self.books.read().unwrap_or_else(PoisonError::into_inner);
        let of_book = |book: &KeyBook| book.keys.get(&print(&book.hasher)?)?.clone().at(now);
        books.iter().filter_map(of_book).reduce(KeyException::or)
    }
}

/// Two are equal if they are one: who has it sees the same changes.
impl Default for KeyExceptions {
    fn default() -> Self {
        Self { are_any: AtomicBool::default(), books: RwLock::default(), offset: WallOffset::of_system() }
    }
}

impl PartialEq for KeyExceptions {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for KeyExceptions {}

impl PendingKeyAction {
    /// Whether it was not done before; from now on it is.
    pub fn begins(&self) -> bool {
        !self.is_done.swap(true, Ordering::Relaxed)
    }

    /// Whether it is done.
    pub fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Relaxed)
    }

    /// It is yet to be done.
    pub fn new(act: KeyAction, until: Wall) -> Arc<Self> {
        Arc::new(Self { act, until, is_done: AtomicBool::new(false) })
    }
}

impl KeyException {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.block.is_none() && self.numbers.is_none() && self.once.is_none()
    }

    /// The part that still holds at `now`; `None`: nothing.
    pub fn at(mut self, now: Wall) -> Option<Self> {
        self.block = self.block.filter(|block| holds(block.until, now));
        self.numbers = self.numbers.filter(|numbers| holds(numbers.until, now));
        self.once = self.once.filter(|once| now < once.until && !once.is_done());
        (!self.is_empty()).then_some(self)
    }

    /// Adds the exceptions of another book, where this one has none.
    pub fn or(self, other: Self) -> Self {
        Self {
            block: self.block.or(other.block),
            numbers: self.numbers.or(other.numbers),
            once: self.once.or(other.once),
        }
    }
}

/// Whether something with this end holds at `now`.
fn holds(until: Option<Wall>, now: Wall) -> bool {
    until.is_none_or(|until| now < until)
}
