//! The rules of RFC 9112, section by section, and properties that must hold whatever comes.

mod bodies;
mod heads;
mod naive;
mod properties;
mod requests;
mod responses;

use std::collections::BTreeSet;

use super::{Body, ChunkPart, Fault, Framing, HeadEnd, HeadLimits, RequestHead, ResponseHead, Side, Version};

const LIMITS: HeadLimits = HeadLimits { max_bytes: 4096, max_fields: 16 };

/// Everything that a request's head says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenRequest {
    length: usize,
    method: String,
    path: String,
    query: Option<String>,
    authority: Option<String>,
    version: Version,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    framing: Framing,
    is_persistent: bool,
    expects_continue: bool,
    upgrade: Option<Vec<u8>>,
    nominated: Vec<Vec<u8>>,
}

/// Everything that a response's head says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenResponse {
    length: usize,
    status: u16,
    reason: Vec<u8>,
    version: Version,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    framing: Framing,
    content_length: Option<u64>,
    is_persistent: bool,
    is_interim: bool,
    upgrade: Option<Vec<u8>>,
}

/// The result of reading a head: itself, a fault, or nothing yet.
type Read<T> = Result<Option<T>, Fault>;

/// Looks at `bytes` when as many of them are there as each of `cuts` says, then at all.
fn find_end(bytes: &[u8], side: Side, limits: &HeadLimits, cuts: &[usize]) -> Read<usize> {
    let mut end = HeadEnd::default();
    for cut in cuts {
        if let Some(length) = end.find(&bytes[..*cut], side, limits)? {
            return Ok(Some(length));
        }
    }
    end.find(bytes, side, limits)
}

fn request_in_pieces(bytes: &[u8], limits: &HeadLimits, cuts: &[usize]) -> Read<SeenRequest> {
    let Some(length) = find_end(bytes, Side::Request, limits, cuts)? else { return Ok(None) };
    let mut head = RequestHead::default();
    head.parse(&bytes[..length], limits)?;
    let request = head.on(&bytes[..length]);
    assert_eq!(head.wants_upgrade(), request.upgrade().is_some());
    assert_eq!(head.is_head(), request.method() == "HEAD");
    let idempotent = ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"];
    assert_eq!(head.is_idempotent(), idempotent.contains(&request.method()));
    Ok(Some(SeenRequest {
        length,
        method: request.method().to_owned(),
        path: request.path().to_owned(),
        query: request.query().map(str::to_owned),
        authority: request.authority().map(str::to_owned),
        version: head.version(),
        fields: request.fields().map(|(name, value)| (name.to_vec(), value.to_vec())).collect(),
        framing: head.framing(),
        is_persistent: head.is_persistent(),
        expects_continue: head.expects_continue(),
        upgrade: request.upgrade().map(<[u8]>::to_vec),
        nominated: request.nominated().map(<[u8]>::to_vec).collect(),
    }))
}

fn response_in_pieces(bytes: &[u8], limits: &HeadLimits, answers_head: bool, cuts: &[usize]) -> Read<SeenResponse> {
    let Some(length) = find_end(bytes, Side::Response, limits, cuts)? else { return Ok(None) };
    let mut head = ResponseHead::default();
    head.parse(&bytes[..length], limits, answers_head)?;
    let response = head.on(&bytes[..length]);
    assert_eq!(response.status(), head.status());
    Ok(Some(SeenResponse {
        length,
        status: head.status(),
        reason: response.reason().to_vec(),
        version: head.version(),
        fields: response.fields().map(|(name, value)| (name.to_vec(), value.to_vec())).collect(),
        framing: head.framing(),
        content_length: head.content_length(),
        is_persistent: head.is_persistent(),
        is_interim: head.is_interim(),
        upgrade: response.upgrade().map(<[u8]>::to_vec),
    }))
}

fn request(bytes: impl AsRef<[u8]>) -> Read<SeenRequest> {
    request_in_pieces(bytes.as_ref(), &LIMITS, &[])
}

fn response(bytes: impl AsRef<[u8]>) -> Read<SeenResponse> {
    response_in_pieces(bytes.as_ref(), &LIMITS, false, &[])
}

/// The result of reading a body.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenBody {
    /// The bytes written on: the kept ones, then the tail.
    written: Vec<u8>,
    taken: usize,
    content: u64,
    is_complete: bool,
}

/// Hands out a body in pieces that end at `cuts` and at the end. Whatever is left when it is complete stays.
fn body_in_pieces(bytes: &[u8], framing: Framing, form: ChunkPart, cuts: &[usize]) -> Result<SeenBody, Fault> {
    let mut body = Body::new(framing, form);
    let (mut written, mut taken) = (Vec::new(), 0);
    for cut in cuts.iter().copied().chain([bytes.len()]) {
        let mut piece = bytes[taken..cut].to_vec();
        let accepted = body.accept(&mut piece).inspect_err(|fault| {
            assert_eq!(body.accept(&mut b"0\r\n\r\n".to_vec()), Err(*fault), "a fault stays");
            assert!(!body.is_complete());
        })?;
        assert!(accepted.kept <= accepted.taken && accepted.taken <= piece.len());
        assert!(accepted.taken == piece.len() || body.is_complete(), "all is taken unless the body ended");
        written.extend_from_slice(&piece[..accepted.kept]);
        taken += accepted.taken;
        if taken < cut {
            break;
        }
    }
    if body.is_complete() {
        written.extend_from_slice(body.tail());
    }
    Ok(SeenBody { written, taken, content: body.content(), is_complete: body.is_complete() })
}

fn chunked(bytes: impl AsRef<[u8]>, form: ChunkPart) -> Result<SeenBody, Fault> {
    body_in_pieces(bytes.as_ref(), Framing::Chunked, form, &[])
}

#[test]
fn every_fault_has_an_example() {
    let requests = requests::REFUSED.iter().flat_map(|section| section.iter().map(|(_, fault)| *fault));
    let responses = responses::REFUSED.iter().flat_map(|section| section.iter().map(|(_, fault)| *fault));
    let bodies = bodies::REFUSED.iter().map(|(_, fault)| *fault);
    let mut seen: BTreeSet<&str> = requests.chain(responses).chain(bodies).map(Fault::word).collect();
    // Shown by tests of their own, since their examples are long or are no bytes.
    seen.extend([Fault::TargetTooLong, Fault::HeadTooLarge, Fault::TooManyFields, Fault::Truncated].map(Fault::word));
    // Of HTTP/2, whose room has the examples.
    seen.extend([Fault::PseudoField, Fault::ConnectionField].map(Fault::word));
    let all: BTreeSet<&str> = Fault::ALL.map(Fault::word).into_iter().collect();
    assert_eq!(seen, all);
}
