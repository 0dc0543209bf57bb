//! The lines of the segments of deferred requests, each a JSON object with a checksum at its end, as in the log.

use std::net::IpAddr;
use std::sync::Arc;

use base64ct::{Base64, Encoding as _};
use jiff::Timestamp;
use serde::Deserialize;

use super::request::{Deferral, Shown};
use crate::line::{LineWriter, is_sound};
use crate::seal::Sealer;
use sluicegate_time::{Tick, Wall, WallOffset};
use sluicegate_words::Word as _;

/// Written bytes of a name or an address.
const MAX_NAME: usize = 1024;

words! {
    /// The fate of a deferred request.
    pub enum DeferredFate {
        /// A server took it.
        Sent = "sent",
        /// A server, or the gateway, refused it for good.
        Failed = "failed",
        /// Nobody took it in time.
        Expired = "expired",
    }
}

/// How many requests there were before a segment began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
pub struct Totals {
    /// Requests that were kept for later.
    pub deferred: u64,
    /// Those that were sent.
    pub sent: u64,
    /// Those that failed.
    pub failed: u64,
    /// Those that expired.
    pub expired: u64,
}

impl Totals {
    /// Those that have no fate yet.
    pub fn pending(&self) -> u64 {
        self.deferred.saturating_sub(self.sent).saturating_sub(self.failed).saturating_sub(self.expired)
    }

    pub(super) fn count(&mut self, fate: DeferredFate) {
        *match fate {
            DeferredFate::Sent => &mut self.sent,
            DeferredFate::Failed => &mut self.failed,
            DeferredFate::Expired => &mut self.expired,
        } += 1;
    }
}

/// How a deferred request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its fate.
    pub fate: DeferredFate,
    /// When.
    pub at: Tick,
    /// How often it was sent.
    pub tries: u32,
    /// The status of the last answer.
    pub status: Option<u16>,
    /// Why it was not sent.
    pub reason: Option<Arc<str>>,
}

/// A line that was read.
#[derive(Debug, PartialEq)]
pub(super) enum DeferredLine {
    /// A segment begins.
    Begins(Totals),
    /// A request. `is_copy`: it was in an earlier segment.
    Request { id: u128, at: Tick, method: String, shown: Shown, is_copy: bool },
    /// Its end.
    End { id: u128, ended: Ended, has_answer: bool },
}

/// The sealed part of a line.
#[derive(Debug, PartialEq)]
pub(super) struct SealedPart {
    pub(super) key: String,
    pub(super) bytes: Vec<u8>,
}

#[derive(Deserialize)]
struct Raw {
    ts: String,
    #[serde(default)]
    begins: Option<Totals>,
    #[serde(default)]
    deferred: Option<String>,
    #[serde(default)]
    ended: Option<String>,
    #[serde(default)]
    fate: Option<String>,
    #[serde(default)]
    tries: u32,
    #[serde(default)]
    status: Option<u16>,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    route: String,
    #[serde(default)]
    limit: String,
    #[serde(default)]
    client_ip: Option<IpAddr>,
    #[serde(default)]
    order: String,
    #[serde(default)]
    method: String,
    #[serde(default)]
    copy: bool,
    #[serde(default)]
    key: Option<String>,
}

#[derive(Deserialize)]
struct RawSealed {
    key: String,
    data: String,
}

/// Writes the first line of a segment.
pub(super) fn write_begin(out: &mut Vec<u8>, totals: &Totals, now: Wall) {
    let mut line = LineWriter::begin(out);
    line.text("ts", Some(&time(now)), MAX_NAME);
    let Totals { deferred, sent, failed, expired } = *totals;
    line.numbers(
        "begins",
        Some(&[
            ("deferred", Some(deferred)),
            ("sent", Some(sent)),
            ("failed", Some(failed)),
            ("expired", Some(expired)),
        ]),
    );
    line.finish();
}

/// Writes a request. `None` where the library cannot seal: it always could.
pub(super) fn write_request(
    out: &mut Vec<u8>,
    id: u128,
    request: &Deferral,
    order: u64,
    sealer: &mut Sealer,
    now: Wall,
) -> Option<()> {
    let shown = request.shown(order);
    let sealed = sealer.seal_bytes(&place_of(id, Some(&shown)), request.sealed_part())?;
    let mut line = LineWriter::begin(out);
    line.text("ts", Some(&time(now)), MAX_NAME);
    line.text("deferred", Some(&id_text(id)), MAX_NAME);
    line.text("route", Some(&request.route), MAX_NAME);
    line.text("limit", Some(&request.limit), MAX_NAME);
    line.text("client_ip", Some(&request.client.to_string()), MAX_NAME);
    line.text("order", Some(&format!("{order:016x}")), MAX_NAME);
    line.text("method", Some(&request.method), MAX_NAME);
    line.text("key", Some(sealer.id()), MAX_NAME);
    line.text("data", Some(&Base64::encode_string(&sealed)), usize::MAX);
    line.finish();
    Some(())
}

