//! The line of one key in a plans file. Such a file may have millions of lines: it is copied line by line, and only one of them
//! is held. Keys may be secrets: no error repeats one.

use std::fmt;
use std::io::{self, BufRead, Write};
use std::num::NonZeroU8;

use sha2::{Digest, Sha256};

use super::inline;
use super::value::Value;
use sluicegate_config as config;

/// A longer line is an error of the configuration too.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// A change of the plan of one key.
#[derive(Clone, Debug)]
pub enum KeyChange {
    /// It has this plan.
    Set {
        /// The key, as it is written where there is no line for it yet.
        key: String,
        /// The plan.
        plan: String,
        /// The day on which its months begin, 1 to 31; `None`: it stays as it is.
        renews: Option<NonZeroU8>,
    },
    /// It has the default plan: it has no line.
    Delete {
        /// The key.
        key: String,
    },
}

/// The state of the key's line before the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyFound {
    /// It named this plan, and perhaps a day.
    Plan(String, Option<NonZeroU8>),
    /// There was none.
    Nothing,
}

/// Why the plan of a key was not changed.
#[derive(Debug)]
pub enum PlansError {
    /// The file cannot be read, or the copy not be written.
    Io(io::Error),
    /// The file has no `[keys]`.
    NoKeys,
    /// A line of it is too long, or cannot be read.
    Line(u64),
}

impl From<io::Error> for PlansError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for PlansError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "The plans file cannot be copied: {error}. Mend that and repeat the change."),
            Self::NoKeys => f.write_str("The plans file has no [keys]. Add a line [keys] at its end first."),
            Self::Line(number) => {
                write!(f, "Line {number} of the plans file cannot be read. Run `sluicegate check` and mend it first.")
            }
        }
    }
}

/// Copies a plans file with a change of one key; `is_key` tells whether a key of the file is the one. Also SHA-256 of what was
/// read. The other lines stay byte for byte.
///
/// # Errors
/// The file cannot be read or written; the copy is of no use then.
pub fn set_plan(
    from: impl BufRead,
    to: &mut impl Write,
    is_key: impl Fn(&str) -> bool,
    change: &KeyChange,
) -> Result<(KeyFound, [u8; 32]), PlansError> {
    let mut lines = PlanLines { from, line: Vec::new(), number: 0, hash: Sha256::new() };
    let (mut found, mut is_in_keys) = (KeyFound::Nothing, false);
    let mut line_end = "\n";
    let mut is_ended = true;
    while lines.next()? {
        let line = lines.line.as_slice();
        (is_ended, line_end) = (line.ends_with(b"\n"), if line.ends_with(b"\r\n") { "\r\n" } else { line_end });
        if !is_in_keys {
            is_in_keys = config::is_keys_header(without_end(line));
            to.write_all(line)?;
            continue;
        }
        let text = std::str::from_utf8(without_end(line)).map_err(|_| PlansError::Line(lines.number))?;
        let entry = config::plans_entry(text).map_err(|_| PlansError::Line(lines.number))?;
        match entry.filter(|entry| is_key(&entry.key)) {
            None => to.write_all(line)?,
            Some(entry) => {
                if let KeyChange::Set { plan, renews, .. } = change {
                    // The day stays where the plan alone is written.
                    let (place, renews) =
                        if renews.is_some() { (entry.value_span, *renews) } else { (entry.plan_span, None) };
                    to.write_all(line.get(..place.start).unwrap_or_default())?;
                    to.write_all(written(plan, renews).as_bytes())?;
                    to.write_all(line.get(place.end..).unwrap_or_default())?;
                }
                found = KeyFound::Plan(entry.plan.into_owned(), entry.renews);
            }
        }
    }
    if !is_in_keys {
        return Err(PlansError::NoKeys);
    }
    if let (KeyChange::Set { key, plan, renews }, KeyFound::Nothing) = (change, &found) {
        let end = if is_ended { "" } else { line_end };
        let key = inline::value(&Value::Text(key.clone()));
        write!(to, "{end}{key} = {}{line_end}", written(plan, *renews))?;
    }
    Ok((found, lines.hash.finalize().into()))
}

/// A plan and a day, as they stand behind the `=`.
fn written(plan: &str, renews: Option<NonZeroU8>) -> String {
    let plan = inline::value(&Value::Text(plan.to_owned()));
    match renews {
        None => plan,
        Some(day) => format!("{{ plan = {plan}, renews = {day} }}"),
    }
}

struct PlanLines<R> {
    from: R,
    line: Vec<u8>,
    number: u64,
    hash: Sha256,
}

impl<R: BufRead> PlanLines<R> {
    /// Reads the next line, with its end; false at the end of the file.
    fn next(&mut self) -> Result<bool, PlansError> {
        self.line.clear();
        self.number += 1;
        let mut bounded = io::Read::take(&mut self.from, MAX_LINE_BYTES + 2);
        bounded.read_until(b'\n', &mut self.line)?;
        if self.line.len() as u64 > MAX_LINE_BYTES + 1 && !self.line.ends_with(b"\n") {
            return Err(PlansError::Line(self.number));
        }
        self.hash.update(&self.line);
        Ok(!self.line.is_empty())
    }
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const FILE: &str =
        "default = \"free\"\n[plan.free]\n[keys] # all\n# gold\nal = \"pro\"   # since May\n\"b.c\" = \"free\"\n";

