//! Problems: answers that say what is wrong, and how to mend it.

use http::header::{ALLOW, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde_json::{Map, Value, json};

/// A problem as in RFC 9457.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) status: StatusCode,
    detail: String,
    members: Map<String, Value>,
    pub(super) fields: Vec<(HeaderName, HeaderValue)>,
    /// Whether the connection is closed after it: the body may not have been read.
    pub(super) closes: bool,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), members: Map::new(), fields: Vec::new(), closes: false }
    }

    /// With one more member.
    pub(super) fn with(mut self, member: &str, value: impl Into<Value>) -> Self {
        self.members.insert(member.to_owned(), value.into());
        self
    }

    /// The connection is closed after it.
    pub(super) fn closing(self) -> Self {
        Self { closes: true, ..self }
    }

    /// The methods that the path takes.
    pub(super) fn allow(self, methods: &str) -> Self {
        self.field(ALLOW, methods)
    }

    /// After so many seconds it is worth another try.
    pub(super) fn retry_after(self, seconds: u64) -> Self {
        self.field(RETRY_AFTER, &seconds.to_string())
    }

    /// How to say who asks.
    pub(super) fn challenge(self, scheme: &str) -> Self {
        self.field(WWW_AUTHENTICATE, scheme)
    }

    /// With one more header field.
    pub(super) fn field(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.fields.push((name, value));
        }
        self
    }

    /// Its body.
    pub(super) fn to_json(&self) -> Value {
        let mut members = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        if let Value::Object(own) = &mut members {
            own.extend(self.members.clone());
        }
        members
    }
}
