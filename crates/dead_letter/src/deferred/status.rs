//! How a deferred request fares, as JSON for whoever has its id.

use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};

use super::index::state;
use super::line::{Ended, id_text, time};
use super::request::KeptAnswer;
use sluicegate_time::{Tick, WallOffset};

/// How a deferred request fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeferredStatus {
    /// Its id.
    pub id: u128,
    /// When it was kept.
    pub accepted: Tick,
    /// When it is given up, if nobody has taken it.
    pub expires: Tick,
    /// How it ended; `None`: it is pending.
    pub ended: Option<Ended>,
    /// Whether its answer is kept.
    pub has_answer: bool,
}

impl DeferredStatus {
    /// In a word: `pending`, `sent`, `failed` or `expired`.
    pub fn state(&self) -> &'static str {
        state(self.ended.as_ref())
    }

    /// As JSON, with its answer if that is at hand.
    pub fn to_json(&self, answer: Option<&KeptAnswer>, offset: &WallOffset) -> Value {
        let time = |at: Tick| time(offset.wall(at));
        let mut value = json!({
            "id": id_text(self.id),
            "state": self.state(),
            "accepted": time(self.accepted),
            "expires": time(self.expires),
        });
        let Some(fields) = value.as_object_mut() else { return value };
        if let Some(Ended { fate: _, at, tries, status, reason }) = &self.ended {
            fields.remove("expires");
            fields.insert("ended".to_owned(), json!(time(*at)));
            fields.insert("tries".to_owned(), json!(tries));
            if let Some(status) = status {
                fields.insert("status".to_owned(), json!(status));
            }
            if let Some(reason) = reason {
                fields.insert("reason".to_owned(), json!(&**reason));
            }
        }
        if let Some(answer) = answer {
            fields.insert("answer".to_owned(), answer_json(answer));
        }
        value
    }
}

/// An answer as JSON: its body as text if it is UTF-8, else in base64.
pub(super) fn answer_json(answer: &KeptAnswer) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let headers: Vec<_> = answer.headers.iter().map(|(name, value)| json!([text(name), text(value)])).collect();
    let (encoding, data) = match std::str::from_utf8(&answer.body) {
        Ok(text) => ("utf-8", text.to_owned()),
        Err(_) => ("base64", Base64::encode_string(&answer.body)),
    };
    json!({
        "status": answer.status,
        "headers": headers,
        "body": { "encoding": encoding, "truncated": answer.truncated, "data": data },
    })
}

#[cfg(test)]
mod tests {
    use super::super::line::DeferredFate;
    use super::*;
    use sluicegate_time::Span;

    #[test]
    fn a_status_tells_what_a_client_needs() {
        let accepted = Tick::from_nanos(1_767_323_045_678_901_000);
        let expires = accepted + Span::from_secs(3_600);
        let mut status = DeferredStatus { id: 5, accepted, expires, ended: None, has_answer: false };
        assert_eq!(
            status.to_json(None, &WallOffset::default()),
            json!({
                "id": "00000000000000000000000000000005", "state": "pending",
                "accepted": "2026-01-02T03:04:05.678901Z", "expires": "2026-01-02T04:04:05.678901Z"
            })
        );
        status.ended = Some(Ended { fate: DeferredFate::Sent, at: expires, tries: 2, status: Some(201), reason: None });
        let answer = |body: &[u8]| KeptAnswer {
            status: 201,
            headers: vec![(b"a".to_vec(), b"\xff".to_vec())],
            body: body.to_vec(),
            truncated: false,
        };
        assert_eq!(
            status.to_json(Some(&answer("ü".as_bytes())), &WallOffset::default()),
            json!({
                "id": "00000000000000000000000000000005", "state": "sent", "tries": 2, "status": 201,
                "accepted": "2026-01-02T03:04:05.678901Z", "ended": "2026-01-02T04:04:05.678901Z",
                "answer": {
                    "status": 201, "headers": [["a", "\u{fffd}"]],
                    "body": { "encoding": "utf-8", "truncated": false, "data": "ü" }
                }
            })
        );
        assert_eq!(
            answer_json(&answer(b"\xff"))["body"],
            json!({"encoding": "base64", "truncated": false, "data": "/w=="})
        );
    }
}
