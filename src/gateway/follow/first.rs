//! The first rules: a gateway that follows others and keeps nothing yet asks for them once, and does not start without.

use std::path::Path;

use super::{Fetched, Fetcher, keep, kept, not_kept};
use crate::config::{self, Candidate, Certificates, KnownPlans, LoadError, Loaded};
use crate::time::Clock;

/// Reads the configuration at `path` for the code that starts on it.
///
/// # Errors
/// It is wrong, or its rules come from elsewhere and cannot be had.
pub fn load(path: &Path, certificates: Certificates) -> Result<Loaded, LoadError> {
    complete(config::load(path, certificates)?, path, certificates, &KnownPlans::default())
}

/// The same configuration with the rules that it lacks, if it lacks any: they are asked for, judged and kept. Blocks for as long
/// as an answer may take.
///
/// # Errors
/// They cannot be had, are wrong, or cannot be kept.
pub fn complete(
    loaded: Loaded,
    path: &Path,
    certificates: Certificates,
    known: &KnownPlans,
) -> Result<Loaded, LoadError> {
    let Some(follow) = loaded.model.follow.as_ref().filter(|_| loaded.model.lacks_rules()) else { return Ok(loaded) };
    let unfollowed = |report| LoadError::Unfollowed { report, files: loaded.files.clone() };
    let file = follow.kept(path);
    let fetched = Fetcher::new(follow).and_then(|fetcher| fetcher.fetch(None)).and_then(|fetched| match fetched {
        Fetched::Text { text, etag } => Ok((text, etag)),
        Fetched::Same => Err("no text".to_owned()),
    });
    let (text, etag) = fetched.map_err(|cause| {
        unfollowed(format!(
            "[rules] follow: the rules of {} are not known: {cause}\nNo text is kept in {}. Let the address answer, or write \
             the rules into that file.",
            follow.follow,
            file.display()
        ))
    })?;
    let candidate = Candidate { text, from: follow.follow.to_string() };
    let complete = config::load_following(&candidate, path, certificates, known)?;
    let now = Clock::system().wall_now();
    keep(&file, &kept(follow, candidate.text, etag, now)).map_err(|error| unfollowed(not_kept(&file, &error)))?;
    Ok(complete)
}