    fn changed(file: &str, key: &str, plan: Option<&str>) -> (String, KeyFound) {
        let change = match plan {
            Some(plan) => {
                let (plan, day) = plan.split_once('@').unwrap_or((plan, "0"));
                KeyChange::Set {
                    key: key.to_owned(),
                    plan: plan.to_owned(),
                    renews: NonZeroU8::new(day.parse().unwrap()),
                }
            }
            None => KeyChange::Delete { key: key.to_owned() },
        };
        let mut to = Vec::new();
        let (found, digest) = set_plan(file.as_bytes(), &mut to, |own| own == key, &change).unwrap();
        assert_eq!(digest, <[u8; 32]>::from(Sha256::digest(file)));
        (String::from_utf8(to).unwrap(), found)
    }

    #[test]
    fn one_line_changes_and_keeps_its_comment() {
        let pro = || KeyFound::Plan("pro".into(), None);
        assert_eq!(changed(FILE, "al", Some("gold")), (FILE.replace("\"pro\"", "\"gold\""), pro()));
        assert_eq!(changed(FILE, "al", None), (FILE.replace("al = \"pro\"   # since May\n", ""), pro()));
        let (added, found) = changed(FILE, "d\"", Some("pro"));
        assert_eq!((added, found), (format!("{FILE}'d\"' = \"pro\"\n"), KeyFound::Nothing));
        assert_eq!(changed(FILE, "no", None), (FILE.to_owned(), KeyFound::Nothing));
        assert_eq!(changed("[keys]", "a", Some("b")).0, "[keys]\n\"a\" = \"b\"\n");
        assert_eq!(changed("[keys]\r\na = \"b\"", "c", Some("b")).0, "[keys]\r\na = \"b\"\r\n\"c\" = \"b\"\r\n");
    }

    #[test]
    fn a_day_stays_unless_another_one_is_given() {
        let file = "[keys]\nal = { plan = \"pro\", renews = 15 } # May\nbo = \"pro\"\n";
        let one = |key: &str, plan: &str| changed(file, key, Some(plan)).0;
        assert_eq!(one("al", "gold"), file.replace("\"pro\", ", "\"gold\", "));
        assert_eq!(one("al", "pro@31"), file.replace("15", "31"));
        assert_eq!(one("bo", "gold@1"), file.replace("bo = \"pro\"", "bo = { plan = \"gold\", renews = 1 }"));
        assert_eq!(one("cy", "pro@9"), format!("{file}\"cy\" = {{ plan = \"pro\", renews = 9 }}\n"));
        assert_eq!(changed(file, "al", None).1, KeyFound::Plan("pro".into(), NonZeroU8::new(15)));
    }

    #[test]
    fn errors_name_the_line_and_no_key() {
        let failed = |file: &str| {
            let change = KeyChange::Set { key: "secret".into(), plan: "pro".into(), renews: None };
            set_plan(file.as_bytes(), &mut Vec::new(), |_| false, &change).unwrap_err().to_string()
        };
        assert_eq!(failed("a = 1\n"), "The plans file has no [keys]. Add a line [keys] at its end first.");
        let message = "Line 3 of the plans file cannot be read. Run `sluicegate check` and mend it first.";
        assert_eq!(failed("[keys]\n\nsecret\n"), message);
        assert_eq!(failed(&format!("[keys]\n\n# {}\n", "x".repeat(70_000))), message);
    }

    proptest! {
        #[test]
        fn other_lines_stay_byte_for_byte(
            lines in proptest::collection::vec("[a-e] = \"(pro|free)\"( # [a-z]{0,3})?|# [a-z =\"]{0,5}|[ \t]{0,2}", 0..12),
            key in "[a-e]",
            plan in proptest::option::of("pro|free|gold"),
            end in "\n|\r\n",
        ) {
            let file = format!("x = 1{end}[keys]{end}{}", lines.iter().flat_map(|line| [line.as_str(), end.as_str()]).collect::<String>());
            let (new, _) = changed(&file, &key, plan.as_deref());
            let is_of_it = |line: &&str| line.starts_with(&key) || line.starts_with(&format!("\"{key}\""));
            let others = |text: &str| text.split_inclusive('\n').filter(|line| !is_of_it(line)).map(str::to_owned).collect::<Vec<_>>();
            prop_assert_eq!(others(&new), others(&file));
            let read: BTreeMap<String, String> = new.lines().skip(2).filter_map(|line| config::plans_entry(line).unwrap())
                .map(|entry| (entry.key.into_owned(), entry.plan.into_owned())).collect();
            prop_assert_eq!(read.get(&key), plan.as_ref());
        }
    }
}
