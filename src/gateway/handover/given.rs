//! Listening sockets that another process has opened: the one before, or systemd.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

/// Sockets, by what the configuration calls their addresses.
#[derive(Debug, Default)]
pub struct Given {
    listeners: HashMap<SocketAddr, Vec<TcpListener>>,
    admin: Option<(SocketAddr, TcpListener)>,
    /// Unix sockets of listeners, by their paths.
    unix: HashMap<PathBuf, TcpListener>,
}

impl Given {
    /// One more of an address.
    pub fn add(&mut self, address: SocketAddr, socket: TcpListener) {
        self.listeners.entry(address).or_default().push(socket);
    }

    /// The one of admin, which may have the address of a listener where the kernel chooses the port.
    pub fn add_admin(&mut self, address: SocketAddr, socket: TcpListener) {
        self.admin = Some((address, socket));
    }

    /// The Unix socket of a listener, which is bound to this path.
    pub fn add_unix(&mut self, path: PathBuf, socket: TcpListener) {
        self.unix.insert(path, socket);
    }

    /// The Unix socket of a listener.
    pub fn take_unix(&mut self, path: &Path) -> Option<TcpListener> {
        self.unix.remove(path)
    }

    /// Those of an address, for so many workers: each has one at least, which it may share with others, and all are used, or
    /// the connections that wait in one of them would wait for ever. `None`: there is none.
    pub fn take(&mut self, address: SocketAddr, workers: usize) -> Option<io::Result<Vec<Vec<TcpListener>>>> {
        Some(share_out(self.listeners.remove(&address)?, workers))
    }

    /// The one of admin, if it is of this address.
    pub fn take_admin(&mut self, address: SocketAddr) -> Option<TcpListener> {
        match self.admin.take() {
            Some((of, socket)) if of == address => Some(socket),
            other => {
                self.admin = other;
                self.listeners.remove(&address)?.pop()
            }
        }
    }

    /// The addresses of those that nobody took.
    pub fn left(&self) -> impl Iterator<Item = SocketAddr> {
        self.listeners.keys().copied()
    }
}

/// Sockets for so many workers: each has one at least, and all are used.
pub fn share_out(sockets: Vec<TcpListener>, workers: usize) -> io::Result<Vec<Vec<TcpListener>>> {
    let mut shared: Vec<Vec<TcpListener>> = (0..workers.max(1)).map(|_| Vec::new()).collect();
    let count = sockets.len();
    for worker in count..shared.len() {
        shared[worker].push(sockets[worker % count].try_clone()?);
    }
    for (index, socket) in sockets.into_iter().enumerate() {
        socket.set_nonblocking(true)?;
        let worker = index % shared.len();
        shared[worker].push(socket);
    }
    Ok(shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_socket_is_used_and_every_worker_has_one() {
        let address = "127.0.0.1:80".parse().unwrap();
        for (sockets, workers, expected) in
            [(1, 1, vec![1]), (1, 3, vec![1, 1, 1]), (2, 3, vec![1, 1, 1]), (5, 2, vec![3, 2]), (2, 2, vec![1, 1])]
        {
            let mut given = Given::default();
            let mut ports = Vec::new();
            for _ in 0..sockets {
                let socket = TcpListener::bind("127.0.0.1:0").unwrap();
                ports.push(socket.local_addr().unwrap());
                given.add(address, socket);
            }
            let shared = given.take(address, workers).unwrap().unwrap();
            assert_eq!(shared.iter().map(Vec::len).collect::<Vec<_>>(), expected);
            let used: Vec<_> = shared.iter().flatten().map(|socket| socket.local_addr().unwrap()).collect();
            assert!(ports.iter().all(|port| used.contains(port)));
            assert!(given.take(address, workers).is_none() && given.left().next().is_none());
        }
    }
}
