use crate::proxy_protocol::{self, Endpoints, Header, Outgoing, Version};

/// For whom a connection to a server is, as its PROXY header says. Such a connection carries requests of nobody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    endpoints: Endpoints,
    authority: Option<Box<str>>,
    unique_id: Option<Box<[u8]>>,
}

impl Introduction {
    /// Of the client at one end to the server at the other. What a proxy in front has said beside the addresses is passed
    /// on, but for the protocol that it has agreed upon with the client: to a server the gateway speaks its own.
    pub fn new(endpoints: Endpoints, told: Option<&Header>) -> Self {
        Self {
            endpoints,
            authority: told.and_then(Header::authority).map(Box::from),
            unique_id: told.and_then(Header::unique_id).map(Box::from),
        }
    }

    /// The header.
    pub fn header(&self, version: Version) -> Vec<u8> {
        let outgoing =
            Outgoing { alpn: None, authority: self.authority.as_deref(), unique_id: self.unique_id.as_deref() };
        let mut header = Vec::new();
        proxy_protocol::write(version, Some(self.endpoints), &outgoing, &mut header);
        header
    }
}
