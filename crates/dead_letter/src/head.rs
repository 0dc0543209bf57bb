//! The beginning of a line as the writer writes it, read without JSON: its places are part of the format.

/// The bytes before the id.
const BEFORE_ID: &[u8] = b"{\"v\":1,\"id\":\"";
/// Bytes of an id.
const ID: usize = 36;
/// The bytes between the id and the instant.
const BEFORE_STAMP: &[u8] = b"\",\"ts\":\"";
/// Bytes of an instant, microseconds and `Z` included.
const STAMP: usize = 27;

/// The beginning of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head<'a> {
    /// Its id.
    pub(super) id: &'a [u8],
    /// Its instant: all are equally long and in UTC, so that the order of their bytes is that of time.
    pub(super) stamp: &'a [u8],
    /// The kind of the line.
    pub(super) kind: LineKind,
    /// The bytes behind the instant's quote.
    pub(super) rest: &'a [u8],
}

/// The kinds of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineKind {
    /// One request.
    Record,
    /// Requests that were counted.
    Aggregate,
    /// Records that were lost.
    Dropped,
}

impl<'a> Head<'a> {
    /// That of a line; `None` if it begins in another way than the writer begins one.
    pub(super) fn of(line: &'a [u8]) -> Option<Self> {
        let (id, rest) = line.strip_prefix(BEFORE_ID)?.split_at_checked(ID)?;
        let (stamp, rest) = rest.strip_prefix(BEFORE_STAMP)?.split_at_checked(STAMP)?;
        let rest = rest.strip_prefix(b"\"")?;
        let kind = if rest.starts_with(b",\"reason\":\"") {
            LineKind::Record
        } else if rest.starts_with(b",\"aggregate\":true,") {
            LineKind::Aggregate
        } else if rest.starts_with(b",\"dropped\":true,") {
            LineKind::Dropped
        } else {
            return None;
        };
        (stamp.last() == Some(&b'Z')).then_some(Self { id, stamp, kind, rest })
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{AT, draft};
    use super::super::tally::{Drops, Tally};
    use super::*;
    use crate::Reason;
    use sluicegate_redact::{RedactRules, Redactor};

    #[test]
    fn each_kind_of_line_that_is_written_has_its_head() {
        let redactor = Redactor::new(&RedactRules::default());
        let mut lines = Vec::new();
        draft().write("gw", &redactor, &mut lines);
        let (reason, limit, top) = (Reason::Timeout, None, Vec::new());
        Tally { reason, is_shadow: true, limit, count: 1, from: AT, to: AT, top }
            .write("gw", &redactor, AT, &mut lines);
        Drops { queue_full: 1, disk_error: 0 }.write("gw", AT, AT, &mut lines);
        let kinds = [LineKind::Record, LineKind::Aggregate, LineKind::Dropped];
        for (line, kind) in lines.split(|&byte| byte == b'\n').zip(kinds) {
            let head = Head::of(line).unwrap();
            assert_eq!((head.kind, head.stamp), (kind, &b"2026-01-02T03:04:05.678901Z"[..]));
            assert_eq!(head.id.split(|byte| *byte == b'-').count(), 5);
            assert!((0..80).all(|length| Head::of(&line[..length]).is_none()));
        }
        for other in ["", "{}", "{\"v\":2,\"id\":\"", "\0\0\0\0"] {
            assert_eq!(Head::of(other.as_bytes()), None, "{other}");
        }
    }
}
