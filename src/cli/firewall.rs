//! Blocked addresses as the packet filter of the kernel takes them: texts for `nft -f -` and for `ipset restore`.
//!
//! Nothing but parsed addresses and numbers goes into a text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ipnet::IpNet;

use crate::time::{Span, Wall};

/// The last line of each transaction.
pub const END: &str = "# ---\n";

/// Addresses in one line.
const LINE: usize = 500;
/// The time of a block without an end. It is given anew before that is over, as long as the exporter runs.
const ENDLESS: Span = Span::from_secs(86_400);
/// The longest time that ipset takes.
const IPSET_MOST: Span = Span::from_secs(2_147_483);
const SECOND: Span = Span::from_secs(1);
/// An address that the kernel lets go before its end is given anew so long before that.
const RENEW: Span = Span::from_secs(60);

/// Makes and empties the sets. The chain drops before the kernel looks a connection up: in prerouting, also
/// where the gateway is in a container. It is written anew, so that its rules are never there twice.
const NFT_HEAD: &str = "\
add table inet sluicegate
add set inet sluicegate blocked4 { type ipv4_addr; flags interval,timeout; }
add set inet sluicegate blocked6 { type ipv6_addr; flags interval,timeout; }
add chain inet sluicegate prerouting { type filter hook prerouting priority raw; policy accept; }
flush chain inet sluicegate prerouting
add rule inet sluicegate prerouting ip saddr @blocked4 drop
add rule inet sluicegate prerouting ip6 saddr @blocked6 drop
flush set inet sluicegate blocked4
flush set inet sluicegate blocked6
";

const IPSET_HEAD: &str = "\
create sluicegate4 hash:net family inet maxelem 131072 timeout 0 -exist
create sluicegate6 hash:net family inet6 maxelem 131072 timeout 0 -exist
flush sluicegate4
flush sluicegate6
";

/// The program that reads the texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterFormat {
    Nft,
    Ipset,
}

/// Networks that do not overlap, each with its end; `None`: it has none.
pub type BlockedNetworks = BTreeMap<IpNet, Option<Wall>>;

/// Brings networks into that form.
pub fn without_overlaps(all: impl IntoIterator<Item = (IpNet, Option<Wall>)>) -> BlockedNetworks {
    let mut latest = BlockedNetworks::new();
    for (network, end) in all {
        let known = latest.entry(network.trunc()).or_insert(end);
        *known = known.zip(end).map(|(one, other)| one.max(other));
    }
    // Sorted, the wider one comes first. The other one comes back when that ends.
    let mut last: Option<IpNet> = None;
    latest.retain(|network, _| {
        let is_inside = last.is_some_and(|last| last.contains(network));
        last = if is_inside { last } else { Some(*network) };
        !is_inside
    });
    latest
}

/// The blocks that the kernel has been given.
#[derive(Debug)]
pub struct GivenBlocks {
    format: FilterFormat,
    /// `None`: nothing was given yet, so the sets are made and emptied first.
    given: Option<BTreeMap<IpNet, GivenBlock>>,
}

#[derive(Clone, Copy, Debug)]
struct GivenBlock {
    end: Option<Wall>,
    /// When the kernel lets it go by itself.
    expires: Wall,
}

impl GivenBlock {
    /// One that is given now; and the seconds for which it holds.
    fn new(format: FilterFormat, end: Option<Wall>, now: Wall) -> (Self, u64) {
        let most = if format == FilterFormat::Ipset { IPSET_MOST } else { Span::MAX };
        let secs = end.map_or(ENDLESS, |end| end.since(now).min(most)).as_secs_ceil();
        (Self { end, expires: now + Span::from_secs(secs) }, secs)
    }

    /// Whether it is what is wanted, for now.
    fn serves(&self, end: Option<Wall>, now: Wall) -> bool {
        self.end == end && (self.expires > now + RENEW || end.is_some_and(|end| self.expires >= end))
    }
}

impl GivenBlocks {
    /// Nothing was given yet.
    pub const fn none(format: FilterFormat) -> Self {
        Self { format, given: None }
    }

