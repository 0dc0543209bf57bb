//! The gateway's changes to the fields of a message, written once for every protocol pair.
//!
//! A [`Fields`] is read, a [`Sink`] is written. Hop-by-hop fields and those that `Connection` nominates are cut first
//! (RFC 9110, 7.6.1), then what an untrusted peer may not say, then ours are added. `Content-Length` and
//! `Transfer-Encoding` are cut too: the code that writes the message frames it anew. Each field costs the same few
//! steps, whatever its name, and nothing is allocated but for what few messages hold.

mod forwarded;
mod http1;
mod lines;
pub mod passed;
#[cfg(test)]
mod tests;
mod trace;

use sluicegate_admission::{is_claim, is_forwarding, passes_for};
use sluicegate_http1::{Known, Piece, Request, is_name};

use self::lines::FieldValues;
use self::trace::{TraceParent, is_tracestate};

pub use self::trace::trace_of;

/// The fields of a message, in order, as they were received.
pub trait Fields {
    /// Adds those field lines to `sink` that `keep` wants, in order.
    fn copy<'f>(&'f self, sink: &mut impl Sink, keep: impl FnMut(Known, &'f [u8], &'f [u8]) -> bool);

    /// The options of `Connection` but for `close`, `keep-alive` and `upgrade`: names of fields that it nominates.
    fn nominated(&self) -> impl Iterator<Item = &[u8]>;
}

/// Where the fields of the outgoing message go.
pub trait Sink {
    /// Adds a field line. The value holds no CR, LF or NUL: it came from a parsed message or was made by us.
    fn put(&mut self, name: &[u8], value: &[u8]);

    /// Adds a field line whose value is these parts, one after the other.
    fn put_joined(&mut self, name: &[u8], parts: &[&[u8]]) {
        self.put(name, &parts.concat());
    }

    /// Adds a piece of an HTTP/1 head: field lines as they stand there, or a field.
    fn put_piece(&mut self, piece: Piece<'_>) {
        let lines = match piece {
            Piece::Field(name, value) => return self.put(name, value),
            Piece::Lines(lines) => lines,
        };
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let line = line.trim_ascii_end();
            let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
            self.put(&line[..colon], line.get(colon + 2..).unwrap_or_default());
        }
    }

    /// Whether a field of this name, in lower case, is there already.
    fn has(&self, lower_name: &[u8]) -> bool;
}

/// Fields that `Connection` may not nominate: cutting them would change what the message is or whom it is for.
const NEVER_NOMINATED: [&[u8]; 4] = [b"content-type", b"content-encoding", b"authorization", b"cookie"];

/// The facts for the fields that forwarding adds to a request.
#[derive(Debug)]
pub struct Forwarding<'a> {
    /// The address at the other end of the connection, as [`IpAddr::to_canonical`](std::net::IpAddr::to_canonical)
    /// has it, in words.
    pub peer: &'a [u8],
    /// Whether forwarding fields from that peer are believed.
    pub trusted_peer: bool,
    /// `http` or `https`, as the client spoke to us.
    pub scheme: &'a [u8],
    /// The authority that the client asked for.
    pub authority: &'a [u8],
    /// The `Host` that the upstream gets.
    pub host: &'a [u8],
    /// The id of this request: ours, or a trusted peer's that was adopted.
    pub request_id: &'a [u8],
    /// A trace that starts here, used if the request carries no valid one.
    pub new_traceparent: Option<&'a [u8]>,
    /// The protocol that the client spoke and our name, as `Via` has them: `1.1 sluicegate`.
    pub via: &'a [u8],
    /// How the server is told who the client is, beside `X-Forwarded-For`: as `address_header` says that we are.
    pub also: Also<'a>,
    /// The field that `address_header` names, in lower case, if it is none of those that every gateway writes or cuts: it
    /// goes on as it came from a trusted peer, and is cut of others.
    pub named: Option<&'a [u8]>,
    /// The protocols to offer the upstream, as the client offered them to us; `None` where none is to be.
    pub upgrade: Option<&'a [u8]>,
    /// How often the request may be forwarded behind us, if it says so.
    pub max_forwards: Option<u32>,
    /// Whether the upstream is asked to say `100 Continue` before it gets the body.
    pub expects_continue: bool,
}

