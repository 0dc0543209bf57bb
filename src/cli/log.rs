//! The log: human lines on a terminal, JSON otherwise, on stderr.

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, reload};

use crate::config::{Log, LogFormat};

/// Starts logging as `[log]` says; `RUST_LOG` wins over its level. What is returned takes a new `[log]` over: its level
/// holds at once, its format after a restart.
pub fn start(log: &Log) -> impl Fn(&Log) + Send + Sync + 'static {
    let human = match log.format {
        LogFormat::Human => true,
        LogFormat::Json => false,
        LogFormat::Auto => std::io::stderr().is_terminal(),
    };
    let (filter, handle) = reload::Layer::new(filter(log));
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = if human {
        lines.with_ansi(std::io::stderr().is_terminal()).with_target(false).boxed()
    } else {
        lines.json().flatten_event(true).with_current_span(false).boxed()
    };
    tracing_subscriber::registry().with(filter).with(lines).init();
    move |log| {
        // It fails only when the subscriber is gone, and then nobody listens.
        let _ = handle.reload(self::filter(log));
    }
}

fn filter(log: &Log) -> EnvFilter {
    EnvFilter::try_from_default_env()
        .or_else(|_| EnvFilter::try_new(&log.level))
        .unwrap_or_else(|_| EnvFilter::new("info"))
}
