//! The keys that are blocked now, by penalties and by hand, and those of them whose addresses the kernel may block too.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::exceptions::{BlockSeen, Id, KeyedExceptions, Misfit, Secrets, print_of, print_text};
use super::limit_status::parts;
use super::live_state::LiveState;
use crate::admission::{Networks, canonical};
use crate::config::{LimitRule, Model};
use crate::limiter::{Fingerprint, Limit};
use crate::proxy::{BlockedKey, Snapshot};
use crate::time::{Tick, Wall};

/// A key that is blocked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockRow {
    /// The limit.
    pub limit: String,
    /// The plan, if the numbers are those of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// Source and value of each part, secrets redacted.
    pub key: Vec<(String, String)>,
    /// The print of the value, which commands take in the value's place.
    pub print: String,
    /// `penalty` or `by-hand`.
    pub kind: String,
    /// Its end (RFC 3339); null: it has none.
    pub until: Option<String>,
    /// Whether the kernel may block it.
    pub exported: bool,
    /// The address, or the network of IPv6 that is one client; left out where it is not exported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Why it is not exported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
}

/// Cursors below are places among the blocks by hand; those above are numbers in the list of penalties.
const BY_HAND: u64 = 1 << 32;

/// The things that a list is made of.
pub struct BlockSources<'s> {
    /// The file.
    pub model: &'s Model,
    /// The exceptions, and the blocks that were noted.
    pub lasting: &'s LiveState,
    /// Knows which limits hold now.
    pub snapshot: &'s Snapshot,
    /// The addresses that use admin.
    pub peers: &'s [IpAddr],
    /// The time.
    pub now: Tick,
}

/// A page: at most `max` blocks from a cursor on, and the next cursor.
pub fn page(sources: &BlockSources<'_>, from: u64, max: usize) -> Value {
    let listing = Listing::new(sources);
    let (mut rows, mut next) = (Vec::new(), None);
    let by_hand = sources.lasting.exceptions.iter().zip(0..BY_HAND).skip(usize::try_from(from).unwrap_or(usize::MAX));
    for ((id, entry), number) in by_hand {
        if rows.len() == max {
            next = Some(number);
            break;
        }
        rows.extend(listing.by_hand(id, entry));
    }
    let mut number = from.saturating_sub(BY_HAND);
    // An entry that is blocked no more takes no place: only the last page has less than it may.
    'pages: while next.is_none() {
        let batch = sources.lasting.blocks.from(number, max + 1 - rows.len());
        if batch.is_empty() {
            break;
        }
        for (own, key) in batch {
            if rows.len() == max {
                next = Some(own + BY_HAND);
                break 'pages;
            }
            number = own + 1;
            rows.extend(listing.by_penalty(&key));
        }
    }
    json!({ "blocks": rows, "next": next.map(|next| next.to_string()) })
}

/// A limit, the plan whose numbers it has, and the single key that it is for.
type PlannedLimit<'s> = (Option<&'s str>, Option<Fingerprint>, &'s Arc<Limit>);

