//! Findings made readable: each with file, line, column, the line itself, a caret under the exact place, and a remedy.

use std::cell::OnceCell;
use std::fmt::{self, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::findings::{Finding, Findings};
use super::followed_text::Followed;
use super::hidden::Secrets;
use sluicegate_redact::is_terminal_control;

/// Findings printed in full; those beyond are counted in the last line.
const MAX_PRINTED: usize = 50;

/// Terminal cells of a source line that are shown; a longer line is cut around the caret.
const MAX_LINE_CELLS: usize = 140;

/// Terminal cells kept before the caret when a line is cut.
const CELLS_BEFORE_CARET: usize = 40;

/// Cells a tab is shown as.
const TAB_CELLS: usize = 4;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, but says something that was surely not meant.
    Warning,
}

/// One error or warning, ready to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// The error.
    pub message: String,
    /// The file, if it is another one than the report's.
    pub file: Option<PathBuf>,
    /// Where; `None` is the file as a whole.
    pub place: Option<Place>,
    /// Another place that belongs to it: what it is, and its place.
    pub related: Option<(&'static str, Place)>,
    /// The remedy.
    pub help: Option<String>,
    excerpt: Option<Excerpt>,
}

/// A place in the file; both count from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The character in it.
    pub column: usize,
}

/// A source line as a terminal shows it, and the cells under which the carets stand.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Excerpt {
    text: String,
    caret_from: usize,
    carets: usize,
}

/// Every error of a file, by position. Its `Display` is the whole report, without colour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(Report);

/// Every warning of a file that can be used, by position. Its `Display` is the whole report, empty without warnings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warnings(Report);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Report {
    file: PathBuf,
    printed: Vec<Diagnostic>,
    total: usize,
}

impl Errors {
    /// How many errors there are.
    pub fn total(&self) -> usize {
        self.0.total
    }

    /// The errors, by position; at most the first fifty.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.0.printed
    }
}

impl Warnings {
    /// How many warnings there are.
    pub fn total(&self) -> usize {
        self.0.total
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.total == 0
    }

    /// The warnings, by position; at most the first fifty.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.0.printed
    }

    /// The same with what was found beside the text. Where one of that is an error, all of it, without the warnings.
    ///
    /// # Errors
    /// The errors.
    pub fn with(mut self, found: Vec<Diagnostic>) -> Result<Self, Errors> {
        let (errors, warnings): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|found| found.severity == Severity::Error);
        if errors.is_empty() {
            self.0.total += warnings.len();
            self.0.printed.extend(warnings);
            return Ok(self);
        }
        Err(Errors(Report { file: self.0.file, total: errors.len(), printed: errors }))
    }
}

impl std::error::Error for Errors {}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f, "error")
    }
}

impl fmt::Display for Warnings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f, "warning")
    }
}

/// Sorts what was found in `text` into a report: the errors if there is one, else the warnings.
pub(super) fn judge(file: &Path, text: &str, findings: Findings) -> Result<Warnings, Errors> {
    if findings.has_error() {
        return Err(failure(file, text, findings));
    }
    Ok(Warnings(Report::new(file, text, findings)))
}

/// The report of a file that cannot be used.
pub(super) fn failure(file: &Path, text: &str, findings: Findings) -> Errors {
    Errors(Report::new(file, text, findings))
}

/// Findings in `text`, which is another `file` than the report's.
pub(super) fn elsewhere(file: &Path, text: &str, findings: Findings) -> Vec<Diagnostic> {
    let mut found = Report::new(file, text, findings).printed;
    for diagnostic in &mut found {
        diagnostic.file = Some(file.to_owned());
    }
    found
}

/// A mistake in one line of `[keys]` in such a file, with the line's number, counted from 1, and its text. `shows` says whether
/// the line is shown: as it is, with the secret that its key may be.
pub(super) fn in_line(file: &Path, (number, text): (usize, &str), shows: bool, finding: &Finding) -> Diagnostic {
    let mut found = LineIndex::shown(text).diagnose(finding);
    if let Some(place) = &mut found.place {
        place.line = number;
    }
    if !shows {
        found.excerpt = None;
    }
    found.file = Some(file.to_owned());
    found
}

