//! Changes of keys as they are asked for: bodies of JSON, read strictly.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::admin::Unchanged;
use crate::redact::is_terminal_control;

/// Characters of a reason.
const MAX_REASON: usize = 256;

/// A block, as it is asked for.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockAsked {
    /// Its end; without one it holds until somebody ends it.
    #[serde(default)]
    pub until: Option<String>,
    /// Why.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Numbers of a key, as they are asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct NumbersAsked {
    /// Their end.
    pub until: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// The numbers as the configuration writes them.
    pub toml: String,
}

impl BlockAsked {
    /// Reads a body; an empty one asks for a block without an end.
    ///
    /// # Errors
    /// It says something else: in words, with how to mend it.
    pub fn read(body: &[u8]) -> Result<Self, Unchanged> {
        const REMEDY: &str =
            "send {\"until\": \"2026-12-01\", \"reason\": \"why\"}, or nothing for a block without an end";
        if body.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        let wrong = |error| misread(&error, format!("This is no block: {error}; {REMEDY}."));
        let asked: Self = serde_json::from_slice(body).map_err(wrong)?;
        check_reason(asked.reason.as_deref())?;
        Ok(asked)
    }
}

impl NumbersAsked {
    /// Reads a body.
    ///
    /// # Errors
    /// It says something else: in words, with how to mend it. Whether numbers fit the limit is for the limit to say.
    pub fn read(body: &[u8]) -> Result<Self, Unchanged> {
        const REMEDY: &str = "send {\"rates\": [\"500/s\"], \"until\": \"2026-12-01\"}";
        let words = |why: &str| format!("These are no numbers of a key: {why}; {REMEDY}.");
        let wrong = |why: &str| Unchanged::Wrong(words(why));
        let mut fields: Map<String, Value> =
            serde_json::from_slice(body).map_err(|error| misread(&error, words(&error.to_string())))?;
        let mut text = |name: &str| match fields.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(wrong(&format!("{name} is a string"))),
        };
        let (until, reason) = (text("until")?, text("reason")?);
        check_reason(reason.as_deref())?;
        let mut numbers = toml::Table::new();
        for (name, value) in fields {
            // What the configuration calls `rate` is a list here.
            let name = if name == "rates" { "rate".to_owned() } else { name };
            let value =
                to_toml(value).ok_or_else(|| wrong(&format!("{name:?} is a number, a text or a list of texts")))?;
            if numbers.insert(name.clone(), value).is_some() {
                return Err(wrong(&format!("{name} is there twice")));
            }
        }
        Ok(Self { until, reason, toml: numbers.to_string() })
    }
}

/// A text that is no JSON at all is told from JSON that says something else.
fn misread(error: &serde_json::Error, words: String) -> Unchanged {
    if error.is_data() { Unchanged::Wrong(words) } else { Unchanged::Unreadable(words) }
}

fn to_toml(value: Value) -> Option<toml::Value> {
    Some(match value {
        Value::String(text) => toml::Value::String(text),
        Value::Number(number) => toml::Value::Integer(number.as_i64()?),
        Value::Array(items) => {
            let items = items.into_iter().map(|item| item.as_str().map(|text| toml::Value::String(text.to_owned())));
            toml::Value::Array(items.collect::<Option<_>>()?)
        }
        Value::Null | Value::Bool(_) | Value::Object(_) => return None,
    })
}

fn check_reason(reason: Option<&str>) -> Result<(), Unchanged> {
    let Some(reason) = reason else { return Ok(()) };
    if reason.chars().count() > MAX_REASON {
        return Err(Unchanged::Wrong(format!("`reason` is longer than {MAX_REASON} characters: shorten it.")));
    }
    if reason.chars().any(is_terminal_control) {
        return Err(Unchanged::Wrong("`reason` has control characters: leave them out.".to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words_of(unchanged: Unchanged) -> String {
        match unchanged {
            Unchanged::Wrong(words) | Unchanged::Unreadable(words) => words,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_block_needs_nothing_and_takes_nothing_else() {
        assert_eq!(BlockAsked::read(b" "), Ok(BlockAsked::default()));
        assert_eq!(BlockAsked::read(b"{}"), Ok(BlockAsked::default()));
        let asked = BlockAsked::read(br#"{"until": "2026-12-01", "reason": "abuse"}"#).unwrap();
        assert_eq!((asked.until.as_deref(), asked.reason.as_deref()), (Some("2026-12-01"), Some("abuse")));
        for (body, words) in [
            (&br#"{"till": "2026-12-01"}"#[..], "unknown field `till`"),
            (br#"{"until": 5}"#, "invalid type: integer"),
            (b"[", "This is no block"),
            (b"\xff", "send {\"until\": \"2026-12-01\""),
            (br#"{"reason": "a\u001bb"}"#, "control characters: leave them out"),
        ] {
            let error = words_of(BlockAsked::read(body).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
        let long = format!("{{\"reason\": \"{}\"}}", "x".repeat(257));
        let error = BlockAsked::read(long.as_bytes()).unwrap_err();
        assert_eq!(error, Unchanged::Wrong("`reason` is longer than 256 characters: shorten it.".to_owned()));
    }

    #[test]
    fn numbers_are_written_as_the_file_writes_them() {
        let asked =
            NumbersAsked::read(br#"{"rates": ["500/s"], "burst": 7, "until": "+2h", "max_wait": "1s"}"#).unwrap();
        assert_eq!(asked.toml, "burst = 7\nmax_wait = \"1s\"\nrate = [\"500/s\"]\n");
        assert_eq!((asked.until.as_deref(), asked.reason), (Some("+2h"), None));
        for (body, words) in [
            (&br#"{"rates": [5]}"#[..], "\"rate\" is a number, a text or a list of texts"),
            (br#"{"rates": ["1/s"], "rate": "2/s"}"#, "rate is there twice"),
            (br#"{"rates": ["1/s"], "until": 5}"#, "until is a string"),
            (br#"{"burst": 1.5}"#, "\"burst\" is a number"),
            (br#"{"burst": {}}"#, "send {\"rates\": [\"500/s\"]"),
            (b"", "These are no numbers of a key"),
            (b"5", "These are no numbers of a key"),
        ] {
            let error = words_of(NumbersAsked::read(body).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_body_panics(body in prop::collection::vec(any::<u8>(), 0..60), text in "\\{\"[a-z]{1,5}\": [\"{\\[0-9a-z]{0,9}\\}?") {
            for body in [&body[..], text.as_bytes()] {
                let _ = (BlockAsked::read(body), NumbersAsked::read(body));
            }
        }
    }
}
