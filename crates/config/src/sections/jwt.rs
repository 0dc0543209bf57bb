//! `[jwt]`: the tokens of an issuer, and the keys that it signs them with.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::alert::http_address;
use super::rules::RulesAddress;
use crate::change::Changes;
use crate::findings::{Findings, Reported, quoted};
use crate::form::Form;
use crate::kind::{Context, ValueKind, by, each, list};
use crate::lower::file;
use crate::reader::{Node, Reader};
use crate::section::{Declare, Section, section};
use sluicegate_jwt::{KeySet, SigningAlgorithm};

section! {
    /// `[jwt]`: whose tokens the keys `jwt:CLAIM` are read of.
    pub struct Jwt, read as JwtKeys {
        /// The public keys of the issuer: a file, or the address that the issuer calls `jwks_uri`.
        jwks: JwksSource = Jwks.required("\"https://issuer.example/.well-known/jwks.json\""),
        /// The issuer that tokens have to name in `iss`.
        issuer: Option<Arc<str>> = by(ISSUER, name, ToString::to_string).or_nothing("any"),
        /// The audience that tokens have to name in `aud`, alone or among others.
        audience: Option<Arc<str>> = by(AUDIENCE, name, ToString::to_string).or_nothing("any"),
        /// The algorithms that tokens may be signed by.
        algorithms: Vec<SigningAlgorithm> = list(Form::List(&ALGORITHM, 1, 3), algorithms, |own| own.word().to_owned()).or("[\"RS256\", \"ES256\", \"EdDSA\"]"),
    }
}

const ISSUER: Form = Form::Text("a text, such as \"https://issuer.example\"");
const AUDIENCE: Form = Form::Text("a text, such as \"api\"");
const ALGORITHM: Form = Form::words::<SigningAlgorithm>();
const EXAMPLE: &str = "\"https://issuer.example/.well-known/jwks.json\" or \"jwks.json\"";

/// Bytes of an issuer or an audience: what a token may have there.
const MAX_NAME_BYTES: usize = 1_024;

/// Where the keys of an issuer are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwksSource {
    /// In a file.
    File(JwksFile),
    /// At an address that is asked for them again and again.
    Url(RulesAddress),
}

/// A file of keys.
#[derive(Clone, PartialEq, Eq)]
pub struct JwksFile {
    path: PathBuf,
    shown: String,
    /// `None`: files are not read.
    keys: Option<Arc<KeySet>>,
    digest: [u8; 32],
}

impl JwksFile {
    /// Its keys; `None`: files are not read.
    pub fn keys(&self) -> Option<&KeySet> {
        self.keys.as_deref()
    }
}

impl fmt::Debug for JwksFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JwksFile({})", self.shown)
    }
}

impl fmt::Display for JwksSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => f.write_str(&file.shown),
            Self::Url(address) => address.fmt(f),
        }
    }
}

impl JwksSource {
    /// Whether both are of the same place, whatever is there.
    pub fn is_at_place_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(one), Self::File(other)) => one.path == other.path,
            (Self::Url(one), Self::Url(other)) => one == other,
            (Self::File(_), Self::Url(_)) | (Self::Url(_), Self::File(_)) => false,
        }
    }

    /// A digest of what was read.
    pub(crate) fn digest(&self) -> [u8; 32] {
        match self {
            Self::File(file) => file.digest,
            Self::Url(_) => [0; 32],
        }
    }
}

/// Reads the section, and the place of its keys.
pub(crate) fn read<'t>(reader: Reader<'t>, context: &Context<'_>) -> Result<(Jwt, Node<'t>), Reported> {
    let mut keys = Jwt::read_keys(reader, context);
    let node = keys.jwks.node.take();
    let jwt = Jwt::of(keys)?;
    // A key that has to be there has a place.
    node.map(|node| (jwt, node)).ok_or_else(Findings::reported_as_unknown)
}

