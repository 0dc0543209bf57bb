//! Names of limits and routes that a command asks for.

use std::path::Path;

use super::DeadLettersError;
use crate::config::{self, Certificates};

/// Names that a message lists.
const MAX_LISTED: usize = 8;

/// Where no record was found: says so if the configuration does not have the limit or the route that was asked for. A log may
/// lie where there is no configuration, and has records of limits that were removed.
pub(super) fn check(limit: Option<&str>, route: Option<&str>, config_file: &Path) -> Result<(), DeadLettersError> {
    let Ok(loaded) = config::load(config_file, Certificates::Unread) else { return Ok(()) };
    let limits: Vec<&str> = loaded.model.limits.iter().map(|limit| &*limit.spec.name).collect();
    let routes: Vec<&str> = loaded.model.routes.iter().map(|route| &*route.name).collect();
    for (kind, asked, known) in [("limit", limit, limits), ("route", route, routes)] {
        if let Some(name) = asked.filter(|name| !known.contains(name)) {
            let message = format!(
                "no record of a {kind} {name:?}, and {} has none of that name; it has {}",
                config_file.display(),
                listed(&known)
            );
            return Err(DeadLettersError::Unknown(message));
        }
    }
    Ok(())
}

fn listed(names: &[&str]) -> String {
    let shown = names.iter().take(MAX_LISTED).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => "none".to_owned(),
        1..=MAX_LISTED => shown,
        all => format!("{shown} and {} more", all - MAX_LISTED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_none_is_told_with_those_that_are() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("gateway.toml");
        let text = "[[listener]]\naddress = \"127.0.0.1:1\"\n[[limit]]\nname = \"per-client\"\nrate = \"9/s\"\n\
                    [[route]]\nname = \"all\"\nrespond = {}\nlimits = [\"per-client\"]\n";
        std::fs::write(&file, text).unwrap();
        assert!(check(Some("per-client"), Some("all"), &file).is_ok());
        assert!(check(None, None, &file).is_ok());
        let said = check(Some("per-clent"), None, &file).unwrap_err().to_string();
        let has = format!("{} has none of that name; it has \"per-client\"", file.display());
        assert_eq!(said, format!("no record of a limit \"per-clent\", and {has}"));
        let said = check(None, Some("per-client"), &file).unwrap_err().to_string();
        assert!(said.starts_with("no record of a route \"per-client\"") && said.ends_with("it has \"all\""), "{said}");
        assert!(check(Some("x"), None, &directory.path().join("none.toml")).is_ok(), "there is no configuration");
        assert_eq!(listed(&["a"; 10]), "\"a\", \"a\", \"a\", \"a\", \"a\", \"a\", \"a\", \"a\" and 2 more");
    }
}
