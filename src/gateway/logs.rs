//! The logs of traffic as the file asks for them, and what keeps secrets out: the key of the marks, the names that the file adds.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::error::BuildError;
use crate::config::{self, AccessFormat, DeadLetter, Model};
use crate::dead_letter::DeadLetters;
use crate::redact::{RedactRules, Redactor, Secret, SecretError};
use crate::telemetry::{AccessLog, AccessLogFormat};
use crate::time::Clock;

/// The log of the process, as whoever has started it holds it.
pub trait Logging: Send + Sync + 'static {
    /// Takes a new `[log]` over.
    fn renew(&self, log: &config::Log);

    /// Sets its level, a filter that was checked.
    fn set_level(&self, level: &str);

    /// Opens its file anew; false if it has none.
    fn reopen(&self) -> bool;
}

/// That of a model. Without a `[dead_letter]` section the key is that of before, or at first a random one: the access log alone
/// needs no marks that last.
///
/// # Errors
/// The file with the key cannot be used. If nobody named one and none can be made, that is a warning and no error.
pub fn redactor(model: &Model, before: Option<&Redactor>) -> Result<Redactor, BuildError> {
    let rules = rules(model);
    let passing = || before.map_or_else(|| Redactor::new(&rules), |redactor| redactor.with_rules(&rules));
    let Some(section) = &model.dead_letter else { return Ok(passing()) };
    let path =
        section.redact_secret_file.clone().unwrap_or_else(|| DeadLetter::default_secret_file(&section.directory));
    let secret = match &section.redact_secret_file {
        Some(path) => Secret::load_or_make(path),
        None => beside(&path),
    };
    match secret {
        Ok(secret) => {
            if secret.is_group_writable() {
                tracing::warn!("the group of {} may write it, and so choose the key of the marks", path.display());
            }
            Ok(Redactor::with_secret(&secret, &rules))
        }
        Err(error @ SecretError::Make(..)) if section.redact_secret_file.is_none() => {
            tracing::warn!("{error}; marks of this run cannot be matched with those of others");
            Ok(passing())
        }
        Err(error) => Err(BuildError::RedactSecret(error)),
    }
}

/// That of a file that may be another machine's: with the key of the marks if it is there and may be read, else with a random
/// one. Nothing is made.
pub fn redactor_offline(model: &Model) -> Redactor {
    let rules = rules(model);
    let path = model.dead_letter.as_ref().map(|section| {
        section.redact_secret_file.clone().unwrap_or_else(|| DeadLetter::default_secret_file(&section.directory))
    });
    match path.map(|path| Secret::load(&path)) {
        Some(Ok(Some(secret))) => Redactor::with_secret(&secret, &rules),
        _ => Redactor::new(&rules),
    }
}

/// The one at `path` beside the log's directory, whose parents are made as the log makes them.
fn beside(path: &Path) -> Result<Secret, SecretError> {
    if let Some(parent) = path.parent() {
        // If it fails, so does what follows, and says why.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(parent);
    }
    Secret::load_or_make(path)
}

/// The names that the file calls secret, or open, beside those that every redactor knows.
fn rules(model: &Model) -> RedactRules {
    let mut rules = RedactRules::default();
    rules.secret.extend(model.dead_letter.iter().flat_map(|section| section.redact.iter().cloned()));
    for limit in &model.limits {
        let names = limit.key.fields().map(str::to_owned);
        match limit.key_is_secret {
            Some(true) => rules.secret.extend(names),
            Some(false) => rules.open.extend(names),
            None => {}
        }
    }
    rules
}

/// Opens the dead-letter log, if the file asks for one.
pub fn start_dead_letters(
    model: &Model,
    redactor: &Redactor,
    clock: &Clock,
) -> Result<Option<DeadLetters>, BuildError> {
    let Some(section) = &model.dead_letter else { return Ok(None) };
    let started = DeadLetters::start(section.clone(), redactor.clone(), &node_name(), clock.clone());
    started.map(Some).map_err(|source| dead_letters_error(section, source))
}

/// Goes on with other settings of `[dead_letter]`.
pub fn reconfigure_dead_letters(
    model: &Model,
    redactor: &Redactor,
    log: Option<&DeadLetters>,
) -> Result<(), BuildError> {
    let (Some(section), Some(log)) = (&model.dead_letter, log) else { return Ok(()) };
    log.reconfigure(section.clone(), redactor.clone()).map_err(|source| dead_letters_error(section, source))
}

fn dead_letters_error(section: &DeadLetter, source: io::Error) -> BuildError {
    BuildError::DeadLetters { directory: section.directory.display().to_string(), source }
}

/// The machine's name, as it appears in the names of segments.
fn node_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String =
        name.trim().chars().filter(|c| c.is_ascii_alphanumeric() || ".-_".contains(*c)).take(64).collect();
    if name.is_empty() { "node".into() } else { name }
}

/// Opens the access log, if the file asks for one.
pub fn open_access_log(model: &Model, redactor: &Redactor) -> Result<Option<AccessLog>, BuildError> {
    let format = match model.log.access {
        AccessFormat::Off => return Ok(None),
        AccessFormat::Json => AccessLogFormat::Json,
        AccessFormat::Combined => AccessLogFormat::Combined,
    };
    let Some(path) = &model.log.access_file else {
        return Ok(Some(AccessLog::start(format, redactor.clone(), Box::new(std::io::stdout()))));
    };
    let opened = AccessLog::to_file(format, redactor.clone(), path);
    opened.map(Some).map_err(|source| BuildError::LogFile { path: path.clone(), source })
}
