//! The connection to a store, Redis or Valkey: batches of settles and heartbeats out, replies and typed errors back.
//!
//! It has no deadlines but that of [`Store::connect_within`]: the caller drops the future. An exchange that was dropped may have been done; its reply is thrown
//! away when it comes, and never taken for that of another. It does not connect again: the caller does, when
//! [`StoreError::needs_connection`] says so.
//!
//! The other end is not trusted: whatever it sends is an error at worst, and it fills no memory.

mod cluster;
mod endpoint;
mod error;
mod handshake;
mod notices;
mod redirect;
mod sentinel;
mod server;
mod stream;
mod wire;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use redis::{Pipeline, ServerErrorKind, Value};

pub use endpoint::{Address, Deployment, StoreEndpoint};
pub use error::StoreError;
pub use redirect::Redirect;
pub use server::{Product, StoreServer};

use super::members::{MAX_NAMES, Members, STAYS};
use super::scripts::Script;
use super::shared::Family;
pub(super) use cluster::{Part, SLOTS};
pub(super) use sentinel::Sentinels;
use wire::{Wire, accepted, within};

/// The most integers of a reply.
const MAX_INTEGERS: usize = 4 + sluicegate_limiter::MAX_RATES;

/// One key's settle, on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The key in the store.
    pub key: String,
    /// The family whose script settles it.
    pub family: Family,
    /// The script's arguments, see [`SharedLimit::arguments`](super::SharedLimit::arguments).
    pub arguments: Vec<i64>,
}

/// A connection to a store. Several callers may use it at once.
#[derive(Debug)]
pub struct Store {
    wire: Wire,
    address: Address,
    server: StoreServer,
}

impl Store {
    /// Connects, logs in, and looks whether the store will do. To be called within a tokio runtime.
    pub async fn connect(endpoint: &StoreEndpoint) -> Result<Self, StoreError> {
        Self::greeted(endpoint, Wire::open(endpoint, &AtomicBool::new(false)).await?).await
    }

    /// The same, given up after `wait`.
    pub async fn connect_within(endpoint: &StoreEndpoint, wait: Duration) -> Result<Self, StoreError> {
        within(wait, async |is_shaking| Self::greeted(endpoint, Wire::open(endpoint, &is_shaking).await?).await).await
    }

    async fn greeted(endpoint: &StoreEndpoint, wire: Wire) -> Result<Self, StoreError> {
        let address = endpoint.address.clone();
        let mut store = Self { wire, address, server: StoreServer::default() };
        store.server = store.greet(endpoint).await.map_err(|error| match (error, &endpoint.address) {
            (StoreError::Closed(error), Address::Tcp { .. }) if endpoint.tls.is_none() => {
                StoreError::ClosedAtOnce(error)
            }
            (error, _) => error,
        })?;
        // A warning for the operator at most: who may not ask for it goes without.
        store.server.read_memory(&store.wire.text(redis::cmd("INFO").arg("memory")).await.unwrap_or_default());
        Ok(store)
    }

    /// Logs in, and looks who answers.
    async fn greet(&self, endpoint: &StoreEndpoint) -> Result<StoreServer, StoreError> {
        self.wire.log_in(endpoint).await?;
        if endpoint.database != 0 {
            let database = endpoint.database;
            self.wire.ask(redis::cmd("SELECT").arg(database)).await.map_err(|error| match error {
                StoreError::Refused { .. } => StoreError::NoDatabase { database },
                other => other,
            })?;
        }
        StoreServer::read(&self.wire.text(redis::cmd("INFO").arg("server")).await?)
    }

    /// The product and version of the store.
    pub fn server(&self) -> &StoreServer {
        &self.server
    }

    /// Settles keys, in one round trip: a result for each order, in their order. A store that has lost a script (it was
    /// started anew) gets it again, and those orders once more: they had not been done.
    pub async fn settle(&self, orders: &[Order]) -> Vec<Result<Vec<i64>, StoreError>> {
        self.settle_all(orders, false).await
    }

    /// The same at a node of a cluster that has the keys for now, as the node has said that had them (`ASK`).
    pub(crate) async fn settle_asked(&self, orders: &[Order]) -> Vec<Result<Vec<i64>, StoreError>> {
        self.settle_all(orders, true).await
    }

