//! A replay as a request asks for it, and the settings and the order of any replay.

use std::collections::HashSet;
use std::path::Path;

use serde::Deserialize;

use super::journal::{Journal, Settings, sent};
use super::request::Means;
use super::run::RecordsToReplay;
use super::scheduler::MAX_TRIES;
use sluicegate_config::{FileSecret, Model};
use sluicegate_dead_letter::{Filter, KeyFilter, Opener, Reason, StatusFilter, When, parse_network};
use sluicegate_limiter::Rate;
use sluicegate_redact::Redactor;
use sluicegate_time::{Span, Wall};

/// How long an answer may take, where nobody says so.
pub const TIMEOUT: Span = Span::from_secs(30);
/// How fast records go, where nobody says so.
pub const RATE: &str = "10/s";
/// How many go at once, where nobody says so.
pub const PARALLEL: u32 = 4;
/// The most that may go at once.
pub const MAX_PARALLEL: u32 = 256;
/// How often a record may be tried at the most.
pub const MOST_TRIES: u32 = 100;

/// The words of a request for a replay. Filters are those of `sluicegate dead-letters ls`, the others those of `replay`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReplayQuery {
    since: Option<String>,
    until: Option<String>,
    limit: Option<String>,
    route: Option<String>,
    reason: Option<String>,
    key: Option<String>,
    client: Option<String>,
    status: Option<String>,
    to: Option<String>,
    rate: Option<String>,
    parallel: Option<u32>,
    methods: Vec<String>,
    max_tries: Option<u32>,
    timeout: Option<String>,
    again: bool,
    without_redacted: bool,
    /// Says what would be sent, and sends nothing.
    pub dry_run: bool,
    /// Goes on with the replay of this name.
    pub resume: Option<String>,
}

impl ReplayQuery {
    /// Its settings, if it is a new replay.
    ///
    /// # Errors
    /// In words: the member that is wrong, and how to mend it.
    pub fn settings(&self, now: Wall) -> Result<Settings, String> {
        let when = |name: &str, text: &Option<String>| match text {
            Some(text) => {
                let when = text.parse::<When>().map_err(|error| format!("{name:?}: {error}"))?;
                Ok(Some(when.resolve(now)))
            }
            None => Ok::<_, String>(None),
        };
        let rate = self.rate.as_deref().unwrap_or(RATE);
        rate.parse::<Rate>().map_err(|error| format!("\"rate\": {error}"))?;
        if let Some(to) = self.to.as_deref().filter(|to| to.contains("://")) {
            // Whoever may ask for a replay need not be one who may read what was redacted, and a URL could be theirs.
            let shown = if to.contains('@') { "a URL" } else { to };
            return Err(format!(
                "\"to\": name an upstream of the file, or leave it out: records go to the gateway then. To send to {shown}, use \
                 `sluicegate dead-letters replay --to` on the gateway's machine"
            ));
        }
        let within = |name: &str, given: Option<u32>, of: u32, most: u32| match given.unwrap_or(of) {
            given if (1..=most).contains(&given) => Ok(given),
            given => Err(format!("{name:?}: use a number from 1 to {most}, not {given}")),
        };
        let settings = Settings {
            since: when("since", &self.since)?.map(Wall::as_nanos),
            // Requests that are refused from now on are for the next replay.
            until: when("until", &self.until)?.unwrap_or(now).as_nanos(),
            limit: self.limit.clone(),
            route: self.route.clone(),
            reason: self.reason.clone(),
            failures_only: self.reason.is_none() && self.limit.is_none(),
            client: self.client.clone(),
            status: self.status.clone(),
            has_key: self.key.is_some(),
            to: self.to.clone(),
            rate: rate.to_owned(),
            parallel: within("parallel", self.parallel, PARALLEL, MAX_PARALLEL)?,
            methods: self.methods.clone(),
            max_tries: within("max_tries", self.max_tries, MAX_TRIES, MOST_TRIES)?,
            again: self.again,
            without_redacted: self.without_redacted,
            timeout: self.timeout()?.as_nanos(),
        };
        settings.filter(None)?;
        settings.methods()?;
        Ok(settings)
    }