/// Another field for the client's address.
#[derive(Clone, Copy, Debug)]
pub enum Also<'a> {
    /// None.
    Nothing,
    /// `Forwarded` (RFC 7239), with an element for our peer added to those of a trusted one.
    Forwarded,
    /// `X-Real-IP`: the client's address, which this is.
    RealIp(&'a [u8]),
}

/// The facts about the fields that a response brought along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Passed {
    /// A `Date`: none needs to be added (RFC 9110, 6.6.1).
    pub date: bool,
}

/// Whether the client says that it does not discard trailers (RFC 9110, 10.1.4).
pub fn takes_trailers(request: &Request<'_>) -> bool {
    let mut codings = request.known_fields().filter(|(known, ..)| *known == Known::Te);
    codings.any(|(_, _, te)| {
        te.split(|byte| *byte == b',').any(|each| each.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    })
}

/// Whether a client says that it is a proxy, which may speak for several. This takes no trust: a client that speaks for itself
/// alone gets nothing by saying so.
pub fn is_from_proxy(request: &Request<'_>) -> bool {
    [&b"via"[..], b"forwarded", b"x-forwarded-for"].into_iter().any(|name| request.field(name).is_some())
}

const MAX_FORWARDS: &[u8] = b"max-forwards";

/// How often a request may still be forwarded: of OPTIONS and TRACE alone, the others need not tell (RFC 9110, 7.6.2). A
/// value that is no number, or one of several, says nothing.
pub fn max_forwards(request: &Request<'_>) -> Option<u32> {
    if !matches!(request.method(), "OPTIONS" | "TRACE") {
        return None;
    }
    let mut values =
        request.fields().filter(|(name, _)| name.eq_ignore_ascii_case(MAX_FORWARDS)).map(|(_, value)| value);
    let value = values.next().filter(|value| !value.is_empty() && value.iter().all(u8::is_ascii_digit))?;
    // One that is larger than any way is long is written anew as the largest that we know.
    let most = str::from_utf8(value).ok()?.parse().unwrap_or(u32::MAX);
    values.next().is_none().then_some(most)
}

/// Writes the upstream request's fields, all but the framing.
pub fn forward_request(fields: &impl Fields, facts: &Forwarding<'_>, sink: &mut impl Sink) {
    let mut nominated = Nominated::of(fields);
    if facts.max_forwards.is_some() {
        nominated.names.push(MAX_FORWARDS);
    }
    let mut kept = FoundValues::new(facts);
    sink.put(b"host", facts.host);
    fields.copy(sink, |known, name, value| {
        if let Some(named) = facts.named.filter(|named| passes_for(name, named)) {
            return facts.trusted_peer && name.eq_ignore_ascii_case(named);
        }
        if nominated.contains(name) {
            return false;
        }
        let kind = FieldKind::of(known, name);
        kind == FieldKind::Plain || kept.passes(kind, value)
    });
    add_forwarding(facts, &kept, sink);
    add_upgrade(facts.upgrade, sink);
    if let Some(left) = facts.max_forwards {
        sink.put(MAX_FORWARDS, itoa::Buffer::new().format(left).as_bytes());
    }
    if facts.expects_continue {
        sink.put(b"expect", b"100-continue");
    }
}

/// Writes the client response's fields, all but the framing. `upgrade` is the protocol that a 101 switches to.
pub fn forward_response(fields: &impl Fields, upgrade: Option<&[u8]>, sink: &mut impl Sink) -> Passed {
    let nominated = Nominated::of(fields);
    let mut passed = Passed { date: false };
    fields.copy(sink, |known, name, _| {
        let is_cut = known.is_hop_by_hop() || known == Known::ContentLength || nominated.contains(name);
        passed.date |= !is_cut && is_name(name, b"date");
        !is_cut
    });
    add_upgrade(upgrade, sink);
    passed
}

/// The meaning of a field for a proxy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldKind {
    /// Nothing: it is for others.
    Plain,
    /// For this connection only, nominated or not (RFC 9110, 7.6.1).
    HopByHop,
    /// For the code that writes the message.
    Framing,
    Host,
    Expect,
    RequestId,
    Traceparent,
    Tracestate,
    Forwarded,
    RealIp,
    /// By such a field a proxy in front tells who the client is; so are ours. Believed from trusted peers only.
    Claim,
    ForwardedFor,
    ForwardedProto,
    ForwardedHost,
}

