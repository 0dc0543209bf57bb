//! The admin interface: its socket, its thread, and its callers.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tokio::runtime::Runtime;

use super::component::Component;
use super::error::BuildError;
use super::handover::Given;
use super::objects::listener::AdminTls;
use crate::admin::{self, AdminAccess, Commands, Socket};
use crate::config::{ListenAddress, Model};
use crate::telemetry::Registry;
use crate::time::Clock;
use crate::tls::Tickets;
use crate::unix_socket::SocketFile;

/// The admin interface, if the model has one.
pub(super) struct AdminInterface {
    server: Option<AdminServer>,
    tls: AdminTls,
    door: Door,
    commands: Arc<dyn Commands>,
    registry: Arc<Registry>,
    clock: Clock,
}

/// Its callers, as its threads ask for them.
pub(super) type Door = Arc<Mutex<Arc<AdminAccess>>>;

/// The admin interface that runs.
pub(super) struct AdminServer {
    pub(super) configured: ListenAddress,
    pub(super) bound: ListenAddress,
    /// A copy, for a process that takes over; it needs none of a Unix socket, and takes its name.
    pub(super) socket: Option<TcpListener>,
    _file: Option<SocketFile>,
    /// Dropping it ends the server.
    _alive: tokio::sync::watch::Sender<bool>,
}

/// The admin interface of a new generation.
pub(super) struct NewAdmin {
    server: NewServer,
    tls: AdminTls,
    access: Arc<AdminAccess>,
}

enum NewServer {
    Off,
    Kept,
    Bound(Box<ReadyServer>),
}

/// A door that lets no caller in.
pub(super) fn closed_door() -> Door {
    Arc::new(Mutex::new(AdminAccess::closed()))
}

impl AdminInterface {
    /// It does not run yet. `commands` are carried out for callers that the `door` lets in.
    pub(super) fn new(commands: Arc<dyn Commands>, door: &Door, registry: &Arc<Registry>, clock: &Clock) -> Self {
        let (registry, clock) = (Arc::clone(registry), clock.clone());
        Self { server: None, tls: AdminTls::default(), door: Arc::clone(door), commands, registry, clock }
    }

    /// That which runs.
    pub(super) fn server(&self) -> Option<&AdminServer> {
        self.server.as_ref()
    }

    /// Ends it.
    pub(super) fn end(&mut self) {
        self.server = None;
    }

    /// Starts a server; dropping it ends it.
    fn start(&self, ready: ReadyServer) -> Result<AdminServer, BuildError> {
        let ReadyServer { configured, bound, socket, copy, file, takes_name, runtime } = ready;
        if let Some(file) = file.as_ref().filter(|_| takes_name) {
            let of = |source| BuildError::UnixSocket { section: "[admin]", address: configured.clone(), source };
            file.publish().map_err(of)?;
        }
        let (alive, told) = tokio::sync::watch::channel(false);
        let (registry, clock, commands) = (Arc::clone(&self.registry), self.clock.clone(), Arc::clone(&self.commands));
        thread::Builder::new()
            .name("admin".into())
            .spawn(move || runtime.block_on(admin::serve(socket, registry, commands, clock, told)))
            .map_err(BuildError::Thread)?;
        Ok(AdminServer { configured, bound, socket: copy, _file: file, _alive: alive })
    }
}

impl Component for AdminInterface {
    /// The keys of session tickets, sockets that another process has given, and whether it is to be replaced by this one.
    type Needs<'n> = (&'n Tickets, &'n mut Given, bool);
    type Staged = NewAdmin;

    fn stage(&self, model: &Arc<Model>, needs: Self::Needs<'_>) -> Result<NewAdmin, BuildError> {
        let (tickets, given, takes_over) = needs;
        let tls = self.tls.renewed(model, tickets)?;
        let access = match &model.admin {
            Some(section) => AdminAccess::new(section, tls.get()),
            // Without the section there is no socket.
            None => AdminAccess::closed(),
        };
        let open = self.server.as_ref().map(|server| &server.configured);
        let server = match (&model.admin, bind(model, open, given, takes_over)?) {
            (None, _) => NewServer::Off,
            (Some(_), None) => NewServer::Kept,
            (Some(_), Some(ready)) => NewServer::Bound(Box::new(ready)),
        };
        Ok(NewAdmin { server, tls, access })
    }

    /// Streams of callers go on as long as the door is the same.
    fn commit(&mut self, staged: NewAdmin) {
        let NewAdmin { server, tls, access } = staged;
        let mut door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        if !door.is_like(&access) {
            *door = access;
        }
        drop(door);
        self.tls = tls;
        match server {
            NewServer::Kept => {}
            NewServer::Off => self.server = None,
            NewServer::Bound(ready) => match self.start(*ready) {
                Ok(server) => self.server = Some(server),
                Err(error) => tracing::error!("admin does not run by the new [admin]: {error}"),
            },
        }
    }
}

/// A server that is bound, and does not run yet.
struct ReadyServer {
    configured: ListenAddress,
    bound: ListenAddress,
    socket: Socket,
    copy: Option<TcpListener>,
    file: Option<SocketFile>,
    /// Whether the name of `file` is another process's until this one serves.
    takes_name: bool,
    runtime: Runtime,
}

