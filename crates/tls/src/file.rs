use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use sluicegate_files::read_regular;

/// The largest file of certificates or keys that is read: a bundle of every public root has 200 KiB.
pub const MAX_FILE_BYTES: usize = 1 << 20;

/// An error in a file of certificates or keys.
#[derive(Debug)]
pub struct FileError {
    /// The file.
    pub file: PathBuf,
    /// The fault of it.
    pub fault: FileFault,
}

/// The possible faults of such a file.
#[derive(Debug)]
pub enum FileFault {
    /// It cannot be read.
    Read(io::Error),
    /// A directory, a pipe, a device.
    NotAFile,
    /// It is larger than [`MAX_FILE_BYTES`].
    TooLarge,
    /// Nothing in it looks like PEM.
    NotPem,
    /// A PEM section is cut off or damaged.
    DamagedPem,
    /// A certificate is wanted, and there is none.
    NoCertificate,
    /// A certificate is wanted, and there is a key.
    KeyForCertificate,
    /// A certificate is wanted, and there is a request for one.
    RequestForCertificate,
    /// A key is wanted, and there is none.
    NoKey,
    /// A key is wanted, and there is a certificate.
    CertificateForKey,
    /// The key needs a passphrase.
    EncryptedKey,
    /// Damaged, or of a kind that TLS has no use for.
    UnusableKey,
    /// The certificate of this place, from 1, cannot be read.
    NotX509(usize),
    /// The key is another certificate's.
    KeyDoesNotFit {
        /// The file of the certificate.
        certificate: PathBuf,
    },
    /// No certificate in it can be a root.
    NoRoots,
    /// The machine has no store of roots that can be read.
    NoSystemRoots,
}

impl FileError {
    /// The fault in words, without the file's name.
    pub fn reason(&self) -> String {
        let text = match &self.fault {
            FileFault::Read(error) => {
                return match error.kind() {
                    io::ErrorKind::NotFound => "there is no such file".to_owned(),
                    io::ErrorKind::PermissionDenied => "this user may not read it".to_owned(),
                    _ => format!("it cannot be read: {error}"),
                };
            }
            FileFault::NotX509(place) => return format!("its certificate number {place} is no X.509 certificate"),
            FileFault::KeyDoesNotFit { certificate } => {
                return format!("it is not the key of the first certificate in {}", certificate.display());
            }
            FileFault::NotAFile => "it is not a regular file",
            FileFault::TooLarge => "it is larger than 1 MiB",
            FileFault::NotPem => "it has no PEM section (-----BEGIN ...-----)",
            FileFault::DamagedPem => "a PEM section in it is cut off or damaged",
            FileFault::NoCertificate => "there is no certificate in it",
            FileFault::KeyForCertificate => "it holds a key, not a certificate",
            FileFault::RequestForCertificate => "it holds a request for a certificate, not the certificate",
            FileFault::NoKey => "there is no private key in it",
            FileFault::CertificateForKey => "it holds a certificate, not a key",
            FileFault::EncryptedKey => "its key is encrypted, and nobody is there to give the passphrase",
            FileFault::UnusableKey => "its key is damaged, or of a kind that TLS does not use",
            FileFault::NoRoots => "no certificate in it can be a root",
            FileFault::NoSystemRoots => "this machine has no store of roots that can be read",
        };
        text.to_owned()
    }

    /// Advice to the operator.
    pub fn remedy(&self) -> String {
        let file = self.file.display();
        match &self.fault {
            FileFault::Read(error) if error.kind() == io::ErrorKind::NotFound => {
                format!("nothing is at {file}; relative paths start from the configuration's directory")
            }
            FileFault::Read(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                format!("let the gateway's user read it and enter its directories (namei -l {file} shows them)")
            }
            FileFault::Read(_) | FileFault::NotAFile => "name a regular file".to_owned(),
            FileFault::TooLarge => "name a file that has nothing but the certificates or the key".to_owned(),
            FileFault::NotPem => format!(
                "if it is DER: openssl x509 -inform der -in {file} -out cert.pem, or openssl pkey -inform der for a key"
            ),
            FileFault::DamagedPem => "copy it again, whole lines from -----BEGIN to -----END".to_owned(),
            FileFault::NoCertificate => "name the PEM file of the certificate and its chain, fullchain.pem".to_owned(),
            FileFault::KeyForCertificate => {
                "name the file of the certificate here; the private key is `key`".to_owned()
            }
            FileFault::RequestForCertificate => "name the file that the authority has sent back".to_owned(),
            FileFault::NoKey => "name the PEM file of the private key, privkey.pem".to_owned(),
            FileFault::CertificateForKey => {
                "name the file of the private key here; the certificate is `cert`".to_owned()
            }
            FileFault::EncryptedKey => format!("write it without a passphrase: openssl pkey -in {file} -out plain.pem"),
            FileFault::UnusableKey => {
                "use an RSA key of 2048 to 8192 bits, an ECDSA key on P-256, P-384 or P-521, or an Ed25519 key"
                    .to_owned()
            }
            FileFault::NotX509(_) => {
                format!("see what is in it: openssl crl2pkcs7 -nocrl -certfile {file} | openssl pkcs7 -print_certs")
            }
            FileFault::KeyDoesNotFit { certificate } => format!(
                "name the key that the certificate was made for: openssl pkey -in {file} -pubout and \
                 openssl x509 -in {} -noout -pubkey print the same",
                certificate.display()
            ),
            FileFault::NoRoots => "name a PEM file of the authority's own certificates".to_owned(),
            FileFault::NoSystemRoots => {
                "install ca-certificates, or name the roots: tls = { ca = \"ca.pem\" }".to_owned()
            }
        }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.reason())
    }
}

impl std::error::Error for FileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            FileFault::Read(error) => Some(error),
            _ => None,
        }
    }
}

/// All of a small file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, FileFault> {
    let bytes = read_regular(path, MAX_FILE_BYTES).map_err(|error| match error.kind() {
        io::ErrorKind::Other => FileFault::NotAFile,
        _ => FileFault::Read(error),
    })?;
    if bytes.len() > MAX_FILE_BYTES { Err(FileFault::TooLarge) } else { Ok(bytes) }
}
