//! A client's connection for as long as it is open on its worker.

use std::rc::Rc;

use super::places::OpenPlace;
use super::state::Worker;
use crate::client::Connection;

/// A connection that is open. Dropping it takes it off the worker's wheel and out of its count.
pub struct Open {
    /// The connection, as its requests see it.
    pub connection: Rc<Connection>,
    place: OpenPlace,
}

impl Open {
    /// One that has this place.
    pub fn new(connection: Rc<Connection>, place: OpenPlace) -> Self {
        Self { connection, place }
    }

    /// The worker that serves it.
    pub fn worker(&self) -> &Rc<Worker> {
        self.place.worker()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connection.delist();
        self.worker().alarms.cancel(&self.connection.alarm);
        self.worker().forget(self.connection.id);
    }
}
