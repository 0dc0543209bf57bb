//! The fields of a request that go further than to us: what keys, costs, plans, conditions, texts and logs may read. A
//! client may write into the others whatever it likes, and no server would ever see it.

use sluicegate_dead_letter::REPLAY_FIELD;
use sluicegate_http1::{Known, Request};

use super::{FieldKind, Nominated};

/// Tells which fields of a request go further. The names that its `Connection` nominates are gathered once, and only if
/// it is asked: mostly there are none.
struct Passing<'b> {
    request: Request<'b>,
    nominated: Option<Nominated<'b>>,
}

impl<'b> Passing<'b> {
    fn of(request: &Request<'b>) -> Self {
        Self { request: *request, nominated: None }
    }

    #[inline]
    fn goes_further(&mut self, known: Known, name: &[u8]) -> bool {
        !(is_cut_by_name(known, name) || self.request.has_nominated() && self.look_up_nominated(name))
    }

    #[cold]
    fn look_up_nominated(&mut self, name: &[u8]) -> bool {
        self.nominated.get_or_insert_with(|| Nominated::among(self.request.nominated())).contains(name)
    }
}

/// The value of the first field line of a name, in lower case, that goes further. One that only some servers take for
/// it ([`lines`]) is none: others would never get it.
pub fn field<'b>(request: &Request<'b>, lower: &[u8]) -> Option<&'b [u8]> {
    let mut passing = Passing::of(request);
    let mut called = request.known_fields().filter(|(_, name, _)| name.eq_ignore_ascii_case(lower));
    called.find(|(known, name, _)| passing.goes_further(*known, name)).map(|(_, _, value)| value)
}

/// The token of a replay: the value of the one line that has it, which goes no further as it is. Two tokens are none.
#[inline]
pub fn replay_token<'b>(request: &Request<'b>) -> Option<&'b [u8]> {
    // By their lengths first: mostly that is all there is to compare.
    let mut lines = request
        .fields()
        .filter(|(name, _)| name.len() == REPLAY_FIELD.len() && name.eq_ignore_ascii_case(REPLAY_FIELD.as_bytes()));
    let (_, value) = lines.next()?;
    lines.next().is_none().then_some(value)
}

/// The values of the lines of the field that `address_header` names. They go further whatever is nominated, and no line of
/// another spelling does.
pub fn address_lines<'b>(request: &Request<'b>, lower: &[u8]) -> impl Iterator<Item = &'b [u8]> {
    request.fields().filter(|(name, _)| name.eq_ignore_ascii_case(lower)).map(|(_, value)| value)
}

/// The values of all field lines that go further and that some server takes for those of a name, in lower case: it is
/// theirs, or it is but for `_` in place of `-`. A value that is not that of [`field`] names nobody for sure.
pub fn lines<'b>(request: &Request<'b>, lower: &[u8], visit: &mut dyn FnMut(&'b [u8])) {
    let mut passing = Passing::of(request);
    for (known, name, value) in request.known_fields().filter(|(_, name, _)| is_called(name, lower)) {
        if passing.goes_further(known, name) {
            visit(value);
        }
    }
}

/// The value that all of [`lines`] have, without spaces around it: empty if there is none, `None` if they do not all have
/// the `same` or none of them is of that very name.
pub fn sole<'b>(request: &Request<'b>, lower: &[u8], same: &dyn Fn(&[u8], &[u8]) -> bool) -> Option<&'b [u8]> {
    let mut passing = Passing::of(request);
    let (mut own, mut alias): (Option<&[u8]>, Option<&[u8]>) = (None, None);
    for (known, name, value) in request.known_fields().filter(|(_, name, _)| name.len() == lower.len()) {
        let is_own = name.eq_ignore_ascii_case(lower);
        if !(is_own || is_called(name, lower)) || !passing.goes_further(known, name) {
            continue;
        }
        let value = value.trim_ascii();
        match if is_own { &mut own } else { &mut alias } {
            Some(first) if same(first, value) => {}
            Some(_) => return None,
            none => *none = Some(value),
        }
    }
    let own = own.unwrap_or_default();
    alias.is_none_or(|alias| same(alias, own)).then_some(own)
}

