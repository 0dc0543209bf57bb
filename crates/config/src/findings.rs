//! The findings of a file while it is read: every error and warning, with its place, until the file has been seen whole.
//!
//! Caller: the reader and the lowering of each section. They share one [`Findings`] and go on after an error, so
//! that one run tells everything.

use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Range;

use super::followed_text::Followed;
use super::hidden::secret_in;
use super::outline::Outline;
use super::report::{Diagnostic, Severity};

/// Findings kept of one file; those beyond are only counted. A file of nothing but mistakes must not fill the memory.
const MAX_KEPT: usize = 1_000;

/// Bytes of the user's own text repeated in a message.
const MAX_QUOTED: usize = 60;

/// Bytes of the automata of a file's regexes, and how many may be refused as too large. Each of these takes as long as one
/// of 1 MiB, some 40 ms.
const MAX_AUTOMATA: usize = 128 << 20;
const MAX_TOO_LARGE: usize = 20;

/// One thing to say about the file.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    pub(super) message: String,
    /// Where, as bytes of the text; `None` is the file as a whole.
    pub(super) span: Option<Range<usize>>,
    /// Another place that belongs to it, and what it is.
    pub(super) related: Option<(&'static str, Range<usize>)>,
    pub(super) help: Option<String>,
    origin: EchoCause,
}

/// Why a finding may be an echo of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EchoCause {
    /// The text is no TOML.
    Syntax,
    /// The text is no TOML, but nothing beyond its line was lost.
    SlipOfTheLine,
    /// A written value is wrong.
    Written,
    /// A table lacks something; where the syntax is broken, it may only have been lost there.
    Absent,
    /// The file lacks something.
    AbsentInFile,
}

impl Finding {
    fn new(severity: Severity, origin: EchoCause, span: Option<Range<usize>>, message: String) -> Self {
        Self { severity, message, span, related: None, help: None, origin }
    }

    /// The text at `span` is wrong.
    pub(super) fn error(span: Range<usize>, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, EchoCause::Written, Some(span), message.into())
    }

    /// The text at `span` is allowed, yet surely not meant.
    pub(super) fn warning(span: Range<usize>, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, EchoCause::Written, Some(span), message.into())
    }

    /// Something that ought to be in the table at `span` is not.
    pub(super) fn absent(span: Range<usize>, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, EchoCause::Absent, Some(span), message.into())
    }

    /// Something that ought to be in the file, or that `span` refers to, is not.
    pub(super) fn absent_in_file(span: Option<Range<usize>>, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, EchoCause::AbsentInFile, span, message.into())
    }

    /// The text cannot be read.
    pub(super) fn syntax(span: Option<Range<usize>>, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, EchoCause::Syntax, span, message.into())
    }

    /// Says that nothing beyond the line of this syntax error was lost.
    pub(super) fn slip_of_the_line(mut self) -> Self {
        self.origin = EchoCause::SlipOfTheLine;
        self
    }

    /// Adds the remedy.
    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds another place, such as that of the first of two.
    pub(super) fn related(mut self, what: &'static str, span: Range<usize>) -> Self {
        self.related = Some((what, span));
        self
    }
}

/// Proof that an error is reported: there is nothing more to say of what is missing because of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reported(());

impl Reported {
    /// Whether all is well: no error was reported here.
    pub(super) fn none_of(errors: impl Iterator<Item = Self>) -> Result<(), Self> {
        errors.collect::<Vec<_>>().first().map_or(Ok(()), |reported| Err(*reported))
    }
}

/// Everything found so far. Shared by reference while the file is lowered.
#[derive(Debug, Default)]
pub(super) struct Findings {
    errors: RefCell<Vec<Finding>>,
    errors_beyond: Cell<usize>,
    warnings: RefCell<Vec<Finding>>,
    warnings_beyond: Cell<usize>,
    /// Findings in other files.
    elsewhere: RefCell<Vec<Diagnostic>>,
    /// The text that the file follows, if there is one. Its places begin behind those of the file.
    followed: OnceCell<Followed>,
    /// The places about which nothing can be said, in order.
    broken: Vec<Range<usize>>,
    outline: Outline,
    /// Whether whole sections may have been lost.
    lost: bool,
    /// The bytes of automata that were made, and how many were too large.
    automata: Cell<usize>,
    too_large: Cell<usize>,
}

