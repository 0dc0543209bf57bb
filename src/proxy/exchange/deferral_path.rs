//! The path by which clients ask for what was kept for later.

use crate::http1::Request;

/// The beginning of the paths by which deferred requests are asked for.
pub const PREFIX: &str = "/.sluicegate/deferred/";
/// Whether a request asks how a deferred one fares.
#[inline]
pub fn asks_for_one(request: &Request<'_>) -> bool {
    request.path_bytes().starts_with(PREFIX.as_bytes())
}
