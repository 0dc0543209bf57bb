//! TLS handshakes that go on at a worker, and how clients share them.

use std::net::IpAddr;
use std::rc::Rc;

use super::state::Worker;
use crate::client::{ClientAccount, HoldingId};
use crate::deadlines::{Alarm, Dismissed};
use sluicegate_time::Span;

/// A handshake that has gone on for so long is taken for one that stands still.
const STALLED: Span = Span::from_secs(1);

impl Worker {
    /// Counts a handshake for as long as the guard lives; `None` if there are too many. The client that has most may have to
    /// give its oldest for it, whose `alarm` is then told.
    pub fn enter_handshake(
        self: &Rc<Self>,
        peer: IpAddr,
        account: &Rc<ClientAccount>,
        alarm: &Rc<Alarm>,
    ) -> Option<Handshake> {
        let max = self.view.borrow().snapshot.server().max_handshakes;
        let now = self.clock.now();
        let mut handshakes = self.handshakes.borrow_mut();
        let own = handshakes.of(account);
        if own as usize >= clients_share(max) {
            self.report_crowding(peer, account, "TLS handshakes", now);
            return None;
        }
        if handshakes.len() >= max {
            let most = handshakes.most();
            let (oldest, _, since) = handshakes.oldest_of_heaviest()?;
            // Where nobody has more than the newcomer would have, those that go on are worth more, but not if they stand still.
            if own >= most || own + 1 == most && now.since(since) < STALLED {
                return None;
            }
            handshakes.remove(oldest)?.dismiss(Dismissed::Handshake);
        }
        let held = handshakes.add(account, now, Rc::clone(alarm));
        Some(Handshake { worker: Rc::clone(self), held })
    }
}

/// How many of so many handshakes one client may have: half.
fn clients_share(max: usize) -> usize {
    (max / 2).max(1)
}

/// A handshake that is going on.
pub struct Handshake {
    worker: Rc<Worker>,
    held: HoldingId,
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.worker.handshakes.borrow_mut().remove(self.held);
    }
}
