//! `[server]`

use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::doubts;
use super::paths::file;
use crate::findings::{Reported, quoted};
use crate::form::{FILE, Form};
use crate::kind::{Context, ValueKind, by, count, duration, flag, size, word};
use crate::reader::{Node, Reader};
use crate::section::{Declare, Section, section};
use crate::size::{parse_size, show_size};
use sluicegate_time::Span;

section! {
    /// `[server]`
    pub struct Server, read as ServerKeys {
        /// Worker threads; "auto" is one per core.
        workers: Option<usize> = count(1..=1_024).or_word("auto").or("auto").needs_restart(),
        /// Whether changes of the file, and of those that it names, are taken over as they happen.
        watch: bool = flag().or("true"),
        /// How long a gateway that is told to end listens on while it says that it is not ready.
        drain_delay: Span = duration(GRACES).or("0s"),
        /// The file that names the process.
        pid_file: Option<PathBuf> = by(FILE, pid_file, |path| path.display().to_string()).or_nothing("none").needs_restart(),
        /// The file that counts outlive the process in, with their secret beside it.
        state_file: Option<PathBuf> = by(FILE, state_file, |path| path.display().to_string()).or_nothing("none").needs_restart(),
        /// How often `state_file` is written.
        state_interval: Span = duration(STATE_INTERVALS).or("30s").needs_restart(),
        /// How long a drain waits for what is in flight.
        shutdown_grace: Span = duration(GRACES).or("30s"),
        /// The rate headers that go out.
        rate_headers: RateHeaders = word().or("auto"),
        /// Whether a request without a valid `traceparent` gets one.
        traceparent: Traceparent = word().or("pass"),
        /// Default of every route: from a request's arrival to the head of its answer, or from the last byte of its body.
        response_timeout: Option<Span> = duration(TIMEOUTS).or_word("none").or("60s"),
        /// Default of every route: from a request's arrival to the last byte of its answer.
        timeout: Option<Span> = duration(TIMEOUTS).or_word("none").or("none"),
        /// From the first byte of a request's head to its last.
        head_timeout: Span = duration(CONNECTION_TIMEOUTS).or("30s"),
        /// How long a client's connection may stay without a request, new or kept.
        keep_alive_timeout: Span = duration(CONNECTION_TIMEOUTS).or("75s"),
        /// How long no byte of a body may move, on either side and in either direction.
        body_timeout: Span = duration(CONNECTION_TIMEOUTS).or("60s"),
        /// Bytes a second of a request's body, over 30 s, until its answer begins.
        min_body_rate: Option<u64> = by(Form::BytesPerSecond(1, 16 << 10), bytes_a_second, |rate| show_rate(*rate)).or_word("off").or("240B/s"),
        /// How long no byte may move in an upgraded connection.
        tunnel_timeout: Option<Span> = duration(CONNECTION_TIMEOUTS).or_word("none").or("1h"),
        /// Bytes of a request's head.
        max_head_size: usize = size(HEAD_SIZES).or("64KiB"),
        /// Field lines of a request's head; each is looked at with each request.
        max_head_fields: usize = count(1..=256).or("128"),
        /// Default of every route: bytes of a request's body.
        max_body_size: Option<u64> = size(BODY_SIZES).or_word("none").or("none"),
        /// From a client's connect to the end of its TLS handshake.
        handshake_timeout: Span = duration(HANDSHAKE_TIMEOUTS).or("10s"),
        /// TLS handshakes that one worker carries at once; each holds a connection and its buffers.
        max_handshakes: usize = count(1..=1_000_000).or("1024"),
        /// Requests that one HTTP/2 connection may have in flight, each of which may hold buffers.
        max_streams: u32 = count(1..=1_000).or("128"),
        /// Client connections that one worker keeps at once; "auto" is by the limit on open files.
        max_connections: Option<u64> = count(CONNECTIONS).or_word("auto").or("auto"),
        /// Requests of one client's connection.
        max_requests: Option<u32> = count(1..=4_000_000_000).or_word("none").or("none"),
    }
}

