//! Finds the servers of the store: the one that Sentinels name, or the masters of a cluster; and says which of them has a key.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{CONNECTS, FinishedExchange, Link, RECONNECTS, Runner};
use crate::store::{Address, Deployment, Part, Redirect, SLOTS, Sentinels, Store, StoreEndpoint, StoreError};
use crate::{Binding, slots};
use sluicegate_limiter::{AwayKeys, Fingerprint};
use sluicegate_time::{Span, Tick};

/// It is looked so often, for a change of which nothing else tells.
const FINDS: Span = Span::from_secs(1);
/// The same while a server is away, or a key has moved; and of Sentinels always: after a failover by hand the old primary goes on
/// to answer for some seconds, and its counts are lost.
const FINDS_SOON: Span = Span::from_millis(250);
/// How long a node may take to say which parts there are.
const TOLD: Duration = Duration::from_millis(500);
/// How long a node stays known to which a redirect has led, and that has no slots yet; and the most of them.
const NAMED: Span = Span::from_secs(60);
const MAX_NAMED: usize = 16;
/// The most nodes that are connected to find out which parts there are.
const MAX_ASKED: usize = 32;
/// In the place of a server: no one has that slot.
const NOBODY: u16 = u16::MAX;

/// The search for the servers of the store.
#[derive(Debug, Default)]
pub(super) struct Finder {
    sentinels: Sentinels,
    /// A search is on its way.
    is_on_its_way: bool,
    last: Option<Tick>,
    /// Something has moved.
    is_wanted: bool,
    /// The result of the last search.
    parts: Vec<Part>,
    /// Nodes that redirects have named.
    named: Vec<(Address, Tick)>,
    /// The log knows that no Sentinel and no node says where the servers are.
    said_lost: bool,
    next_id: u32,
    /// Tells searches from those for another store.
    store_number: u32,
}

/// The servers by slot, as places in the list of links; `None`: the only one has all.
pub(super) type SlotOwners = Option<Arc<[u16]>>;

/// The parts of the store that are away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AwayParts {
    owners: Arc<[u16]>,
    is_up: Box<[bool]>,
}

/// The result of a search.
pub(super) struct FoundParts {
    store_number: u32,
    sentinels: Sentinels,
    parts: Result<Vec<Part>, StoreError>,
}

impl AwayParts {
    fn has(&self, slot: u16) -> bool {
        let owner = self.owners.get(usize::from(slot)).copied().unwrap_or(NOBODY);
        !self.is_up.get(usize::from(owner)).is_some_and(|is_up| *is_up)
    }

    /// The keys of a limit that lie there.
    pub(super) fn keys(self: &Arc<Self>, binding: &Binding) -> AwayKeys {
        let (away, slots) = (Arc::clone(self), binding.slots);
        Arc::new(move |key| away.has(slots.slot(key)))
    }
}

impl Runner {
    /// Looks for the servers from the beginning, as the settings say.
    pub(super) fn start_finding(&mut self) {
        self.links.clear();
        self.owners = None;
        let sentinels = match &self.settings.deployment {
            Deployment::Sentinel { sentinels, .. } => Sentinels::new(sentinels),
            _ => Sentinels::default(),
        };
        let Finder { next_id, store_number, .. } = self.finder;
        self.finder = Finder { sentinels, next_id, store_number: store_number.wrapping_add(1), ..Finder::default() };
        match self.settings.deployment {
            Deployment::Single => {
                self.finder.parts = vec![Part::whole(self.settings.endpoint.address.clone())];
                self.adopt();
            }
            Deployment::Sentinel { .. } | Deployment::Cluster { .. } => self.find(),
        }
    }

    /// Looks again, if it is time.
    pub(super) fn find_in_time(&mut self) {
        if self.settings.deployment == Deployment::Single {
            return;
        }
        let now = self.clock.now();
        self.finder.named.retain(|(_, at)| now.since(*at) < NAMED);
        let has_sentinels = matches!(self.settings.deployment, Deployment::Sentinel { .. });
        let is_soon = has_sentinels
            || self.finder.is_wanted
            || self.links.is_empty()
            || self.links.iter().any(|link| !link.is_up());
        let pause = if is_soon { FINDS_SOON } else { FINDS };
        if self.finder.last.is_none_or(|last| now.since(last) >= pause) {
            self.find();
        }
    }

    /// Looks again, through other Sentinels or nodes; the servers stay as they are until then.
    pub(super) fn find_by_others(&mut self) {
        if let Deployment::Sentinel { sentinels, .. } = &self.settings.deployment {
            self.finder.sentinels = Sentinels::new(sentinels);
        }
        self.finder.store_number = self.finder.store_number.wrapping_add(1);
        self.finder.is_on_its_way = false;
        self.find();
    }