impl FieldKind {
    /// A name that is not `known` is told by its length, which leaves one or two names to compare with. A name with `_`
    /// where one of these has `-` is cut like a field of one connection: servers that put fields into variables, as CGI
    /// does, would take it for the same.
    #[inline]
    fn of(known: Known, name: &[u8]) -> Self {
        match known {
            Known::Other => {}
            Known::Authorization | Known::ProxyAuthorization | Known::Trailer | Known::WwwAuthenticate => {
                return Self::Plain;
            }
            Known::Host => return Self::Host,
            Known::Expect => return Self::Expect,
            Known::ContentLength | Known::TransferEncoding => return Self::Framing,
            Known::Connection
            | Known::KeepAlive
            | Known::ProxyAuthenticate
            | Known::ProxyConnection
            | Known::Te
            | Known::Upgrade => return Self::HopByHop,
        }
        match name.len() {
            9 if is_name(name, b"forwarded") => Self::Forwarded,
            9 if is_name(name, b"x-real-ip") => Self::RealIp,
            10 if is_name(name, b"tracestate") => Self::Tracestate,
            11 if is_name(name, b"traceparent") => Self::Traceparent,
            12 if is_name(name, b"x-request-id") => Self::RequestId,
            15 if is_name(name, b"x-forwarded-for") => Self::ForwardedFor,
            16 if is_name(name, b"x-forwarded-host") => Self::ForwardedHost,
            17 if is_name(name, b"x-forwarded-proto") => Self::ForwardedProto,
            // It is ours alone: a peer that may be a proxy in front is no replay. One that is valid is written anew.
            19 if is_name(name, b"x-sluicegate-replay") => Self::HopByHop,
            9.. if name.contains(&b'_') && passes_for_another(name) => Self::HopByHop,
            12.. if is_claim(name) => Self::Claim,
            _ => Self::Plain,
        }
    }
}

/// Whether a name is one of those that are looked at, if each `_` is read as `-`.
fn passes_for_another(name: &[u8]) -> bool {
    let mut room = [0; 32];
    // Those that are longer than the longest are claims by how they begin.
    let length = name.len().min(room.len());
    let respelled = &mut room[..length];
    for (to, from) in respelled.iter_mut().zip(name) {
        *to = if *from == b'_' { b'-' } else { *from };
    }
    let known = if length == name.len() { Known::of(respelled) } else { Known::Other };
    FieldKind::of(known, respelled) != FieldKind::Plain
}

/// The values found so far among the fields of a request, for those that are added or completed at the end.
struct FoundValues<'f> {
    trusted_peer: bool,
    also: Also<'f>,
    hops: FieldValues<'f>,
    forwarded: FieldValues<'f>,
    states: FieldValues<'f>,
    proto: bool,
    host: bool,
    trace: TraceParent<'f>,
}

impl<'f> FoundValues<'f> {
    fn new(facts: &Forwarding<'f>) -> Self {
        Self {
            trusted_peer: facts.trusted_peer,
            also: facts.also,
            hops: FieldValues::default(),
            forwarded: FieldValues::default(),
            states: FieldValues::default(),
            proto: false,
            host: false,
            trace: TraceParent::default(),
        }
    }

