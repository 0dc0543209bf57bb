//! The connection to a store, Redis or Valkey: batches of settles and heartbeats out, replies and typed errors back.
//!
//! It has no deadlines but that of [`Store::connect_within`]: the caller drops the future. An exchange that was dropped may have been done; its reply is thrown
//! away when it comes, and never taken for that of another. It does not connect again: the caller does, when
//! [`StoreError::needs_connection`] says so.
//!
//! The other end is not trusted: whatever it sends is an error at worst, and it fills no memory.

mod endpoint;
mod error;
mod handshake;
mod notices;
mod server;
mod stream;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, ServerErrorKind, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

pub use endpoint::{Address, StoreEndpoint};
pub use error::StoreError;
pub use server::{Product, StoreServer};

use super::members::{MAX_NAMES, Members, STAYS};
use super::scripts::Script;
use super::shared::Family;
use handshake::shake_hands;
use stream::{Guarded, ProtocolFault};

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
    connection: MultiplexedConnection,
    server: StoreServer,
    fault: ProtocolFault,
    driver: AbortHandle,
}

impl Store {
    /// Connects, logs in, and looks whether the store will do. To be called within a tokio runtime.
    pub async fn connect(endpoint: &StoreEndpoint) -> Result<Self, StoreError> {
        Self::connect_noting(endpoint, &AtomicBool::new(false)).await
    }

    /// The same, given up after `wait`.
    pub async fn connect_within(endpoint: &StoreEndpoint, wait: Duration) -> Result<Self, StoreError> {
        let is_shaking = AtomicBool::new(false);
        match timeout(wait, Self::connect_noting(endpoint, &is_shaking)).await {
            Ok(connected) => connected,
            Err(_) if is_shaking.load(Ordering::Relaxed) => Err(StoreError::SilentToTls { wait }),
            Err(_) => Err(StoreError::silent(wait)),
        }
    }

