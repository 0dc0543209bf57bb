//! The configuration blocks of a page, so that what it shows is what is run.

use std::path::Path;
use std::sync::Arc;

use sluicegate::config::{self, Certificates, LimitRule};
use sluicegate::limiter::{Limit, Policy};

/// The blocks of TOML in a text, in order.
pub fn blocks(text: &str) -> Vec<&str> {
    text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect()
}

/// The limits of a block. One that has a mistake, or that `check` warns of, is a panic.
pub fn limits(block: &str) -> Vec<LimitRule> {
    try_limits(block).unwrap_or_else(|report| panic!("{report}\nin this block:\n{block}"))
}

/// The limits of a block, as `check` reads them in a file that uses all of them in one route; else its report.
pub fn try_limits(block: &str) -> Result<Vec<LimitRule>, String> {
    let names: Vec<&str> = block.lines().filter_map(|line| line.strip_prefix("name = ")).collect();
    let rest = format!(
        "[[listener]]\naddress = \"127.0.0.1:1\"\n[[route]]\nname = \"all\"\nrespond = {{ body = \"x\" }}\nlimits = [{}]\n",
        names.join(", ")
    );
    let parsed = config::parse(&format!("{rest}{block}"), Path::new("/page.toml"), Certificates::Unread);
    let parsed = parsed.map_err(|errors| errors.to_string())?;
    if parsed.warnings.is_empty() {
        Ok(parsed.model.limits.iter().map(|rule| LimitRule::clone(rule)).collect())
    } else {
        Err(parsed.warnings.to_string())
    }
}

/// A fresh policy of these limits.
pub fn policy(rules: &[LimitRule]) -> Arc<Policy> {
    let limits = rules.iter().map(|rule| Limit::new(rule.spec.clone())).collect();
    Policy::new(limits).unwrap_or_else(|error| panic!("{error}"))
}
