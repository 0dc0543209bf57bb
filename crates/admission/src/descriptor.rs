//! Descriptors of Envoy's rate limit service (`envoy.service.ratelimit.v3`): names and values that a proxy says of a request, in
//! place of the request. Here a descriptor is a target, `/DOMAIN?NAME=VALUE&…`, of a request that comes from the client that it
//! names: so logs, dead letters and keys have it like any request.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr};

use super::spelling::{decoded, split_at_byte};

/// Entries of one descriptor, of a route and of a question. One with more matches no route.
pub const MAX_ENTRIES: usize = 16;
/// The entry in which Envoy says the address of the client.
pub const REMOTE_ADDRESS: &str = "remote_address";

/// The descriptors that a route is for: those with exactly these entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorPattern {
    domain: String,
    /// By name.
    entries: Vec<(String, EntryValue)>,
}

/// The values that an entry may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryValue {
    /// Every one.
    Any,
    /// This one.
    Exact(String),
}

/// A descriptor of a question. No two of its entries have the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor<'q> {
    domain: &'q str,
    /// By name. Values are bytes: those of header fields need not be text.
    entries: Vec<(&'q str, &'q [u8])>,
}

impl DescriptorPattern {
    /// The descriptors of a domain with these entries, at most [`MAX_ENTRIES`], none twice.
    pub fn new(domain: String, mut entries: Vec<(String, EntryValue)>) -> Self {
        entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        Self { domain, entries }
    }

    /// Whether it has an entry of this name.
    pub fn has_entry(&self, name: &str) -> bool {
        self.entries.iter().any(|(own, _)| own == name)
    }

    /// How many of its entries have one value: the more, the more specific it is.
    pub(super) fn exact_entries(&self) -> usize {
        self.entries.iter().filter(|(_, value)| *value != EntryValue::Any).count()
    }

    /// The text by which it is looked up: that of every descriptor that it may match.
    pub(super) fn shape(&self) -> String {
        shape(&self.domain, self.entries.iter().map(|(name, _)| name.as_str()))
    }

    pub(super) fn matches(&self, descriptor: &Descriptor<'_>) -> bool {
        let fits = |((own, pattern), (name, value)): (&(String, EntryValue), &(&str, &[u8]))| {
            own == name
                && match pattern {
                    EntryValue::Any => true,
                    EntryValue::Exact(own) => own.as_bytes() == *value,
                }
        };
        self.domain == descriptor.domain
            && self.entries.len() == descriptor.entries.len()
            && self.entries.iter().zip(&descriptor.entries).all(fits)
    }
}

impl fmt::Display for DescriptorPattern {
    /// `edge: generic_key=login, remote_address=*`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.domain)?;
        for (index, (name, value)) in self.entries.iter().enumerate() {
            let value = match value {
                EntryValue::Any => "*",
                EntryValue::Exact(value) => value,
            };
            write!(f, "{} {name}={value}", if index == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

impl<'q> Descriptor<'q> {
    /// `None`: it has more than [`MAX_ENTRIES`], or two of one name, and so matches no route.
    pub fn new(domain: &'q str, entries: impl ExactSizeIterator<Item = (&'q str, &'q [u8])>) -> Option<Self> {
        if entries.len() > MAX_ENTRIES {
            return None;
        }
        let mut entries: Vec<_> = entries.collect();
        entries.sort_unstable();
        let is_twice = |pair: &[(&str, &[u8])]| matches!(pair, [(one, _), (other, _)] if one == other);
        (!entries.windows(2).any(is_twice)).then_some(Self { domain, entries })
    }

    pub(super) fn shape(&self) -> String {
        shape(self.domain, self.entries.iter().map(|(name, _)| *name))
    }

    /// The method of the request that it is here.
    pub const METHOD: &'static str = "DESCRIPTOR";

    /// The target of that request. Everything but letters, digits and `-._~` is escaped in it.
    pub fn target(&self) -> String {
        let mut target = String::with_capacity(64);
        target.push('/');
        escape(self.domain.as_bytes(), &mut target);
        for (index, (name, value)) in self.entries.iter().enumerate() {
            target.push(if index == 0 { '?' } else { '&' });
            escape(name.as_bytes(), &mut target);
            target.push('=');
            escape(value, &mut target);
        }
        target
    }

    /// The client of that request. The unspecified address stands for one that the descriptor does not name.
    pub fn client(&self) -> IpAddr {
        let address = self.entries.iter().find(|(name, _)| *name == REMOTE_ADDRESS);
        address
            .and_then(|(_, value)| str::from_utf8(value).ok()?.parse().ok())
            .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }
}

/// The bytes of the value of this entry in such a query; `None`: it has none.
pub(super) fn entry<'t>(query: &'t str, name: &str) -> Option<impl Iterator<Item = u8> + use<'t>> {
    query.as_bytes().split(|byte| *byte == b'&').find_map(|pair| {
        let (own, value) = split_at_byte(pair, b'=');
        decoded(own).eq(name.bytes()).then(|| decoded(value))
    })
}

fn shape<'n>(domain: &str, names: impl Iterator<Item = &'n str>) -> String {
    names.fold(domain.to_owned(), |shape, name| shape + "\0" + name)
}

