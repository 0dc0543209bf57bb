//! How dead letters look on a terminal.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, IsTerminal, Stdout, Write};

use serde_json::{Map, Value, json};

use super::super::safe::Safe;
use super::super::tell::wants_colour;
use crate::dead_letter::{Entry, Filter, Ranking, Record, Summary, TopKey, in_words};
use crate::redact::{ByNumber, is_terminal_control};
use crate::time::Wall;

/// Characters of a request's URL in a list.
const MAX_LISTED_URL: usize = 120;
/// The width of what is no terminal.
const USUAL_WIDTH: usize = 80;

/// The characters that can be shown where the output goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) colour: bool,
    /// Whether there is more than ASCII to draw with.
    pub(super) utf8: bool,
    /// Characters of a line.
    pub(super) width: usize,
}

impl Style {
    fn paint(self, code: &'static str, text: impl Display) -> String {
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_string() }
    }

    /// As the terminal and the environment have it.
    pub(super) fn of(stdout: &Stdout) -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let columns = rustix::termios::tcgetwinsize(stdout).map_or(0, |size| size.ws_col.into());
        Self {
            colour: stdout.is_terminal() && wants_colour(),
            // The first that is set decides (POSIX, "Internationalization Variables").
            utf8: ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(variable).is_some_and(|locale| is_utf8(&locale)),
            width: if columns == 0 { USUAL_WIDTH } else { columns },
        }
    }

    fn reason(self, reason: &str) -> String {
        self.of_reason(reason, format!("{:<14}", Safe(reason).to_string()))
    }

    /// In the colour of a reason.
    pub(super) fn of_reason(self, reason: &str, text: impl Display) -> String {
        let code = match reason {
            "upstream-error" | "breaker" => "31",
            "timeout" | "wait-timeout" => "35",
            _ => "33",
        };
        self.paint(code, text)
    }

    pub(super) fn dim(self, text: impl Display) -> String {
        self.paint("2", text)
    }

    pub(super) fn bold(self, text: impl Display) -> String {
        self.paint("1", text)
    }
}

/// Whether a locale's encoding is UTF-8, as in `en_GB.UTF-8` or `C.utf8`.
fn is_utf8(locale: &OsStr) -> bool {
    let locale = locale.to_string_lossy().to_ascii_lowercase();
    let encoding = locale.split_once('.').map(|(_, rest)| rest.split('@').next().unwrap_or_default());
    matches!(encoding, Some("utf-8" | "utf8"))
}

fn safe(text: Option<&str>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| Safe(text).to_string())
}

/// A line of the log as it is. For a terminal, what would steer it is escaped: lines of earlier versions have such characters
/// in their strings.
pub(super) fn write_json(out: &mut dyn Write, line: &str, is_terminal: bool) -> io::Result<()> {
    if !is_terminal || !line.contains(is_terminal_control) {
        return writeln!(out, "{line}");
    }
    for character in line.chars() {
        if is_terminal_control(character) {
            write!(out, "{}", ByNumber(character))?;
        } else {
            write!(out, "{character}")?;
        }
    }
    writeln!(out)
}

/// One line of a list.
pub(super) fn write_line(out: &mut dyn Write, style: Style, entry: &Entry) -> io::Result<()> {
    match entry {
        Entry::Record(record) => {
            let url = safe(Some(&url(record)));
            let mut shown: String = url.chars().take(MAX_LISTED_URL).collect();
            if shown.len() < url.len() {
                shown.push('…');
            }
            writeln!(
                out,
                "{}  {}  {:>3}  {:<16}  {:<15}  {} {shown}{}  {}",
                time(record.at),
                style.reason(&record.reason),
                if entry.is_shadow() { "-".to_owned() } else { record.status.to_string() },
                limit_of(record.limit.as_deref(), entry.is_shadow()),
                safe(record.client_ip.as_deref()),
                safe(Some(&record.method)),
                listed_key(&record.key),
                style.dim(Safe(&record.id)),
            )
        }
        Entry::Aggregate(aggregate) => writeln!(
            out,
            "{}  {}  {:>3}  {:<16}  {} more from {} to {}{}  {}",
            time(aggregate.at),
            style.reason(&aggregate.reason),
            "",
            limit_of(aggregate.limit.as_deref(), entry.is_shadow()),
            style.bold(aggregate.count),
            clock(aggregate.from),
            clock(aggregate.to),
            aggregate.top.first().map_or_else(String::new, most),
            style.dim(Safe(&aggregate.id)),
        ),
        Entry::Dropped(dropped) => writeln!(
            out,
            "{}  {}  {} records lost: queue full {}, disk error {}; from {} to {}  {}",
            time(dropped.at),
            style.paint("31", "LOST          "),
            style.bold(dropped.count),
            dropped.queue_full,
            dropped.disk_error,
            clock(dropped.from),
            clock(dropped.to),
            style.dim(Safe(&dropped.id)),
        ),
    }
}

