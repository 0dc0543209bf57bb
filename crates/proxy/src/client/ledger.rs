//! The account of each client with one worker: how much it holds, and how much it owes.
//!
//! A client is what `[client] max_connections` takes for one: an IPv4 address, or an IPv6 network of `ipv6_prefix` bits. A
//! connection of a peer of `trusted_proxies`, and one whose PROXY header has not come yet, has an account of its own. An
//! account is in the table while its client has a connection here, and after that until its debts are paid. It costs one
//! look-up for each connection and nothing for a request.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Deref;
use std::rc::{Rc, Weak};

use super::given_up::GivenUp;
use super::h2_share::H2Share;
use sluicegate_limiter::Fingerprint;
use sluicegate_time::Tick;

/// Clients that one worker knows at once. Beyond, the client that left first is forgotten with its debts; if all have
/// connections, the next one's connection has an account of its own.
const MAX_ACCOUNTS: usize = 65_536;

/// The number of the account that connections share whose client is not known yet.
pub const UNKNOWN: usize = 0;

/// How many bytes bodies hold that are kept or read ahead: of a worker, or of a client.
pub type BodyRoom = Rc<Cell<usize>>;

/// The accounts of one worker.
pub struct ClientLedger {
    accounts: RefCell<HashMap<Fingerprint, Rc<ClientAccount>>>,
    /// Accounts that owe something and had no connection when they got here, oldest first.
    debtors: RefCell<VecDeque<Rc<ClientAccount>>>,
    numbers: Numbers,
    unknown: Rc<ClientAccount>,
    most: usize,
}

/// The account of one client: how much it holds and owes.
#[derive(Default)]
pub struct ClientAccount {
    key: Option<Fingerprint>,
    number: u32,
    ledger: Weak<ClientLedger>,
    connections: Cell<u32>,
    is_debtor: Cell<bool>,
    /// Requests of HTTP/2 that it has given up.
    pub given_up: GivenUp,
    /// Its share of HTTP/2: how much it holds.
    pub h2: H2Share,
    /// How many bytes its bodies hold that are kept or read ahead.
    pub bodies: OnceCell<BodyRoom>,
}

/// Numbers of accounts: small, and given again.
#[derive(Debug, Default)]
struct Numbers {
    next: Cell<u32>,
    free: RefCell<Vec<u32>>,
}

/// A connection on its client's account, for as long as this lives.
#[derive(Debug)]
pub struct Entered(Rc<ClientAccount>);

impl ClientLedger {
    /// No accounts yet.
    pub fn new() -> Rc<Self> {
        Self::with_room(MAX_ACCOUNTS)
    }

    fn with_room(most: usize) -> Rc<Self> {
        let (accounts, debtors, numbers, unknown) = Default::default();
        Rc::new(Self { accounts, debtors, numbers, unknown, most })
    }

    /// Counts a connection of the client with this key; `None`: of nobody that others could share it with.
    pub fn enter(self: &Rc<Self>, key: Option<Fingerprint>) -> Entered {
        let account = match key {
            Some(key) => self.account(key),
            None => self.open(None),
        };
        account.enter()
    }

    /// Counts nothing: whose connection it is will be known later. Such connections share an account, so that one that waits
    /// costs little; `Holdings` takes each of them for a client of its own.
    pub fn enter_unknown(&self) -> Entered {
        Entered(Rc::clone(&self.unknown))
    }

    fn account(self: &Rc<Self>, key: Fingerprint) -> Rc<ClientAccount> {
        if let Some(known) = self.accounts.borrow().get(&key) {
            return Rc::clone(known);
        }
        if self.accounts.borrow().len() >= self.most && !self.forget_a_debtor() {
            return self.open(None);
        }
        let account = self.open(Some(key));
        self.accounts.borrow_mut().insert(key, Rc::clone(&account));
        account
    }

    fn open(self: &Rc<Self>, key: Option<Fingerprint>) -> Rc<ClientAccount> {
        Rc::new(ClientAccount {
            key,
            number: self.numbers.take(),
            ledger: Rc::downgrade(self),
            connections: Cell::new(0),
            is_debtor: Cell::new(false),
            given_up: GivenUp::default(),
            h2: H2Share::default(),
            bodies: OnceCell::new(),
        })
    }

