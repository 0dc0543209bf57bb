//! Connections of HTTP/2 that carry one request at a time: for those that their server may answer by closing the connection, or
//! that authenticate it.
//!
//! One worker has few of them to each server, and no client holds more than are left, so that there is one for a client that
//! has none. So it is with the requests that wait for one. Once the head of the answer is here, the server has taken the
//! request, and it holds one of many places: event streams keep no other request from being sent.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use tokio::sync::Notify;

use sluicegate_limiter::Fingerprint;

/// Requests on connections that carry nothing else, of one worker to one server, whose answer has not begun.
const MOST: usize = 16;
/// Those together with the ones whose answer has, and connections that are kept for them.
pub(super) const MOST_IN_ALL: usize = 128;
/// Requests that wait for that.
const MOST_WAITING: usize = 128;

/// The places of requests on such connections.
#[derive(Default)]
pub struct AlonePlaces {
    holders: RefCell<Vec<Fingerprint>>,
    answered: RefCell<Vec<Fingerprint>>,
    waiting: RefCell<Vec<Fingerprint>>,
    freed: Notify,
}

/// The place of one request, until it is dropped.
pub struct AlonePlace {
    places: Rc<AlonePlaces>,
    client: Fingerprint,
    is_answered: bool,
}

/// Whether a client may have one more, where so many are held by all.
fn may_have_more<'h>(held: impl Iterator<Item = &'h Fingerprint>, client: Fingerprint, most: usize) -> bool {
    let (own, all) = held.fold((0, 0), |(own, all), holder| (own + usize::from(*holder == client), all + 1));
    own < most.saturating_sub(all)
}

fn give_back(held: &RefCell<Vec<Fingerprint>>, client: Fingerprint) {
    let mut held = held.borrow_mut();
    if let Some(place) = held.iter().position(|holder| *holder == client) {
        held.swap_remove(place);
    }
}

impl AlonePlaces {
    /// A place, if this client may have one more.
    pub fn take(self: &Rc<Self>, client: Fingerprint) -> Option<AlonePlace> {
        let mut holders = self.holders.borrow_mut();
        if !may_have_more(holders.iter(), client, MOST)
            || !may_have_more(holders.iter().chain(self.answered.borrow().iter()), client, MOST_IN_ALL)
        {
            return None;
        }
        holders.push(client);
        Some(AlonePlace { places: Rc::clone(self), client, is_answered: false })
    }

    /// Waits for a place. `None`: too many wait already.
    pub fn wait(self: &Rc<Self>, client: Fingerprint) -> Option<impl Future<Output = AlonePlace> + use<>> {
        let waiting = AloneWaiter::join(self, client)?;
        Some(async move {
            loop {
                // Before the look: what is freed meanwhile wakes it.
                let freed = waiting.places.freed.notified();
                if let Some(place) = waiting.places.take(client) {
                    return place;
                }
                freed.await;
            }
        })
    }
}

impl AlonePlace {
    /// The answer has begun.
    pub fn answered(&mut self) {
        if !self.is_answered {
            self.is_answered = true;
            give_back(&self.places.holders, self.client);
            self.places.answered.borrow_mut().push(self.client);
            self.places.freed.notify_waiters();
        }
    }
}

impl Drop for AlonePlace {
    fn drop(&mut self) {
        give_back(if self.is_answered { &self.places.answered } else { &self.places.holders }, self.client);
        self.places.freed.notify_waiters();
    }
}

impl std::fmt::Debug for AlonePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AlonePlace").finish_non_exhaustive()
    }
}

/// A request that waits.
struct AloneWaiter {
    places: Rc<AlonePlaces>,
    client: Fingerprint,
}

impl AloneWaiter {
    fn join(places: &Rc<AlonePlaces>, client: Fingerprint) -> Option<Self> {
        let mut waiting = places.waiting.borrow_mut();
        if !may_have_more(waiting.iter(), client, MOST_WAITING) {
            return None;
        }
        waiting.push(client);
        Some(Self { places: Rc::clone(places), client })
    }
}

impl Drop for AloneWaiter {
    fn drop(&mut self) {
        give_back(&self.places.waiting, self.client);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn client(number: u64) -> Fingerprint {
        Fingerprint::known(number + 1).unwrap()
    }

    proptest! {
        #[test]
        fn there_is_a_place_for_a_client_that_has_none_until_many_clients_hold_all(
            steps in prop::collection::vec((any::<bool>(), 0u64..9, any::<prop::sample::Index>()), 0..200),
        ) {
            let mut held: Vec<Fingerprint> = Vec::new();
            for (takes, number, index) in steps {
                if takes && may_have_more(held.iter(), client(number), MOST) {
                    held.push(client(number));
                } else if !takes && !held.is_empty() {
                    held.swap_remove(index.index(held.len()));
                }
                prop_assert!(held.len() <= MOST);
                let own = |number| held.iter().filter(|holder| **holder == client(number)).count();
                prop_assert!((0..9).all(|number| own(number) <= MOST / 2));
                let clients = (0..9).filter(|number| own(*number) > 0).count();
                prop_assert!(clients > 3 || may_have_more(held.iter(), client(100), MOST), "{clients} hold {}", held.len());
            }
        }
    }
}
