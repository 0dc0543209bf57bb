//! `exempt` of a limit.

use ipnet::IpNet;

use crate::admission::{ExemptRules, KeyExpr, canonical};
use crate::config::networks::{self, Seen};
use crate::config::reader::Reader;

/// What begins a value of the limit's key.
const KEY: &str = "key:";

/// One entry, as two of them are compared.
#[derive(PartialEq, Eq, Hash)]
enum Entry<'t> {
    Network(IpNet),
    Key(&'t str),
}

/// Lowers the list. Values are not checked where the limit's key could not be read.
pub(super) fn lower(reader: &mut Reader<'_>, key: Option<&KeyExpr>) -> Option<ExemptRules> {
    let Some(node) = reader.optional("exempt") else { return Some(ExemptRules::default()) };
    let items = networks::entries(&node, "[\"10.0.0.0/8\", \"key:VALUE\"]").ok()?;
    let mut seen = Seen::new();
    let entries = super::each(&items, |item| {
        let Some(value) = item.as_text().and_then(|text| text.strip_prefix(KEY)) else {
            let network = networks::network(item, ", or \"key:VALUE\"").ok()?;
            seen.note(Entry::Network(canonical(network)), item);
            return Some(Entry::Network(network));
        };
        if let Some(Err(error)) = key.map(|key| key.check_value(value)) {
            // What it is may be a secret; the line below shows it to who wrote it.
            item.error("this exempts no key of the limit", error.to_string());
            return None;
        }
        seen.note(Entry::Key(value), item);
        Some(Entry::Key(value))
    })?;
    let mut rules = ExemptRules::default();
    for entry in entries {
        match entry {
            Entry::Network(network) => rules.networks.push(network),
            Entry::Key(value) => rules.keys.push(value.into()),
        }
    }
    Some(rules)
}
