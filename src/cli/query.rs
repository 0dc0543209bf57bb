//! A question to the admin interface of the gateway that runs.

use std::path::Path;

use serde_json::Value;

use super::admin::{AdminArguments, Gateway, Request};
use super::running;

#[derive(Debug, clap::Args)]
pub struct AdminQuery {
    #[command(flatten)]
    admin: AdminArguments,
    /// As the admin interface answers it.
    #[arg(long)]
    json: bool,
}

impl AdminQuery {
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
        let gateway = self.gateway(path)?;
        let answer = gateway.ask(request)?;
        if self.json {
            return Ok(answer);
        }
        let shown = serde_json::from_str(&answer).and_then(show);
        shown.map_err(|error| format!("{}: an answer that cannot be read: {error}", gateway.shown()))
    }

    /// The same of all pages of a list.
    ///
    /// # Errors
    /// The gateway cannot be asked, or has no answer: in words.
    pub fn pages(
        &self,
        path: &Path,
        target: &str,
        list: &str,
        show: impl FnOnce(Value) -> serde_json::Result<String>,
    ) -> Result<String, String> {
        let gateway = self.gateway(path)?;
        let all = gateway.pages(target, list)?;
        if self.json {
            return Ok(format!("{all:#}\n"));
        }
        show(all).map_err(|error| format!("{}: an answer that cannot be read: {error}", gateway.shown()))
    }

    fn gateway(&self, path: &Path) -> Result<Gateway, String> {
        Gateway::of(&self.admin, || running::model(path), path)
    }
}
