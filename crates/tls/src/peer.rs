use std::fmt::Write as _;

use base16ct::lower::encode_string;
use sha2::{Digest, Sha256};
use x509_cert::Certificate;
use x509_cert::der::Decode;

/// Longest subject in bytes. A longer one is none: cut, it would be somebody else's.
const MAX_SUBJECT_BYTES: usize = 1_024;

/// The identity of a client by the certificate that it has shown, and that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate {
    /// Its subject (RFC 4514), such as `CN=billing,O=Example`; `None` if it has none that can be read, or one of more
    /// than 1024 bytes.
    pub subject: Option<Box<str>>,
    /// SHA-256 over the certificate (DER), 64 digits in lower case.
    pub fingerprint: Box<str>,
}

impl PeerCertificate {
    /// Of a certificate in DER. Whatever the bytes, there is a fingerprint.
    pub fn of(der: &[u8]) -> Self {
        Self { subject: subject(der), fingerprint: encode_string(&Sha256::digest(der)).into() }
    }
}

fn subject(der: &[u8]) -> Option<Box<str>> {
    let certificate = Certificate::from_der(der).ok()?;
    let mut text = Bounded(String::new());
    write!(text, "{}", certificate.tbs_certificate.subject).ok()?;
    (!text.0.is_empty()).then(|| text.0.into())
}

/// A text that takes no more than [`MAX_SUBJECT_BYTES`].
struct Bounded(String);

impl std::fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if self.0.len() + text.len() > MAX_SUBJECT_BYTES {
            return Err(std::fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}
