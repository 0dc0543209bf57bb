//! The log: human lines on a terminal, JSON otherwise, on stderr.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};

/// Starts logging as `[log]` says; `RUST_LOG` wins over its level.
pub fn start(log: &Log) {
    let filter = EnvFilter::try_from_default_env()
        .or_else(|_| EnvFilter::try_new(&log.level))
        .unwrap_or_else(|_| EnvFilter::new("info"));
    let human = match log.format {
        LogFormat::Human => true,
        LogFormat::Json => false,
        LogFormat::Auto => std::io::stderr().is_terminal(),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if human {
        builder.with_ansi(std::io::stderr().is_terminal()).with_target(false).init();
    } else {
        builder.json().flatten_event(true).with_current_span(false).init();
    }
}
