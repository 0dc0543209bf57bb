//! A line of `[keys]`: which key has which plan, and perhaps on which day its months begin. The simple form is read here, byte by byte and without copying; TOML's own
//! reader takes whatever is not of that form, a line at a time.

use std::borrow::Cow;
use std::num::NonZeroU8;
use std::ops::Range;

use toml::de::{DeTable, DeValue};

use crate::findings::Finding;

/// A line that is none of `[keys]`. It is not repeated, since its key may be a secret.
#[derive(Clone, Copy, Debug)]
pub struct NoLine;

/// The key and the plan of a line, for who edits such a file; `None` of a line that is blank or a comment.
///
/// # Errors
/// It is no line of `[keys]`.
pub fn entry(line: &str) -> Result<Option<PlansEntry<'_>>, NoLine> {
    match read(line) {
        Ok(PlanLine::Entry(entry)) => Ok(Some(entry)),
        Ok(PlanLine::Nothing) => Ok(None),
        Err(_) => Err(NoLine),
    }
}

/// The meaning of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PlanLine<'l> {
    /// Blank, or a comment.
    Nothing,
    /// A key and its plan.
    Entry(PlansEntry<'l>),
}

/// A key and its plan, and their places on the line.
#[derive(Debug, PartialEq, Eq)]
pub struct PlansEntry<'l> {
    /// The key, without quotes.
    pub key: Cow<'l, str>,
    /// Its place.
    pub key_span: Range<usize>,
    /// The plan, without quotes.
    pub plan: Cow<'l, str>,
    /// Its place.
    pub plan_span: Range<usize>,
    /// The place of all that stands behind the `=`.
    pub value_span: Range<usize>,
    /// The day on which its months begin, 1 to 31; `None`: on the first.
    pub renews: Option<NonZeroU8>,
}

/// Whether a line is the header `[keys]`.
pub fn is_header(line: &[u8]) -> bool {
    let inner = line.trim_ascii().strip_prefix(b"[").map(<[u8]>::trim_ascii_start);
    let Some(rest) = inner.and_then(|inner| inner.strip_prefix(b"keys")).map(<[u8]>::trim_ascii_start) else {
        return false;
    };
    let after = rest.strip_prefix(b"]").map(<[u8]>::trim_ascii_start);
    after.is_some_and(|after| after.is_empty() || after.starts_with(b"#"))
}

/// Reads a line, without its end. A message repeats nothing of the line: keys may be secrets.
pub(super) fn read(line: &str) -> Result<PlanLine<'_>, Finding> {
    match simple(line) {
        Some(read) => Ok(read),
        None => by_toml(line),
    }
}

/// The simple form: a bare key or one in double quotes, `=`, a plan in double quotes, perhaps a comment; no escapes.
fn simple(line: &str) -> Option<PlanLine<'_>> {
    let mut at = blanks(line, 0);
    if ends(line, at)? {
        return Some(PlanLine::Nothing);
    }
    let key_start = at;
    let key = match line.as_bytes().get(at)? {
        b'"' => quoted(line, at)?,
        _ => line.get(at..)?.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_')).next()?,
    };
    // An empty bare key is none.
    let key_end = match line.as_bytes().get(at)? {
        b'"' => at + key.len() + 2,
        _ if key.is_empty() => return None,
        _ => at + key.len(),
    };
    at = blanks(line, key_end);
    if line.as_bytes().get(at) != Some(&b'=') {
        return None;
    }
    let plan_start = blanks(line, at + 1);
    let plan = quoted(line, plan_start)?;
    let plan_end = plan_start + plan.len() + 2;
    ends(line, blanks(line, plan_end))?.then_some(PlanLine::Entry(PlansEntry {
        key: Cow::Borrowed(key),
        key_span: key_start..key_end,
        plan: Cow::Borrowed(plan),
        plan_span: plan_start..plan_end,
        value_span: plan_start..plan_end,
        renews: None,
    }))
}

