//! Requests that are neither counted nor refused by a limit.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::body::BodyField;
use super::client::{AddressForm, ClientIp, address_of, network_of};
use super::descriptor::REMOTE_ADDRESS;
use super::host::{self, HostRoom};
use super::identity::{KeySink, is_blank, is_credentials};
use super::key::{KeyExpr, KeySource};
use super::networks::Networks;
use super::path;
use super::spelling::{credentials, trim_blanks};
use sluicegate_limiter::{Fingerprint, KeyHasher};

/// The text between the values of a key of several parts.
const JOINT: &str = " + ";

/// The exemptions from a limit, as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExemptRules {
    /// Clients with an address in one of these.
    pub networks: Vec<IpNet>,
    /// Values of the limit's key, each as [`KeyExpr::check_value`] takes it.
    pub keys: Vec<Box<str>>,
}

/// The exemptions from a limit, laid out for the traffic: a few dozen comparisons for each request, whatever it sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exempt {
    networks: Networks,
    /// The bits of fingerprints, sorted.
    keys: Box<[u64]>,
}

/// Why a text is no value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyValueError {
    /// There is nothing.
    Empty,
    /// It is not as many values as the key has parts.
    Parts {
        /// How many parts the key has.
        parts: usize,
        /// How many values there are.
        given: usize,
    },
    /// They are not as many values as the key has parts.
    Values {
        /// How many parts of the key have values.
        parts: usize,
        /// How many values there are.
        given: usize,
    },
    /// The key is the client's address alone, which has a form of its own.
    ClientIp,
    /// The value for the client's address is no address.
    Address(String),
    /// The value for the host is no host.
    Host(String),
    /// The value for the path is no path.
    Path(String),
    /// The value for the fingerprint of a certificate is no fingerprint.
    Fingerprint(String),
    /// The key has the same value for everybody.
    Global,
}

impl Exempt {
    /// `None` if nobody is exempt. `key` is that of the limit, `form` and `hasher` are those of its requests.
    pub fn new(rules: &ExemptRules, key: &KeyExpr, form: AddressForm, hasher: &KeyHasher) -> Option<Arc<Self>> {
        if rules.networks.is_empty() && rules.keys.is_empty() {
            return None;
        }
        let print_of = |value: &str| {
            let mut print = hasher.start();
            key.read_value(value, form, &mut print).ok().map(|()| print.finish().bits())
        };
        let mut keys: Vec<u64> = rules.keys.iter().filter_map(|value| print_of(value)).collect();
        keys.sort_unstable();
        let networks = rules.networks.iter().map(|network| network_of(*network));
        Some(Arc::new(Self { networks: Networks::new(networks), keys: keys.into() }))
    }

    /// Whether the client's address is exempt.
    pub(super) fn has_client(&self, client: &ClientIp) -> bool {
        self.has_address(client.addr())
    }

    /// Whether the client with this address is exempt.
    pub(super) fn has_address(&self, addr: IpAddr) -> bool {
        let addr = address_of(addr);
        // That stands for a client that is not known.
        !addr.is_unspecified() && self.networks.contains(addr)
    }

    /// Whether the key is exempt.
    pub(super) fn has_key(&self, key: Fingerprint) -> bool {
        self.keys.binary_search(&key.bits()).is_ok()
    }
}

impl KeyExpr {
    /// Whether `text` can be a value of this key: what a request has for its part, as dead letters show it; of several
    /// parts each one's, in their order, joined by `" + "`.
    ///
    /// - Spellings that are one in requests are one here: hosts, paths, the scheme of credentials, `+` and a space in
    ///   cookies and parameters. These are not percent-decoded here: they stand as they are meant.
    /// - `client-ip` is an address; of IPv6 any one of the client's network. Alone it is no value, because networks
    ///   say it.
    pub fn check_value(&self, text: &str) -> Result<(), KeyValueError> {
        self.read_value(text, AddressForm::default(), &mut Nowhere)
    }

    fn read_value(&self, text: &str, form: AddressForm, sink: &mut impl KeySink) -> Result<(), KeyValueError> {
        match self.parts() {
            [KeySource::ClientIp] => Err(KeyValueError::ClientIp),
            _ => self.read_any_value(text, form, sink),
        }
    }