words! {
    /// `rate_headers` of `[server]`.
    pub enum RateHeaders {
        /// IETF fields on every limited response, the legacy ones too on refusals.
        Auto = "auto",
        /// `RateLimit` and `RateLimit-Policy` only.
        Ietf = "ietf",
        /// `X-RateLimit-*` only.
        Legacy = "legacy",
        /// Both families on every limited response.
        Both = "both",
        /// None.
        Off = "off",
    }
}

words! {
    /// `traceparent` of `[server]`: what becomes of a request without a valid field of that name.
    pub enum Traceparent {
        /// It goes on without one: its server decides whether a trace begins.
        Pass = "pass",
        /// A trace begins here, and its flags say that it is not sampled.
        Make = "make",
        /// A trace begins here, and its flags say that it is sampled.
        MakeSampled = "make-sampled",
    }
}

/// A timeout of an exchange; "none" is for those that must last longer.
pub(crate) const TIMEOUTS: RangeInclusive<Span> = Span::from_millis(1)..=Span::from_secs(24 * 3_600);

/// A timeout of a connection. One lost packet may hold it up for longer than the least.
const CONNECTION_TIMEOUTS: RangeInclusive<Span> = Span::from_millis(100)..=Span::from_secs(24 * 3_600);

/// Heads of browsers with their cookies reach a few KiB; each connection may hold as much memory as the most.
const HEAD_SIZES: RangeInclusive<usize> = 4 << 10..=1 << 20;

/// A client that shakes hands has sent nothing yet that is worth waiting for.
const HANDSHAKE_TIMEOUTS: RangeInclusive<Span> = Span::from_millis(100)..=Span::from_secs(300);

/// Connections at once. Each has its sockets and some buffers.
pub(crate) const CONNECTIONS: RangeInclusive<u64> = 1..=10_000_000;

/// From no body at all; what must be larger says "none".
pub(crate) const BODY_SIZES: RangeInclusive<u64> = 0..=1 << 40;

/// The keys of the section, and a word about timeouts that contradict each other.
pub(crate) fn read<'t>(reader: Reader<'t>, context: &Context<'_>) -> ServerKeys<'t> {
    let keys = Server::read_keys(reader, context);
    if let (Some(node), Some(response_timeout), Some(timeout)) =
        (&keys.response_timeout.node, keys.response_timeout.get(), keys.timeout.get())
    {
        doubts::check_response(node, *response_timeout, *timeout);
    }
    keys
}

/// Each time all counts are written.
const STATE_INTERVALS: RangeInclusive<Span> = Span::from_secs(1)..=Span::from_secs(3_600);

fn state_file(node: &Node<'_>, context: &Context<'_>) -> Result<PathBuf, Reported> {
    file(node, context, "state/counts")
}

fn pid_file(node: &Node<'_>, context: &Context<'_>) -> Result<PathBuf, Reported> {
    file(node, context, "/run/sluicegate.pid")
}

/// Half a MiB in 30 s is what a phone with a bad line sends.
const BODY_RATES: RangeInclusive<u64> = 1..=16 << 10;

/// `"240B/s"`.
fn bytes_a_second(node: &Node<'_>, _: &Context<'_>) -> Result<u64, Reported> {
    let text = node.string("bytes a second in quotes", "\"240B/s\"")?;
    let rate =
        text.split_once('/').filter(|(_, time)| time.trim() == "s").and_then(|(size, _)| parse_size(size.trim()));
    rate.filter(|rate| BODY_RATES.contains(rate)).ok_or_else(|| {
        let (least, most) = (show_rate(*BODY_RATES.start()), show_rate(*BODY_RATES.end()));
        let help = format!("write bytes a second, from \"{least}\" to \"{most}\", or \"off\"");
        node.error(format!("{} = {} cannot be a least rate", node.label(), quoted(text)), help)
    })
}

fn show_rate(bytes: u64) -> String {
    format!("{}/s", show_size(bytes))
}

/// A drain that waits longer than this is a process that does not stop.
const GRACES: RangeInclusive<Span> = Span::ZERO..=Span::from_secs(24 * 3_600);
