//! How a request is entered among those in flight, and is told that somebody has cancelled it.

use super::life::Exchange;
use crate::flights::{FlightFacts, FlightPhase, Way};

impl Exchange {
    /// Notes where it is, for the caller that asks what is in flight.
    pub fn set_phase(&mut self, phase: FlightPhase) {
        let way = Way { phase, upstream: self.record.upstream.as_ref(), server: self.record.server };
        let mut flights = self.worker.flights.borrow_mut();
        if let Some(entry) = &self.scratch.state.flight {
            return flights.note(entry, &way);
        }
        let request = self.request();
        let host = request.authority_bytes().unwrap_or_default();
        let entry = flights.enter(
            &FlightFacts {
                alarm: &self.connection.alarm,
                is_h2: self.connection.facts.is_h2,
                arrived: self.arrived,
                client: self.client_address(),
                texts: [request.method().as_bytes(), host, request.path_bytes(), &self.scratch.state.request_id],
                id: self.id_numbers(),
                route: self.record.route.as_ref(),
            },
            &way,
        );
        drop(flights);
        self.scratch.state.flight = Some(entry);
    }

    /// It is over.
    pub fn leaves_flight(&mut self) {
        if let Some(entry) = self.scratch.state.flight.take() {
            self.worker.flights.borrow_mut().leave(&entry);
        }
    }

    /// Whether an operator has cancelled it.
    pub fn is_cancelled(&self) -> bool {
        self.connection.alarm.is_cancelled()
    }
}