/// Binds the admin interface, unless it is that which is `open`. A process that takes over has the name of a Unix socket from
/// then on.
fn bind(
    model: &Model,
    open: Option<&ListenAddress>,
    given: &mut Given,
    takes_over: bool,
) -> Result<Option<ReadyServer>, BuildError> {
    let Some(admin) = model.admin.as_ref().filter(|admin| open != Some(&admin.address)) else { return Ok(None) };
    let configured = admin.address.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(BuildError::Thread)?;
    match &configured {
        ListenAddress::Tcp(address) => {
            let failed = |source| BuildError::Listen { address: *address, section: "[admin]", source };
            let own = given.take_admin(*address);
            let listener = own.map_or_else(|| TcpListener::bind(address), Ok).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            let bound = ListenAddress::Tcp(listener.local_addr().map_err(failed)?);
            let copy = Some(listener.try_clone().map_err(failed)?);
            let socket = Socket::Tcp(listener);
            Ok(Some(ReadyServer { configured, bound, socket, copy, file: None, takes_name: false, runtime }))
        }
        ListenAddress::Unix(path) => {
            let failed = |source| BuildError::UnixSocket { section: "[admin]", address: configured.clone(), source };
            let (socket, file) = Socket::bind_unix(path, takes_over).map_err(failed)?;
            if !takes_over {
                file.publish().map_err(failed)?;
            }
            let (bound, file) = (configured.clone(), Some(file));
            Ok(Some(ReadyServer { configured, bound, socket, copy: None, file, takes_name: takes_over, runtime }))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::sync::Weak;

    use super::*;
    use crate::gateway::control::AdminCommands;
    use crate::gateway::testing::model;

    fn interface(door: &Door) -> AdminInterface {
        AdminInterface::new(Arc::new(AdminCommands(Weak::new())), door, &Registry::new(), &Clock::system())
    }

    fn with(admin: &str) -> Arc<Model> {
        model(&format!("[[listener]]\naddress = \"127.0.0.1:1\"\n{admin}\n[[route]]\nname = \"all\"\nrespond = {{}}\n"))
    }

    fn stage(interface: &AdminInterface, model: &Arc<Model>) -> Result<NewAdmin, BuildError> {
        interface.stage(model, (&Tickets::new(), &mut Given::default(), false))
    }

    fn bound(interface: &AdminInterface) -> std::net::SocketAddr {
        interface.server().unwrap().bound.tcp().unwrap()
    }

    fn door_of(door: &Door) -> Arc<AdminAccess> {
        Arc::clone(&door.lock().unwrap())
    }

    #[test]
    fn it_listens_from_the_commit_on_until_the_section_is_gone() {
        let door = closed_door();
        let mut interface = interface(&door);
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let section = format!("[admin]\naddress = \"{free}\"\n");
        drop(stage(&interface, &with(&section)).unwrap());
        assert!(TcpStream::connect(free).is_err(), "it was dropped");

        let closed = door_of(&door);
        let staged = stage(&interface, &with(&section)).unwrap();
        assert!(Arc::ptr_eq(&door_of(&door), &closed), "the door is opened by the commit");
        interface.commit(staged);
        assert!(TcpStream::connect(bound(&interface)).is_ok());

        let open = door_of(&door);
        let staged = stage(&interface, &with(&section)).unwrap();
        interface.commit(staged);
        assert!(Arc::ptr_eq(&door_of(&door), &open), "streams of callers go on");
        assert_eq!(bound(&interface), free);
        let staged = stage(&interface, &with("")).unwrap();
        interface.commit(staged);
        assert!(interface.server().is_none() && !Arc::ptr_eq(&door_of(&door), &open));
    }

    #[test]
    fn an_address_that_is_taken_refuses_and_what_runs_goes_on() {
        let mut interface = interface(&closed_door());
        let staged = stage(&interface, &with("[admin]\naddress = \"127.0.0.1:0\"\n")).unwrap();
        interface.commit(staged);
        let before = bound(&interface);
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = format!("[admin]\naddress = \"{}\"\n", other.local_addr().unwrap());
        assert!(stage(&interface, &with(&taken)).is_err());
        assert_eq!(bound(&interface), before);
    }

    #[test]
    fn a_unix_socket_has_its_name_unless_the_stage_is_dropped_and_takes_another_processes_by_the_commit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let section = format!("[admin]\naddress = \"unix:{}\"\n", path.display());
        let mut interface = interface(&closed_door());
        let staged = stage(&interface, &with(&section)).unwrap();
        assert!(path.exists());
        drop(staged);
        assert!(!path.exists());
        let staged = interface.stage(&with(&section), (&Tickets::new(), &mut Given::default(), true)).unwrap();
        assert!(!path.exists());
        interface.commit(staged);
        assert!(path.exists());
        let staged = stage(&interface, &with("")).unwrap();
        interface.commit(staged);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_cannot_have_its_name_refuses_and_what_runs_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let mut interface = interface(&closed_door());
        let staged = stage(&interface, &with("[admin]\naddress = \"127.0.0.1:0\"\n")).unwrap();
        interface.commit(staged);
        let before = bound(&interface);
        let path = directory.path().join("admin.sock");
        let section = with(&format!("[admin]\naddress = \"unix:{}\"\n", path.display()));
        let takes_over = interface.stage(&section, (&Tickets::new(), &mut Given::default(), true)).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(stage(&interface, &section).is_err());
        interface.commit(takes_over);
        assert_eq!(bound(&interface), before, "it is only in the log");
    }
}
