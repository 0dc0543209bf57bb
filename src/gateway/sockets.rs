//! Sockets that listen, of the listeners of the model.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::mpsc;

use super::component::Component;
use super::error::BuildError;
use super::handover::{Given, share_out};
use super::worker::{WorkerCommand, tell};
use crate::config::{ListenAddress, ListenerSpec, Model};
use crate::proxy;
use crate::unix_socket::{self, SocketAccess, SocketFile};

/// The sockets of a listener, worker by worker.
type BoundSockets = (ListenAddress, Vec<Vec<TcpListener>>);

/// The listeners that are open. Workers have the sockets.
pub(super) struct Sockets {
    /// By its address in the model, the one that was bound.
    open: HashMap<ListenAddress, ListenAddress>,
    /// The files of Unix sockets.
    files: HashMap<ListenAddress, SocketFile>,
    workers: Vec<mpsc::Sender<WorkerCommand>>,
}

/// The sockets of a new generation.
pub(super) struct NewSockets {
    bound: Vec<BoundSockets>,
    /// The files of those that are Unix sockets.
    files: Vec<(ListenAddress, UnixFile)>,
    /// The groups of all Unix sockets: one that was bound before may have another one.
    groups: HashMap<ListenAddress, u32>,
    gone: Vec<ListenAddress>,
}

impl Sockets {
    /// None is open yet. Workers are told of them by their inboxes.
    pub(super) fn new(workers: Vec<mpsc::Sender<WorkerCommand>>) -> Self {
        Self { open: HashMap::new(), files: HashMap::new(), workers }
    }

    /// Where a listener of the model listens.
    pub(super) fn address(&self, configured: &ListenAddress) -> Option<ListenAddress> {
        self.open.get(configured).cloned()
    }

    /// The listeners by their addresses in the model, and where each of them listens.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ListenAddress, &ListenAddress)> {
        self.open.iter()
    }

    /// Accepts nothing, until it [resumes](Self::resume). Connections that there are finish what they do and close.
    pub(super) fn pause(&self) {
        for address in self.open.keys() {
            self.stop(address);
        }
    }

    /// Leaves the files of Unix sockets to the process that takes over.
    pub(super) fn leave_files(&mut self) {
        self.files.drain().for_each(|(_, file)| file.leave());
    }

    /// Accepts again, on copies of the sockets.
    pub(super) fn resume(&self, copies: Vec<(ListenAddress, Vec<TcpListener>)>) {
        for (address, sockets) in copies {
            match share_out(sockets, self.workers.len()) {
                Ok(shared) => self.listen(&address, shared),
                Err(error) => tracing::error!(%address, %error, "a listening socket cannot be used"),
            }
        }
    }

    fn listen(&self, address: &ListenAddress, sockets: Vec<Vec<TcpListener>>) {
        for (worker, sockets) in self.workers.iter().zip(sockets) {
            tell(worker, WorkerCommand::Listen(address.clone(), sockets));
        }
    }

    fn stop(&self, address: &ListenAddress) {
        for worker in &self.workers {
            tell(worker, WorkerCommand::Unlisten(address.clone()));
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
        let (mut bound, mut files) = (Vec::new(), Vec::new());
        let unix = model.listeners.iter().filter(|listener| listener.address.tcp().is_none());
        let groups: HashMap<_, _> = unix.map(|listener| group_of(listener)).collect::<Result<_, _>>()?;
        for listener in model.listeners.iter().filter(|listener| !self.open.contains_key(&listener.address)) {
            let sockets = match &listener.address {
                ListenAddress::Tcp(address) => {
                    let sockets = match given.take(*address, workers) {
                        Some(given) => given,
                        None => proxy::bind(*address, workers)
                            .map(|own| own.into_iter().map(|socket| vec![socket]).collect()),
                    };
                    sockets.map_err(|source| listen_error(*address, source, &self.open))?
                }
                ListenAddress::Unix(path) => {
                    let address = listener.address.clone();
                    let failed = |source| BuildError::UnixSocket { section: "[[listener]]", address, source };
                    let (sockets, file) =
                        bind_unix(path, groups.get(&listener.address).copied(), given, workers).map_err(failed)?;
                    files.push((listener.address.clone(), file));
                    sockets
                }
            };
            bound.push((listener.address.clone(), sockets));
        }
        let is_wanted = |address: &ListenAddress| model.listeners.iter().any(|listener| listener.address == *address);
        let gone = self.open.keys().filter(|address| !is_wanted(address)).cloned().collect();
        Ok(NewSockets { bound, files, groups, gone })
    }

    /// Must not be called from a runtime's thread.
    fn commit(&mut self, staged: NewSockets) {
        for address in staged.gone {
            self.open.remove(&address);
            self.stop(&address);
            self.files.remove(&address);
        }
        for (configured, sockets) in staged.bound {
            let first = sockets.iter().flatten().next();
            let bound = first.filter(|_| configured.tcp().is_some()).and_then(|first| first.local_addr().ok());
            self.open.insert(configured.clone(), bound.map_or_else(|| configured.clone(), ListenAddress::Tcp));
            self.listen(&configured, sockets);
        }
        for (address, file) in staged.files {
            match file {
                UnixFile::Own(file) => drop(self.files.insert(address, file)),
                UnixFile::Given(path) => match SocketFile::adopt(&path) {
                    Ok(file) => drop(self.files.insert(address, file)),
                    Err(error) => tracing::warn!(%address, %error, "the Unix socket of a listener has lost its file"),
                },
            }
        }
        for (address, group) in staged.groups {
            if let Some(file) = self.files.get(&address)
                && let Err(error) = file.give(group)
            {
                tracing::error!(%address, %error, "the Unix socket of a listener does not have its group");
            }
        }
    }
}

