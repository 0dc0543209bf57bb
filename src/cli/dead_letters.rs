//! `sluicegate dead-letters ls|show|stats|purge`: looks at the dead-letter log of a directory, or removes some of it, while
//! gateways write it or after. Data goes to stdout, everything else to stderr.
//!
//! The log holds what strangers sent: no control or direction character of it reaches the terminal as it is.

mod deferred;
mod names;
mod picture;
mod print;
mod purge;
mod replay;

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::{Args, Subcommand};
use ipnet::IpNet;

use super::key;
use crate::config::{self, DeadLetter};
use crate::dead_letter::{
    Filter, Found, KeyFilter, Reason, Snapshot, StatusFilter, StoreError, Summary, When, parse_network,
};
use crate::redact::{RedactRules, Redactor, Secret};
use crate::time::{Clock, Span, Wall};
use picture::write_picture;
use print::{Style, write_details, write_json, write_line, write_summary, write_summary_json};

/// How often `--follow` looks for more.
const POLL: Duration = Duration::from_millis(200);
/// The number of entries that `ls --follow` shows first unless told otherwise.
const FOLLOW_LAST: usize = 10;
/// The most that `--last` holds in memory.
const MAX_LAST: usize = 100_000;

/// The longest time that a picture shows whatever happened in it.
const MAX_STRETCH: Span = Span::from_secs(24 * 3600);

/// The end of the help of `dead-letters`.
pub const EXAMPLES: &str = "Examples:
  sluicegate dead-letters ls --last 20
  sluicegate dead-letters ls --follow --reason rate-limited
  sluicegate dead-letters stats --since 1h
  sluicegate dead-letters purge --until 7d
  sluicegate dead-letters -d /var/lib/sluicegate/dead-letters stats --json";

/// Requests that were refused or timed out, as the dead-letter log has them
#[derive(Args, Debug)]
pub struct DeadLettersArguments {
    /// The log's directory [default: that of the configuration]
    #[arg(short, long, global = true, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// The key of the marks that stand for secrets [default: that of the configuration, or DIR.secret]
    #[arg(long, global = true, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// The action
    #[command(subcommand)]
    pub command: DeadLettersCommand,
}

/// The actions on dead letters.
#[derive(Subcommand, Debug)]
pub enum DeadLettersCommand {
    /// List records, oldest first
    #[command(after_help = "Examples:
  sluicegate dead-letters ls --last 20
  sluicegate dead-letters ls --follow --reason rate-limited
  sluicegate dead-letters ls --since 15m --client 192.0.2.0/24 --status 5xx
  sluicegate dead-letters ls --json --since 2026-01-02 | jq -r .path | sort | uniq -c")]
    Ls(LsArgs),
    /// Show one record in full
    #[command(after_help = "Example:
  sluicegate dead-letters show 019b7e1c-5a1e-7b3a-9d5e-2f6d3c1a0b9e")]
    Show(ShowArgs),
    /// Sum up: by reason, limit, route, key and client, with a picture over time
    #[command(after_help = "Examples:
  sluicegate dead-letters stats --since 1h
  sluicegate dead-letters stats --limit per-client --json")]
    Stats(StatsArgs),
    /// Send records again, at a rate that the servers can take
    #[command(after_help = replay::EXAMPLES)]
    Replay(Box<replay::ReplayArgs>),
    /// Remove what `ls` lists with the same filters: says how much, and asks. Without a filter all goes
    #[command(after_help = "Examples:
  sluicegate dead-letters purge --until 7d
  sluicegate dead-letters purge --client 192.0.2.7 --yes")]
    Purge(PurgeArgs),
    /// List the requests that are kept to be sent later (`on_limit = "defer"`), or show one
    #[command(after_help = deferred::EXAMPLES)]
    Deferred(deferred::DeferredArgs),
    /// Print a new key for `seal_key_file`, 64 hexadecimal digits
    #[command(after_help = "Example:
  (umask 077; sluicegate dead-letters key > seal.key)")]
    Key,
}

/// Arguments of `ls`.
#[derive(Args, Debug)]
pub struct LsArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Only the last N that match
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    last: Option<u32>,
    /// Then wait for more, across rotation; starts with the last 10 unless --last says otherwise
    #[arg(short, long)]
    follow: bool,
    /// The lines of the log as they are
    #[arg(long)]
    json: bool,
}

