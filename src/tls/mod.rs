//! What TLS needs to know before a handshake: certificates and keys from PEM files, and the settings of both sides.
//!
//! It opens no socket and shakes no hand: `transport` does, with what is built here. It reads files only when it is told
//! to, and keeps what it has read: a file that breaks later breaks nothing that runs.
//!
//! Callers: `config`, which reads the files that the operator names; `gateway`, which builds; `transport`, which asks who
//! the peer is.

mod peer;

use std::sync::Arc;

pub use peer::PeerCertificate;

/// How an upstream is spoken to over TLS.
#[derive(Debug)]
pub struct UpstreamTls {
    /// Roots, verification, ALPN.
    pub config: Arc<rustls::ClientConfig>,
    /// The name that the certificate has to have and that is sent as SNI; `None`: the host of the server's address.
    pub name: Option<rustls::pki_types::ServerName<'static>>,
}