/// Writes the end of a request, with the answer that it got.
pub(super) fn write_end(
    out: &mut Vec<u8>,
    id: u128,
    ended: &Ended,
    answer: Option<Vec<u8>>,
    (sealer, offset): (&mut Sealer, &WallOffset),
) {
    let sealed = answer.and_then(|answer| sealer.seal_bytes(&place_of(id, None), answer));
    let mut line = LineWriter::begin(out);
    line.text("ts", Some(&time(offset.wall(ended.at))), MAX_NAME);
    line.text("ended", Some(&id_text(id)), MAX_NAME);
    line.text("fate", Some(ended.fate.word()), MAX_NAME);
    line.number("tries", u64::from(ended.tries));
    if let Some(status) = ended.status {
        line.number("status", u64::from(status));
    }
    if let Some(reason) = &ended.reason {
        line.text("reason", Some(reason), MAX_NAME);
    }
    if let Some(sealed) = sealed {
        line.text("key", Some(sealer.id()), MAX_NAME);
        line.text("data", Some(&Base64::encode_string(&sealed)), usize::MAX);
    }
    line.finish();
}

/// The line of a request once more, for a later segment; `None`: it is damaged.
pub(super) fn write_copy(out: &mut Vec<u8>, line: &[u8]) -> Option<()> {
    const MARK: &str = ",\"copy\":true";
    let text = std::str::from_utf8(line).ok().filter(|_| is_sound(line))?;
    let (fields, _) = text.rsplit_once(",\"crc\":")?;
    let rest = fields.strip_prefix("{\"v\":1")?;
    let mark = if rest.starts_with(MARK) { "" } else { MARK };
    LineWriter::begin(out).finish_with(&format!("{mark}{rest}"));
    Some(())
}

/// Reads a line, without its line feed; `None`: it is damaged, or of a later version. Its time is made the tick that it is now.
pub(super) fn read(line: &[u8], offset: &WallOffset) -> Option<DeferredLine> {
    if !is_sound(line) {
        return None;
    }
    let raw: Raw = serde_json::from_slice(line).ok()?;
    let at = offset.tick(wall(&raw.ts)?);
    if let Some(totals) = raw.begins {
        return Some(DeferredLine::Begins(totals));
    }
    if let Some(id) = &raw.deferred {
        let shown = Shown {
            route: raw.route.into(),
            limit: raw.limit.into(),
            client: raw.client_ip?,
            order: u64::from_str_radix(&raw.order, 16).ok()?,
        };
        return Some(DeferredLine::Request { id: parse_id(id)?, at, method: raw.method, shown, is_copy: raw.copy });
    }
    let fate = DeferredFate::from_word(raw.fate.as_deref()?)?;
    let reason = raw.reason.map(Arc::from);
    let ended = Ended { fate, at, tries: raw.tries, status: raw.status, reason };
    Some(DeferredLine::End { id: parse_id(raw.ended.as_deref()?)?, ended, has_answer: raw.key.is_some() })
}

/// The sealed part of a line.
pub(super) fn sealed_part(line: &[u8]) -> Option<SealedPart> {
    let RawSealed { key, data } = is_sound(line).then(|| serde_json::from_slice(line).ok())??;
    Some(SealedPart { key, bytes: Base64::decode_vec(&data).ok()? })
}

/// The place that a sealed part belongs to, of a request with what its line shows, or of an answer: it opens nowhere else.
pub(super) fn place_of(id: u128, request: Option<&Shown>) -> Vec<u8> {
    let mut place = b"sluicegate deferred 1\0".to_vec();
    place.push(u8::from(request.is_none()));
    place.extend_from_slice(&id.to_be_bytes());
    place.extend(request.map(Shown::bound).unwrap_or_default());
    place
}

/// An id as it is written: 32 hexadecimal digits.
pub fn id_text(id: u128) -> String {
    format!("{id:032x}")
}

/// The id of a text, if it is one as they are written.
pub fn parse_id(text: &str) -> Option<u128> {
    let is_written = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_written { u128::from_str_radix(text, 16).ok() } else { None }
}

/// A time as lines have it: to the microsecond, in UTC.
pub fn time(at: Wall) -> String {
    format!("{:.6}", at.timestamp())
}

