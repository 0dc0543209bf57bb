//! The log: human lines on a terminal, JSON otherwise, on stderr or in a file.

use std::io::{self, IsTerminal, Write};
use std::process;

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use super::tell::wants_colour;
use crate::config::{self, LogFormat};
use crate::gateway::Logging;
use crate::telemetry::{LogFile, Reopen};

/// Lines that may wait for whoever reads stderr. Lines beyond are lost: a log that nobody reads must not stop traffic.
const MAX_WAITING_LINES: usize = 8192;

/// Lines about changes over the admin interface, as a directive.
const AUDIT: &str = "sluicegate::admin::audit=info";

/// The log that was started.
pub struct StartedLog {
    handle: reload::Handle<EnvFilter, Registry>,
    /// Of a log in a file.
    reopen: Option<Reopen>,
}

/// Names the time in a line of JSON as the access log and dead letters do, and puts the number of the process behind it: during an
/// upgrade two processes write into one log. The library has no settings for either; it writes each line at once, and the time
/// first.
struct NamesTime(Box<dyn Write + Send>);

/// The same for people: the time, and the number of the process.
struct TimeAndProcess;

impl FormatTime for TimeAndProcess {
    fn format_time(&self, line: &mut Writer<'_>) -> std::fmt::Result {
        SystemTime.format_time(line)?;
        write!(line, " [{}]", process::id())
    }
}

const THEIR_TIME: &[u8] = b"{\"timestamp\":";
const OUR_TIME: &[u8] = b"{\"ts\":";

impl Write for NamesTime {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let Some(rest) = line.strip_prefix(THEIR_TIME) else { return self.0.write(line) };
        let (time, rest) = rest.split_at(rest.iter().position(|byte| *byte == b',').unwrap_or(rest.len()));
        let pid = format!(",\"pid\":{}", process::id());
        self.0.write_all(&[OUR_TIME, time, pid.as_bytes(), rest].concat())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Starts logging as `[log]` says; `RUST_LOG` wins over its level. The guard writes what waits when it is dropped.
///
/// # Errors
/// The file cannot be opened.
pub fn start(log: &config::Log) -> io::Result<(StartedLog, WorkerGuard)> {
    let (out, reopen): (Box<dyn Write + Send>, _) = match &log.file {
        None => (Box::new(io::stderr()), None),
        Some(path) => {
            let reopen = Reopen::default();
            (Box::new(LogFile::open(path, &reopen)?), Some(reopen))
        }
    };
    let is_terminal = reopen.is_none() && io::stderr().is_terminal();
    let human = match log.format {
        LogFormat::Human => true,
        LogFormat::Json => false,
        LogFormat::Auto => is_terminal,
    };
    let (filter, handle) = reload::Layer::new(filter(log));
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(MAX_WAITING_LINES)
        .thread_name("log")
        .finish(NamesTime(out));
    let lines = fmt::layer().with_writer(writer);
    let lines = if human {
        lines.with_timer(TimeAndProcess).with_ansi(is_terminal && wants_colour()).with_target(false).boxed()
    } else {
        lines.json().flatten_event(true).with_current_span(false).boxed()
    };
    tracing_subscriber::registry().with(filter).with(lines).init();
    Ok((StartedLog { handle, reopen }, guard))
}

impl Logging for StartedLog {
    /// Its level holds at once, its format and file after a restart.
    fn renew(&self, log: &config::Log) {
        // It fails only when the subscriber is gone, and then nobody listens.
        let _ = self.handle.reload(filter(log));
    }

    fn set_level(&self, level: &str) {
        if let Ok(filter) = EnvFilter::try_new(level) {
            let _ = self.handle.reload(with_audit(filter));
        }
    }

    fn reopen(&self) -> bool {
        self.reopen.as_ref().is_some_and(|reopen| {
            reopen.ask();
            true
        })
    }
}

fn filter(log: &config::Log) -> EnvFilter {
    EnvFilter::try_from_default_env()
        .or_else(|_| EnvFilter::try_new(&log.level))
        .map_or_else(|_| EnvFilter::new("info"), with_audit)
}

/// Lines about changes come whatever the level is: whoever may change it must not be able to hide what they do.
fn with_audit(filter: EnvFilter) -> EnvFilter {
    match AUDIT.parse() {
        Ok(directive) => filter.add_directive(directive),
        Err(_) => filter,
    }
}
