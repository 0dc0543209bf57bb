//! Files that are sent to clients.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::certificates::CertificateFiles;
use crate::findings::{Reported, quoted};
use crate::form::Form;
use crate::reader::Node;
use crate::token::is_token;
use sluicegate_files::read_regular;

/// The largest file that is sent.
pub(super) const MAX_FILE_BYTES: usize = 1 << 20;

/// The form of a `content_type`.
pub(crate) const MEDIA_TYPE: Form = Form::Text("a media type, such as \"text/html; charset=utf-8\"");

/// The type of a file by the end of its name.
const TYPES: [(&str, &str); 18] = [
    ("html", "text/html; charset=utf-8"),
    ("htm", "text/html; charset=utf-8"),
    ("txt", "text/plain; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("csv", "text/csv; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("xml", "application/xml"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("ico", "image/x-icon"),
    ("pdf", "application/pdf"),
    ("woff2", "font/woff2"),
    ("wasm", "application/wasm"),
];

/// All of the file that a value names; nothing of it where files are not read. A file that several keys name is read and kept once.
pub(crate) fn read(node: &Node<'_>, files: &CertificateFiles, example: &str) -> Result<Arc<[u8]>, Reported> {
    let text = node.string("a path in quotes", &quoted(example))?;
    if text.is_empty() || text.contains('\0') {
        return Err(node.error(
            format!("invalid file name {}", quoted(text)),
            format!("name a file, such as {}", quoted(example)),
        ));
    }
    let path = files.locate(text);
    if !files.certificates().are_read() {
        return Ok([].into());
    }
    if let Some(bytes) = files.kept(&path) {
        return Ok(bytes);
    }
    let (reason, help) = match read_regular(&path, MAX_FILE_BYTES) {
        Ok(bytes) if bytes.len() <= MAX_FILE_BYTES => return Ok(files.keep(path, bytes)),
        Ok(_) => ("it is larger than 1 MiB".to_owned(), "let an upstream serve what is larger".to_owned()),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => (
                "there is no such file".to_owned(),
                format!("nothing is at {}; relative paths start from the configuration's directory", path.display()),
            ),
            io::ErrorKind::PermissionDenied => (
                "this user may not read it".to_owned(),
                format!("let the gateway's user read it and enter its directories (namei -l {})", path.display()),
            ),
            io::ErrorKind::Other => (error.to_string(), "name a regular file".to_owned()),
            _ => (format!("it cannot be read: {error}"), "name a regular file".to_owned()),
        },
    };
    Err(node.error(format!("{} = {} cannot be used: {reason}", node.label(), quoted(text)), help))
}

/// `content_type`, else what the file is by the end of its name.
pub(super) fn content_type(given: Option<&Node<'_>>, file: Option<&Node<'_>>) -> Result<Arc<str>, Reported> {
    let Some(node) = given else {
        let ending = file.and_then(Node::as_text).and_then(|path| Path::new(path).extension()?.to_str());
        let ending = ending.map(str::to_ascii_lowercase);
        let known = TYPES.iter().find(|(known, _)| ending.as_deref() == Some(known)).map(|(_, kind)| *kind);
        let other = if file.is_some() { "application/octet-stream" } else { "text/plain; charset=utf-8" };
        return Ok(known.unwrap_or(other).into());
    };
    let text = node.string("a media type in quotes", "\"text/html; charset=utf-8\"")?;
    let (kind, subtype) = text.split(';').next().unwrap_or_default().trim().split_once('/').unwrap_or_default();
    if is_token(kind) && is_token(subtype) && text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return Ok(text.into());
    }
    Err(node.error(format!("invalid media type {}", quoted(text)), "write \"text/html; charset=utf-8\""))
}
