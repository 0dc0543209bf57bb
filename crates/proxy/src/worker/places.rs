//! The places of connections on a worker: by which bounds there are too many, and what makes room.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::state::Worker;
use crate::client::{ClientAccount, Entered, Listening};
use crate::snapshot::{ConnectionRejection, ConnectionSlot, Listener, Snapshot, headroom};
use sluicegate_limiter::{Ask, Counting, Fingerprint, Permit, Report, Verdict};
use sluicegate_time::{Span, Tick};

/// An open connection of a worker.
pub struct ConnectionGuard {
    place: OpenPlace,
    entered: Entered,
}

/// Its place among them.
pub struct OpenPlace {
    worker: Rc<Worker>,
    held: Option<Box<ConnectionHoldings>>,
}

/// The bounded things that a connection holds, given back when it ends.
struct ConnectionHoldings {
    permit: Permit,
    _place: Option<ConnectionSlot>,
}

impl Worker {
    /// Open client connections.
    pub fn open_connections(&self) -> u64 {
        self.gauges.connections.load(Ordering::Relaxed)
    }

    /// Counts a connection for as long as the guard lives; by which bound there are too many, if there are.
    /// Of whom it is may be known [later](ConnectionGuard::set_client).
    pub fn connection_opened(
        self: &Rc<Self>,
        client: Option<IpAddr>,
        listener: &Listener,
    ) -> Result<ConnectionGuard, ConnectionRejection> {
        let snapshot = Arc::clone(&self.view.borrow().snapshot);
        let key = client.and_then(|client| snapshot.rules.key_of_peer(client));
        let held = self.take_places(&snapshot, key, listener)?;
        self.connections.accepted.inc();
        self.gauges.connections.fetch_add(1, Ordering::Relaxed);
        let place = OpenPlace { worker: Rc::clone(self), held };
        let entered = if client.is_some() { self.ledger.enter(key) } else { self.ledger.enter_unknown() };
        Ok(ConnectionGuard { place, entered })
    }

    /// Counts a connection of the gateway's own, which no bound is asked about: the code that makes it bounds how many
    /// there are.
    pub fn own_connection_opened(self: &Rc<Self>) -> ConnectionGuard {
        self.connections.accepted.inc();
        self.gauges.connections.fetch_add(1, Ordering::Relaxed);
        let place = OpenPlace { worker: Rc::clone(self), held: None };
        ConnectionGuard { place, entered: self.ledger.enter_unknown() }
    }

    fn take_places(
        &self,
        snapshot: &Snapshot,
        key: Option<Fingerprint>,
        listener: &Listener,
    ) -> Result<Option<Box<ConnectionHoldings>>, ConnectionRejection> {
        if self.open_connections() >= self.connection_bound(snapshot) {
            return Err(ConnectionRejection::Worker);
        }
        let place = match &listener.places {
            Some(places) => Some(places.take().ok_or(ConnectionRejection::Listener)?),
            None => None,
        };
        let permit = self.take_clients_place(snapshot, key)?;
        let is_bounded = place.is_some() || !permit.is_empty();
        Ok(is_bounded.then(|| Box::new(ConnectionHoldings { permit, _place: place })))
    }

    fn connection_bound(&self, snapshot: &Snapshot) -> u64 {
        snapshot.server().max_connections.map_or(self.max_connections, |own| own.min(self.max_connections))
    }

    /// Asks a connection to end for one that met this bound. False if there is none, or the bound is a client's own.
    pub fn make_room(&self, by: ConnectionRejection, listening: &Rc<Listening>) -> bool {
        let now = self.clock.now();
        match by {
            ConnectionRejection::Worker => self.room.make(None, true, now),
            ConnectionRejection::Listener => self.room.make(Some(listening), true, now),
            ConnectionRejection::Client | ConnectionRejection::ClientRate | ConnectionRejection::Share => false,
        }
    }

    /// Asks connections to end where a bound is near, so that the next ones need not wait for that. False if there is none to
    /// end, and so few places are left that this client, who has more connections than that, is not to have one more.
    ///
    /// That is the dynamic threshold of shared buffers (see `client::h2_share`) with alpha 1, for the last places alone: clients
    /// whose connections are all busy leave as many to others as each of them has.
    pub fn keep_headroom(
        &self,
        listener: &Listener,
        listening: &Rc<Listening>,
        account: &ClientAccount,
        now: Tick,
    ) -> bool {
        let has_few = |free: u64| u64::from(account.connections()) <= free.max(1);
        let bound = self.connection_bound(&self.view.borrow().snapshot);
        let free = bound.saturating_sub(self.open_connections());
        if free < headroom(bound) && !self.room.make(None, false, now) && !has_few(free) {
            return false;
        }
        let free = listener.places.as_ref().and_then(|places| places.last_ones());
        free.is_none_or(|free| self.room.make(Some(listening), false, now) || has_few(free))
    }