    /// The link to which a redirect of the link `from` leads, if it can be asked now.
    pub(super) fn target(&mut self, from: u32, redirect: &Redirect) -> Option<u32> {
        let (now, from) = (self.clock.now(), self.link(from)?.endpoint.address.clone());
        let to = redirect.to(&from)?;
        self.finder.is_wanted |= !redirect.is_asked;
        let found = self.links.iter().find(|link| link.endpoint.address == to);
        let (is_known, target) = (found.is_some(), found.filter(|link| link.is_up()).map(|link| link.id));
        let Finder { named, parts, .. } = &mut self.finder;
        if let Some((_, at)) = named.iter_mut().find(|(address, _)| *address == to) {
            *at = now;
        } else if named.len() < MAX_NAMED && !parts.iter().any(|part| part.address == to) {
            named.push((to, now));
            if !is_known {
                self.adopt();
            }
        }
        target
    }

    fn find(&mut self) {
        if std::mem::replace(&mut self.finder.is_on_its_way, true) {
            return;
        }
        (self.finder.last, self.finder.is_wanted) = (Some(self.clock.now()), false);
        let mut sentinels = std::mem::take(&mut self.finder.sentinels);
        let (endpoint, deployment) = (self.settings.endpoint.clone(), self.settings.deployment.clone());
        let store_number = self.finder.store_number;
        // Another one each time: one of them may not know yet.
        let (first, count) = (super::random() as usize, self.links.len().max(1));
        let known = (0..count).filter_map(|index| self.links.get((first + index) % count));
        let stores: Vec<Arc<Store>> = known.filter(|link| link.is_up()).filter_map(|link| link.store.clone()).collect();
        let addresses: Vec<Address> = self.links.iter().map(|link| link.endpoint.address.clone()).collect();
        self.on_their_way.spawn(async move {
            let parts = match &deployment {
                Deployment::Single => Ok(Vec::new()),
                Deployment::Sentinel { name, .. } => {
                    sentinels.primary(&endpoint, name).await.map(|primary| vec![Part::whole(primary)])
                }
                Deployment::Cluster { seeds } => {
                    let all = seeds.iter().chain(addresses.iter().filter(|address| !seeds.contains(address)));
                    parts_of(&endpoint, stores, all.cloned()).await
                }
            };
            FinishedExchange::Found(Box::new(FoundParts { store_number, sentinels, parts }))
        });
    }

    /// Takes over what was found.
    pub(super) fn found(&mut self, found: FoundParts) {
        let FoundParts { store_number, sentinels, parts } = found;
        if store_number != self.finder.store_number {
            return;
        }
        (self.finder.sentinels, self.finder.is_on_its_way) = (sentinels, false);
        match parts {
            Ok(parts) => {
                self.finder.said_lost = false;
                self.finder.parts = parts;
                self.adopt();
            }
            Err(error) => {
                if !std::mem::replace(&mut self.finder.said_lost, true) {
                    self.log_error("servers of the store", &error);
                }
                if self.links.is_empty() {
                    self.is_starting = false;
                    self.board.not_connected();
                    self.change_mode(Some(&error));
                }
            }
        }
    }

    /// The links are those of the parts that were found, from now on. A node of a cluster that is new takes over its slots once it is
    /// connected: until then the one that had them says where they are.
    pub(super) fn adopt(&mut self) {
        let old: Option<Vec<Option<u32>>> = self
            .owners
            .as_ref()
            .map(|owners| owners.iter().map(|owner| Some(self.links.get(usize::from(*owner))?.id)).collect());
        let (parts, named) = (&self.finder.parts, &self.finder.named);
        let wanted: HashSet<Address> =
            parts.iter().map(|part| &part.address).chain(named.iter().map(|(address, _)| address)).cloned().collect();
        let known: HashSet<Address> = self.links.iter().map(|link| link.endpoint.address.clone()).collect();
        let mut added = Vec::new();
        for address in wanted.difference(&known) {
            self.finder.next_id = self.finder.next_id.wrapping_add(1);
            let endpoint = StoreEndpoint { address: address.clone(), ..self.settings.endpoint.clone() };
            self.links.push(Link::new(self.finder.next_id, endpoint));
            added.push(self.finder.next_id);
        }
        if matches!(self.settings.deployment, Deployment::Cluster { .. }) {
            self.owners = Some(self.owners_beside(old.as_deref().unwrap_or_default()));
        }
        self.drop_links(&wanted);
        for id in added {
            self.connect(id, Duration::ZERO);
        }
        self.show();
    }

