//! A connection to a server that speaks the protocol, whatever it is: a store, or a Sentinel.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::endpoint::{Address, StoreEndpoint};
use super::error::StoreError;
use super::handshake::shake_hands;
use super::stream::{Guarded, ProtocolFault};

/// It ends with this value. Several callers may use it at once.
#[derive(Debug)]
pub(super) struct Wire {
    connection: MultiplexedConnection,
    fault: ProtocolFault,
    driver: AbortHandle,
}

impl Wire {
    /// Connects, and shakes hands where there is TLS; `is_shaking` is set meanwhile. The gateway has not logged in then.
    pub(super) async fn open(endpoint: &StoreEndpoint, is_shaking: &AtomicBool) -> Result<Self, StoreError> {
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
                        Self::over(stream).await
                    }
                    None => Self::over(stream).await,
                }
            }
            Address::Unix(path) => Self::over(UnixStream::connect(path).await.map_err(unreachable)?).await,
        }
    }

    async fn over<S>(stream: S) -> Result<Self, StoreError>
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
        Ok(Self { connection, fault, driver: tokio::spawn(driver).abort_handle() })
    }

    /// Says who this is, if there is a password.
    pub(super) async fn log_in(&self, endpoint: &StoreEndpoint) -> Result<(), StoreError> {
        let Some(password) = &endpoint.password else { return Ok(()) };
        let mut auth = redis::cmd("AUTH");
        if let Some(username) = &endpoint.username {
            auth.arg(username);
        }
        self.ask(auth.arg(password)).await.map(drop)
    }

    /// The replies to some commands that are sent together, as many as there are commands.
    pub(super) async fn together(&self, pipeline: &Pipeline, commands: usize) -> Result<Vec<Value>, StoreError> {
        let mut connection = self.connection.clone();
        let replies = connection.send_packed_commands(pipeline, 0, commands).await;
        let replies = replies.map_err(|error| self.failed(&error))?;
        if replies.len() == commands { Ok(replies) } else { Err(StoreError::unexpected(&Value::Array(replies))) }
    }

    pub(super) async fn text(&self, command: &mut Cmd) -> Result<String, StoreError> {
        match self.ask(command).await? {
            Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            other => Err(StoreError::unexpected(&other)),
        }
    }

    /// A reply that is no error.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, StoreError> {
        accepted(self.value(command).await)
    }

    pub(super) async fn value(&self, command: &Cmd) -> Result<Value, StoreError> {
        let mut connection = self.connection.clone();
        connection.send_packed_command(command).await.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &RedisError) -> StoreError {
        StoreError::of_exchange(error, self.fault.get())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The result of `does`, given up after `wait`; it gets the flag that TLS is being begun.
pub(super) async fn within<T, F>(wait: Duration, does: impl FnOnce(Arc<AtomicBool>) -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let is_shaking = Arc::new(AtomicBool::new(false));
    match timeout(wait, does(Arc::clone(&is_shaking))).await {
        Ok(done) => done,
        Err(_) if is_shaking.load(Ordering::Relaxed) => Err(StoreError::SilentToTls { wait }),
        Err(_) => Err(StoreError::silent(wait)),
    }
}

pub(super) fn accepted(reply: Result<Value, StoreError>) -> Result<Value, StoreError> {
    match reply? {
        Value::ServerError(error) => Err(StoreError::of_server(&error)),
        value => Ok(value),
    }
}
