//! Finds the client of a request. The only place that builds a [`ClientIp`], so no forwarding field becomes a key
//! unless a trusted peer vouches for it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::hops::{self, RightToLeft};
use super::key::is_token;
use super::networks::{Networks, canonical};
use super::view::RequestView;
use sluicegate_http1::Known;

/// Hops of one field line that are looked at. A chain of more trusted proxies than this ends there.
const MAX_HOPS: usize = 64;

/// How the client of a request is found: `[client]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRules {
    /// The proxies whose forwarding fields are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// The field that they write the client's address to.
    pub address_header: AddressHeader,
    /// How much of an IPv6 address is the client, 1 to 128 bits.
    pub ipv6_prefix: u8,
}

/// How a client is told from others by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressForm {
    /// How much of an IPv6 address is the client, 1 to 128 bits.
    pub ipv6_prefix: u8,
}

impl Default for AddressForm {
    /// As without `[client]`.
    fn default() -> Self {
        Self { ipv6_prefix: 64 }
    }
}

impl AddressForm {
    /// The key of the client with this address.
    pub(super) fn key_of(self, addr: IpAddr) -> [u8; 16] {
        key_of(address_of(addr), self.ipv6_prefix)
    }
}

/// The network of the clients that a network stands for. All of `64:ff9b::/96`, or of `::/96`, stays what it is: as IPv4
/// it would be everybody.
pub(super) fn network_of(network: IpNet) -> IpNet {
    let IpNet::V6(network) = canonical(network) else { return network };
    let held = match address_of(IpAddr::V6(network.network())) {
        IpAddr::V4(addr) if network.prefix_len() > 96 => IpNet::new(IpAddr::V4(addr), network.prefix_len() - 96).ok(),
        _ => None,
    };
    held.unwrap_or(IpNet::V6(network))
}

/// The address of the client that comes from `addr`: an IPv6 address that holds an IPv4 address is that IPv4 client.
/// Whether a peer or a hop is trusted or allowed is asked of the address itself, or of a mapped one's.
pub fn address_of(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(addr) => embedded(addr).map_or(IpAddr::V6(addr), IpAddr::V4),
        addr @ IpAddr::V4(_) => addr,
    }
}

/// The IPv4 address in one that is compatible (`::a.b.c.d`, RFC 4291, 2.5.5.1, but for `::` and `::1`) or translated
/// (`64:ff9b::/96`, RFC 6052).
fn embedded(addr: Ipv6Addr) -> Option<Ipv4Addr> {
    let holds = matches!(addr.segments(), [0, 0, 0, 0, 0, 0, _, _] | [0x64, 0xFF9B, 0, 0, 0, 0, _, _]);
    let is_own = addr.is_unspecified() || addr.is_loopback();
    (holds && !is_own).then(|| Ipv4Addr::from_bits(addr.to_bits() as u32))
}

/// The field that carries the client's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressHeader {
    /// `X-Forwarded-For`: a list of addresses, each proxy adding its peer at the right.
    XForwardedFor,
    /// `Forwarded` (RFC 7239): the `for` parameters, read the same way.
    Forwarded,
    /// `X-Real-IP`: one address; of several lines the last.
    XRealIp,
    /// Any other field, such as `cf-connecting-ip`, in lower case: one address, or a list that is read as
    /// `X-Forwarded-For` is.
    Named(Box<str>),
}

/// Why no field of a name can carry the client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressHeaderError {
    /// No field is called so.
    Name,
    /// A field of that name says something else.
    Taken,
}

/// Fields that have another meaning for a server or for the gateway. Those that [`Known`] names are further ones.
const OTHER_MEANING: [&str; 14] = [
    "accept",
    "content-type",
    "cookie",
    "date",
    "max-forwards",
    "origin",
    "referer",
    "traceparent",
    "tracestate",
    "user-agent",
    "via",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-request-id",
];

