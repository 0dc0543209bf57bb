//! The events of `text/event-stream`: HTML, 9.2.5 and 9.2.6.

use memchr::memchr2;

/// A part of an event stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventPart<'b> {
    /// Data of an event, or a piece of it.
    Data(&'b [u8]),
    /// An event that has data ends.
    End,
}

/// Finds the data of events in a stream that comes in pieces. It keeps none of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventSplitter {
    line: LineState,
    /// Whether the event has data.
    has_data: bool,
    /// Whether CR was the last byte: then LF is no second end of a line.
    is_after_cr: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineState {
    /// So many bytes of the line's name came, and all are those of `data`.
    Name(usize),
    /// The colon came: a space may follow.
    Colon,
    Data,
    /// A line of another name.
    Other,
}

impl Default for LineState {
    fn default() -> Self {
        Self::Name(0)
    }
}

const NAME: &[u8] = b"data";

impl EventSplitter {
    /// Takes the next bytes.
    pub fn feed(&mut self, mut bytes: &[u8], mut part: impl FnMut(EventPart<'_>)) {
        while let Some((&byte, rest)) = bytes.split_first() {
            let is_line_feed_of_cr = self.is_after_cr && byte == b'\n';
            self.is_after_cr = byte == b'\r';
            if is_line_feed_of_cr {
                bytes = rest;
                continue;
            }
            match (self.line, byte) {
                (_, b'\r' | b'\n') => {
                    self.end_line(&mut part);
                    bytes = rest;
                }
                (LineState::Name(4), b':') => {
                    self.begin_data(&mut part);
                    self.line = LineState::Colon;
                    bytes = rest;
                }
                (LineState::Name(length), _) => {
                    let is_next = NAME.get(length) == Some(&byte);
                    self.line = if is_next { LineState::Name(length + 1) } else { LineState::Other };
                    bytes = rest;
                }
                (LineState::Colon, b' ') => {
                    self.line = LineState::Data;
                    bytes = rest;
                }
                (LineState::Colon | LineState::Data | LineState::Other, _) => {
                    let end = memchr2(b'\r', b'\n', bytes).unwrap_or(bytes.len());
                    if self.line != LineState::Other {
                        self.line = LineState::Data;
                        part(EventPart::Data(&bytes[..end]));
                    }
                    bytes = &bytes[end..];
                }
            }
        }
    }

    /// The stream ends: what is left of an event whose empty line is missing counts as an event, since servers forget it.
    pub fn end(&mut self, mut part: impl FnMut(EventPart<'_>)) {
        if self.has_data {
            part(EventPart::End);
        }
        *self = Self::default();
    }

    /// Lines of data of one event are parted by LF.
    fn begin_data(&mut self, part: &mut impl FnMut(EventPart<'_>)) {
        if self.has_data {
            part(EventPart::Data(b"\n"));
        }
        self.has_data = true;
    }

    fn end_line(&mut self, part: &mut impl FnMut(EventPart<'_>)) {
        match self.line {
            LineState::Name(0) if self.has_data => {
                self.has_data = false;
                part(EventPart::End);
            }
            // A name without a colon has an empty value.
            LineState::Name(4) => self.begin_data(part),
            _ => {}
        }
        self.line = LineState::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(pieces: &[&[u8]]) -> Vec<String> {
        let (mut splitter, mut events, mut data) = (EventSplitter::default(), Vec::new(), Vec::new());
        let mut part = |part: EventPart<'_>| match part {
            EventPart::Data(bytes) => data.extend_from_slice(bytes),
            EventPart::End => events.push(String::from_utf8(std::mem::take(&mut data)).unwrap()),
        };
        for piece in pieces {
            splitter.feed(piece, &mut part);
        }
        splitter.end(&mut part);
        events
    }

    #[test]
    fn finds_the_data_of_each_event_wherever_the_pieces_part() {
        for (text, expected) in [
            ("", &[][..]),
            ("data: a\n\n", &["a"]),
            ("data:a\r\n\r\ndata:  b\r\rdata: c\n\n", &["a", " b", "c"]),
            (": comment\nevent: x\nid: 7\ndata: {\ndata: }\nretry: 5\n\n", &["{\n}"]),
            ("event: ping\n\n\n\ndata\n\n", &[""]),
            ("data:\n\ndata: \n\n", &["", ""]),
            ("database: 5\ndat: 6\ndatum: 7\n data: 8\nDATA: 9\n\n", &[]),
            ("data: a:b: c\n\ndata: cut", &["a:b: c", "cut"]),
            ("data: a\r\n\n", &["a"]),
        ] {
            let bytes = text.as_bytes();
            assert_eq!(events(&[bytes]), expected, "{text:?}");
            for at in 0..=bytes.len() {
                let (one, other) = bytes.split_at(at);
                assert_eq!(events(&[one, other]), expected, "{text:?} at {at}");
            }
            assert_eq!(events(&bytes.chunks(1).collect::<Vec<_>>()), expected, "{text:?} byte by byte");
        }
    }
}
