//! A connection over a socket, polled by hand.

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use tokio::net::TcpStream;

use super::*;
use sluicegate_http2::PREFACE;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Bytes of the body that one poll has taken in, poll after poll, when a client has sent `come` and then nothing.
fn bytes_of_each_turn(come: &[u8], total: usize) -> Vec<usize> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        // All of it is here before anything is read.
        SockRef::from(&server).set_recv_buffer_size(4 * come.len()).unwrap();
        client.write_all(come).unwrap();
        let mut all = vec![0; come.len()];
        while server.peek(&mut all).unwrap() < come.len() {
            std::thread::sleep(Duration::from_millis(1));
        }
        server.set_nonblocking(true).unwrap();
        let stream = Stream::Plain(TcpStream::from_std(server).unwrap());
        let limits = Limits { max_streams: 10, max_header_list: 65_536, is_of_many: false };
        let mut accepting = Accepting::new(stream, &[], limits, Tick::ZERO);
        let mut room = vec![0; 32 * 1024];
        let (mut served, mut turns, mut taken) = (None, Vec::new(), 0);
        while taken < total {
            let accepted = std::future::poll_fn(|cx| Poll::Ready(accepting.poll_accept(cx, &mut room))).await;
            match accepted {
                Poll::Ready(Some(incoming)) => served = Some(incoming.into_stream(Waker::noop().clone())),
                Poll::Ready(None) => panic!("the connection has ended: {:?}", accepting.ended()),
                // Others have their turn, and the runtime looks at its sockets.
                Poll::Pending => tokio::task::yield_now().await,
            }
            let mut turn = 0;
            let mut body = vec![0; 64 * 1024];
            while let Some(Poll::Ready(Ok(size @ 1..))) = served.as_mut().map(|stream| stream.poll_read(&mut body)) {
                turn += size;
            }
            taken += turn;
            turns.push(turn);
        }
        assert_eq!(taken, total);
        turns
    })
}

fn upload(length: usize) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let length = length.to_string();
    let fields =
        [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "h"), ("content-length", &length)];
    let block: Vec<u8> = fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect();
    [PREFACE, &frame(4, 0, 0, &[]), &frame(1, 4, 1, &block)].concat()
}

#[test]
fn a_turn_is_bounded_in_frames_however_small_they_are() {
    let count = 12_000;
    let come = [upload(count), frame(0, 0, 1, b"x").repeat(count)].concat();
    let turns = bytes_of_each_turn(&come, count);
    // As many as fit into one read of 32 KiB, before it is known how small they are, and of 1 KiB from then on.
    let (first, later) = turns.split_at(turns.iter().position(|turn| *turn > 0).unwrap() + 1);
    assert!(first.iter().all(|turn| *turn <= 32 * 1024 / 10), "{turns:?}");
    assert!(later.iter().all(|turn| *turn <= TURN_FRAMES + SMALL_READ / 10), "{turns:?}");
}

#[test]
fn a_turn_is_bounded_in_bytes() {
    let mut turn = TurnWork::default();
    turn.note(32 * 1024, Work { frames: 700, decoded: 58_000 * 4 });
    assert!(turn.is_over() && turn.is_dense);
    assert!(!turn.next().is_over());
    turn = TurnWork::default();
    turn.note(300, Work { frames: 20, decoded: 4_000 });
    assert!(!turn.is_over());
}