/// A limit as it is listed: one in shadow mode says so.
fn limit_of(limit: Option<&str>, is_shadow: bool) -> String {
    safe(limit) + if is_shadow { " (shadow)" } else { "" }
}

/// The key of a record, where it is not the client's address alone, which stands beside it.
fn listed_key(key: &[(String, String)]) -> String {
    match key {
        [] => String::new(),
        [(source, _)] if source == "client-ip" => String::new(),
        key => format!("  {}", Safe(&in_words(key))),
    }
}

/// The key that an aggregate counts most often.
fn most(top: &TopKey) -> String {
    format!(", {} by {}", top.count - top.excess.min(top.count), Safe(&in_words(&top.key)))
}

/// One entry in full.
pub(super) fn write_details(out: &mut dyn Write, style: Style, entry: &Entry) -> io::Result<()> {
    let record = match entry {
        Entry::Record(record) => record,
        Entry::Aggregate(aggregate) => {
            write_line(out, style, entry)?;
            for TopKey { key, count, excess } in &aggregate.top {
                let about =
                    if *excess > 0 { format!(" (at least {})", count.saturating_sub(*excess)) } else { String::new() };
                writeln!(out, "  {count:>10}  {}{about}", Safe(&in_words(key)))?;
            }
            return Ok(());
        }
        Entry::Dropped(_) => return write_line(out, style, entry),
    };
    let mut field = |name: &str, value: String| writeln!(out, "{} {value}", style.bold(format!("{name:<12}")));
    field("id", safe(Some(&record.id)))?;
    field("time", precise(record.at))?;
    if entry.is_shadow() {
        field("mode", "shadow: it was admitted, and the limit would have refused it".to_owned())?;
    }
    field("reason", style.reason(&record.reason).trim_end().to_owned())?;
    field("status", record.status.to_string())?;
    field("attempts", record.attempts.to_string())?;
    for (server, why) in &record.tries {
        field("tried", format!("{}: {}", Safe(server), Safe(why)))?;
    }
    for (name, value) in [
        ("limit", &record.limit),
        ("route", &record.route),
        ("plan", &record.plan),
        ("upstream", &record.upstream),
        ("client", &record.client_ip),
        ("trace id", &record.trace_id),
        ("request id", &record.request_id),
    ] {
        if value.is_some() {
            field(name, safe(value.as_deref()))?;
        }
    }
    field("node", safe(Some(&record.node)))?;
    for (source, value) in &record.key {
        field("key", format!("{} = {}", Safe(source), Safe(value)))?;
    }
    if let Some(why) = &record.why {
        field("why", Safe(why).to_string())?;
    }
    if let Some(quota) = record.quota {
        let retry = quota.retry_after_ms.map_or_else(|| "never".to_owned(), |millis| format!("in {millis} ms"));
        field("quota", format!("{} per {} ms, {} left, next {retry}", quota.limit, quota.window_ms, quota.remaining))?;
    }
    if let Some(body) = &record.body {
        let cut = if body.truncated { ", cut" } else { "" };
        field("body", format!("{} bytes came{cut}; {}: {}", body.len, Safe(&body.encoding), Safe(&body.data)))?;
    }
    if record.truncated {
        field("cut", "a field was too long; it ends in … where it was cut".to_owned())?;
    }
    writeln!(out)?;
    writeln!(out, "{} {}", style.bold(Safe(&record.method)), Safe(&url(record)))?;
    for (name, value) in &record.headers {
        writeln!(out, "{} {}", style.bold(format!("{}:", Safe(name))), Safe(value))?;
    }
    Ok(())
}

/// Everything of a summary.
pub(super) fn write_summary(
    out: &mut dyn Write,
    style: Style,
    (summary, filter): (&Summary, &Filter),
    damaged: u64,
    top: usize,
) -> io::Result<()> {
    let Summary { unattributed, shadow_unattributed, .. } = *summary;
    let up_to = |count: u64, more: u64| match more {
        0 => count.to_string(),
        _ => format!("{count} to {}", count.saturating_add(more)),
    };
    let total = summary.records.saturating_add(summary.aggregated);
    match (summary.first, summary.last) {
        (Some(first), Some(last)) => writeln!(out, "{} to {}", precise(first), precise(last))?,
        _ => writeln!(out, "no records")?,
    }
    writeln!(
        out,
        "{} requests: {} recorded, {} counted in aggregates",
        style.bold(up_to(total, unattributed)),
        summary.records,
        up_to(summary.aggregated, unattributed)
    )?;
    if summary.shadow > 0 || shadow_unattributed > 0 {
        let shadow = up_to(summary.shadow, shadow_unattributed);
        writeln!(out, "{shadow} more were admitted, and limits in shadow mode would have refused them")?;
    }
    let untold = unattributed.saturating_add(shadow_unattributed);
    if untold > 0 {
        let fields = filter.fields_of_records().join(" and the ");
        writeln!(out, "aggregates do not tell the {fields} of {untold} requests: what of them matches is not below")?;
    }
    if summary.dropped.total() > 0 {
        let text = format!(
            "{} records lost{}: queue full {}, disk error {}",
            summary.dropped.total(),
            if is_of_time_alone(filter) { "" } else { ", which may match or not" },
            summary.dropped.queue_full,
            summary.dropped.disk_error
        );
        writeln!(out, "{}", style.paint("31", text))?;
    }
    if damaged > 0 {
        writeln!(out, "{}", style.paint("31", format!("{damaged} damaged lines")))?;
    }
    for (title, ranking) in rankings(summary) {
        write_ranking(out, style, title, ranking, top)?;
    }
    Ok(())
}

