//! Sockets that listen, for what a configuration names and is not open yet.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};

use super::super::error::BuildError;
use super::super::worker::{Command, WorkerThread};
use super::State;
use crate::config::Model;
use crate::gateway::handover::Given;
use crate::proxy;
use crate::time::Clock;

/// The sockets of a listener, worker by worker.
pub(super) type Bound = (SocketAddr, Vec<Vec<TcpListener>>);

/// Binds the listeners that are not open yet, a socket for each worker, but for those whose sockets are `given`.
pub(super) fn bind_all(
    model: &Model,
    open: &HashMap<SocketAddr, SocketAddr>,
    workers: usize,
    given: &mut Given,
) -> Result<Vec<Bound>, BuildError> {
    let new = model.listeners.iter().filter(|listener| !open.contains_key(&listener.address));
    new.map(|listener| {
        let address = listener.address;
        let sockets = match given.take(address, workers) {
            Some(given) => given,
            None => proxy::bind(address, workers).map(|own| own.into_iter().map(|socket| vec![socket]).collect()),
        };
        Ok((address, sockets.map_err(|source| listen_error(address, source, open))?))
    })
    .collect()
}

impl State {
    /// Has what was deferred sent by the workers.
    pub(super) fn send_deferred(&self, clock: &Clock) {
        if let Some(deferring) = &self.deferring {
            deferring.send(self.workers.iter().map(WorkerThread::inbox).collect(), &self.feed, clock);
        }
    }

    /// Accepts nothing, until it [resumes](Self::resume). Connections that there are finish what they do and close.
    pub(super) fn pause(&self) {
        for worker in &self.workers {
            for address in self.listening.keys() {
                worker.tell(Command::Unlisten(*address));
            }
        }
    }

    /// Accepts again, on copies of the sockets.
    pub(super) fn resume(&self, copies: Vec<(SocketAddr, Vec<TcpListener>)>) {
        for (address, sockets) in copies {
            let mut given = Given::default();
            for socket in sockets {
                given.add(address, socket);
            }
            match given.take(address, self.workers.len()) {
                Some(Ok(shared)) => {
                    for (worker, sockets) in self.workers.iter().zip(shared) {
                        worker.tell(Command::Listen(address, sockets));
                    }
                }
                Some(Err(error)) => tracing::error!(%address, %error, "a listening socket cannot be used"),
                None => {}
            }
        }
    }

    pub(super) fn listen(&mut self, bound: Vec<Bound>) {
        for (configured, sockets) in bound {
            let address =
                sockets.iter().flatten().next().and_then(|first| first.local_addr().ok()).unwrap_or(configured);
            self.listening.insert(configured, address);
            for (worker, sockets) in self.workers.iter().zip(sockets) {
                worker.tell(Command::Listen(configured, sockets));
            }
        }
    }

    pub(super) fn stop_listening(&mut self, model: &Model) {
        let wanted = |address: &SocketAddr| model.listeners.iter().any(|listener| listener.address == *address);
        self.listening.retain(|address, _| {
            let stays = wanted(address);
            if !stays {
                for worker in &self.workers {
                    worker.tell(Command::Unlisten(*address));
                }
            }
            stays
        });
    }
}

/// Says so if it is this gateway itself that holds the port.
fn listen_error(address: SocketAddr, source: io::Error, open: &HashMap<SocketAddr, SocketAddr>) -> BuildError {
    let own = open.values().find(|own| own.port() == address.port() && source.kind() == io::ErrorKind::AddrInUse);
    match own {
        Some(own) => BuildError::OwnPort { address, own: *own },
        None => BuildError::Listen { address, section: "[[listener]]", source },
    }
}
