//! `tls` of `[[listener]]` and `[[upstream]]`, and the files that they name.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::certificates::Certificates;
use crate::change::Changes;
use crate::findings::{Finding, Reported, quoted};
use crate::form::{FILE, Form};
use crate::kind::{Context, ValueKind, by, each, flag, inner, word};
use crate::reader::Node;
use crate::section::{Declare, section};
use sluicegate_tls::{
    Alpn, CertificateStatus, Chain, ClientCertificates, FileError, Identity, MinVersion, PrivateKey, Roots,
    ServerSettings, UpstreamSettings, Validity, is_server_name,
};

/// Certificates of one listener. Each is read at start and at each reload.
const MAX_CERTIFICATES: usize = 10_000;

pub(super) const LISTENER_EXAMPLE: &str = "{ certificates = [{ cert = \"cert.pem\", key = \"key.pem\" }] }";
const CERTIFICATES_EXAMPLE: &str = "[{ cert = \"cert.pem\", key = \"key.pem\" }]";
/// The form of a name that a certificate has to have.
pub(super) const SERVER_NAME: Form = Form::Text("a host");
const UPSTREAM_EXAMPLE: &str = "true or { ca = \"ca.pem\", server_name = \"app.internal\" }";

section! {
    /// `tls` of a listener.
    read as ListenerKeys {
        /// Certificates with their keys. The first is for clients whose name none has.
        certificates: Vec<Identity> = inner(Form::List(&Form::Table(CertificateKeys::rows), 1, MAX_CERTIFICATES), identities).required(CERTIFICATES_EXAMPLE),
        /// The oldest version of TLS that is spoken.
        min_version: MinVersion = word().or("'1.2'"),
        /// Whether clients are asked for a certificate.
        client_certificates: ClientCertificatePolicy = word().or("off"),
        /// A file with the authorities of the clients' certificates.
        client_ca: Option<Option<Roots>> = inner(FILE, roots).or_nothing("none"),
    }
}

section! {
    /// One of `certificates`.
    read as CertificateKeys {
        /// A PEM file with the certificate, and those between it and its authority.
        cert: Option<Chain> = inner(FILE, |node, context| read(node, context, Chain::read))
            .required("\"cert.pem\""),
        /// A PEM file with its key.
        key: Option<PrivateKey> = inner(FILE, |node, context| read(node, context, PrivateKey::read))
            .required("\"key.pem\""),
    }
}

section! {
    /// `tls` of an upstream.
    read as UpstreamKeys {
        /// A file with the authorities of the servers' certificates; by default the machine's.
        ca: Option<Option<Roots>> = inner(FILE, roots).or_nothing("the machine's"),
        /// Whether the servers' certificates are verified.
        verify: bool = flag().or("true"),
        /// The name that the certificates have to have; by default the host of each server's address.
        server_name: Option<String> = by(SERVER_NAME, server_name, String::clone).or_nothing("the server's"),
    }
}

words! {
    /// `client_certificates`: whether clients are asked for one.
    pub(crate) enum ClientCertificatePolicy {
        /// They are not.
        Off = "off",
        /// They may show one.
        Optional = "optional",
        /// They have to show one.
        Required = "required",
    }
}

/// `tls` of a listener.
pub(super) struct ListenerTls;

impl ValueKind for ListenerTls {
    type Value = Option<ServerSettings>;

    fn read(&self, node: &Node<'_>, context: &Context<'_>) -> Result<Self::Value, Reported> {
        let mut reader = node.inner("`tls`", LISTENER_EXAMPLE)?;
        let keys = ListenerKeys::read(&mut reader, context);
        reader.done();
        let clients = clients(&keys);
        Ok(Some(ServerSettings {
            identities: keys.certificates.value?,
            min_version: keys.min_version.value?,
            clients: clients?,
            reject_unknown_sni: false,
        }))
    }

    fn show(&self, value: &Self::Value) -> String {
        value.as_ref().map_or("none", |_| "set").to_owned()
    }

    fn form(&self) -> Form {
        Form::Table(ListenerKeys::rows)
    }

    /// Where it comes or goes, `protocol` says so.
    fn compare(&self, _: &'static str, old: &Self::Value, new: &Self::Value, changes: &mut Changes) {
        if let (Some(old), Some(new)) = (old, new) {
            server(changes, old, new);
        }
    }
}

