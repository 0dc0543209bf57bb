//! The parts of a cluster: its masters, and the slots that each has.

use std::ops::RangeInclusive;

use redis::Value;

use super::redirect::node_at;
use super::{Address, Store, StoreError};

/// Slots of a cluster (Redis Cluster specification, "Key distribution model").
pub(crate) const SLOTS: u16 = 16_384;
/// The most masters of a cluster.
const MAX_MASTERS: usize = 1_000;

/// A master and its slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) address: Address,
    pub(crate) slots: Vec<RangeInclusive<u16>>,
}

impl Part {
    /// One that has all there is.
    pub(crate) fn whole(address: Address) -> Self {
        Self { address, slots: vec![0..=SLOTS - 1] }
    }
}

impl Store {
    /// The parts of the cluster that this node is of, as it knows them.
    pub(crate) async fn parts(&self) -> Result<Vec<Part>, StoreError> {
        let reply = self.wire.ask(redis::cmd("CLUSTER").arg("SLOTS")).await.map_err(|error| match error {
            StoreError::Refused { said } if said.contains("cluster support disabled") => StoreError::NoCluster,
            other => other,
        })?;
        read(&reply, &self.address).ok_or_else(|| StoreError::unexpected(&reply))
    }
}

/// Reads the reply of `CLUSTER SLOTS` of the node `from`.
fn read(reply: &Value, from: &Address) -> Option<Vec<Part>> {
    let Value::Array(ranges) = reply else { return None };
    let mut has_owner = vec![false; usize::from(SLOTS)];
    let mut parts: Vec<Part> = Vec::new();
    for range in ranges {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = range.as_slice() else { return None };
        let [host, Value::Int(port), ..] = master.as_slice() else { return None };
        let host = match host {
            Value::BulkString(host) => str::from_utf8(host).ok()?,
            Value::Nil => "",
            _ => return None,
        };
        let slots = u16::try_from(*first).ok()?..=u16::try_from(*last).ok()?;
        let address = node_at(host, u16::try_from(*port).ok()?, from)?;
        // A slot has one master.
        let owned = has_owner.get_mut(usize::from(*slots.start())..=usize::from(*slots.end()))?;
        if owned.is_empty() || owned.iter().any(|is_owned| *is_owned) {
            return None;
        }
        owned.fill(true);
        match parts.iter_mut().find(|part| part.address == address) {
            Some(part) => part.slots.push(slots),
            None => parts.push(Part { address, slots: vec![slots] }),
        }
        if parts.len() > MAX_MASTERS {
            return None;
        }
    }
    (!parts.is_empty()).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: Option<&str>, port: i64) -> Value {
        let host = host.map_or(Value::Nil, |host| Value::BulkString(host.as_bytes().to_vec()));
        Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec()), Value::Array(vec![])])
    }

    fn range(first: i64, last: i64, master: Value) -> Value {
        Value::Array(vec![Value::Int(first), Value::Int(last), master, node(Some("replica"), 9)])
    }

    #[test]
    fn slots_are_read_by_master_and_another_shape_is_none() {
        let seed = Address::Tcp { host: "seed".to_owned(), port: 1 };
        let reply = Value::Array(vec![
            range(0, 99, node(Some("a"), 7_000)),
            range(100, 15_999, node(None, 7_001)),
            range(16_000, 16_383, node(Some("a"), 7_000)),
        ]);
        let parts = read(&reply, &seed).unwrap();
        let at = |host: &str, port| Address::Tcp { host: host.to_owned(), port };
        assert_eq!(parts[0], Part { address: at("a", 7_000), slots: vec![0..=99, 16_000..=16_383] });
        assert_eq!(parts[1], Part { address: at("seed", 7_001), slots: vec![100..=15_999] });
        for broken in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 16_384, node(Some("a"), 1))]),
            Value::Array(vec![range(9, 8, node(Some("a"), 1))]),
            Value::Array(vec![range(-1, 8, node(Some("a"), 1))]),
            Value::Array(vec![range(0, 8, node(Some("a"), 0))]),
            Value::Array(vec![range(0, 8, node(Some("a b"), 1))]),
            Value::Array(vec![range(0, 8, Value::Int(1))]),
            Value::Array(vec![range(0, 8, node(Some("a"), 1)), range(8, 9, node(Some("b"), 1))]),
            Value::Array((0..1_001).map(|at| range(at, at, node(Some("a"), at + 1))).collect()),
        ] {
            assert_eq!(read(&broken, &seed), None, "{broken:?}");
        }
    }
}