    /// The settings of a replay that goes on: only its pace may be another one.
    ///
    /// # Errors
    /// In words.
    pub fn resumed(&self, mut settings: Settings) -> Result<Settings, String> {
        let filters =
            [&self.since, &self.until, &self.limit, &self.route, &self.reason, &self.client, &self.status, &self.to];
        if filters.iter().any(|given| given.is_some()) || !self.methods.is_empty() || self.again {
            return Err(
                "\"resume\" goes on with what the replay was begun with: beside it only rate, parallel, max_tries, \
                        timeout, without_redacted and key may stand"
                    .to_owned(),
            );
        }
        if settings.has_key && self.key.is_none() {
            return Err("this replay was of one \"key\", which is not kept in its journal: give it again".to_owned());
        }
        let pace = self.settings(Wall::EPOCH)?;
        settings.rate = self.rate.clone().unwrap_or(settings.rate);
        settings.parallel = if self.parallel.is_some() { pace.parallel } else { settings.parallel };
        settings.max_tries = if self.max_tries.is_some() { pace.max_tries } else { settings.max_tries };
        settings.timeout = if self.timeout.is_some() { pace.timeout } else { settings.timeout };
        settings.without_redacted |= self.without_redacted;
        Ok(settings)
    }

    /// The filter by key, which no journal keeps.
    pub fn key(&self, redactor: &Redactor) -> Option<KeyFilter> {
        self.key.as_deref().map(|key| KeyFilter::new(key, Some(redactor.clone())))
    }

    fn timeout(&self) -> Result<Span, String> {
        let Some(text) = &self.timeout else { return Ok(TIMEOUT) };
        let timeout = text.parse().map_err(|_| "\"timeout\": use a time, such as 30s".to_owned())?;
        check_timeout(timeout).map_err(|error| format!("\"timeout\" {error}"))
    }
}

/// How long an answer may take.
///
/// # Errors
/// It is out of range, in words.
pub fn check_timeout(timeout: Span) -> Result<Span, String> {
    if timeout < Span::from_millis(100) || timeout > Span::from_secs(600) {
        return Err(format!("{timeout} is out of range: it takes 100ms to 10m"));
    }
    Ok(timeout)
}

impl Settings {
    /// The records that it is about.
    fn filter(&self, key: Option<KeyFilter>) -> Result<Filter, String> {
        let wrong = |name: &str, error: String| format!("{name:?}: {error}");
        let reason = self.reason.as_deref().map(str::parse::<Reason>).transpose();
        let client = self.client.as_deref().map(parse_network).transpose();
        let status = self.status.as_deref().map(str::parse::<StatusFilter>).transpose();
        Ok(Filter {
            since: self.since.map(Wall::from_nanos),
            until: Some(Wall::from_nanos(self.until)),
            limit: self.limit.clone(),
            route: self.route.clone(),
            reason: reason.map_err(|error| wrong("reason", error.to_string()))?,
            key,
            client: client.map_err(|error| wrong("client", error))?,
            status: status.map_err(|error| wrong("status", error.to_string()))?,
        })
    }

    fn methods(&self) -> Result<Vec<http::Method>, String> {
        let method = |text: &String| parse_method(text).map_err(|error| format!("\"methods\": {error}"));
        self.methods.iter().map(method).collect()
    }

    /// The records that are sent, of a replay that begins, or of one that goes on with a `journal`. `seal_key`: in place of that
    /// of the file.
    ///
    /// # Errors
    /// In words: a setting, which may be one of a journal, cannot be read; or a journal cannot.
    pub fn order(
        &self,
        directory: &Path,
        key: Option<KeyFilter>,
        seal_key: Option<FileSecret>,
        model: Option<&Model>,
        journal: Option<&Journal>,
    ) -> Result<RecordsToReplay, String> {
        let of_file = || model.and_then(|model| model.dead_letter.as_ref()?.seal_key_file);
        let opener = seal_key.or_else(of_file).as_ref().and_then(FileSecret::bytes).map(Opener::new);
        Ok(RecordsToReplay {
            filter: self.filter(key)?,
            failures_only: self.failures_only,
            methods: self.methods()?,
            sent: if self.again { HashSet::new() } else { sent(directory).map_err(|error| error.to_string())? },
            done: journal.map(|journal| journal.done().clone()).unwrap_or_default(),
            means: Means { opener, without_redacted: self.without_redacted },
        })
    }
}

/// A method as requests have it: small letters are others.
///
/// # Errors
/// It is none, in words.
pub fn parse_method(text: &str) -> Result<http::Method, String> {
    let is_token = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    text.parse().ok().filter(|_| is_token).ok_or_else(|| "methods are in capital letters, like POST,PATCH".to_owned())
}
