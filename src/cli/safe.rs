//! Texts of strangers on a terminal.

use std::fmt::{self, Display};

use crate::redact::is_terminal_control;

/// A text whose control characters, and those that change the direction or hide, are shown by number.
pub struct Safe<'a>(pub &'a str);

impl Display for Safe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for character in self.0.chars() {
            if is_terminal_control(character) {
                write!(f, "\\u{{{:x}}}", u32::from(character))?;
            } else {
                f.write_char(character)?;
            }
        }
        Ok(())
    }
}

/// A text as a word of a shell.
pub fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"./_-:@".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}
