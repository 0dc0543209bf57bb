//! Rules that come from elsewhere: asked for again and again, judged whole, kept on disk, and used while their source is away.
//!
//! Its parts: [`Fetcher`], which asks once; [`PollState`], which decides about the answers; [`keep`] and [`load`], for the kept text.
//! It takes nothing over: `control` does, under the lock of reloads.
//!
//! Caller: `control`, in a thread of its own; cli, at the start.

mod fetch;
mod first;
mod poll_state;
mod status;

use std::io;
use std::path::Path;

pub use self::fetch::{Fetched, Fetcher};
pub use self::first::{complete, load};
pub use self::poll_state::{Local, PollState, pause};
pub use self::status::FollowerStatus;

use crate::config::{Follow, FollowedCopy, TextOrigin};
use crate::files;
use crate::time::Wall;

/// A text as it is kept, taken at this moment.
pub fn kept(follow: &Follow, text: String, etag: Option<String>, now: Wall) -> FollowedCopy {
    let url = follow.follow.uri().to_string();
    FollowedCopy { text, origin: Some(TextOrigin { url, etag, time: now.timestamp().to_string() }) }
}

/// Writes the file that keeps a text: as a whole, or not at all. Only the gateway's user may read it.
///
/// # Errors
/// Its directory does not allow it, or the disk is full.
pub fn keep(path: &Path, kept: &FollowedCopy) -> io::Result<()> {
    files::replace(path, kept.to_file()?.as_bytes())
}

/// How to mend a file that cannot be written.
pub fn not_kept(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    format!(
        "{path} cannot be written: {error}; let the gateway's user write to its directory, or set kept_file of [rules]"
    )
}
