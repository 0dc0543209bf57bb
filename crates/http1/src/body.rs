//! One body: where it ends, and which of its bytes are written on.

use super::chunked::Chunked;
use super::fault::Fault;
use super::framing::Framing;

/// The part of a chunked body that is written on. Bodies with another framing are content only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkPart {
    /// Chunks stay chunks, without extensions and with the trailers that may pass.
    AsIs,
    /// The content alone.
    Content,
}

/// The result for the bytes given to [`Body::accept`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// How many belong to the body: all, unless it ended. They are consumed.
    pub taken: usize,
    /// How many are to be written on: they now lie at the front. At most `taken`.
    pub kept: usize,
}

/// Reads one body as it comes; used again for the next.
#[derive(Debug)]
pub struct Body {
    framing: Framing,
    form: ChunkPart,
    /// Bytes to come, of [`Framing::Length`].
    left: u64,
    /// Bytes of content that came, but for chunks.
    content: u64,
    /// Whether the sender closed.
    closed: bool,
    chunked: Chunked,
}

impl Body {
    /// A body of which nothing came yet.
    pub fn new(framing: Framing, form: ChunkPart) -> Self {
        let left = length(framing);
        Self { framing, form, left, content: 0, closed: false, chunked: Chunked::default() }
    }

    /// Begins with another body.
    pub fn reset(&mut self, framing: Framing, form: ChunkPart) {
        self.framing = framing;
        self.form = form;
        self.left = length(framing);
        self.content = 0;
        self.closed = false;
        self.chunked.reset();
    }

    /// Takes the next bytes, up to the end of the body. The bytes that are to be written on are moved to the front.
    ///
    /// After a fault it gives that fault for ever.
    pub fn accept(&mut self, bytes: &mut [u8]) -> Result<Accepted, Fault> {
        self.accept_seen(bytes, |_| {})
    }

    /// The same; `content` gets the content among the bytes, without heads of chunks and trailers, in pieces.
    #[inline]
    pub fn accept_seen(&mut self, bytes: &mut [u8], mut content: impl FnMut(&[u8])) -> Result<Accepted, Fault> {
        let taken = match self.framing {
            Framing::None => 0,
            Framing::Chunked => return self.chunked.accept(bytes, self.form, content),
            Framing::Length(_) => {
                let taken = usize::try_from(self.left).map_or(bytes.len(), |left| left.min(bytes.len()));
                self.left -= taken as u64;
                taken
            }
            Framing::UntilClose if self.closed => 0,
            Framing::UntilClose => bytes.len(),
        };
        content(&bytes[..taken]);
        self.content = self.content.saturating_add(taken as u64);
        Ok(Accepted { taken, kept: taken })
    }

    /// The sender closed its side: the end of a body that only this ends, a fault for one that is not complete.
    pub fn end(&mut self) -> Result<(), Fault> {
        self.closed = true;
        if self.is_complete() { Ok(()) } else { Err(Fault::Truncated) }
    }

    /// Whether nothing more belongs to it.
    pub fn is_complete(&self) -> bool {
        match self.framing {
            Framing::None => true,
            Framing::Length(_) => self.left == 0,
            Framing::Chunked => self.chunked.is_complete(),
            Framing::UntilClose => self.closed,
        }
    }

    /// Whether the next chunk has not begun.
    pub fn is_between_chunks(&self) -> bool {
        self.framing == Framing::Chunked && self.chunked.is_between()
    }

    /// Bytes of content so far: no chunk heads, no trailers.
    pub fn content(&self) -> u64 {
        if self.framing == Framing::Chunked { self.chunked.content() } else { self.content }
    }

    /// Bytes to come, if that is known.
    pub fn remaining(&self) -> Option<u64> {
        matches!(self.framing, Framing::Length(_)).then_some(self.left)
    }

    /// The bytes that are written after the last kept one, once the body is complete: the trailer lines that may pass
    /// and the empty line. Nothing if no trailer line came, since then the empty line was kept.
    pub fn tail(&self) -> &[u8] {
        if self.form == ChunkPart::AsIs { self.trailer_lines() } else { &[] }
    }

    /// The trailer lines that may pass and the empty line, once the body is complete, whatever its form. Nothing if no
    /// trailer line came.
    pub fn trailer_lines(&self) -> &[u8] {
        if self.framing == Framing::Chunked { self.chunked.tail() } else { &[] }
    }
}

fn length(framing: Framing) -> u64 {
    if let Framing::Length(length) = framing { length } else { 0 }
}
