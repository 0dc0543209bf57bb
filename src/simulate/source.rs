//! The requests of logs, in the order in which they came.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;

use super::combined;
use super::csv::CsvColumns;
use super::held::HeldRequests;
use super::instant::Instants;
use super::json;
use super::lines::{LineFile, LineRead};
use super::logged::Logged;
use super::skipped::{SkipReason, Skipped};
use crate::time::{Span, Tick};

/// How much later than others a request may stand in a log: a log has its requests by their ends, or their beginnings.
const WINDOW: Span = Span::from_secs(600);
/// The most requests that are held to be sorted, and the most bytes of theirs.
const MAX_HELD: usize = 200_000;
const MAX_BYTES: usize = 64 << 20;
/// Whoever is so much later than the line before is believed when as many lines in a row are.
const FAR: Span = Span::from_secs(3_600);
const BELIEVED: u32 = 8;

/// Reads files, one after the other, and sorts their requests.
pub(super) struct RequestSource {
    files: std::vec::IntoIter<PathBuf>,
    current: Option<File>,
    instants: Instants,
    /// The host of requests of which a log says none.
    host: Option<String>,
    /// Requests that wait for earlier ones, by their instants and then their places in the log.
    held: HeldRequests,
    /// Bytes of theirs.
    bytes: usize,
    /// Where they lie.
    places: Vec<Logged>,
    free: Vec<usize>,
    /// Requests that are given out next: those of one second, which are spread over it.
    ready: Vec<usize>,
    /// How many came so far.
    read: u64,
    /// The instant of the line that was read last: not the latest of all, which one wrong clock may set years ahead.
    latest: Tick,
    /// Lines in a row that were far ahead of that.
    ahead: u32,
    /// Before it nothing can be let in any more.
    given_to: Tick,
    /// The instant of the request that was given out last.
    given: Tick,
    taken: Rc<Cell<u64>>,
    /// Lines that took no part.
    pub(super) skipped: Skipped,
    /// Whether times were known to the second only, and requests were spread over it.
    pub(super) has_spread: bool,
}

struct File {
    lines: LineFile,
    table: Option<CsvColumns>,
}

impl RequestSource {
    /// Of these files; `-` is standard input.
    pub(super) fn new(files: Vec<PathBuf>, host: Option<String>) -> Self {
        Self {
            files: files.into_iter(),
            current: None,
            instants: Instants::default(),
            host,
            held: HeldRequests::default(),
            bytes: 0,
            ahead: 0,
            places: Vec::new(),
            free: Vec::new(),
            ready: Vec::new(),
            read: 0,
            latest: Tick::ZERO,
            given_to: Tick::ZERO,
            given: Tick::ZERO,
            taken: Rc::default(),
            skipped: Skipped::default(),
            has_spread: false,
        }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the files that were read so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken.get()
    }

    /// Gives the next request to `visit`; false at the end.
    ///
    /// # Errors
    /// A file cannot be read: in words.
    pub(super) fn next(&mut self, visit: &mut dyn FnMut(&Logged)) -> Result<bool, String> {
        if self.ready.is_empty() {
            while !self.is_due() && self.read_one()? {}
            self.prepare();
        }
        let Some(place) = self.ready.pop() else { return Ok(false) };
        if let Some(logged) = self.places.get_mut(place) {
            // A second may be given out in parts.
            self.given = self.given.max(logged.at);
            logged.at = self.given;
            visit(logged);
            self.bytes = self.bytes.saturating_sub(logged.bytes());
            logged.trim();
        }
        self.free.push(place);
        Ok(true)
    }

    /// Whether the earliest that is held is the next of all.
    fn is_due(&self) -> bool {
        self.held.len() >= MAX_HELD
            || self.bytes >= MAX_BYTES && self.held.len() > 0
            || self.held.peek().is_some_and(|(at, ..)| self.latest.since(at) > WINDOW)
    }

    /// Takes the earliest, and with it the others of its second if that is all that is known of it.
    fn prepare(&mut self) {
        let Some((at, _, first)) = self.held.pop() else { return };
        self.ready.push(first);
        self.given_to = at;
        let is_coarse = |places: &[Logged], place: usize| places.get(place).is_some_and(|own| own.is_to_the_second);
        if !is_coarse(&self.places, first) {
            return;
        }
        while let Some((other, _, place)) = self.held.peek()
            && other == at
            && is_coarse(&self.places, place)
        {
            self.ready.push(place);
            self.held.pop();
        }
        let count = self.ready.len() as u64;
        self.has_spread |= count > 1;
        for (place, nth) in self.ready.iter().zip(0..) {
            if let Some(logged) = self.places.get_mut(*place) {
                logged.at = at + Span::from_nanos(Span::from_secs(1).as_nanos() * nth / count);
            }
        }
        self.ready.reverse();
    }

    /// Reads a line; false if there is none.
    fn read_one(&mut self) -> Result<bool, String> {
        let Some(file) = &mut self.current else {
            let Some(path) = self.files.next() else { return Ok(false) };
            let lines = LineFile::open(&path, &self.taken).map_err(|error| format!("{}: {error}", path.display()))?;
            self.current = Some(File { lines, table: None });
            return Ok(true);
        };
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Logged::default());
            self.places.len() - 1
        });
        let Some(logged) = self.places.get_mut(place) else { return Ok(false) };
        let read = match file.lines.next() {
            Ok(LineRead::Whole(line)) => parse(line, &mut file.table, &mut self.instants, logged),
            Ok(LineRead::TooLong) => Err(SkipReason::TooLong),
            Ok(LineRead::Cut) => {
                self.skipped.add(SkipReason::Cut, &file.lines.name, file.lines.number + 1);
                self.current = None;
                self.free.push(place);
                return Ok(true);
            }
            Ok(LineRead::End) => {
                self.current = None;
                self.free.push(place);
                return Ok(true);
            }
            Err(error) => return Err(format!("{}: {error}", file.lines.name)),
        };
        let read = match read {
            Ok(true) if logged.at < self.given_to => Err(SkipReason::OutOfOrder),
            other => other,
        };
        match read {
            Ok(true) => {
                if let Some(host) = &self.host {
                    logged.default_host(host);
                }
                self.bytes += logged.bytes();
                self.ahead = if self.read > 0 && logged.at.since(self.latest) > FAR { self.ahead + 1 } else { 0 };
                if self.ahead == 0 || self.ahead >= BELIEVED {
                    self.latest = logged.at;
                }
                self.held.push((logged.at, self.read, place));
                self.read += 1;
            }
            Ok(false) => self.free.push(place),
            Err(fault) => {
                self.skipped.add(fault, &file.lines.name, file.lines.number);
                self.free.push(place);
            }
        }
        Ok(true)
    }
}

/// Reads a line of any form; false if it says nothing.
fn parse(
    line: &[u8],
    table: &mut Option<CsvColumns>,
    instants: &mut Instants,
    logged: &mut Logged,
) -> Result<bool, SkipReason> {
    // Some programs put a byte order mark at the start.
    let line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
    if line.trim_ascii().is_empty() {
        return Ok(false);
    }
    let text = std::str::from_utf8(line).map_err(|_| SkipReason::Broken)?;
    if text.starts_with('{') {
        return json::read(text, instants, logged).map(|()| true);
    }
    if let Some(table) = table {
        return table.read(text, instants, logged).map(|()| true);
    }
    match combined::read(text, instants, logged) {
        Err(SkipReason::Broken) => {}
        other => return other.map(|()| true),
    }
    *table = CsvColumns::begin(text);
    if table.is_some() { Ok(false) } else { Err(SkipReason::Broken) }
}
