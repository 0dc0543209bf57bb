//! A server of the store: the only one, or a master of a cluster.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{BATCHES, CONNECTS, FinishedExchange, Runner};
use crate::circuit::{Circuit, CircuitState, Pass};
use crate::members::{members_key, probe_key};
use crate::store::{Store, StoreEndpoint, StoreError};
use crate::store_clock::StoreClock;
use sluicegate_time::{Span, Tick};

/// So many keys are tried until one lies at a server.
const PROBE_KEYS: u32 = 2_000;

/// The thread's knowledge of one server.
#[derive(Debug)]
pub(super) struct Link {
    /// Tells it from others, those before it at the same address too.
    pub(super) id: u32,
    pub(super) endpoint: StoreEndpoint,
    pub(super) store: Option<Arc<Store>>,
    pub(super) clock: StoreClock,
    pub(super) circuit: Circuit,
    pub(super) is_connecting: bool,
    /// It has neither been connected yet nor refused.
    pub(super) is_new: bool,
    /// How many are on their way.
    pub(super) batches: usize,
    pub(super) lost: Option<StoreError>,
}

impl Link {
    pub(super) fn new(id: u32, endpoint: StoreEndpoint) -> Self {
        Self {
            id,
            endpoint,
            store: None,
            clock: StoreClock::default(),
            circuit: Circuit::new(),
            is_connecting: false,
            is_new: true,
            batches: 0,
            lost: None,
        }
    }

    /// Whether it is asked.
    pub(super) fn is_up(&self) -> bool {
        self.store.is_some() && self.circuit.state() == CircuitState::Closed
    }

    /// Whether another batch may be sent.
    pub(super) fn is_free(&self) -> bool {
        self.is_up() && self.batches < BATCHES
    }

    /// In how long it is probed, if it is to be.
    fn probe_in(&self, now: Tick) -> Option<Span> {
        match self.circuit.state() {
            CircuitState::Open { next_probe: due } | CircuitState::Probing { until: due } if self.store.is_some() => {
                Some(due.since(now))
            }
            _ => None,
        }
    }
}

impl Runner {
    pub(super) fn link(&mut self, id: u32) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.id == id)
    }

    /// In how long the next probe is due.
    pub(super) fn next_probe(&self, now: Tick) -> Option<Span> {
        self.links.iter().filter_map(|link| link.probe_in(now)).min()
    }

    /// Probes those whose probe is due.
    pub(super) fn probe(&mut self) {
        let now = self.clock.now();
        for index in 0..self.links.len() {
            let Some(link) = self.links.get_mut(index) else { continue };
            if link.probe_in(now).is_some_and(Span::is_zero) && link.circuit.pass(now) == Pass::Probe {
                self.beat(index, true);
            }
        }
    }

    /// Tells all servers that are asked that this gateway lives, or whether they do.
    pub(super) fn beat_all(&mut self) {
        for index in 0..self.links.len() {
            self.beat(index, false);
        }
    }

    /// It is told that this gateway lives. Of the one that has the members the answer counts; of another it only says that it takes
    /// writes, and the key is any that it has.
    pub(super) fn beat(&mut self, index: usize, is_probe: bool) {
        let members = members_key(&self.settings.prefix);
        let has_members = self.owner_of(&members) == Some(index);
        let key = if has_members { members } else { self.probe_key_at(index) };
        let Some(link) = self.links.get(index).filter(|link| is_probe || link.is_up()) else { return };
        let Some(store) = link.store.clone() else { return };
        let (member, link) = (self.member.clone(), link.id);
        let (deadline, sent) = (self.settings.deadline.into(), self.clock.now());
        self.on_their_way.spawn(async move {
            let members = timeout(deadline, store.heartbeat(&key, Some(&member))).await.ok();
            FinishedExchange::Beaten { link, sent, is_probe, members }
        });
    }

    /// A key that this one has, if it has any.
    fn probe_key_at(&self, index: usize) -> String {
        let mut keys = (0..PROBE_KEYS).map(|number| probe_key(&self.settings.prefix, number));
        keys.find(|key| self.owner_of(key) == Some(index)).unwrap_or_else(|| probe_key(&self.settings.prefix, 0))
    }

    pub(super) fn connect(&mut self, id: u32, after: Duration) {
        let Some(link) = self.link(id) else { return };
        if std::mem::replace(&mut link.is_connecting, true) {
            return;
        }
        let endpoint = link.endpoint.clone();
        self.on_their_way.spawn(async move {
            sleep(after).await;
            FinishedExchange::Connected { link: id, connected: Store::connect_within(&endpoint, CONNECTS).await }
        });
    }
}