    /// The transaction after which the kernel has these; empty if it has them.
    pub fn change(&mut self, wanted: &BlockedNetworks, now: Wall) -> String {
        let is_first = self.given.is_none();
        let given = self.given.get_or_insert_default();
        // The kernel has ended them by itself.
        given.retain(|_, own| own.expires > now);
        let holds = |end: &Option<Wall>| end.is_none_or(|end| end > now);
        // One that ends in this second is left to the kernel.
        let stays = |own: &GivenBlock| own.expires > now + SECOND;
        let is_wanted = |network: &IpNet| wanted.get(network).is_some_and(holds);
        let gone = given.iter().filter(|(network, own)| !is_wanted(network) && stays(own));
        let gone: Vec<IpNet> = gone.map(|(network, _)| *network).collect();
        for network in &gone {
            given.remove(network);
        }
        let mut added = Vec::new();
        for (network, end) in wanted.iter().filter(|(_, end)| holds(end)) {
            if given.get(network).is_some_and(|own| own.serves(*end, now)) {
                continue;
            }
            let (own, secs) = GivenBlock::new(self.format, *end, now);
            given.insert(*network, own);
            added.push((*network, secs));
        }
        if !is_first && gone.is_empty() && added.is_empty() {
            return String::new();
        }
        let mut text = match self.format {
            FilterFormat::Nft => nft(is_first, &gone, &added),
            FilterFormat::Ipset => ipset(is_first, &gone, &added),
        };
        text.push_str(END);
        text
    }
}

/// An element is deleted before it is added anew, since its time would stay what it was. It is added before it is deleted,
/// since the kernel may have ended it in this moment, and what is not there cannot be deleted.
fn nft(is_first: bool, gone: &[IpNet], added: &[(IpNet, u64)]) -> String {
    let mut text = String::from(if is_first { NFT_HEAD } else { "" });
    let gone: Vec<_> = gone.iter().map(|network| (*network, None)).collect();
    let anew: Vec<_> = added.iter().filter(|_| !is_first).map(|(network, _)| (*network, None)).collect();
    for bare in [&gone, &anew] {
        elements("add", bare, &mut text);
        elements("delete", bare, &mut text);
    }
    let added: Vec<_> = added.iter().map(|(network, secs)| (*network, Some(*secs))).collect();
    elements("add", &added, &mut text);
    text
}

fn elements(verb: &str, all: &[(IpNet, Option<u64>)], out: &mut String) {
    let (four, six): (Vec<_>, Vec<_>) = all.iter().partition(|(network, _)| matches!(network, IpNet::V4(_)));
    for (set, all) in [("blocked4", four), ("blocked6", six)] {
        for line in all.chunks(LINE) {
            let _ = write!(out, "{verb} element inet sluicegate {set} {{ ");
            for (place, (network, secs)) in line.iter().enumerate() {
                let joint = if place == 0 { "" } else { ", " };
                let _ = write!(out, "{joint}{}", shown(*network));
                if let Some(secs) = secs {
                    let _ = write!(out, " timeout {secs}s");
                }
            }
            out.push_str(" }\n");
        }
    }
}

fn ipset(is_first: bool, gone: &[IpNet], added: &[(IpNet, u64)]) -> String {
    let mut text = String::from(if is_first { IPSET_HEAD } else { "" });
    let set = |network: &IpNet| if matches!(network, IpNet::V4(_)) { "sluicegate4" } else { "sluicegate6" };
    for network in gone {
        let _ = writeln!(text, "del {} {} -exist", set(network), shown(*network));
    }
    for (network, secs) in added {
        // Of one that is there -exist sets the time anew.
        let _ = writeln!(text, "add {} {} timeout {secs} -exist", set(network), shown(*network));
    }
    text
}

