//! The files that a configuration names, of certificates, keys and plans: where they are, and how they are looked at.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::findings::Reported;
use sluicegate_time::Wall;
use sluicegate_tls::Roots;

/// How the files of certificates and keys are looked at. The moment is the machine's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificates {
    /// They are not read, for whoever serves nobody: listeners have no identities, upstreams no roots.
    Unread,
    /// Nor are they, but files of plans are: for the caller that decides about requests and serves nobody.
    PlansAlone(Wall),
    /// A certificate that has expired or is not valid yet is an error: for `check`.
    Strict(Wall),
    /// Such a certificate is a warning: to run with it is better than not to run.
    Lenient(Wall),
}

impl Certificates {
    /// Whether certificates and keys are read.
    pub(super) fn are_read(self) -> bool {
        matches!(self, Self::Strict(_) | Self::Lenient(_))
    }

    /// Whether rules that come from elsewhere are read where they are kept: for the caller that decides about requests.
    pub(super) fn are_kept_rules_read(self) -> bool {
        self != Self::Unread
    }
}

/// The state of the files while one configuration is lowered.
pub(super) struct CertificateFiles {
    directory: PathBuf,
    /// The same as the configuration's own path has it.
    shown: PathBuf,
    certificates: Certificates,
    paths: RefCell<BTreeSet<PathBuf>>,
    /// Every upstream without a CA of its own has them, and to read them takes long.
    system_roots: OnceCell<Result<Roots, Reported>>,
    /// Bodies that were read.
    bodies: RefCell<HashMap<PathBuf, Arc<[u8]>>>,
}

impl CertificateFiles {
    /// None yet; relative paths start from the directory of `file`.
    pub(super) fn new(file: &Path, certificates: Certificates) -> Self {
        let shown = file.parent().unwrap_or(Path::new("")).to_owned();
        // `absolute` fails only where there is no working directory; the path is then as good as it can be.
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        let directory = file.parent().unwrap_or(Path::new("")).to_owned();
        let (paths, bodies) = (RefCell::default(), RefCell::default());
        Self { directory, shown, certificates, paths, system_roots: OnceCell::new(), bodies }
    }

    /// A path that starts at the configuration's directory.
    pub(super) fn beside(&self, path: &str) -> PathBuf {
        self.directory.join(path)
    }

    /// Where a file is that the configuration names. It is remembered, whether it can be read or not.
    pub(super) fn locate(&self, path: &str) -> PathBuf {
        let path = self.directory.join(path);
        self.paths.borrow_mut().insert(path.clone());
        path
    }

    /// Remembers a file that matters.
    pub(super) fn note(&self, path: &Path) {
        self.paths.borrow_mut().insert(path.to_owned());
    }

    /// The same as messages name it.
    pub(super) fn shown(&self, path: &str) -> PathBuf {
        self.shown.join(path)
    }

    /// How they are looked at.
    pub(super) fn certificates(&self) -> Certificates {
        self.certificates
    }

    /// The content of a file, as it was read before.
    pub(super) fn kept(&self, path: &Path) -> Option<Arc<[u8]>> {
        self.bodies.borrow().get(path).cloned()
    }

    /// Keeps what was read of a file, for the next section that names it.
    pub(super) fn keep(&self, path: PathBuf, bytes: Vec<u8>) -> Arc<[u8]> {
        let bytes: Arc<[u8]> = bytes.into();
        self.bodies.borrow_mut().insert(path, Arc::clone(&bytes));
        bytes
    }

    /// The machine's roots, read once.
    pub(super) fn system_roots(&self, read: impl FnOnce() -> Result<Roots, Reported>) -> Result<Roots, Reported> {
        self.system_roots.get_or_init(read).clone()
    }

    /// All that were located, sorted.
    pub(super) fn into_paths(self) -> Vec<PathBuf> {
        self.paths.into_inner().into_iter().collect()
    }
}
