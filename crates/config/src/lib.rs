//! The text of `gateway.toml` -> an immutable [`Model`], with every mistake told at once; and the plan of a reload.
//!
//! It is [`parse`] and [`load`], which report every error of a file in one run, each with its line, a caret and the
//! remedy; and [`diff`], which says what a new model changes. It is not the place where anything runs: it opens no
//! sockets, resolves no names and builds nothing that runs; it reads one file, and the certificates, keys, plans and
//! kept rules that this file names.
//!
//! Invariants:
//! - a [`Model`] can be built: every name refers to something, every number is in its range;
//! - nothing in the file is ignored: a key that this version does not know, or not yet, is an error;
//! - no input panics: whatever the bytes, the result is a model or a report.
//!
//! Caller: gateway, at start and at each reload; cli, for `check`.
//!
//! Inside: the TOML parser gives tables with the place of every key and value and goes on after a syntax error;
//! `reader` reads such a table key by key. A file in `sections` declares a section's keys by the macro of `section`, each
//! with its `kind`, and has the rules between them; `lower` puts sections together, and has the tables within a route.
//! `form` says which values a key takes: `schema`, and `docs/reference.md`, are made of that.
//! `followed` finds rules that come from elsewhere. `plans` reads files of plans, whose keys are too many for such tables.
//! `findings` collects, `hidden` finds what is not shown, `report` prints. The declarations tell what a reload changes, in
//! `change`; `describe*` tells it of the rest.

#[macro_use]
extern crate sluicegate_words;

mod address;
mod callers;
mod certificates;
mod change;
mod describe;
mod describe_bandwidth;
mod describe_edits;
mod describe_order;
mod describe_plans;
mod diff;
mod findings;
mod followed;
mod followed_text;
mod form;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod golden_admin;
#[cfg(test)]
mod golden_admission;
#[cfg(test)]
mod golden_alerts;
#[cfg(test)]
mod golden_bandwidth;
#[cfg(test)]
mod golden_edits;
#[cfg(test)]
mod golden_follow;
#[cfg(test)]
mod golden_outages;
#[cfg(test)]
mod golden_plans;
#[cfg(test)]
mod golden_proxy_protocol;
#[cfg(test)]
mod golden_schedule;
#[cfg(test)]
mod golden_sinks;
#[cfg(test)]
mod golden_tls;
mod hidden;
mod key;
mod kind;
#[cfg(test)]
mod known_keys;
mod lower;
mod model;
mod names;
mod nearest;
mod networks;
mod outline;
mod plans;
mod reader;
#[cfg(test)]
mod reference;
mod report;
#[cfg(test)]
mod reports;
mod schema;
mod section;
mod sections;
mod size;
mod statuses;
mod syntax;
#[cfg(test)]
mod tests;
mod token;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use toml::de::DeTable;

use self::certificates::CertificateFiles;
use self::findings::{Finding, Findings};
use self::followed::Search;