/// `tls` of an upstream. A rule between keys sets the protocol that is asked for by ALPN.
pub(super) struct UpstreamTls;

impl ValueKind for UpstreamTls {
    type Value = Option<UpstreamSettings>;

    fn read(&self, node: &Node<'_>, context: &Context<'_>) -> Result<Self::Value, Reported> {
        let (roots, server_name) = match (node.as_boolean(), node.as_table("`tls`")) {
            (Some(false), _) => return Ok(None),
            (Some(true), _) => (system_roots(node, context)?, None),
            (None, Some(mut reader)) => {
                let keys = UpstreamKeys::read(&mut reader, context);
                reader.done();
                if let (Some(false), Some(node)) = (keys.verify.get(), &keys.verify.node) {
                    let message = "`verify` = false: anybody on the way may pretend to be a server of this upstream";
                    node.warning(message, "name the authority of its certificates: tls = { ca = \"ca.pem\" }");
                    if let Some(ca) = &keys.ca.node {
                        ca.warning("`ca` has no effect: nothing is verified", "remove it, or verify = false");
                    }
                }
                let (ca, server_name) = (keys.ca.value?, keys.server_name.value?);
                let roots = match (keys.verify.value?, ca) {
                    (false, _) => None,
                    (true, Some(roots)) => roots,
                    (true, None) => system_roots(node, context)?,
                };
                (roots, server_name)
            }
            (None, None) => return Err(node.wrong_type("a boolean or a table", UPSTREAM_EXAMPLE)),
        };
        Ok(Some(UpstreamSettings { roots, server_name, alpn: Alpn::Http1 }))
    }

    fn form(&self) -> Form {
        Form::Either(&[Form::Flag, Form::Table(UpstreamKeys::rows)])
    }

    fn show(&self, value: &Self::Value) -> String {
        let shown = match value {
            None => "off",
            Some(UpstreamSettings { roots: Some(_), .. }) => "verified",
            Some(UpstreamSettings { roots: None, .. }) => "not verified",
        };
        shown.to_owned()
    }

    fn compare(&self, what: &'static str, old: &Self::Value, new: &Self::Value, changes: &mut Changes) {
        changes.value(what, &self.show(old), &self.show(new), String::clone);
        if let (Some(old), Some(new)) = (old, new) {
            // `protocol` tells of the other.
            let UpstreamSettings { roots, server_name, alpn: _ } = old;
            changes.value("server_name", server_name, &new.server_name, |name| {
                name.clone().unwrap_or_else(|| "the server's".to_owned())
            });
            other_roots(changes, "ca", roots.as_ref(), new.roots.as_ref());
        }
    }
}

pub(super) fn server_name(node: &Node<'_>, _: &Context<'_>) -> Result<String, Reported> {
    let text = node.string("a name in quotes", "\"app.internal\"")?;
    if is_server_name(text) {
        return Ok(text.to_ascii_lowercase());
    }
    let help = "write a DNS name or an IP address, without a port: server_name = \"app.internal\"";
    Err(node.error(format!("invalid certificate name {}", quoted(text)), help))
}

fn clients(keys: &ListenerKeys<'_>) -> Result<ClientCertificates, Reported> {
    let roots = keys.client_ca.value.clone()?;
    match (keys.client_certificates.value?, roots) {
        (ClientCertificatePolicy::Off, Some(_)) => {
            let help = "add client_certificates = \"required\" or \"optional\", or remove client_ca";
            let node = keys.client_ca.node.as_ref().map(Node::on_key);
            let message = "`client_ca` has no effect: clients are not asked for certificates";
            node.map_or(Ok(ClientCertificates::Off), |node| Err(node.error(message, help)))
        }
        (asked @ (ClientCertificatePolicy::Optional | ClientCertificatePolicy::Required), None) => {
            let message = format!("`client_certificates` = \"{}\" lacks a `client_ca`", asked.word());
            let node = keys.client_certificates.node.as_ref();
            let help = "add client_ca = \"ca.pem\", the authority of the clients' certificates";
            node.map_or(Ok(ClientCertificates::Off), |node| Err(node.error(message, help)))
        }
        // An authority that is not read vouches for nobody.
        (ClientCertificatePolicy::Off, None)
        | (ClientCertificatePolicy::Optional | ClientCertificatePolicy::Required, Some(None)) => {
            Ok(ClientCertificates::Off)
        }
        (ClientCertificatePolicy::Optional, Some(Some(roots))) => Ok(ClientCertificates::Optional(roots)),
        (ClientCertificatePolicy::Required, Some(Some(roots))) => Ok(ClientCertificates::Required(roots)),
    }
}

