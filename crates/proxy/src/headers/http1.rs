//! Heads of HTTP/1 as fields to read and as a place to write fields to.

use super::{Fields, Sink};
use sluicegate_http1::{HeadWriter, Known, Piece, Request, Response};

impl Fields for Request<'_> {
    fn copy<'f>(&'f self, sink: &mut impl Sink, keep: impl FnMut(Known, &'f [u8], &'f [u8]) -> bool) {
        self.copy_fields(keep, |piece| sink.put_piece(piece));
    }

    fn nominated(&self) -> impl Iterator<Item = &[u8]> {
        Request::nominated(self)
    }
}

impl Fields for Response<'_> {
    fn copy<'f>(&'f self, sink: &mut impl Sink, keep: impl FnMut(Known, &'f [u8], &'f [u8]) -> bool) {
        self.copy_fields(keep, |piece| sink.put_piece(piece));
    }

    fn nominated(&self) -> impl Iterator<Item = &[u8]> {
        Response::nominated(self)
    }
}

impl Sink for HeadWriter<'_> {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "names are mostly constants, and then copying them is a store or two")]
    fn put(&mut self, name: &[u8], value: &[u8]) {
        self.field(name, value);
    }

    fn put_joined(&mut self, name: &[u8], parts: &[&[u8]]) {
        self.joined(name, parts);
    }

    #[inline]
    fn put_piece(&mut self, piece: Piece<'_>) {
        self.piece(piece);
    }

    fn has(&self, lower_name: &[u8]) -> bool {
        HeadWriter::has(self, lower_name)
    }
}
