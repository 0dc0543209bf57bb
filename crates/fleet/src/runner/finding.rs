//! Finds the servers of the store: the one that Sentinels name, or the masters of a cluster; and says which of them has a key.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{CONNECTS, FinishedExchange, Link, RECONNECTS, Runner};
use crate::store::{Address, Deployment, Nodes, Part, SLOTS, Sentinels, Store, StoreEndpoint, StoreError};
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
/// How long a node stays known that a redirect has named, and that has no slots yet.
const NAMED: Span = Span::from_secs(60);
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
    pub(super) nodes: Arc<Nodes>,
    /// The log knows that nobody says where the servers are.
    said_lost: bool,
    next_id: u32,
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
    endpoint: StoreEndpoint,
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
        self.finder = Finder { sentinels, next_id: self.finder.next_id, ..Finder::default() };
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
        let moved = self.finder.nodes.take_moved();
        self.finder.is_wanted |= moved.has_moved || !moved.unknown.is_empty();
        self.finder.named.retain(|(_, at)| now.since(*at) < NAMED);
        if !moved.unknown.is_empty() {
            self.finder.named.extend(moved.unknown.into_iter().map(|address| (address, now)));
            self.adopt();
        }
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

    fn find(&mut self) {
        if std::mem::replace(&mut self.finder.is_on_its_way, true) {
            return;
        }
        (self.finder.last, self.finder.is_wanted) = (Some(self.clock.now()), false);
        let mut sentinels = std::mem::take(&mut self.finder.sentinels);
        let (endpoint, deployment) = (self.settings.endpoint.clone(), self.settings.deployment.clone());
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
            FinishedExchange::Found(Box::new(FoundParts { endpoint, sentinels, parts }))
        });
    }

    /// Takes over what was found.
    pub(super) fn found(&mut self, found: FoundParts) {
        let FoundParts { endpoint, sentinels, parts } = found;
        if endpoint != self.settings.endpoint {
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

    /// The links are those of the parts that were found, from now on. A server that is new takes over its slots once it is connected:
    /// until then the one that had them sends on what it does not have.
    pub(super) fn adopt(&mut self) {
        let old: Option<Vec<Option<u32>>> = self
            .owners
            .as_ref()
            .map(|owners| owners.iter().map(|owner| Some(self.links.get(usize::from(*owner))?.id)).collect());
        let (parts, named) = (&self.finder.parts, &self.finder.named);
        let wanted: Vec<Address> =
            parts.iter().map(|part| &part.address).chain(named.iter().map(|(address, _)| address)).cloned().collect();
        let mut added = Vec::new();
        for address in &wanted {
            if !self.links.iter().any(|link| link.endpoint.address == *address) {
                self.finder.next_id = self.finder.next_id.wrapping_add(1);
                let endpoint = StoreEndpoint { address: address.clone(), ..self.settings.endpoint.clone() };
                self.links.push(Link::new(self.finder.next_id, endpoint));
                added.push(self.finder.next_id);
            }
        }
        let has_new = self.links.iter().any(|link| link.is_new);
        self.links.retain(|link| wanted.contains(&link.endpoint.address) || has_new && link.is_up());
        if matches!(self.settings.deployment, Deployment::Cluster { .. }) {
            self.owners = Some(self.owners_beside(old.as_deref().unwrap_or_default()));
        }
        for id in added {
            self.connect(id, Duration::ZERO);
        }
        self.show();
    }

    fn owners_beside(&self, old: &[Option<u32>]) -> Arc<[u16]> {
        let mut owners = vec![NOBODY; usize::from(SLOTS)];
        for part in &self.finder.parts {
            let Some((index, link)) =
                self.links.iter().enumerate().find(|(_, link)| link.endpoint.address == part.address)
            else {
                continue;
            };
            for slot in part.slots.iter().cloned().flatten().map(usize::from) {
                let before = old.get(slot).copied().flatten().filter(|_| link.is_new);
                let before = before.and_then(|id| self.links.iter().position(|link| link.id == id && link.is_up()));
                if let (Some(owner), Ok(index)) = (owners.get_mut(slot), u16::try_from(before.unwrap_or(index))) {
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
    for address in addresses {
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
