//! `[admin]`

use std::net::SocketAddr;
use std::sync::Arc;

use super::tls;
use crate::address::{self, ListenAddress};
use crate::findings::{Reported, quoted};
use crate::form::{Form, NAME, Secrecy};
use crate::kind::{Context, by, each, list, word};
use crate::reader::{Node, Reader};
use crate::section::{Declare, Section, section};
use crate::token::is_name;
use base16ct::lower::encode_string;
use sluicegate_tls::{ClientCertificates, ServerSettings};

/// Tokens, and clients with certificates, of one gateway.
const MAX_CALLERS: usize = 256;

const TOKENS_EXAMPLE: &str = "[{ name = \"ci\", sha256 = \"...\", role = \"operate\" }]";
const CLIENTS_EXAMPLE: &str = "[{ name = \"ops\", subject = \"CN=ops\", role = \"rules\" }]";

const SHA256: Form = Form::Text("64 hexadecimal digits");

/// SHA-256 of no bytes: the mistake of a shell whose variable was empty.
const OF_NOTHING: [u8; 4] = [0xe3, 0xb0, 0xc4, 0x42];

section! {
    /// `[admin]`
    pub struct Admin, read as AdminKeys {
        /// Where it listens: an IP address and a port, or a Unix socket.
        address: ListenAddress = by(
            Form::Text("an IP address and a port, or a Unix socket, such as \"127.0.0.1:9900\" or \"unix:admin.sock\""),
            |node, context| address::listening(node, context, ("127.0.0.1:9900", "admin.sock")),
            ListenAddress::to_string,
        ).required("\"127.0.0.1:9900\""),
        /// The callers that have a token.
        tokens: Vec<AdminToken> = list(Form::List(&Form::Table(AdminToken::rows), 0, MAX_CALLERS), tokens, AdminToken::to_string).or("[]").secret(Secrecy::Tables),
        /// Certificates, and which clients are taken, for HTTPS.
        tls: Option<ServerSettings> = tls::ListenerTls.optional(),
        /// The callers that have a client certificate.
        clients: Vec<AdminClient> = list(Form::List(&Form::Table(ClientKeys::rows), 0, MAX_CALLERS), clients, AdminClient::to_string).or("[]"),
        /// SHA-256 of the token by which a request may ask for its explanation. Without it no request may.
        explain_sha256: Option<[u8; 32]> = by(SHA256, |node, _| sha256(node), begin_of).or_nothing("none").secret(Secrecy::Hash),
        /// Whether rules may be changed over the API.
        rules: RulesAccess = word().or("edit"),
    }
}

words! {
    /// `rules` of `[admin]`
    pub enum RulesAccess default Edit {
        /// The API may change the file.
        Edit = "edit",
        /// It may not: the file comes from elsewhere.
        ReadOnly = "read-only",
    }
}

words! {
    /// `role` of a token or client of `[admin]`: it includes those before it.
    #[derive(PartialOrd, Ord)]
    pub enum AdminRole {
        /// Looks.
        Read = "read",
        /// Resets keys, takes servers out of service, reloads.
        Operate = "operate",
        /// Changes the configuration file.
        Rules = "rules",
    }
}

section! {
    /// One of `tokens`.
    pub struct AdminToken, read as TokenKeys {
        /// Its name, for the log.
        name: Arc<str> = by(NAME, |node, _| name(node), ToString::to_string).required("\"ci\""),
        /// SHA-256 of the token.
        sha256: [u8; 32] = by(SHA256, |node, _| sha256(node), begin_of).required("\"...\"").secret(Secrecy::Hash),
        /// The role of whoever has it.
        role: AdminRole = word().required("\"operate\""),
    }
}

/// One of `clients`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminClient {
    /// Its name, for the log.
    pub name: Arc<str>,
    /// The certificate that it shows.
    pub certificate: AdminCertificate,
    /// Its role.
    pub role: AdminRole,
}

/// How a client's certificate is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminCertificate {
    /// By its subject (RFC 4514).
    Subject(Box<str>),
    /// By its SHA-256, 64 digits in lower case.
    Fingerprint(Box<str>),
}

