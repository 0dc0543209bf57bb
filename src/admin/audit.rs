//! A line of the log for each change that somebody asked for.

use http::StatusCode;

use super::access::{Actor, Peer};
use super::endpoint::{AdminChange, Endpoint};

/// Names in paths that may be secrets: the values of keys.
const SECRET: [&str; 2] = ["{value}", "{key}"];

/// A call that changes something, before it is known how it ends.
pub(super) struct AuditedCall {
    actor: Actor,
    peer: String,
    what: String,
}

impl AuditedCall {
    pub(super) fn new(actor: &Actor, peer: &Peer, what: String) -> Self {
        let peer = peer.address.map_or_else(|| "socket".to_owned(), |address| address.to_string());
        Self { actor: actor.clone(), peer, what }
    }

    /// Writes the line: who, what, before and after, and how it ended.
    pub(super) fn write(&self, change: &AdminChange, status: StatusCode) {
        let (who, role) = (&*self.actor.name, self.actor.role.word());
        let (AdminChange { before, after }, Self { peer, what, .. }) = (change, self);
        tracing::info!(who, role, peer, what, before, after, status = status.as_u16(), "admin change");
    }
}

/// An endpoint and the names of its path, but those that may be secrets.
pub(super) fn what(endpoint: &Endpoint, names: &[String]) -> String {
    let mut names = names.iter();
    let parts = endpoint.path.split('/').map(|part| match (part.starts_with('{'), SECRET.contains(&part)) {
        (false, _) => part,
        (true, true) => {
            names.next();
            part
        }
        (true, false) => names.next().map_or(part, String::as_str),
    });
    format!("{} {}", endpoint.method.word(), parts.collect::<Vec<_>>().join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::endpoints;

    #[test]
    fn values_of_keys_are_not_told() {
        let (endpoints, _) = endpoints::at("/api/v1/limits/per-key/keys/secret").unwrap();
        let names = ["per-key".to_owned(), "secret".to_owned()];
        assert_eq!(what(endpoints[0], &names), "GET /api/v1/limits/per-key/keys/{value}");
        let (endpoints, _) = endpoints::at("/api/v1/upstreams/app/servers/a:1").unwrap();
        let names = ["app".to_owned(), "a:1".to_owned()];
        assert_eq!(what(endpoints[0], &names), "POST /api/v1/upstreams/app/servers/a:1");
    }
}