    fn forget_a_debtor(&self) -> bool {
        let mut debtors = self.debtors.borrow_mut();
        while let Some(account) = debtors.pop_front() {
            account.is_debtor.set(false);
            if account.connections.get() == 0 {
                self.remove(&account);
                return true;
            }
        }
        false
    }

    fn remove(&self, account: &ClientAccount) {
        if let Some(key) = account.key {
            self.accounts.borrow_mut().remove(&key);
        }
    }

    fn leave(&self, account: &Rc<ClientAccount>) {
        let left = account.connections.get().saturating_sub(1);
        account.connections.set(left);
        if left > 0 || account.key.is_none() {
            return;
        }
        if !account.has_owed() {
            self.remove(account);
        } else if !account.is_debtor.replace(true) {
            self.debtors.borrow_mut().push_back(Rc::clone(account));
        }
    }

    /// Forgets clients that have left and owe nothing any more. To be called every few seconds.
    pub fn prune(&self, now: Tick) {
        self.debtors.borrow_mut().retain(|account| {
            let is_here = account.connections.get() > 0;
            let stays = !is_here && account.owes(now);
            if !stays {
                account.is_debtor.set(false);
            }
            if !stays && !is_here {
                self.remove(account);
            }
            stays
        });
    }

    /// Clients in the table.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.accounts.borrow().len()
    }
}

impl ClientAccount {
    /// Its number: no other account of its worker has it at the same time, and numbers are small. That of connections whose
    /// client is not known yet is [`UNKNOWN`].
    pub fn number(&self) -> usize {
        self.number as usize
    }

    /// Whether it is that of one client, whatever connections it has. That of a proxy, who speaks for many, is of one
    /// connection.
    pub fn is_of_one_client(&self) -> bool {
        self.key.is_some()
    }

    /// Connections that it has open on this worker.
    pub fn connections(&self) -> u32 {
        self.connections.get()
    }

    /// Counts one more connection for it.
    pub fn enter(self: &Rc<Self>) -> Entered {
        self.connections.set(self.connections.get() + 1);
        Entered(Rc::clone(self))
    }

    /// A connection that was [handed over](Entered::hand_over) ends.
    pub fn leave(self: &Rc<Self>) {
        if let Some(ledger) = self.ledger.upgrade() {
            ledger.leave(self);
        }
    }

    /// Whether it may have owed something at any time.
    fn has_owed(&self) -> bool {
        self.given_up.has_owed()
    }

    fn owes(&self, now: Tick) -> bool {
        !self.given_up.owed(now).is_zero()
    }
}

impl fmt::Debug for ClientAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientAccount").field(&self.number).finish()
    }
}

impl Drop for ClientAccount {
    fn drop(&mut self) {
        if let Some(ledger) = self.ledger.upgrade() {
            ledger.numbers.give_back(self.number);
        }
    }
}

impl Numbers {
    fn take(&self) -> u32 {
        self.free.borrow_mut().pop().unwrap_or_else(|| {
            // The first one is that of the unknown.
            self.next.set(self.next.get() + 1);
            self.next.get()
        })
    }

    fn give_back(&self, number: u32) {
        self.free.borrow_mut().push(number);
    }
}

impl Entered {
    /// The account, with the connection on it: the code that takes it lets the connection
    /// [leave](ClientAccount::leave).
    pub fn hand_over(self) -> Rc<ClientAccount> {
        self.0.connections.set(self.0.connections.get() + 1);
        Rc::clone(&self.0)
    }

    /// The account that it is on.
    pub fn account(&self) -> &Rc<ClientAccount> {
        &self.0
    }
}

impl Deref for Entered {
    type Target = ClientAccount;

