//! The logs of traffic as the file asks for them, and what keeps secrets out: the key of the marks, the names that the file adds.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use super::component::Component;
use super::error::BuildError;
use crate::config::{self, AccessFormat, DeadLetter, Model};
use crate::dead_letter::{DeadLetters, NewSettings};
use crate::redact::{RedactRules, Redactor, Secret, SecretError};
use crate::telemetry::{AccessLog, AccessLogFormat};
use crate::time::Clock;

/// The log of the process, as the command that has started it holds it.
pub trait Logging: Send + Sync + 'static {
    /// Takes a new `[log]` over.
    fn renew(&self, log: &config::Log);

    /// Sets its level, a filter that was checked.
    fn set_level(&self, level: &str);

    /// Opens its file anew; false if it has none.
    fn reopen(&self) -> bool;
}

impl Component for Redactor {
    type Needs<'n> = ();
    type Staged = Self;

    fn stage(&self, model: &Arc<Model>, (): ()) -> Result<Self, BuildError> {
        redactor(model, self)
    }

    fn commit(&mut self, staged: Self) {
        *self = staged;
    }
}

/// The dead-letter log, if the file asks for one.
#[derive(Default)]
pub struct DeadLetterLog {
    log: Option<DeadLetters>,
    /// The log that the last model has no more.
    gone: Option<DeadLetters>,
}

/// The dead-letter log of a new generation.
pub enum NewDeadLetters {
    /// There is none.
    Off,
    /// It was started.
    Started(DeadLetters),
    /// The one that runs goes on, so.
    GoesOn(DeadLetters, Box<NewSettings>),
}

impl DeadLetterLog {
    /// The log.
    pub fn get(&self) -> Option<&DeadLetters> {
        self.log.as_ref()
    }

    /// Takes it away, to close it.
    pub fn take(&mut self) -> Option<DeadLetters> {
        self.log.take()
    }
}

impl NewDeadLetters {
    /// The log.
    pub fn get(&self) -> Option<&DeadLetters> {
        match self {
            Self::Off => None,
            Self::Started(log) | Self::GoesOn(log, _) => Some(log),
        }
    }
}

impl Component for DeadLetterLog {
    type Needs<'n> = (&'n Redactor, &'n Clock);
    type Staged = NewDeadLetters;

    fn stage(&self, model: &Arc<Model>, (redactor, clock): (&Redactor, &Clock)) -> Result<NewDeadLetters, BuildError> {
        let Some(section) = &model.dead_letter else { return Ok(NewDeadLetters::Off) };
        let failed = |source| BuildError::DeadLetters { directory: section.directory.display().to_string(), source };
        if let Some(log) = &self.log {
            let new = log.stage(section.clone(), redactor.clone()).map_err(failed)?;
            return Ok(NewDeadLetters::GoesOn(log.clone(), Box::new(new)));
        }
        let started = DeadLetters::start(section.clone(), redactor.clone(), &node_name(), clock.clone());
        started.map(NewDeadLetters::Started).map_err(failed)
    }

    fn commit(&mut self, staged: NewDeadLetters) {
        match staged {
            NewDeadLetters::GoesOn(log, new) => log.commit(*new),
            NewDeadLetters::Started(log) => self.log = Some(log),
            NewDeadLetters::Off => self.gone = self.log.take(),
        }
    }

    fn release(&mut self) {
        if let Some(gone) = self.gone.take() {
            gone.close();
        }
    }
}

/// The access log, if it is on.
#[derive(Default)]
pub struct AccessLogFile {
    log: Option<AccessLog>,
    /// The section that it is of.
    section: Option<config::Log>,
}

impl AccessLogFile {
    /// The log.
    pub fn get(&self) -> Option<&AccessLog> {
        self.log.as_ref()
    }

    /// Takes it away, to close it.
    pub fn take(&mut self) -> Option<AccessLog> {
        self.log.take()
    }
}

/// The access log of a new generation.
pub struct NewAccessLog {
    /// The log: that which runs, where nothing of it changes.
    pub log: Option<AccessLog>,
    redactor: Redactor,
    section: config::Log,
}

impl Component for AccessLogFile {
    type Needs<'n> = &'n Redactor;
    type Staged = NewAccessLog;

    fn stage(&self, model: &Arc<Model>, redactor: &Redactor) -> Result<NewAccessLog, BuildError> {
        let is_same = self.section.as_ref().is_some_and(|section| model.log.has_same_access(section));
        let kept = self.log.as_ref().filter(|_| is_same);
        let log = kept.map_or_else(|| open_access_log(model, redactor), |log| Ok(Some(log.clone())))?;
        Ok(NewAccessLog { log, redactor: redactor.clone(), section: model.log.clone() })
    }

