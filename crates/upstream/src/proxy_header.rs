use sluicegate_proxy_protocol as proxy_protocol;
use sluicegate_proxy_protocol::{Endpoints, Header, Outgoing, Version};

/// For whom a connection to a server is, as the PROXY header before it says. It carries requests of nobody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    endpoints: Endpoints,
    owner: Option<u64>,
    authority: Option<Box<str>>,
    unique_id: Option<Box<[u8]>>,
}

impl ProxyHeader {
    /// Of the client at one end to the server at the other.
    ///
    /// `owner`: the connection of a client that it is for, by a number that no other one has; `None` where a client is
    /// known by fields alone, whose requests may come over any. The facts that a proxy in front has `told` beside the
    /// addresses are passed on, but for the protocol that it has agreed upon with the client: to a server the gateway
    /// speaks its own.
    pub fn new(endpoints: Endpoints, owner: Option<u64>, told: Option<&Header>) -> Self {
        Self {
            endpoints,
            owner,
            authority: told.and_then(Header::authority).map(Box::from),
            unique_id: told.and_then(Header::unique_id).map(Box::from),
        }
    }

    /// The connection of a client that it is for and no other.
    pub fn owner(&self) -> Option<u64> {
        self.owner
    }

    /// Before a connection of the gateway's own: `LOCAL`, or `UNKNOWN` in version 1.
    pub(super) fn of_nobody(version: Version) -> Vec<u8> {
        let outgoing = Outgoing { alpn: None, authority: None, unique_id: None };
        let mut bytes = Vec::new();
        proxy_protocol::write(version, None, &outgoing, &mut bytes);
        bytes
    }

    /// As it is sent.
    pub fn bytes(&self, version: Version) -> Vec<u8> {
        let outgoing =
            Outgoing { alpn: None, authority: self.authority.as_deref(), unique_id: self.unique_id.as_deref() };
        let mut bytes = Vec::new();
        proxy_protocol::write(version, Some(self.endpoints), &outgoing, &mut bytes);
        bytes
    }
}