    /// The same, where an address alone is a value too.
    pub(super) fn read_any_value(
        &self,
        text: &str,
        form: AddressForm,
        sink: &mut impl KeySink,
    ) -> Result<(), KeyValueError> {
        match self.parts() {
            [part] => part.read_value(text, form, sink),
            parts => {
                let given = text.split(JOINT).count();
                if given != parts.len() {
                    return Err(KeyValueError::Parts { parts: parts.len(), given });
                }
                parts.iter().zip(text.split(JOINT)).try_for_each(|(part, value)| part.read_value(value, form, sink))
            }
        }
    }

    /// The fingerprint that a request with these values has: one for each part but `global`, which is the same for everybody.
    pub(super) fn fingerprint_of_values(
        &self,
        values: &[String],
        form: AddressForm,
        hasher: &KeyHasher,
    ) -> Result<Fingerprint, KeyValueError> {
        let parts = self.parts_with_values().count();
        if parts != values.len() {
            return Err(KeyValueError::Values { parts, given: values.len() });
        }
        let (mut print, mut values) = (hasher.start(), values.iter());
        for part in self.parts() {
            match part {
                KeySource::Global => KeySink::part(&mut print, part.tag(), &[]),
                part => part.read_decoded(values.next().map_or("", |value| value), form, &mut print)?,
            }
        }
        Ok(print.finish())
    }

    /// The address of the client among such values, if the key has it.
    pub(super) fn address_in_values(&self, values: &[String]) -> Option<IpAddr> {
        let is_address = |part: &KeySource| match part {
            KeySource::ClientIp => true,
            KeySource::Descriptor(name) => **name == *REMOTE_ADDRESS,
            _ => false,
        };
        let place = self.parts_with_values().position(is_address)?;
        values.get(place)?.trim_ascii().parse().ok()
    }

    /// The sources of such values, as the configuration writes them.
    pub(super) fn sources_of_values(&self) -> impl Iterator<Item = String> {
        self.parts_with_values().map(ToString::to_string)
    }

    fn parts_with_values(&self) -> impl Iterator<Item = &KeySource> {
        self.parts().iter().filter(|part| **part != KeySource::Global)
    }
}

impl KeySource {
    /// Feeds the sink with the very bytes that a request with this value does. It is as somebody has written it: blanks at its
    /// ends mean nothing.
    fn read_value(&self, text: &str, form: AddressForm, sink: &mut impl KeySink) -> Result<(), KeyValueError> {
        self.read_decoded(text.trim_ascii(), form, sink)
    }

    /// The same of a value as a request has it once it is decoded: blanks at its ends are cut where those of requests are.
    fn read_decoded(&self, text: &str, form: AddressForm, sink: &mut impl KeySink) -> Result<(), KeyValueError> {
        let tag = self.tag();
        let value = match self {
            Self::Query(_)
            | Self::BasicUser
            | Self::TlsSubject
            | Self::Jwt(_)
            | Self::Method
            | Self::Route
            | Self::Descriptor(_) => text,
            Self::Body(_) => text.trim_matches(is_blank),
            // A cookie may come with blanks that servers cut off: none of them makes another value.
            Self::Cookie(_) => str::from_utf8(trim_blanks(text.as_bytes())).unwrap_or(text),
            _ => text.trim_ascii(),
        };
        if value.is_empty() && !matches!(self, Self::Global | Self::Descriptor(_)) {
            return Err(KeyValueError::Empty);
        }
        match self {
            Self::ClientIp => {
                let addr: IpAddr = value.parse().map_err(|_| KeyValueError::Address(value.to_owned()))?;
                sink.part(tag, &form.key_of(addr));
            }
            Self::Descriptor(name) if **name == *REMOTE_ADDRESS => {
                let addr: IpAddr = value.parse().map_err(|_| KeyValueError::Address(value.to_owned()))?;
                if address_of(addr).is_unspecified() {
                    sink.pieces(tag, value.bytes());
                } else {
                    sink.part(tag, &form.key_of(addr));
                }
            }
            Self::Header(name) if is_credentials(name) => {
                sink.pieces(tag, credentials(value.as_bytes()));
            }
            Self::Body(BodyField::Form(_)) => {
                sink.part(tag, value.replace('+', " ").as_bytes());
            }
            Self::Body(BodyField::Json(_)) => sink.part(tag, value.as_bytes()),
            Self::Cookie(_) | Self::Query(_) => {
                sink.pieces(tag, value.bytes().map(|byte| if byte == b'+' { b' ' } else { byte }));
            }
            Self::Host => match host::normalise(Some(value), &mut HostRoom::new()) {
                Ok(Some(host)) => sink.part(tag, host.as_bytes()),
                _ => return Err(KeyValueError::Host(value.to_owned())),
            },
            Self::Path => match path::normalise(value) {
                Ok(path) => sink.part(tag, path::without_escaped_delims(&path.text).as_bytes()),
                Err(_) => return Err(KeyValueError::Path(value.to_owned())),
            },
            Self::BasicUser | Self::Descriptor(_) => {
                sink.pieces(tag, value.bytes());
            }
            Self::TlsFingerprint => {
                // As openssl prints it, or as requests are counted.
                let digits = || value.bytes().filter(|byte| *byte != b':');
                if digits().count() != 64 || !digits().all(|digit| digit.is_ascii_hexdigit()) {
                    return Err(KeyValueError::Fingerprint(value.to_owned()));
                }
                sink.pieces(tag, digits().map(|digit| digit.to_ascii_lowercase()));
            }
            Self::Header(_) | Self::Method | Self::Route | Self::TlsSubject | Self::Jwt(_) => {
                sink.part(tag, value.as_bytes());
            }
            Self::Global => return Err(KeyValueError::Global),
        }
        Ok(())
    }
}

