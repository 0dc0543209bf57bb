//! The endpoints, a file for each kind of thing that they are about.

mod blocks;
mod config;
mod config_file;
mod dead_letters;
mod keys;
mod limits;
mod log;
mod overload;
mod page;
mod process;
mod replays;
mod requests;
mod rules;
mod upstreams;

pub use replays::NotReplayed;

use super::endpoint::{Endpoint, segments};

/// All of them, in the order in which they are shown.
const TABLES: [&[Endpoint]; 17] = [
    process::ENDPOINTS,
    config::ENDPOINTS,
    config_file::ENDPOINTS,
    rules::ENDPOINTS,
    rules::ROUTES,
    rules::LIMITS,
    rules::UPSTREAMS,
    rules::BANDWIDTHS,
    limits::ENDPOINTS,
    keys::ENDPOINTS,
    blocks::ENDPOINTS,
    upstreams::ENDPOINTS,
    overload::ENDPOINTS,
    requests::ENDPOINTS,
    dead_letters::ENDPOINTS,
    replays::ENDPOINTS,
    log::ENDPOINTS,
];

/// All endpoints.
pub(super) fn all() -> impl Iterator<Item = &'static Endpoint> {
    TABLES.into_iter().flatten()
}

/// All endpoints at a path, with the names as it has them; `None`: there is none.
pub(super) fn at(path: &str) -> Option<(Vec<&'static Endpoint>, Vec<&str>)> {
    let mut found = all().filter_map(|own| Some((own, segments(own.path, path)?)));
    let (first, names) = found.next()?;
    // Others at the same path differ in their methods alone.
    let others = found.map(|(own, _)| own).filter(|own| own.path == first.path);
    Some((std::iter::once(first).chain(others).collect(), names))
}