impl Report {
    fn new(file: &Path, text: &str, mut findings: Findings) -> Self {
        let elsewhere = findings.elsewhere();
        let followed = findings.take_followed();
        let (mut kept, more) = findings.into_parts();
        // Stable: findings of one place stay in the order in which they were made.
        kept.sort_by_key(|finding| finding.span.as_ref().map_or(usize::MAX, |span| span.start));
        let lines = LineIndex::new(text);
        let others = followed.as_ref().map(|followed| (followed, LineIndex::new(followed.text())));
        let diagnose = |finding: &Finding| match &others {
            Some((followed, others)) => diagnose_one_of_two(finding, &lines, followed, others),
            None => lines.diagnose(finding),
        };
        let total = kept.len().saturating_add(more).saturating_add(elsewhere.len());
        let printed = kept.iter().map(diagnose).chain(elsewhere).take(MAX_PRINTED).collect();
        Self { file: file.to_owned(), printed, total }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, what: &str) -> fmt::Result {
        let file = printable(&self.file.display().to_string());
        for diagnostic in &self.printed {
            match &diagnostic.file {
                Some(other) => diagnostic.write(f, &printable(&other.display().to_string()))?,
                None => diagnostic.write(f, &file)?,
            }
            f.write_char('\n')?;
        }
        let more = self.total.saturating_sub(self.printed.len());
        if more > 0 {
            writeln!(f, "... and {more} more")?;
        }
        let file = match self.only_file() {
            Some(other) => printable(&other.display().to_string()),
            None => file,
        };
        match self.total {
            0 => Ok(()),
            1 => write!(f, "{file}: 1 {what}"),
            total => write!(f, "{file}: {total} {what}s"),
        }
    }
}

/// A finding in the file or in the text that it follows. A place of the other one that belongs to it is not told: a report names
/// one file for both.
fn diagnose_one_of_two(
    finding: &Finding,
    lines: &LineIndex<'_>,
    followed: &Followed,
    others: &LineIndex<'_>,
) -> Diagnostic {
    let is_there = |span: &Range<usize>| span.start >= followed.offset;
    let is_followed = finding.span.as_ref().is_some_and(is_there);
    let mut finding = finding.clone();
    finding.related = finding.related.filter(|(_, span)| is_there(span) == is_followed);
    if !is_followed {
        return lines.diagnose(&finding);
    }
    let moved = |span: Range<usize>| span.start - followed.offset..span.end.saturating_sub(followed.offset);
    finding.span = finding.span.map(moved);
    finding.related = finding.related.map(|(what, span)| (what, moved(span)));
    Diagnostic { file: Some(followed.name.clone()), ..others.diagnose(&finding) }
}

impl Report {
    /// The other file in which everything was found, if there is one.
    fn only_file(&self) -> Option<&Path> {
        let first = self.printed.first()?.file.as_deref()?;
        self.printed.iter().all(|found| found.file.as_deref() == Some(first)).then_some(first)
    }
}

impl Diagnostic {
    /// One about the file as a whole.
    pub fn of_file(severity: Severity, message: &str, help: &str) -> Self {
        Self {
            severity,
            message: printable(message),
            file: None,
            place: None,
            related: None,
            help: Some(printable(help)),
            excerpt: None,
        }
    }

    /// Writes it as rustc would, with `file` as the name of the file.
    fn write(&self, f: &mut fmt::Formatter<'_>, file: &str) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        writeln!(f, "{severity}: {}", self.message)?;
        let number = self.place.map(|place| place.line.to_string()).unwrap_or_default();
        let gutter = " ".repeat(number.len().max(1));
        match self.place {
            Some(Place { line, column }) => writeln!(f, "{gutter}--> {file}:{line}:{column}")?,
            None => writeln!(f, "{gutter}--> {file}")?,
        }
        if let Some(Excerpt { text, caret_from, carets }) = &self.excerpt {
            writeln!(f, "{gutter} |")?;
            writeln!(f, "{number} | {text}")?;
            writeln!(f, "{gutter} | {}{}", " ".repeat(*caret_from), "^".repeat(*carets))?;
        }
        if self.excerpt.is_some() && (self.related.is_some() || self.help.is_some()) {
            writeln!(f, "{gutter} |")?;
        }
        if let Some((what, Place { line, column })) = &self.related {
            writeln!(f, "{gutter} = note: {what} {file}:{line}:{column}")?;
        }
        if let Some(help) = &self.help {
            writeln!(f, "{gutter} = help: {help}")?;
        }
        Ok(())
    }
}

/// The text by lines, to find the place of a byte.
struct LineIndex<'t> {
    text: &'t str,
    /// Found when a line is shown.
    secrets: OnceCell<Secrets>,
    starts: Vec<usize>,
}

impl<'t> LineIndex<'t> {
    fn new(text: &'t str) -> Self {
        let after_newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { text, secrets: OnceCell::new(), starts: std::iter::once(0).chain(after_newlines).collect() }
    }

    /// Those of a text that is shown as it is.
    fn shown(text: &'t str) -> Self {
        Self { secrets: OnceCell::from(Secrets::default()), ..Self::new(text) }
    }