/// All that a block is compared with.
struct Listing<'s> {
    sources: &'s BlockSources<'s>,
    wall: Wall,
    rules: HashMap<&'s str, &'s LimitRule>,
    secrets: Secrets,
    /// Those that count each limit's keys: itself, its plans, and numbers of single keys.
    limits: HashMap<&'s str, Vec<PlannedLimit<'s>>>,
    never: [(&'static str, ProtectedNetworks); 4],
}

/// Networks of which nothing may be blocked.
struct ProtectedNetworks {
    networks: Networks,
    /// The clients of IPv6 that have one of the networks inside of theirs.
    around: HashSet<IpNet>,
}

impl ProtectedNetworks {
    fn new(networks: impl Iterator<Item = IpNet> + Clone, ipv6_prefix: u8) -> Self {
        let around = networks.clone().filter_map(|network| client_of(network, ipv6_prefix));
        Self { around: around.collect(), networks: Networks::new(networks) }
    }

    fn touches(&self, client: IpNet) -> bool {
        self.networks.contains(client.network()) || self.around.contains(&client)
    }
}

/// The client that a network is one of, or a part of.
fn client_of(network: IpNet, ipv6_prefix: u8) -> Option<IpNet> {
    match canonical(network) {
        IpNet::V4(network) => (network.prefix_len() == 32).then_some(IpNet::V4(network)),
        IpNet::V6(network) if network.prefix_len() < ipv6_prefix => None,
        IpNet::V6(network) => Some(IpNet::new(network.network().into(), ipv6_prefix).ok()?.trunc()),
    }
}

/// An address, or a network.
fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

impl<'s> Listing<'s> {
    fn new(sources: &'s BlockSources<'s>) -> Self {
        let BlockSources { model, lasting, peers, now, .. } = sources;
        let mut limits: HashMap<&str, Vec<_>> = HashMap::new();
        for (id, (limit, _)) in &lasting.limits {
            limits.entry(&*id.limit).or_default().push((id.plan.as_deref(), id.key, limit));
        }
        let prefix = model.client.ipv6_prefix;
        let set = |networks: Vec<IpNet>| ProtectedNetworks::new(networks.into_iter(), prefix);
        // Link-local addresses too: neighbours and routers are found by them.
        let of_machine = ["127.0.0.0/8", "0.0.0.0/8", "169.254.0.0/16", "::1/128", "::/128", "fe80::/10"];
        let listeners = model.listeners.iter();
        let own = listeners.clone().filter_map(|own| Some(IpNet::from(own.address.tcp()?.ip())));
        let of_machine = of_machine.into_iter().filter_map(network).chain(own);
        let proxies = listeners.flat_map(|own| own.proxied_by().unwrap_or_default().iter().chain(&own.allow));
        let exempt = model.limits.iter().flat_map(|rule| {
            let values = rule.exempt.keys.iter().filter(|_| rule.key.is_client_ip()).filter_map(|key| network(key));
            rule.exempt.networks.iter().copied().chain(values)
        });
        Self {
            sources,
            wall: lasting.clock.wall(*now),
            secrets: Secrets::of(model, &lasting.hasher),
            rules: model.limits.iter().map(|rule| (&*rule.spec.name, &**rule)).collect(),
            limits,
            never: [
                ("it is this machine", set(of_machine.collect())),
                ("it is a proxy in front", set(proxies.chain(&model.client.trusted_proxies).copied().collect())),
                ("it is exempt", set(exempt.collect())),
                ("it uses the admin interface", set(peers.iter().copied().map(IpNet::from).collect())),
            ],
        }
    }

    fn by_hand(&self, id: &Id, entry: &KeyedExceptions) -> Option<BlockRow> {
        let block = entry.exception.clone().at(self.wall)?.block?;
        let rule = self.rules.get(&*id.limit).filter(|_| !matches!(entry.misfit, Some(Misfit::All(_))))?;
        // Its address has this print by `ipv6_prefix` as it is now.
        let hasher = self.secrets.by_mark(id.mark);
        let form = self.sources.model.client.address_form();
        let is_own = hasher.is_some_and(|hasher| print_of(&entry.by, &entry.shown, form, hasher) == Some(id.print));
        let address = self.address(rule, &entry.shown, true);
        let address = if is_own { address } else { address.and(Err(OTHER_PREFIX)) };
        let (sources, values) = (entry.by.split(" + "), entry.shown.split(" + "));
        let key: Vec<_> = if sources.clone().count() == values.clone().count() {
            sources.zip(values).map(|(source, value)| (source.to_owned(), value.to_owned())).collect()
        } else {
            vec![(entry.by.to_string(), entry.shown.to_string())]
        };
        let BlockSeen { kind, until, .. } = BlockSeen::by_hand(&block);
        Some(row(BlockRow { kind, until, ..of_key(&id.limit, key, print_text(id.print)) }, address))
    }

    /// The limit says whether it still holds.
    fn by_penalty(&self, key: &BlockedKey) -> Option<BlockRow> {
        let BlockedKey { limit, print, name, is_direct } = key;
        let BlockSources { lasting, snapshot, now, .. } = self.sources;
        let rule = self.rules.get(&**limit)?;
        let blocks = self.limits.get(&**limit)?.iter();
        let blocks = blocks.filter(|(_, key, _)| key.is_none_or(|key| key == *print));
        let blocks = blocks.filter_map(|(plan, _, limit)| Some((limit.blocked_until(*print, *now)?, *plan)));
        let (until, plan) = blocks.max()?;
        let address = match name.parts.as_slice() {
            _ if !snapshot.schedules.get(limit).is_none_or(|schedule| schedule.is_active(*now)) => {
                Err("its limit does not hold at this time")
            }
            // The network of another prefix is not the one that is counted now.
            [(_, value)] if self.is_of_other_prefix(&value.text) => Err(OTHER_PREFIX),
            [(_, value)] => self.address(rule, &value.text, *is_direct),
            _ => Err(MORE),
        };
        let own = BlockRow {
            plan: plan.map(str::to_owned),
            kind: "penalty".to_owned(),
            until: Some(format!("{:.3}", lasting.clock.wall(until).timestamp())),
            ..of_key(limit, parts(&lasting.redactor, name, rule.key_is_secret), print_text(*print))
        };
        Some(row(own, address))
    }

    fn is_of_other_prefix(&self, value: &str) -> bool {
        let prefix = self.sources.model.client.ipv6_prefix;
        matches!(network(value).map(canonical), Some(IpNet::V6(own)) if own.prefix_len() != prefix)
    }

    /// The address that the kernel may block, or why there is none.
    fn address(&self, rule: &LimitRule, value: &str, is_direct: bool) -> Result<IpNet, &'static str> {
        if !rule.key.is_client_ip() {
            return Err(MORE);
        }
        if rule.key_is_secret == Some(true) {
            return Err("its key is a secret");
        }
        let prefix = self.sources.model.client.ipv6_prefix;
        let own = network(value).ok_or("its key is no address")?;
        let client = client_of(own, prefix).ok_or(OTHER_PREFIX)?;
        if !is_direct {
            return Err("the client came through a proxy");
        }
        match self.never.iter().find(|(_, networks)| networks.touches(client)) {
            Some((why, _)) => Err(why),
            None => Ok(client),
        }
    }
}

