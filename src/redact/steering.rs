//! Characters that would do something to a terminal or an editor instead of being seen.

/// Whether a character is a control character, ends a line, hides, or changes the direction of text: logs and the command line
/// write it by its number.
pub fn steers(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}