impl AddressHeader {
    /// The field of that name, in any case.
    ///
    /// # Errors
    /// An [`AddressHeaderError`]: no field of that name can carry an address.
    pub fn parse(name: &str) -> Result<Self, AddressHeaderError> {
        let name = name.to_ascii_lowercase();
        let plain = name.replace('_', "-");
        match name.as_str() {
            "x-forwarded-for" => return Ok(Self::XForwardedFor),
            "forwarded" => return Ok(Self::Forwarded),
            "x-real-ip" => return Ok(Self::XRealIp),
            name if !is_token(name) => return Err(AddressHeaderError::Name),
            _ => {}
        }
        let is_taken = OTHER_MEANING.contains(&plain.as_str())
            || !matches!(Known::of(plain.as_bytes()), Known::Other)
            || plain == "content-length"
            || plain.starts_with("x-sluicegate-")
            || ["x-forwarded-for", "x-real-ip"].contains(&plain.as_str());
        if is_taken { Err(AddressHeaderError::Taken) } else { Ok(Self::Named(name.into())) }
    }

    /// Its name, in lower case.
    pub fn name(&self) -> &str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
            Self::XRealIp => "x-real-ip",
            Self::Named(name) => name,
        }
    }

    /// Its name, if it is none of those that are always believed from trusted peers alone.
    #[inline]
    pub fn named(&self) -> Option<&str> {
        match self {
            Self::Named(name) => Some(name),
            Self::XForwardedFor | Self::Forwarded | Self::XRealIp => None,
        }
    }
}

/// The client of a request. It cannot be made outside admission:
///
/// ```compile_fail,E0451
/// # use sluicegate_admission::ClientIp;
/// fn forged(client: ClientIp, addr: std::net::IpAddr) -> ClientIp {
///     ClientIp { addr, ..client }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIp {
    addr: IpAddr,
    ipv6_prefix: u8,
}

impl ClientIp {
    /// The whole address; an IPv4 address that came mapped into IPv6 is an IPv4 address here.
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// The bytes that tell it from other clients: an IPv4 address mapped into IPv6, or the first `ipv6_prefix` bits of
    /// an IPv6 address.
    pub fn key(&self) -> [u8; 16] {
        key_of(self.addr, self.ipv6_prefix)
    }

    /// A number that tells it from other clients by the same bits. Some of those that are told by more than 64 share one.
    #[inline]
    pub fn number(&self) -> u64 {
        match self.addr {
            IpAddr::V4(addr) => 0xFFFF << 32 | u64::from(addr.to_bits()),
            IpAddr::V6(addr) => {
                let bits = network(addr, self.ipv6_prefix).to_bits();
                (bits >> 64) as u64 ^ (bits as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
            }
        }
    }

    /// The key, as people write it: `192.0.2.1`, `2001:db8::/64`.
    pub(super) fn key_text(&self) -> String {
        match self.addr {
            IpAddr::V6(addr) if self.ipv6_prefix < 128 => {
                format!("{}/{}", network(addr, self.ipv6_prefix), self.ipv6_prefix)
            }
            _ => self.addr.to_string(),
        }
    }
}

/// The key of the client with this address, which is not mapped.
fn key_of(addr: IpAddr, ipv6_prefix: u8) -> [u8; 16] {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped().octets(),
        IpAddr::V6(addr) => network(addr, ipv6_prefix).octets(),
    }
}

fn network(addr: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    let host_bits = 128_u32.saturating_sub(u32::from(prefix));
    Ipv6Addr::from_bits(addr.to_bits() & u128::MAX.checked_shl(host_bits).unwrap_or(0))
}

impl fmt::Display for ClientIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.addr.fmt(f)
    }
}

/// The findings from the connection and the forwarding fields together.
pub(super) struct Identity {
    pub(super) client: ClientIp,
    pub(super) trusted_peer: bool,
}

