//! The server to which a client's connection has a connection of its own.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use super::ledger::{ClientAccount, Entered};
use sluicegate_upstream::{PrivateConnection, ServerConnections};

/// The server that a client's connection has authenticated itself to, by NTLM or Negotiate, and its private connection there.
pub struct PrivateServer {
    server: Rc<ServerConnections>,
    /// `None`: it is in use, or has ended, and the next request needs a new one.
    idle: Option<PrivateConnection>,
    /// It counts as one more connection of its client.
    _entered: Entered,
}

impl PrivateServer {
    /// Of a client with this account.
    pub fn new(server: &Rc<ServerConnections>, idle: Option<PrivateConnection>, account: &Rc<ClientAccount>) -> Self {
        Self { server: Rc::clone(server), idle, _entered: account.enter() }
    }

    /// Whether it is this one.
    pub fn is(&self, server: &Rc<ServerConnections>) -> bool {
        Rc::ptr_eq(&self.server, server)
    }

    /// The connection, for a request.
    pub fn take(&mut self) -> Option<PrivateConnection> {
        self.idle.take()
    }
}

impl fmt::Debug for PrivateServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivateServer").field("is_idle", &self.idle.is_some()).finish_non_exhaustive()
    }
}

/// Room for one; a pointer, since each idle connection of a client has it.
#[derive(Default)]
pub struct PrivateSlot(pub Cell<Option<Box<PrivateServer>>>);

impl fmt::Debug for PrivateSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivateSlot").finish_non_exhaustive()
    }
}
