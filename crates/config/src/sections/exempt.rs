//! `exempt` of a limit.

use std::collections::HashSet;

use ipnet::IpNet;

use crate::change::Changes;
use crate::findings::Reported;
use crate::form::Form;
use crate::kind::{Context, ValueKind, each};
use crate::networks::{self, FirstEntries};
use crate::reader::Node;
use sluicegate_admission::{ExemptRules, KeyExpr, canonical};

/// The beginning of a value of the limit's key.
const KEY: &str = "key:";

/// One entry, as two of them are compared.
#[derive(PartialEq, Eq, Hash)]
enum ExemptEntry<'t> {
    Network(IpNet),
    Key(&'t str),
}

/// Networks and values of the limit's key. A rule between keys checks the values.
pub(super) struct Exempt;

impl ValueKind for Exempt {
    type Value = ExemptRules;

    fn read(&self, node: &Node<'_>, _: &Context<'_>) -> Result<ExemptRules, Reported> {
        let items = networks::entries(node, "[\"10.0.0.0/8\", \"key:VALUE\"]")?;
        let mut seen = FirstEntries::new();
        let entries = each(&items, |item| {
            if let Some(value) = value_in(item) {
                seen.note(ExemptEntry::Key(value), item);
                return Ok(ExemptEntry::Key(value));
            }
            let network = networks::network(item, ", or \"key:VALUE\"")?;
            seen.note(ExemptEntry::Network(canonical(network)), item);
            Ok(ExemptEntry::Network(network))
        })?;
        let mut rules = ExemptRules::default();
        for entry in entries {
            match entry {
                ExemptEntry::Network(network) => rules.networks.push(network),
                ExemptEntry::Key(value) => rules.keys.push(value.into()),
            }
        }
        Ok(rules)
    }

    fn form(&self) -> Form {
        const ENTRY: Form = Form::Text(
            "a network such as \"10.0.0.0/8\", an address, or \"key:VALUE\" with a value of the limit's key",
        );
        Form::List(&ENTRY, 0, networks::MAX_ENTRIES)
    }

    /// Values of keys are counted, not named: they may be secrets, and plans are logged.
    fn show(&self, value: &ExemptRules) -> String {
        format!("{} networks, {} keys", value.networks.len(), value.keys.len())
    }

    fn compare(&self, what: &'static str, old: &ExemptRules, new: &ExemptRules, changes: &mut Changes) {
        let ExemptRules { networks, keys } = old;
        let texts = |networks: &[IpNet]| networks.iter().map(ToString::to_string).collect::<Vec<_>>();
        changes.list(what, &texts(networks), &texts(&new.networks));
        if *keys != new.keys {
            let (before, after): (HashSet<_>, HashSet<_>) = (keys.iter().collect(), new.keys.iter().collect());
            let (added, removed) = (after.difference(&before).count(), before.difference(&after).count());
            let how = match (added, removed) {
                (0, 0) => "in another order".to_owned(),
                (added, 0) => format!("+{added}"),
                (0, removed) => format!("-{removed}"),
                (added, removed) => format!("+{added} -{removed}"),
            };
            changes.note("exempt keys", how);
        }
    }
}

/// Reports values that are none of the limit's key. A value that is no list was reported before.
pub(super) fn check(node: &Node<'_>, key: &KeyExpr) -> Result<(), Reported> {
    let items = node.place().one_or_many();
    if !node.is_array() || items.len() > networks::MAX_ENTRIES {
        return Ok(());
    }
    let fault = |item: &Node<'_>| {
        let error = key.check_value(value_in(item)?).err()?;
        // The value may be a secret; the line below shows it to the one who wrote it.
        Some(item.error("this exempts no key of the limit", error.to_string()))
    };
    Reported::none_of(items.iter().filter_map(fault))
}

fn value_in<'t>(item: &Node<'t>) -> Option<&'t str> {
    item.as_text()?.strip_prefix(KEY)
}
