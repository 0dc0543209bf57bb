//! Requests in flight and tunnels of a worker: how many, and which.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use super::state::Worker;
use crate::flights::{FlightFilter, SeenFlight};

impl Worker {
    /// Counts a request as in flight for as long as the guard lives.
    pub fn enter_flight(self: &Rc<Self>) -> InFlight {
        self.count_flight(self.in_flight.get() + 1);
        InFlight(Rc::clone(self))
    }

    fn count_flight(&self, count: u64) {
        self.in_flight.set(count);
        self.gauges.in_flight.store(count, Ordering::Relaxed);
    }

    /// Counts a tunnel for as long as the guard lives.
    pub fn enter_tunnel(self: &Rc<Self>) -> Tunnel {
        self.connections.tunnels.inc();
        self.gauges.tunnels.fetch_add(1, Ordering::Relaxed);
        Tunnel(Rc::clone(self))
    }

    /// Open tunnels.
    pub fn open_tunnels(&self) -> u64 {
        self.gauges.tunnels.load(Ordering::Relaxed)
    }

    /// The requests in flight that somebody asks for, the oldest first.
    pub fn list_flights(&self, filter: &FlightFilter) -> Vec<SeenFlight> {
        self.flights.borrow().list(filter, self.index, self.clock.now())
    }

    /// Has the request of this number end as soon as its task runs; false if there is none.
    pub fn cancel_flight(&self, number: u64) -> bool {
        self.flights.borrow().cancel(number)
    }
}

/// A request in flight.
pub struct InFlight(Rc<Worker>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.count_flight(self.0.in_flight.get().saturating_sub(1));
    }
}

/// An open tunnel.
pub struct Tunnel(Rc<Worker>);

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.0.gauges.tunnels.fetch_sub(1, Ordering::Relaxed);
    }
}