    /// Says that a client holds more than half of the places for connections, where it does. A load balancer that nobody has
    /// named is bounded as one client, and its operator has to be told why.
    pub fn report_crowd(&self, peer: IpAddr, account: &ClientAccount, now: Tick) {
        let bound = self.connection_bound(&self.view.borrow().snapshot);
        if u64::from(account.connections()) > bound / 2 {
            self.report_crowding(peer, account, "connections", now);
        }
    }

    /// Says in the log that this address holds so much of a worker that it is bounded, unless it stands for many or somebody
    /// was told within a minute.
    pub fn report_crowding(&self, peer: IpAddr, account: &ClientAccount, what: &str, now: Tick) {
        if account.is_of_one_client() && self.feed.crowding_reports.take_turn(now) {
            tracing::warn!(
                target: "sluicegate::proxy::worker::places", %peer,
                "one address holds much of a worker's {what}; if it is a load balancer, name it in `trusted_proxies` of [client], \
                 and it is not bounded as one client"
            );
        }
    }

    /// Says in the log that a server of this upstream asks clients for NTLM or Negotiate over HTTP/2, unless that was told
    /// within a minute.
    pub fn report_authentication(&self, upstream: &str) {
        if self.feed.authentication_reports.take_turn(self.alarms.coarse_now()) {
            tracing::warn!(
                target: "sluicegate::proxy::worker::places", %upstream,
                "a server asks for NTLM or Negotiate, which authenticate a connection and not a request, over HTTP/2, where \
                 clients share connections: no client can authenticate itself so; set protocol = \"http1\""
            );
        }
    }

    /// A place among the connections of the client with this key. A trusted proxy stands for many, and has none.
    fn take_clients_place(&self, snapshot: &Snapshot, key: Option<Fingerprint>) -> Result<Permit, ConnectionRejection> {
        let (Some(bounds), Some(key)) = (&snapshot.accept.clients, key) else { return Ok(Permit::default()) };
        let asks = [Ask { key: Some(key), cost: 1, counting: Counting::AtOnce, ..Ask::default() }; 2];
        let mut report = Report::default();
        match bounds.policy.check(&asks[..bounds.reasons.len().min(2)], Span::ZERO, self.clock.now(), &mut report) {
            Verdict::Admitted(permit) => Ok(permit),
            Verdict::Refused(refusal) => {
                Err(*bounds.reasons.get(refusal.limit).unwrap_or(&ConnectionRejection::Client))
            }
            // Neither limit lets anybody wait.
            Verdict::Queued(_) => Err(ConnectionRejection::ClientRate),
        }
    }
}

impl ConnectionGuard {
    /// Counts it among those of its client, who was not known when it came; `false`, and counted, if there are too many.
    pub fn set_client(&mut self, client: IpAddr) -> bool {
        let OpenPlace { worker, held } = &mut self.place;
        let snapshot = Arc::clone(&worker.view.borrow().snapshot);
        let key = snapshot.rules.key_of_peer(client);
        match worker.take_clients_place(&snapshot, key) {
            Err(by) => {
                worker.connections.turned_away(by);
                return false;
            }
            Ok(permit) if permit.is_empty() => {}
            Ok(permit) => match held {
                Some(held) => held.permit = permit,
                None => *held = Some(Box::new(ConnectionHoldings { permit, _place: None })),
            },
        }
        self.entered = worker.ledger.enter(key);
        true
    }

    /// The account of its client, or its own.
    pub fn account(&self) -> &Rc<ClientAccount> {
        self.entered.account()
    }

    /// Its place, and the account that it is on until it [leaves](ClientAccount::leave) it.
    pub fn into_parts(self) -> (OpenPlace, Rc<ClientAccount>) {
        (self.place, self.entered.hand_over())
    }

    /// The worker that it is of.
    pub fn worker(&self) -> &Rc<Worker> {
        &self.place.worker
    }
}

impl OpenPlace {
    /// The worker that it is of.
    pub fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }
}

impl Drop for OpenPlace {
    fn drop(&mut self) {
        self.worker.note_panic();
        self.worker.gauges.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
