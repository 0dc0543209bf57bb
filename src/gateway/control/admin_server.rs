//! The admin interface: its socket, its thread, and who may come in.

use std::net::TcpListener;
use std::sync::{Arc, PoisonError};
use std::thread;

use super::Control;
use super::admin_commands::AdminCommands;
use crate::admin::{self, AdminAccess, Socket, SocketFile};
use crate::config::{AdminAddress, Model};
use crate::gateway::error::BuildError;
use crate::gateway::handover::Given;
use crate::gateway::objects::listener::AdminTls;

/// The admin interface that runs.
pub(super) struct AdminServer {
    pub(super) configured: AdminAddress,
    pub(super) bound: AdminAddress,
    /// A copy, for a process that takes over; it needs none of a Unix socket, and takes its name.
    pub(super) socket: Option<TcpListener>,
    _file: Option<SocketFile>,
    /// Dropping it ends the server.
    _alive: tokio::sync::watch::Sender<bool>,
}

/// The door of admin; without the section nobody listens.
pub(super) fn door(model: &Model, tls: &AdminTls) -> Arc<AdminAccess> {
    model.admin.as_ref().map_or_else(AdminAccess::closed, |section| AdminAccess::new(section, tls.get()))
}

impl Control {
    /// Streams of callers go on as long as the door is the same.
    pub(super) fn renew_door(&self, model: &Model, tls: &AdminTls) {
        let new = door(model, tls);
        let mut door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        if !door.is_like(&new) {
            *door = new;
        }
    }
}

/// The admin interface, bound.
pub(super) struct BoundAdmin {
    pub(super) configured: AdminAddress,
    pub(super) socket: Socket,
    pub(super) file: Option<SocketFile>,
}

/// Binds the admin interface, unless it is that which is `open`. A process that takes over has the name of a Unix socket from
/// then on.
pub(super) fn bind_admin(
    model: &Model,
    open: Option<&AdminAddress>,
    given: &mut Given,
    takes_over: bool,
) -> Result<Option<BoundAdmin>, BuildError> {
    let Some(admin) = model.admin.as_ref().filter(|admin| open != Some(&admin.address)) else { return Ok(None) };
    let configured = admin.address.clone();
    match &configured {
        AdminAddress::Tcp(address) => {
            let failed = |source| BuildError::Listen { address: *address, section: "[admin]", source };
            let own = given.take_admin(*address);
            let listener = own.map_or_else(|| TcpListener::bind(address), Ok).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            Ok(Some(BoundAdmin { configured, socket: Socket::Tcp(listener), file: None }))
        }
        AdminAddress::Unix(path) => {
            let bound = Socket::bind_unix(path, takes_over);
            let (socket, file) =
                bound.map_err(|source| BuildError::AdminSocket { address: configured.clone(), source })?;
            Ok(Some(BoundAdmin { configured, socket, file: Some(file) }))
        }
    }
}

impl Control {
    /// Starts an admin server; dropping what is returned ends it.
    pub(super) fn start_admin(self: &Arc<Self>, bound: BoundAdmin) -> Result<AdminServer, BuildError> {
        let BoundAdmin { configured, socket, file } = bound;
        if let Some(file) = &file {
            let of = |source| BuildError::AdminSocket { address: configured.clone(), source };
            file.publish().map_err(of)?;
        }
        let (bound, copy) = match (&socket, &configured) {
            (Socket::Tcp(listener), _) => {
                let bound = listener.local_addr().map_err(BuildError::Thread)?;
                (AdminAddress::Tcp(bound), Some(listener.try_clone().map_err(BuildError::Thread)?))
            }
            (Socket::Unix(_), configured) => (configured.clone(), None),
        };
        let (alive, told) = tokio::sync::watch::channel(false);
        let (registry, clock) = (Arc::clone(&self.registry), self.clock.clone());
        let commands: Arc<dyn admin::Commands> = Arc::new(AdminCommands(Arc::downgrade(self)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(BuildError::Thread)?;
        thread::Builder::new()
            .name("admin".into())
            .spawn(move || runtime.block_on(admin::serve(socket, registry, commands, clock, told)))
            .map_err(BuildError::Thread)?;
        Ok(AdminServer { configured, bound, socket: copy, _file: file, _alive: alive })
    }
}
