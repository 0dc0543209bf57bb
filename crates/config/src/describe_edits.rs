//! The changes that routes make in messages, and the look of refusals, in words.

use super::change::Changes;
use super::hidden::secret_in;
use super::model::{Refusal, RefusalBody};
use sluicegate_edit::{FieldEdits, Rewrite, RewriteTarget, Template};
use sluicegate_redact::names_a_secret;

/// Fields of messages that a route changes.
pub(super) fn headers(changes: &mut Changes, key: &'static str, old: &FieldEdits, new: &FieldEdits) {
    changes.list(key, &fields(old, None), &fields(new, Some(old)));
}

/// Another path for the server.
pub(super) fn rewrite(rewrite: Option<&Rewrite>) -> String {
    match rewrite {
        None => "none".to_owned(),
        // From the route's path, which has a line of its own.
        Some(Rewrite::Prefix { from: _, to }) => format!("prefix {to}/"),
        Some(Rewrite::Whole(to)) => target(to),
    }
}

/// `refusal` of a limit or a route.
pub(super) fn refusal(changes: &mut Changes, old: Option<&Refusal>, new: Option<&Refusal>) {
    let (Some(old), Some(new)) = (old, new) else {
        changes.value("refusal", &old.is_some(), &new.is_some(), |is_own| if *is_own { "its own" } else { "none" });
        return;
    };
    let Refusal { status, body, headers } = old;
    changes.value("refusal status", status, &new.status, |status| {
        status.map_or_else(|| "the limit's".to_owned(), |status| status.to_string())
    });
    changes.value("refusal body", body, &new.body, |body| match body {
        None => "the gateway's".to_owned(),
        Some(RefusalBody { text, content_type }) => format!("{content_type} ({} bytes)", text.source().len()),
    });
    self::headers(changes, "refusal headers", headers, &new.headers);
}

/// Where a route's path or address leads. A plan is for whoever may look, the file for whoever may change rules.
pub(super) fn target(target: &RewriteTarget) -> String {
    let to = target.to().source();
    let query = to.split_once('?').map_or("", |(_, query)| query);
    let names_one = query.split('&').any(|pair| names_a_secret(pair.split('=').next().unwrap_or_default()));
    let to = if names_one || secret_in(to).is_some() { "[redacted]" } else { to };
    match target.regex() {
        Some(regex) => format!("{} to {to}", regex.as_str()),
        None => to.to_owned(),
    }
}

/// The header conditions of a route, and those of another one of which these are the changed ones.
pub(super) fn conditions(own: &[(String, String)], other: Option<&[(String, String)]>) -> Vec<String> {
    let one = |(name, value): &(String, String)| {
        let is_there = other.is_none_or(|other| other.iter().any(|(own, theirs)| own == name && theirs == value));
        format!("{name}:{}", shown(name, value, is_there))
    };
    own.iter().map(one).collect()
}

/// A value, unless it is or has a secret: a plan is for whoever may look, the file for whoever may change rules. `is_there`:
/// the other side of a comparison has it too.
fn shown(name: &str, value: &str, is_there: bool) -> String {
    if !names_a_secret(name) && secret_in(value).is_none() {
        return format!("{value:?}");
    }
    if is_there { "[redacted]" } else { "[redacted, another one]" }.to_owned()
}

fn fields(edits: &FieldEdits, other: Option<&FieldEdits>) -> Vec<String> {
    let sources = |edits: &FieldEdits| -> Vec<(String, String)> {
        let all = edits.set().iter().chain(edits.add());
        all.map(|(name, value)| (name.to_string(), value.source().to_owned())).collect()
    };
    let others = other.map(sources);
    let one = |mark: &'static str| {
        let others = &others;
        move |(name, value): &(Box<str>, Template)| {
            let is_own = |(own, source): &(String, String)| **own == **name && *source == *value.source();
            let is_there = others.as_ref().is_none_or(|others| others.iter().any(is_own));
            format!("{name}{mark}{}", shown(name, value.source(), is_there))
        }
    };
    let removed = edits.removed().iter().map(|name| format!("no {name}"));
    edits.set().iter().map(one("=")).chain(edits.add().iter().map(one("+="))).chain(removed).collect()
}