fn by_toml(line: &str) -> Result<PlanLine<'_>, Finding> {
    let start = line.len() - line.trim_ascii_start().len();
    let whole = start..line.trim_ascii_end().len().max(start);
    let remedy = "write \"KEY\" = \"PLAN\", each on a line of its own";
    if line.get(start..).is_some_and(|rest| rest.starts_with('[')) {
        let finding = Finding::error(whole, "a table after [keys]");
        return Err(finding.help("move it above [keys], which is the last table of the file"));
    }
    let (root, errors) = DeTable::parse_recoverable(line);
    if let Some(error) = errors.first() {
        let at = error.span().filter(|span| !span.is_empty()).unwrap_or(whole);
        return Err(Finding::error(at, "this is no line of [keys]").help(remedy));
    }
    let mut entries = root.into_inner().into_iter();
    let (Some((key, value)), None) = (entries.next(), entries.next()) else {
        // A comment with letters that the simple form leaves to others.
        return Ok(PlanLine::Nothing);
    };
    let (key_span, value_span) = (key.span(), value.span());
    match value.into_inner() {
        DeValue::String(plan) => {
            let (key, plan_span) = (key.into_inner(), value_span.clone());
            Ok(PlanLine::Entry(PlansEntry { key, key_span, plan, plan_span, value_span, renews: None }))
        }
        DeValue::Table(table) if line.get(value_span.start..).is_some_and(|rest| rest.starts_with('{')) => {
            entry_of_table((key.into_inner(), key_span), table, value_span).map(PlanLine::Entry)
        }
        DeValue::Table(_) => {
            let finding = Finding::error(key_span, "a key of several parts");
            Err(finding.help("a key with dots stands in quotes: \"a.b\" = \"PLAN\""))
        }
        _ => Err(Finding::error(value_span, "a plan is a name in quotes").help(remedy)),
    }
}

/// The line of `KEY = { plan = "PLAN", renews = DAY }`.
fn entry_of_table<'l>(
    (key, key_span): (Cow<'l, str>, Range<usize>),
    table: DeTable<'l>,
    value_span: Range<usize>,
) -> Result<PlansEntry<'l>, Finding> {
    const FORM: &str = "write \"KEY\" = { plan = \"PLAN\", renews = 15 }";
    let (mut plan, mut renews) = (None, None);
    for (name, value) in table {
        let at = value.span();
        match (&**name.get_ref(), value.into_inner()) {
            ("plan", DeValue::String(text)) => plan = Some((text, at)),
            ("renews", DeValue::Integer(day)) => {
                let day = if day.radix() == 10 { day.as_str().parse().ok() } else { None };
                let day = day.filter(|day: &NonZeroU8| day.get() <= 31);
                renews = Some(day.ok_or_else(|| Finding::error(at, "a day of a month is 1 to 31").help(FORM))?);
            }
            ("plan", _) => return Err(Finding::error(at, "a plan is a name in quotes").help(FORM)),
            ("renews", _) => return Err(Finding::error(at, "a day of a month is 1 to 31").help(FORM)),
            _ => return Err(Finding::error(name.span(), "a key has a `plan` and `renews`").help(FORM)),
        }
    }
    let Some((plan, plan_span)) = plan else {
        return Err(Finding::error(value_span, "this key has no `plan`").help(FORM));
    };
    Ok(PlansEntry { key, key_span, plan, plan_span, value_span, renews })
}

/// Where the blanks that begin at `at` end.
fn blanks(line: &str, at: usize) -> usize {
    let rest = line.as_bytes().get(at..).unwrap_or_default();
    at + rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count()
}

/// Whether nothing but a comment follows; `None` if what looks like one is none (TOML 1.1, Comment).
fn ends(line: &str, at: usize) -> Option<bool> {
    let rest = line.as_bytes().get(at..)?;
    match rest.first() {
        None => Some(true),
        Some(b'#') => rest.iter().all(|byte| !is_control(*byte)).then_some(true),
        Some(_) => Some(false),
    }
}

