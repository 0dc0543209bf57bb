//! What routes change in messages, and what refusals look like, in words.

use super::change::Changes;
use super::model::{Refusal, RefusalBody, Route};
use crate::edit::{FieldEdits, Rewrite, Target, Template};

pub(super) fn route(changes: &mut Changes, old: &Route, new: &Route) {
    changes.list("request_headers", &fields(&old.request_headers), &fields(&new.request_headers));
    changes.list("response_headers", &fields(&old.response_headers), &fields(&new.response_headers));
    changes.value("rewrite", &old.rewrite, &new.rewrite, |rewrite| match rewrite {
        None => "none".to_owned(),
        // From the route's path, which has a line of its own.
        Some(Rewrite::Prefix { from: _, to }) => format!("prefix {to}/"),
        Some(Rewrite::Whole(to)) => target(to),
    });
    changes.value("host", &old.host, &new.host, |host| host.as_deref().unwrap_or("the client's").to_owned());
    refusal(changes, old.refusal.as_deref(), new.refusal.as_deref());
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
    changes.list("refusal headers", &fields(headers), &fields(&new.headers));
}

/// Where a route's path or address leads.
pub(super) fn target(target: &Target) -> String {
    match target.regex() {
        Some(regex) => format!("{} to {}", regex.as_str(), target.to().source()),
        None => target.to().source().to_owned(),
    }
}

fn fields(edits: &FieldEdits) -> Vec<String> {
    let one =
        |mark: &'static str| move |(name, value): &(Box<str>, Template)| format!("{name}{mark}{:?}", value.source());
    let removed = edits.removed().iter().map(|name| format!("no {name}"));
    edits.set().iter().map(one("=")).chain(edits.add().iter().map(one("+="))).chain(removed).collect()
}
