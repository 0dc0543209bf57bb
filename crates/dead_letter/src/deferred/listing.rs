//! The deferred requests of a directory for whoever looks at it from outside, while a gateway writes there.

use std::collections::HashMap;
use std::path::Path;

use super::files::{self, Visit};
use super::index::LinePosition;
use super::line::{DeferredLine, Ended, Totals, place_of};
use super::request::{Deferral, KeptAnswer, Shown};
use super::{Keys, directory_of, index, open};
use crate::store::StoreError;
use sluicegate_time::{Tick, WallOffset};

/// A deferred request, as its line shows it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its id.
    pub id: u128,
    /// When it was kept.
    pub accepted: Tick,
    /// Its method.
    pub method: String,
    /// How it ended; `None`: it is pending.
    pub ended: Option<Ended>,
    shown: Shown,
    place: LinePosition,
    answer: Option<LinePosition>,
}

impl Listed {
    /// The route that it matched.
    pub fn route(&self) -> &str {
        &self.shown.route
    }

    /// The limit that refused it.
    pub fn limit(&self) -> &str {
        &self.shown.limit
    }

    /// Its client.
    pub fn client(&self) -> std::net::IpAddr {
        self.shown.client
    }

    /// In a word: `pending`, `sent`, `failed` or `expired`.
    pub fn state(&self) -> &'static str {
        index::state(self.ended.as_ref())
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Listing {
    /// Those that are known still, by when they came.
    pub requests: Vec<Listed>,
    /// The numbers since the store was first used.
    pub totals: Totals,
    /// Lines that cannot be read.
    pub damaged: u64,
}

impl Listing {
    /// Those of a log.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn read(log: &Path) -> Result<Self, StoreError> {
        let mut listing = Self::default();
        let mut known: HashMap<u128, usize> = HashMap::new();
        let mut is_first = true;
        let found = files::scan(&directory_of(log), &WallOffset::of_system(), &mut |visit| {
            let Visit::Line(line, place) = visit else { return };
            match line {
                DeferredLine::Begins(totals) if is_first => listing.totals = totals,
                DeferredLine::Begins(_) => {}
                DeferredLine::Request { id, at, method, shown, is_copy } => {
                    if let Some(listed) = known.get(&id).and_then(|at| listing.requests.get_mut(*at)) {
                        listed.place = place;
                    } else {
                        listing.totals.deferred += u64::from(!is_copy);
                        known.insert(id, listing.requests.len());
                        let listed = Listed { id, accepted: at, method, ended: None, shown, place, answer: None };
                        listing.requests.push(listed);
                    }
                }
                DeferredLine::End { id, ended, has_answer } => {
                    let listed = known.get(&id).and_then(|at| listing.requests.get_mut(*at));
                    if listed.as_ref().is_none_or(|listed| listed.ended.is_none()) {
                        listing.totals.count(ended.fate);
                    }
                    if let Some(listed) = listed.filter(|listed| listed.ended.is_none()) {
                        (listed.ended, listed.answer) = (Some(ended), has_answer.then_some(place));
                    }
                }
            }
            is_first = false;
        })?;
        listing.damaged = found.damaged;
        Ok(listing)
    }
}

/// A request whole, and its answer if it has one; the error is in words.
///
/// # Errors
/// Its line cannot be read, or not be opened under these keys.
pub fn read_one(log: &Path, listed: &Listed, keys: &Keys) -> Result<(Deferral, Option<KeptAnswer>), String> {
    let read = |place: LinePosition, of: Option<&Shown>| {
        let bytes = files::read_at(&directory_of(log), place).map_err(|error| error.to_string())?;
        open(&bytes, &place_of(listed.id, of), keys).map_err(|error| error.to_string())
    };
    let request =
        Deferral::of(&listed.shown, &read(listed.place, Some(&listed.shown))?).ok_or("its line is damaged")?;
    let answer = listed.answer.map(|place| read(place, None)).transpose()?;
    Ok((request, answer.and_then(|bytes| KeptAnswer::of(&bytes))))
}
