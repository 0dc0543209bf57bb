//! A question to the admin interface of the gateway that runs.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use super::admin::{AdminArguments, Gateway, Request};
use crate::config::{self, Certificates};

#[derive(Debug, clap::Args)]
pub struct Asked {
    #[command(flatten)]
    admin: AdminArguments,
    /// As the admin interface answers it.
    #[arg(long)]
    json: bool,
}

impl Asked {
    /// Asks, and shows the answer.
    ///
    /// # Errors
    /// The gateway cannot be asked, or has no answer: in words.
    pub fn look(
        &self,
        path: &Path,
        target: &str,
        show: impl FnOnce(Value) -> serde_json::Result<String>,
    ) -> Result<String, String> {
        self.ask(path, &Request::get(target), show)
    }

    /// The same of any request.
    ///
    /// # Errors
    /// The gateway cannot be asked, or does not do it: in words.
    pub fn ask(
        &self,
        path: &Path,
        request: &Request<'_>,
        show: impl FnOnce(Value) -> serde_json::Result<String>,
    ) -> Result<String, String> {
        let load =
            || config::load(path, Certificates::Unread).map(|loaded| loaded.model).map_err(|error| error.to_string());
        let gateway = Gateway::of(&self.admin, load, path)?;
        let answer = gateway.ask(request)?;
        if self.json {
            return Ok(answer);
        }
        let shown = serde_json::from_str(&answer).and_then(show);
        shown.map_err(|error| format!("{}: an answer that cannot be read: {error}", gateway.shown()))
    }
}

/// As one segment of a path (RFC 3986, 2.3).
pub fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_one_segment_of_a_path() {
        assert_eq!(escaped("a/b c+é"), "a%2Fb%20c%2B%C3%A9");
        assert_eq!(escaped("2001:db8::1-._~"), "2001%3Adb8%3A%3A1-._~");
    }
}
