//! Rules that come from elsewhere: the text that has them, the file that keeps the last good one, and how it is read with the
//! file that names it.
//!
//! The text may be a whole configuration. Only its routes, limits, upstreams and bandwidths count.
//!
//! Both texts are read as one, so that a finding has one place. The places of the followed text begin behind those of the file:
//! it is parsed behind as many empty lines as the file has bytes.

use std::io;
use std::path::Path;

use base16ct::lower::encode_string;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use toml::de::DeTable;

use super::certificates::CertificateFiles;
use super::findings::Findings;
use super::followed_text::Followed;
use super::reader::{Node, Reader};
use super::sections::rules::Follow;
use super::{report, syntax};
use sluicegate_files::read_regular;

/// The largest text that is followed.
pub const MAX_FOLLOWED_BYTES: usize = 1 << 20;

/// Bytes of the line that says where a kept text comes from.
const MAX_ORIGIN_BYTES: usize = 16 << 10;

/// Begins that line, the last of the file.
const MARK: &str = "\n#: followed ";

/// The sections that come from elsewhere.
const KINDS: [&str; 4] = ["upstream", "limit", "bandwidth", "route"];

/// A followed text as it is kept on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedCopy {
    /// The text.
    pub text: String,
    /// Where it comes from; `None`: somebody has written or changed the file by hand.
    pub origin: Option<TextOrigin>,
}

/// Where a kept text comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextOrigin {
    /// The address, with all that is secret in it: only the gateway's user reads the file.
    pub url: String,
    /// Its tag there.
    pub etag: Option<String>,
    /// When it was taken.
    pub time: String,
}

impl TextOrigin {
    /// Whether a text comes from there, and has the same tag.
    pub fn is_like(&self, kept: &FollowedCopy) -> bool {
        kept.origin.as_ref().is_some_and(|other| (&self.url, &self.etag) == (&other.url, &other.etag))
    }
}

impl FollowedCopy {
    /// Reads the file at `path`; `None`: there is none.
    ///
    /// # Errors
    /// It cannot be read, is too large or no UTF-8.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        let most = MAX_FOLLOWED_BYTES + MAX_ORIGIN_BYTES;
        let bytes = match read_regular(path, most) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let text = String::from_utf8(bytes).map_err(io::Error::other)?;
        if text.len() > most {
            return Err(io::Error::other("it is larger than 1 MiB"));
        }
        Ok(Some(Self::of(text)))
    }

    fn of(mut text: String) -> Self {
        let origin = text.rfind(MARK).and_then(|at| {
            let (own, line) = text.split_at_checked(at)?;
            let line: OriginLine = serde_json::from_str(line.strip_prefix(MARK)?).ok()?;
            let OriginLine { url, etag, time, sha256 } = line;
            (sha256 == hex(own)).then_some((at, TextOrigin { url, etag, time }))
        });
        let origin = origin.map(|(at, origin)| {
            text.truncate(at);
            origin
        });
        Self { text, origin }
    }

    /// The content of the file.
    ///
    /// # Errors
    /// Of JSON, which this value does not have.
    pub fn to_file(&self) -> io::Result<String> {
        let Some(TextOrigin { url, etag, time }) = self.origin.clone() else { return Ok(self.text.clone()) };
        let line = serde_json::to_string(&OriginLine { url, etag, time, sha256: hex(&self.text) })?;
        Ok(format!("{}{MARK}{line}\n", self.text))
    }
}

/// An origin as the file has it, with the digest of the text before it: a text that was changed by hand has none.
#[derive(Serialize, Deserialize)]
struct OriginLine {
    url: String,
    etag: Option<String>,
    time: String,
    sha256: String,
}

fn hex(text: &str) -> String {
    encode_string(&Sha256::digest(text))
}

/// A text that is to be followed, if it is right.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The text.
    pub text: String,
    /// Its address, for reports.
    pub from: String,
}

/// How the followed text of a file is found.
#[derive(Clone, Copy)]
pub(super) struct Search<'s> {
    /// The configuration.
    pub(super) file: &'s Path,
    /// In the place of the one that is kept.
    pub(super) candidate: Option<&'s Candidate>,
    /// Bytes of the file's text, and one more.
    pub(super) offset: usize,
}

/// The text that a file follows, as it is parsed.
#[derive(Default)]
pub(super) struct FollowedSource<'t> {
    /// Everything that it says.
    pub(super) root: DeTable<'t>,
    /// The digest of the text; `None`: it is not known.
    pub(super) digest: Option<[u8; 32]>,
    /// Whether `root` is what the text says.
    pub(super) is_read: bool,
}

/// Finds and parses the text that is followed. `node` is the address of it.
pub(super) fn find<'t>(
    (follow, node): &(Follow, Node<'_>),
    search: Search<'_>,
    files: &CertificateFiles,
    findings: &'t Findings,
) -> FollowedSource<'t> {
    let path = follow.kept(search.file);
    files.note(&path);
    let (text, name) = match search.candidate {
        Some(candidate) => (candidate.text.clone(), candidate.from.clone().into()),
        None if !files.certificates().are_kept_rules_read() => return FollowedSource::default(),
        None if is_same(search.file, &path) => {
            node.error(
                "`kept_file` is this file, which it would replace",
                "name another file, or leave `kept_file` out",
            );
            return FollowedSource::default();
        }
        None => match FollowedCopy::read(&path) {
            Ok(Some(kept)) => {
                warn_of_another(follow, &kept, node);
                (kept.text, path)
            }
            Ok(None) => {
                let message = format!("the rules are not known yet: there is no {}", path.display());
                node.on_key().warning(message, "`sluicegate run` asks for them when it starts, and keeps them there");
                return FollowedSource::default();
            }
            Err(error) => {
                let message = format!("the rules that are kept in {} cannot be read: {error}", path.display());
                node.error(message, "let the gateway's user own the file, or remove it: it is made anew");
                return FollowedSource::default();
            }
        },
    };
    let digest = Some(Sha256::digest(&text).into());
    let followed = findings.follow(Followed::new(name, &text, search.offset));
    let (root, broken) = DeTable::parse_recoverable(followed.padded());
    if broken.is_empty() {
        return FollowedSource { root: root.into_inner(), digest, is_read: true };
    }
    let (_, broken) = DeTable::parse_recoverable(followed.text());
    let of_text = Findings::from_syntax(followed.text(), syntax::explain(followed.text(), broken));
    findings.push_elsewhere(report::elsewhere(&followed.name, followed.text(), of_text));
    FollowedSource { digest, ..FollowedSource::default() }
}

/// Whether two paths lead to one file.
fn is_same(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}

/// The kept text is used until the address that is written now has answered.
fn warn_of_another(follow: &Follow, kept: &FollowedCopy, node: &Node<'_>) {
    if kept.origin.as_ref().is_some_and(|origin| *follow.follow.uri() != *origin.url) {
        let message = "the rules that are kept come from another address, and hold until this one has answered";
        node.on_key().warning(message, "start the gateway, or let it run: it asks for them at once");
    }
}

/// Reports entries that the file has of its own.
pub(super) fn refuse_own(root: &mut Reader<'_>) {
    for kind in KINDS {
        if let Some(node) = root.optional(kind) {
            let message = format!("{} stands here, and the rules come from elsewhere: follow of [rules]", node.label());
            node.on_key().error(message, "rules come from one place: remove it here, or remove [rules]");
        }
    }
}
