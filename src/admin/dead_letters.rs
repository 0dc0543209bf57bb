//! The dead-letter log over HTTP: what may be asked of it, a page of it, and what a subscriber is sent.

use std::fmt::{Display, Write as _};
use std::str::FromStr;

use http::StatusCode;
use serde_json::json;

use super::Commands;
use super::paths::unescaped;
use super::problem::Problem;
use crate::dead_letter::{
    Archive, ArchivePart, Bounds, Entry, Filter, Found, KeyFilter, LogCursor, StoreError, When, parse_network,
};
use crate::time::{Span, Wall};

/// Parameters that choose entries, by the names of `sluicegate dead-letters ls`.
const FILTERS: [&str; 8] = ["since", "until", "limit", "route", "reason", "key", "client", "status"];

/// Those of a page.
const OF_PAGE: [&str; 2] = ["max", "cursor"];

/// That of a stream, for whoever cannot send the header field of this name.
const LAST_EVENT_ID: &str = "last-event-id";

/// Records of a page.
const DEFAULT_MAX: usize = 100;
const MAX_MAX: usize = 1_000;

/// The most that one page costs; it may be short then, or empty, and its cursor goes on. The lines may take 4 MiB.
const PAGE: Bounds =
    Bounds { entries: DEFAULT_MAX, line_bytes: 4 << 20, read_bytes: 64 << 20, time: Span::from_secs(1) };

/// The most that a stream reads in one turn, so that many of them have turns, and the most that it holds of it.
const TURN: Bounds = Bounds { entries: 1_000, line_bytes: 64 << 10, read_bytes: 8 << 20, time: Span::from_millis(100) };

