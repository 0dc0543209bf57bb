#![no_main]
//! The text of `gateway.toml`: whatever the bytes, there is a model, or a report with an error in it.

use std::path::Path;

use sluicegate::config::{Certificates, Severity, diff, parse};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    match parse(&text, Path::new("/nowhere/gateway.toml"), Certificates::Unread) {
        Ok(parsed) => {
            assert!(diff(&parsed.model, &parsed.model).is_empty(), "a file differs from itself");
            let _ = parsed.warnings.to_string();
        }
        Err(errors) => {
            let has_error = errors.diagnostics().iter().any(|found| found.severity == Severity::Error);
            assert!(has_error && !errors.to_string().is_empty(), "no error is told");
        }
    }
});
