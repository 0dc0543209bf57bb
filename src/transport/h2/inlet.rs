//! A body that comes in DATA frames, as a body of HTTP/1.1.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::RecvStream;
use http::HeaderMap;

use super::{has_outer_blank, io_error};
use crate::http1::{CHUNK_ROOM, write_chunk_head};

/// The smallest room that a chunk is written into: its head, a byte, its end.
const LEAST_ROOM: usize = CHUNK_ROOM + 3;

/// How its end is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As it is: by a length that the head has told, or it is no body but what a tunnel carries.
    Raw,
    /// In chunks.
    Chunks,
}

/// A body on its way in. The window opens as its bytes are read.
#[derive(Debug)]
pub(super) struct Inlet {
    recv: RecvStream,
    form: Form,
    held: Bytes,
    /// The end of the last chunk and the trailers, once they came.
    tail: Vec<u8>,
    tail_at: usize,
    is_over: bool,
}

impl Inlet {
    pub(super) fn new(recv: RecvStream, form: Form) -> Self {
        Self { recv, form, held: Bytes::new(), tail: Vec::new(), tail_at: 0, is_over: false }
    }

    /// Ready when a read would give something.
    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.held.is_empty() && !self.is_over {
            match ready!(self.recv.poll_data(cx)) {
                Some(Ok(data)) => self.held = data,
                Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
                None => {
                    let trailers = ready!(pin!(self.recv.trailers()).poll(cx)).map_err(io_error)?;
                    if trailers.iter().flat_map(HeaderMap::values).any(|value| has_outer_blank(value.as_bytes())) {
                        return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                    }
                    self.is_over = true;
                    if self.form == Form::Chunks {
                        write_tail(trailers.as_ref(), &mut self.tail);
                    }
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Whether nothing is here, so that whoever was told to wait is woken by what comes.
    pub(super) fn is_waiting(&self) -> bool {
        self.held.is_empty() && !self.is_over
    }

    /// Reads into `room`; 0 bytes at the end. With less room than a chunk needs, nothing is read.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_ready(cx))?;
        if self.held.is_empty() {
            let rest = self.tail.get(self.tail_at..).unwrap_or_default();
            let size = rest.len().min(room.len());
            room[..size].copy_from_slice(&rest[..size]);
            self.tail_at += size;
            return Poll::Ready(Ok(size));
        }
        let (content, size) = match self.form {
            Form::Raw => {
                let size = self.held.len().min(room.len());
                room[..size].copy_from_slice(&self.held[..size]);
                (size, size)
            }
            Form::Chunks if room.len() < LEAST_ROOM => return Poll::Pending,
            Form::Chunks => {
                let content = self.held.len().min(room.len() - CHUNK_ROOM - 2);
                let mut head = [0; CHUNK_ROOM];
                // A frame is never larger than 2^24.
                let used = write_chunk_head(&mut head, u32::try_from(content).unwrap_or(u32::MAX));
                room[..used].copy_from_slice(&head[CHUNK_ROOM - used..]);
                room[used..used + content].copy_from_slice(&self.held[..content]);
                room[used + content..used + content + 2].copy_from_slice(b"\r\n");
                (content, used + content + 2)
            }
        };
        self.held.advance(content);
        // It fails only for a stream that is gone, whose window is nobody's.
        let _ = self.recv.flow_control().release_capacity(content);
        Poll::Ready(Ok(size))
    }
}

/// The last chunk, the trailers, the empty line.
pub(super) fn write_tail(trailers: Option<&HeaderMap>, tail: &mut Vec<u8>) {
    tail.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flatten() {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            tail.extend_from_slice(part);
        }
    }
    tail.extend_from_slice(b"\r\n");
}
