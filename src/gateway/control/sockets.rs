//! Sockets that listen, for what a configuration names and is not open yet.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};

use super::super::build::BuildError;
use crate::config::Model;
use crate::proxy;

/// Binds the listeners that are not open yet, a socket for each worker.
pub(super) fn bind_all(
    model: &Model,
    open: &HashMap<SocketAddr, SocketAddr>,
    workers: usize,
) -> Result<Vec<(SocketAddr, Vec<TcpListener>)>, BuildError> {
    let new = model.listeners.iter().filter(|listener| !open.contains_key(&listener.address));
    new.map(|listener| {
        let address = listener.address;
        let sockets = proxy::bind(address, workers).map_err(|source| listen_error(address, source, open))?;
        Ok((address, sockets))
    })
    .collect()
}

/// Says so if it is this gateway itself that holds the port.
fn listen_error(address: SocketAddr, source: io::Error, open: &HashMap<SocketAddr, SocketAddr>) -> BuildError {
    let own = open.values().find(|own| own.port() == address.port() && source.kind() == io::ErrorKind::AddrInUse);
    match own {
        Some(own) => BuildError::OwnPort { address, own: *own },
        None => BuildError::Listen { address, section: "[[listener]]", source },
    }
}

/// Binds the admin interface, unless it is that which is `open`.
pub(super) fn bind_admin(
    model: &Model,
    open: Option<SocketAddr>,
) -> Result<Option<(SocketAddr, TcpListener)>, BuildError> {
    let Some(admin) = &model.admin else { return Ok(None) };
    let address = admin.address;
    if open == Some(address) {
        return Ok(None);
    }
    let failed = |source| BuildError::Listen { address, section: "[admin]", source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(Some((address, listener)))
}