/// The certificates of a listener; none where they are not read.
fn identities(node: &Node<'_>, context: &Context<'_>) -> Result<Vec<Identity>, Reported> {
    let items = node.array(CERTIFICATES_EXAMPLE)?;
    if items.is_empty() {
        let help = format!("name at least one: certificates = {CERTIFICATES_EXAMPLE}");
        return Err(node.error("`certificates` is empty", help));
    }
    if items.len() > MAX_CERTIFICATES {
        let message = format!("`certificates` has {} of them", items.len());
        return Err(node.error(message, format!("it takes at most {MAX_CERTIFICATES}")));
    }
    let mut served = Served { by_name: HashMap::new(), count: 0 };
    let identities = each(&items, |item| {
        let mut reader = item.inner("a certificate", "{ cert = \"cert.pem\", key = \"key.pem\" }")?;
        let keys = CertificateKeys::read(&mut reader, context);
        reader.done();
        if let (Some(Some(chain)), Some(node)) = (keys.cert.get(), &keys.cert.node) {
            judge(node, chain.validity(), context.files.certificates());
        }
        let (Some(chain), Some(key)) = (keys.cert.value?, keys.key.value?) else { return Ok(None) };
        let identity = Identity::new(chain, &key);
        let place = keys.key.node.as_ref().unwrap_or(item);
        let identity = identity.map_err(|error| report(place, &error))?;
        served.note(&identity, keys.cert.node.as_ref().unwrap_or(item));
        Ok(Some(identity))
    })?;
    Ok(identities.into_iter().flatten().collect())
}

/// Reports a certificate that is not valid now, or not for long.
fn judge(node: &Node<'_>, validity: Validity, certificates: Certificates) {
    let (Certificates::Strict(now) | Certificates::Lenient(now)) = certificates else { return };
    let text = quoted(node.as_text().unwrap_or_default());
    let (message, help) = match validity.at(now) {
        CertificateStatus::Valid => return,
        CertificateStatus::Ending => {
            let message = format!("the certificate {text} expires on {}", validity.until());
            node.push(
                Finding::warning(node.span(), message).help("renew it: in less than two weeks clients refuse it"),
            );
            return;
        }
        CertificateStatus::Early => (
            format!("the certificate {text} is not valid before {}", validity.from()),
            "until then clients refuse it; see whether the machine's clock is right (date -u)",
        ),
        CertificateStatus::Expired => {
            let help = match certificates {
                Certificates::Strict(_) => "renew it: `sluicegate run` starts with it, and clients refuse it",
                _ => "renew it: clients refuse it",
            };
            (format!("the certificate {text} has expired on {}", validity.until()), help)
        }
    };
    let finding = match certificates {
        Certificates::Strict(_) => Finding::error(node.span(), message),
        _ => Finding::warning(node.span(), message),
    };
    node.push(finding.help(help));
}

/// The names that the certificates of a listener serve.
struct Served {
    by_name: HashMap<Box<str>, Range<usize>>,
    count: usize,
}

impl Served {
    /// Warns of names that an earlier certificate serves, and of a certificate that serves nobody.
    fn note(&mut self, identity: &Identity, node: &Node<'_>) {
        self.count += 1;
        let mut taken: Option<(&str, Range<usize>)> = None;
        for name in identity.names() {
            match self.by_name.get(name) {
                Some(first) if *first != node.span() => drop(taken.get_or_insert((name, first.clone()))),
                Some(_) => {}
                None => drop(self.by_name.insert(name.clone(), node.span())),
            }
        }
        if let Some((name, first)) = taken {
            let message = format!("an earlier certificate is for {} too, and serves it", quoted(name));
            let finding = Finding::warning(node.span(), message).related("the earlier one is at", first);
            node.push(finding.help("remove one, or put the one that shall serve it first"));
        }
        if identity.names().is_empty() && self.count > 1 {
            warn_of_nobody(node);
        }
    }
}