/// A text in double quotes that begins at `at`, without them.
fn quoted(line: &str, at: usize) -> Option<&str> {
    let rest = line.get(at..)?.strip_prefix('"')?;
    let end = rest.bytes().position(|byte| byte == b'"' || byte == b'\\' || is_control(byte))?;
    let text = rest.get(..end)?;
    // Two quotes may be an empty text or the beginning of three.
    let is_closed = rest.as_bytes().get(end) == Some(&b'"') && !(end == 0 && rest.as_bytes().get(1) == Some(&b'"'));
    is_closed.then_some(text)
}

/// Characters that TOML allows neither in a text nor in a comment; a tab is allowed.
fn is_control(byte: u8) -> bool {
    byte != b'\t' && byte.is_ascii_control()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(line: &str) -> Option<(String, String)> {
        match read(line) {
            Ok(PlanLine::Entry(PlansEntry { key, plan, .. })) => Some((key.into_owned(), plan.into_owned())),
            _ => None,
        }
    }

    #[test]
    fn entries_of_every_form_are_read() {
        for (line, key, plan) in [
            ("k-1_Z = \"pro\"", "k-1_Z", "pro"),
            ("k=\"pro\"", "k", "pro"),
            ("\t \"a b.c\"\t=  \"pro\" \t# why", "a b.c", "pro"),
            ("\"\" = \"\"", "", ""),
            ("\"käse\" = \"frei\" # käse", "käse", "frei"),
            ("\"#=\" = \"#\"", "#=", "#"),
            ("0 = \"pro\"", "0", "pro"),
            // These by TOML's own reader.
            ("'a\"b' = 'pro'", "a\"b", "pro"),
            ("\"\\u0041\\t\" = \"p\\\\ro\"", "A\t", "p\\ro"),
            ("k = \"\"\"pro\"\"\"", "k", "pro"),
        ] {
            assert_eq!(entry(line), Some((key.into(), plan.into())), "{line}");
        }
    }

    #[test]
    fn a_key_may_have_a_day_on_which_its_months_begin() {
        for (line, day) in [
            ("k = { plan = \"pro\", renews = 15 }", Some(15)),
            ("\"k\"={renews=31,plan='pro'} # why", Some(31)),
            ("k = { plan = \"pro\" }", None),
            ("k = \"pro\"", None),
        ] {
            let Ok(PlanLine::Entry(entry)) = read(line) else { panic!("{line}") };
            assert_eq!((&*entry.key, &*entry.plan, entry.renews), ("k", "pro", day.and_then(NonZeroU8::new)), "{line}");
            assert_eq!(line[entry.plan_span].trim_matches(['"', '\'']), "pro");
        }
    }

    #[test]
    fn lines_that_say_nothing_are_nothing() {
        for line in ["", "  \t", "# a = \"b\"", "\t# käse"] {
            assert_eq!(read(line).ok(), Some(PlanLine::Nothing), "{line}");
        }
    }

    #[test]
    fn what_is_no_entry_is_refused_without_repeating_it() {
        for (line, span, message) in [
            ("secret", 0..6, "this is no line of [keys]"),
            ("secret = ", 9..9, "this is no line of [keys]"),
            ("secret = pro", 9..12, "this is no line of [keys]"),
            ("secret = \"pro", 12..13, "this is no line of [keys]"),
            ("\"secret = \"pro\"", 11..15, "this is no line of [keys]"),
            ("secret = \"pro\" x", 15..16, "this is no line of [keys]"),
            ("secret = \"pro\", b = \"pro\"", 14..15, "this is no line of [keys]"),
            ("se cret = \"pro\"", 3..7, "this is no line of [keys]"),
            ("secret = \"pro\"\r", 14..15, "this is no line of [keys]"),
            ("# secret \u{7}", 9..10, "this is no line of [keys]"),
            ("secret = \"\"\"pro", 12..15, "this is no line of [keys]"),
            ("secret = 5", 9..10, "a plan is a name in quotes"),
            ("secret = [\"pro\"]", 9..16, "a plan is a name in quotes"),
            ("se.cret = \"pro\"", 0..2, "a key of several parts"),
            ("secret = { a = \"pro\" }", 11..12, "a key has a `plan` and `renews`"),
            ("secret = { renews = 15 }", 9..24, "this key has no `plan`"),
            ("secret = { plan = 5 }", 18..19, "a plan is a name in quotes"),
            ("secret = { plan = \"pro\", renews = 0 }", 34..35, "a day of a month is 1 to 31"),
            ("secret = { plan = \"pro\", renews = 32 }", 34..36, "a day of a month is 1 to 31"),
            ("secret = { plan = \"pro\", renews = -1 }", 34..36, "a day of a month is 1 to 31"),
            ("secret = { plan = \"pro\", renews = 0x1f }", 34..38, "a day of a month is 1 to 31"),
            ("secret = { plan = \"pro\", renews = \"15\" }", 34..38, "a day of a month is 1 to 31"),
            ("secret = { plan = \"pro\", plan = \"pro\" }", 25..29, "this is no line of [keys]"),
            ("secret.plan = \"pro\"", 0..6, "a key of several parts"),
            ("  [plan.secret] # x", 2..19, "a table after [keys]"),
            ("[[secret]]", 0..10, "a table after [keys]"),
        ] {
            let finding = read(line).unwrap_err();
            assert_eq!(finding.message, message, "{line}");
            assert!(!finding.help.unwrap().contains("secret"), "{line}");
            let found = finding.span.unwrap();
            assert!(found.start <= line.len() && found.end <= line.len() + 1, "{line}: {found:?}");
            if !span.is_empty() && message != "this is no line of [keys]" {
                assert_eq!(found, span, "{line}");
            }
        }
    }

    #[test]
    fn the_header_may_have_blanks_and_a_comment() {
        for line in ["[keys]", " [ keys ] ", "[\tkeys]# all", "[keys] # [x]", "[keys]\r"] {
            assert!(is_header(line.as_bytes()), "{line:?}");
        }
        for line in
            ["[key]", "[keyss]", "[keys", "keys]", "[[keys]]", "[\"keys\"]", "[keys.x]", "[keys] x", "#[keys]", ""]
        {
            assert!(!is_header(line.as_bytes()), "{line:?}");
        }
    }

    /// The line as TOML's own reader reads it as a document.
    #[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
    fn naive(line: &str) -> Option<Option<(String, String)>> {
        let (root, errors) = DeTable::parse_recoverable(line);
        if !errors.is_empty() || line.trim_ascii_start().starts_with('[') {
            return None;
        }
        match root.get_ref().iter().next() {
            None => Some(None),
            Some((key, value)) => Some(Some((key.get_ref().to_string(), value.get_ref().as_str()?.to_owned()))),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn reads_what_toml_reads(line in "[ \t]{0,2}([ab\"'\\\\-]|é){0,4}[ \t]{0,1}[=.# ]{1,2}[ \t]{0,1}[ab\"'\\\\#\u{7}é]{0,6}[ \t\r]{0,1}(#[a\u{1}]{0,2})?") {
            let ours = match read(&line) {
                Ok(PlanLine::Nothing) => Some(None),
                Ok(PlanLine::Entry(PlansEntry { key, plan, .. })) => Some(Some((key.into_owned(), plan.into_owned()))),
                Err(_) => None,
            };
            prop_assert_eq!(ours, naive(&line));
        }

        #[test]
        fn the_simple_form_is_not_left_to_the_slow_reader(key in "[ -!#-\\[\\]-~é]{1,12}", plan in "[a-z]{1,5}", comment in "( #[ -~]{0,5})?") {
            let line = format!("\"{key}\" = \"{plan}\"{comment}");
            let Some(PlanLine::Entry(found)) = simple(&line) else { panic!("{line}") };
            prop_assert_eq!(&line[found.key_span.clone()], format!("\"{key}\""));
            prop_assert_eq!(&line[found.plan_span.clone()], format!("\"{plan}\""));
            prop_assert_eq!((found.key.as_ref(), found.plan.as_ref()), (key.as_str(), plan.as_str()));
        }
    }
}
