//! TLS settings -> what shakes hands, kept across reloads where the settings stay the same.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::build::BuildError;
use crate::config::Model;
use crate::tls::{self, ServerSettings, Tickets, UpstreamSettings, UpstreamTls};

/// What was built, with the settings that it was built from.
///
/// Connections to an upstream go on only if its [`UpstreamTls`] is the very same: so it is built anew only where
/// something in it has changed.
#[derive(Default)]
pub struct Secured {
    listeners: HashMap<SocketAddr, (ServerSettings, Arc<rustls::ServerConfig>)>,
    upstreams: HashMap<Arc<str>, (UpstreamSettings, Arc<UpstreamTls>)>,
}

impl Secured {
    /// Builds what the model says; `self` is what runs.
    pub fn renew(&self, model: &Model, tickets: &Tickets) -> Result<Self, BuildError> {
        let mut next = Self::default();
        for listener in &model.listeners {
            let Some(settings) = &listener.tls else { continue };
            let address = listener.address;
            let config = match self.listeners.get(&address) {
                Some((same, config)) if same == settings => Arc::clone(config),
                _ => tls::server(settings, tickets).map_err(|source| BuildError::ListenerTls { address, source })?,
            };
            next.listeners.insert(address, (settings.clone(), config));
        }
        for upstream in &model.upstreams {
            let Some(settings) = &upstream.tls else { continue };
            let name = Arc::clone(&upstream.name);
            let built = match self.upstreams.get(&name) {
                Some((same, built)) if same == settings => Arc::clone(built),
                _ => match tls::upstream(settings) {
                    Ok(built) => Arc::new(built),
                    Err(source) => return Err(BuildError::UpstreamTls { name, source }),
                },
            };
            next.upstreams.insert(name, (settings.clone(), built));
        }
        Ok(next)
    }

    /// Of the listener with this address in the file.
    pub fn listener(&self, address: &SocketAddr) -> Option<Arc<rustls::ServerConfig>> {
        self.listeners.get(address).map(|(_, config)| Arc::clone(config))
    }

    /// Of the upstream with this name.
    pub fn upstream(&self, name: &str) -> Option<Arc<UpstreamTls>> {
        self.upstreams.get(name).map(|(_, built)| Arc::clone(built))
    }
}
