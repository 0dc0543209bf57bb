//! Sets of networks, for lookups at each request and connection.

use std::net::IpAddr;

use ipnet::IpNet;

/// Addresses in any of some networks. A lookup is a binary search in sorted ranges: of ten thousand networks it reads
/// fourteen.
///
/// An IPv4 address mapped into IPv6 is an IPv4 address here, and so is a network of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    v4: Ranges<u32>,
    v6: Ranges<u128>,
}

impl Networks {
    /// The addresses in any of these. Bits beyond a network's prefix mean nothing.
    pub fn new(networks: impl IntoIterator<Item = IpNet>) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in networks {
            match canonical(network) {
                IpNet::V4(network) => v4.push((network.network().to_bits(), network.broadcast().to_bits())),
                IpNet::V6(network) => v6.push((network.network().to_bits(), network.broadcast().to_bits())),
            }
        }
        Self { v4: Ranges::new(v4), v6: Ranges::new(v6) }
    }

    /// Whether `addr` is in one of them.
    #[inline]
    pub fn contains(&self, addr: IpAddr) -> bool {
        match addr.to_canonical() {
            IpAddr::V4(addr) => self.v4.contains(addr.to_bits()),
            IpAddr::V6(addr) => self.v6.contains(addr.to_bits()),
        }
    }
}

/// The one spelling of a network, by which two can be compared: without bits beyond the prefix, and a network of IPv4
/// addresses mapped into IPv6 is a network of IPv4 addresses.
pub fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(v6) = network else { return network.trunc() };
    let mapped = v6.prefix_len().checked_sub(96).zip(v6.network().to_ipv4_mapped());
    mapped.and_then(|(prefix, addr)| IpNet::new(IpAddr::V4(addr), prefix).ok()).unwrap_or_else(|| network.trunc())
}

/// Sorted ranges, both ends included, that do not overlap: a lookup does not grow with every network of a large
/// provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ranges<A>(Box<[(A, A)]>);

impl<A: Copy + Ord> Ranges<A> {
    fn new(mut ranges: Vec<(A, A)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(A, A)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some((_, end)) if first <= *end => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        Self(merged.into())
    }

    fn contains(&self, addr: A) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= addr);
        after.checked_sub(1).and_then(|at| self.0.get(at)).is_some_and(|(_, last)| addr <= *last)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn networks(texts: &[&str]) -> Networks {
        Networks::new(texts.iter().map(|text| text.parse().unwrap()))
    }

    #[test]
    fn networks_that_touch_or_overlap_are_found_to_their_edges() {
        let networks = networks(&[
            "10.0.0.0/25",
            "10.0.0.128/25",
            "10.0.0.64/32",
            "192.0.2.7/32",
            "0.0.0.0/32",
            "255.255.255.255/32",
            "2001:db8::/32",
            "2001:db8:1::/48",
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128",
        ]);
        for (addr, is_in) in [
            ("10.0.0.0", true),
            ("10.0.0.127", true),
            ("10.0.0.128", true),
            ("10.0.0.255", true),
            ("10.0.1.0", false),
            ("9.255.255.255", false),
            ("192.0.2.6", false),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("0.0.0.0", true),
            ("255.255.255.255", true),
            ("::a00:0", false),
            ("::ffff:10.0.0.1", true),
            ("::ffff:10.0.1.0", false),
            ("2001:db8::", true),
            ("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", true),
            ("2001:db9::", false),
            ("2001:db7:ffff:ffff:ffff:ffff:ffff:ffff", false),
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", true),
            ("::", false),
        ] {
            assert_eq!(networks.contains(addr.parse().unwrap()), is_in, "{addr}");
        }
    }

    #[test]
    fn no_network_holds_nobody_and_the_widest_everybody_of_its_family() {
        for (texts, v4, v6) in [(&[][..], false, false), (&["0.0.0.0/0"], true, false), (&["::/0"], false, true)] {
            for (addr, is_in) in [("0.0.0.0", v4), ("255.255.255.255", v4), ("::", v6), ("ffff::1", v6)] {
                assert_eq!(networks(texts).contains(addr.parse().unwrap()), is_in, "{addr} in {texts:?}");
            }
        }
    }

    #[test]
    fn a_mapped_network_is_one_of_ipv4() {
        for (written, one) in [
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:192.0.2.7/128", "192.0.2.7/32"),
            ("::ffff:0.0.0.0/96", "0.0.0.0/0"),
            ("::ffff:0:0/95", "::fffe:0:0/95"),
            ("::/0", "::/0"),
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("2001:db8::1/32", "2001:db8::/32"),
        ] {
            assert_eq!(canonical(written.parse().unwrap()), one.parse().unwrap(), "{written}");
        }
        assert!(networks(&["::ffff:10.0.0.0/104"]).contains("10.255.0.1".parse().unwrap()));
    }

    /// Addresses and networks from a few bits each, so that they meet, at both ends of their families.
    fn v4_bits() -> impl Strategy<Value = u32> {
        (0..64_u32, any::<bool>(), 0..4_u32).prop_map(|(low, high, top)| {
            let bits = low | top << 30;
            if high { !bits } else { bits }
        })
    }

    fn addr() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            v4_bits().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
            v4_bits().prop_map(|bits| IpAddr::V6(Ipv4Addr::from_bits(bits).to_ipv6_mapped())),
            (v4_bits(), 0..4_u32)
                .prop_map(|(bits, shift)| { IpAddr::V6(Ipv6Addr::from_bits(u128::from(bits) << (shift * 32))) }),
        ]
    }

    fn network() -> impl Strategy<Value = IpNet> {
        (addr(), 0..=128_u8).prop_map(|(addr, prefix)| {
            let most = if addr.is_ipv4() { 32 } else { 128 };
            IpNet::new(addr, prefix % (most + 1)).unwrap()
        })
    }

    /// Bit by bit, with every IPv4 address as the IPv6 address that it is mapped to.
    fn is_in(network: IpNet, addr: IpAddr) -> bool {
        let (base, prefix) = match network.addr() {
            IpAddr::V4(base) => (base.to_ipv6_mapped(), network.prefix_len() + 96),
            IpAddr::V6(base) => (base, network.prefix_len()),
        };
        let bits =
            |addr: Ipv6Addr| addr.octets().into_iter().flat_map(|octet| (0..8).rev().map(move |bit| octet >> bit & 1));
        // A network that is wider than all mapped addresses is one of IPv6: it holds no IPv4 address.
        let addr = match addr.to_canonical() {
            IpAddr::V4(_) if prefix < 96 => return false,
            IpAddr::V4(addr) => addr.to_ipv6_mapped(),
            IpAddr::V6(addr) => addr,
        };
        bits(base).zip(bits(addr)).take(usize::from(prefix)).all(|(one, other)| one == other)
    }

    proptest! {
        #[test]
        fn finds_what_looking_at_each_network_finds(
            nets in prop::collection::vec(network(), 0..12),
            addrs in prop::collection::vec(addr(), 1..40),
        ) {
            let networks = Networks::new(nets.iter().copied());
            let edges = nets.iter().flat_map(|net| [net.network(), net.broadcast()]);
            for addr in addrs.into_iter().chain(edges) {
                let expected = nets.iter().any(|net| is_in(*net, addr));
                prop_assert_eq!(networks.contains(addr), expected, "{} in {:?}", addr, nets);
            }
        }
    }
}