/// Warns of a section that no key needs.
pub(crate) fn warn_unused(place: &Node<'_>) {
    let help = "write key = \"jwt:sub\" in a [[limit]], or remove the section";
    place.on_key().warning("no key of the file is read of the tokens of [jwt]", help);
}

/// The values of `jwks`.
struct Jwks;

impl ValueKind for Jwks {
    type Value = JwksSource;

    fn read(&self, node: &Node<'_>, context: &Context<'_>) -> Result<JwksSource, Reported> {
        let text = node.string("a path or an address in quotes", EXAMPLE)?;
        if text.contains("://") { url(node) } else { key_file(node, text, context) }
    }

    fn show(&self, source: &JwksSource) -> String {
        source.to_string()
    }

    fn form(&self) -> Form {
        Form::Text("the path of a file, or an address that begins with `https://`")
    }

    fn compare(&self, what: &'static str, old: &JwksSource, new: &JwksSource, changes: &mut Changes) {
        if old != new && old.is_at_place_of(new) {
            changes.note(what, "has other contents".to_owned());
        } else {
            changes.value(what, old, new, |source| self.show(source));
        }
    }
}

/// A machine on the way could write keys of its own, where there is no TLS.
fn url(node: &Node<'_>) -> Result<JwksSource, Reported> {
    let uri = http_address(node, EXAMPLE, "leave them out: a set of keys is public")?;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_loopback = host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
    if uri.scheme_str() != Some("https") && !is_loopback {
        let message = format!("{} is asked for without TLS: whoever is on the way can write the keys", node.label());
        return Err(node.error(
            message,
            "write \"https://…\"; \"http://\" is for an address of this machine alone, such as \"http://127.0.0.1:8000/jwks.json\"",
        ));
    }
    Ok(JwksSource::Url(RulesAddress::of(uri)))
}

fn key_file(node: &Node<'_>, text: &str, context: &Context<'_>) -> Result<JwksSource, Reported> {
    let bytes = file::read(node, context.files, "jwks.json")?;
    let mut found = JwksFile {
        path: context.files.beside(text),
        shown: text.to_owned(),
        keys: None,
        digest: Sha256::digest(&bytes).into(),
    };
    if !context.files.certificates().are_read() {
        return Ok(JwksSource::File(found));
    }
    let keys = KeySet::parse(&bytes).map_err(|error| {
        node.error(
            format!("{} = {} is no set of keys: {error}", node.label(), quoted(text)),
            "write what the issuer has at its jwks_uri: {\"keys\": [{\"kty\": \"RSA\", …}]}",
        )
    })?;
    if keys.unused() > 0 {
        node.warning(
            format!("{} = {}: not all of its keys are used, {} are not", node.label(), quoted(text), keys.unused()),
            "a key is RSA of 2048 to 8192 bits, P-256 or Ed25519, is for signatures, and has a \"kid\" of its own",
        );
    }
    found.keys = Some(Arc::new(keys));
    Ok(JwksSource::File(found))
}

fn name(node: &Node<'_>, _: &Context<'_>) -> Result<Arc<str>, Reported> {
    let text = node.string("a text in quotes", "\"api\", as the tokens have it")?;
    if !(1..=MAX_NAME_BYTES).contains(&text.len()) {
        let message = format!("{} has {} bytes, and has 1 to {MAX_NAME_BYTES}", node.label(), text.len());
        return Err(node.error(message, "write what the issuer puts into its tokens, to the letter"));
    }
    Ok(text.into())
}

fn algorithms(node: &Node<'_>, _: &Context<'_>) -> Result<Vec<SigningAlgorithm>, Reported> {
    let nodes = node.array("[\"RS256\"]")?;
    let all = each(&nodes, Node::word)?;
    if all.is_empty() {
        return Err(node.error("no token may be signed", "name \"RS256\", \"ES256\" or \"EdDSA\", or remove it"));
    }
    Ok(all)
}