impl Findings {
    /// Whether the file may have another regex made: a file of large ones would take minutes.
    pub(super) fn may_make_regex(&self) -> bool {
        self.automata.get() < MAX_AUTOMATA && self.too_large.get() < MAX_TOO_LARGE
    }

    /// A regex was made, whose automaton has so many bytes; `None`: it was too large.
    pub(super) fn made_regex(&self, bytes: Option<usize>) {
        match bytes {
            Some(bytes) => self.automata.set(self.automata.get().saturating_add(bytes)),
            None => self.too_large.set(self.too_large.get() + 1),
        }
    }

    /// Starts with what the TOML parser said about `text`, by position. One error per line and per broken header is
    /// kept: the parser goes on after an error, and what it says next is mostly an echo of the first.
    pub(super) fn from_syntax(text: &str, errors: impl IntoIterator<Item = Finding>) -> Self {
        let mut errors = errors.into_iter().peekable();
        let outline = if errors.peek().is_some() { Outline::of(text) } else { Outline::default() };
        let mut this = Self { outline, ..Self::default() };
        for finding in errors {
            this.lost |= finding.origin == EchoCause::Syntax;
            let at = finding.span.as_ref().map_or(0, |span| span.start);
            if this.is_broken(at) {
                continue;
            }
            let region = this.outline.reach(text, at);
            this.broken.push(region);
            this.push(finding);
        }
        this
    }

    /// Keeps a finding, unless it is an echo of broken syntax.
    pub(super) fn push(&self, finding: Finding) {
        let start = finding.span.as_ref().map(|span| span.start);
        let echo = match finding.origin {
            EchoCause::Syntax | EchoCause::SlipOfTheLine => false,
            EchoCause::Written => start.is_some_and(|start| self.is_broken(start)),
            EchoCause::Absent => {
                self.lost || start.is_some_and(|start| self.is_damaged(&(start..self.outline.header_after(start))))
            }
            EchoCause::AbsentInFile => self.lost || start.is_some_and(|start| self.is_broken(start)),
        };
        if echo {
            return;
        }
        let (kept, beyond) = match finding.severity {
            Severity::Error => (&self.errors, &self.errors_beyond),
            Severity::Warning => (&self.warnings, &self.warnings_beyond),
        };
        let mut kept = kept.borrow_mut();
        if kept.len() < MAX_KEPT {
            kept.push(finding);
        } else {
            beyond.set(beyond.get().saturating_add(1));
        }
    }

    /// Keeps an error.
    pub(super) fn report(&self, error: Finding) -> Reported {
        debug_assert_eq!(error.severity, Severity::Error, "{error:?}");
        self.push(error);
        Reported(())
    }

    /// Of a value that a syntax error has damaged.
    pub(super) fn reported_as_syntax(&self) -> Reported {
        debug_assert!(self.has_error(), "no syntax error");
        Reported(())
    }

    /// Of a key that is missing because it is misspelt: what is there instead is an error.
    pub(super) fn reported_as_unknown() -> Reported {
        Reported(())
    }

    /// Keeps what was found in another file.
    pub(super) fn push_elsewhere(&self, found: Vec<Diagnostic>) {
        self.elsewhere.borrow_mut().extend(found);
    }

    /// From now on, places behind those of the file are of this text. There is one, the first.
    pub(super) fn follow(&self, text: Followed) -> &Followed {
        self.followed.get_or_init(|| text)
    }

    /// The text that the file follows.
    pub(super) fn take_followed(&mut self) -> Option<Followed> {
        self.followed.take()
    }

    /// The findings in other files: the errors; without one anywhere, the warnings.
    pub(super) fn elsewhere(&self) -> Vec<Diagnostic> {
        let severity = if self.has_error() { Severity::Error } else { Severity::Warning };
        self.elsewhere.borrow().iter().filter(|found| found.severity == severity).cloned().collect()
    }

    /// Whether a value at `span` was damaged by a syntax error, so that nothing can be said about it.
    pub(super) fn is_damaged(&self, span: &Range<usize>) -> bool {
        let next = self.broken.partition_point(|region| region.end <= span.start);
        self.broken.get(next).is_some_and(|region| region.start < span.end)
    }

    /// Whether the text is TOML.
    pub(super) fn are_of_toml(&self) -> bool {
        self.broken.is_empty()
    }

    /// Whether there is any room to say more; costly remedies are looked for only while there is.
    pub(super) fn has_room(&self) -> bool {
        self.errors.borrow().len() < MAX_KEPT
    }

