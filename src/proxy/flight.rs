//! Requests in flight, filed by their deadline on the worker's own timer wheel.
//!
//! Entering is O(1), leaving is O(1), and the sweep touches only what has expired. It is the limiter's timeout
//! (design: "Wheel"): a request is never ended before its deadline and at most one sweep after.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::sync::Notify;

use super::listener::Connection;
use crate::time::{Handle, Span, Tick, Wheel};

/// How often deadlines are swept: the most that a request can overstay.
pub const SWEEP_EVERY: Span = Span::from_millis(50);
/// Resolution of the wheel; together with [`SWEEP_EVERY`] it stays under the promised 100 ms.
const GRANULARITY: Span = Span::from_millis(10);

/// The flights of one worker.
pub struct Flights {
    wheel: RefCell<Wheel<Rc<Flight>>>,
    arrived: Notify,
    count: Cell<u64>,
}

/// One request in flight.
pub struct Flight {
    expired: Cell<bool>,
    head_sent: Cell<bool>,
    wake: Notify,
    connection: Rc<Connection>,
}

/// A request's place among those in flight; dropping it gives the place up.
pub struct Place {
    flights: Rc<Flights>,
    flight: Rc<Flight>,
    handle: Option<Handle>,
}

impl Flights {
    /// None yet.
    pub fn new(now: Tick) -> Rc<Self> {
        Rc::new(Self { wheel: RefCell::new(Wheel::new(now, GRANULARITY)), arrived: Notify::new(), count: Cell::new(0) })
    }

    /// Files a request under its deadline; without one it is counted only.
    pub fn enter(self: &Rc<Self>, deadline: Option<Tick>, connection: &Rc<Connection>) -> Place {
        let flight = Rc::new(Flight {
            expired: Cell::new(false),
            head_sent: Cell::new(false),
            wake: Notify::new(),
            connection: Rc::clone(connection),
        });
        let handle = deadline.map(|deadline| {
            let mut wheel = self.wheel.borrow_mut();
            if wheel.is_empty() {
                self.arrived.notify_one();
            }
            wheel.insert(deadline, Rc::clone(&flight))
        });
        self.count.set(self.count.get() + 1);
        Place { flights: Rc::clone(self), flight, handle }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    /// Ends every flight whose deadline has passed.
    pub fn sweep(&self, now: Tick) {
        let mut expired = Vec::new();
        self.wheel.borrow_mut().sweep(now, &mut expired);
        for flight in expired {
            flight.expire();
        }
    }

    /// Waits until there is something to sweep.
    pub async fn any(&self) {
        while self.wheel.borrow().is_empty() {
            self.arrived.notified().await;
        }
    }
}

impl Flight {
    fn expire(&self) {
        self.expired.set(true);
        if self.head_sent.get() {
            // Too late for a 504: the message is cut, so that nobody takes it for complete.
            self.connection.abort();
        } else {
            self.wake.notify_one();
        }
    }
}

impl Place {
    /// Completes when the deadline has passed and no response head was sent.
    pub async fn expired(&self) {
        while !self.flight.expired.get() {
            self.flight.wake.notified().await;
        }
    }

    /// Whether the deadline has passed.
    pub fn has_expired(&self) -> bool {
        self.flight.expired.get()
    }

    /// From now on the deadline cuts the connection: the status can no longer be changed.
    pub fn head_sent(&self) {
        self.flight.head_sent.set(true);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.flights.wheel.borrow_mut().remove(handle);
        }
        self.flights.count.set(self.flights.count.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Span = Span::from_secs(1);

    fn flights() -> (Rc<Flights>, Rc<Connection>) {
        (Flights::new(Tick::ZERO), Connection::new("127.0.0.1:1".parse().unwrap()))
    }

    #[test]
    fn expires_at_its_deadline_and_not_before() {
        let (flights, connection) = flights();
        let place = flights.enter(Some(Tick::ZERO + SECOND), &connection);
        flights.sweep(Tick::ZERO + Span::from_millis(999));
        assert!(!place.has_expired());
        flights.sweep(Tick::ZERO + SECOND + GRANULARITY);
        assert!(place.has_expired());
        assert!(!connection.is_aborted());
    }

    #[test]
    fn after_the_head_the_connection_is_cut() {
        let (flights, connection) = flights();
        let place = flights.enter(Some(Tick::ZERO + SECOND), &connection);
        place.head_sent();
        flights.sweep(Tick::ZERO + Span::from_secs(2));
        assert!(place.has_expired());
        assert!(connection.is_aborted());
    }

    #[test]
    fn a_place_given_up_is_never_swept() {
        let (flights, connection) = flights();
        let place = flights.enter(Some(Tick::ZERO + SECOND), &connection);
        let forever = flights.enter(None, &connection);
        assert_eq!(flights.count(), 2);
        place.head_sent();
        drop(place);
        flights.sweep(Tick::MAX);
        assert!(!connection.is_aborted());
        assert_eq!(flights.count(), 1);
        drop(forever);
        assert_eq!(flights.count(), 0);
    }
}