impl fmt::Display for KeyValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a value is missing: write what such a request has there"),
            Self::Parts { parts, given } => {
                write!(f, "the key has {parts} parts, and this is {given}: join the value of each by \"{JOINT}\"")
            }
            Self::Values { parts: 0, .. } => f.write_str("the key is the same for everybody: leave the values out"),
            Self::Values { parts: 1, given } => write!(f, "the key has one part, and there are {given} values"),
            Self::Values { parts, given } => {
                write!(f, "the key has {parts} parts, and there are {given} values: list one of each, in their order")
            }
            Self::ClientIp => f.write_str(
                "the key is the client's address: write it as it is, such as \"192.0.2.7\" or \"10.0.0.0/8\"",
            ),
            // A value may be a secret, or a secret in the wrong place: none is shown.
            Self::Address(_) => f.write_str("the part for client-ip is no address, such as 192.0.2.7"),
            Self::Host(_) => f.write_str("the part for the host is none: write a name such as api.example.com"),
            Self::Path(_) => f.write_str("the part for the path is none: write one that begins with a slash"),
            Self::Fingerprint(_) => f.write_str(
                "the part for the fingerprint is no SHA-256: openssl x509 -in cert.pem -noout -fingerprint -sha256 prints it",
            ),
            Self::Global => f.write_str("the key \"global\" is the same for everybody: exempt networks instead"),
        }
    }
}

impl std::error::Error for KeyValueError {}

/// For a check alone.
struct Nowhere;

impl KeySink for Nowhere {
    fn part(&mut self, _tag: u8, _bytes: &[u8]) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{AddressHeader, ClientRules, Clients};
    use crate::identity::KeyFacts;
    use crate::{PlainRequest, RequestView};

    fn client(addr: &str) -> ClientIp {
        let rules =
            ClientRules { trusted_proxies: Vec::new(), address_header: AddressHeader::XForwardedFor, ipv6_prefix: 64 };
        Clients::new(rules).identify(&PlainRequest::new("GET", "/"), addr.parse().unwrap()).client
    }

    /// As `openssl x509 -fingerprint` prints it.
    const PRINTED: &str =
        "00:FF:00:FF:00:FF:00:FF:00:FF:00:FF:00:FF:00:FF:00:FF:00:FF:00:FF:00:FF:00:FF:00:FF:00:FF:00:FF";

    fn exempt(key: &[&str], values: &[&str]) -> Exempt {
        let key = KeyExpr::parse(key).unwrap();
        for value in values {
            assert_eq!(key.check_value(value), Ok(()), "{value}");
        }
        let rules = ExemptRules { networks: Vec::new(), keys: values.iter().map(|value| (*value).into()).collect() };
        Exempt::clone(&Exempt::new(&rules, &key, AddressForm::default(), &KeyHasher::fixed()).unwrap())
    }

