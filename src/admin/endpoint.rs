//! An endpoint: all that is known of it, declared once. Routing, roles, `docs/admin-api.md` and the `OpenAPI` document come from
//! this.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Commands;
use super::paths::unescaped;
use super::peers::AdminPeers;
use super::problem::Problem;
use super::role::Role;

words! {
    /// The method of an endpoint.
    pub(super) enum Verb {
        /// Reads; `HEAD` too.
        Get = "GET",
        /// Does something, or asks at length.
        Post = "POST",
        /// Creates or replaces.
        Put = "PUT",
        /// Takes away.
        Delete = "DELETE",
    }
}

impl Verb {
    /// Whether requests of this method call it.
    pub(super) fn is(self, method: &Method) -> bool {
        method.as_str() == self.word() || self == Self::Get && method == Method::HEAD
    }
}

/// An endpoint.
pub(super) struct Endpoint {
    pub(super) method: Verb,
    /// With names in braces; each takes a segment, percent-encoded.
    pub(super) path: &'static str,
    pub(super) role: Role,
    /// Its name in the `OpenAPI` document.
    pub(super) id: &'static str,
    /// One sentence.
    pub(super) summary: &'static str,
    /// Parameters of the query, and header fields.
    pub(super) parameters: &'static [Parameter],
    pub(super) takes: Takes,
    /// The answers that are no problems: status and content.
    pub(super) gives: &'static [(u16, Gives)],
    /// Whether it shows what clients have sent: a page of another origin gets nothing of it.
    pub(super) tells_of_clients: bool,
    pub(super) handler: Handler,
}

impl Endpoint {
    /// Whether a call changes something: it has a line in the log then.
    pub(super) fn changes(&self) -> bool {
        self.role >= Role::Operate && matches!(self.handler, Handler::Change(_))
    }

    /// Whether it answers 304 to whoever has what it shows.
    pub(super) fn is_conditional(&self) -> bool {
        self.gives.iter().any(|(_, gives)| matches!(gives, Gives::Nothing))
    }
}

impl Endpoint {
    /// Refuses a query that has another parameter than the endpoint's, or one twice: a filter that is misspelt must not mean all.
    /// Health and metrics are asked by others' programs, which may add their own.
    pub(super) fn check_query(&self, query: Option<&str>) -> Result<(), Problem> {
        if !matches!(self.handler, Handler::Read(_) | Handler::Load(_) | Handler::Change(_)) || self.role == Role::Open
        {
            return Ok(());
        }
        let of_query = self.parameters.iter().filter(|own| own.place == ParameterPlace::Query);
        let allowed: Vec<&str> = of_query.map(|own| own.name).collect();
        let mut seen = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let name = pair.split_once('=').map_or(pair, |(name, _)| name);
            let why = match (allowed.contains(&name), seen.contains(&name)) {
                (true, false) => {
                    seen.push(name);
                    continue;
                }
                (true, true) => "It is there twice: give it once.",
                (false, _) => "There is no such parameter.",
            };
            let list = if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") };
            let detail = format!("Parameter {name:?}: {why} Allowed are {list}.");
            return Err(Problem::new(StatusCode::BAD_REQUEST, detail).with("parameter", name).with("allowed", allowed));
        }
        Ok(())
    }
}

/// A parameter of an endpoint.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) place: ParameterPlace,
    pub(super) about: &'static str,
    pub(super) schema: fn() -> Value,
    pub(super) required: bool,
}

/// The place of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParameterPlace {
    Query,
    Header,
}

/// A JSON Schema with a name of its own in the `OpenAPI` document.
pub(super) struct Schema {
    pub(super) name: &'static str,
    pub(super) make: fn() -> Value,
}

/// The body that an endpoint takes.
#[derive(Clone, Copy)]
pub(super) enum Takes {
    /// None: it is ignored.
    Nothing,
    /// JSON of this schema.
    Json(&'static Schema),
    /// The text of a configuration file.
    Toml,
}

/// The content of an answer.
#[derive(Clone, Copy)]
pub(super) enum Gives {
    Text,
    Json(&'static Schema),
    /// Text, or JSON of this schema if the request accepts that.
    TextOrJson(&'static Schema),
    /// Server-sent events.
    Events,
    /// Nothing: what the caller has still holds. An endpoint that has it answers `If-None-Match`.
    Nothing,
}

/// Whatever makes the answer.
#[derive(Clone, Copy)]
pub(super) enum Handler {
    /// Answers at once, on admin's own thread: it must not block.
    AtOnce(fn(&dyn Commands) -> AdminAnswer),
    /// May block. Some of them go on at once.
    Read(fn(&Call) -> Result<AdminAnswer, Problem>),
    /// May block, and take long: it judges a whole configuration. One at a time, apart from all others, and few wait for it.
    Load(fn(&Call) -> Result<AdminAnswer, Problem>),
    /// May block. One at a time, apart from the reads, so that one that hangs can still be looked at.
    Change(fn(&Call) -> Result<AdminAnswer, Problem>),
    /// The page of metrics.
    Metrics,
    /// The `OpenAPI` document.
    Document,
    /// Dead letters as they are written.
    DeadLetterStream,
}

/// A request for an endpoint, whose caller may do that.
pub(super) struct Call {
    pub(super) commands: Arc<dyn Commands>,
    /// The path of the endpoint, as the table has it.
    pub(super) path: &'static str,
    /// The name of whoever asks.
    pub(super) by: Arc<str>,
    /// The names of the path, in its order, without escapes.
    pub(super) names: Vec<String>,
    pub(super) query: Option<String>,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// The addresses that use admin.
    pub(super) peers: Arc<AdminPeers>,
}

/// An answer that is no problem.
pub(super) struct AdminAnswer {
    pub(super) status: StatusCode,
    pub(super) content: Content,
    /// The tag of what is shown, for a change of it.
    pub(super) etag: Option<String>,
    /// The change, for the log; empty where there was none.
    pub(super) change: AdminChange,
}

/// A change, as its handler knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AdminChange {
    /// In words; secrets are redacted.
    pub(super) before: String,
    /// The same afterwards.
    pub(super) after: String,
}

/// A body and its media type.
pub(super) enum Content {
    Text(String),
    Json(Value),
    /// JSON that is text already.
    JsonText(String),
}

/// The names of a path without their escapes.
pub(super) fn without_escapes(names: &[&str]) -> Result<Vec<String>, Problem> {
    let wrong = "A name in the path is not percent-encoded UTF-8: write % as %25.";
    let names: Option<Vec<_>> = names.iter().map(|name| unescaped(name)).collect();
    names.ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, wrong))
}

