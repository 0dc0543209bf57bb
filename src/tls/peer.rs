/// Who a client is by the certificate that it has shown, and that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate {
    /// Its subject (RFC 4514), such as `CN=billing,O=Example`; `None` if it has none that can be read.
    pub subject: Option<Box<str>>,
    /// SHA-256 over the certificate (DER), 64 digits in lower case.
    pub fingerprint: Box<str>,
}
