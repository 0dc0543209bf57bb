//! The content of a header.

use std::net::SocketAddr;

words! {
    /// The form of a header, one of two.
    pub enum Version {
        /// A line of text.
        V1 = "v1",
        /// Binary.
        V2 = "v2",
    }
}

/// The two ends of the connection that the proxy has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoints {
    /// The client's.
    pub source: SocketAddr,
    /// Where the client has connected to.
    pub destination: SocketAddr,
}

/// One header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The form that it has.
    pub version: Version,
    /// `None`: the addresses of the connection itself hold. The proxy speaks for itself (LOCAL), or for a client whose
    /// addresses it does not know or that came by a unix socket.
    pub endpoints: Option<Endpoints>,
    /// Boxed, since most headers have none.
    pub(super) details: Option<Box<Details>>,
}

/// The content of vectors; an empty value is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Details {
    pub(super) alpn: Option<Box<[u8]>>,
    pub(super) authority: Option<Box<str>>,
    pub(super) unique_id: Option<Box<[u8]>>,
    pub(super) tls: bool,
    pub(super) tls_version: Option<Box<str>>,
}

impl Header {
    /// The protocol that the proxy and its client have agreed upon, as in TLS: `h2`.
    pub fn alpn(&self) -> Option<&[u8]> {
        self.details.as_deref()?.alpn.as_deref()
    }

    /// The host that the client has named, as in TLS by SNI: at most 255 bytes, of those that hosts are made of.
    pub fn authority(&self) -> Option<&str> {
        self.details.as_deref()?.authority.as_deref()
    }

    /// How the proxy calls this connection: at most 128 bytes, of any kind.
    pub fn unique_id(&self) -> Option<&[u8]> {
        self.details.as_deref()?.unique_id.as_deref()
    }

    /// Whether the client has spoken TLS with the proxy.
    pub fn tls(&self) -> bool {
        self.details.as_deref().is_some_and(|details| details.tls)
    }

    /// The version of TLS, as the proxy names it: `TLSv1.3`.
    pub fn tls_version(&self) -> Option<&str> {
        self.details.as_deref()?.tls_version.as_deref()
    }
}
