//! Answers that may be shared, and one of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Statuses of answers that may be shared: those of whole answers that caches may keep without being told (RFC 9110, 15.1),
/// but for failures of servers.
const STATUSES: [u16; 7] = [200, 203, 204, 300, 301, 404, 410];

/// Whether an answer with this status and these fields may be given to others than the client that asked.
///
/// Not one that is of one client (`Set-Cookie`, a part of an authentication, `private` or `no-store` of any `Cache-Control`, RFC 9111 and RFC 9213), one that
/// `Vary` makes depend on a field that is no part of the key, nor a stream of events. `is_in_key` is asked with names as they
/// came.
pub fn may_share<'f>(
    status: u16,
    fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
    is_in_key: impl Fn(&[u8]) -> bool,
) -> bool {
    STATUSES.contains(&status) && !fields.into_iter().any(|(name, value)| is_for_one(name, value, &is_in_key))
}

fn is_for_one(name: &[u8], value: &[u8], is_in_key: impl Fn(&[u8]) -> bool) -> bool {
    let mut parts = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let is = |expected: &str| name.eq_ignore_ascii_case(expected.as_bytes());
    if is("vary") {
        return parts.any(|part| !part.is_empty() && !is_in_key(part));
    }
    if is("content-type") {
        return value.get(..17).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/event-stream"));
    }
    let of_one = ["set-cookie", "set-cookie2", "www-authenticate", "proxy-authenticate", "authentication-info"];
    if of_one.into_iter().any(is) {
        return true;
    }
    // `Cache-Control`, and `CDN-Cache-Control` and the like.
    let ending = name.len().checked_sub(13).and_then(|at| name.get(at..)).unwrap_or_default();
    ending.eq_ignore_ascii_case(b"cache-control") && parts.any(is_private)
}

/// Whether a directive is `private`, with names of fields or without, or `no-store`.
fn is_private(directive: &[u8]) -> bool {
    let name = directive.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii();
    name.eq_ignore_ascii_case(b"private") || name.eq_ignore_ascii_case(b"no-store")
}

/// An answer for those that follow.
#[derive(Debug)]
pub struct SharedAnswer {
    head: Vec<u8>,
    has_request_id: bool,
    body: Vec<u8>,
    held: Option<HeldBytes>,
}

/// Bytes that are counted as held until this is dropped.
#[derive(Debug)]
struct HeldBytes {
    count: Arc<AtomicUsize>,
    bytes: usize,
}

impl SharedAnswer {
    /// One with this head, up to the empty line after it and without that, and this body. `has_request_id`: the server has
    /// answered with the id of the request, which is not in the head: each follower gets its own.
    pub fn new(head: Vec<u8>, has_request_id: bool, body: Vec<u8>) -> Self {
        Self { head, has_request_id, body, held: None }
    }

    /// The head for a request of this id.
    pub fn head_for(&self, request_id: &[u8]) -> Vec<u8> {
        let mut head = Vec::with_capacity(self.head.len() + request_id.len() + 20);
        head.extend_from_slice(&self.head);
        if self.has_request_id {
            head.extend_from_slice(b"x-request-id: ");
            head.extend_from_slice(request_id);
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        head
    }

    /// Counts its bytes, if then not more than `most` are held.
    pub(super) fn hold(mut self, count: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let bytes = self.head.capacity() + self.body.capacity();
        let fits = |held: usize| Some(held + bytes).filter(|held| *held <= most);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        self.held = Some(HeldBytes { count: Arc::clone(count), bytes });
        Some(self)
    }
}

impl AsRef<[u8]> for SharedAnswer {
    /// The body.
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.count.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shares(status: u16, fields: &[(&str, &str)]) -> bool {
        let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        may_share(status, fields, |name| name.eq_ignore_ascii_case(b"accept"))
    }

    #[test]
    fn answers_of_one_client_are_not_shared() {
        assert!(shares(200, &[]) && shares(404, &[("cache-control", "public, max-age=0, no-cache")]));
        for (name, value) in [
            ("set-cookie", "a=b"),
            ("Set-Cookie", ""),
            ("WWW-Authenticate", "Negotiate"),
            ("Cache-Control", "private"),
            ("cache-control", "max-age=0 , PRIVATE"),
            ("cache-control", "private=\"set-cookie, x\""),
            ("cache-control", "no-store"),
            ("CDN-Cache-Control", "no-store"),
            ("vary", "*"),
            ("Vary", "accept, cookie"),
            ("content-type", "text/event-stream; charset=utf-8"),
        ] {
            assert!(!shares(200, &[("server", "x"), (name, value)]), "{name}: {value}");
        }
        assert!(shares(200, &[("vary", "Accept, accept ,"), ("content-type", "text/plain")]));
        for status in [100, 101, 201, 206, 302, 304, 307, 400, 401, 403, 429, 500, 502, 503] {
            assert!(!shares(status, &[]), "{status}");
        }
    }

    #[test]
    fn a_follower_gets_its_own_request_id_where_the_server_answers_with_one() {
        let with = SharedAnswer::new(b"HTTP/1.1 200 OK\r\n".to_vec(), true, b"ab".to_vec());
        assert_eq!(with.head_for(b"7"), b"HTTP/1.1 200 OK\r\nx-request-id: 7\r\n\r\n");
        let without = SharedAnswer::new(b"HTTP/1.1 200 OK\r\n".to_vec(), false, Vec::new());
        assert_eq!(without.head_for(b"7"), b"HTTP/1.1 200 OK\r\n\r\n");
        assert_eq!(with.as_ref(), b"ab");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Wherever the mark of a private answer stands among other fields and directives, and however it is spelt.
        #[test]
        fn no_spelling_of_a_private_answer_is_shared(
            before in prop::collection::vec(("[a-z-]{1,14}", "[ -~]{0,12}"), 0..5),
            mark in prop::sample::select(vec!["private", "no-store", "private=\"x\""]),
            upper in any::<u32>(),
            (ahead, behind) in ("( ?(max-age=[0-9]|public|no-cache) ?,){0,3} ?", "( ?,( ?max-age=[0-9]| ?public)){0,3} ?"),
        ) {
            let spelt: String = (ahead + mark + &behind)
                .chars()
                .enumerate()
                .map(|(at, one)| if upper >> (at % 32) & 1 == 1 { one.to_ascii_uppercase() } else { one })
                .collect();
            let mut fields: Vec<(&str, &str)> = before.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            fields.insert(upper as usize % (fields.len() + 1), ("Cache-Control", &spelt));
            prop_assert!(!shares(200, &fields), "{fields:?}");
        }
    }
}
