use std::sync::Arc;

use rustls::ClientConfig;
use rustls::DigitallySignedStruct;
use rustls::SignatureScheme;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;

use super::identity::Identity;
use super::roots::Roots;
use super::vouched::Vouched;
use super::{TlsError, provider};

/// How an upstream, or the store of a fleet, is spoken to over TLS.
#[derive(Debug)]
pub struct UpstreamTls {
    /// Roots, verification, ALPN.
    pub config: Arc<ClientConfig>,
    /// The name that the certificate has to have and that is sent as SNI; `None`: the host of the server's address.
    pub name: Option<ServerName<'static>>,
}

/// The same as an operator says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// The roots that vouch for the servers; `None`: nobody does, any certificate will do.
    pub roots: Option<Roots>,
    /// The name that certificates have to have; `None`: the host of each server's address.
    pub server_name: Option<String>,
    /// The protocol that is asked for by ALPN.
    pub alpn: Alpn,
}

/// The protocol that a server is asked to speak (RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alpn {
    /// `http/1.1`
    Http1,
    /// `h2`
    Http2,
    /// Nothing is asked for: a protocol without a name there.
    Nothing,
}

/// The configuration to shake hands with the servers of an upstream. Sessions resume.
pub fn upstream(settings: &UpstreamSettings) -> Result<UpstreamTls, TlsError> {
    let name = match &settings.server_name {
        Some(name) => Some(ServerName::try_from(name.clone()).map_err(|_| TlsError::ServerName)?),
        None => None,
    };
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::Library)?;
    let builder = match &settings.roots {
        Some(roots) => builder.dangerous().with_custom_certificate_verifier(Arc::new(Vouched::new(roots)?)),
        None => builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody)),
    };
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = match settings.alpn {
        Alpn::Http1 => vec![b"http/1.1".to_vec()],
        Alpn::Http2 => vec![b"h2".to_vec()],
        Alpn::Nothing => Vec::new(),
    };
    Ok(UpstreamTls { config: Arc::new(config), name })
}

/// The configuration to shake hands with any server of the web. ALPN asks for nothing yet. `identity` is shown to who
/// asks for it.
pub fn by_roots(roots: &Roots, identity: Option<&Identity>) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::Library)?;
    let builder = builder.with_root_certificates(Arc::clone(roots.store()));
    Ok(match identity {
        Some(identity) => {
            let own = SingleCertAndKey::from(Arc::clone(identity.certified()));
            builder.with_client_cert_resolver(Arc::new(own))
        }
        None => builder.with_no_client_auth(),
    })
}

/// Whether a certificate can have this name, and SNI say it: a DNS name, or an IP address (which SNI leaves out).
pub fn is_server_name(text: &str) -> bool {
    ServerName::try_from(text).is_ok()
}

/// Takes any certificate from whoever has its key: `verify = false`.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
