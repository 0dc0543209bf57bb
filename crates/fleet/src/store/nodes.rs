//! The nodes of a cluster that are connected, and what they say of keys that another node has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use redis::{Cmd, Pipeline, ServerErrorKind, Value};

use super::{Address, Order, Store, StoreError};

/// Nodes that nobody has named before, and that are to be connected.
const MAX_UNKNOWN: usize = 8;
/// A key that moves may be sent on by the node that has it next, too.
const HOPS: usize = 2;
/// Bytes of a host's name.
const MAX_HOST: usize = 253;

/// The nodes of a cluster. One that does not have a key names the one that does (`MOVED`), or that has it for now (`ASK`): a command
/// is sent on to it, if it is connected, since it was not done.
#[derive(Debug, Default)]
pub(crate) struct Nodes(Mutex<KnownNodes>);

#[derive(Debug, Default)]
struct KnownNodes {
    connected: HashMap<Address, Weak<Store>>,
    unknown: Vec<Address>,
    has_moved: bool,
}

/// Keys that others have than was thought, and nodes that nobody has named before.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    pub(crate) has_moved: bool,
    pub(crate) unknown: Vec<Address>,
}

/// A node's word that another one has the key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Redirect {
    to: Address,
    /// It has it for now: it does the next command if it is told so.
    is_asked: bool,
}

impl Nodes {
    pub(crate) fn connected(&self, address: Address, store: Weak<Store>) {
        let mut known = self.lock();
        known.connected.retain(|_, store| store.strong_count() > 0);
        known.connected.insert(address, store);
    }

    /// Takes what redirects have told since the last time.
    pub(crate) fn take_moved(&self) -> Moved {
        let mut known = self.lock();
        let (has_moved, unknown) = (std::mem::take(&mut known.has_moved), std::mem::take(&mut known.unknown));
        Moved { has_moved, unknown }
    }

    /// The node that is to be asked instead, if it is connected.
    fn follow(&self, redirect: &Redirect) -> Option<Arc<Store>> {
        let mut known = self.lock();
        known.has_moved |= !redirect.is_asked;
        let found = known.connected.get(&redirect.to).and_then(Weak::upgrade);
        if found.is_none() && known.unknown.len() < MAX_UNKNOWN && !known.unknown.contains(&redirect.to) {
            known.unknown.push(redirect.to.clone());
        }
        found
    }

    fn lock(&self) -> MutexGuard<'_, KnownNodes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Redirect {
    /// Reads the reply of the node `from`.
    fn of(reply: &Value, from: &Address) -> Option<Self> {
        let Value::ServerError(error) = reply else { return None };
        let is_asked = match error.kind()? {
            ServerErrorKind::Moved => false,
            ServerErrorKind::Ask => true,
            _ => return None,
        };
        let (_slot, node) = error.details()?.split_once(' ')?;
        let (host, port) = node.trim().rsplit_once(':')?;
        Some(Self { to: node_at(host, port.parse().ok()?, from)?, is_asked })
    }
}

/// The address of a node, as the node `from` has named it. It names no host where it knows none but the one by which it was asked.
pub(super) fn node_at(host: &str, port: u16, from: &Address) -> Option<Address> {
    let host = match (host, from) {
        ("" | "?", Address::Tcp { host, .. }) => host,
        _ => host,
    };
    let is_host = (1..=MAX_HOST).contains(&host.len()) && host.bytes().all(|byte| byte.is_ascii_graphic());
    (is_host && port > 0).then(|| Address::Tcp { host: host.to_owned(), port })
}