/// [`ClientRules`], laid out for the traffic.
#[derive(Clone, Debug)]
pub struct Clients {
    trusted: Networks,
    header: AddressHeader,
    ipv6_prefix: u8,
}

impl Clients {
    pub(super) fn new(rules: ClientRules) -> Self {
        Self {
            trusted: Networks::new(rules.trusted_proxies),
            header: rules.address_header,
            ipv6_prefix: rules.ipv6_prefix.min(128),
        }
    }

    /// The field that carries the client's address.
    pub(super) fn header(&self) -> &AddressHeader {
        &self.header
    }

    /// The name of the field that carries the client's address, in lower case, if it is none of those that are always
    /// believed from trusted peers alone.
    #[inline]
    pub fn named_header(&self) -> Option<&str> {
        self.header.named()
    }

    /// Whether a peer is a trusted proxy.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.of_peer(peer).is_none()
    }

    /// The client that a peer is, unless it is a trusted proxy.
    pub(super) fn of_peer(&self, peer: IpAddr) -> Option<ClientIp> {
        let addr = peer.to_canonical();
        (!self.trusted.contains(addr)).then(|| self.client(addr))
    }

    fn client(&self, addr: IpAddr) -> ClientIp {
        ClientIp { addr: address_of(addr), ipv6_prefix: self.ipv6_prefix }
    }

    // Of two callers one is a request's: it has this in line.
    #[inline]
    pub(super) fn identify<V: RequestView + ?Sized>(&self, view: &V, peer: IpAddr) -> Identity {
        let peer = peer.to_canonical();
        let trusted_peer = self.trusted.contains(peer);
        let addr = if trusted_peer { self.forwarded(view).unwrap_or(peer) } else { peer };
        Identity { client: self.client(addr), trusted_peer }
    }

    /// The first hop from the right that is not trusted, or else the last one before something that is no address, or
    /// the leftmost; none if there is no such hop.
    fn forwarded<V: RequestView + ?Sized>(&self, view: &V) -> Option<IpAddr> {
        if self.header == AddressHeader::XRealIp {
            let mut last = None;
            view.for_each_header("x-real-ip", &mut |line| last = hops::address(line));
            return last;
        }
        let mut trail = Trail::default();
        view.for_each_header(self.header.name(), &mut |line| trail.add(self.follow(line)));
        trail.last_good
    }

    /// The hops that are read to find the client, the nearest first: each one's text, and what becomes of it. For the
    /// caller that explains; what a client has written itself is cut at 100 bytes.
    pub(super) fn hops<V: RequestView + ?Sized>(&self, view: &V) -> Vec<Hop> {
        let is_forwarded = self.header == AddressHeader::Forwarded;
        let mut lines: Vec<&[u8]> = Vec::new();
        view.for_each_header(self.header.name(), &mut |line| lines.push(line));
        let elements = |line| RightToLeft::new(line, is_forwarded).map(<[u8]>::trim_ascii);
        let elements = lines.into_iter().rev().flat_map(elements).filter(|hop| !hop.is_empty()).take(MAX_HOPS);
        elements
            .map(|hop| {
                let address = if is_forwarded { hops::forwarded_for(hop) } else { hops::address(hop) };
                Hop {
                    text: String::from_utf8_lossy(hop.get(..100).unwrap_or(hop)).into_owned(),
                    address,
                    is_trusted: address.is_some_and(|address| self.trusted.contains(address)),
                }
            })
            .collect()
    }

    fn follow(&self, line: &[u8]) -> Trail {
        let is_forwarded = self.header == AddressHeader::Forwarded;
        let mut trail = Trail::default();
        let mut hops = RightToLeft::new(line, is_forwarded);
        // A list may hold empty elements (RFC 9110, 5.6.1.2).
        for hop in hops.by_ref().take(MAX_HOPS).filter(|hop| !hop.trim_ascii().is_empty()) {
            let addr = if is_forwarded { hops::forwarded_for(hop) } else { hops::address(hop) };
            trail.last_good = addr.or(trail.last_good);
            if addr.is_none_or(|addr| !self.trusted.contains(addr)) {
                return Trail { ended: true, ..trail };
            }
        }
        trail.ended = hops.next().is_some();
        trail
    }
}

