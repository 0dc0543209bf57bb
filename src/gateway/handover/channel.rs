//! Sockets through a socket: `SCM_RIGHTS` of unix(7).

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use super::MAX_HELLO;

/// So many go with one byte; the kernel takes 253 at most.
const AT_ONCE: usize = 64;
/// A gateway has a socket for each worker and listener.
const MOST: u64 = 65_536;

/// Sends sockets, then bytes.
pub fn send(stream: &mut UnixStream, sockets: &[BorrowedFd<'_>], bytes: &[u8]) -> io::Result<()> {
    stream.write_all(&(sockets.len() as u64).to_le_bytes())?;
    for some in sockets.chunks(AT_ONCE) {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(some));
        sendmsg(stream.as_fd(), &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    }
    stream.write_all(&(bytes.len() as u64).to_le_bytes())?;
    stream.write_all(bytes)
}

/// Receives what [`send`] sends.
pub fn receive(stream: &mut UnixStream) -> io::Result<(Vec<OwnedFd>, Vec<u8>)> {
    let count = read_number(stream, MOST)?;
    let mut sockets = Vec::new();
    while (sockets.len() as u64) < count {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let received =
            recvmsg(stream.as_fd(), &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let before = sockets.len();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                sockets.extend(some);
            }
        }
        if received.bytes == 0 || sockets.len() == before {
            return Err(io::Error::other("sockets are missing: is there a limit on open files?"));
        }
    }
    let mut bytes = vec![0; read_number(stream, MAX_HELLO)? as usize];
    stream.read_exact(&mut bytes)?;
    Ok((sockets, bytes))
}

fn read_number(stream: &mut UnixStream, most: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    let number = u64::from_le_bytes(bytes);
    if number > most {
        return Err(io::Error::other("no gateway speaks so"));
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn sockets_arrive_in_their_order_and_the_bytes_behind_them() {
        for count in [0, 1, 64, 65, 200] {
            let (mut one, mut other) = UnixStream::pair().unwrap();
            let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
            let borrowed: Vec<_> = listeners.iter().map(AsFd::as_fd).collect();
            send(&mut one, &borrowed, b"and this").unwrap();
            let (sockets, bytes) = receive(&mut other).unwrap();
            let ports = |listener: &TcpListener| listener.local_addr().unwrap().port();
            let received: Vec<_> = sockets.into_iter().map(|socket| ports(&socket.into())).collect();
            assert_eq!(received, listeners.iter().map(ports).collect::<Vec<_>>());
            assert_eq!(bytes, b"and this");
        }
    }

    #[test]
    fn other_words_are_an_error() {
        for words in
            [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[1, 0, 0, 0, 0, 0, 0, 0, 0], &[0, 0, 0, 0, 0, 0, 0, 0, 255, 255]]
        {
            let (mut one, mut other) = UnixStream::pair().unwrap();
            one.write_all(words).unwrap();
            drop(one);
            assert!(receive(&mut other).is_err(), "{words:?}");
        }
    }
}
