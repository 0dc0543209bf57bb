//! The explanation of a request in its own answer, for whoever has the token.

use sha2::{Digest, Sha256};

use super::letter::About;
use super::life::Exchange;
use crate::headers::passed;
use crate::meters::Outcome;
use sluicegate_http1::Request;

/// The field of the answer.
pub const FIELD: &[u8] = b"x-sluicegate-explanation";
/// Bytes of a token that are looked at: to hash more would be work that anybody could ask for.
const MAX_TOKEN: usize = 256;

/// Whether the request has the token with this hash. How long the comparison takes tells nothing of the token, since hashes
/// are compared.
#[cold]
#[inline(never)]
pub fn is_asked(request: &Request<'_>, hash: &[u8; 32]) -> bool {
    let Some(token) = passed::field(request, b"x-sluicegate-explain") else { return false };
    token.len() <= MAX_TOKEN && <[u8; 32]>::from(Sha256::digest(token)) == *hash
}

impl Exchange {
    /// Says what became of the request and why, in one line of printable ASCII, if its client may ask for it and has. The answer is
    /// about to be written.
    pub fn explanation(&self) -> Option<String> {
        if !self.scratch.state.explains {
            return None;
        }
        let about = About { limit: self.record.limit.as_deref(), refusal: None, is_shadow: false, now: self.arrived };
        let limit = self.limit_name().map(|limit| format!(" by {limit}")).unwrap_or_default();
        let mut text = match self.outcome() {
            Outcome::Refused | Outcome::Blocked | Outcome::WaitTimeout => format!("refused{limit}; "),
            Outcome::NoRoute => "no route; ".to_owned(),
            Outcome::Malformed => "malformed; ".to_owned(),
            _ => match self.record.waited {
                Some(waited) => format!("admitted after {} ms; ", waited.as_millis_ceil()),
                None => "admitted; ".to_owned(),
            },
        };
        text.push_str(&self.why(&about));
        if let Some(upstream) = self.upstream_name() {
            let server = self.server_name().map(|server| format!(", server {server}")).unwrap_or_default();
            text.extend(["; upstream ", upstream, &server]);
        }
        // Names of the file may have other letters.
        text.retain(|letter| letter == ' ' || letter.is_ascii_graphic());
        Some(text)
    }
}