/// Warns of certificates that are for no name, where clients without a known name get none: `reject_unknown_sni`.
pub(super) fn warn_of_rejection(tls: &Node<'_>, settings: &ServerSettings) {
    // Of several, those have been told of.
    if let [only] = &settings.identities[..]
        && only.names().is_empty()
        && let Some(mut tls) = tls.as_table("`tls`")
        && let Some(certificates) = tls.optional("certificates")
        && let Some(mut first) = certificates.one_or_many().first().and_then(|first| first.as_table("a certificate"))
        && let Some(node) = first.optional("cert")
    {
        warn_of_nobody(&node);
    }
}

fn warn_of_nobody(node: &Node<'_>) {
    let message = "no client is ever shown this certificate: it is for no DNS name";
    node.push(Finding::warning(node.span(), message).help("its names have to be in subjectAltName, or remove it"));
}

/// The authorities of a file; `None` where it is not read.
pub(super) fn roots(node: &Node<'_>, context: &Context<'_>) -> Result<Option<Roots>, Reported> {
    read(node, context, Roots::read)
}

/// The machine's authorities, named by `node`; `None` where they are not read.
pub(super) fn system_roots(node: &Node<'_>, context: &Context<'_>) -> Result<Option<Roots>, Reported> {
    if !context.files.certificates().are_read() {
        return Ok(None);
    }
    context.files.system_roots(|| Roots::system().map_err(|error| report(node, &error))).map(Some)
}

/// Reads the file that a value names; nothing where files are not read.
fn read<T>(
    node: &Node<'_>,
    context: &Context<'_>,
    read: impl FnOnce(&Path) -> Result<T, FileError>,
) -> Result<Option<T>, Reported> {
    let path = path(node, context)?;
    if !context.files.certificates().are_read() {
        return Ok(None);
    }
    read(&path).map(Some).map_err(|error| report(node, &error))
}

fn path(node: &Node<'_>, context: &Context<'_>) -> Result<PathBuf, Reported> {
    let text = node.string("a path in quotes", "\"cert.pem\"")?;
    if text.is_empty() || text.contains('\0') {
        return Err(node.error(format!("invalid file name {}", quoted(text)), "name a PEM file, such as \"cert.pem\""));
    }
    Ok(context.files.locate(text))
}

fn report(node: &Node<'_>, error: &FileError) -> Reported {
    let message = match node.as_text() {
        Some(text) => format!("{} = {} cannot be used: {}", node.label(), quoted(text), error.reason()),
        None => format!("{} cannot be used: {}", node.label(), error.reason()),
    };
    node.error(message, error.remedy())
}

fn server(changes: &mut Changes, old: &ServerSettings, new: &ServerSettings) {
    // The listener's key of the same name tells of the last.
    let ServerSettings { identities, min_version, clients: old_clients, reject_unknown_sni: _ } = old;
    let files = |identities: &[Identity]| identities.iter().map(file).collect::<Vec<_>>();
    changes.list("certificates", &files(identities), &files(&new.identities));
    let before: HashMap<&Path, &Identity> = identities.iter().map(|identity| (identity.file(), identity)).collect();
    for identity in &new.identities {
        if before.get(identity.file()).is_some_and(|before| *before != identity) {
            changes.note(
                "certificate",
                format!("{} changed, valid until {}", file(identity), identity.validity().until()),
            );
        }
    }
    changes.value("min_version", min_version, &new.min_version, |version| version.word());
    let (was, is) = (asked(old_clients), asked(&new.clients));
    changes.value("client_certificates", &was.0, &is.0, |word| *word);
    other_roots(changes, "client_ca", was.1, is.1);
}

fn asked(clients: &ClientCertificates) -> (&'static str, Option<&Roots>) {
    match clients {
        ClientCertificates::Off => ("off", None),
        ClientCertificates::Optional(roots) => ("optional", Some(roots)),
        ClientCertificates::Required(roots) => ("required", Some(roots)),
    }
}

/// Where they come or go, another line says so.
fn other_roots(changes: &mut Changes, what: &'static str, old: Option<&Roots>, new: Option<&Roots>) {
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        changes.note(what, "has other certificates".to_owned());
    }
}

fn file(identity: &Identity) -> String {
    identity.file().display().to_string()
}