/// The group of the Unix socket of a listener: this process's, if it names none.
fn group_of(listener: &ListenerSpec) -> Result<(ListenAddress, u32), BuildError> {
    let address = listener.address.clone();
    match listener.socket_group.as_deref().map(unix_socket::group_of) {
        None => Ok((address, rustix::process::getegid().as_raw())),
        Some(Ok(group)) => Ok((address, group)),
        Some(Err(source)) => Err(BuildError::UnixSocket { section: "[[listener]]", address, source }),
    }
}

/// The mode of the Unix socket of a listener: its owner and its group may ask.
const MODE: u32 = 0o660;

/// Binds a Unix socket, unless another process has given it. All workers accept from it, and carry it as one of TCP, see
/// `proxy::accept`.
fn bind_unix(
    path: &Path,
    group: Option<u32>,
    given: &mut Given,
    workers: usize,
) -> io::Result<(Vec<Vec<TcpListener>>, UnixFile)> {
    let (socket, file) = if let Some(socket) = given.take_unix(path) {
        (socket, UnixFile::Given(path.to_owned()))
    } else {
        let (socket, file) = unix_socket::bind(path, SocketAccess { mode: MODE, group }, false)?;
        file.publish()?;
        (TcpListener::from(OwnedFd::from(socket)), UnixFile::Own(file))
    };
    Ok((share_out(vec![socket], workers)?, file))
}

/// The file of a Unix socket that is bound.
enum UnixFile {
    /// By this process.
    Own(SocketFile),
    /// By another one, which leaves it to this one once this one serves.
    Given(PathBuf),
}

/// Says so if it is this gateway itself that holds the port.
fn listen_error(address: SocketAddr, source: io::Error, open: &HashMap<ListenAddress, ListenAddress>) -> BuildError {
    let mut bound = open.values().filter_map(ListenAddress::tcp);
    match bound.find(|own| own.port() == address.port() && source.kind() == io::ErrorKind::AddrInUse) {
        Some(own) => BuildError::OwnPort { address, own },
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
        let configured = ListenAddress::Tcp("127.0.0.1:0".parse().unwrap());
        assert_eq!(commands(&mut commanded), ["listen 127.0.0.1:0 on 1"]);
        assert_ne!(sockets.address(&configured).unwrap().tcp().unwrap().port(), 0);

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