section! {
    /// One of `clients`.
    read as ClientKeys {
        /// Its name, for the log.
        name: Arc<str> = by(NAME, |node, _| name(node), ToString::to_string).required("\"ops\""),
        /// The subject of its certificate.
        subject: Option<String> = by(Form::Text("a subject as RFC 4514 writes it, such as \"CN=ops\""), subject, String::clone).or_nothing("none"),
        /// The SHA-256 of its certificate.
        fingerprint: Option<String> = by(SHA256, fingerprint, String::clone).or_nothing("none"),
        /// Its role.
        role: AdminRole = word().required("\"operate\""),
    }
}

impl std::fmt::Display for AdminToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.name, self.role.word())
    }
}

impl std::fmt::Display for AdminClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.name, self.role.word())
    }
}

/// Reads `[admin]`, with the rules between its keys.
pub(crate) fn read(reader: Reader<'_>, context: &Context<'_>) -> Result<Admin, Reported> {
    let keys = Admin::read_keys(reader, context);
    let rules = [check_tls(&keys), check_clients(&keys, context), check_callers(&keys)];
    rules.into_iter().collect::<Result<(), _>>()?;
    Admin::of(keys)
}

/// A Unix socket has no TLS; tokens that cross a network should.
fn check_tls(keys: &AdminKeys<'_>) -> Result<(), Reported> {
    let (Ok(address), Ok(tls)) = (&keys.address.value, &keys.tls.value) else { return Ok(()) };
    match (address, tls, &keys.tls.node, &keys.tokens.node) {
        (ListenAddress::Unix(_), Some(_), Some(node), _) => {
            Err(node.on_key().error("a Unix socket has no TLS", "remove `tls`, or listen on an IP address"))
        }
        (ListenAddress::Tcp(address), None, _, Some(tokens)) if !is_loopback(*address) => {
            let message = "tokens come in the clear: whoever listens on the way can use them";
            tokens.on_key().warning(message, "add `tls`, or listen on 127.0.0.1 or a Unix socket");
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Clients are known by certificates that were asked for.
fn check_clients(keys: &AdminKeys<'_>, context: &Context<'_>) -> Result<(), Reported> {
    let (Ok(clients), Ok(tls), Some(node)) = (&keys.clients.value, &keys.tls.value, &keys.clients.node) else {
        return Ok(());
    };
    let asks = tls.as_ref().is_some_and(|tls| !matches!(tls.clients, ClientCertificates::Off));
    // An authority that is not read vouches for nobody.
    let is_unread = keys.tls.node.is_some() && !context.files.certificates().are_read();
    if clients.is_empty() || asks || is_unread {
        return Ok(());
    }
    let help = "add tls = { certificates = [...], client_certificates = \"optional\", client_ca = \"ca.pem\" }";
    Err(node.on_key().error("nobody is asked for a certificate", help))
}

/// Elsewhere than on loopback and a Unix socket it has to say who may.
fn check_callers(keys: &AdminKeys<'_>) -> Result<(), Reported> {
    let (Ok(ListenAddress::Tcp(address)), Some(node)) = (&keys.address.value, &keys.address.node) else {
        return Ok(());
    };
    let (Ok(tokens), Ok(clients)) = (&keys.tokens.value, &keys.clients.value) else { return Ok(()) };
    if is_loopback(*address) || !tokens.is_empty() || !clients.is_empty() {
        return Ok(());
    }
    let message = format!("whoever reaches {address} may operate this gateway");
    let help = "write tokens = [...] (`sluicegate token` makes one), or listen on 127.0.0.1 or \"unix:/run/sluicegate/admin.sock\"";
    Err(node.error(message, help))
}

/// Whether only this machine reaches it.
fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn tokens(node: &Node<'_>, context: &Context<'_>) -> Result<Vec<AdminToken>, Reported> {
    let items = node.array(TOKENS_EXAMPLE)?;
    check_count(node, items.len())?;
    let all = each(&items, |item| {
        let reader = item.inner("a token", "{ name = \"ci\", sha256 = \"...\", role = \"operate\" }")?;
        AdminToken::read(reader, context)
    })?;
    for (place, (token, item)) in all.iter().zip(&items).enumerate() {
        let before = &all[..place];
        if before.iter().any(|other| other.name == token.name) {
            return Err(twice(item, &format!("two tokens have the name {}", quoted(&token.name))));
        }
        if before.iter().any(|other| other.sha256 == token.sha256) {
            return Err(twice(item, "the same token twice"));
        }
    }
    Ok(all)
}

fn clients(node: &Node<'_>, context: &Context<'_>) -> Result<Vec<AdminClient>, Reported> {
    let items = node.array(CLIENTS_EXAMPLE)?;
    check_count(node, items.len())?;
    let all = each(&items, |item| {
        let mut reader = item.inner("a client", "{ name = \"ops\", subject = \"CN=ops\", role = \"rules\" }")?;
        let keys = ClientKeys::read(&mut reader, context);
        reader.done();
        let certificate = match (keys.subject.value?, keys.fingerprint.value?) {
            (Some(subject), None) => AdminCertificate::Subject(subject.into()),
            (None, Some(fingerprint)) => AdminCertificate::Fingerprint(fingerprint.into()),
            _ => return Err(item.error("a client has either `subject` or `fingerprint`", "give one of them")),
        };
        Ok(AdminClient { name: keys.name.value?, certificate, role: keys.role.value? })
    })?;
    for (place, (client, item)) in all.iter().zip(&items).enumerate() {
        let before = &all[..place];
        if before.iter().any(|other| other.name == client.name || other.certificate == client.certificate) {
            return Err(twice(item, "the same client twice"));
        }
    }
    Ok(all)
}

fn check_count(node: &Node<'_>, count: usize) -> Result<(), Reported> {
    if count <= MAX_CALLERS {
        return Ok(());
    }
    Err(node.error(format!("{} has {count} entries", node.label()), format!("it takes at most {MAX_CALLERS}")))
}

fn twice(item: &Node<'_>, message: &str) -> Reported {
    item.error(message, "the log tells them apart by name: remove one, or name it anew")
}

/// Names that the log and the history have for others.
const RESERVED: [&str; 5] = ["file", "start", "loopback", "socket", "follow"];

/// Judges the name of a token or client.
///
/// # Errors
/// It is none, and how to mend it.
pub fn check_admin_name(text: &str) -> Result<(), &'static str> {
    if RESERVED.contains(&text) {
        return Err("the log and the history have it for others: take another one");
    }
    if is_name(text) { Ok(()) } else { Err("a name is 1 to 64 of A-Z a-z 0-9 . _ -") }
}

fn name(node: &Node<'_>) -> Result<Arc<str>, Reported> {
    let text = node.string("a name in quotes", "\"ci\"")?;
    check_admin_name(text).map_err(|help| node.error(format!("invalid name {}", quoted(text)), help))?;
    Ok(text.into())
}

fn subject(node: &Node<'_>, _: &Context<'_>) -> Result<String, Reported> {
    let text = node.string("a subject in quotes", "\"CN=ops,O=Example\"")?;
    if (1..=1_024).contains(&text.len()) {
        return Ok(text.to_owned());
    }
    Err(node.error("that is no subject", "openssl x509 -in cert.pem -noout -subject -nameopt RFC2253 prints it"))
}

fn fingerprint(node: &Node<'_>, _: &Context<'_>) -> Result<String, Reported> {
    let text = node.string("a fingerprint in quotes", "\"AB:CD:...\"")?;
    let digits: String = text.chars().filter(|digit| *digit != ':').collect();
    if digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Ok(digits.to_ascii_lowercase());
    }
    let help = "openssl x509 -in cert.pem -noout -fingerprint -sha256 prints it";
    Err(node.error(format!("{} is no SHA-256 of a certificate", quoted(text)), help))
}

/// 64 hex digits. Somebody may have written the token itself in their place, so no message repeats the text.
fn sha256(node: &Node<'_>) -> Result<[u8; 32], Reported> {
    let example = "\"54eb0499a9ae5c1128d2a1cd9158107e0da3c8166ca30e8486d928125ad78855\"";
    let text = node.string("a SHA-256 in quotes", example)?;
    let mut hash = [0; 32];
    let decoded = base16ct::mixed::decode(text, &mut hash).is_ok_and(|bytes| bytes.len() == 32);
    let hash = decoded.then_some(hash).ok_or_else(|| {
        let message = format!("{} is no SHA-256: 64 hex digits", node.label());
        node.error(message, "`sluicegate token` prints a token and its SHA-256; the file has no token")
    })?;
    if hash.starts_with(&OF_NOTHING) {
        return Err(node.error(format!("{} is the SHA-256 of an empty text", node.label()), "hash the token"));
    }
    Ok(hash)
}

/// Enough to tell two apart.
pub(crate) fn begin_of(hash: &[u8; 32]) -> String {
    encode_string(&hash[..4]) + "..."
}
