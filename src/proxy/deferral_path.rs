//! The path by which clients ask for what was kept for later, and the field by which the gateway does.

use crate::http1::Request;

/// The beginning of the paths by which deferred requests are asked for.
pub const PREFIX: &str = "/.sluicegate/deferred/";
/// The field that tells the gateway itself when a limit has room: in milliseconds. Clients never see it.
pub const ROOM_IN: &[u8] = b"x-sluicegate-room-in-ms";

/// Whether a request asks how a deferred one fares.
#[inline]
pub fn asks_for_one(request: &Request<'_>) -> bool {
    request.path_bytes().starts_with(PREFIX.as_bytes())
}
