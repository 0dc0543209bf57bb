//! Characters that would do something to a terminal or an editor instead of being seen.

use std::fmt;

/// Whether a character is a control character, ends a line, hides, or changes the direction of text: logs and the command line
/// write it by its number.
pub fn is_terminal_control(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A character as a string of JSON has it by its number: `\u202e`, two of them above U+FFFF.
pub struct ByNumber(pub char);

impl fmt::Display for ByNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(f, "\\u{unit:04x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_is_written_so_that_json_reads_it_back() {
        for (character, written) in [('\u{1b}', "\\u001b"), ('\u{202e}', "\\u202e"), ('\u{e0041}', "\\udb40\\udc41")] {
            let text = ByNumber(character).to_string();
            assert_eq!((text.as_str(), is_terminal_control(character)), (written, true));
            assert_eq!(serde_json::from_str::<char>(&format!("\"{text}\"")).unwrap(), character);
        }
    }
}