pub use self::address::{ListenAddress, ServerAddress};
pub use self::callers::changes_of_callers;
pub use self::certificates::Certificates;
pub use self::change::{Change, Fate};
pub use self::diff::{Item, Part, Plan, diff, removed};
pub use self::followed::{Candidate, FollowedCopy, MAX_FOLLOWED_BYTES, TextOrigin};
pub use self::lower::numbers_of_key;
pub use self::model::{
    Action, BandwidthSpec, Body, CollapseRules, Cors, Direction, LimitId, LimitRule, MessageOver, MessageRules, Model,
    OnLimit, PlanLimit, Preflight, Refusal, RefusalBody, RouteEdits, RouteSpec,
};
pub use self::nearest::nearest;
pub use self::plans::{
    KnownPlans, NoLine as NoPlansLine, PlanBook, PlansEntry, entry as plans_entry, is_header as is_keys_header,
};
pub use self::report::{Diagnostic, Errors, Place, Severity, Warnings};
pub use self::schema::text as json_schema;
pub use self::sections::admin::{
    Admin, AdminCertificate, AdminClient, AdminRole, AdminToken, RulesAccess, check_admin_name,
};
pub use self::sections::alert::{Alert, Webhook};
pub use self::sections::client::Client;
pub use self::sections::dead_letter::{DeadLetter, Fsync};
pub use self::sections::decides::{Decides, DescribedBy};
pub use self::sections::deferred::DeferredRoom;
pub use self::sections::fleet::{Fleet, FleetPassword};
pub use self::sections::in_flight::MaxInFlight;
pub use self::sections::jwt::{JwksFile, JwksSource, Jwt};
pub use self::sections::listener::{ListenerProtocol, ListenerSpec, ProxyProtocol, Redirect};
pub use self::sections::log::{AccessFormat, Log, LogFormat, check_level};
pub use self::sections::outages::{BreakerSpec, Eject, Health, HealthProtocol, Retry};
pub use self::sections::overload::{Overload, ResponseTime};
pub use self::sections::route::MAX_CAPTURED_BODY;
pub use self::sections::rules::{Follow, RulesAddress};
pub use self::sections::secret_file::FileSecret;
pub use self::sections::server::{RateHeaders, Server, Traceparent};
pub use self::sections::sink::Sink;
pub use self::sections::upstream::{ServerSpec, UpstreamSpec};
pub use self::statuses::{StatusCosts, StatusSet};

use sluicegate_files::read_regular;
use sluicegate_tls::ClientCertificates;

/// The largest file that is read. A larger one is an error: it is surely another file.
pub const MAX_FILE_BYTES: usize = 4 << 20;

/// A file that can be used.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The configuration.
    pub model: Model,
    /// Its parts that were surely not meant.
    pub warnings: Warnings,
}

/// A file that was read and can be used.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration.
    pub model: Model,
    /// Its parts that were surely not meant.
    pub warnings: Warnings,
    /// SHA-256 over the text and what was read from the files that it names, to see whether a later one differs.
    pub digest: [u8; 32],
    /// SHA-256 over the text alone.
    pub text_digest: [u8; 32],
    /// The text.
    pub text: String,
    /// The files of certificates, keys and plans that it names, and of followed rules, sorted; absolute, as it spells them.
    pub files: Vec<PathBuf>,
}

/// Why a file cannot be used.
#[derive(Debug)]
pub enum LoadError {
    /// It cannot be read.
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It says something that it must not.
    Invalid {
        /// The errors.
        errors: Errors,
        /// The files of certificates, keys and plans that it names, as far as it could be read: one of them may be what is
        /// wrong.
        files: Vec<PathBuf>,
    },
    /// Its rules come from elsewhere, and are not known.
    Unfollowed {
        /// Why not, and how to mend it.
        report: String,
        /// As above.
        files: Vec<PathBuf>,
    },
}

/// Parses the text of `file`. The file itself is not touched: its name is for the report, its directory for the
/// relative paths in it. The files that it names are read as `certificates` says.
pub fn parse(text: &str, file: &Path, certificates: Certificates) -> Result<Parsed, Errors> {
    let (files, known) = (CertificateFiles::new(file, certificates), KnownPlans::default());
    parse_with(text, file, None, &files, &known)
}

/// Reports hide by the words of the file.
fn declare_words() {
    hidden::declare(sections::FILE.iter().map(|section| (section.name, (section.rows)())));
}