impl Store {
    /// Sends what this node does not have on to those that do. `command` makes the command of an index as it works without a script
    /// that was loaded.
    pub(super) async fn follow(&self, command: impl Fn(usize) -> Cmd, replies: &mut [Result<Value, StoreError>]) {
        let Some(nodes) = &self.nodes else { return };
        for _ in 0..HOPS {
            let mut on = HashMap::<Address, (Arc<Store>, Vec<(usize, bool)>)>::new();
            for (index, reply) in replies.iter().enumerate() {
                let Some(redirect) = reply.as_ref().ok().and_then(|reply| Redirect::of(reply, &self.address)) else {
                    continue;
                };
                if let Some(store) = nodes.follow(&redirect) {
                    let (_, indices) = on.entry(redirect.to).or_insert_with(|| (store, Vec::new()));
                    indices.push((index, redirect.is_asked));
                }
            }
            if on.is_empty() {
                return;
            }
            for (store, indices) in on.into_values() {
                store.take_over(&command, &indices, replies).await;
            }
        }
    }

    /// Does commands that another node has sent on.
    async fn take_over(
        &self,
        command: impl Fn(usize) -> Cmd,
        indices: &[(usize, bool)],
        replies: &mut [Result<Value, StoreError>],
    ) {
        let (mut pipeline, mut commands) = (Pipeline::new(), 0);
        for (index, is_asked) in indices {
            if *is_asked {
                pipeline.cmd("ASKING");
            }
            pipeline.add_command(command(*index));
            commands += 1 + usize::from(*is_asked);
        }
        match self.wire.together(&pipeline, commands).await {
            Ok(told) => {
                let mut told = told.into_iter();
                for (index, is_asked) in indices {
                    if *is_asked {
                        told.next();
                    }
                    if let (Some(reply), Some(told)) = (replies.get_mut(*index), told.next()) {
                        *reply = Ok(told);
                    }
                }
            }
            Err(error) => {
                for (index, _) in indices {
                    if let Some(reply) = replies.get_mut(*index) {
                        *reply = Err(error.clone());
                    }
                }
            }
        }
    }

    /// The command of an order, by the digest of a script that was loaded, or with its text.
    pub(super) fn call(order: &Order, is_loaded: bool) -> Cmd {
        let script = super::Script::settle(order.family);
        let mut call = script.call(is_loaded);
        call.arg(1).arg(&order.key);
        for argument in &order.arguments {
            call.arg(*argument);
        }
        call
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn a_redirect_is_read_and_a_node_without_a_host_is_where_the_other_was_found() {
        let read = |line: &str| {
            let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
            Redirect::of(&reply, &at("seed", 7_000))
        };
        let to = |host: &str, port, is_asked| Some(Redirect { to: at(host, port), is_asked });
        assert_eq!(read("MOVED 3999 127.0.0.1:6381"), to("127.0.0.1", 6_381, false));
        assert_eq!(read("ASK 3999 10.0.0.7:6381"), to("10.0.0.7", 6_381, true));
        assert_eq!(read("MOVED 1 ::1:7001"), to("::1", 7_001, false));
        assert_eq!([read("MOVED 1 :7001"), read("ASK 1 ?:7002")], [to("seed", 7_001, false), to("seed", 7_002, true)]);
        for line in
            ["ERR no", "MOVED", "MOVED 1", "MOVED 1 host", "MOVED 1 host:0", "MOVED 1 host:99999", "ASK 1 a b:1"]
        {
            assert_eq!(read(line), None, "{line}");
        }
        assert_eq!(read(&format!("MOVED 1 {}:1", "h".repeat(254))), None);
    }

    #[test]
    fn nodes_that_nobody_has_named_are_told_once_and_not_without_end() {
        let nodes = Nodes::default();
        for port in (1..=20).chain(1..=20) {
            assert!(nodes.follow(&Redirect { to: at("a", port), is_asked: true }).is_none());
        }
        let moved = nodes.take_moved();
        assert_eq!((moved.has_moved, moved.unknown.len()), (false, MAX_UNKNOWN));
        assert!(nodes.take_moved().unknown.is_empty());
        nodes.follow(&Redirect { to: at("a", 1), is_asked: false });
        assert!(nodes.take_moved().has_moved);
    }
}
