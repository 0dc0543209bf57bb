use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::server::ProducesTickets;

use super::TlsError;
use super::server::ClientCertificates;

/// The keys of session tickets, for as long as the process lives: a client resumes its session at any worker, and after
/// a reload.
///
/// Tickets carry the client's certificate, and a session that is resumed asks for none. So there are keys for each way
/// in which clients are asked: a ticket from one listener means nothing to a listener that trusts other authorities, or
/// that requires what the first did not, and the handshake there is a full one. Keys change every 6 hours and are
/// honoured for 12.
#[derive(Debug, Default)]
pub struct Tickets(Mutex<HashMap<Policy, Arc<dyn ProducesTickets>>>);

/// How clients are asked for certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Policy {
    Off,
    Optional([u8; 32]),
    Required([u8; 32]),
}

impl Tickets {
    /// None given yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The keys for listeners that ask their clients so.
    pub(super) fn for_clients(&self, clients: &ClientCertificates) -> Result<Arc<dyn ProducesTickets>, TlsError> {
        let policy = match clients {
            ClientCertificates::Off => Policy::Off,
            ClientCertificates::Optional(roots) => Policy::Optional(*roots.digest()),
            ClientCertificates::Required(roots) => Policy::Required(*roots.digest()),
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that no listener uses any more: files of roots may change for ever.
        all.retain(|other, keys| *other == policy || Arc::strong_count(keys) > 1);
        if let Some(keys) = all.get(&policy) {
            return Ok(Arc::clone(keys));
        }
        let keys = rustls::crypto::aws_lc_rs::Ticketer::new().map_err(TlsError::Library)?;
        all.insert(policy, Arc::clone(&keys));
        Ok(keys)
    }
}
