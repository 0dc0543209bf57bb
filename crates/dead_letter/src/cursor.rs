//! Up to where someone has read a log, as a text that they bring back.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use base64ct::{Base64UrlUnpadded, Encoding};

use super::reserve::MARK;
use super::segment::Segment;

/// Of the text's form; texts of another one are refused.
const VERSION: u8 = 1;

/// A longer text is no cursor: it would be of more gateways than a directory has.
const MAX_TEXT: usize = 48 * 1024;

/// Up to where a log has been read: a place in the segments of each node, since the nodes write at the same time. So it stays
/// right while they write, rotate and remove segments. Its text is for whoever gave it alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogCursor {
    pub(super) places: BTreeMap<String, LogPosition>,
}

/// A place in the segments of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogPosition {
    pub(super) sequence: u64,
    pub(super) offset: u64,
    /// The checksum of what stands before it, by which a segment that was written anew is known; 0 if it is not.
    pub(super) mark: u32,
    /// Where to end: lines that were kept from removal after the reading began were read elsewhere.
    pub(super) end: Option<(u64, u64)>,
}

impl LogCursor {
    /// Before all that is there. Segments that keep lines from removal end where they end now.
    pub(super) fn before(segments: &[Segment]) -> Self {
        let mut places: BTreeMap<String, LogPosition> = BTreeMap::new();
        for segment in segments.iter().filter(|segment| is_reserve(&segment.name.node)) {
            let sequence = segment.name.sequence;
            let place = places.entry(segment.name.node.clone());
            place.or_insert(LogPosition { sequence, ..LogPosition::default() }).end = Some((sequence, segment.bytes));
        }
        Self { places }
    }
}

/// Whether the segments of this node keep lines that stood elsewhere before.
pub(super) fn is_reserve(node: &str) -> bool {
    node.contains(MARK)
}

impl fmt::Display for LogCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<_> = self
            .places
            .iter()
            .map(|(node, place)| (node, place.sequence, place.offset, place.mark, place.end))
            .collect();
        let json = serde_json::to_vec(&(VERSION, places)).map_err(|_| fmt::Error)?;
        f.write_str(&Base64UrlUnpadded::encode_string(&json))
    }
}

/// A text that is no [`LogCursor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogCursorError;

impl fmt::Display for LogCursorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("use a cursor as it was given, or none")
    }
}

impl std::error::Error for LogCursorError {}

impl FromStr for LogCursor {
    type Err = LogCursorError;

    fn from_str(text: &str) -> Result<Self, LogCursorError> {
        type Places = Vec<(String, u64, u64, u32, Option<(u64, u64)>)>;
        if text.len() > MAX_TEXT {
            return Err(LogCursorError);
        }
        let json = Base64UrlUnpadded::decode_vec(text).map_err(|_| LogCursorError)?;
        let (version, places): (u8, Places) = serde_json::from_slice(&json).map_err(|_| LogCursorError)?;
        if version != VERSION {
            return Err(LogCursorError);
        }
        let places = places
            .into_iter()
            .map(|(node, sequence, offset, mark, end)| (node, LogPosition { sequence, offset, mark, end }))
            .collect();
        Ok(Self { places })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_as_it_was_written() {
        let place = LogPosition { sequence: 7, offset: 1_234, mark: 0xfeed_beef, end: None };
        let kept = LogPosition { sequence: 1, offset: 0, mark: 0, end: Some((3, u64::MAX)) };
        let places = [("gw-1".to_owned(), place), ("a \"b\",/…~2+timeout".to_owned(), kept)].into();
        for cursor in [LogCursor { places }, LogCursor::default()] {
            let text = cursor.to_string();
            assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)), "{text}");
            assert_eq!(text.parse(), Ok(cursor));
        }
    }

    #[test]
    fn another_text_is_no_cursor() {
        let of = |json: &str| Base64UrlUnpadded::encode_string(json.as_bytes());
        assert_eq!(of("[1,[]]").parse(), Ok(LogCursor::default()));
        let long = of(&format!("[1,[[\"{}\",1,2,3,null]]]", "n".repeat(MAX_TEXT)));
        for text in ["", "x", "%", &of("[2,[]]"), &of("[1,[[\"gw\",-1,0,0,null]]]"), &long] {
            assert_eq!(text.parse::<LogCursor>(), Err(LogCursorError), "{text}");
        }
    }
}
