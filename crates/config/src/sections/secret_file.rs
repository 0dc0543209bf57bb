//! A key that names a file with a secret of 32 bytes.

use std::fmt;
use std::path::Path;

use crate::change::Changes;
use crate::findings::{Reported, quoted};
use crate::form::{FILE, Form};
use crate::kind::{Context, ValueKind};
use crate::lower::file;
use crate::reader::Node;
use sluicegate_files::read_regular;

/// Bytes of a secret.
pub(super) const SECRET_BYTES: usize = 32;

/// A secret of a file; `None` where files are not read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FileSecret(pub(super) Option<[u8; SECRET_BYTES]>);

impl FileSecret {
    /// That of a file, for the caller that has no configuration.
    ///
    /// # Errors
    /// In words: the file cannot be read, or holds no secret.
    pub fn load(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let bytes = read_regular(path, 2 * SECRET_BYTES + 2);
        let bytes = bytes.map_err(|error| format!("cannot read the key {shown}: {error}"))?;
        let secret = secret_of(&bytes).ok_or_else(|| {
            format!("{shown} is no key: it needs 32 bytes or 64 hexadecimal digits, as `sluicegate dead-letters key` prints them")
        })?;
        Ok(Self(Some(secret)))
    }

    /// The secret; `None` where files are not read.
    pub fn bytes(&self) -> Option<&[u8; SECRET_BYTES]> {
        self.0.as_ref()
    }
}

impl fmt::Debug for FileSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileSecret(..)")
    }
}

/// The values of such a key. `example` is the name of a file, `help` says how to make one.
pub(super) struct SecretFile {
    pub(super) example: &'static str,
    pub(super) help: &'static str,
}

impl ValueKind for SecretFile {
    type Value = FileSecret;

    fn read(&self, node: &Node<'_>, context: &Context<'_>) -> Result<FileSecret, Reported> {
        let bytes = file::read(node, context.files, self.example)?;
        if !context.files.certificates().are_read() {
            return Ok(FileSecret(None));
        }
        let secret = secret_of(&bytes).ok_or_else(|| {
            let digits =
                if without_line_end(&bytes).len() == 2 * SECRET_BYTES { ", not all of them digits" } else { "" };
            let text = quoted(node.as_text().unwrap_or_default());
            let message = format!("{} = {text} has {} bytes{digits}", node.label(), bytes.len());
            node.error(message, self.help)
        })?;
        Ok(FileSecret(Some(secret)))
    }

    fn show(&self, _: &FileSecret) -> String {
        "set".to_owned()
    }

    fn form(&self) -> Form {
        FILE
    }

    fn compare(&self, what: &'static str, old: &FileSecret, new: &FileSecret, changes: &mut Changes) {
        if old != new {
            changes.note(what, "has other contents".to_owned());
        }
    }
}

/// 32 bytes as they are, or as 64 hexadecimal digits.
fn secret_of(bytes: &[u8]) -> Option<[u8; SECRET_BYTES]> {
    if let Ok(raw) = bytes.try_into() {
        return Some(raw);
    }
    let mut secret = [0; SECRET_BYTES];
    let decoded = base16ct::mixed::decode(without_line_end(bytes), &mut secret);
    decoded.is_ok_and(|decoded| decoded.len() == SECRET_BYTES).then_some(secret)
}

/// A file of one line, whether or not the line is ended.
pub(super) fn without_line_end(bytes: &[u8]) -> &[u8] {
    let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    line.strip_suffix(b"\r").unwrap_or(line)
}
