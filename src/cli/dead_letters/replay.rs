//! `sluicegate dead-letters replay`: sends records again.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use http::Method;

use super::{FilterArgs, When};
use crate::cli::progress::ProgressBar;
use crate::cli::safe::Safe;
use crate::cli::table::Table;
use crate::config::{self, Certificates, FileSecret, Model};
use crate::dead_letter::ReplayGuard;
use crate::limiter::Rate;
use crate::redact::Redactor;
use crate::replay::{
    Journal, Lock, MAX_PARALLEL, MAX_TRIES, MOST_TRIES, Overview, PARALLEL, Patience, RATE, RecordCounts, RecordFate,
    Replay, ReplayScheduler, Sender, Settings, TIMEOUT, Target, check_timeout, fates, overviews, parse_method,
};
use crate::time::{Clock, Span, Wall};

/// The end of its help.
pub(super) const EXAMPLES: &str = "Examples:
  sluicegate dead-letters replay --since 1h --dry-run
  sluicegate dead-letters replay --since 1h --limit per-client --dry-run
  sluicegate dead-letters replay --since 1h --limit per-client --rate 20/s
  sluicegate dead-letters replay --since 1h --methods POST --to app
  sluicegate dead-letters replay --reason upstream-error --to https://staging.example.com
  sluicegate dead-letters replay --resume
  sluicegate dead-letters replay ls

Without --reason and --limit only failures are sent: upstream-error, timeout, breaker, shed, and queue-full of an upstream. What was
refused goes with --reason rate-limited and the like, or with --limit NAME.

Requests with methods that may be repeated are sent (GET, HEAD, OPTIONS, PUT, DELETE), each with an Idempotency-Key: the
client's, else the record's id. Records of one key go in their order. 408, 425, 429, 502, 503, 504 and connects that fail
are tried again, later each time; any other answer than 2xx sets the record aside (parked). Nothing is sent twice unless
--again is given. Ctrl-c stops it; --resume goes on. The exit status is 0 unless something was parked.";