    fn diagnose(&self, finding: &Finding) -> Diagnostic {
        Diagnostic {
            severity: finding.severity,
            message: printable(&finding.message),
            file: None,
            place: finding.span.as_ref().map(|span| self.place(span.start)),
            related: finding.related.as_ref().map(|(what, span)| (*what, self.place(span.start))),
            help: finding.help.as_deref().map(printable),
            excerpt: finding.span.as_ref().map(|span| self.excerpt(span)),
        }
    }

    /// The line (from 0), its text without its end, and the byte at which it starts.
    fn line_at(&self, at: usize) -> (usize, &'t str, usize) {
        let index = self.starts.partition_point(|start| *start <= at).saturating_sub(1);
        let start = self.starts.get(index).copied().unwrap_or(0);
        let rest = self.text.get(start..).unwrap_or_default();
        let line = rest.split('\n').next().unwrap_or_default();
        (index, line.strip_suffix('\r').unwrap_or(line), start)
    }

    fn place(&self, at: usize) -> Place {
        let (index, line, start) = self.line_at(at);
        let column = line.char_indices().take_while(|(offset, _)| start + offset < at).count();
        Place { line: index + 1, column: column + 1 }
    }

    fn excerpt(&self, span: &Range<usize>) -> Excerpt {
        let (_, line, start) = self.line_at(span.start);
        let secrets = self.secrets.get_or_init(|| Secrets::of(self.text));
        let (mut before, mut under) = (0, 0);
        let mut cells = Vec::new();
        for (offset, character) in line.char_indices() {
            let at = start + offset;
            let character = if secrets.hide(at) { '*' } else { character };
            let width = cell_width(character);
            if at < span.start {
                before += width;
            } else if at < span.end {
                under += width;
            }
            cells.push((character, width));
        }
        cut(&cells, before, under.max(1))
    }
}

/// Draws a line, cut to [`MAX_LINE_CELLS`] around the caret.
fn cut(cells: &[(char, usize)], before: usize, under: usize) -> Excerpt {
    let width: usize = cells.iter().map(|(_, width)| width).sum();
    if width <= MAX_LINE_CELLS {
        let text = cells.iter().flat_map(|(character, _)| shown(*character)).collect();
        return Excerpt { text, caret_from: before, carets: under };
    }
    const DOTS: &str = "...";
    let first = if before > MAX_LINE_CELLS / 2 { before - CELLS_BEFORE_CARET } else { 0 };
    let last = first + MAX_LINE_CELLS;
    let mut text = String::from(if first > 0 { DOTS } else { "" });
    // The caret moves by what was cut before it, exactly, even where a wide character straddles the cut.
    let mut caret_from = text.len();
    let mut at = 0;
    for (character, width) in cells {
        if at >= first && at + width <= last {
            text.extend(shown(*character));
            if at < before {
                caret_from += width;
            }
        }
        at += width;
    }
    text.push_str(if width > last { DOTS } else { "" });
    Excerpt { text, caret_from, carets: under.min(last.saturating_sub(before)).max(1) }
}

/// A character as it is drawn: tabs as blanks, and nothing that could steer a terminal.
fn shown(character: char) -> impl Iterator<Item = char> {
    let (character, times) = match character {
        '\t' => (' ', TAB_CELLS),
        unsafe_to_print if is_terminal_control(unsafe_to_print) => ('\u{fffd}', 1),
        plain => (plain, 1),
    };
    std::iter::repeat_n(character, times)
}

/// A message without anything that could steer a terminal.
fn printable(text: &str) -> String {
    text.chars().map(|character| if is_terminal_control(character) { '\u{fffd}' } else { character }).collect()
}