    /// Drops links that are not wanted, and have no slots any more.
    fn drop_links(&mut self, wanted: &HashSet<Address>) {
        let slots = self.slots_of_links();
        let is_kept = |(link, slots): (&Link, &u16)| wanted.contains(&link.endpoint.address) || *slots > 0;
        let kept: Vec<bool> = self.links.iter().zip(&slots).map(is_kept).collect();
        if kept.iter().all(|is_kept| *is_kept) {
            return;
        }
        let (mut places, mut next) = (Vec::with_capacity(kept.len()), 0);
        for is_kept in &kept {
            places.push(next);
            next += u16::from(*is_kept);
        }
        let mut is_kept = kept.into_iter();
        self.links.retain(|_| is_kept.next().unwrap_or_default());
        if let Some(owners) = &mut self.owners {
            let place = |owner: &u16| places.get(usize::from(*owner)).copied().unwrap_or(NOBODY);
            *owners = owners.iter().map(place).collect();
        }
    }

    fn owners_beside(&self, old: &[Option<u32>]) -> Arc<[u16]> {
        let mut owners = vec![NOBODY; usize::from(SLOTS)];
        let asked = self.links.iter().enumerate().filter(|(_, link)| link.is_up());
        let asked: HashMap<u32, usize> = asked.map(|(index, link)| (link.id, index)).collect();
        for part in &self.finder.parts {
            let Some((index, link)) =
                self.links.iter().enumerate().find(|(_, link)| link.endpoint.address == part.address)
            else {
                continue;
            };
            for slot in part.slots.iter().cloned().flatten().map(usize::from) {
                let before = old.get(slot).copied().flatten().filter(|_| link.is_new);
                let before = before.and_then(|id| asked.get(&id)).unwrap_or(&index);
                if let (Some(owner), Ok(index)) = (owners.get_mut(slot), u16::try_from(*before)) {
                    *owner = index;
                }
            }
        }
        owners.into()
    }

    /// The place in the list of links of the one that has a slot.
    fn owner(&self, slot: impl FnOnce() -> u16) -> Option<usize> {
        owner_in(&self.owners, slot)
    }

    /// The one that has this key.
    pub(super) fn owner_of(&self, key: &str) -> Option<usize> {
        self.owner(|| slots::slot_of(key))
    }

    /// How many slots each link has.
    pub(super) fn slots_of_links(&self) -> Vec<u16> {
        let mut counts = vec![0_u16; self.links.len()];
        for owner in self.owners.iter().flat_map(|owners| owners.iter()) {
            if let Some(count) = counts.get_mut(usize::from(*owner)) {
                *count += 1;
            }
        }
        counts
    }

    /// The parts that are away, if others are not.
    pub(super) fn away(&self) -> Option<AwayParts> {
        let owners = self.owners.as_ref().filter(|_| self.is_up())?;
        let is_up = self.links.iter().map(|link| link.is_up() || self.is_starting && link.is_new).collect();
        let away = AwayParts { owners: Arc::clone(owners), is_up };
        (0..SLOTS).any(|slot| away.has(slot)).then_some(away)
    }
}

/// The same, of a limit's key.
pub(super) fn owner_in(owners: &SlotOwners, slot: impl FnOnce() -> u16) -> Option<usize> {
    match owners {
        None => Some(0),
        Some(owners) => owners.get(usize::from(slot())).copied().filter(|owner| *owner != NOBODY).map(usize::from),
    }
}

/// Whether the server of a key may be sent another batch.
pub(super) fn is_free(links: &[Link], owners: &SlotOwners, binding: &Binding, key: Fingerprint) -> bool {
    owner_in(owners, || binding.slots.slot(key)).and_then(|owner| links.get(owner)).is_some_and(Link::is_free)
}

/// The parts of a cluster, as the first of its nodes tells that answers: one that is connected, or else any.
async fn parts_of(
    endpoint: &StoreEndpoint,
    connected: Vec<Arc<Store>>,
    addresses: impl Iterator<Item = Address>,
) -> Result<Vec<Part>, StoreError> {
    for store in connected.iter().take(2) {
        if let Ok(Ok(parts)) = timeout(TOLD, store.parts()).await {
            return Ok(parts);
        }
    }
    let mut asked = JoinSet::new();
    for address in addresses.take(MAX_ASKED) {
        let endpoint = StoreEndpoint { address, ..endpoint.clone() };
        asked.spawn(async move {
            let store = Store::connect_within(&endpoint, CONNECTS).await?;
            timeout(TOLD, store.parts()).await.unwrap_or_else(|_| Err(StoreError::silent(TOLD)))
        });
    }
    let mut error = StoreError::silent(RECONNECTS);
    while let Some(told) = asked.join_next().await {
        match told {
            Ok(Ok(parts)) => return Ok(parts),
            Ok(Err(failed)) => error = failed,
            Err(_) => {}
        }
    }
    Err(error)
}
