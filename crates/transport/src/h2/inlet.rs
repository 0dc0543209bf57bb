//! A body that comes in DATA frames, as a body of HTTP/1.1.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::RecvStream;
use http::HeaderMap;

use super::{has_outer_blank, io_error};
use sluicegate_http1::{CHUNK_ROOM, write_chunk_head};

/// The smallest room that a chunk is written into: its head, a byte, its end.
const LEAST_ROOM: usize = CHUNK_ROOM + 3;

/// How its end is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndForm {
    /// As it is: by a length that the head has told, or it is no body but what a tunnel carries.
    Raw,
    /// In chunks.
    Chunks,
}

/// A body on its way in. The window opens as its bytes are read.
#[derive(Debug)]
pub(super) struct Inlet {
    recv: RecvStream,
    form: EndForm,
    held: Bytes,
    /// The end of the last chunk and the trailers, once they came.
    tail: Vec<u8>,
    tail_at: usize,
    is_over: bool,
    /// A fault is told again to the task that asks again: it may have been told to one who did not listen.
    has_failed: bool,
}

impl Inlet {
    pub(super) fn new(recv: RecvStream, form: EndForm) -> Self {
        Self { recv, form, held: Bytes::new(), tail: Vec::new(), tail_at: 0, is_over: false, has_failed: false }
    }

    /// Ready when a read would give something.
    pub(super) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.has_failed {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        let polled = self.poll_fill(cx);
        self.has_failed = matches!(polled, Poll::Ready(Err(_)));
        polled
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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
                    if self.form == EndForm::Chunks {
                        write_tail(trailers.as_ref(), &mut self.tail);
                    }
                }
            }
        }
        Poll::Ready(Ok(()))
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
            EndForm::Raw => {
                let size = self.held.len().min(room.len());
                room[..size].copy_from_slice(&self.held[..size]);
                (size, size)
            }
            EndForm::Chunks if room.len() < LEAST_ROOM => return Poll::Pending,
            EndForm::Chunks => {
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use proptest::prelude::*;

    use super::super::loopback::{exchange, run, send_all};
    use super::*;

    /// All that is read of a body with this much room at a time, and whether it came to its end.
    async fn read(inlet: &mut Inlet, room: usize) -> (Vec<u8>, io::Result<()>) {
        let mut all = Vec::new();
        let mut room = vec![0; room];
        loop {
            match poll_fn(|cx| inlet.poll_read(cx, &mut room)).await {
                Ok(0) => return (all, Ok(())),
                Ok(size) => all.extend_from_slice(&room[..size]),
                Err(error) => return (all, Err(error)),
            }
        }
    }

    fn fields(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    /// The bytes that arrive when these pieces are sent, one after the other, and then the end.
    fn arrives(
        form: EndForm,
        pieces: &[Vec<u8>],
        trailers: Option<HeaderMap>,
        room: usize,
    ) -> (Vec<u8>, io::Result<()>) {
        run(async {
            let mut ends = exchange(65_535).await;
            let mut inlet = Inlet::new(ends.request.into_body(), form);
            let sending = async {
                for piece in pieces {
                    send_all(&mut ends.upload, Bytes::copy_from_slice(piece)).await;
                }
                match trailers {
                    Some(trailers) => ends.upload.send_trailers(trailers).unwrap(),
                    None => ends.upload.send_data(Bytes::new(), true).unwrap(),
                }
            };
            tokio::join!(read(&mut inlet, room), sending).0
        })
    }

    /// Contents and trailer lines of a chunked body, read as the RFC's pseudo-code has it (RFC 9112, 7.1.3).
    fn dechunked(mut bytes: &[u8]) -> (Vec<u8>, String) {
        let mut content = Vec::new();
        loop {
            let end = bytes.windows(2).position(|two| two == b"\r\n").unwrap();
            let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
            bytes = &bytes[end + 2..];
            if size == 0 {
                return (content, String::from_utf8(bytes.to_vec()).unwrap());
            }
            content.extend_from_slice(&bytes[..size]);
            assert_eq!(&bytes[size..size + 2], b"\r\n");
            bytes = &bytes[size + 2..];
        }
    }

    #[test]
    fn a_body_is_one_chunk_for_each_frame_that_fits() {
        let pieces = [b"hello".to_vec(), b" world".to_vec()];
        let (bytes, end) = arrives(EndForm::Chunks, &pieces, None, 100);
        assert_eq!((dechunked(&bytes), end.is_ok()), ((b"hello world".to_vec(), "\r\n".to_owned()), true));
        let (bytes, _) = arrives(EndForm::Raw, &pieces, None, 100);
        assert_eq!(bytes, b"hello world");
    }

    #[test]
    fn trailers_follow_the_last_chunk_and_have_no_place_behind_a_length() {
        let trailers = || Some(fields(&[("x-a", "1"), ("x-b", "two words")]));
        let (bytes, _) = arrives(EndForm::Chunks, &[b"x".to_vec()], trailers(), 100);
        assert_eq!(String::from_utf8(bytes).unwrap(), "1\r\nx\r\n0\r\nx-a: 1\r\nx-b: two words\r\n\r\n");
        let (bytes, _) = arrives(EndForm::Raw, &[b"x".to_vec()], trailers(), 100);
        assert_eq!(bytes, b"x");
    }

    #[test]
    fn trailers_with_blanks_at_an_end_are_an_error_and_not_an_end() {
        for value in [" 1", "1 ", "\t1", "1\t", " "] {
            let trailers = Some(
                [("x-a".parse().unwrap(), http::HeaderValue::from_bytes(value.as_bytes()).unwrap())]
                    .into_iter()
                    .collect(),
            );
            let (bytes, end) = arrives(EndForm::Chunks, &[b"x".to_vec()], trailers, 100);
            assert_eq!((bytes.as_slice(), end.is_err()), (&b"1\r\nx\r\n"[..], true), "{value:?}");
        }
    }

    #[test]
    fn a_reset_is_an_error_and_not_an_end() {
        run(async {
            let mut ends = exchange(65_535).await;
            let mut inlet = Inlet::new(ends.request.into_body(), EndForm::Chunks);
            ends.upload.send_data(Bytes::from_static(b"x"), false).unwrap();
            let mut room = [0; 100];
            assert_eq!(poll_fn(|cx| inlet.poll_read(cx, &mut room)).await.unwrap(), 6);
            let next = poll_fn(|cx| Poll::Ready(inlet.poll_read(cx, &mut room)));
            assert!(next.await.is_pending());
            ends.upload.send_reset(h2::Reason::CANCEL);
            assert!(read(&mut inlet, 100).await.1.is_err());
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn however_it_is_cut_the_content_is_the_same(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..400), 0..8),
            room in LEAST_ROOM..500,
            has_trailers: bool,
        ) {
            let content = pieces.concat();
            let trailers = || has_trailers.then(|| fields(&[("x-sum", "abc")]));
            let (bytes, end) = arrives(EndForm::Chunks, &pieces, trailers(), room);
            prop_assert!(end.is_ok());
            let tail = if has_trailers { "x-sum: abc\r\n\r\n" } else { "\r\n" };
            prop_assert_eq!(dechunked(&bytes), (content.clone(), tail.to_owned()));
            let (bytes, end) = arrives(EndForm::Raw, &pieces, trailers(), room);
            prop_assert!(end.is_ok());
            prop_assert_eq!(bytes, content);
        }
    }
}
