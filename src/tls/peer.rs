/// Who a client is by the certificate that it has shown, and that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate {
    /// Its subject (RFC 4514), such as `CN=billing,O=Example`; `None` if it has none that can be read.
    pub subject: Option<Box<str>>,
    /// SHA-256 over the certificate (DER), 64 digits in lower case.
    pub fingerprint: Box<str>,
}

impl PeerCertificate {
    /// Who the certificate `der` is of.
    pub fn of(der: &[u8]) -> Self {
        Self {
            subject: None,
            fingerprint: format!("{:x}", sha2::Digest::finalize(<sha2::Sha256 as sha2::Digest>::new_with_prefix(der)))
                .into(),
        }
    }
}