/// The same. A `candidate` is followed in the place of the text that is kept.
fn parse_with(
    text: &str,
    file: &Path,
    candidate: Option<&Candidate>,
    files: &CertificateFiles,
    known: &KnownPlans,
) -> Result<Parsed, Errors> {
    declare_words();
    // Some editors put a byte order mark at the start; it is no part of the text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.len() > MAX_FILE_BYTES {
        return Err(refuse(file, "", None, TOO_LARGE, "name the gateway's own configuration file"));
    }
    let mended;
    let (mut root, mut broken) = DeTable::parse_recoverable(text);
    if let Some(syntax::Mended { text, errors }) = syntax::without_broken_headers(text, &broken) {
        mended = text;
        (root, broken) = DeTable::parse_recoverable(&mended);
        broken.extend(errors);
    }
    let findings = Findings::from_syntax(text, syntax::explain(text, broken));
    let search = Search { file, candidate, offset: text.len() + 1 };
    let model = lower::lower(root.get_ref(), search, (files, known), &findings);
    let warnings = report::judge(file, text, findings)?;
    #[cfg(test)]
    schema::tests::check_accepted(text);
    match model {
        Some(model) => Ok(Parsed { model, warnings }),
        None => {
            Err(refuse(file, "", None, "the file cannot be read", "this is a fault of the program: please report it"))
        }
    }
}

/// Reads and parses the file at `path`, and the files that it names as `certificates` says.
pub fn load(path: &Path, certificates: Certificates) -> Result<Loaded, LoadError> {
    load_again(path, certificates, &KnownPlans::default())
}

/// The same. A plans file that is `known` and has not changed is not built again.
pub fn load_again(path: &Path, certificates: Certificates, known: &KnownPlans) -> Result<Loaded, LoadError> {
    load_text(read_text(path)?, path, certificates, known)
}

/// The text of the file at `path`, right or wrong.
pub fn read_text(path: &Path) -> Result<String, LoadError> {
    let bytes = read(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
    let invalid = |errors| LoadError::Invalid { errors, files: Vec::new() };
    if bytes.len() > MAX_FILE_BYTES {
        return Err(invalid(refuse(path, "", None, TOO_LARGE, "name the gateway's own configuration file")));
    }
    String::from_utf8(bytes).map_err(|error| invalid(not_utf8(path, &error)))
}

/// The same as [`load_again`] for a text in the place of that of the file at `path`, which is not touched.
pub fn load_text(
    text: String,
    path: &Path,
    certificates: Certificates,
    known: &KnownPlans,
) -> Result<Loaded, LoadError> {
    load_with(text, path, None, certificates, known)
}

/// The same as [`load_again`] with a text in the place of the followed one that is kept, which is not touched.
pub fn load_following(
    candidate: &Candidate,
    path: &Path,
    certificates: Certificates,
    known: &KnownPlans,
) -> Result<Loaded, LoadError> {
    load_with(read_text(path)?, path, Some(candidate), certificates, known)
}

fn load_with(
    text: String,
    path: &Path,
    candidate: Option<&Candidate>,
    certificates: Certificates,
    known: &KnownPlans,
) -> Result<Loaded, LoadError> {
    let files = CertificateFiles::new(path, certificates);
    let parsed = parse_with(&text, path, candidate, &files, known);
    let files = files.into_paths();
    match parsed {
        Ok(Parsed { model, warnings }) => {
            let text_digest = Sha256::digest(&text).into();
            Ok(Loaded { digest: digest(&text, &model), text_digest, text, model, warnings, files })
        }
        Err(errors) => Err(LoadError::Invalid { errors, files }),
    }
}

/// [`Loaded::text_digest`] of the file as it is now, right or wrong; `None` if it cannot be read.
pub fn text_digest(path: &Path) -> Option<[u8; 32]> {
    Some(Sha256::digest(read(path).ok()?).into())
}

/// The file's bytes; of one that is too large one more than is allowed.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_regular(path, MAX_FILE_BYTES)
}

