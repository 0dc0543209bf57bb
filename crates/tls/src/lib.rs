//! The inputs of TLS before a handshake: certificates and keys from PEM files, and the settings of both sides.
//!
//! It opens no socket and shakes no hand: `transport` does, with what is built here. It reads files only when it is told
//! to, and keeps what it has read: a file that breaks later breaks nothing that runs.
//!
//! Invariants:
//! - an [`Identity`] can be served: its key fits its first certificate, which is X.509;
//! - a ticket is honoured only where the same client certificates are asked for, against the same roots;
//! - no file makes it panic, and none is read beyond [`MAX_FILE_BYTES`].
//!
//! Callers: `config`, which reads the files that the operator names; `gateway`, which builds; `transport`, which asks who
//! the peer is.

#[macro_use]
extern crate sluicegate_words;

mod client;
mod file;
mod identity;
mod peer;
mod rejection;
mod roots;
mod server;
#[cfg(test)]
mod tests;
mod tickets;
mod validity;
mod vouched;

use std::fmt;
use std::sync::Arc;

use rustls::CipherSuite;
use rustls::crypto::CryptoProvider;
use rustls::server::VerifierBuilderError;

pub use client::{Alpn, UpstreamSettings, UpstreamTls, by_roots, is_server_name, upstream};
pub use file::{FileError, FileFault, MAX_FILE_BYTES};
pub use identity::{Chain, Identity, PrivateKey};
pub use peer::PeerCertificate;
pub use rejection::Rejection;
pub use roots::Roots;
pub use server::{ClientCertificates, MinVersion, ServerSettings, ServerTls, server};
pub use tickets::Tickets;
pub use validity::{CertificateStatus, Validity};

/// Why settings that were read cannot be used here and now.
#[derive(Debug)]
pub enum TlsError {
    /// A listener without a certificate.
    NoCertificate,
    /// Roots that no certificate of a client can be verified by.
    ClientRoots(VerifierBuilderError),
    /// No such name can be sent as SNI.
    ServerName,
    /// The library refuses: no randomness, or no common algorithm.
    Library(rustls::Error),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCertificate => f.write_str("TLS needs a certificate, and there is none"),
            Self::ClientRoots(error) => write!(f, "clients cannot be verified by client_ca: {error}"),
            Self::ServerName => f.write_str("the server_name is no DNS name and no IP address"),
            Self::Library(error) => write!(f, "TLS cannot be set up: {error}"),
        }
    }
}

impl std::error::Error for TlsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::ClientRoots(error) => Some(error),
            Self::Library(error) => Some(error),
            Self::NoCertificate | Self::ServerName => None,
        }
    }
}

/// The algorithms: aws-lc-rs, whatever else may be linked. Of its cipher suites those of AES with 128 bits come first: as
/// safe, and with SHA-256, which processors compute, in place of SHA-384, which takes a third of a handshake.
fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: std::sync::LazyLock<Arc<CryptoProvider>> = std::sync::LazyLock::new(|| {
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        provider.cipher_suites.sort_by_key(|suite| !is_aes_128(suite.suite()));
        Arc::new(provider)
    });
    Arc::clone(&PROVIDER)
}

fn is_aes_128(suite: CipherSuite) -> bool {
    use CipherSuite as Suite;
    matches!(
        suite,
        Suite::TLS13_AES_128_GCM_SHA256
            | Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            | Suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
    )
}

/// SHA-256 over parts, each with its length, so that no two lists of parts are alike.
fn digest<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> [u8; 32] {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
