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

/// The secrets of a file that has one, or two while the one is replaced by the other; none where files are not read.
#[derive(Clone, PartialEq, Eq)]
pub struct FileSecrets(Vec<[u8; SECRET_BYTES]>);

impl FileSecrets {
    /// All of them: the one that is used, and one that is only known.
    pub fn all(&self) -> &[[u8; SECRET_BYTES]] {
        &self.0
    }
}

impl fmt::Debug for FileSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileSecrets(..)")
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
        let secret = secret_of(&bytes).ok_or_else(|| no_secret(node, &bytes, self.help))?;
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

/// The values of a key that names a file with one secret, or with two in lines of their own.
pub(super) struct SecretsFile(pub(super) SecretFile);

impl ValueKind for SecretsFile {
    type Value = FileSecrets;

    fn read(&self, node: &Node<'_>, context: &Context<'_>) -> Result<FileSecrets, Reported> {
        let SecretFile { example, help } = self.0;
        let bytes = file::read(node, context.files, example)?;
        if !context.files.certificates().are_read() {
            return Ok(FileSecrets(Vec::new()));
        }
        if let Some(secret) = secret_of(&bytes) {
            return Ok(FileSecrets(vec![secret]));
        }
        // A line may end as on Windows: each is a file of one line.
        let lines: Option<Vec<_>> = without_line_end(&bytes).split(|byte| *byte == b'\n').map(secret_of).collect();
        match lines.as_deref() {
            Some([used, known]) if used != known => Ok(FileSecrets(vec![*used, *known])),
            Some([_, _]) => {
                let text = quoted(node.as_text().unwrap_or_default());
                Err(node.error(format!("{} = {text} has the same secret twice", node.label()), help))
            }
            _ => Err(no_secret(node, &bytes, help)),
        }
    }

    fn show(&self, _: &FileSecrets) -> String {
        "set".to_owned()
    }

    fn form(&self) -> Form {
        FILE
    }

    fn compare(&self, what: &'static str, old: &FileSecrets, new: &FileSecrets, changes: &mut Changes) {
        if old != new {
            changes.note(what, "has other contents".to_owned());
        }
    }
}

/// It is no secret; says of what length it is, and nothing more.
fn no_secret(node: &Node<'_>, bytes: &[u8], help: &'static str) -> Reported {
    let digits = if without_line_end(bytes).len() == 2 * SECRET_BYTES { ", not all of them digits" } else { "" };
    let text = quoted(node.as_text().unwrap_or_default());
    node.error(format!("{} = {text} has {} bytes{digits}", node.label(), bytes.len()), help)
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
