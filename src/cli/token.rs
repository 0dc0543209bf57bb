//! `sluicegate token`: a token for the admin interface.

use std::io::{self, Write as _};
use std::process::ExitCode;

use base16ct::lower::encode_string;
use sha2::{Digest, Sha256};

use super::key;
use crate::config::{AdminRole, check_admin_name};
use crate::words::Word as _;

pub const EXAMPLES: &str = "Examples:
  sluicegate token --name ci --role operate
  sluicegate token --name prometheus --role read --json | jq -r .token > scrape.token

The token is shown once, and kept nowhere: the file has its SHA-256. Use it:
  curl -H \"Authorization: Bearer TOKEN\" http://127.0.0.1:9900/api/v1/limits
  SLUICEGATE_TOKEN=TOKEN sluicegate limits";

/// Arguments of `token`.
#[derive(Debug, clap::Args)]
pub struct TokenArguments {
    /// The name by which the log knows whoever has it.
    #[arg(long, default_value = "ops", value_parser = name)]
    name: String,
    /// The role: read looks, operate resets keys and takes servers out of service, rules changes the file.
    #[arg(long, default_value = "read", value_parser = role)]
    role: AdminRole,
    /// As JSON: `token`, `sha256`, and `name` and `role`.
    #[arg(long)]
    json: bool,
}

fn name(text: &str) -> Result<String, String> {
    check_admin_name(text).map(|()| text.to_owned()).map_err(str::to_owned)
}

fn role(text: &str) -> Result<AdminRole, String> {
    AdminRole::from_word(text).ok_or_else(|| "read, operate or rules".to_owned())
}

/// Prints one. Exit 1: there is no randomness, or nobody reads it.
pub fn run(arguments: &TokenArguments) -> ExitCode {
    let token = match key::random() {
        Ok(digits) => format!("sg_{digits}"),
        Err(error) => {
            eprintln!("cannot make a token: {error}");
            return ExitCode::FAILURE;
        }
    };
    let sha256 = encode_string(&Sha256::digest(&token));
    let (name, role) = (&arguments.name, arguments.role.word());
    let text = if arguments.json {
        let shown = serde_json::json!({ "token": token, "sha256": sha256, "name": name, "role": role });
        format!("{shown:#}\n")
    } else {
        format!(
            "token   {token}\nsha256  {sha256}\n\nFor [admin], beside those that are there:\n\
             tokens = [{{ name = {name:?}, sha256 = \"{sha256}\", role = \"{role}\" }}]\n"
        )
    };
    if io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()).is_err() {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
