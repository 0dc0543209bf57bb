//! Connections make room for others when a bound on connections is near: those over which no request is under way.
//!
//! A connection that is listed says nothing while it is busy: one that carries requests is found out when its turn to be closed
//! comes, is taken off the list, and is listed again when it next has nothing to do. So a request costs a store and a
//! comparison, whatever the lists are like.

use std::cell::RefCell;
use std::rc::Rc;

use super::holdings::{HoldingId, Holdings};
use super::ledger::ClientAccount;
use crate::deadlines::{Alarm, Dismissed};
use sluicegate_time::{Span, Tick};

/// A connection is closed for its silence alone only after so long: its first request may be on its way.
const SILENT_FOR: Span = Span::from_secs(1);
/// How many connections are looked at for one that is idle. Each look but the last takes one off the list that is busy, or
/// puts one where it belongs that was busy meanwhile.
const MAX_LOOKS: usize = 256;

/// Connections `C` of one listener on one worker that may be closed to make room.
#[derive(Debug)]
pub struct Reclaimable<C> {
    /// Those over which no whole request has come yet, and those that have begun one and not gone on.
    pub(super) silent: RefCell<Holdings<Rc<Alarm>>>,
    /// Those that have carried requests. Some may be busy.
    pub(super) idle: RefCell<Holdings<Rc<C>>>,
}

impl<C> Default for Reclaimable<C> {
    fn default() -> Self {
        Self { silent: RefCell::default(), idle: RefCell::default() }
    }
}

/// A connection, as far as the list of those that are idle goes by it.
pub trait Idle {
    /// Since when it has waited for a request; [`Tick::MAX`] while it carries one.
    fn idle_since(&self) -> Tick;

    /// The account that it is on.
    fn account(&self) -> &ClientAccount;

    /// It was taken off the list.
    fn unlisted(&self);

    /// Asks it to end.
    fn dismiss(&self);
}

/// A connection of which nothing is known yet, listed as silent until this is dropped.
pub struct Silent<'r, C> {
    reclaimable: &'r Reclaimable<C>,
    held: HoldingId,
}

impl<C> Reclaimable<C> {
    /// Lists a connection that has said nothing yet. Its account is to last as long.
    pub fn list(&self, account: &ClientAccount, alarm: &Rc<Alarm>, now: Tick) -> Silent<'_, C> {
        Silent { reclaimable: self, held: self.add_silent(account, alarm, now) }
    }

    /// Lists a connection that says nothing.
    pub(super) fn add_silent(&self, account: &ClientAccount, alarm: &Rc<Alarm>, now: Tick) -> HoldingId {
        self.silent.borrow_mut().add(account, now, Rc::clone(alarm))
    }

    /// Asks a silent connection to end: of the client that has most of them, the oldest, if it has been silent `for_long`.
    pub(super) fn dismiss_silent(&self, for_long: bool, now: Tick) -> bool {
        let mut silent = self.silent.borrow_mut();
        let Some((held, _, since)) = silent.oldest_of_heaviest() else { return false };
        if for_long && now.since(since) < SILENT_FOR {
            return false;
        }
        if let Some(alarm) = silent.remove(held) {
            alarm.dismiss(Dismissed::Silent);
        }
        true
    }
}

impl<C: Idle> Reclaimable<C> {
    /// Asks an idle connection to end: of the client that has most of them, the one that is idle longest. Those that carried
    /// a request since they were listed get a second chance, as long as there are others to look at.
    pub(super) fn dismiss_idle(&self) -> bool {
        let mut idle = self.idle.borrow_mut();
        let mut longest: Option<(HoldingId, Rc<C>, Tick)> = None;
        for _ in 0..MAX_LOOKS {
            let Some((held, connection, listed)) = idle.oldest_of_heaviest() else { break };
            let since = connection.idle_since();
            if since == Tick::MAX {
                if let Some(busy) = idle.remove(held) {
                    busy.unlisted();
                }
                longest.take_if(|(_, known, _)| idle.of(known.account()) < idle.most());
                continue;
            }
            if longest.as_ref().is_none_or(|(_, _, known)| since < *known) {
                longest = Some((held, Rc::clone(connection), since));
            }
            if since <= listed {
                break;
            }
            idle.renew(held, since);
        }
        let Some((held, connection, _)) = longest else { return false };
        idle.remove(held);
        connection.unlisted();
        connection.dismiss();
        true
    }
}

impl<C> Drop for Silent<'_, C> {
    fn drop(&mut self) {
        self.reclaimable.silent.borrow_mut().remove(self.held);
    }
}