fn escape(text: &[u8], into: &mut String) {
    for byte in text.iter().copied() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            into.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            let _ = write!(into, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn question<'q>(entries: &[(&'q str, &'q str)]) -> Option<Descriptor<'q>> {
        Descriptor::new("edge", entries.iter().map(|(name, value)| (*name, value.as_bytes())))
    }

    fn pattern(entries: &[(&str, &str)]) -> DescriptorPattern {
        let value = |value: &str| if value == "*" { EntryValue::Any } else { EntryValue::Exact(value.to_owned()) };
        let entries = entries.iter().map(|(name, own)| ((*name).to_owned(), value(own))).collect();
        DescriptorPattern::new("edge".to_owned(), entries)
    }

    #[test]
    fn a_pattern_matches_exactly_its_entries_in_any_order() {
        let own = pattern(&[("remote_address", "*"), ("generic_key", "login")]);
        for (entries, matches) in [
            (&[("generic_key", "login"), ("remote_address", "192.0.2.7")][..], true),
            (&[("remote_address", ""), ("generic_key", "login")], true),
            (&[("generic_key", "logout"), ("remote_address", "192.0.2.7")], false),
            (&[("generic_key", "login")], false),
            (&[("generic_key", "login"), ("remote_address", "a"), ("path", "/")], false),
            (&[("generic_key", "login"), ("Remote_address", "a")], false),
            (&[], false),
        ] {
            let descriptor = question(entries).unwrap();
            assert_eq!(own.matches(&descriptor), matches, "{entries:?}");
            assert!(!matches || own.shape() == descriptor.shape(), "{entries:?}");
        }
        let other =
            Descriptor { domain: "other", ..question(&[("generic_key", "login"), ("remote_address", "a")]).unwrap() };
        assert!(!own.matches(&other));
    }

    #[test]
    fn one_that_names_an_entry_twice_or_has_too_many_is_none() {
        assert_eq!(question(&[("a", "1"), ("b", "2"), ("a", "1")]), None);
        let names: Vec<String> = (0..=MAX_ENTRIES).map(|number| number.to_string()).collect();
        let entries: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
        assert_eq!(question(&entries), None);
        assert!(question(&entries[1..]).is_some());
    }

    #[test]
    fn its_target_and_its_client_are_those_of_a_request() {
        let descriptor = question(&[("remote_address", "2001:db8::1"), ("a b", "x+y/ü\0")]).unwrap();
        assert_eq!(descriptor.target(), "/edge?a%20b=x%2By%2F%C3%BC%00&remote_address=2001%3Adb8%3A%3A1");
        assert_eq!(descriptor.client(), "2001:db8::1".parse::<IpAddr>().unwrap());
        assert_eq!(question(&[("remote_address", "a")]).unwrap().client().to_string(), "0.0.0.0");
        assert_eq!(question(&[]).unwrap().target(), "/edge");
    }

    proptest! {
        #[test]
        fn every_entry_is_read_out_of_the_target_as_it_was(
            texts in vec(("[a-c%&=+ \0/?#ü]{1,3}", vec(any::<u8>(), 0..9)), 0..6), domain in "\\PC{0,9}",
        ) {
            let entries = texts.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
            if let Some(descriptor) = Descriptor::new(&domain, entries) {
                let target = descriptor.target();
                let query = target.split_once('?').map_or("", |(_, query)| query);
                prop_assert!(target.bytes().all(|byte| byte.is_ascii_graphic()));
                for (name, value) in &texts {
                    let read: Vec<u8> = entry(query, name).unwrap().collect();
                    prop_assert_eq!(&read, value);
                }
                prop_assert!(entry(query, "d").is_none());
            }
        }
    }
}
