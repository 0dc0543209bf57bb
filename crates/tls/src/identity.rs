use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use super::file::{self, FileError, FileFault};
use super::validity::Validity;
use super::{digest, provider};

/// A certificate with its chain, and the key that it was made for: what a listener shows to clients.
#[derive(Clone)]
pub struct Identity {
    chain: Arc<Chain>,
    certified: Arc<CertifiedKey>,
    digest: [u8; 32],
}

/// A certificate and those that lead to its authority, as a file has them.
pub struct Chain {
    file: PathBuf,
    certificates: Vec<CertificateDer<'static>>,
    names: Vec<Box<str>>,
    validity: Validity,
}

/// A private key, as a file has it. It is never printed.
pub struct PrivateKey {
    file: PathBuf,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads both files: a PEM chain whose first certificate is the server's own, and its PEM key (PKCS#8, PKCS#1 or
    /// SEC1). They may be one file.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, FileError> {
        let chain = Chain::read(certificate)?;
        Self::new(chain, &PrivateKey::read(key)?)
    }

    /// Puts a chain and a key together; they have to fit.
    pub fn new(chain: Chain, key: &PrivateKey) -> Result<Self, FileError> {
        let fault = |fault| FileError { file: key.file.clone(), fault };
        let signer = provider().key_provider.load_private_key(key.key.clone_key());
        let signer = signer.map_err(|_| fault(FileFault::UnusableKey))?;
        let certified = CertifiedKey::new(chain.certificates.clone(), signer);
        // All keys that are loaded know their public half, so that "unknown" is as wrong as "another".
        if certified.keys_match().is_err() {
            return Err(fault(FileFault::KeyDoesNotFit { certificate: chain.file.clone() }));
        }
        let parts = chain.certificates.iter().map(|certificate| &**certificate).chain([key.key.secret_der()]);
        let digest = digest(parts);
        Ok(Self { chain: Arc::new(chain), certified: Arc::new(certified), digest })
    }

    /// The DNS names that it is for: lower case, `*.example.com` among them as it stands.
    pub fn names(&self) -> &[Box<str>] {
        &self.chain.names
    }

    /// From when until when it may be used.
    pub fn validity(&self) -> Validity {
        self.chain.validity
    }

    /// The file of the certificate.
    pub fn file(&self) -> &Path {
        &self.chain.file
    }

    /// SHA-256 over certificates and key: equal for what is served alike, wherever it was read.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    pub(super) fn certified(&self) -> &Arc<CertifiedKey> {
        &self.certified
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("file", &self.chain.file)
            .field("names", &self.chain.names)
            .finish_non_exhaustive()
    }
}

impl Chain {
    /// Reads a PEM file of certificates.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let fault = |fault| FileError { file: path.to_owned(), fault };
        let certificates = certificates(&file::read(path).map_err(fault)?).map_err(fault)?;
        let mut own = None;
        for (index, der) in certificates.iter().enumerate() {
            let parsed = Certificate::from_der(der).map_err(|_| fault(FileFault::NotX509(index + 1)))?;
            own.get_or_insert(parsed);
        }
        let own = own.ok_or_else(|| fault(FileFault::NoCertificate))?;
        // What the library cannot read it cannot serve.
        let readable = certificates.first().map(rustls::server::ParsedCertificate::try_from);
        if !matches!(readable, Some(Ok(_))) {
            return Err(fault(FileFault::NotX509(1)));
        }
        let validity = &own.tbs_certificate.validity;
        let validity = Validity::new(
            validity.not_before.to_unix_duration().as_secs(),
            validity.not_after.to_unix_duration().as_secs(),
        );
        Ok(Self { file: path.to_owned(), names: dns_names(&own), certificates, validity })
    }

    /// From when until when its first certificate may be used.
    pub fn validity(&self) -> Validity {
        self.validity
    }
}

impl PrivateKey {
    /// Reads the first key of a PEM file.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let fault = |fault| FileError { file: path.to_owned(), fault };
        let bytes = file::read(path).map_err(fault)?;
        let sections = Sections::of(&bytes).map_err(fault)?;
        if let Some(key) = sections.key {
            return Ok(Self { file: path.to_owned(), key });
        }
        Err(fault(match sections {
            Sections { encrypted_key: true, .. } => FileFault::EncryptedKey,
            Sections { certificates, .. } if !certificates.is_empty() => FileFault::CertificateForKey,
            Sections { any: false, .. } => FileFault::NotPem,
            _ => FileFault::NoKey,
        }))
    }
}

/// The certificates of a PEM text; at least one.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileFault> {
    let sections = Sections::of(pem)?;
    if !sections.certificates.is_empty() {
        return Ok(sections.certificates);
    }
    Err(match sections {
        Sections { key: Some(_), .. } | Sections { encrypted_key: true, .. } => FileFault::KeyForCertificate,
        Sections { request: true, .. } => FileFault::RequestForCertificate,
        Sections { any: false, .. } => FileFault::NotPem,
        _ => FileFault::NoCertificate,
    })
}

/// The sections of a PEM text.
#[derive(Default)]
struct Sections {
    certificates: Vec<CertificateDer<'static>>,
    key: Option<PrivateKeyDer<'static>>,
    encrypted_key: bool,
    request: bool,
    /// Whether there is any section, also of an unknown kind.
    any: bool,
}

impl Sections {
    fn of(pem: &[u8]) -> Result<Self, FileFault> {
        let has = |text: &str| memchr::memmem::find(pem, text.as_bytes()).is_some();
        let mut found = Self {
            encrypted_key: has("-----BEGIN ENCRYPTED PRIVATE KEY-----") || has("Proc-Type: 4,ENCRYPTED"),
            any: has("-----BEGIN "),
            ..Self::default()
        };
        // A key that is encrypted the old way is damaged to whoever does not know it.
        if found.encrypted_key && has("Proc-Type: 4,ENCRYPTED") {
            return Ok(found);
        }
        for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
            let (kind, der) = section.map_err(|_| FileFault::DamagedPem)?;
            match kind {
                SectionKind::Certificate => found.certificates.push(der.into()),
                SectionKind::Csr => found.request = true,
                SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey => {
                    found.key = found.key.or_else(|| PrivateKeyDer::from_pem(kind, der));
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

/// The DNS names of the subject's alternative names (RFC 5280, 4.2.1.6). The common name is not asked: browsers have
/// not done so since 2017.
fn dns_names(certificate: &Certificate) -> Vec<Box<str>> {
    let Ok(Some((_, names))) = certificate.tbs_certificate.get::<SubjectAltName>() else { return Vec::new() };
    let mut found: Vec<Box<str>> = Vec::new();
    for name in names.0 {
        if let GeneralName::DnsName(name) = name {
            let name = name.as_str().trim_end_matches('.').to_ascii_lowercase();
            if !name.is_empty() {
                found.push(name.into());
            }
        }
    }
    found
}
