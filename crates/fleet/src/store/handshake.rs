use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, Error, InvalidMessage};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::error::StoreError;
use sluicegate_tls::{Rejection, UpstreamSettings, upstream};

/// Shakes hands with a store that is called `host` in the configuration.
pub(super) async fn shake_hands(
    stream: TcpStream,
    settings: &UpstreamSettings,
    host: &str,
) -> Result<TlsStream<TcpStream>, StoreError> {
    let unusable = |error: String| StoreError::NoTls { reason: error.into() };
    let tls = upstream(settings).map_err(|error| unusable(error.to_string()))?;
    let name = match tls.name {
        Some(name) => name,
        None => ServerName::try_from(host.to_owned())
            .map_err(|_| unusable(format!("no certificate can be for {host:?}; set `server_name`")))?,
    };
    let shaken = TlsConnector::from(tls.config).connect(name, stream).await;
    shaken.map_err(|error| of_tls(&error).unwrap_or_else(|| StoreError::Closed(Arc::new(error))))
}

/// Why there is no TLS, or no more; `None`: for another reason than TLS.
pub(super) fn of_tls(error: &io::Error) -> Option<StoreError> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        // A record begins with its type and the version.
        Error::InvalidMessage(InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion) => {
            StoreError::SpeaksNoTls
        }
        Error::AlertReceived(AlertDescription::CertificateRequired) => StoreError::WantsCertificate,
        error => StoreError::NoTls { reason: Rejection(error.clone()).to_string().into() },
    })
}