/// All that go further: name and value.
pub fn fields<'b>(request: &Request<'b>) -> impl Iterator<Item = (&'b [u8], &'b [u8])> + use<'b> {
    let mut passing = Passing::of(request);
    let passed = request.known_fields().filter(move |(known, name, _)| passing.goes_further(*known, name));
    passed.map(|(_, name, value)| (name, value))
}

/// Whether a server that puts fields into variables, as CGI does, would take the field for the one that is asked for: it
/// reads `_` and `-` as the same.
fn is_called(name: &[u8], lower: &[u8]) -> bool {
    if name.len() != lower.len() {
        return false;
    }
    name.eq_ignore_ascii_case(lower)
        || (name.contains(&b'_') || lower.contains(&b'_')) && {
            let plain = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
            name.iter().map(plain).eq(lower.iter().map(plain))
        }
}

/// Whether such a field is never passed on, or only as we write it for this connection.
fn is_cut_by_name(known: Known, name: &[u8]) -> bool {
    match known {
        Known::Other => name.contains(&b'_') && FieldKind::of(known, name) == FieldKind::HopByHop,
        known => known.is_hop_by_hop(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use sluicegate_admission::KeyExpr;
    use sluicegate_http1::{HeadLimits, RequestHead};

    /// The answer of [`sole`], from what [`field`] and [`lines`] say.
    fn sole_said_another_way<'b>(request: &Request<'b>, lower: &[u8]) -> Option<&'b [u8]> {
        let first = field(request, lower).unwrap_or_default().trim_ascii();
        let mut all = Vec::new();
        lines(request, lower, &mut |value| all.push(value.trim_ascii()));
        all.iter().all(|value| value.eq_ignore_ascii_case(first)).then_some(first)
    }

    #[test]
    fn the_headers_that_keys_are_warned_of_are_those_that_go_no_further() {
        let names = [
            "x-key",
            "x_key",
            "te",
            "connection",
            "keep-alive",
            "keep_alive",
            "upgrade",
            "trailer",
            "proxy-connection",
            "transfer_encoding",
            "content-length",
            "content_length",
            "expect",
            "x_request_id",
            "x-request-id",
            "x-forwarded-user",
            "x_forwarded_user",
            "x-sluicegate-replay",
            "x_sluicegate_x",
            "user-agent",
        ];
        for name in names {
            let value = if name == "content-length" {
                "0"
            } else if name == "expect" {
                "100-continue"
            } else {
                "a"
            };
            let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{name}: {value}\r\n\r\n");
            let mut head = RequestHead::default();
            head.parse(bytes.as_bytes(), &HeadLimits { max_bytes: 4096, max_fields: 32 }).unwrap();
            let is_seen = field(&head.on(bytes.as_bytes()), name.as_bytes()).is_some();
            let key = KeyExpr::parse(&[&format!("header:{name}")]).unwrap();
            assert_eq!(key.unseen_header().is_none(), is_seen, "{name}");
        }
    }

    proptest! {
        #[test]
        fn one_pass_finds_the_same_sole_value(
            fields in vec((
                select(vec!["X-Key", "x-key", "x_key", "X_Key", "x-other", "Connection", "Transfer_Encoding"]),
                select(vec!["", "a", " a ", "A", "b", "x-key", "x-other", "close", "close, X-KEY"]),
            ), 0..5),
            name in select(vec!["x-key", "x_key", "x-other", "transfer-encoding"]),
        ) {
            let lines: Vec<String> = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", lines.concat());
            let mut head = RequestHead::default();
            head.parse(bytes.as_bytes(), &HeadLimits { max_bytes: 4096, max_fields: 32 }).unwrap();
            let request = head.on(bytes.as_bytes());
            let found = sole(&request, name.as_bytes(), &<[u8]>::eq_ignore_ascii_case);
            prop_assert_eq!(found, sole_said_another_way(&request, name.as_bytes()));
        }
    }
}