    /// One that goes ends with the last exchange that writes to it.
    fn commit(&mut self, staged: NewAccessLog) {
        let NewAccessLog { log, redactor, section } = staged;
        if let Some(log) = &log {
            log.set_redactor(redactor);
        }
        *self = Self { log, section: Some(section) };
    }
}

/// The log of the process, which has started with the section that the file had then.
pub struct ProcessLog {
    log: Arc<dyn Logging>,
    section: config::Log,
    /// The level, where an operator has set it.
    level: Option<String>,
}

impl ProcessLog {
    /// As the process has started it.
    pub fn new(log: impl Logging, section: config::Log) -> Self {
        Self { log: Arc::new(log), section, level: None }
    }

    /// It, for who opens its file anew: that may take as long as a disk does.
    pub fn log(&self) -> Arc<dyn Logging> {
        Arc::clone(&self.log)
    }

    /// Sets the level, a filter that was checked, until the section changes.
    pub fn set_level(&mut self, level: &str) {
        self.log.set_level(level);
        self.level = Some(level.to_owned());
    }

    /// The level that holds, and that of the file.
    pub fn levels(&self) -> (&str, &str) {
        let of_file = &*self.section.level;
        (self.level.as_deref().unwrap_or(of_file), of_file)
    }
}

impl Component for ProcessLog {
    type Needs<'n> = ();
    type Staged = config::Log;

    fn stage(&self, model: &Arc<Model>, (): ()) -> Result<config::Log, BuildError> {
        Ok(model.log.clone())
    }

    /// A section that has changed takes the level of an operator away.
    fn commit(&mut self, section: config::Log) {
        if section != self.section {
            self.log.renew(&section);
            self.level = None;
            self.section = section;
        }
    }
}

/// That of a model. Without a `[dead_letter]` section the key is that of before, at first a random one: the access log alone
/// needs no marks that last.
///
/// # Errors
/// The file with the key cannot be used. If nobody named one and none can be made, that is a warning and no error.
fn redactor(model: &Model, before: &Redactor) -> Result<Redactor, BuildError> {
    let rules = rules(model);
    let passing = || before.with_rules(&rules);
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

/// The machine's name, as it appears in the names of segments.
fn node_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String =
        name.trim().chars().filter(|c| c.is_ascii_alphanumeric() || ".-_".contains(*c)).take(64).collect();
    if name.is_empty() { "node".into() } else { name }
}

