//! A body that goes out in DATA frames, read from a body of HTTP/1.1.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use h2::SendStream;
use http::HeaderMap;

use super::{io_error, own_head};
use sluicegate_http1::{Body, ChunkPart, Framing};

/// How a stream is to end, as far as that is known.
#[derive(Debug)]
enum StreamEnd {
    /// More may come.
    Open,
    /// With the last byte.
    WithData,
    /// With trailers.
    Trailers(HeaderMap),
    /// It has.
    Done,
}

/// A body on its way out. It holds what there is no window for.
#[derive(Debug)]
pub(super) struct Outlet {
    send: SendStream<Bytes>,
    held: Bytes,
    end: StreamEnd,
    sent: u64,
}

/// A piece of a body of HTTP/1.1, as HTTP/2 has it.
#[derive(Debug)]
pub(super) struct BodyPiece {
    content: Bytes,
    end: StreamEnd,
}

impl BodyPiece {
    /// Reads a piece: what comes next of `body` is in `first` and then in `second`.
    pub(super) fn read(body: &mut Body, first: &[u8], second: &[u8]) -> io::Result<Self> {
        let mut bytes = BytesMut::with_capacity(first.len() + second.len());
        bytes.extend_from_slice(first);
        bytes.extend_from_slice(second);
        let accepted = body.accept(&mut bytes).map_err(|_| io::ErrorKind::InvalidData)?;
        bytes.truncate(accepted.kept);
        let end = if !body.is_complete() {
            StreamEnd::Open
        } else if body.trailer_lines().is_empty() {
            StreamEnd::WithData
        } else {
            StreamEnd::Trailers(own_head::fields(body.trailer_lines())?)
        };
        Ok(Self { content: bytes.freeze(), end })
    }

    /// Whether the head that goes before it ends the stream.
    pub(super) fn is_nothing_more(&self) -> bool {
        self.content.is_empty() && matches!(self.end, StreamEnd::WithData)
    }
}

impl Outlet {
    /// The stream of a head that has gone out; `ended` with it.
    pub(super) fn new(send: SendStream<Bytes>, ended: bool) -> Self {
        Self { send, held: Bytes::new(), end: if ended { StreamEnd::Done } else { StreamEnd::Open }, sent: 0 }
    }

    /// Bytes that were handed to the connection.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether all that it was given has been handed to the connection.
    pub(super) fn is_idle(&self) -> bool {
        self.held.is_empty() && matches!(self.end, StreamEnd::Open | StreamEnd::Done)
    }

    /// Whether the stream has ended.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.end, StreamEnd::Done)
    }

    /// Takes the next piece, while it [is idle](Self::is_idle).
    pub(super) fn put(&mut self, piece: BodyPiece) {
        debug_assert!(self.is_idle());
        if self.has_ended() {
            return;
        }
        self.held = piece.content;
        self.end = piece.end;
    }

    /// Takes bytes as they are.
    pub(super) fn put_raw(&mut self, first: &[u8], second: &[u8]) {
        self.put(BodyPiece { content: [first, second].concat().into(), end: StreamEnd::Open });
    }

    /// Ends the stream behind what it holds.
    pub(super) fn finish(&mut self) {
        if matches!(self.end, StreamEnd::Open) {
            self.end = StreamEnd::WithData;
        }
    }

    /// Hands over what there is a window for. Ready when it is idle.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            self.send.reserve_capacity(self.held.len());
            let mut room = self.send.capacity();
            if room == 0 {
                room = match ready!(self.send.poll_capacity(cx)) {
                    Some(room) => room.map_err(io_error)?,
                    None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
                };
            }
            let data = self.held.split_to(room.min(self.held.len()));
            let is_last = self.held.is_empty() && matches!(self.end, StreamEnd::WithData);
            self.sent += data.len() as u64;
            self.send.send_data(data, is_last).map_err(io_error)?;
            if is_last {
                self.end = StreamEnd::Done;
            }
        }
        match std::mem::replace(&mut self.end, StreamEnd::Done) {
            StreamEnd::Open => self.end = StreamEnd::Open,
            StreamEnd::WithData => self.send.send_data(Bytes::new(), true).map_err(io_error)?,
            StreamEnd::Trailers(trailers) => self.send.send_trailers(trailers).map_err(io_error)?,
            StreamEnd::Done => {}
        }
        Poll::Ready(Ok(()))
    }

    /// Hands over what there is a window for; what is left waits for the next flush.
    pub(super) fn begin_flush(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.poll_flush(cx) {
            Poll::Ready(flushed) => flushed,
            Poll::Pending => Ok(()),
        }
    }

    /// Ends the stream without its end.
    pub(super) fn reset(&mut self, reason: h2::Reason) {
        if !self.has_ended() {
            self.send.send_reset(reason);
            self.end = StreamEnd::Done;
            self.held = Bytes::new();
        }
    }
}