/// Arguments of `show`.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// The record's id, or the beginning of it
    id: String,
    /// The line of the log as it is
    #[arg(long)]
    json: bool,
}

/// Arguments of `stats`.
#[derive(Args, Debug)]
pub struct StatsArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// How many keys, clients, limits and routes to show
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=2048))]
    top: u32,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Arguments of `purge`.
#[derive(Args, Debug)]
pub struct PurgeArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

#[derive(Args, Debug, Default)]
struct FilterArgs {
    /// Only records at or after TIME: 2026-01-02T03:04:05Z, 2026-01-02 (UTC), or how long ago, like 15m
    #[arg(long, value_name = "TIME")]
    since: Option<When>,
    /// Only records before TIME
    #[arg(long, value_name = "TIME")]
    until: Option<When>,
    /// Of the limit of this name
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// Of the route of this name
    #[arg(long, value_name = "NAME")]
    route: Option<String>,
    /// rate-limited, blocked, queue-full, wait-timeout, timeout, too-large, breaker, shed, overload, upstream-error, deferred or cancelled
    #[arg(long, value_name = "REASON")]
    reason: Option<Reason>,
    /// With this value in the key: as the client sent it, or as the log shows it; or SOURCE=VALUE
    #[arg(long, value_name = "VALUE")]
    key: Option<String>,
    /// From this address or network
    #[arg(long, value_name = "ADDRESS", value_parser = parse_network)]
    client: Option<IpNet>,
    /// Answered with this status, or class of statuses, like 5xx
    #[arg(long, value_name = "STATUS")]
    status: Option<StatusFilter>,
}

impl FilterArgs {
    fn resolve(&self, now: Wall, redactor: Option<&Redactor>) -> Filter {
        Filter {
            since: self.since.map(|when| when.resolve(now)),
            until: self.until.map(|when| when.resolve(now)),
            limit: self.limit.clone(),
            route: self.route.clone(),
            reason: self.reason,
            key: self.key.as_deref().map(|key| KeyFilter::new(key, redactor.cloned())),
            client: self.client,
            status: self.status,
        }
    }
}

/// Why a command did not do what was asked.
#[derive(Debug)]
pub enum DeadLettersError {
    /// The log cannot be read.
    Store(StoreError),
    /// The output cannot be written.
    Output(io::Error),
    /// No record has this id.
    NotFound(String, PathBuf),
    /// More than one record has an id that begins so.
    Ambiguous(String),
    /// Nobody can be asked whether to remove what was found.
    NobodyToAsk,
    /// A deferred request cannot be shown, in words.
    Deferred(String),
    /// Nothing was found, and the configuration does not have what was asked for, in words.
    Unknown(String),
}

impl fmt::Display for DeadLettersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Output(error) => write!(f, "cannot write the output: {error}"),
            Self::NotFound(id, directory) => write!(f, "no record {id:?} in {}", directory.display()),
            Self::Ambiguous(id) => write!(f, "several records have an id that begins with {id:?}: give more of it"),
            Self::Deferred(words) | Self::Unknown(words) => f.write_str(words),
            Self::NobodyToAsk => f.write_str(
                "nothing was removed: purge asks before it removes, and standard input is no terminal; --yes says yes",
            ),
        }
    }
}

impl std::error::Error for DeadLettersError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            Self::Output(error) => Some(error),
            Self::NotFound(..) | Self::Ambiguous(_) | Self::NobodyToAsk | Self::Deferred(_) | Self::Unknown(_) => None,
        }
    }
}