/// Cells that a terminal gives to a character: the wide and fullwidth ranges of Unicode's East Asian Width (UAX #11)
/// and the emoji take two, marks that combine with the character before take none. By blocks, not by the full table:
/// a rare miss shifts a caret and does no other harm.
fn cell_width(character: char) -> usize {
    match character {
        '\t' => TAB_CELLS,
        '\u{0300}'..='\u{036f}'
        | '\u{1ab0}'..='\u{1aff}'
        | '\u{200b}'..='\u{200d}'
        | '\u{20d0}'..='\u{20ff}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{fe20}'..='\u{fe2f}' => 0,
        '\u{1100}'..='\u{115f}'
        | '\u{2e80}'..='\u{303e}'
        | '\u{3041}'..='\u{a4cf}'
        | '\u{a960}'..='\u{a97f}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{fe30}'..='\u{fe6f}'
        | '\u{ff01}'..='\u{ff60}'
        | '\u{ffe0}'..='\u{ffe6}'
        | '\u{1f300}'..='\u{1f64f}'
        | '\u{1f680}'..='\u{1f6ff}'
        | '\u{1f900}'..='\u{1f9ff}'
        | '\u{20000}'..='\u{3fffd}' => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(text: &str, span: Range<usize>) -> String {
        let findings = Findings::default();
        findings.push(Finding::error(span, "bad"));
        judge(Path::new("f"), text, findings).unwrap_err().to_string()
    }

    fn carets_under(text: &str, word: &str) -> (String, String) {
        let start = text.find(word).unwrap();
        let report = report(text, start..start + word.len());
        let lines: Vec<&str> = report.lines().collect();
        (lines[1].to_owned(), lines[4].to_owned())
    }

    #[test]
    fn a_tab_is_one_column_and_four_cells() {
        let (place, carets) = carets_under("\ta = bad", "bad");
        assert_eq!(place, " --> f:1:6");
        assert_eq!(carets, "  |         ^^^");
    }

    #[test]
    fn a_wide_character_is_one_column_and_two_cells() {
        let (place, carets) = carets_under("\"漢字\" = 123", "123");
        assert_eq!(place, " --> f:1:8");
        assert_eq!(carets, "  |          ^^^");
        let (_, carets) = carets_under("\"e\u{301}\" = \"漢\"", "漢");
        assert_eq!(carets, "  |        ^^", "a combining accent takes no cell, the wide character two");
    }

    #[test]
    fn lines_count_the_same_with_either_line_end() {
        assert_eq!(carets_under("a = 1\nb = 123\n", "123").0, " --> f:2:5");
        assert_eq!(carets_under("a = 1\r\nb = 123\r\n", "123").0, " --> f:2:5");
        assert!(report("a = 123\r\n", 4..7).contains("\n1 | a = 123\n"), "the line end is not shown");
    }

    #[test]
    fn an_empty_place_still_has_a_caret() {
        assert!(report("a =\n", 3..3).contains("\n  |    ^\n"));
        assert!(report("", 0..0).contains("\n  | ^\n"));
        assert!(report("a = 1\n", 6..6).contains("--> f:2:1"), "the end of the file is a place too");
    }

    #[test]
    fn carets_end_with_the_first_line_of_a_longer_value() {
        assert!(report("a = [\n1,\n]", 4..10).contains("\n  |     ^\n"));
    }

    #[test]
    fn a_long_line_is_cut_around_the_caret() {
        let text = format!("a = [\"{}\", 123, \"{}\"]", "x".repeat(1_000_000), "y".repeat(1_000));
        let (place, carets) = carets_under(&text, "123");
        assert_eq!(place, " --> f:1:1000010");
        assert_eq!(carets, format!("  | {}^^^", " ".repeat(3 + CELLS_BEFORE_CARET)));
        let start = text.find("123").unwrap();
        let report = report(&text, start..start + 3);
        let shown = report.lines().nth(3).unwrap();
        assert_eq!(&shown[4 + 3 + CELLS_BEFORE_CARET..][..3], "123");
        assert!(shown.starts_with("1 | ...xxx") && shown.ends_with("yyy..."));
        assert!(shown.len() < 160);
    }

    #[test]
    fn nothing_of_the_file_steers_the_terminal() {
        let report = report("a = \"\u{1b}[31m\u{202e}\" bad", 14..17);
        assert!(!report.contains('\u{1b}') && !report.contains('\u{202e}'));
        assert!(self::report("a = \"\u{202e}\"", 0..1).contains("\n1 | a = \"\u{fffd}\"\n"));
        let findings = Findings::default();
        findings.push(Finding::error(0..1, "a\u{1b}[31m").help("b\u{7}"));
        let report = failure(Path::new("c\u{1b}"), "x", findings).to_string();
        assert!(!report.contains('\u{1b}') && !report.contains('\u{7}'), "{report:?}");
    }

    #[test]
    fn prints_fifty_and_counts_the_rest() {
        let findings = Findings::default();
        for at in (0..60).rev() {
            findings.push(Finding::error(at..at + 1, format!("number {at}")));
        }
        let errors = judge(Path::new("f"), &"x".repeat(60), findings).unwrap_err();
        assert_eq!((errors.total(), errors.diagnostics().len()), (60, 50));
        assert_eq!(errors.diagnostics()[49].message, "number 49", "by position");
        assert!(errors.to_string().ends_with("... and 10 more\nf: 60 errors"));
    }

    #[test]
    fn warnings_are_silent_beside_an_error() {
        let findings = Findings::default();
        findings.push(Finding::warning(0..1, "unused"));
        findings.push(Finding::error(0..1, "bad"));
        assert_eq!(judge(Path::new("f"), "x", findings).unwrap_err().total(), 1);
        let findings = Findings::default();
        findings.push(Finding::warning(0..1, "unused"));
        let warnings = judge(Path::new("f"), "x = 1", findings).unwrap();
        assert_eq!(warnings.to_string(), "warning: unused\n --> f:1:1\n  |\n1 | x = 1\n  | ^\n\nf: 1 warning");
    }
}