    /// Whether a field is copied as it is; takes a note of it where something is added for want of it.
    fn passes(&mut self, kind: FieldKind, value: &'f [u8]) -> bool {
        let trusted_peer = self.trusted_peer;
        match kind {
            FieldKind::Plain => true,
            // The host is the one that was asked for; a trusted peer's id was adopted if it was acceptable; whether the
            // upstream is asked to say `100 Continue` is not the client's to decide.
            FieldKind::HopByHop | FieldKind::Framing | FieldKind::Host | FieldKind::RequestId | FieldKind::Expect => {
                false
            }
            FieldKind::Claim => trusted_peer,
            FieldKind::ForwardedFor => {
                if trusted_peer {
                    self.hops.add(value);
                }
                false
            }
            FieldKind::Forwarded => match self.also {
                Also::Forwarded if trusted_peer => {
                    self.forwarded.add(value);
                    false
                }
                Also::Forwarded => false,
                Also::Nothing | Also::RealIp(_) => trusted_peer,
            },
            FieldKind::RealIp => trusted_peer && !matches!(self.also, Also::RealIp(_)),
            FieldKind::ForwardedProto => {
                self.proto |= trusted_peer;
                trusted_peer
            }
            FieldKind::ForwardedHost => {
                self.host |= trusted_peer;
                trusted_peer
            }
            // Whether it is the only one, and whether the state is of a trace that goes on, is known at the end.
            FieldKind::Traceparent => {
                self.trace.add(value);
                false
            }
            FieldKind::Tracestate => {
                self.states.add(value);
                false
            }
        }
    }
}

fn add_forwarding(facts: &Forwarding<'_>, kept: &FoundValues<'_>, sink: &mut impl Sink) {
    kept.hops.put(b"x-forwarded-for", &[facts.peer], sink);
    if !kept.proto {
        sink.put(b"x-forwarded-proto", facts.scheme);
    }
    if !kept.host {
        sink.put(b"x-forwarded-host", facts.authority);
    }
    match facts.also {
        Also::Nothing => {}
        Also::Forwarded => forwarded::add(facts, &kept.forwarded, sink),
        Also::RealIp(client) => sink.put(b"x-real-ip", client),
    }
    sink.put(b"x-request-id", facts.request_id);
    let trace = kept.trace.valid();
    if let Some(trace) = trace.or(facts.new_traceparent) {
        sink.put(b"traceparent", trace);
    }
    // The state of a trace that we have started would be another trace's (W3C Trace Context, 3.3 and 4.3).
    if trace.is_some() && !kept.states.is_empty() && is_tracestate(&kept.states) {
        kept.states.put(b"tracestate", &[], sink);
    }
    sink.put(b"via", facts.via);
}

fn add_upgrade(upgrade: Option<&[u8]>, sink: &mut impl Sink) {
    if let Some(protocols) = upgrade {
        sink.put(b"connection", b"upgrade");
        sink.put(b"upgrade", protocols);
    }
}

/// The names that the `Connection` fields nominate and that would pass if they did not.
struct Nominated<'f> {
    names: Vec<&'f [u8]>,
}

impl<'f> Nominated<'f> {
    fn of(fields: &'f impl Fields) -> Self {
        Self::among(fields.nominated())
    }

    fn among(options: impl Iterator<Item = &'f [u8]>) -> Self {
        Self { names: options.filter(|option| is_nomination(option)).collect() }
    }

    #[inline]
    fn contains(&self, name: &[u8]) -> bool {
        !self.names.is_empty() && self.names.iter().any(|nominated| name.eq_ignore_ascii_case(nominated))
    }
}

/// Whether a nominated name has to be kept: some fields are cut anyway, and some never are. Those by which a proxy in front
/// says who the client is are never cut: a client that can have the nomination sent would hide who they are. `Host` and
/// the framing are no matter of copying.
fn is_nomination(name: &[u8]) -> bool {
    let known = Known::of(name);
    !known.is_hop_by_hop()
        && !matches!(known, Known::ContentLength | Known::Host)
        && !NEVER_NOMINATED.iter().any(|never| name.eq_ignore_ascii_case(never))
        && !is_forwarding(name)
}
