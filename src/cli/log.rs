//! The log: human lines on a terminal, JSON otherwise, on stderr.

use std::io::IsTerminal;

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, reload};

use crate::config::{Log, LogFormat};

/// Lines that may wait for whoever reads stderr. What comes beyond is lost: a log that nobody reads must not stop traffic.
const MAX_WAITING_LINES: usize = 8192;

/// Starts logging as `[log]` says; `RUST_LOG` wins over its level. The function that is returned takes a new `[log]` over:
/// its level holds at once, its format after a restart. The guard writes what waits when it is dropped.
pub fn start(log: &Log) -> (impl Fn(&Log) + Send + Sync + 'static, WorkerGuard) {
    let human = match log.format {
        LogFormat::Human => true,
        LogFormat::Json => false,
        LogFormat::Auto => std::io::stderr().is_terminal(),
    };
    let (filter, handle) = reload::Layer::new(filter(log));
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(MAX_WAITING_LINES)
        .thread_name("log")
        .finish(std::io::stderr());
    let lines = fmt::layer().with_writer(writer);
    let lines = if human {
        lines.with_ansi(std::io::stderr().is_terminal()).with_target(false).boxed()
    } else {
        lines.json().flatten_event(true).with_current_span(false).boxed()
    };
    tracing_subscriber::registry().with(filter).with(lines).init();
    let on_log = move |log: &Log| {
        // It fails only when the subscriber is gone, and then nobody listens.
        let _ = handle.reload(self::filter(log));
    };
    (on_log, guard)
}

fn filter(log: &Log) -> EnvFilter {
    EnvFilter::try_from_default_env()
        .or_else(|_| EnvFilter::try_new(&log.level))
        .unwrap_or_else(|_| EnvFilter::new("info"))
}
