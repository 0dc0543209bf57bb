//! Keys that name a file.

use std::path::PathBuf;

use crate::findings::{Reported, quoted};
use crate::kind::Context;
use crate::reader::Node;

/// A file, whose path is relative to the configuration's directory; `example` is one.
pub(super) fn file(node: &Node<'_>, context: &Context<'_>, example: &str) -> Result<PathBuf, Reported> {
    let text = node.string("a path in quotes", &format!("\"{example}\""))?;
    if text.is_empty() || text.ends_with('/') || text.contains('\0') {
        let message = format!("invalid file name {}", quoted(text));
        let help = format!("name a file in a directory that is there, such as \"{example}\"");
        return Err(node.error(message, help));
    }
    Ok(context.files.beside(text))
}