/// An address alone where it is one.
fn shown(network: IpNet) -> String {
    if network.prefix_len() == network.max_prefix_len() { network.addr().to_string() } else { network.to_string() }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;

    /// 2026-01-02T03:04:05Z
    const NOW: Wall = Wall::from_nanos(1_767_323_045_000_000_000);

    fn millis(millis: u64) -> Span {
        Span::from_millis(millis)
    }

    fn blocks(all: &[(&str, Option<u64>)]) -> BlockedNetworks {
        let block = |(text, end): &(&str, Option<u64>)| (text.parse().unwrap(), end.map(|end| NOW + millis(end)));
        without_overlaps(all.iter().map(block))
    }

    #[test]
    fn the_first_transaction_makes_the_sets_and_empties_and_fills_them() {
        let wanted = blocks(&[
            ("192.0.2.7/32", Some(600_000)),
            ("198.51.100.1/32", None),
            ("2001:db8::/64", Some(1_001)),
            ("203.0.113.1/32", Some(0)),
        ]);
        let mut given = GivenBlocks::none(FilterFormat::Nft);
        let text = given.change(&wanted, NOW);
        assert_eq!(
            text.strip_prefix(NFT_HEAD).unwrap(),
            "add element inet sluicegate blocked4 { 192.0.2.7 timeout 600s, 198.51.100.1 timeout 86400s }\n\
             add element inet sluicegate blocked6 { 2001:db8::/64 timeout 2s }\n# ---\n"
        );
        assert_eq!(given.change(&wanted, NOW + millis(500)), "");
        let endless = blocks(&[("198.51.100.1/32", None)]);
        given.change(&endless, NOW + millis(600_000));
        assert_eq!(given.change(&endless, NOW + Span::from_secs(86_300)), "");
        assert_eq!(
            given.change(&endless, NOW + Span::from_secs(86_350)),
            "add element inet sluicegate blocked4 { 198.51.100.1 }\n\
             delete element inet sluicegate blocked4 { 198.51.100.1 }\n\
             add element inet sluicegate blocked4 { 198.51.100.1 timeout 86400s }\n# ---\n"
        );
        let mut given = GivenBlocks::none(FilterFormat::Nft);
        assert_eq!(given.change(&blocks(&[]), NOW), format!("{NFT_HEAD}# ---\n"));
    }

    #[test]
    fn an_element_is_deleted_before_it_is_added_anew_and_one_that_ends_is_left_to_the_kernel() {
        let mut given = GivenBlocks::none(FilterFormat::Nft);
        given.change(&blocks(&[("192.0.2.7/32", Some(60_000)), ("192.0.2.8/32", Some(5_000))]), NOW);
        let longer = blocks(&[("192.0.2.7/32", Some(90_000)), ("192.0.2.8/32", Some(5_000))]);
        assert_eq!(
            given.change(&longer, NOW + millis(1_000)),
            "add element inet sluicegate blocked4 { 192.0.2.7 }\n\
             delete element inet sluicegate blocked4 { 192.0.2.7 }\n\
             add element inet sluicegate blocked4 { 192.0.2.7 timeout 89s }\n# ---\n"
        );
        let one = blocks(&[("192.0.2.7/32", Some(90_000))]);
        assert_eq!(given.change(&one, NOW + millis(5_000)), "");
        assert_eq!(
            given.change(&blocks(&[]), NOW + millis(6_000)),
            "add element inet sluicegate blocked4 { 192.0.2.7 }\n\
             delete element inet sluicegate blocked4 { 192.0.2.7 }\n# ---\n"
        );
    }

    #[test]
    fn of_networks_that_overlap_the_wider_one_stays_and_of_one_twice_the_later_end() {
        let all = [
            ("2001:db8:0:1::/64", Some(9)),
            ("2001:db8::/48", Some(5)),
            ("2001:db8:1::/64", Some(1)),
            ("192.0.2.7/32", Some(5)),
            ("192.0.2.7/32", Some(7)),
            ("192.0.2.8/32", None),
            ("192.0.2.8/32", Some(7)),
        ];
        let wanted = blocks(&all);
        let shown: Vec<_> = wanted.iter().map(|(network, end)| (network.to_string(), *end)).collect();
        let end = |end| Some(NOW + millis(end));
        assert_eq!(
            shown,
            [
                ("192.0.2.7/32".to_owned(), end(7)),
                ("192.0.2.8/32".to_owned(), None),
                ("2001:db8::/48".to_owned(), end(5)),
                ("2001:db8:1::/64".to_owned(), end(1)),
            ]
        );
    }

    #[test]
    fn ipset_is_told_the_same_and_long_blocks_again_before_it_forgets_them() {
        let mut given = GivenBlocks::none(FilterFormat::Ipset);
        let month = 30 * 86_400_000;
        let wanted = blocks(&[("192.0.2.7/32", Some(month)), ("2001:db8::/64", None), ("192.0.2.9/32", Some(9_000))]);
        let text = given.change(&wanted, NOW);
        assert_eq!(
            text.strip_prefix(IPSET_HEAD).unwrap(),
            "add sluicegate4 192.0.2.7 timeout 2147483 -exist\n\
             add sluicegate4 192.0.2.9 timeout 9 -exist\n\
             add sluicegate6 2001:db8::/64 timeout 86400 -exist\n# ---\n"
        );
        let one = blocks(&[("192.0.2.7/32", Some(month))]);
        assert_eq!(
            given.change(&one, NOW + millis(1)),
            "del sluicegate4 192.0.2.9 -exist\ndel sluicegate6 2001:db8::/64 -exist\n# ---\n"
        );
        let soon = NOW + Span::from_secs(2_147_483 - 30);
        assert_eq!(given.change(&one, soon), "add sluicegate4 192.0.2.7 timeout 444547 -exist\n# ---\n");
        assert_eq!(given.change(&one, soon + millis(1)), "");
    }

    /// The sets of nft, as far as these texts use them.
    #[derive(Clone, Debug, Default)]
    struct Kernel {
        sets: HashMap<String, BTreeMap<IpNet, Option<Wall>>>,
    }

    impl Kernel {
        /// Applies a transaction as a whole, or says why nothing of it was done.
        fn apply(&mut self, text: &str, now: Wall) -> Result<(), String> {
            let mut next = self.clone();
            for set in next.sets.values_mut() {
                set.retain(|_, ends| ends.is_none_or(|ends| ends > now));
            }
            for line in text.strip_suffix(END).ok_or("no end")?.lines() {
                let words: Vec<_> = line.splitn(6, ' ').collect();
                match words.as_slice() {
                    ["add", "set", "inet", "sluicegate", name, _] => {
                        next.sets.entry((*name).to_owned()).or_default();
                    }
                    ["flush", "set", "inet", "sluicegate", name] => next.set(name)?.clear(),
                    [verb, "element", "inet", "sluicegate", name, elements] => {
                        let elements = elements.strip_prefix("{ ").and_then(|text| text.strip_suffix(" }"));
                        for element in elements.ok_or("no braces")?.split(", ") {
                            next.element(verb, name, element, now)?;
                        }
                    }
                    ["add" | "flush", "table" | "chain" | "rule", ..] => {}
                    _ => return Err(format!("unknown: {line}")),
                }
            }
            *self = next;
            Ok(())
        }

        fn set(&mut self, name: &str) -> Result<&mut BTreeMap<IpNet, Option<Wall>>, String> {
            self.sets.get_mut(name).ok_or_else(|| format!("no set {name}"))
        }

        fn element(&mut self, verb: &str, name: &str, text: &str, now: Wall) -> Result<(), String> {
            let (network, timeout) =
                text.split_once(" timeout ").map_or((text, None), |(own, timeout)| (own, Some(timeout)));
            let network: IpNet =
                network.parse().or_else(|_| network.parse::<std::net::IpAddr>().map(IpNet::from)).unwrap();
            assert_eq!(name == "blocked4", matches!(network, IpNet::V4(_)));
            let secs = timeout.map(|text| text.strip_suffix('s').unwrap().parse::<u64>().unwrap());
            let set = self.set(name)?;
            match verb {
                "add" if set.contains_key(&network) => {}
                "add" if set.keys().any(|own| own.contains(&network) || network.contains(own)) => {
                    return Err(format!("{network} overlaps"));
                }
                "add" => drop(set.insert(network, secs.map(|secs| now + Span::from_secs(secs)))),
                _ => drop(set.remove(&network).ok_or_else(|| format!("{network} is not there"))?),
            }
            Ok(())
        }

        fn all(&self, now: Wall) -> BTreeMap<IpNet, Option<Wall>> {
            let all = self.sets.values().flatten().map(|(network, ends)| (*network, *ends));
            all.filter(|(_, ends)| ends.is_none_or(|ends| ends > now)).collect()
        }
    }

    fn network() -> impl Strategy<Value = IpNet> {
        (0u8..6, any::<bool>()).prop_map(|(host, is_v4)| {
            let text = if is_v4 { format!("192.0.2.{host}/32") } else { format!("2001:db8:0:{host}::/64") };
            text.parse().unwrap()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        /// Each look comes some time after the last, and the kernel a little later.
        #[test]
        fn after_each_transaction_the_kernel_has_the_list(
            steps in vec((btree_map(network(), prop::option::of(0u64..20_000), 0..8), 0u64..6_000, 0u64..300), 1..40),
        ) {
            let (mut kernel, mut given) = (Kernel::default(), GivenBlocks::none(FilterFormat::Nft));
            let (mut now, mut ends) = (NOW, BlockedNetworks::new());
            for (asked, pause, lag) in steps {
                now = now + millis(pause);
                // A block that is known keeps its end half of the time.
                let wanted: BlockedNetworks = asked.iter().map(|(network, end)| {
                    let end = end.map(|end| now + millis(end));
                    let known = ends.get(network).filter(|_| pause % 2 == 0);
                    (*network, known.copied().unwrap_or(end))
                }).collect();
                ends.clone_from(&wanted);
                let text = given.change(&wanted, now);
                let applied = now + millis(lag);
                if !text.is_empty() {
                    prop_assert_eq!(kernel.apply(&text, applied), Ok(()), "{}", text);
                }
                let has = kernel.all(applied);
                for (network, end) in wanted.iter().filter(|(_, end)| end.is_none_or(|end| end > applied)) {
                    let ends = has.get(network).copied();
                    let until = end.map(|end| (end, end + millis(1_300)));
                    let is_right = match (ends, until) {
                        (Some(Some(_)), None) => true,
                        (Some(Some(ends)), Some((from, to))) => from <= ends && ends <= to,
                        _ => false,
                    };
                    prop_assert!(is_right, "{} until {:?}: {:?}", network, end, ends);
                }
                for (network, ends) in has.iter().filter(|(network, _)| !wanted.contains_key(network)) {
                    prop_assert!(ends.is_some_and(|ends| ends <= now + millis(1_300)), "{} until {:?}", network, ends);
                }
            }
        }
    }
}
