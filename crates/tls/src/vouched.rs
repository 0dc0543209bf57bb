use std::sync::Arc;

use rustls::DigitallySignedStruct;
use rustls::SignatureScheme;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error};
use x509_cert::Certificate;
use x509_cert::der::Decode;

use super::roots::Roots;
use super::validity::{CertificateStatus, Validity};
use super::{TlsError, provider};
use sluicegate_time::{Span, Wall};

/// Verifies servers by their authorities; and takes a server's certificate that stands itself among them, as that of
/// `openssl req -x509` does when it is named as `ca`. It says that it is an authority, and by RFC 5280 an authority's
/// certificate is no server's; but whoever named it did vouch for this very one.
#[derive(Debug)]
pub(super) struct Vouched {
    named: Arc<[CertificateDer<'static>]>,
    others: Arc<WebPkiServerVerifier>,
}

impl Vouched {
    /// By these authorities.
    pub(super) fn new(roots: &Roots) -> Result<Self, TlsError> {
        let others = WebPkiServerVerifier::builder_with_provider(Arc::clone(roots.store()), provider()).build();
        let others = others.map_err(|error| TlsError::Library(Error::General(error.to_string())))?;
        Ok(Self { named: Arc::clone(roots.named()), others })
    }
}

impl ServerCertVerifier for Vouched {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !self.named.iter().any(|named| named == end_entity) {
            return self.others.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        }
        verify_dates(end_entity, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.others.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.others.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.others.supported_verify_schemes()
    }
}

fn verify_dates(certificate: &CertificateDer<'_>, time: UnixTime) -> Result<(), CertificateError> {
    let certificate = Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let validity = &certificate.tbs_certificate.validity;
    let (from, until) = (validity.not_before.to_unix_duration(), validity.not_after.to_unix_duration());
    let now = Wall::EPOCH + Span::from_secs(time.as_secs());
    match Validity::new(from.as_secs(), until.as_secs()).at(now) {
        CertificateStatus::Valid | CertificateStatus::Ending => Ok(()),
        CertificateStatus::Early => {
            Err(CertificateError::NotValidYetContext { time, not_before: UnixTime::since_unix_epoch(from) })
        }
        CertificateStatus::Expired => {
            Err(CertificateError::ExpiredContext { time, not_after: UnixTime::since_unix_epoch(until) })
        }
    }
}