    /// Whether the file cannot be used.
    pub(super) fn has_error(&self) -> bool {
        let elsewhere = self.elsewhere.borrow();
        !self.errors.borrow().is_empty() || elsewhere.iter().any(|found| found.severity == Severity::Error)
    }

    /// The findings to tell, and how many more there were: the errors; without one, the warnings. With an error in the
    /// file its warnings may be echoes ("unused", because its user is broken).
    pub(super) fn into_parts(self) -> (Vec<Finding>, usize) {
        if self.has_error() {
            (self.errors.into_inner(), self.errors_beyond.get())
        } else {
            (self.warnings.into_inner(), self.warnings_beyond.get())
        }
    }

    fn is_broken(&self, at: usize) -> bool {
        self.is_damaged(&(at..at.saturating_add(1)))
    }
}

/// The user's text, quoted and cut to a bearable length.
pub(super) fn quoted(text: &str) -> String {
    match cut(text) {
        None => format!("{text:?}"),
        Some(cut) => format!("{cut:?}..."),
    }
}

/// A key of the user's, cut to a bearable length.
pub(super) fn ticked(text: &str) -> String {
    match cut(text) {
        None => format!("`{text}`"),
        Some(cut) => format!("`{cut}...`"),
    }
}

/// The beginning of a text that is too long, or that holds a secret.
fn cut(text: &str) -> Option<&str> {
    let end = text.char_indices().map(|(at, _)| at).find(|at| *at >= MAX_QUOTED);
    text.get(..end.into_iter().chain(secret_in(text)).min()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syntax(at: usize) -> Finding {
        Finding::syntax(Some(at..at + 1), "broken")
    }

    fn messages(findings: Findings) -> Vec<String> {
        findings.into_parts().0.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn keeps_one_syntax_error_per_line() {
        let findings = Findings::from_syntax("a = b c\nd = e\n", vec![syntax(4), syntax(6), syntax(12)]);
        assert_eq!(messages(findings).len(), 2);
    }

    #[test]
    fn a_broken_header_silences_all_below_it_until_the_next_header() {
        let text = "[a\nb = 1\nc = 2\n[d]\ne = 3\n";
        let findings = Findings::from_syntax(text, vec![syntax(2)]);
        findings.push(Finding::error(9..10, "echo"));
        findings.push(Finding::error(16..17, "header"));
        findings.push(Finding::error(19..20, "real"));
        assert_eq!(messages(findings), ["broken", "header", "real"]);
    }

    #[test]
    fn nothing_is_called_absent_where_sections_may_be_lost() {
        let findings = Findings::from_syntax("a = b\n[c]\n", vec![syntax(4)]);
        findings.push(Finding::absent_in_file(None, "echo"));
        findings.push(Finding::absent(6..9, "echo"));
        assert_eq!(messages(findings), ["broken"]);
    }

    #[test]
    fn a_slip_of_the_line_hides_only_what_its_own_section_lacks() {
        let text = "[a]\nb = c\n[d]\n";
        let findings = Findings::from_syntax(text, vec![syntax(8).slip_of_the_line()]);
        findings.push(Finding::absent(0..3, "echo"));
        findings.push(Finding::absent(10..13, "of [d]"));
        findings.push(Finding::absent_in_file(None, "of the file"));
        assert_eq!(messages(findings), ["broken", "of [d]", "of the file"]);
    }

    #[test]
    fn a_value_over_a_broken_line_is_damaged() {
        let findings = Findings::from_syntax("a = [\n1 2\n]\nb = 1\n", vec![syntax(8)]);
        assert!(findings.is_damaged(&(4..11)));
        assert!(!findings.is_damaged(&(0..1)));
        assert!(!findings.is_damaged(&(16..17)));
    }

    #[test]
    fn counts_errors_beyond_the_bound_without_keeping_them() {
        let findings = Findings::default();
        for _ in 0..MAX_KEPT + 7 {
            findings.push(Finding::error(0..1, "x"));
        }
        let (kept, more) = findings.into_parts();
        assert_eq!((kept.len(), more), (MAX_KEPT, 7));
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        assert_eq!(quoted("a\"b"), r#""a\"b""#);
        assert_eq!(quoted(" Cookie: x"), r#"" Cookie:"..."#);
        assert_eq!(ticked("key:x"), "`key:...`");
        assert_eq!(quoted(&"ä".repeat(100)).chars().count(), 30 + 5);
    }
}