/// The body that follows a head of ours.
pub(super) fn body_of(framing: Framing) -> Body {
    Body::new(framing, ChunkPart::Content)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use http::Response;
    use proptest::prelude::*;

    use super::super::loopback::{exchange, run};
    use super::*;

    /// The response as a client reads it: the content, the trailers, and whether the stream came to its end.
    #[derive(Debug, Default, PartialEq)]
    struct Read {
        content: Vec<u8>,
        trailers: Option<HeaderMap>,
        has_ended: bool,
    }

    /// The response as a client with this window reads it when these pieces of a body are written, each in two parts.
    fn read(framing: Framing, pieces: &[(Vec<u8>, Vec<u8>)], window: u32) -> io::Result<Read> {
        run(async {
            let mut ends = exchange(window).await;
            let send = ends.respond.send_response(Response::new(()), false).unwrap();
            let writing = async move {
                let mut body = body_of(framing);
                let mut outlet = Outlet::new(send, false);
                for (first, second) in pieces {
                    outlet.put(BodyPiece::read(&mut body, first, second)?);
                    poll_fn(|cx| outlet.poll_flush(cx)).await?;
                }
                if !outlet.has_ended() {
                    outlet.reset(h2::Reason::INTERNAL_ERROR);
                }
                Ok::<_, io::Error>(())
            };
            let reading = async {
                // A reset takes back what is not written yet, the head too.
                let Ok(response) = ends.response.await else { return Read::default() };
                let mut recv = response.into_body();
                let mut content = Vec::new();
                while let Some(piece) = recv.data().await {
                    let Ok(piece) = piece else { return Read { content, trailers: None, has_ended: false } };
                    recv.flow_control().release_capacity(piece.len()).unwrap();
                    content.extend_from_slice(&piece);
                }
                let trailers = recv.trailers().await.unwrap();
                Read { content, trailers, has_ended: true }
            };
            let (read, written) = tokio::join!(reading, writing);
            written.map(|()| read)
        })
    }

    fn whole(content: &[u8]) -> Read {
        Read { content: content.to_vec(), trailers: None, has_ended: true }
    }

    fn pieces(bytes: &[u8], cuts: &[usize]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let parts: Vec<&[u8]> = cuts.windows(2).map(|two| &bytes[two[0]..two[1]]).collect();
        parts.chunks(2).map(|two| (two[0].to_vec(), two.get(1).map(|part| part.to_vec()).unwrap_or_default())).collect()
    }

    #[test]
    fn a_length_ends_with_its_last_byte_and_chunks_with_their_trailers() {
        assert_eq!(read(Framing::Length(5), &pieces(b"hello", &[2]), 65_535).unwrap(), whole(b"hello"));
        let chunks = b"5\r\nhello\r\n1\r\n!\r\n0\r\nx-a: 1\r\nx-b: two words \r\n\r\n";
        let read = read(Framing::Chunked, &pieces(chunks, &[]), 65_535).unwrap();
        assert_eq!((read.content.as_slice(), read.has_ended), (&b"hello!"[..], true));
        let trailers = read.trailers.unwrap();
        assert_eq!(
            (&trailers["x-a"], &trailers["x-b"], trailers.len()),
            (&"1".parse().unwrap(), &"two words".parse().unwrap(), 2)
        );
    }

    #[test]
    fn what_is_not_complete_is_reset() {
        for (framing, bytes) in [
            (Framing::Length(6), &b"hello"[..]),
            (Framing::Chunked, b"5\r\nhello\r\n"),
            (Framing::Chunked, b"5\r\nhello\r\n0\r\nx-a: 1\r\n"),
        ] {
            assert!(!read(framing, &pieces(bytes, &[]), 65_535).unwrap().has_ended, "{bytes:?}");
        }
    }

    #[test]
    fn what_is_no_body_is_an_error() {
        let mut body = body_of(Framing::Chunked);
        assert_eq!(BodyPiece::read(&mut body, b"zz\r\n", b"").unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn however_it_is_cut_and_whatever_the_window_the_content_is_the_same(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 0..8),
            cuts in proptest::collection::vec(any::<usize>(), 0..12),
            window in 1_u32..2000,
            has_trailers: bool,
        ) {
            let content = chunks.concat();
            let length = Framing::Length(content.len() as u64);
            if !content.is_empty() {
                prop_assert_eq!(read(length, &pieces(&content, &cuts), window).unwrap(), whole(&content));
            }
            let mut bytes: Vec<u8> = chunks
                .iter()
                .flat_map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat())
                .collect();
            bytes.extend_from_slice(if has_trailers { b"0\r\nx-sum: abc\r\n\r\n" } else { b"0\r\n\r\n" });
            let read = read(Framing::Chunked, &pieces(&bytes, &cuts), window).unwrap();
            prop_assert_eq!(read.content, content);
            prop_assert!(read.has_ended);
            prop_assert_eq!(read.trailers.is_some_and(|trailers| trailers["x-sum"] == "abc"), has_trailers);
        }
    }
}