fn is_of_time_alone(filter: &Filter) -> bool {
    filter.limit.is_none() && filter.reason.is_none() && filter.fields_of_records().is_empty()
}

/// The same as one JSON object.
pub(super) fn write_summary_json(out: &mut dyn Write, summary: &Summary, damaged: u64, top: usize) -> io::Result<()> {
    let instant = |at: Option<Wall>| at.map(precise);
    let mut object = Map::new();
    let mut set = |name: &str, value: Value| object.insert(name.to_owned(), value);
    set("first", json!(instant(summary.first)));
    set("last", json!(instant(summary.last)));
    set("requests", json!(summary.records.saturating_add(summary.aggregated)));
    set("records", json!(summary.records));
    set("aggregated", json!(summary.aggregated));
    set("unattributed", json!(summary.unattributed));
    set("shadow", json!(summary.shadow));
    set("shadow_unattributed", json!(summary.shadow_unattributed));
    set("dropped", json!({"queue_full": summary.dropped.queue_full, "disk_error": summary.dropped.disk_error}));
    set("damaged_lines", json!(damaged));
    for (title, ranking) in rankings(summary) {
        let rows = ranking.top(top).into_iter();
        let rows =
            rows.map(|row| json!({"name": &*row.name, "count": row.count, "count_too_high_by_at_most": row.excess}));
        set(&title.replace(' ', "_"), rows.collect());
    }
    let minutes = summary.minutes.iter().map(|(at, count)| json!({"minute": precise(*at), "count": count}));
    set("minutes", minutes.collect());
    set("before_first_minute", json!(summary.earlier));
    writeln!(out, "{}", Value::Object(object))
}

fn rankings(summary: &Summary) -> [(&'static str, &Ranking); 7] {
    [
        ("reasons", &summary.reasons),
        ("limits", &summary.limits),
        ("routes", &summary.routes),
        ("keys", &summary.keys),
        ("clients", &summary.clients),
        ("shadow limits", &summary.shadow_limits),
        ("shadow keys", &summary.shadow_keys),
    ]
}

fn write_ranking(out: &mut dyn Write, style: Style, title: &str, ranking: &Ranking, top: usize) -> io::Result<()> {
    if ranking.is_empty() {
        return Ok(());
    }
    let note = match title {
        "routes" => "  (recorded requests only)",
        "keys" | "clients" | "shadow keys" => "  (of aggregates those that came most often)",
        _ => "",
    };
    writeln!(out, "\n{}{}", style.bold(title), style.dim(note))?;
    for row in ranking.top(top) {
        let about = if row.excess > 0 { format!("  (at most {} too high)", row.excess) } else { String::new() };
        writeln!(out, "{:>12}  {}{about}", row.count, Safe(&row.name))?;
    }
    Ok(())
}

fn url(record: &Record) -> String {
    let query = record.query.as_deref().map(|query| format!("?{query}"));
    format!("{}{}{}", record.host, record.path, query.unwrap_or_default())
}

fn precise(at: Wall) -> String {
    format!("{:.6}", at.timestamp())
}

/// Date and time to the millisecond.
fn time(at: Wall) -> String {
    format!("{:.3}", at.timestamp()).replace('T', " ")
}

/// The time of day alone.
fn clock(at: Wall) -> String {
    time(at).split_off(11)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_of_a_locale_is_what_follows_the_point() {
        for locale in ["en_GB.UTF-8", "C.utf8", "de_DE.UTF-8@euro"] {
            assert!(is_utf8(OsStr::new(locale)), "{locale}");
        }
        for locale in ["", "C", "POSIX", "utf8", "de_DE@euro", "ja_JP.eucJP"] {
            assert!(!is_utf8(OsStr::new(locale)), "{locale}");
        }
    }
}