/// An element of the field by which proxies say who the client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// As it stands there.
    pub text: String,
    /// Its address, if it is one.
    pub address: Option<IpAddr>,
    /// Whether it is a trusted proxy, so that the hop before it is believed.
    pub is_trusted: bool,
}

/// How far a walk from right to left came.
#[derive(Clone, Copy, Debug, Default)]
struct Trail {
    last_good: Option<IpAddr>,
    /// Nothing further left is believed.
    ended: bool,
}

impl Trail {
    /// Goes on with the line below, which is further right.
    fn add(&mut self, line: Self) {
        if line.ended {
            *self = line;
        } else {
            self.last_good = self.last_good.or(line.last_good);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::view::PlainRequest;

    fn clients(header: AddressHeader, trusted: &[&str]) -> Clients {
        let trusted_proxies = trusted.iter().map(|net| net.parse().unwrap()).collect();
        Clients::new(ClientRules { trusted_proxies, address_header: header, ipv6_prefix: 64 })
    }

    fn client_of(clients: &Clients, peer: &str, lines: &[(&str, &str)]) -> String {
        let request =
            lines.iter().fold(PlainRequest::new("GET", "/"), |request, (name, value)| request.with(name, value));
        clients.identify(&request, peer.parse().unwrap()).client.to_string()
    }

    #[test]
    fn an_ipv6_address_that_holds_an_ipv4_address_is_that_client() {
        let all = clients(AddressHeader::XForwardedFor, &["192.0.2.0/24"]);
        for (peer, client) in [
            ("::ffff:198.51.100.1", "198.51.100.1"),
            ("::198.51.100.1", "198.51.100.1"),
            ("64:ff9b::198.51.100.1", "198.51.100.1"),
            ("64:ff9b:1::198.51.100.1", "64:ff9b:1::c633:6401"),
            ("::1", "::1"),
            ("::", "::"),
            ("::2", "0.0.0.2"),
            ("2001:db8::1", "2001:db8::1"),
        ] {
            assert_eq!(client_of(&all, peer, &[]), client, "{peer}");
        }
        // Nobody is trusted for what an address holds, and what a trusted one tells of is the client.
        let told = &[("x-forwarded-for", "64:ff9b::198.51.100.1")];
        assert_eq!(client_of(&all, "64:ff9b::192.0.2.1", told), "192.0.2.1");
        assert_eq!(client_of(&all, "192.0.2.1", told), "198.51.100.1");
    }

    #[test]
    fn a_forwarding_field_of_an_untrusted_peer_means_nothing() {
        for header in [
            AddressHeader::XForwardedFor,
            AddressHeader::Forwarded,
            AddressHeader::XRealIp,
            AddressHeader::Named("cf-connecting-ip".into()),
        ] {
            let clients = clients(header, &["10.0.0.0/8"]);
            let lines = [
                ("x-forwarded-for", "1.1.1.1"),
                ("forwarded", "for=1.1.1.1"),
                ("x-real-ip", "1.1.1.1"),
                ("cf-connecting-ip", "1.1.1.1"),
            ];
            assert_eq!(client_of(&clients, "203.0.113.9", &lines), "203.0.113.9");
            assert_eq!(client_of(&clients, "10.9.9.9", &lines), "1.1.1.1");
        }
    }

    #[test]
    fn x_forwarded_for_is_read_from_the_right_up_to_the_first_untrusted_hop() {
        let clients = clients(AddressHeader::XForwardedFor, &["10.0.0.0/8", "2001:db8:f::/48"]);
        for (lines, client) in [
            (&["1.1.1.1"][..], "1.1.1.1"),
            (&["6.6.6.6, 1.1.1.1"], "1.1.1.1"),
            (&["6.6.6.6, 1.1.1.1, 10.0.0.2,2001:db8:f::2"], "1.1.1.1"),
            (&["6.6.6.6", "1.1.1.1", "10.0.0.2"], "1.1.1.1"),
            (&["1.1.1.1:4711"], "1.1.1.1"),
            (&["[2001:db8::7]:443"], "2001:db8::7"),
            (&["2001:db8::7"], "2001:db8::7"),
            (&["::ffff:1.1.1.1"], "1.1.1.1"),
            (&["1.1.1.1,,", " , "], "1.1.1.1"),
            (&["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            (&["10.0.0.3", "10.0.0.2"], "10.0.0.3"),
            (&[], "10.0.0.1"),
            (&[""], "10.0.0.1"),
        ] {
            let lines: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", *line)).collect();
            assert_eq!(client_of(&clients, "10.0.0.1", &lines), client, "{lines:?}");
        }
    }

    #[test]
    fn what_is_no_address_ends_the_walk_at_the_hop_before_it() {
        let clients = clients(AddressHeader::XForwardedFor, &["10.0.0.0/8"]);
        for garbage in [
            "unknown",
            "1.1.1.1.1",
            "1.1.1.1 2.2.2.2",
            "1.1.1.1:http",
            "fe80::1%eth0",
            "[::1",
            "\u{e9}",
            "1.1.1.1:123456",
        ] {
            assert_eq!(client_of(&clients, "10.0.0.1", &[("x-forwarded-for", garbage)]), "10.0.0.1");
            let line = format!("6.6.6.6, {garbage}, 10.0.0.2");
            assert_eq!(client_of(&clients, "10.0.0.1", &[("x-forwarded-for", &line)]), "10.0.0.2");
            let lines = [("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", garbage), ("x-forwarded-for", "10.0.0.2")];
            assert_eq!(client_of(&clients, "10.0.0.1", &lines), "10.0.0.2");
        }
    }

    #[test]
    fn looks_at_a_bounded_number_of_hops() {
        let clients = clients(AddressHeader::XForwardedFor, &["10.0.0.0/8"]);
        let chain = |hops: usize| {
            let trusted: Vec<_> = (0..hops).rev().map(|hop| format!("10.1.0.{hop}")).collect();
            format!("1.1.1.1,{}", trusted.join(","))
        };
        assert_eq!(client_of(&clients, "10.0.0.1", &[("x-forwarded-for", &chain(63))]), "1.1.1.1");
        assert_eq!(client_of(&clients, "10.0.0.1", &[("x-forwarded-for", &chain(64))]), "10.1.0.63");
        let lines = [("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", &chain(64))];
        assert_eq!(client_of(&clients, "10.0.0.1", &lines), "10.1.0.63");
        let blanks = format!("1.1.1.1{}", ",".repeat(64));
        assert_eq!(client_of(&clients, "10.0.0.1", &[("x-forwarded-for", &blanks)]), "10.0.0.1");
    }

    #[test]
    fn forwarded_is_read_as_rfc_7239_writes_it() {
        let clients = clients(AddressHeader::Forwarded, &["10.0.0.0/8"]);
        for (line, client) in [
            ("for=1.1.1.1", "1.1.1.1"),
            ("For=\"[2001:db8:cafe::17]:4711\"", "2001:db8:cafe::17"),
            ("for=1.1.1.1;proto=http;by=203.0.113.43", "1.1.1.1"),
            ("proto=http; FOR=\"1.1.1.1:80\" ;host=\"a,b;for=9.9.9.9\"", "1.1.1.1"),
            ("for=6.6.6.6, for=1.1.1.1, for=10.0.0.2", "1.1.1.1"),
            ("for=6.6.6.6, for=unknown, for=10.0.0.2", "10.0.0.2"),
            ("for=6.6.6.6, for=_hidden, for=10.0.0.2", "10.0.0.2"),
            ("for=6.6.6.6, proto=https, for=10.0.0.2", "10.0.0.2"),
            ("for=6.6.6.6;for=1.1.1.1, for=10.0.0.2", "10.0.0.2"),
            ("for=\"1.1.1.1:_port\"", "1.1.1.1"),
            ("for=\"1.1.1.1", "10.0.0.1"),
            // A quote that the client left open hides nothing of what stands right of it.
            ("for=\"6.6.6.6, for=1.1.1.1", "1.1.1.1"),
            ("for=\"6.6.6.6, for=\"[2001:db8::1]\"", "2001:db8::1"),
        ] {
            assert_eq!(client_of(&clients, "10.0.0.1", &[("forwarded", line)]), client, "{line}");
        }
    }

    #[test]
    fn a_field_of_any_name_is_read_as_x_forwarded_for_is() {
        let clients = clients(AddressHeader::parse("CF-Connecting-IP").unwrap(), &["10.0.0.0/8"]);
        for (lines, client) in [
            (&["1.1.1.1"][..], "1.1.1.1"),
            (&["2001:db8::7"], "2001:db8::7"),
            (&["6.6.6.6, 1.1.1.1, 10.0.0.2"], "1.1.1.1"),
            (&["6.6.6.6", "1.1.1.1", "10.0.0.2"], "1.1.1.1"),
            (&["10.0.0.3"], "10.0.0.3"),
            (&["1.1.1.1 2.2.2.2"], "10.0.0.1"),
            (&[], "10.0.0.1"),
        ] {
            let lines: Vec<_> = lines.iter().map(|line| ("cf-connecting-ip", *line)).collect();
            assert_eq!(client_of(&clients, "10.0.0.1", &lines), client, "{lines:?}");
            assert_eq!(client_of(&clients, "203.0.113.9", &lines), "203.0.113.9", "{lines:?}");
        }
        assert_eq!(client_of(&clients, "10.0.0.1", &[("x-forwarded-for", "1.1.1.1")]), "10.0.0.1");
        assert_eq!(client_of(&clients, "10.0.0.1", &[("cf_connecting_ip", "1.1.1.1")]), "10.0.0.1");
    }

    #[test]
    fn a_field_that_means_something_else_carries_no_address() {
        for name in ["X-Forwarded-For", "forwarded", "x-real-ip", "true-client-ip", "client_ip", "x-forwarded-client"] {
            assert_eq!(AddressHeader::parse(name).unwrap().name(), name.to_ascii_lowercase());
        }
        for (name, error) in [
            ("", AddressHeaderError::Name),
            ("cf connecting", AddressHeaderError::Name),
            ("x:y", AddressHeaderError::Name),
            ("Host", AddressHeaderError::Taken),
            ("authorization", AddressHeaderError::Taken),
            ("Content-Length", AddressHeaderError::Taken),
            ("connection", AddressHeaderError::Taken),
            ("Cookie", AddressHeaderError::Taken),
            ("x-request-id", AddressHeaderError::Taken),
            ("x_forwarded_proto", AddressHeaderError::Taken),
            ("x_real_ip", AddressHeaderError::Taken),
            ("x-sluicegate-replay", AddressHeaderError::Taken),
        ] {
            assert_eq!(AddressHeader::parse(name), Err(error), "{name}");
        }
    }

    #[test]
    fn x_real_ip_is_the_last_line() {
        let clients = clients(AddressHeader::XRealIp, &["10.0.0.0/8"]);
        assert_eq!(client_of(&clients, "10.0.0.1", &[("x-real-ip", "6.6.6.6"), ("x-real-ip", "1.1.1.1")]), "1.1.1.1");
        assert_eq!(client_of(&clients, "10.0.0.1", &[("x-real-ip", "1.1.1.1, 2.2.2.2")]), "10.0.0.1");
        assert_eq!(client_of(&clients, "10.0.0.1", &[("x-forwarded-for", "1.1.1.1")]), "10.0.0.1");
    }

    #[test]
    fn mapped_addresses_are_ipv4() {
        let clients = clients(AddressHeader::XForwardedFor, &["::ffff:10.0.0.0/104"]);
        assert_eq!(client_of(&clients, "::ffff:10.0.0.1", &[("x-forwarded-for", "1.1.1.1")]), "1.1.1.1");
        assert_eq!(client_of(&clients, "10.0.0.1", &[("x-forwarded-for", "1.1.1.1")]), "1.1.1.1");
        assert_eq!(client_of(&clients, "::ffff:9.0.0.1", &[("x-forwarded-for", "1.1.1.1")]), "9.0.0.1");
    }

    #[test]
    fn the_key_is_the_prefix_of_an_ipv6_address_and_the_whole_of_an_ipv4_one() {
        let client = |addr: &str, ipv6_prefix| ClientIp { addr: addr.parse().unwrap(), ipv6_prefix };
        let one = client("2001:db8:1:2:aaaa::1", 64);
        assert_eq!(one.key(), client("2001:db8:1:2:bbbb::2", 64).key());
        assert_ne!(one.key(), client("2001:db8:1:3:aaaa::1", 64).key());
        assert_eq!(one.key_text(), "2001:db8:1:2::/64");
        assert_eq!(client("2001:db8:1:2:aaaa::1", 128).key_text(), "2001:db8:1:2:aaaa::1");
        assert_ne!(client("2001:db8::1", 128).key(), client("2001:db8::2", 128).key());
        assert_eq!(client("2001:db8::1", 33).key_text(), "2001:db8::/33");
        assert_ne!(client("192.0.2.1", 64).key(), client("192.0.2.2", 64).key());
        assert_eq!(client("192.0.2.1", 64).key_text(), "192.0.2.1");
    }

    /// All lines as one list, walked from the right, as the configuration's documentation words it.
    fn walked(lines: &[String], peer: IpAddr, trusted: &[IpNet]) -> IpAddr {
        let all = lines.join(",");
        let mut client = peer;
        for hop in all.rsplit(',').map(str::trim).filter(|hop| !hop.is_empty()) {
            let Ok(addr) = hop.parse::<IpAddr>() else { break };
            client = addr;
            if !trusted.iter().any(|net| net.contains(&addr)) {
                break;
            }
        }
        client
    }

    proptest! {
        #[test]
        fn finds_the_client_that_a_walk_over_one_long_list_finds(
            lines in prop::collection::vec(
                prop::collection::vec(prop::sample::select(vec!["10.0.0.2", "10.0.0.3", "1.1.1.1", "2.2.2.2", "junk", ""]), 0..5),
                0..4,
            )
        ) {
            let lines: Vec<String> = lines.iter().map(|hops| hops.join(", ")).collect();
            let fields: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", line.as_str())).collect();
            let clients = clients(AddressHeader::XForwardedFor, &["10.0.0.0/8"]);
            let expected = walked(&lines, "10.0.0.1".parse().unwrap(), &["10.0.0.0/8".parse().unwrap()]);
            prop_assert_eq!(client_of(&clients, "10.0.0.1", &fields), expected.to_string());
        }

        #[test]
        fn any_bytes_of_a_trusted_peer_give_some_client(line in prop::collection::vec(any::<u8>(), 0..200)) {
            for header in [AddressHeader::XForwardedFor, AddressHeader::Forwarded, AddressHeader::XRealIp] {
                let request = PlainRequest::new("GET", "/")
                    .with("x-forwarded-for", &line)
                    .with("forwarded", &line)
                    .with("x-real-ip", &line);
                let identity = clients(header, &["10.0.0.0/8"]).identify(&request, "10.0.0.1".parse().unwrap());
                prop_assert!(identity.trusted_peer);
            }
        }
    }
}