/// The parts of a path where `form` has names in braces; `None`: it is not of this form. The value of a key may be empty.
pub(super) fn segments<'p>(form: &str, path: &'p str) -> Option<Vec<&'p str>> {
    let (mut form, mut path, mut names) = (form.split('/'), path.split('/'), Vec::new());
    loop {
        match (form.next(), path.next()) {
            (None, None) => return Some(names),
            (Some("{value}"), Some(name)) => names.push(name),
            (Some(own), Some(name)) if own.starts_with('{') && !name.is_empty() => names.push(name),
            (Some(own), Some(name)) if own == name => {}
            _ => return None,
        }
    }
}

impl Call {
    /// A name of the path.
    pub(super) fn name(&self, place: usize) -> &str {
        self.names.get(place).map_or("", String::as_str)
    }

    /// A parameter of the query, without escapes. Of several of a name, the first one.
    pub(super) fn parameter(&self, name: &str) -> Result<Option<String>, Problem> {
        let pairs = self.query.as_deref().unwrap_or_default().split('&');
        let Some(value) = pairs.filter_map(|pair| pair.split_once('=')).find(|(own, _)| *own == name) else {
            return Ok(None);
        };
        let wrong = || {
            let detail = format!("Parameter {name:?}: its value is not percent-encoded UTF-8: write % as %25.");
            Problem::new(StatusCode::BAD_REQUEST, detail)
        };
        unescaped(&value.1.replace('+', " ")).map(Some).ok_or_else(wrong)
    }

    /// The body, as the endpoint's schema describes it.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        serde_json::from_slice(&self.body).map_err(|error| {
            let status = if error.is_data() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::BAD_REQUEST };
            Problem::new(status, format!("The body is not what this endpoint takes: {error}. See /api/openapi.json."))
        })
    }
}

impl AdminAnswer {
    /// A JSON answer with status 200.
    pub(super) fn json(value: Value) -> Self {
        Self::of(Content::Json(value))
    }

    /// An answer without a body: the caller has what it would show, which still has this tag.
    pub(super) fn unchanged(etag: String) -> Self {
        Self { status: StatusCode::NOT_MODIFIED, ..Self::text("").with_etag(etag) }
    }

    /// A text with status 200.
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::of(Content::Text(text.into()))
    }

    /// An answer with status 200.
    pub(super) fn of(content: Content) -> Self {
        Self { status: StatusCode::OK, content, etag: None, change: AdminChange::default() }
    }

    /// With a tag.
    pub(super) fn with_etag(self, etag: String) -> Self {
        Self { etag: Some(etag), ..self }
    }

    /// With a change, for the log.
    pub(super) fn changed(self, before: impl Into<String>, after: impl Into<String>) -> Self {
        Self { change: AdminChange { before: before.into(), after: after.into() }, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "/api/v1/limits/{limit}/keys/{value}";

    #[test]
    fn names_stand_between_slashes_and_only_a_key_may_be_empty() {
        assert_eq!(segments(KEY, "/api/v1/limits/per-key/keys/a%2Fb%20c"), Some(vec!["per-key", "a%2Fb%20c"]));
        assert_eq!(segments(KEY, "/api/v1/limits/global/keys/"), Some(vec!["global", ""]));
        for path in ["/api/v1/limits", "/api/v1/limits//keys/a", "/api/v1/limits/a/keys/b/c", "/api/v1/limits/a/keys"] {
            assert_eq!(segments(KEY, path), None, "{path}");
        }
    }

    #[test]
    fn names_have_no_escapes_any_more_and_wrong_escapes_are_told() {
        let names = |name| without_escapes(&["per-key", name]).map_err(|problem| problem.status);
        assert_eq!(names("a%2Fb%20c"), Ok(vec!["per-key".into(), "a/b c".into()]));
        for wrong in ["%zz", "%ff", "%4"] {
            assert_eq!(names(wrong), Err(StatusCode::NOT_FOUND), "{wrong}");
        }
    }
}