fn wall(text: &str) -> Option<Wall> {
    let nanos = text.parse::<Timestamp>().ok()?.as_nanosecond();
    Some(Wall::from_nanos(u64::try_from(nanos).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::Opener;

    const NOW: Wall = Wall::from_nanos(1_767_323_045_678_901_000);
    const THEN: Tick = Tick::from_nanos(NOW.as_nanos());

    fn read(line: &[u8]) -> Option<DeferredLine> {
        super::read(line, &WallOffset::default())
    }

    fn request() -> Deferral {
        Deferral {
            route: "api".into(),
            limit: "per-client".into(),
            order: b"x".to_vec(),
            client: "192.0.2.7".parse().unwrap(),
            trusted_peer: false,
            is_https: true,
            request_id: "r".to_owned(),
            method: "POST".to_owned(),
            host: b"a.example".to_vec(),
            target: b"/x".to_vec(),
            headers: vec![(b"authorization".to_vec(), b"Bearer s3cret".to_vec())],
            body: b"planted".to_vec(),
            not_before: Tick::ZERO,
            idempotency_key: "k".to_owned(),
        }
    }

    fn line(out: &[u8]) -> &[u8] {
        out.strip_suffix(b"\n").unwrap()
    }

    #[test]
    fn a_request_is_shown_in_part_and_sealed_whole() {
        let (mut out, key) = (Vec::new(), [7; 32]);
        write_request(&mut out, 5, &request(), 0xabc, &mut Sealer::new(&key).unwrap(), NOW).unwrap();
        let text = String::from_utf8(out.clone()).unwrap();
        assert!(text.starts_with("{\"v\":1,\"ts\":\"2026-01-02T03:04:05.678901Z\",\"deferred\":\"00000000000000000000000000000005\",\"route\":\"api\""), "{text}");
        assert!(!text.contains("s3cret") && !text.contains("planted"), "{text}");
        let shown = Shown { route: "api".into(), limit: "per-client".into(), client: request().client, order: 0xabc };
        let method = "POST".to_owned();
        let read_back = DeferredLine::Request { id: 5, at: THEN, method, shown: shown.clone(), is_copy: false };
        assert_eq!(read(line(&out)), Some(read_back));
        let sealed = sealed_part(line(&out)).unwrap();
        let opener = Opener::new(&key);
        let opened = opener.open_bytes(&place_of(5, Some(&shown)), &sealed.key, &sealed.bytes).unwrap();
        assert_eq!(Deferral::of(&shown, &opened).unwrap().body, b"planted");
        let elsewhere = Shown { client: "192.0.2.8".parse().unwrap(), ..shown.clone() };
        for other in [place_of(6, Some(&shown)), place_of(5, None), place_of(5, Some(&elsewhere))] {
            assert!(opener.open_bytes(&other, &sealed.key, &sealed.bytes).is_err());
        }
    }

    #[test]
    fn a_copy_says_so_and_a_copy_of_it_says_so_once() {
        let mut out = Vec::new();
        write_request(&mut out, 5, &request(), 1, &mut Sealer::new(&[7; 32]).unwrap(), NOW).unwrap();
        for _ in 0..2 {
            let mut copy = Vec::new();
            write_copy(&mut copy, line(&out)).unwrap();
            assert!(matches!(read(line(&copy)), Some(DeferredLine::Request { id: 5, is_copy: true, .. })));
            assert_eq!(sealed_part(line(&copy)), sealed_part(line(&out)));
            assert_eq!(String::from_utf8(copy.clone()).unwrap().matches("copy").count(), 1);
            out = copy;
        }
    }

    #[test]
    fn ends_and_totals_come_back_and_damage_is_noticed() {
        let ended = Ended {
            fate: DeferredFate::Failed,
            at: THEN,
            tries: 3,
            status: Some(404),
            reason: Some("status 404".into()),
        };
        let mut out = Vec::new();
        let with = (&mut Sealer::new(&[7; 32]).unwrap(), &WallOffset::default());
        write_end(&mut out, 9, &ended, Some(b"answer".to_vec()), with);
        assert_eq!(read(line(&out)), Some(DeferredLine::End { id: 9, ended, has_answer: true }));
        let totals = Totals { deferred: 10, sent: 4, failed: 3, expired: 2 };
        let mut begin = Vec::new();
        write_begin(&mut begin, &totals, NOW);
        assert_eq!((read(line(&begin)), totals.pending()), (Some(DeferredLine::Begins(totals)), 1));
        for at in 0..out.len() - 1 {
            let mut bad = line(&out).to_vec();
            bad[at] ^= 1;
            assert_eq!(read(&bad), None, "{at}");
            assert_eq!(read(&line(&out)[..at]), None, "{at}");
        }
    }

    #[test]
    fn ids_are_32_digits_and_nothing_else() {
        assert_eq!(parse_id(&id_text(u128::MAX)), Some(u128::MAX));
        for other in ["", "1", "+0000000000000000000000000000001", "0000000000000000000000000000000A"] {
            assert_eq!(parse_id(other), None);
        }
    }
}