/// The text, and the content of the files: the text alone fixes how many of them there are and in which order.
fn digest(text: &str, model: &Model) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update((text.len() as u64).to_le_bytes());
    hash.update(text);
    let of_admin = model.admin.iter().filter_map(|admin| admin.tls.as_ref());
    for tls in model.listeners.iter().filter_map(|listener| listener.tls.as_ref()).chain(of_admin) {
        tls.identities.iter().for_each(|identity| hash.update(identity.digest()));
        if let ClientCertificates::Optional(roots) | ClientCertificates::Required(roots) = &tls.clients {
            hash.update(roots.digest());
        }
    }
    let roots = model.upstreams.iter().filter_map(|upstream| upstream.tls.as_ref()?.roots.as_ref());
    roots.for_each(|roots| hash.update(roots.digest()));
    for bytes in bodies(model) {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    }
    model.fleet.iter().for_each(|fleet| hash.update(fleet.digest()));
    let seal_key = model.dead_letter.as_ref().and_then(|section| section.seal_key_file.as_ref()?.bytes());
    hash.update(seal_key.map_or(&[][..], |key| key));
    let alerts = model.dead_letter.iter().flat_map(|section| &section.alerts);
    alerts.filter_map(|alert| alert.secret_file.as_ref()?.bytes()).for_each(|key| hash.update(key));
    let sinks = model.dead_letter.iter().flat_map(|section| &section.sinks);
    sinks.filter_map(|sink| sink.secret_file.as_ref()?.bytes()).for_each(|key| hash.update(key));
    model.routes.iter().filter_map(|route| route.plans.as_ref()).for_each(|book| hash.update(book.digest()));
    hash.update(model.followed.unwrap_or_default());
    hash.update(model.jwt.as_ref().map_or([0; 32], |jwt| jwt.jwks.digest()));
    model.follow.iter().filter_map(|follow| follow.ca.as_ref()).for_each(|roots| hash.update(roots.digest()));
    hash.finalize().into()
}

/// Everything that answers say, from whichever file.
fn bodies(model: &Model) -> impl Iterator<Item = &[u8]> {
    let responses = model.routes.iter().filter_map(|route| match &route.action {
        Action::Respond { body, .. } => Some(&*body.bytes),
        Action::Forward(_) | Action::Redirect { .. } => None,
    });
    let of_limits = model.limits.iter().filter_map(|limit| limit.refusal.as_ref());
    let refusals = of_limits.chain(model.routes.iter().filter_map(|route| route.refusal.as_ref()));
    responses.chain(refusals.filter_map(|refusal| Some(refusal.body.as_ref()?.text.source().as_bytes())))
}

impl fmt::Display for LoadError {
    /// With the cause, so that one line says all.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, source } => {
                write!(f, "cannot read {}: {source}", path.display())?;
                // Without a word about it, this is the file that is looked for.
                let is_default = path == Path::new("gateway.toml") && source.kind() == io::ErrorKind::NotFound;
                f.write_str(if is_default { "; name the file: -c FILE" } else { "" })
            }
            Self::Invalid { errors, .. } => write!(f, "{errors}"),
            Self::Unfollowed { report, .. } => f.write_str(report),
        }
    }
}

impl std::error::Error for LoadError {}

const TOO_LARGE: &str = "the file is larger than 4 MiB";

/// A report of one error about the file as a whole, or about one place of it.
fn refuse(file: &Path, text: &str, at: Option<std::ops::Range<usize>>, message: &str, help: &str) -> Errors {
    let findings = Findings::default();
    findings.push(Finding::syntax(at, message).help(help));
    report::failure(file, text, findings)
}

fn not_utf8(file: &Path, error: &std::string::FromUtf8Error) -> Errors {
    let bytes = error.as_bytes();
    let help = "save it as UTF-8";
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return refuse(file, "", None, "the file is UTF-16, not UTF-8", help);
    }
    // Up to the bad byte the lossy text is the same, and the bad byte itself became one character.
    let text = String::from_utf8_lossy(bytes);
    let at = error.utf8_error().valid_up_to();
    refuse(file, &text, Some(at..at + '\u{fffd}'.len_utf8()), "this is not UTF-8", help)
}
