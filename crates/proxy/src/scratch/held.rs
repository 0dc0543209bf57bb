//! The things that a request holds of its upstream from the choice of a server until that has done its part.

use sluicegate_time::Tick;
use sluicegate_upstream::{AlonePlace, HeldPlace, Pass, Trial};

/// The things that are held; dropped, they are free for others.
#[derive(Debug, Default)]
pub struct Held {
    /// The place of the one request that may try an ejected server, until there is an answer.
    pub trial: Option<Trial>,
    /// Let it pass the breaker of its upstream, until there is a result.
    pub pass: Option<Pass>,
    /// A place at a server that has a number of them.
    pub place: Option<HeldPlace>,
    /// Until when an upload may hold that while others wait. Here, since an idle connection of a client has no room for it.
    pub upload_until: Tick,
    /// A place on a connection that carries nothing else, with its server's index.
    pub alone: Option<(usize, AlonePlace)>,
}

impl Held {
    /// Frees all of it. Most requests hold nothing, and each is asked three times. `upload_until` means nothing without a
    /// place.
    #[inline]
    pub fn clear(&mut self) {
        if self.trial.is_some() || self.pass.is_some() || self.place.is_some() || self.alone.is_some() {
            self.free();
        }
    }

    #[cold]
    #[inline(never)]
    fn free(&mut self) {
        *self = Self::default();
    }
}
