//! The socket that admin listens on.

use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;

use tokio::net;

use crate::unix_socket::{self, SocketAccess, SocketFile};

/// The mode of a Unix socket: its owner alone may open it.
const MODE: u32 = 0o600;

/// A socket that is bound.
#[derive(Debug)]
pub enum Socket {
    /// On an IP address.
    Tcp(TcpListener),
    /// In the file system.
    Unix(UnixListener),
}

pub(super) enum Listener {
    Tcp(net::TcpListener),
    Unix(net::UnixListener),
}

/// A connection that was accepted.
pub(super) enum AdminStream {
    Tcp(net::TcpStream),
    Unix(net::UnixStream),
}

impl Socket {
    /// Listens on a Unix socket, see [`unix_socket::bind`].
    pub fn bind_unix(path: &Path, replaces: bool) -> io::Result<(Self, SocketFile)> {
        let (listener, file) = unix_socket::bind(path, SocketAccess { mode: MODE, group: None }, replaces)?;
        Ok((Self::Unix(listener), file))
    }

    /// Whether web pages in a browser of this machine reach it.
    pub(super) fn is_loopback(&self) -> bool {
        match self {
            Self::Tcp(listener) => listener.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback()),
            Self::Unix(_) => false,
        }
    }

    pub(super) fn listen(self) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                Listener::Tcp(net::TcpListener::from_std(listener)?)
            }
            Self::Unix(listener) => {
                listener.set_nonblocking(true)?;
                Listener::Unix(net::UnixListener::from_std(listener)?)
            }
        })
    }
}

impl Listener {
    /// The next connection, and the address of its other end if it has one.
    pub(super) async fn accept(&self) -> io::Result<(AdminStream, Option<IpAddr>)> {
        match self {
            Self::Tcp(listener) => {
                listener.accept().await.map(|(stream, peer)| (AdminStream::Tcp(stream), Some(peer.ip())))
            }
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| (AdminStream::Unix(stream), None)),
        }
    }
}
