//! The messages of a shard to the store, as many as can be sent: of keys whose part of it is neither busy nor away.

use super::book::{Leftover, Speaker};
use super::{Fingerprint, Shard, Tick};
use crate::lease::ReportQueue;
use crate::settle::{Collect, Settle, Wanted};

/// So many that cannot be heard now are looked at before it is enough for this time.
const MOST_BUSY: usize = 256;

impl Shard {
    /// Collects messages to the store, until there are `most`: of keys that are free, the part of the store in which they lie. The
    /// others stay in their lists; answers whether there are some that can be sent once their part is free.
    pub(crate) fn collect(
        &mut self,
        collect: Collect,
        (most, is_free): (usize, &dyn Fn(Fingerprint) -> bool),
        now: Tick,
        wanted: &mut Vec<Wanted>,
    ) -> bool {
        self.latest = self.latest.max(now);
        let (mut unheard, mut has_busy) = (Vec::new(), false);
        while wanted.len() < most && unheard.len() < MOST_BUSY {
            let Some(speaker) = self.book.as_mut().and_then(|book| book.next(collect)) else { break };
            let key = speaker.key();
            if self.params.lease.as_ref().is_some_and(|terms| !terms.is_up(key)) {
                match speaker {
                    Speaker::Key { list, .. } => self.pass_over(key, list),
                    Speaker::Forgotten(_) => unheard.push(speaker),
                }
            } else if !is_free(key) {
                has_busy = true;
                unheard.push(speaker);
            } else {
                match speaker {
                    Speaker::Key { list, reports, .. } => self.visit(key, list, reports, wanted),
                    Speaker::Forgotten(Leftover { spent, back, charged_at, .. }) => {
                        let settle = Settle { spent, back, back_age: now.since(charged_at), ..Settle::default() };
                        wanted.push(Wanted { key, settle, serial: 0 });
                    }
                }
            }
        }
        if let Some(book) = &mut self.book {
            book.put_back(unheard);
        }
        has_busy
    }

    /// Nothing can be said of a key whose part of the store is away: it has its turn again in a later round.
    fn pass_over(&mut self, key: Fingerprint, list: ReportQueue) {
        let Self { params, table, book, .. } = self;
        let (Some(book), Some(at)) = (book, table.find(key)) else { return };
        let state = table.state_mut(at);
        let mut lease = params.lease_of(state);
        lease.unlist(list);
        book.list(&mut lease, key, None);
        params.set_lease(state, lease);
    }

    fn visit(&mut self, key: Fingerprint, list: ReportQueue, reports: bool, wanted: &mut Vec<Wanted>) {
        let Self { params, table, book, latest, .. } = self;
        let (Some(terms), Some(book), Some(at)) = (&params.lease, book, table.find(key)) else { return };
        let state = table.state_mut(at);
        let mut lease = params.lease_of(state);
        lease.unlist(list);
        let serial = book.serial.checked_add(1).unwrap_or(1);
        if let Some(settle) = lease.settle(terms, (book.lines.need(key), reports), serial, *latest) {
            book.serial = serial;
            wanted.push(Wanted { key, settle, serial });
        }
        book.list(&mut lease, key, None);
        params.set_lease(state, lease);
    }
}