    /// The same; `is_shaking` is set while TLS is begun.
    async fn connect_noting(endpoint: &StoreEndpoint, is_shaking: &AtomicBool) -> Result<Self, StoreError> {
        let unreachable = |error: io::Error| StoreError::Unreachable(Arc::new(error));
        match &endpoint.address {
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(unreachable)?;
                stream.set_nodelay(true).map_err(unreachable)?;
                match &endpoint.tls {
                    Some(tls) => {
                        is_shaking.store(true, Ordering::Relaxed);
                        let stream = shake_hands(stream, tls, host).await?;
                        is_shaking.store(false, Ordering::Relaxed);
                        Self::over(stream, endpoint).await
                    }
                    None => Self::over(stream, endpoint).await,
                }
            }
            Address::Unix(path) => Self::over(UnixStream::connect(path).await.map_err(unreachable)?, endpoint).await,
        }
    }

    async fn over<S>(stream: S, endpoint: &StoreEndpoint) -> Result<Self, StoreError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let fault = ProtocolFault::default();
        // Nothing is sent by it: how the store answers a login is told more exactly here. Deadlines are the caller's.
        let info = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let guarded = Guarded::new(stream, Arc::clone(&fault));
        let made = MultiplexedConnection::new_with_config(&info, guarded, config).await;
        let (connection, driver) = made.map_err(|error| StoreError::of_exchange(&error, None))?;
        let driver = tokio::spawn(driver).abort_handle();
        let mut store = Self { connection, server: StoreServer::default(), fault, driver };
        store.server = store.greet(endpoint).await.map_err(|error| match (error, &endpoint.address) {
            (StoreError::Closed(error), Address::Tcp { .. }) if endpoint.tls.is_none() => {
                StoreError::ClosedAtOnce(error)
            }
            (error, _) => error,
        })?;
        // A warning for the operator at most: who may not ask for it goes without.
        store.server.read_memory(&store.text(redis::cmd("INFO").arg("memory")).await.unwrap_or_default());
        Ok(store)
    }

    /// Logs in, and looks who answers.
    async fn greet(&self, endpoint: &StoreEndpoint) -> Result<StoreServer, StoreError> {
        self.log_in(endpoint).await?;
        StoreServer::read(&self.text(redis::cmd("INFO").arg("server")).await?)
    }

    async fn log_in(&self, endpoint: &StoreEndpoint) -> Result<(), StoreError> {
        if let Some(password) = &endpoint.password {
            let mut auth = redis::cmd("AUTH");
            auth.arg(&endpoint.username).arg(password);
            self.ask(&auth).await?;
        }
        if endpoint.database != 0 {
            let database = endpoint.database;
            self.ask(redis::cmd("SELECT").arg(database)).await.map_err(|error| match error {
                StoreError::Refused { .. } => StoreError::NoDatabase { database },
                other => other,
            })?;
        }
        Ok(())
    }

    /// The product and version of the store.
    pub fn server(&self) -> &StoreServer {
        &self.server
    }

    /// Settles keys, in one round trip: a result for each order, in their order. A store that has lost a script (it was
    /// started anew) gets it again, and those orders once more: they had not been done.
    pub async fn settle(&self, orders: &[Order]) -> Vec<Result<Vec<i64>, StoreError>> {
        let all: Vec<&Order> = orders.iter().collect();
        let mut results = self.settle_once(&all).await;
        let unknown: Vec<usize> =
            results.iter().enumerate().filter(|(_, result)| is_unknown(result)).map(|(index, _)| index).collect();
        if unknown.is_empty() {
            return results.into_iter().map(integers).collect();
        }
        let again: Vec<&Order> = unknown.iter().filter_map(|index| orders.get(*index)).collect();
        let replies = match self.load(&again).await {
            Ok(()) => self.settle_once(&again).await,
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
        let mut reply = self.value(&call).await;
        if is_unknown(&reply) {
            self.ask(redis::cmd("SCRIPT").arg("LOAD").arg(script.text())).await?;
            reply = self.value(&call).await;
        }
        let reply = accepted(reply)?;
        Members::read(&reply).ok_or_else(|| StoreError::unexpected(&reply))
    }

    /// Says that `member` ends, so that the others need not wait for it.
    pub async fn leave(&self, key: &str, member: &str) -> Result<(), StoreError> {
        self.ask(redis::cmd("ZREM").arg(key).arg(member)).await.map(|_| ())
    }

    async fn settle_once(&self, orders: &[&Order]) -> Vec<Result<Value, StoreError>> {
        if orders.is_empty() {
            return Vec::new();
        }
        let mut pipeline = Pipeline::with_capacity(orders.len());
        for order in orders {
            let call = pipeline.cmd("EVALSHA").arg(Script::settle(order.family).digest()).arg(1).arg(&order.key);
            for argument in &order.arguments {
                call.arg(*argument);
            }
        }
        let mut connection = self.connection.clone();
        let replies = connection.send_packed_commands(&pipeline, 0, orders.len()).await;
        match replies.map_err(|error| self.failed(&error)) {
            Ok(replies) if replies.len() == orders.len() => replies.into_iter().map(Ok).collect(),
            Ok(replies) => {
                let error = StoreError::unexpected(&Value::Array(replies));
                orders.iter().map(|_| Err(error.clone())).collect()
            }
            Err(error) => orders.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Loads the scripts of these orders.
    async fn load(&self, orders: &[&Order]) -> Result<(), StoreError> {
        for family in Family::ALL.into_iter().filter(|family| orders.iter().any(|order| order.family == *family)) {
            self.ask(redis::cmd("SCRIPT").arg("LOAD").arg(Script::settle(family).text())).await?;
        }
        Ok(())
    }

    async fn text(&self, command: &mut Cmd) -> Result<String, StoreError> {
        match self.ask(command).await? {
            Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            other => Err(StoreError::unexpected(&other)),
        }
    }

    /// A reply that is no error.
    async fn ask(&self, command: &Cmd) -> Result<Value, StoreError> {
        accepted(self.value(command).await)
    }

    async fn value(&self, command: &Cmd) -> Result<Value, StoreError> {
        let mut connection = self.connection.clone();
        connection.send_packed_command(command).await.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &RedisError) -> StoreError {
        StoreError::of_exchange(error, self.fault.get())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Whether the store does not know the script, and has done nothing.
fn is_unknown(reply: &Result<Value, StoreError>) -> bool {
    matches!(reply, Ok(Value::ServerError(error)) if error.kind() == Some(ServerErrorKind::NoScript))
}

fn accepted(reply: Result<Value, StoreError>) -> Result<Value, StoreError> {
    match reply? {
        Value::ServerError(error) => Err(StoreError::of_server(&error)),
        value => Ok(value),
    }
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