/// Opens the access log, if the file asks for one.
fn open_access_log(model: &Model, redactor: &Redactor) -> Result<Option<AccessLog>, BuildError> {
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::{Mutex, PoisonError};

    use tempfile::TempDir;

    use super::*;
    use crate::gateway::testing::model;
    use crate::redact::ClipEnd;
    use crate::time::ManualClock;

    fn with(sections: &str) -> Arc<Model> {
        model(&format!(
            "[[listener]]\naddress = \"127.0.0.1:1\"\n{sections}\n[[route]]\nname = \"all\"\nrespond = {{}}\n"
        ))
    }

    fn clock() -> Clock {
        Clock::Manual(ManualClock::new())
    }

    fn redactor_of_nothing() -> Redactor {
        Redactor::new(&RedactRules::default())
    }

    #[test]
    fn marks_stay_the_same_and_names_are_secret_once_they_are_committed() {
        let mut redactor = redactor_of_nothing();
        let mark = redactor.header("authorization", "Bearer one", ClipEnd::Whole).into_owned();
        let tenant = with(
            "[[limit]]\nname = \"l\"\nrate = \"9/s\"\nkey = \"header:x-tenant\"\nkey_is_secret = true\n\
             [[route]]\nname = \"one\"\npath = \"/1\"\nrespond = {}\nlimits = [\"l\"]\n",
        );
        let staged = redactor.stage(&tenant, ()).unwrap();
        assert_eq!(redactor.header("x-tenant", "acme", ClipEnd::Whole), "acme", "it is not committed yet");
        redactor.commit(staged);
        assert_ne!(redactor.header("x-tenant", "acme", ClipEnd::Whole), "acme");
        assert_eq!(redactor.header("authorization", "Bearer one", ClipEnd::Whole), mark);
    }

    fn dead_letters(directory: &TempDir, more: &str) -> Arc<Model> {
        with(&format!("[dead_letter]\ndirectory = {:?}\n{more}", directory.path()))
    }

    #[test]
    fn a_dead_letter_log_goes_on_and_ends_with_its_section() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (redactor, clock) = (redactor_of_nothing(), clock());
        let mut log = DeadLetterLog::default();
        let stage = |log: &DeadLetterLog, model: &Arc<Model>| log.stage(model, (&redactor, &clock));
        let segment = |log: &DeadLetterLog| log.get().unwrap().stats().segment;
        assert!(stage(&log, &with("")).unwrap().get().is_none());

        let staged = stage(&log, &dead_letters(&one, "")).unwrap();
        assert!(log.get().is_none() && staged.get().is_some());
        log.commit(staged);
        let is_within =
            |path: Option<PathBuf>, directory: &TempDir| path.is_none_or(|path| path.starts_with(directory.path()));
        assert!(is_within(segment(&log), &one));

        drop(stage(&log, &dead_letters(&other, "")).unwrap());
        assert!(is_within(segment(&log), &one), "it was dropped");
        let blocked = one.path().join("blocked");
        std::fs::write(&blocked, "a file").unwrap();
        let nowhere = with(&format!("[dead_letter]\ndirectory = {:?}\n", blocked.join("log")));
        assert!(stage(&log, &nowhere).is_err(), "a file is in the way");

        let before = log.get().unwrap().clone();
        let staged = stage(&log, &dead_letters(&one, "max_record_rate = 1\n")).unwrap();
        log.commit(staged);
        assert_eq!(log.get().unwrap().stats().written, before.stats().written, "it is the same log");
        let staged = stage(&log, &with("")).unwrap();
        log.commit(staged);
        assert!(log.get().is_none());
    }

    #[test]
    fn an_access_log_is_opened_anew_only_where_its_keys_have_changed() {
        let directory = tempfile::tempdir().unwrap();
        let redactor = redactor_of_nothing();
        let with_file = |name: &str, more: &str| {
            let path = directory.path().join(name);
            with(&format!("[log]\naccess = \"json\"\naccess_file = {path:?}\n{more}"))
        };
        let is_there = |name: &str| directory.path().join(name).exists();
        let mut log = AccessLogFile::default();
        let staged = log.stage(&with_file("a.log", ""), &redactor).unwrap();
        assert!(log.get().is_none());
        log.commit(staged);
        assert!(log.get().is_some() && is_there("a.log"));

        std::fs::remove_file(directory.path().join("a.log")).unwrap();
        let staged = log.stage(&with_file("a.log", "level = \"debug\"\n"), &redactor).unwrap();
        log.commit(staged);
        assert!(log.get().is_some() && !is_there("a.log"), "it goes on with the file that it has");
        let staged = log.stage(&with_file("b.log", ""), &redactor).unwrap();
        log.commit(staged);
        assert!(is_there("b.log"));
        assert!(log.stage(&with_file("none/c.log", ""), &redactor).is_err());
        assert!(log.get().is_some(), "what is refused changes nothing");
        let staged = log.stage(&with(""), &redactor).unwrap();
        log.commit(staged);
        assert!(log.get().is_none());
    }

    /// Notes what it is told.
    #[derive(Clone, Default)]
    struct Told(Arc<Mutex<Vec<String>>>);

    impl Told {
        fn note(&self, what: String) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(what);
        }

        fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
        }
    }

    impl Logging for Told {
        fn renew(&self, log: &config::Log) {
            self.note(format!("renew {}", log.level));
        }

        fn set_level(&self, level: &str) {
            self.note(format!("level {level}"));
        }

        fn reopen(&self) -> bool {
            false
        }
    }

    #[test]
    fn the_level_of_an_operator_holds_until_the_section_changes() {
        let told = Told::default();
        let mut log = ProcessLog::new(told.clone(), with("").log.clone());
        log.set_level("debug");
        assert_eq!((log.levels(), told.take()), (("debug", "info"), vec!["level debug".to_owned()]));
        let staged = log.stage(&with("[client]\nipv6_prefix = 48\n"), ()).unwrap();
        log.commit(staged);
        assert_eq!((log.levels(), told.take()), (("debug", "info"), Vec::new()));
        let staged = log.stage(&with("[log]\nlevel = \"warn\"\n"), ()).unwrap();
        assert_eq!(log.levels(), ("debug", "info"));
        log.commit(staged);
        assert_eq!((log.levels(), told.take()), (("warn", "warn"), vec!["renew warn".to_owned()]));
    }
}
