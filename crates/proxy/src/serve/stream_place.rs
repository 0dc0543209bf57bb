//! The place of a request of HTTP/2 in its worker.

use std::rc::Rc;

use crate::client::{ClientAccount, H2Room, StreamBound};
use crate::worker::Worker;
use sluicegate_time::Tick;

/// A request's place in its worker, with the bytes of its head. Dropping it gives both back.
pub struct StreamPlace {
    worker: Rc<Worker>,
    account: Rc<ClientAccount>,
    room: H2Room,
}

impl StreamPlace {
    /// A place for a request with a head of so many bytes, unless there is none. Without `now` nobody asks whether its
    /// client has given up too much.
    pub fn take(
        worker: &Rc<Worker>,
        account: &Rc<ClientAccount>,
        bytes: usize,
        now: Option<Tick>,
    ) -> Result<Self, StreamBound> {
        if now.is_some_and(|now| account.given_up.is_over(now)) {
            return Err(StreamBound::ClientResets);
        }
        let room = worker.h2.enter(&account.h2, bytes, (worker.max_streams(), account.is_of_one_client()))?;
        Ok(Self { worker: Rc::clone(worker), account: Rc::clone(account), room })
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.worker.h2.leave(&self.account.h2, &self.room);
    }
}
