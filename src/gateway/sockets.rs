//! Sockets that listen, of the listeners of the model.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use tokio::sync::mpsc;

use super::component::Component;
use super::error::BuildError;
use super::handover::Given;
use super::worker::{WorkerCommand, tell};
use crate::config::Model;
use crate::proxy;

/// The sockets of a listener, worker by worker.
type BoundSockets = (SocketAddr, Vec<Vec<TcpListener>>);

/// The listeners that are open. Workers have the sockets.
pub(super) struct Sockets {
    /// By its address in the model, the one that was bound.
    open: HashMap<SocketAddr, SocketAddr>,
    workers: Vec<mpsc::Sender<WorkerCommand>>,
}

/// The sockets of a new generation.
pub(super) struct NewSockets {
    bound: Vec<BoundSockets>,
    gone: Vec<SocketAddr>,
}

impl Sockets {
    /// None is open yet. Workers are told of them by their inboxes.
    pub(super) fn new(workers: Vec<mpsc::Sender<WorkerCommand>>) -> Self {
        Self { open: HashMap::new(), workers }
    }

    /// Where a listener of the model listens.
    pub(super) fn address(&self, configured: &SocketAddr) -> Option<SocketAddr> {
        self.open.get(configured).copied()
    }

    /// The listeners by their addresses in the model, and where each of them listens.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&SocketAddr, &SocketAddr)> {
        self.open.iter()
    }

    /// Accepts nothing, until it [resumes](Self::resume). Connections that there are finish what they do and close.
    pub(super) fn pause(&self) {
        for address in self.open.keys() {
            self.stop(*address);
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
                Some(Ok(shared)) => self.listen(address, shared),
                Some(Err(error)) => tracing::error!(%address, %error, "a listening socket cannot be used"),
                None => {}
            }
        }
    }

    fn listen(&self, address: SocketAddr, sockets: Vec<Vec<TcpListener>>) {
        for (worker, sockets) in self.workers.iter().zip(sockets) {
            tell(worker, WorkerCommand::Listen(address, sockets));
        }
    }

    fn stop(&self, address: SocketAddr) {
        for worker in &self.workers {
            tell(worker, WorkerCommand::Unlisten(address));
        }
    }
}

impl Component for Sockets {
    /// Sockets that another process has given: they are not bound again.
    type Needs<'n> = &'n mut Given;
    type Staged = NewSockets;

    /// Binds the listeners that are not open yet, a socket for each worker.
    fn stage(&self, model: &Arc<Model>, given: &mut Given) -> Result<NewSockets, BuildError> {
        let workers = self.workers.len();
        let new = model.listeners.iter().filter(|listener| !self.open.contains_key(&listener.address));
        let bound = new.map(|listener| {
            let address = listener.address;
            let sockets = match given.take(address, workers) {
                Some(given) => given,
                None => proxy::bind(address, workers).map(|own| own.into_iter().map(|socket| vec![socket]).collect()),
            };
            Ok((address, sockets.map_err(|source| listen_error(address, source, &self.open))?))
        });
        let is_wanted = |address: &SocketAddr| model.listeners.iter().any(|listener| listener.address == *address);
        let gone = self.open.keys().copied().filter(|address| !is_wanted(address)).collect();
        Ok(NewSockets { bound: bound.collect::<Result<_, _>>()?, gone })
    }

    /// Must not be called from a runtime's thread.
    fn commit(&mut self, staged: NewSockets) {
        for address in staged.gone {
            self.open.remove(&address);
            self.stop(address);
        }
        for (configured, sockets) in staged.bound {
            let first = sockets.iter().flatten().next();
            let address = first.and_then(|first| first.local_addr().ok()).unwrap_or(configured);
            self.open.insert(configured, address);
            self.listen(configured, sockets);
        }
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

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;
    use crate::gateway::testing::model;

    fn commands(inbox: &mut mpsc::Receiver<WorkerCommand>) -> Vec<String> {
        let mut all = Vec::new();
        while let Ok(command) = inbox.try_recv() {
            all.push(match command {
                WorkerCommand::Listen(address, sockets) => format!("listen {address} on {}", sockets.len()),
                WorkerCommand::Unlisten(address) => format!("unlisten {address}"),
                other => format!("{other:?}"),
            });
        }
        all
    }

    fn listeners(addresses: &[&str]) -> Arc<Model> {
        let listeners: Vec<_> =
            addresses.iter().map(|address| format!("[[listener]]\naddress = \"{address}\"\n")).collect();
        let listeners = listeners.concat();
        model(&format!("{listeners}[[route]]\nname = \"all\"\nrespond = {{}}\n"))
    }

    #[test]
    fn a_listener_that_goes_is_closed_and_one_that_stays_is_left_alone() {
        let (inbox, mut commanded) = mpsc::channel(9);
        let mut sockets = Sockets::new(vec![inbox]);
        let staged = sockets.stage(&listeners(&["127.0.0.1:0"]), &mut Given::default()).unwrap();
        assert!(commands(&mut commanded).is_empty(), "nothing is told before");
        sockets.commit(staged);
        let configured = "127.0.0.1:0".parse().unwrap();
        assert_eq!(commands(&mut commanded), ["listen 127.0.0.1:0 on 1"]);
        assert_ne!(sockets.address(&configured).unwrap().port(), 0);

        let both = listeners(&["127.0.0.1:0", "[::1]:0"]);
        drop(sockets.stage(&both, &mut Given::default()).unwrap());
        assert!(commands(&mut commanded).is_empty() && sockets.iter().count() == 1, "it was dropped");
        let staged = sockets.stage(&both, &mut Given::default()).unwrap();
        sockets.commit(staged);
        assert_eq!(commands(&mut commanded), ["listen [::1]:0 on 1"]);
        let staged = sockets.stage(&listeners(&["[::1]:0"]), &mut Given::default()).unwrap();
        sockets.commit(staged);
        assert_eq!(commands(&mut commanded), ["unlisten 127.0.0.1:0"]);
        assert!(sockets.address(&configured).is_none());
    }

    #[test]
    fn a_port_that_is_taken_refuses_and_what_was_bound_beside_it_is_let_go() {
        let sockets = Sockets::new(Vec::from([mpsc::channel(1).0]));
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = other.local_addr().unwrap().to_string();
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let model = listeners(&[&free.to_string(), &taken]);
        let refused = sockets.stage(&model, &mut Given::default()).err().unwrap().to_string();
        assert!(refused.contains(&taken), "{refused}");
        assert!(TcpStream::connect(free).is_err(), "nothing listens there");
    }
}
