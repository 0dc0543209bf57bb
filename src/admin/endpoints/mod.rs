//! The endpoints, a file for each kind of thing that they are about.

mod config;
mod dead_letters;
mod keys;
mod limits;
mod page;
mod process;
mod upstreams;

use super::endpoint::Endpoint;

/// All of them, in the order in which they are shown.
const TABLES: [&[Endpoint]; 6] = [
    process::ENDPOINTS,
    config::ENDPOINTS,
    limits::ENDPOINTS,
    keys::ENDPOINTS,
    upstreams::ENDPOINTS,
    dead_letters::ENDPOINTS,
];

/// All endpoints.
pub(super) fn all() -> impl Iterator<Item = &'static Endpoint> {
    TABLES.into_iter().flatten()
}
