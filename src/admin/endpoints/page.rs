//! Pages of lists.

use http::StatusCode;
use serde_json::{Value, json};

use crate::admin::endpoint::{AdminAnswer, Call, Parameter, ParameterPlace};
use crate::admin::problem::Problem;

/// Entries of a page where the request does not say.
const DEFAULT_MAX: usize = 1_000;
/// The most entries of a page.
pub(super) const MAX_MAX: usize = 1_000;

pub(super) const MAX: Parameter = Parameter {
    name: "max",
    place: ParameterPlace::Query,
    about: "Entries of a page.",
    schema: || json!({ "type": "integer", "minimum": 1, "maximum": MAX_MAX, "default": DEFAULT_MAX }),
    required: false,
};

pub(super) const CURSOR: Parameter = Parameter {
    name: "cursor",
    place: ParameterPlace::Query,
    about: "`next` of the page before.",
    schema: || json!({ "type": "string" }),
    required: false,
};

/// The size of a page that a request asks for, and the cursor from which it begins.
pub(super) fn bounds(call: &Call) -> Result<(usize, u64), Problem> {
    let wrong = |name: &str, why: &str| {
        Problem::new(StatusCode::BAD_REQUEST, format!("Parameter {name:?}: {why}.")).with("parameter", name)
    };
    let max = match call.parameter("max")? {
        Some(text) => text.parse().ok().filter(|max| (1..=MAX_MAX).contains(max)),
        None => Some(DEFAULT_MAX),
    };
    let max = max.ok_or_else(|| wrong("max", &format!("use a number from 1 to {MAX_MAX}")))?;
    let from = match call.parameter("cursor")?.filter(|text| !text.is_empty()) {
        Some(text) => text.parse().map_err(|_| wrong("cursor", "use `next` of a page, as it is"))?,
        None => 0,
    };
    Ok((max, from))
}

/// A page of the list `member` of `shown`: from the cursor of the request on, with `next`, which is null on the last page. In
/// a list that changes meanwhile an entry may be on two pages, or on none.
pub(super) fn page(call: &Call, mut shown: Value, member: &str) -> Result<AdminAnswer, Problem> {
    let (max, from) = bounds(call)?;
    if let Some(entries) = shown.get_mut(member).and_then(Value::as_array_mut) {
        let from = usize::try_from(from).map_or(entries.len(), |from| from.min(entries.len()));
        let rest = entries.split_off(from);
        let next = (rest.len() > max).then(|| (from + max).to_string());
        *entries = rest.into_iter().take(max).collect();
        if let Some(shown) = shown.as_object_mut() {
            shown.insert("next".to_owned(), json!(next));
        }
    }
    Ok(AdminAnswer::json(shown))
}