/// Send records again, at a rate that the servers can take
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ReplayArgs {
    #[command(subcommand)]
    command: Option<ReplayCommand>,
    #[command(flatten)]
    filter: FilterArgs,
    /// Where to: a URL, or the name of an upstream [default: through the gateway, where limits hold]
    #[arg(long, value_name = "URL|UPSTREAM")]
    to: Option<String>,
    /// How fast, tries of all kinds together [default: 10/s]
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// How many at once, of different keys [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_PARALLEL)))]
    parallel: Option<u32>,
    /// These methods too, such as POST,PATCH: their servers should know the Idempotency-Key
    #[arg(long, value_name = "METHODS", value_delimiter = ',', value_parser = parse_method)]
    methods: Vec<Method>,
    /// How often one record is tried [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_TRIES)))]
    max_tries: Option<u32>,
    /// How long an answer may take, 100ms to 10m [default: 30s]
    #[arg(long, value_name = "TIME")]
    timeout: Option<Span>,
    /// Say what would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
    /// Go on with a replay that was stopped: the last one, or the one of this name
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    resume: Option<String>,
    /// Also what was sent before
    #[arg(long)]
    again: bool,
    /// Send records without the fields that were redacted and are not sealed
    #[arg(long)]
    without_redacted: bool,
    /// The key of the seals [default: that of the configuration]
    #[arg(long, value_name = "FILE")]
    seal_key_file: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum ReplayCommand {
    /// List the replays of this log
    Ls {
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Show what a replay did with each record
    Show {
        /// Its name
        name: String,
        /// Only those that are parked
        #[arg(long)]
        parked: bool,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
}

impl ReplayArgs {}

/// The log and what belongs to it.
pub(super) struct LogLocation<'p> {
    pub(super) directory: &'p Path,
    pub(super) config_file: &'p Path,
    pub(super) redactor: Option<Redactor>,
}

/// Does what is asked for.
pub(super) fn run(args: &ReplayArgs, place: &LogLocation<'_>) -> ExitCode {
    let done = match &args.command {
        Some(ReplayCommand::Ls { json }) => list(place.directory, *json),
        Some(ReplayCommand::Show { name, parked, json }) => show(place.directory, name, *parked, *json),
        None => replay(args, place),
    };
    done.unwrap_or_else(|message| {
        eprintln!("{message}");
        ExitCode::FAILURE
    })
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn replay(args: &ReplayArgs, place: &LogLocation<'_>) -> Result<ExitCode, String> {
    let clock = Clock::system();
    let now = clock.wall_now();
    let began = clock.now();
    // Before it is looked what was sent: so nobody sends between that and the first line of the journal.
    let mut lock = if args.dry_run { None } else { Some(Lock::take(place.directory).map_err(words)?) };
    let (settings, journal) = match &args.resume {
        None => (settings(args, now)?, None),
        Some(name) => {
            let name = Some(name.as_str()).filter(|name| !name.is_empty());
            let lock = lock.take().map_or_else(|| Lock::take(place.directory), Ok).map_err(words)?;
            let (journal, settings) = Journal::resume(lock, place.directory, name).map_err(words)?;
            (resumed(args, settings)?, Some(journal))
        }
    };
    let model = model(place.config_file, settings.to.as_deref(), now)?;
    let target = Target::of(settings.to.as_deref(), model.as_ref()).map_err(words)?;
    let key = args.filter.resolve(Wall::EPOCH, place.redactor.as_ref()).key;
    let seal_key = args.seal_key_file.as_deref().map(FileSecret::load).transpose()?;
    let order = settings.order(place.directory, key, seal_key, model.as_ref(), journal.as_ref())?;
    let rate: Rate = settings.rate.parse().map_err(words)?;
    let plan = order.plan(place.directory).map_err(words)?;
    let to = target.words();
    print(&plan_words(&plan, &to, rate, &settings))?;
    if plan.opens_seals && target.is_plain_url() {
        eprintln!("sealed fields go to {to} without TLS");
    }
    if args.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    if plan.sent + plan.parked() == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    let guard = place.redactor.as_ref().map(|redactor| ReplayGuard::new(redactor, Arc::default()));
    if guard.is_none() && matches!(target, Target::Gateway(_)) {
        eprintln!(
            "the redaction secret of the log cannot be read (--secret-file): the gateway will take this machine for the \
             client of every request"
        );
    }
    let timeout = Duration::from_nanos(settings.timeout);
    let sender = Sender::new(target, guard, timeout, clock.clone()).map_err(words)?;
    let lineup =
        ReplayScheduler::new(rate, settings.parallel as usize, Patience::tries(settings.max_tries), now.as_nanos())
            .ok_or_else(|| format!("invalid leaky-bucket rate {rate}"))?;
    let journal = match (journal, lock) {
        (Some(journal), _) => journal,
        (None, Some(lock)) => Journal::begin(lock, place.directory, &settings, now).map_err(words)?,
        (None, None) => return Ok(ExitCode::SUCCESS),
    };
    let name = journal.name().to_owned();
    let replay = Replay::new(place.directory, &order, Arc::new(sender), journal, lineup, clock.clone());
    let counts = drive(replay, plan.sent, &clock)?;
    let took = clock.now().since(began);
    print(&summary_words(&counts, &name, took))?;
    Ok(if counts.parked() > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs it until its end or a signal.
fn drive(replay: Replay<'_>, of: u64, clock: &Clock) -> Result<RecordCounts, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start a runtime: {error}"))?;
    let mut bar = ProgressBar::new();
    let counts = runtime.block_on(replay.run(stopped(), |progress| {
        // Tokens are by the wall clock, and a replay may take days.
        clock.follow_wall();
        bar.show(progress.sent + progress.parked, Some(of), || {
            format!("{} sent, {} parked, {} under way", progress.sent, progress.parked, progress.in_flight)
        });
    }));
    bar.clear();
    counts
        .map_err(|error| format!("{error}\nthe replay was stopped; what was sent is in its journal: --resume goes on"))
}

/// Ready at ctrl-c or SIGTERM.
async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// The settings of a new replay, by the command line.
fn settings(args: &ReplayArgs, now: Wall) -> Result<Settings, String> {
    let timeout = check_timeout(args.timeout.unwrap_or(TIMEOUT)).map_err(|error| format!("--timeout {error}"))?;
    let filter = &args.filter;
    let at = |when: Option<When>| when.map(|when| when.resolve(now));
    Ok(Settings {
        since: at(filter.since).map(Wall::as_nanos),
        // Requests that are refused from now on are for the next replay.
        until: at(filter.until).unwrap_or(now).as_nanos(),
        limit: filter.limit.clone(),
        route: filter.route.clone(),
        reason: filter.reason.map(|reason| reason.to_string()),
        failures_only: filter.reason.is_none() && filter.limit.is_none(),
        client: filter.client.map(|client| client.to_string()),
        status: filter.status.map(|status| status.to_string()),
        has_key: filter.key.is_some(),
        to: args.to.clone(),
        rate: args.rate.map_or_else(|| RATE.to_owned(), |rate| rate.to_string()),
        parallel: args.parallel.unwrap_or(PARALLEL),
        methods: args.methods.iter().map(ToString::to_string).collect(),
        max_tries: args.max_tries.unwrap_or(MAX_TRIES),
        again: args.again,
        without_redacted: args.without_redacted,
        timeout: timeout.as_nanos(),
    })
}

/// The settings of a replay that goes on. Its pace may be another one, and so may its key file; the records may not.
fn resumed(args: &ReplayArgs, mut settings: Settings) -> Result<Settings, String> {
    let FilterArgs { since, until, limit, route, reason, key, client, status } = &args.filter;
    let has_other = since.is_some()
        || until.is_some()
        || limit.is_some()
        || route.is_some()
        || reason.is_some()
        || client.is_some()
        || status.is_some()
        || args.to.is_some()
        || !args.methods.is_empty()
        || args.again;
    if has_other {
        return Err(
            "--resume goes on with what the replay was begun with: leave the filters, --to, --methods and --again \
                    out; --rate, --parallel, --max-tries and --timeout may be given"
                .to_owned(),
        );
    }
    if settings.has_key && key.is_none() {
        return Err("this replay was of one --key, which is not kept in its journal: give it again".to_owned());
    }
    if let Some(rate) = args.rate {
        settings.rate = rate.to_string();
    }
    settings.parallel = args.parallel.unwrap_or(settings.parallel);
    settings.max_tries = args.max_tries.unwrap_or(settings.max_tries);
    settings.timeout = args.timeout.map_or(settings.timeout, Span::as_nanos);
    settings.without_redacted |= args.without_redacted;
    Ok(settings)
}

/// The configuration, if it is needed: for the front door, an upstream, or the key of the seals.
fn model(config_file: &Path, to: Option<&str>, now: Wall) -> Result<Option<Model>, String> {
    let is_url = to.is_some_and(|to| to.contains("://"));
    match config::load(config_file, Certificates::Lenient(now)) {
        Ok(loaded) => Ok(Some(loaded.model)),
        Err(error) if is_url => {
            eprintln!(
                "the configuration is left aside, and the key of the seals with it (--seal-key-file names one):\n{error}"
            );
            Ok(None)
        }
        Err(error) => Err(error.to_string()),
    }
}

fn print(text: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(format!("cannot write the output: {error}")),
        _ => Ok(()),
    }
}

/// The plan, in words.
fn plan_words(plan: &RecordCounts, to: &str, rate: Rate, settings: &Settings) -> String {
    let takes = Span::from_nanos(rate.window().as_nanos().saturating_mul(plan.sent) / rate.limit().max(1));
    let takes = Span::from_secs(takes.as_secs_ceil());
    let mut text = format!("{} match\n", records(plan.matching));
    let mut row = |count: u64, words: String| {
        if count > 0 {
            let _ = writeln!(text, "{count:>9}  {words}");
        }
    };
    row(plan.sent, format!("to send to {to}, at {rate}: {takes} at least, {} tries each at most", settings.max_tries));
    row(plan.sent_before, "were sent by a replay before; --again sends them once more".to_owned());
    row(plan.shadow, "were served: only a limit in shadow mode would have refused them".to_owned());
    row(plan.deferred, "were deferred: the gateway sends them itself (`dead-letters deferred`)".to_owned());
    for (reason, count) in &plan.refused {
        let reason = Safe(reason);
        row(*count, format!("were refused ({reason}): only failures are sent, --reason {reason} sends these"));
    }
    for (method, count) in &plan.waiting {
        row(
            *count,
            format!("wait: {} may not be repeated safely; --methods {} sends them", Safe(method), Safe(method)),
        );
    }
    for (reason, count) in &plan.parked {
        row(*count, format!("to park, {}", Safe(reason)));
    }
    row(plan.counted_only, "requests more were only counted: there is nothing to send".to_owned());
    row(plan.repeated, "lines told of a record once more: it goes once".to_owned());
    row(plan.damaged, "damaged lines passed over".to_owned());
    text
}

fn summary_words(counts: &RecordCounts, name: &str, took: Span) -> String {
    let took = Span::from_millis(took.as_millis_ceil());
    let mut text = format!("{} sent, {} parked in {took}; replay {name}\n", counts.sent, counts.parked());
    for (reason, count) in &counts.parked {
        let _ = writeln!(text, "{count:>9}  parked, {}", Safe(reason));
    }
    if counts.waiting() > 0 {
        let _ = writeln!(text, "{:>9}  wait for --methods", counts.waiting());
    }
    if counts.left > 0 {
        text.push_str("stopped before its end: sluicegate dead-letters replay --resume\n");
    }
    text
}

fn records(count: u64) -> String {
    format!("{count} {}", if count == 1 { "record" } else { "records" })
}

fn list(directory: &Path, json: bool) -> Result<ExitCode, String> {
    let all = overviews(directory).map_err(words)?;
    let mut table = Table::default();
    let mut lines = String::new();
    table.row(["REPLAY", "SENT", "PARKED", "ENDED", "TO"].map(str::to_owned));
    for Overview { name, at, settings, sent, parked, has_ended } in &all {
        let line = serde_json::json!({ "replay": name, "at": at, "sent": sent, "parked": parked, "ended": has_ended, "settings": settings });
        let _ = writeln!(lines, "{line}");
        let to = settings.to.as_deref().unwrap_or("the gateway");
        let ended = if *has_ended { "yes" } else { "no" };
        table.row([name.clone(), sent.to_string(), parked.to_string(), ended.to_owned(), Safe(to).to_string()]);
    }
    print(&if json { lines } else { table.text() })?;
    Ok(ExitCode::SUCCESS)
}

fn show(directory: &Path, name: &str, parked: bool, json: bool) -> Result<ExitCode, String> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut failed = None;
    fates(directory, name, |told| {
        let (state, word) = match &told.fate {
            RecordFate::Sent(status) => ("sent", format!("status {status}")),
            RecordFate::Parked(reason) => ("parked", reason.clone()),
        };
        if failed.is_some() || parked && state != "parked" {
            return;
        }
        let written = if json {
            let line =
                serde_json::json!({ "id": told.id, "at": told.at, "state": state, "why": word, "tries": told.tries });
            writeln!(out, "{line}")
        } else {
            writeln!(out, "{}  {state:<6}  {} tries  {}", Safe(&told.id), told.tries, Safe(&word))
        };
        failed = written.err();
    })
    .map_err(words)?;
    let flushed = failed.map_or_else(|| out.flush(), Err);
    match flushed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(format!("cannot write the output: {error}")),
        _ => Ok(ExitCode::SUCCESS),
    }
}
