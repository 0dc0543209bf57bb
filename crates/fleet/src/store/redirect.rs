use redis::{ServerError, ServerErrorKind};

use super::Address;

/// Bytes of a host's name.
const MAX_HOST: usize = 253;

/// A node's word that another one of its cluster has the key (`MOVED`), or has it for now (`ASK`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    host: String,
    port: u16,
    /// It has it for now: it does the next command if it is told so.
    pub(crate) is_asked: bool,
}

impl Redirect {
    pub(super) fn of(error: &ServerError) -> Option<Self> {
        let is_asked = match error.kind()? {
            ServerErrorKind::Moved => false,
            ServerErrorKind::Ask => true,
            _ => return None,
        };
        let (_slot, node) = error.details()?.split_once(' ')?;
        let (host, port) = node.trim().rsplit_once(':')?;
        (host.len() <= MAX_HOST).then_some(Self { host: host.to_owned(), port: port.parse().ok()?, is_asked })
    }

    /// The node that is to be asked instead, as the node at `from` has named it.
    pub(crate) fn to(&self, from: &Address) -> Option<Address> {
        node_at(&self.host, self.port, from)
    }
}

/// The address of a node, as the node at `from` has named it. It names no host where it knows none but the one by which it was
/// asked.
pub(super) fn node_at(host: &str, port: u16, from: &Address) -> Option<Address> {
    let host = match (host, from) {
        ("" | "?", Address::Tcp { host, .. }) => host,
        _ => host,
    };
    let is_host = (1..=MAX_HOST).contains(&host.len()) && host.bytes().all(|byte| byte.is_ascii_graphic());
    (is_host && port > 0).then(|| Address::Tcp { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_is_read_and_a_node_without_a_host_is_where_the_other_was_found() {
        let at = |host: &str, port| Address::Tcp { host: host.to_owned(), port };
        let read = |line: &str| match redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap() {
            redis::Value::ServerError(error) => {
                let redirect = Redirect::of(&error)?;
                Some((redirect.to(&at("seed", 7_000))?, redirect.is_asked))
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(read("MOVED 3999 127.0.0.1:6381"), Some((at("127.0.0.1", 6_381), false)));
        assert_eq!(read("ASK 3999 10.0.0.7:6381"), Some((at("10.0.0.7", 6_381), true)));
        assert_eq!(read("MOVED 1 ::1:7001"), Some((at("::1", 7_001), false)));
        assert_eq!(read("MOVED 1 :7001"), Some((at("seed", 7_001), false)));
        assert_eq!(read("ASK 1 ?:7002"), Some((at("seed", 7_002), true)));
        for line in
            ["ERR no", "MOVED", "MOVED 1", "MOVED 1 host", "MOVED 1 host:0", "MOVED 1 host:99999", "ASK 1 a b:1"]
        {
            assert_eq!(read(line), None, "{line}");
        }
        assert_eq!(read(&format!("MOVED 1 {}:1", "h".repeat(254))), None);
    }
}