    fn print_of(key: &[&str], view: &PlainRequest, from: &str) -> Fingerprint {
        let client = client(from);
        let mut room = HostRoom::new();
        let host = host::normalise(view.authority(), &mut room).unwrap();
        let path = path::normalise(view.path()).unwrap();
        let facts = KeyFacts { view, client: &client, host, path: &path.text, route: "api" };
        KeyExpr::parse(key).unwrap().fingerprint(&facts, &KeyHasher::fixed()).unwrap()
    }

    #[test]
    fn a_value_is_found_in_every_spelling_that_counts_as_the_same() {
        let get = |target: &str| PlainRequest::new("GET", target);
        let long = "k".repeat(300);
        for (source, value, request) in [
            ("header:x-k", "gold", get("/").with("x-k", " gold ")),
            ("header:x-k", " gold ", get("/").with("x-k", "gold")),
            ("header:x-k", "a + b", get("/").with("x-k", "a + b")),
            ("header:x-k", &long, get("/").with("x-k", &long)),
            ("header:authorization", "Bearer aB", get("/").with("authorization", "bEARER  aB")),
            ("header:authorization", "bearer aB", get("/").with("authorization", "Bearer aB")),
            ("cookie:s", "a b", get("/").with("cookie", "x=1; s=\"a%20b\"")),
            ("cookie:s", "a+b=", get("/").with("cookie", "s=a%2Bb=")),
            ("cookie:s", &long, get("/").with("cookie", format!("s={long}"))),
            ("query:q", "v 1", get("/?q=v+1")),
            ("query:q", "100%", get("/?q=100%25")),
            ("host", "API.example.com.:80", get("/").host("api.example.com")),
            ("host", "api.example.com", get("/").host("API.example.com:8080")),
            ("method", "GET", get("/")),
            ("path", "/a//x/../b%7e", get("/%61/b~")),
            ("route", "api", get("/")),
            ("tls:subject", "CN=billing,O=Example\\, Inc.", get("/").certificate("CN=billing,O=Example\\, Inc.", "")),
            (
                "tls:fingerprint",
                PRINTED,
                get("/").certificate("", "00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff"),
            ),
            ("basic:user", "Aladdin", get("/").with("authorization", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")),
        ] {
            let unlike = "1".repeat(64);
            let other = match source {
                "path" => "/other",
                "tls:fingerprint" => &unlike,
                _ => "other",
            };
            assert!(exempt(&[source], &[other, value]).has_key(print_of(&[source], &request, "192.0.2.1")), "{value}");
            assert!(!exempt(&[source], &[other]).has_key(print_of(&[source], &request, "192.0.2.1")), "{value}");
        }
    }

    #[test]
    fn each_of_many_values_is_found() {
        let values: Vec<String> = (0..100).map(|number| format!("v{number}")).collect();
        let exempt = exempt(&["header:k"], &values.iter().map(String::as_str).collect::<Vec<_>>());
        let has = |value: &str| {
            let request = PlainRequest::new("GET", "/").with("k", value);
            exempt.has_key(print_of(&["header:k"], &request, "192.0.2.1"))
        };
        assert!(values.iter().all(|value| has(value)));
        assert!(!has("v100"));
    }

    #[test]
    fn a_value_is_that_of_its_source_alone() {
        let request = PlainRequest::new("GET", "/?k=gold").with("k", "gold").with("cookie", "k=gold");
        for one in ["header:k", "cookie:k", "query:k"] {
            for other in ["header:k", "cookie:k", "query:k"] {
                let found = exempt(&[one], &["gold"]).has_key(print_of(&[other], &request, "192.0.2.1"));
                assert_eq!(found, one == other, "{one} {other}");
            }
        }
        let gold = |value: &str| print_of(&["header:k"], &PlainRequest::new("GET", "/").with("k", value), "192.0.2.1");
        for value in ["Gold", "golden", "gol", "gold x"] {
            assert!(!exempt(&["header:k"], &["gold"]).has_key(gold(value)), "{value}");
        }
    }

    #[test]
    fn the_values_of_several_parts_are_joined_in_the_order_of_the_key() {
        let key = ["client-ip", "header:k"];
        let request = PlainRequest::new("GET", "/").with("k", "gold");
        let found = |value: &str, from: &str| exempt(&key, &[value]).has_key(print_of(&key, &request, from));
        assert!(found("192.0.2.7 + gold", "192.0.2.7"));
        for held in ["::ffff:192.0.2.7", "64:ff9b::192.0.2.7", "::192.0.2.7"] {
            assert!(found(&format!("{held} + gold"), "192.0.2.7"), "{held}");
        }
        assert!(!found("::1 + gold", "0.0.0.1"));
        assert!(!found("192.0.2.7 + gold", "192.0.2.8"));
        assert!(!found("192.0.2.7 + lead", "192.0.2.7"));
        assert!(found("2001:db8::1 + gold", "2001:db8::2"), "one client is a network of 64 bits");
        assert!(!found("2001:db8::1 + gold", "2001:db8:0:1::1"));
    }

    #[test]
    fn what_can_be_no_value_says_what_can() {
        for (key, value, error) in [
            (&["header:k"][..], "", KeyValueError::Empty),
            (&["header:k"], "  ", KeyValueError::Empty),
            (&["client-ip"], "192.0.2.7", KeyValueError::ClientIp),
            (&["global"], "x", KeyValueError::Global),
            (&["global"], "", KeyValueError::Global),
            (&["host"], "a b", KeyValueError::Host("a b".into())),
            (&["path"], "api", KeyValueError::Path("api".into())),
            (&["tls:fingerprint"], "00ff", KeyValueError::Fingerprint("00ff".into())),
            (&["header:k", "path"], "gold", KeyValueError::Parts { parts: 2, given: 1 }),
            (&["header:k", "path"], "a + b + /", KeyValueError::Parts { parts: 2, given: 3 }),
            (&["header:k", "path"], " + /", KeyValueError::Empty),
            (&["client-ip", "path"], "10.0.0.0/8 + /", KeyValueError::Address("10.0.0.0/8".into())),
        ] {
            assert_eq!(KeyExpr::parse(key).unwrap().check_value(value), Err(error), "{value:?}");
        }
    }

    #[test]
    fn clients_are_found_by_their_whole_address() {
        let networks = ["10.0.0.0/8", "2001:db8::7/128"].map(|text| text.parse().unwrap());
        let rules = ExemptRules { networks: networks.into(), keys: Vec::new() };
        let exempt =
            Exempt::new(&rules, &KeyExpr::parse(&["client-ip"]).unwrap(), AddressForm::default(), &KeyHasher::fixed())
                .unwrap();
        for (addr, is_in) in [
            ("10.1.2.3", true),
            ("11.0.0.1", false),
            ("2001:db8::7", true),
            ("2001:db8::8", false),
            ("::ffff:10.0.0.1", true),
        ] {
            assert_eq!(exempt.has_client(&client(addr)), is_in, "{addr}");
        }
    }

    #[test]
    fn an_ipv4_client_may_be_named_by_an_ipv6_address_that_holds_it() {
        let key = KeyExpr::parse(&["client-ip"]).unwrap();
        for (network, addr, is_exempt) in [
            ("64:ff9b::192.0.2.7/128", "192.0.2.7", true),
            ("64:ff9b::192.0.2.7/128", "64:ff9b::192.0.2.7", true),
            ("::192.0.2.7/128", "192.0.2.7", true),
            ("64:ff9b::10.0.0.0/104", "10.1.2.3", true),
            ("64:ff9b::10.0.0.0/104", "11.1.2.3", false),
            ("::ffff:192.0.2.7/128", "192.0.2.7", true),
            ("64:ff9b::/96", "192.0.2.7", false),
            ("::/96", "192.0.2.7", false),
            ("::1/128", "0.0.0.1", false),
            ("::1/128", "::1", true),
        ] {
            let rules = ExemptRules { networks: vec![network.parse().unwrap()], keys: Vec::new() };
            let rules = Exempt::new(&rules, &key, AddressForm::default(), &KeyHasher::fixed()).unwrap();
            assert_eq!(rules.has_client(&client(addr)), is_exempt, "{network} {addr}");
        }
    }

    #[test]
    fn nobody_is_exempt_without_an_entry() {
        let key = KeyExpr::parse(&["global"]).unwrap();
        assert_eq!(Exempt::new(&ExemptRules::default(), &key, AddressForm::default(), &KeyHasher::fixed()), None);
    }
}