impl From<StoreError> for DeadLettersError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<io::Error> for DeadLettersError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Runs a command on the log that `arguments` name, or else on that of the configuration file.
pub fn run(config_file: &Path, arguments: &DeadLettersArguments) -> ExitCode {
    if let DeadLettersCommand::Key = arguments.command {
        return key::print();
    }
    let (directory, secret_file) = match &arguments.directory {
        Some(directory) => (directory.clone(), DeadLetter::default_secret_file(directory)),
        None => match configured(config_file) {
            Ok(places) => places,
            Err(message) => {
                eprintln!("{message}");
                return ExitCode::FAILURE;
            }
        },
    };
    let secret_file = arguments.secret_file.as_ref().unwrap_or(&secret_file);
    if let DeadLettersCommand::Replay(args) = &arguments.command {
        // Without it a replay says so itself, where that matters.
        let redactor = Secret::load(secret_file).ok().flatten();
        let redactor = redactor.as_ref().map(open_redactor);
        return replay::run(args, &replay::LogLocation { directory: &directory, config_file, redactor });
    }
    match look(&arguments.command, &directory, config_file, redactor(&arguments.command, secret_file).as_ref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The redactor that finds redacted keys, if the command asks for a key. Without it, keys are found as the log shows them.
fn redactor(command: &DeadLettersCommand, secret_file: &Path) -> Option<Redactor> {
    match command {
        DeadLettersCommand::Ls(LsArgs { filter, .. })
        | DeadLettersCommand::Stats(StatsArgs { filter, .. })
        | DeadLettersCommand::Purge(PurgeArgs { filter, .. }) => {
            filter.key.as_ref()?;
        }
        DeadLettersCommand::Deferred(_) => return Secret::load(secret_file).ok().flatten().as_ref().map(open_redactor),
        DeadLettersCommand::Show(_) | DeadLettersCommand::Key | DeadLettersCommand::Replay(_) => return None,
    }
    match Secret::load(secret_file) {
        Ok(Some(secret)) => return Some(open_redactor(&secret)),
        Ok(None) => {
            eprintln!("no redaction secret {}: redacted keys are found by their marks alone", secret_file.display());
        }
        Err(error) => eprintln!("{error}; redacted keys are found by their marks alone"),
    }
    None
}

fn open_redactor(secret: &Secret) -> Redactor {
    Redactor::with_secret(secret, &RedactRules::default())
}

/// The directory of the log and the file with the key of its marks.
fn configured(config_file: &Path) -> Result<(PathBuf, PathBuf), String> {
    let loaded = config::load(config_file, config::Certificates::Unread).map_err(|error| error.to_string())?;
    let places = loaded.model.dead_letter.map(|section| {
        let secret_file =
            section.redact_secret_file.unwrap_or_else(|| DeadLetter::default_secret_file(&section.directory));
        (section.directory, secret_file)
    });
    places.ok_or_else(|| {
        format!("{} has no [dead_letter] section: name the log's directory with -d DIR", config_file.display())
    })
}

/// Runs a command on the log in `directory`.
///
/// # Errors
/// See [`DeadLettersError`]. A reader of the output that has gone away (`| head`) is none.
fn look(
    command: &DeadLettersCommand,
    directory: &Path,
    config_file: &Path,
    redactor: Option<&Redactor>,
) -> Result<(), DeadLettersError> {
    let stdout = io::stdout();
    let is_terminal = stdout.is_terminal();
    let stdin = io::stdin();
    let mut answers = stdin.is_terminal().then(|| stdin.lock());
    let mut screen = Screen {
        style: Style::of(&stdout),
        is_terminal,
        redactor,
        out: &mut io::BufWriter::new(stdout.lock()),
        notes: &mut io::stderr(),
        answers: answers.as_mut().map(|answers| answers as &mut dyn BufRead),
    };
    match screen.run(command, directory, config_file, Clock::system().wall_now()) {
        Err(DeadLettersError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

/// Where a command's output goes.
struct Screen<'a> {
    style: Style,
    /// Whether lines of the log are shown with what would steer a terminal by its number; else they are as they are.
    is_terminal: bool,
    redactor: Option<&'a Redactor>,
    out: &'a mut dyn Write,
    notes: &'a mut dyn Write,
    /// Whoever can be asked.
    answers: Option<&'a mut dyn BufRead>,
}

impl Screen<'_> {
    fn run(
        &mut self,
        command: &DeadLettersCommand,
        directory: &Path,
        config_file: &Path,
        now: Wall,
    ) -> Result<(), DeadLettersError> {
        match command {
            DeadLettersCommand::Ls(args) => {
                if self.ls(args, directory, now)? == 0 {
                    names::check(args.filter.limit.as_deref(), args.filter.route.as_deref(), config_file)?;
                }
            }
            DeadLettersCommand::Deferred(args) => self.deferred(args, directory, config_file, now)?,
            DeadLettersCommand::Show(args) => self.show(args, directory)?,
            // It looks at no log.
            DeadLettersCommand::Key | DeadLettersCommand::Replay(_) => {}
            DeadLettersCommand::Stats(args) => {
                if self.stats(args, directory, now)? == 0 {
                    names::check(args.filter.limit.as_deref(), args.filter.route.as_deref(), config_file)?;
                }
            }
            DeadLettersCommand::Purge(args) => self.purge(args, directory, now)?,
        }
        Ok(self.out.flush()?)
    }

    /// Lists records; their number.
    fn ls(&mut self, args: &LsArgs, directory: &Path, now: Wall) -> Result<u64, DeadLettersError> {
        let mut listed = 0;
        let filter = args.filter.resolve(now, self.redactor);
        let snapshot = Snapshot::take(directory)?;
        let last = args.last.map_or(if args.follow { FOLLOW_LAST } else { usize::MAX }, |last| last as usize);
        let damaged = if last > MAX_LAST {
            let mut reader = snapshot.read_matching(&filter);
            while let Some(found) = reader.next_entry()? {
                self.line(&found, args.json)?;
                listed += 1;
            }
            reader.damaged()
        } else {
            let (found, damaged) = last_matching(&snapshot, &filter, last)?;
            for found in found {
                self.line(&found, args.json)?;
                listed += 1;
            }
            damaged
        };
        self.note_damage(damaged)?;
        if !args.follow {
            return Ok(listed);
        }
        let mut follower = snapshot.follow();
        loop {
            self.out.flush()?;
            thread::sleep(POLL);
            let before = follower.damaged();
            let mut shown = Ok(());
            follower.poll(&mut |found| {
                if shown.is_ok() && filter.matches(&found.entry) {
                    shown = self.line(&found, args.json);
                }
            })?;
            shown?;
            self.note_damage(follower.damaged() - before)?;
        }
    }

    fn show(&mut self, args: &ShowArgs, directory: &Path) -> Result<(), DeadLettersError> {
        let mut reader = Snapshot::take(directory)?.read_ids(&args.id);
        let mut candidate: Option<Found> = None;
        let mut several = false;
        while let Some(found) = reader.next_entry()? {
            if found.entry.id() == args.id {
                (candidate, several) = (Some(found), false);
                break;
            }
            if !args.id.is_empty() && found.entry.id().starts_with(&args.id) {
                several |= candidate.is_some();
                candidate.get_or_insert(found);
            }
        }
        let found = match candidate {
            None => return Err(DeadLettersError::NotFound(args.id.clone(), directory.to_owned())),
            Some(_) if several => return Err(DeadLettersError::Ambiguous(args.id.clone())),
            Some(found) => found,
        };
        if args.json {
            write_json(self.out, &found.line, self.is_terminal)?;
        } else {
            write_details(self.out, self.style, &found.entry)?;
        }
        Ok(())
    }

    /// Sums requests up; how many they may be.
    fn stats(&mut self, args: &StatsArgs, directory: &Path, now: Wall) -> Result<u64, DeadLettersError> {
        let filter = args.filter.resolve(now, self.redactor);
        let mut reader = Snapshot::take(directory)?.read_sums(&filter);
        let mut summary = Summary::default();
        while let Some(found) = reader.next_entry()? {
            summary.add_asked(&found.entry, &filter);
        }
        let top = args.top as usize;
        if args.json {
            write_summary_json(self.out, &summary, reader.damaged(), top)?;
        } else {
            write_summary(self.out, self.style, (&summary, &filter), reader.damaged(), top)?;
            let asked = stretch(&filter, now);
            if let Some(steps) = summary.timeline.steps(asked, picture::room(self.style)) {
                write_picture(self.out, self.style, &steps)?;
            }
        }
        let Summary { records, aggregated, unattributed, shadow, shadow_unattributed, .. } = summary;
        Ok(records + aggregated + unattributed + shadow + shadow_unattributed)
    }

    fn line(&mut self, found: &Found, json: bool) -> io::Result<()> {
        if json {
            write_json(self.out, &found.line, self.is_terminal)
        } else {
            write_line(self.out, self.style, &found.entry)
        }
    }

    fn note_damage(&mut self, damaged: u64) -> io::Result<()> {
        if damaged == 0 {
            return Ok(());
        }
        self.out.flush()?;
        writeln!(self.notes, "{damaged} damaged {} passed over", if damaged == 1 { "line" } else { "lines" })
    }
}

/// The time that a picture shows beside that of what was found: what is empty tells when it began, and whether it is over. A day
/// at most, so that a log of an hour is not a stroke at the edge of a year.
fn stretch(filter: &Filter, now: Wall) -> (Option<Wall>, Option<Wall>) {
    let until = filter.until.unwrap_or(now);
    match filter.since {
        Some(since) if until > since && until.since(since) <= MAX_STRETCH => (Some(since), Some(until)),
        _ => (None, None),
    }
}

/// The last `most` entries that match, oldest first. Reads no more segments than it needs, newest first.
fn last_matching(snapshot: &Snapshot, filter: &Filter, most: usize) -> Result<(VecDeque<Found>, u64), StoreError> {
    let mut kept: VecDeque<Found> = VecDeque::new();
    let mut damaged = 0;
    for segment in snapshot.segments().iter().rev() {
        let wanted = most - kept.len();
        if wanted == 0 {
            break;
        }
        let mut of_segment = VecDeque::new();
        let mut reader = snapshot.read_one(segment, filter);
        while let Some(found) = reader.next_entry()? {
            if of_segment.len() == wanted {
                of_segment.pop_front();
            }
            of_segment.push_back(found);
        }
        damaged += reader.damaged();
        of_segment.append(&mut kept);
        kept = of_segment;
    }
    Ok((kept, damaged))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use clap::Parser;
    use tempfile::{TempDir, tempdir};

    use super::*;
    use crate::config::{self, Certificates};
    use crate::dead_letter::{DeadLetters, Draft, Event, KeyName};
    use crate::redact::{RedactRules, Redactor};
    use crate::time::{ManualClock, Tick};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: DeadLettersArguments,
    }

    /// 2026-01-02T03:04:05Z
    fn start() -> Wall {
        Wall::from_nanos(1_767_323_045_000_000_000)
    }

    fn draft(at: Wall, path: &str) -> Draft {
        Draft {
            at,
            reason: Reason::RateLimited,
            is_shadow: false,
            limit: Some("per-client".into()),
            route: Some("api".into()),
            plan: None,
            upstream: None,
            client_ip: "192.0.2.7".parse().ok(),
            key: vec![("client-ip".into(), "192.0.2.7".into())],
            key_is_secret: None,
            method: "GET".into(),
            host: "api.example.com".into(),
            path: path.into(),
            query: Some("a=1".into()),
            headers: vec![("x-evil".into(), "\u{1b}[2J\u{202e}".into()), ("cookie".into(), "sid=s3cret".into())],
            is_https: false,
            trusted_peer: false,
            is_asked: false,
            headers_left_out: 0,
            body: None,
            quota: None,
            scale: None,
            why: "route api; per-client: 0 of 100 in 1s left, refuses: no room".into(),
            status: 429,
            attempts: 0,
            tries: Vec::new(),
            trace_id: None,
            request_id: None,
        }
    }

    /// Ten records, a second apart, and five refusals counted in an aggregate.
    fn log() -> TempDir {
        let directory = tempdir().unwrap();
        let text = "[[listener]]\naddress = \"127.0.0.1:80\"\n[[route]]\nname = \"all\"\nrespond = {}\n\
                    [dead_letter]\ndirectory = \".\"\nmax_record_rate = 1\n";
        let file = directory.path().join("gateway.toml");
        let settings = config::parse(text, &file, Certificates::Unread).unwrap().model.dead_letter.unwrap();
        let redactor = Redactor::new(&RedactRules::default());
        let log = DeadLetters::start(settings, redactor, "gw", Clock::Manual(ManualClock::new())).unwrap();
        let limit: Arc<str> = "per-client".into();
        let event = |now| Event {
            reason: Reason::RateLimited,
            is_shadow: false,
            limit: Some(&limit),
            route: None,
            key: None,
            client: None,
            bytes: 1_000,
            now,
        };
        for number in 0..10 {
            let now = start() + Span::from_secs(number);
            log.offer(&event(Tick::from_nanos(now.as_nanos())), KeyName::default, || draft(now, &format!("/{number}")));
        }
        for _ in 0..5 {
            let now = start() + Span::from_secs(9);
            log.offer(&event(Tick::from_nanos(now.as_nanos())), KeyName::default, || draft(now, "/never"));
        }
        log.close();
        directory
    }

    fn output(directory: &Path, line: &str) -> (Result<(), DeadLettersError>, String, String) {
        answered(directory, line, None)
    }

    /// The text that a command prints; `answer` is that of whoever is asked.
    fn answered(directory: &Path, line: &str, answer: Option<&str>) -> (Result<(), DeadLettersError>, String, String) {
        let words = std::iter::once("dead-letters").chain(line.split(' '));
        let command = Line::parse_from(words).arguments.command;
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let mut answers = answer.map(str::as_bytes);
        let mut screen = Screen {
            style: Style { colour: false, utf8: true, width: 80 },
            is_terminal: true,
            redactor: None,
            out: &mut out,
            notes: &mut notes,
            answers: answers.as_mut().map(|answers| answers as &mut dyn BufRead),
        };
        let outcome = screen.run(&command, directory, Path::new("none.toml"), start() + Span::from_secs(20));
        (outcome, String::from_utf8(out).unwrap(), String::from_utf8(notes).unwrap())
    }

    fn printed(directory: &Path, line: &str) -> String {
        let (outcome, out, notes) = output(directory, line);
        outcome.unwrap();
        assert_eq!(notes, "");
        out
    }

    #[test]
    fn ls_lists_oldest_first_and_filters() {
        let log = log();
        let all = printed(log.path(), "ls");
        assert_eq!(all.lines().count(), 11);
        let first = all.lines().next().unwrap();
        assert!(first.starts_with("2026-01-02 03:04:05.000Z  rate-limited    429  per-client "), "{first}");
        assert!(first.contains("192.0.2.7") && first.contains("GET api.example.com/0?a=1"), "{first}");
        assert!(all.lines().last().unwrap().contains("5 more from 03:04:14.000Z to 03:04:14.000Z"), "{all}");
        let count = |line: &str| printed(log.path(), line).lines().count();
        assert_eq!(count("ls --last 3"), 3);
        assert!(printed(log.path(), "ls --last 2").lines().next().unwrap().contains("/9?"));
        assert_eq!(count("ls --since 2026-01-02T03:04:12Z"), 4);
        assert_eq!(count("ls --since 13s"), 4, "the clock stands 20 s after the first");
        assert_eq!(count("ls --until 2026-01-02T03:04:07Z"), 2);
        assert_eq!(count("ls --status 4xx --client 192.0.2.0/24 --route api --key 192.0.2.7"), 10);
        assert_eq!(count("ls --reason timeout"), 0);
        assert_eq!(count("ls --limit per-client"), 11);
    }

    #[test]
    fn json_is_the_lines_of_the_log() {
        let log = log();
        let content = fs::read_to_string(log.path().join("gw-0000000001.jsonl")).unwrap();
        assert_eq!(printed(log.path(), "ls --json"), content);
    }

    #[test]
    fn show_prints_one_record_in_full_and_nothing_raw() {
        let log = log();
        let lines = printed(log.path(), "ls --json --last 2");
        let value: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
        let id = value["id"].as_str().unwrap();
        let shown = printed(log.path(), &format!("show {id}"));
        assert!(shown.contains("key          client-ip = 192.0.2.7"), "{shown}");
        assert!(shown.contains("GET api.example.com/9?a=1\n"), "{shown}");
        assert!(shown.contains("x-evil: \\u{1b}[2J\\u{202e}\n"), "{shown}");
        assert!(shown.contains("cookie: [redacted:"), "{shown}");
        assert_eq!(printed(log.path(), &format!("show --json {id}")).lines().next(), lines.lines().next());
        let outcome = |line: &str| output(log.path(), line).0.unwrap_err();
        assert!(matches!(outcome("show nothing"), DeadLettersError::NotFound(..)));
        assert!(matches!(outcome(&format!("show {}", &id[..4])), DeadLettersError::Ambiguous(_)));
    }

    #[test]
    fn stats_add_up_records_and_aggregates() {
        let log = log();
        let text = printed(log.path(), "stats");
        assert!(
            text.starts_with(
                "2026-01-02T03:04:05.000000Z to 2026-01-02T03:04:14.000000Z\n15 requests: 10 recorded, 5 counted"
            ),
            "{text}"
        );
        assert!(text.contains("          10  client-ip=192.0.2.7"), "{text}");
        assert!(text.contains("\n\nrefused per second  (2026-01-02, UTC)\n"), "{text}");
        assert!(text.ends_with("└┴────────────────────────┴────────────────────────\n                         03:04:05                 03:04:10\n"), "{text}");
        assert!(text.contains("\n                       6│"), "five of an aggregate, and one: {text}");
        let before = printed(log.path(), "stats --since 2026-01-02T02:55:00Z --until 2026-01-02T03:04:15Z");
        assert!(before.contains("\nrefused per 15 seconds  (2026-01-02, UTC)\n"), "{before}");
        let whole = printed(log.path(), "stats --since 2026-01-02T03:04:00Z --until 2026-01-02T03:14:00Z");
        assert!(whole.contains("\nrefused per 15 seconds  (2026-01-02, UTC)\n"), "{whole}");
        assert!(whole.ends_with(" 03:05:00            03:10:00\n"), "{whole}");
        let year = printed(log.path(), "stats --since 2025-01-01");
        assert_eq!(year, text, "a year is not shown for ten seconds");
        let json: serde_json::Value = serde_json::from_str(&printed(log.path(), "stats --json")).unwrap();
        assert_eq!((&json["requests"], &json["damaged_lines"]), (&15.into(), &0.into()));
        assert_eq!(json["reasons"][0]["count"], 15);
        assert_eq!(json["minutes"][0]["minute"], "2026-01-02T03:04:00.000000Z");
    }

    #[test]
    fn purge_says_what_it_will_remove_and_asks() {
        let log = log();
        let found = "to remove: 3 records\nfrom 1 segment, 1.6 KiB: 1 is written anew\n";
        let line = "purge --until 2026-01-02T03:04:08Z";
        let (outcome, out, notes) = output(log.path(), line);
        assert!(matches!(outcome, Err(DeadLettersError::NobodyToAsk)), "{outcome:?}");
        assert_eq!((out.as_str(), notes.as_str()), (found, ""));
        for answer in ["n\n", "\n", "", "yesterday\n"] {
            let (outcome, out, notes) = answered(log.path(), line, Some(answer));
            outcome.unwrap();
            assert_eq!(
                (out.as_str(), notes.as_str()),
                (found, "Remove them? [y/N] nothing was removed\n"),
                "{answer:?}"
            );
        }
        assert_eq!(printed(log.path(), "ls").lines().count(), 11);
        let (outcome, out, notes) = answered(log.path(), line, Some("Y\n"));
        outcome.unwrap();
        assert_eq!((out, notes), (format!("{found}removed 3 records\n"), "Remove them? [y/N] ".to_owned()));
        assert_eq!(printed(log.path(), "ls").lines().count(), 8);
        assert_eq!(printed(log.path(), line), "nothing to remove in 1 segment\n");
        let out = printed(log.path(), "purge --yes");
        assert!(out.starts_with("to remove: 7 records and 1 aggregate of 5 requests\nfrom 1 segment, "), "{out}");
        assert!(out.ends_with(": 1 goes whole\nremoved 7 records and 1 aggregate of 5 requests\n"), "{out}");
        assert_eq!(printed(log.path(), "ls"), "");
    }

    #[test]
    fn damaged_lines_are_noted_and_passed_over() {
        let log = log();
        let path = log.path().join("gw-0000000001.jsonl");
        fs::write(&path, fs::read_to_string(&path).unwrap().replace("\"/4\"", "\"/5\"")).unwrap();
        let (_, out, notes) = output(log.path(), "ls");
        assert_eq!((out.lines().count(), notes.as_str()), (10, "1 damaged line passed over\n"));
        assert!(printed(log.path(), "stats").contains("1 damaged lines"));
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = output(Path::new("/nonexistent/dead-letters"), "stats").0.unwrap_err();
        assert!(error.to_string().contains("/nonexistent/dead-letters"), "{error}");
    }
}