const GAP: &str = "a segment of the log is gone, or written anew: lines before the next ones may be missing";

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QueryError {
    NoLog,
    Wrong { parameter: String, detail: String, allowed: Vec<&'static str> },
    Unreadable(String),
}

impl From<StoreError> for QueryError {
    fn from(error: StoreError) -> Self {
        Self::Unreadable(error.to_string())
    }
}

impl From<QueryError> for Problem {
    fn from(refused: QueryError) -> Self {
        match refused {
            QueryError::NoLog => {
                let detail = "There is no dead-letter log: write a [dead_letter] section into the file and reload.";
                Self::new(StatusCode::NOT_FOUND, detail)
            }
            QueryError::Wrong { parameter, detail, allowed } => {
                Self::new(StatusCode::BAD_REQUEST, detail).with("parameter", parameter).with("allowed", allowed)
            }
            QueryError::Unreadable(detail) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{detail}.")),
        }
    }
}

/// A page of the log, as JSON.
pub(super) fn page(commands: &dyn Commands, query: Option<&str>) -> Result<String, QueryError> {
    let archive = commands.dead_letters().ok_or(QueryError::NoLog)?;
    let asked = LogQuery::parse(query, &OF_PAGE, &archive)?;
    let bounds = Bounds { entries: asked.max, ..PAGE };
    let mut answer = String::from("{\"records\":[");
    let mut separator = "\n";
    let part = archive.read(asked.from.as_ref(), &asked.filter, &bounds, &mut |found, _| {
        answer.push_str(separator);
        // A line is JSON whose checksum held.
        answer.push_str(&found.line);
        separator = ",\n";
    })?;
    let next = (!part.is_end).then(|| part.cursor.to_string());
    let _ = writeln!(answer, "\n],\"next\":{},\"damaged\":{}}}", json!(next), part.damaged);
    Ok(answer)
}

/// The events that a subscriber is sent, from where they are on.
pub(super) struct Subscription {
    filter: Filter,
    cursor: LogCursor,
    /// Whether more is there than was read.
    pub(super) is_behind: bool,
}

impl Subscription {
    /// Begins behind the last event that the subscriber had, or at the end of the log.
    pub(super) fn begin(
        commands: &dyn Commands,
        query: Option<&str>,
        last_event: Option<&str>,
    ) -> Result<Self, QueryError> {
        let archive = commands.dead_letters().ok_or(QueryError::NoLog)?;
        let asked = LogQuery::parse(query, &[LAST_EVENT_ID], &archive)?;
        let of_header = last_event.filter(|id| !id.is_empty()).map(|id| parsed(LAST_EVENT_ID, id, &[LAST_EVENT_ID]));
        // A browser that comes again sends the field, and the query as it was at first.
        let cursor = match of_header.transpose()?.or(asked.from) {
            Some(cursor) => cursor,
            None => archive.end()?,
        };
        Ok(Self { filter: asked.filter, cursor, is_behind: true })
    }

    /// Tells a subscriber where they are, as an id without an event: one that comes again before there was any misses nothing.
    pub(super) fn comment(&self, text: &str) -> String {
        format!(": {text}\nid: {}\n\n", self.cursor)
    }

    /// The events that are there now, of those that follow; `None` if the log cannot be read any more.
    pub(super) fn turn(&mut self, commands: &dyn Commands) -> Option<String> {
        let archive = commands.dead_letters()?;
        let mut events = String::new();
        let read = archive.read(Some(&self.cursor), &self.filter, &TURN, &mut |found, cursor| {
            push_event(&mut events, found, cursor);
        });
        let ArchivePart { cursor, is_end, has_gap, .. } = read.ok()?;
        self.is_behind = !is_end;
        self.cursor = cursor;
        if !has_gap {
            return Some(events);
        }
        let id = if events.is_empty() { format!("id: {}\n", self.cursor) } else { String::new() };
        Some(format!("{id}event: gap\ndata: {}\n\n{events}", json!({ "detail": GAP })))
    }
}

fn push_event(events: &mut String, found: &Found, cursor: &LogCursor) {
    let name = match found.entry {
        Entry::Record(_) => "record",
        Entry::Aggregate(_) => "aggregate",
        Entry::Dropped(_) => "dropped",
    };
    // Only between the tokens of JSON can there be one, and it would end the field.
    let line = found.line.replace('\r', " ");
    let _ = write!(events, "id: {cursor}\nevent: {name}\ndata: {line}\n\n");
}

/// The parts of a query.
#[derive(Debug)]
struct LogQuery {
    filter: Filter,
    max: usize,
    from: Option<LogCursor>,
}

impl LogQuery {
    /// Reads a query in which the filters and `more` may be.
    fn parse(query: Option<&str>, more: &[&'static str], archive: &Archive) -> Result<Self, QueryError> {
        let mut asked = Self { filter: Filter::default(), max: DEFAULT_MAX, from: None };
        let mut seen = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(known) = FILTERS.iter().chain(more).find(|known| **known == name) else {
                return Err(wrong(name, "There is no such parameter.", more));
            };
            if seen.contains(known) {
                return Err(wrong(name, "It is there twice: give it once.", more));
            }
            seen.push(*known);
            let Some(value) = unescaped(&value.replace('+', " ")) else {
                return Err(wrong(name, "Its value is not percent-encoded UTF-8: write % as %25.", more));
            };
            asked.set(known, &value, more, archive.clock.wall_now(), archive)?;
        }
        Ok(asked)
    }

    fn set(
        &mut self,
        name: &'static str,
        value: &str,
        more: &[&'static str],
        now: Wall,
        archive: &Archive,
    ) -> Result<(), QueryError> {
        let when = || -> Result<Wall, QueryError> {
            let when = value.parse::<When>().map_err(|error| {
                // In a query a plus is a blank.
                let hint = if value.contains(' ') { "; write + as %2B" } else { "" };
                wrong(name, &format!("Its value is no time: {error}{hint}."), more)
            })?;
            Ok(when.resolve(now))
        };
        let filter = &mut self.filter;
        match name {
            "since" => filter.since = Some(when()?),
            "until" => filter.until = Some(when()?),
            "limit" => filter.limit = Some(value.to_owned()),
            "route" => filter.route = Some(value.to_owned()),
            "reason" => filter.reason = Some(parsed(name, value, more)?),
            "key" => filter.key = Some(KeyFilter::new(value, Some(archive.redactor.clone()))),
            "client" => {
                let network = parse_network(value);
                filter.client =
                    Some(network.map_err(|error| wrong(name, &format!("Its value is wrong: {error}."), more))?);
            }
            "status" => filter.status = Some(parsed(name, value, more)?),
            "max" => {
                let max = value.parse().ok().filter(|max| (1..=MAX_MAX).contains(max));
                self.max = max.ok_or_else(|| wrong(name, "Its value is wrong: use a number from 1 to 1000.", more))?;
            }
            // A cursor by either name. An empty one is none, so that a form may send all of its fields.
            _ if value.is_empty() => {}
            _ => self.from = Some(parsed(name, value, more)?),
        }
        Ok(())
    }
}

fn parsed<T: FromStr<Err: Display>>(name: &str, value: &str, more: &[&'static str]) -> Result<T, QueryError> {
    value.parse().map_err(|error| wrong(name, &format!("Its value is wrong: {error}."), more))
}

fn wrong(parameter: &str, why: &str, more: &[&'static str]) -> QueryError {
    let allowed: Vec<_> = FILTERS.iter().chain(more).copied().collect();
    let detail = format!("Parameter {parameter:?}: {why} Allowed are {}.", allowed.join(", "));
    QueryError::Wrong { parameter: parameter.to_owned(), detail, allowed }
}