const OTHER_PREFIX: &str = "`ipv6_prefix` has changed since";
const MORE: &str = "its key is not the client's address alone";

fn of_key(limit: &str, key: Vec<(String, String)>, print: String) -> BlockRow {
    let (kind, until, plan) = Default::default();
    BlockRow { limit: limit.to_owned(), plan, key, print, kind, until, exported: false, address: None, why_not: None }
}

fn row(own: BlockRow, address: Result<IpNet, &'static str>) -> BlockRow {
    match address {
        Ok(IpNet::V4(client)) => BlockRow { exported: true, address: Some(client.addr().to_string()), ..own },
        Ok(client) => BlockRow { exported: true, address: Some(client.to_string()), ..own },
        Err(why) => BlockRow { why_not: Some(why.to_owned()), ..own },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_one_client_or_a_part_of_one_or_many() {
        for (text, client) in [
            ("192.0.2.7", Some("192.0.2.7/32")),
            ("::ffff:192.0.2.7", Some("192.0.2.7/32")),
            ("192.0.2.0/24", None),
            ("2001:db8::7", Some("2001:db8::/56")),
            ("2001:db8:0:ff::/64", Some("2001:db8::/56")),
            ("2001:db8::/56", Some("2001:db8::/56")),
            ("2001:db8::/48", None),
        ] {
            let own = client_of(network(text).unwrap(), 56).map(|client| client.to_string());
            assert_eq!(own.as_deref(), client, "{text}");
        }
        assert_eq!(network("192.0.2.7 }"), None);
    }

    #[test]
    fn a_client_is_protected_if_a_network_has_it_or_a_part_of_it() {
        let networks = ["198.51.100.0/24", "192.0.2.7", "2001:db8:a::/48", "2001:db8:b:1::7"];
        let set = ProtectedNetworks::new(networks.into_iter().filter_map(network), 64);
        for (text, is_protected) in [
            ("198.51.100.1/32", true),
            ("192.0.2.7/32", true),
            ("192.0.2.8/32", false),
            ("2001:db8:a:5::/64", true),
            ("2001:db8:b:1::/64", true),
            ("2001:db8:b:2::/64", false),
        ] {
            assert_eq!(set.touches(network(text).unwrap()), is_protected, "{text}");
        }
    }
}
