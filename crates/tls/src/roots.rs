use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

use super::file::{self, FileError, FileFault};
use super::{digest, identity};

/// The authorities that certificates of the other side are verified by.
#[derive(Clone)]
pub struct Roots {
    store: Arc<RootCertStore>,
    /// The certificates of the file themselves; none of the machine's, where nobody has named one of them.
    named: Arc<[CertificateDer<'static>]>,
    digest: [u8; 32],
}

impl Roots {
    /// Those of a PEM file. Every certificate in it has to be one that can be a root.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let fault = |fault| FileError { file: path.to_owned(), fault };
        let certificates = identity::certificates(&file::read(path).map_err(fault)?).map_err(fault)?;
        let mut store = RootCertStore::empty();
        for (index, certificate) in certificates.iter().enumerate() {
            store.add(certificate.clone()).map_err(|_| fault(FileFault::NotX509(index + 1)))?;
        }
        let named: Arc<[_]> = certificates.into();
        let digest = digest_of(&named);
        Ok(Self { store: Arc::new(store), named, digest })
    }

    /// Those of this machine. Files that cannot be read among them are left out, as browsers do.
    pub fn system() -> Result<Self, FileError> {
        let found = rustls_native_certs::load_native_certs();
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(found.certs.iter().cloned());
        if store.is_empty() {
            return Err(FileError { file: PathBuf::from("system roots"), fault: FileFault::NoSystemRoots });
        }
        Ok(Self { store: Arc::new(store), named: Arc::default(), digest: digest_of(&found.certs) })
    }

    /// Nobody: of a file that is not read.
    pub fn none() -> Self {
        Self { store: Arc::new(RootCertStore::empty()), named: Arc::default(), digest: digest_of(&[]) }
    }

    /// SHA-256 over the certificates.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    pub(super) fn store(&self) -> &Arc<RootCertStore> {
        &self.store
    }

    pub(super) fn named(&self) -> &Arc<[CertificateDer<'static>]> {
        &self.named
    }
}

impl PartialEq for Roots {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Roots {}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Roots({})", self.store.len())
    }
}

fn digest_of(certificates: &[CertificateDer<'_>]) -> [u8; 32] {
    digest(certificates.iter().map(|certificate| &**certificate))
}
