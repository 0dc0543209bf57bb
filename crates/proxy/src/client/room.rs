//! Room for connections where a bound on them is near: of all listeners of a worker, which connection gives.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::rc::{Rc, Weak};

use super::connection::Listening;
use super::holdings::Holdings;
use sluicegate_time::Tick;

/// The listeners of one worker, as far as connections of theirs may be closed.
#[derive(Default)]
pub struct Room(RefCell<Vec<Weak<Listening>>>);

/// Least for the listener that has the first connection to give: of the client that has most, and then the oldest.
fn rank<T>(holdings: &Holdings<T>) -> (Reverse<u32>, Option<Tick>) {
    (Reverse(holdings.most()), holdings.oldest_of_heaviest().map(|(_, _, since)| since))
}

impl Room {
    /// Knows of a listener from now on, for as long as it or a connection of it is there.
    pub fn add(&self, listening: &Rc<Listening>) {
        let mut all = self.0.borrow_mut();
        all.retain(|known| known.strong_count() > 0);
        all.push(Rc::downgrade(listening));
    }

    /// Asks a connection to end, of this listener or of any: one that has been silent for long; else one of the client
    /// that has most of them, silent or idle; of several such clients the one whose connection is oldest, or has been
    /// idle longest. One that is silent and has come just now is asked only if its client has several, or if room
    /// `is_needed` and nobody is idle. Whether there is one.
    pub fn make(&self, of: Option<&Rc<Listening>>, is_needed: bool, now: Tick) -> bool {
        let mut all: Vec<_> = match of {
            Some(listening) => vec![Rc::clone(listening)],
            None => self.0.borrow().iter().filter_map(Weak::upgrade).collect(),
        };
        all.sort_by_key(|listening| rank(&listening.reclaimable.silent.borrow()));
        let silent = all.first().cloned();
        let most_silent = silent.as_ref().map_or(0, |listening| listening.reclaimable.silent.borrow().most());
        let dismiss_silent =
            |for_long| silent.as_ref().is_some_and(|listening| listening.reclaimable.dismiss_silent(for_long, now));
        all.sort_by_key(|listening| rank(&listening.reclaimable.idle.borrow()));
        let most_idle = all.first().map_or(0, |listening| listening.reclaimable.idle.borrow().most());
        dismiss_silent(true)
            || most_silent > most_idle.max(1) && dismiss_silent(false)
            || all.iter().any(|listening| listening.reclaimable.dismiss_idle())
            || is_needed && dismiss_silent(false)
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::{Connection, PeerFacts};
    use super::super::ledger::{ClientLedger, Entered};
    use super::*;
    use crate::deadlines::Dismissed;
    use sluicegate_time::Span;

    fn clients<const COUNT: usize>() -> [Entered; COUNT] {
        let ledger = ClientLedger::new();
        std::array::from_fn(|_| ledger.enter(None))
    }

    fn listening() -> Rc<Listening> {
        Listening::new(sluicegate_config::ListenAddress::Tcp("127.0.0.1:80".parse().unwrap()))
    }

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    fn connection(client: &Entered, listening: &Rc<Listening>) -> Rc<Connection> {
        let (peer, account) = ("192.0.2.1:9".parse().unwrap(), Rc::clone(client.account()));
        Connection::new(1, peer, PeerFacts::default(), account, Rc::clone(listening), u32::MAX, at(0))
    }

    /// One that has carried a request and is idle since then.
    fn idle(client: &Entered, listening: &Rc<Listening>, since: u64) -> Rc<Connection> {
        let connection = connection(client, listening);
        connection.begin_request();
        connection.rest(at(since));
        connection
    }

    fn silent(client: &Entered, listening: &Rc<Listening>, since: u64) -> Rc<Connection> {
        let connection = connection(client, listening);
        connection.list_silent(at(since));
        connection
    }

    fn dismissed(connection: &Rc<Connection>) -> Option<Dismissed> {
        connection.alarm.take_dismissal()
    }

    #[test]
    fn the_client_that_has_most_gives_its_longest_idle() {
        let ([one, other], listening) = (clients(), listening());
        let (room, all) = (Room::default(), [idle(&one, &listening, 5), idle(&other, &listening, 20)]);
        let more = [idle(&other, &listening, 25), idle(&other, &listening, 30)];
        room.add(&listening);
        // One that carried a request meanwhile is no longer the one that is idle longest.
        all[1].begin_request();
        all[1].rest(at(40));
        assert!(room.make(None, false, at(50)));
        assert_eq!(dismissed(&more[0]), Some(Dismissed::Idle));
        assert!(room.make(None, false, at(50)));
        assert_eq!(dismissed(&more[1]), Some(Dismissed::Idle));
        // Now each has one.
        assert!(room.make(None, false, at(50)) && room.make(None, false, at(50)));
        assert_eq!((dismissed(&all[0]), dismissed(&all[1])), (Some(Dismissed::Idle), Some(Dismissed::Idle)));
        assert!(!room.make(None, true, at(50)), "each is asked once");
    }

    #[test]
    fn a_busy_connection_stays_and_is_listed_again_when_it_rests() {
        let ([client], listening, room) = (clients(), listening(), Room::default());
        room.add(&listening);
        let connection = idle(&client, &listening, 1);
        connection.begin_request();
        assert!(!room.make(None, true, at(9)));
        connection.rest(at(10));
        assert!(room.make(None, true, at(11)));
        assert_eq!(dismissed(&connection), Some(Dismissed::Idle));
        // Its request came all the same: it stays, and its turn comes again.
        connection.begin_request();
        connection.rest(at(12));
        assert!(room.make(None, true, at(13)));
    }

    #[test]
    fn silence_goes_first_once_it_has_lasted() {
        let ([one, other], listening, room) = (clients(), listening(), Room::default());
        room.add(&listening);
        let used = [idle(&one, &listening, 1), idle(&one, &listening, 2), idle(&one, &listening, 3)];
        let fresh = silent(&other, &listening, 1_000);
        assert!(room.make(None, true, at(1_999)), "its request may be on its way");
        assert_eq!((dismissed(&used[0]), dismissed(&fresh)), (Some(Dismissed::Idle), None));
        assert!(room.make(None, false, at(2_000)));
        assert_eq!((dismissed(&used[1]), dismissed(&fresh)), (None, Some(Dismissed::Silent)));
        // Where nobody is idle, any silence will do, but only if it has to.
        let fresh = silent(&other, &listening, 2_000);
        assert!(room.make(None, false, at(2_001)) && room.make(None, false, at(2_001)));
        assert!(!room.make(None, false, at(2_001)));
        assert_eq!(dismissed(&fresh), None);
        assert!(room.make(None, true, at(2_001)));
        assert_eq!(dismissed(&fresh), Some(Dismissed::Silent));
    }

    #[test]
    fn who_opens_many_at_once_gives_of_these_and_not_who_is_idle() {
        let ([one, other], listening, room) = (clients(), listening(), Room::default());
        room.add(&listening);
        let used = idle(&one, &listening, 1);
        let fresh: Vec<_> = (0..3).map(|number| silent(&other, &listening, 10 + number)).collect();
        assert!(room.make(None, false, at(20)) && room.make(None, false, at(20)));
        assert_eq!(fresh.iter().filter_map(dismissed).collect::<Vec<_>>(), [Dismissed::Silent; 2]);
        assert_eq!(dismissed(&used), None);
        assert!(room.make(None, false, at(20)));
        assert_eq!((dismissed(&used), dismissed(&fresh[2])), (Some(Dismissed::Idle), None));
    }

    #[test]
    fn a_head_that_does_not_go_on_is_silence_and_a_whole_one_is_not() {
        let ([client], listening, room) = (clients(), listening(), Room::default());
        room.add(&listening);
        let connection = idle(&client, &listening, 1);
        connection.list_silent(at(5));
        connection.list_silent(at(900));
        assert!(room.make(None, false, at(1_005)), "since its first byte");
        assert_eq!(dismissed(&connection), Some(Dismissed::Silent));
        let other = silent(&client, &listening, 5);
        other.begin_request();
        assert!(!room.make(None, true, at(9_000)));
    }

    #[test]
    fn each_listener_has_its_own_and_a_worker_takes_from_the_heaviest() {
        let ([one, other], here, there, room) = (clients(), listening(), listening(), Room::default());
        room.add(&here);
        room.add(&there);
        let kept = idle(&one, &here, 1);
        let many = [idle(&other, &there, 2), idle(&other, &there, 3)];
        assert!(room.make(None, false, at(9)));
        assert_eq!((dismissed(&kept), dismissed(&many[0])), (None, Some(Dismissed::Idle)));
        assert!(room.make(Some(&here), false, at(9)));
        assert_eq!(dismissed(&kept), Some(Dismissed::Idle));
        assert!(!room.make(Some(&here), true, at(9)));
        many[1].delist();
        assert!(!room.make(None, true, at(9)));
        drop((kept, many));
        drop(there);
        room.add(&here);
        assert_eq!(room.0.borrow().len(), 2, "a listener that is gone is forgotten");
    }

    #[test]
    fn of_listeners_with_as_many_the_one_with_the_oldest_gives() {
        let ([one, other], here, there, room) = (clients(), listening(), listening(), Room::default());
        room.add(&here);
        room.add(&there);
        let used = [idle(&one, &here, 2), idle(&other, &there, 1)];
        assert!(room.make(None, false, at(9)));
        assert_eq!((dismissed(&used[0]), dismissed(&used[1])), (None, Some(Dismissed::Idle)));
        let begun = [silent(&one, &here, 11), silent(&other, &there, 10)];
        assert!(room.make(None, false, at(2_000)));
        assert_eq!((dismissed(&begun[0]), dismissed(&begun[1])), (None, Some(Dismissed::Silent)));
    }

    #[test]
    fn many_clients_with_one_connection_each_do_not_outlast_who_comes_later() {
        let (clients, listening, room) = (clients::<340>(), listening(), Room::default());
        room.add(&listening);
        let all: Vec<_> =
            clients.iter().enumerate().map(|(number, client)| idle(client, &listening, number as u64)).collect();
        for gone in &all[..300] {
            assert!(room.make(None, false, at(1_000)));
            assert_eq!(dismissed(gone), Some(Dismissed::Idle));
        }
        assert!(all[300..].iter().all(|kept| dismissed(kept).is_none()));
    }

    #[test]
    fn where_more_were_used_than_are_looked_at_the_longest_idle_of_these_goes() {
        let (clients, listening, room) = (clients::<340>(), listening(), Room::default());
        room.add(&listening);
        let all: Vec<_> = clients.iter().map(|client| idle(client, &listening, 1)).collect();
        for (number, connection) in all.iter().enumerate() {
            connection.begin_request();
            connection.rest(at(if number == 77 { 10 } else { 20 }));
        }
        assert!(room.make(None, false, at(30)));
        let gone: Vec<_> = (0..340).filter(|number| dismissed(&all[*number]).is_some()).collect();
        assert_eq!(gone, [77]);
    }
}