    async fn settle_all(&self, orders: &[Order], is_asked: bool) -> Vec<Result<Vec<i64>, StoreError>> {
        let all: Vec<&Order> = orders.iter().collect();
        let mut results = self.settle_once(&all, is_asked).await;
        let unknown: Vec<usize> =
            results.iter().enumerate().filter(|(_, result)| is_unknown(result)).map(|(index, _)| index).collect();
        if unknown.is_empty() {
            return results.into_iter().map(integers).collect();
        }
        let again: Vec<&Order> = unknown.iter().filter_map(|index| orders.get(*index)).collect();
        let replies = match self.load(&again).await {
            Ok(()) => self.settle_once(&again, is_asked).await,
            Err(error) => again.iter().map(|_| Err(error.clone())).collect(),
        };
        for (index, reply) in unknown.into_iter().zip(replies) {
            if let Some(result) = results.get_mut(index) {
                *result = reply;
            }
        }
        results.into_iter().map(integers).collect()
    }

    /// Says that `member` lives, in the set `key`, and asks who else does. Without a member it only asks.
    pub async fn heartbeat(&self, key: &str, member: Option<&str>) -> Result<Members, StoreError> {
        let script = Script::members();
        let mut call = redis::cmd("EVALSHA");
        call.arg(script.digest()).arg(1).arg(key).arg(member.unwrap_or_default());
        call.arg(STAYS.as_millis_ceil()).arg(MAX_NAMES);
        let mut reply = self.wire.value(&call).await;
        if is_unknown(&reply) {
            self.wire.ask(redis::cmd("SCRIPT").arg("LOAD").arg(script.text())).await?;
            reply = self.wire.value(&call).await;
        }
        let reply = accepted(reply)?;
        Members::read(&reply).ok_or_else(|| StoreError::unexpected(&reply))
    }

    /// Says that `member` ends, so that the others need not wait for it.
    pub async fn leave(&self, key: &str, member: &str) -> Result<(), StoreError> {
        self.wire.ask(redis::cmd("ZREM").arg(key).arg(member)).await.map(|_| ())
    }

    async fn settle_once(&self, orders: &[&Order], is_asked: bool) -> Vec<Result<Value, StoreError>> {
        if orders.is_empty() {
            return Vec::new();
        }
        let mut pipeline = Pipeline::with_capacity(orders.len());
        for order in orders {
            if is_asked {
                pipeline.cmd("ASKING");
            }
            let call = pipeline.cmd("EVALSHA").arg(Script::settle(order.family).digest()).arg(1).arg(&order.key);
            for argument in &order.arguments {
                call.arg(*argument);
            }
        }
        let each = if is_asked { 2 } else { 1 };
        match self.wire.together(&pipeline, orders.len() * each).await {
            Ok(replies) => replies.into_iter().skip(each - 1).step_by(each).map(Ok).collect(),
            Err(error) => orders.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Loads the scripts of these orders.
    async fn load(&self, orders: &[&Order]) -> Result<(), StoreError> {
        for family in Family::ALL.into_iter().filter(|family| orders.iter().any(|order| order.family == *family)) {
            self.wire.ask(redis::cmd("SCRIPT").arg("LOAD").arg(Script::settle(family).text())).await?;
        }
        Ok(())
    }
}

/// Whether the store does not know the script, and has done nothing.
fn is_unknown(reply: &Result<Value, StoreError>) -> bool {
    matches!(reply, Ok(Value::ServerError(error)) if error.kind() == Some(ServerErrorKind::NoScript))
}

fn integers(reply: Result<Value, StoreError>) -> Result<Vec<i64>, StoreError> {
    let value = accepted(reply)?;
    let of_list = |values: &[Value]| -> Option<Vec<i64>> {
        values.iter().map(|value| if let Value::Int(number) = value { Some(*number) } else { None }).collect()
    };
    let found = match &value {
        Value::Array(values) if values.len() <= MAX_INTEGERS => of_list(values),
        _ => None,
    };
    found.ok_or_else(|| StoreError::unexpected(&value))
}