    fn deref(&self) -> &ClientAccount {
        &self.0
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_time::Span;

    /// Requests that are given up, for what takes a second to pay.
    const A_SECONDS: u32 = 500;

    fn client(number: u64) -> Option<Fingerprint> {
        Fingerprint::known(number)
    }

    fn at(secs: u64) -> Tick {
        Tick::ZERO + Span::from_secs(secs)
    }

    #[test]
    fn connections_of_a_client_are_on_one_account_until_the_last_has_gone() {
        let ledger = ClientLedger::with_room(8);
        let (one, other, same) = (ledger.enter(client(1)), ledger.enter(client(2)), ledger.enter(client(1)));
        assert!(Rc::ptr_eq(one.account(), same.account()));
        assert_eq!((one.connections(), other.connections(), ledger.len()), (2, 1, 2));
        drop(one);
        assert_eq!((same.connections(), ledger.len()), (1, 2));
        drop(same);
        assert_eq!(ledger.len(), 1);
        assert_eq!(ledger.enter(client(1)).connections(), 1);
    }

    #[test]
    fn a_connection_that_is_handed_over_counts_until_it_leaves() {
        let ledger = ClientLedger::with_room(8);
        let account = ledger.enter(client(1)).hand_over();
        assert_eq!((account.connections(), ledger.len()), (1, 1));
        account.leave();
        assert_eq!((account.connections(), ledger.len()), (0, 0));
    }

    #[test]
    fn a_connection_without_a_client_shares_with_nobody_and_is_not_in_the_table() {
        let ledger = ClientLedger::with_room(8);
        let (one, other) = (ledger.enter(None), ledger.enter(None));
        assert!(!Rc::ptr_eq(one.account(), other.account()));
        assert_eq!((one.connections(), ledger.len()), (1, 0));
        one.given_up.note(A_SECONDS, 0, at(1));
        drop(one);
        assert!(ledger.debtors.borrow().is_empty(), "nobody could come back to pay it");
    }

    #[test]
    fn numbers_are_given_again_once_nobody_has_the_account_any_more() {
        let ledger = ClientLedger::with_room(8);
        let (zero, one) = (ledger.enter(client(7)), ledger.enter(None));
        assert_eq!((zero.number(), one.number()), (1, 2));
        let held = Rc::clone(zero.account());
        drop(zero);
        let two = ledger.enter(client(8));
        assert_eq!(two.number(), 3, "a stream may still hold the account");
        drop(held);
        assert_eq!(ledger.enter(client(9)).number(), 1);
        assert_eq!(ledger.enter(client(8)).number(), 3);
        assert_eq!(ledger.enter_unknown().number(), UNKNOWN);
    }

    #[test]
    fn who_leaves_with_a_debt_finds_it_again_until_it_is_paid() {
        let ledger = ClientLedger::with_room(8);
        let first = ledger.enter(client(1));
        first.given_up.note(A_SECONDS, 0, at(10));
        first.given_up.note(A_SECONDS, 0, at(10));
        drop(first);
        ledger.prune(at(11));
        assert_eq!(ledger.len(), 1);
        let again = ledger.enter(client(1));
        assert_eq!(again.given_up.owed(at(11)), Span::from_secs(1));
        ledger.prune(at(11));
        assert!(ledger.debtors.borrow().is_empty(), "it is here");
        drop(again);
        ledger.prune(at(12) - Span::from_nanos(1));
        assert_eq!(ledger.len(), 1);
        ledger.prune(at(12));
        assert_eq!((ledger.len(), ledger.debtors.borrow().len()), (0, 0));
    }

    #[test]
    fn who_comes_and_goes_with_a_debt_is_listed_once() {
        let ledger = ClientLedger::with_room(8);
        for _ in 0..5 {
            ledger.enter(client(1)).given_up.note(A_SECONDS, 0, at(1));
        }
        assert_eq!((ledger.debtors.borrow().len(), ledger.len()), (1, 1));
        ledger.prune(at(6));
        assert_eq!((ledger.debtors.borrow().len(), ledger.len()), (0, 0));
    }

    #[test]
    fn a_full_table_forgets_the_debtor_that_left_first() {
        let ledger = ClientLedger::with_room(2);
        for (number, secs) in [(1, 9), (2, 5)] {
            ledger.enter(client(number)).given_up.note(secs * A_SECONDS, 0, at(1));
        }
        let third = ledger.enter(client(3));
        assert_eq!(ledger.len(), 2);
        let second = ledger.enter(client(2));
        assert_eq!(second.given_up.owed(at(1)), Span::from_secs(5), "kept");
        // All that are left have connections.
        let fourth = ledger.enter(client(4));
        assert_eq!((ledger.len(), fourth.connections()), (2, 1));
        assert!(!Rc::ptr_eq(fourth.account(), ledger.enter(client(4)).account()));
        drop(third);
        assert!(Rc::ptr_eq(ledger.enter(client(4)).account(), ledger.enter(client(4)).account()), "there is room");
    }
}
