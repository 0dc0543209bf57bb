//! Networks, and lists of them.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;

use ipnet::IpNet;

use super::findings::{Finding, Reported, quoted};
use super::form::{Form, NETWORK};
use super::hidden::{looks_like_network, secret_in};
use super::kind::{Context, each};
use super::reader::Node;
use sluicegate_admission::canonical;

/// Entries of one list. Each lookup reads more of them the more there are, and each reload sorts them.
pub(super) const MAX_ENTRIES: usize = 10_000;

/// A long list of networks.
pub(super) const FORM: Form = Form::List(&NETWORK, 0, MAX_ENTRIES);

/// `"10.0.0.0/8"`, or a lone address. Bits beyond the prefix are a slip worth an error: "10.1.2.3/8" is all of 10.
/// `or` is what else the list takes, for the remedy.
pub(super) fn network(node: &Node<'_>, or: &str) -> Result<IpNet, Reported> {
    let text = node.string("a network in quotes", "\"10.0.0.0/8\" or \"192.0.2.7\"")?;
    if let Ok(address) = text.parse::<std::net::IpAddr>() {
        return Ok(IpNet::from(address));
    }
    let Ok(network) = text.parse::<IpNet>() else {
        let help = format!("write \"10.0.0.0/8\", \"fd00::/8\" or a lone address{or}");
        // Where values of keys are entries too, it may be one, and a secret.
        let is_open = secret_in(text).is_none() && (or.is_empty() || looks_like_network(text));
        let message = if is_open { format!("invalid network {}", quoted(text)) } else { "invalid network".to_owned() };
        return Err(node.error(message, help));
    };
    if network != network.trunc() {
        let help =
            format!("write \"{}\" for the network, or \"{}\" for the one address", network.trunc(), network.addr());
        return Err(node.error(format!("{} has bits beyond its prefix", quoted(text)), help));
    }
    Ok(network)
}

/// A long list of networks.
pub(super) fn list(node: &Node<'_>, _: &Context<'_>) -> Result<Vec<IpNet>, Reported> {
    let items = entries(node, "[\"192.0.2.0/24\"]")?;
    let mut seen = FirstEntries::new();
    each(&items, |item| {
        let network = network(item, "")?;
        seen.note(canonical(network), item);
        Ok(network)
    })
}

/// The items of a long list, if they are not too many.
pub(super) fn entries<'t>(node: &Node<'t>, example: &str) -> Result<Vec<Node<'t>>, Reported> {
    let items = node.array(example)?;
    if items.len() > MAX_ENTRIES {
        let message = format!("{} has {} entries", node.label(), items.len());
        let help = format!("it takes at most {MAX_ENTRIES}; join neighbours to larger networks");
        return Err(node.error(message, help));
    }
    Ok(items)
}

/// Entries of a list and the places where they stood first.
pub(super) struct FirstEntries<E>(HashMap<E, Range<usize>>);

impl<E: Eq + Hash> FirstEntries<E> {
    /// None yet.
    pub(super) fn new() -> Self {
        Self(HashMap::new())
    }

    /// Warns of an entry that was there before.
    pub(super) fn note(&mut self, entry: E, item: &Node<'_>) {
        match self.0.get(&entry) {
            Some(first) => {
                let text = item.as_text().filter(|text| secret_in(text).is_none());
                let message =
                    format!("{} is in {} twice", text.map_or_else(|| "this".to_owned(), quoted), item.label());
                let finding = Finding::warning(item.span(), message).related("the first is at", first.clone());
                item.push(finding.help("remove one"));
            }
            None => drop(self.0.insert(entry, item.span())),
        }
    }
}
