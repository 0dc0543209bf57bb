//! `[admin]`

use std::net::SocketAddr;

use crate::config::address;
use crate::config::findings::Reported;
use crate::config::kind::{by, word};
use crate::config::reader::Node;
use crate::config::section::{Declare, section};

/// 64 hex digits. Somebody may have written the token itself in their place, so no message repeats the text.
fn sha256(node: &Node<'_>) -> Result<[u8; 32], Reported> {
    let example = "\"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"";
    let text = node.string("a SHA-256 in quotes", example)?;
    let digit = |at: usize| text.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    let is_hex = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bytes: Option<Vec<u8>> = (0..32).map(|byte| digit(2 * byte)).collect();
    let hash = bytes.filter(|_| is_hex).and_then(|bytes| bytes.try_into().ok());
    hash.ok_or_else(|| {
        let message = format!("{} is no SHA-256: 64 hex digits", node.label());
        node.error(message, "printf %s TOKEN | sha256sum prints that of a token; the file has no token")
    })
}

/// Enough to tell two apart.
fn begin_of(hash: &[u8; 32]) -> String {
    hash.iter().take(4).fold(String::new(), |text, byte| format!("{text}{byte:02x}")) + "..."
}

words! {
    /// `rules` of `[admin]`
    pub enum RulesAccess {
        /// The API may change the file.
        Edit = "edit",
        /// It may not: the file comes from elsewhere.
        ReadOnly = "read-only",
    }
}

section! {
    /// `[admin]`
    pub struct Admin, read as AdminKeys {
        /// Where it listens.
        address: SocketAddr = by(|node, _| address::listening(node, "127.0.0.1:9900"), SocketAddr::to_string)
            .required("\"127.0.0.1:9900\""),
        /// SHA-256 of the token by which a request may ask for its explanation; `None`: none may.
        explain_sha256: Option<[u8; 32]> = by(|node, _| sha256(node), begin_of).or_nothing("none"),
        /// Whether rules may be changed over the API.
        rules: RulesAccess = word().or("edit"),
    }
}
