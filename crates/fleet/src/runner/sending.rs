//! Collects what the limits have to say, and sends it to the servers that have the keys.

use std::sync::Arc;

use tokio::time::timeout;

use super::finding::{is_free, owner_in};
use super::{ASKS, Batch, FinishedExchange, Link, REPORTED, REPORTS, Runner};
use crate::Binding;
use crate::store::Order;
use sluicegate_limiter::{Collect, Turn, Wanted};
use sluicegate_time::{Span, Tick};

impl Runner {
    /// Requests have begun to wait, or soon will.
    pub(super) fn hear(&mut self, now: Tick) {
        self.last_batch = now;
        for binding in self.bindings.iter().chain(&self.leaving) {
            binding.limit.take_urgent();
        }
        (self.has_asks, self.has_reports) = (true, true);
        self.send();
    }

    /// The keys of all limits have their turn.
    pub(super) fn begin(&mut self, turn: Turn) {
        for binding in &self.bindings {
            binding.limit.begin(turn);
        }
        let now = self.clock.now();
        // Of one key's own numbers that have ended, those who wait by them still have their turns.
        self.leaving.retain(|left| left.limit.outstanding(now).listed > 0 || left.limit.stats().waiting > 0);
        for binding in &self.leaving {
            binding.limit.begin(Turn::All);
        }
        (self.has_asks, self.has_reports) = (true, true);
        self.send();
    }

    /// Sends what may be sent. A message is made when it can be sent, no sooner: see `limiter/shard/book.rs`.
    pub(super) fn send(&mut self) {
        while self.links.iter().any(Link::is_free) {
            let sent = self.clock.now();
            let mut settles = Vec::new();
            if self.has_asks {
                self.has_asks = self.collect(Collect::Asks, ASKS, sent, &mut settles);
            }
            if settles.is_empty() && self.has_reports {
                self.has_reports = self.collect(Collect::Reports, REPORTS, sent, &mut settles);
            }
            if settles.is_empty() {
                return;
            }
            let mut by_link: Vec<Vec<(Arc<Binding>, Wanted)>> = self.links.iter().map(|_| Vec::new()).collect();
            for (binding, wanted) in settles {
                let owner = owner_in(&self.owners, || binding.slots.slot(wanted.key));
                // It was free as this was collected.
                if let Some(of_link) = owner.and_then(|owner| by_link.get_mut(owner)) {
                    of_link.push((binding, wanted));
                }
            }
            for (index, settles) in by_link.into_iter().enumerate().filter(|(_, settles)| !settles.is_empty()) {
                let is_ask = settles.iter().any(|(_, wanted)| wanted.settle.need > 0);
                let link = self.links.get(index).map_or(0, |link| link.id);
                self.send_batch(link, Batch { settles, is_ask, first: sent, hops: 0 }, false);
            }
        }
    }

    /// Sends it to the server of this link, for as long as it may take since it was sent first; `is_asked`: that has the keys for now,
    /// as another one has said.
    pub(super) fn send_batch(&mut self, id: u32, batch: Batch, is_asked: bool) {
        let sent = self.clock.now();
        let wait = (batch.first + self.wait_for(batch.is_ask)).since(sent);
        let found = self.links.iter_mut().find(|link| link.id == id);
        let found = found.and_then(|link| Some((link.store.clone()?, link)));
        let Some((store, link)) = found.filter(|_| !wait.is_zero()) else {
            for settle in &batch.settles {
                self.unanswered(settle, true, sent);
            }
            return;
        };
        let latest = link.clock.latest(sent, wait);
        let clock = link.clock.at_most(sent).unwrap_or_else(|| self.clock.wall(sent).as_nanos() / 1_000);
        let order = |(binding, wanted): &(Arc<Binding>, Wanted)| binding.order(wanted, latest, clock);
        let orders: Vec<Order> = batch.settles.iter().map(order).collect();
        link.batches += 1;
        self.on_their_way.spawn(async move {
            let results =
                async { if is_asked { store.settle_asked(&orders).await } else { store.settle(&orders).await } };
            let results = timeout(wait.into(), results).await.ok();
            FinishedExchange::Settled { link: id, batch, sent, results }
        });
    }

    /// Whether some are on their way.
    pub(super) fn has_batches(&self) -> bool {
        self.links.iter().any(|link| link.batches > 0)
    }

    /// Collects at most so many messages to servers that may be sent one; limits take turns. Answers whether there may be more.
    fn collect(&mut self, what: Collect, most: usize, now: Tick, settles: &mut Vec<(Arc<Binding>, Wanted)>) -> bool {
        let (mut wanted, all) = (Vec::new(), self.bindings.len() + self.leaving.len());
        let (links, owners, mut has_busy) = (&self.links, &self.owners, false);
        for index in (self.turn..all).chain(0..self.turn.min(all)) {
            let Some(binding) = self.bindings.iter().chain(&self.leaving).nth(index) else { continue };
            let is_free = |key| is_free(links, owners, binding, key);
            has_busy |= binding.limit.collect(what, (most - settles.len(), &is_free), now, &mut wanted);
            settles.extend(wanted.drain(..).map(|wanted| (Arc::clone(binding), wanted)));
            if settles.len() >= most {
                self.turn = index + 1;
                return true;
            }
        }
        has_busy
    }

    /// How long an answer may take.
    pub(super) fn wait_for(&self, is_ask: bool) -> Span {
        if is_ask { self.settings.deadline } else { self.settings.deadline.max(REPORTED) }
    }
}
