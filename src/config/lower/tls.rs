//! `tls` of `[[listener]]` and `[[upstream]]`, and the files that they name.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::config::address::ServerAddress;
use crate::config::certificates::{CertificateFiles, Certificates};
use crate::config::findings::{Finding, quoted};
use crate::config::model::{ServerSpec, UpstreamProtocol};
use crate::config::reader::{Node, Reader};
use crate::tls::{
    Alpn, Chain, ClientCertificates, FileError, Identity, MinVersion, PrivateKey, Roots, ServerSettings, Standing,
    UpstreamSettings, Validity, is_server_name,
};

/// Certificates of one listener. Each is read at start and at each reload.
const MAX_CERTIFICATES: usize = 10_000;

pub(super) const LISTENER_EXAMPLE: &str = "{ certificates = [{ cert = \"cert.pem\", key = \"key.pem\" }] }";
const CERTIFICATES_EXAMPLE: &str = "[{ cert = \"cert.pem\", key = \"key.pem\" }]";
const UPSTREAM_EXAMPLE: &str = "true or { ca = \"ca.pem\", server_name = \"app.internal\" }";

/// `tls` of a listener.
pub(super) fn listener(node: &Node<'_>, reject_unknown_sni: bool, files: &CertificateFiles) -> Option<ServerSettings> {
    let mut reader = node.table("`tls`", LISTENER_EXAMPLE)?;
    let identities = reader
        .required("certificates", CERTIFICATES_EXAMPLE)
        .and_then(|node| identities(&node, reject_unknown_sni, files));
    let min_version = reader.optional("min_version").map_or(Some(MinVersion::Tls12), |node| node.word().ok());
    let clients = clients(&mut reader, files);
    reader.done(&[]);
    Some(ServerSettings { identities: identities?, min_version: min_version?, clients: clients?, reject_unknown_sni })
}

/// `tls` of an upstream.
#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
pub(super) fn upstream(
    node: &Node<'_>,
    protocol: Option<UpstreamProtocol>,
    servers: Option<&[ServerSpec]>,
    files: &CertificateFiles,
) -> Option<Option<UpstreamSettings>> {
    let (roots, server_name) = match (node.as_boolean(), node.as_table("`tls`")) {
        (Some(false), _) => return Some(None),
        (Some(true), _) => (system_roots(node, files).map(Some), Some(None)),
        (None, Some(mut reader)) => {
            let ca_node = reader.optional("ca");
            let verify_node = reader.optional("verify");
            let verify = verify_node.as_ref().map_or(Some(true), Node::boolean);
            let server_name = reader.optional("server_name").map_or(Some(None), |node| server_name(&node).map(Some));
            reader.done(&[]);
            if let (Some(false), Some(node)) = (verify, &verify_node) {
                let message = "`verify` = false: anybody on the way may pretend to be a server of this upstream";
                node.warning(message, "name the authority of its certificates: tls = { ca = \"ca.pem\" }");
                if let Some(ca) = &ca_node {
                    ca.warning("`ca` has no effect: nothing is verified", "remove it, or verify = false");
                }
            }
            let roots = match (verify, ca_node) {
                (Some(false), _) => Some(None),
                (_, Some(node)) => roots(&node, files).map(Some),
                (_, None) => system_roots(node, files).map(Some),
            };
            verify?;
            (roots, server_name)
        }
        (None, None) => {
            node.wrong_type("a boolean or a table", UPSTREAM_EXAMPLE);
            return None;
        }
    };
    if let Some(None) = server_name {
        check_hosts(node, servers.unwrap_or_default())?;
    }
    let alpn = match protocol? {
        UpstreamProtocol::Http1 => Alpn::Http1,
        UpstreamProtocol::H2 => Alpn::Http2,
    };
    Some(Some(UpstreamSettings { roots: roots?.flatten(), server_name: server_name?, alpn }))
}

/// Reports a host that no certificate can be for.
fn check_hosts(node: &Node<'_>, servers: &[ServerSpec]) -> Option<()> {
    for server in servers {
        if let ServerAddress::Tcp { host, .. } = &server.address
            && !is_server_name(host)
        {
            let message = format!("no certificate can be for {}", quoted(host));
            node.error(message, "say what the certificate is for: tls = { server_name = \"app.internal\" }");
            return None;
        }
    }
    Some(())
}

fn server_name(node: &Node<'_>) -> Option<String> {
    let text = node.text("a name in quotes", "\"app.internal\"")?;
    if !is_server_name(text) {
        let help = "write a DNS name or an IP address, without a port: server_name = \"app.internal\"";
        node.error(format!("{} is no name of a certificate", quoted(text)), help);
        return None;
    }
    Some(text.to_ascii_lowercase())
}

/// `client_certificates` and `client_ca`.
fn clients(reader: &mut Reader<'_>, files: &CertificateFiles) -> Option<ClientCertificates> {
    #[derive(Clone, Copy)]
    enum Asked {
        Off,
        Optional,
        Required,
    }
    let asked_node = reader.optional("client_certificates");
    let words = [("off", Asked::Off), ("optional", Asked::Optional), ("required", Asked::Required)];
    let asked = asked_node.as_ref().map_or(Some(Asked::Off), |node| node.choice(&words, &[]));
    let ca_node = reader.optional("client_ca");
    let roots = ca_node.as_ref().map(|node| roots(node, files));
    match (asked?, roots) {
        (Asked::Off, Some(_)) => {
            if let Some(node) = ca_node {
                let help = "add client_certificates = \"required\" or \"optional\", or remove client_ca";
                node.on_key().error("`client_ca` has no effect: clients are not asked for certificates", help);
            }
            None
        }
        (Asked::Optional | Asked::Required, None) => {
            // A key that is there and lost its value has been reported.
            if let Some(node) = asked_node.filter(|_| !reader.has("client_ca") && !reader.has_misspelt("client_ca")) {
                let message = format!("`client_certificates` = {} lacks a `client_ca`", quoted(node.as_text()?));
                node.error(message, "add client_ca = \"ca.pem\", the authority of the clients' certificates");
            }
            None
        }
        // Who is not read vouches for nobody.
        (Asked::Off, None) | (Asked::Optional | Asked::Required, Some(Some(None))) => Some(ClientCertificates::Off),
        (Asked::Optional, Some(roots)) => Some(ClientCertificates::Optional(roots??)),
        (Asked::Required, Some(roots)) => Some(ClientCertificates::Required(roots??)),
    }
}

/// The certificates of a listener; none where they are not read.
fn identities(node: &Node<'_>, reject_unknown_sni: bool, files: &CertificateFiles) -> Option<Vec<Identity>> {
    let items = node.items(CERTIFICATES_EXAMPLE)?;
    if items.is_empty() {
        node.error("`certificates` is empty", format!("name at least one: certificates = {CERTIFICATES_EXAMPLE}"));
        return None;
    }
    if items.len() > MAX_CERTIFICATES {
        let message = format!("`certificates` has {} of them", items.len());
        node.error(message, format!("it takes at most {MAX_CERTIFICATES}"));
        return None;
    }
    let mut served = Served { by_name: HashMap::new(), count: 0, reject_unknown_sni };
    let identities = super::each(&items, |item| {
        let mut reader = item.table("a certificate", "{ cert = \"cert.pem\", key = \"key.pem\" }")?;
        let certificate = reader.required("cert", "\"cert.pem\"");
        let key = reader.required("key", "\"key.pem\"");
        reader.done(&[]);
        let identity = identity(certificate.as_ref(), key.as_ref(), files)?;
        if let (Some(identity), Some(node)) = (&identity, &certificate) {
            served.note(identity, node);
        }
        Some(identity)
    })?;
    Some(identities.into_iter().flatten().collect())
}

/// A certificate and its key. Both files are looked at before one error counts, so that all errors are reported.
#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what was read")]
fn identity(
    certificate: Option<&Node<'_>>,
    key: Option<&Node<'_>>,
    files: &CertificateFiles,
) -> Option<Option<Identity>> {
    let chain = certificate.and_then(|node| read(node, files, Chain::read));
    let private_key = key.and_then(|node| read(node, files, PrivateKey::read));
    if let (Some(Some(chain)), Some(node)) = (&chain, certificate) {
        judge(node, chain.validity(), files.certificates());
    }
    match (chain?, private_key?, key?) {
        (Some(chain), Some(private_key), node) => match Identity::new(chain, &private_key) {
            Ok(identity) => Some(Some(identity)),
            Err(error) => {
                report(node, &error);
                None
            }
        },
        _ => Some(None),
    }
}

/// Reports a certificate that is not valid now, or not for long.
fn judge(node: &Node<'_>, validity: Validity, certificates: Certificates) {
    let (Certificates::Strict(now) | Certificates::Lenient(now)) = certificates else { return };
    let text = quoted(node.as_text().unwrap_or_default());
    let (message, help) = match validity.at(now) {
        Standing::Valid => return,
        Standing::Ending => {
            let message = format!("the certificate {text} expires on {}", validity.until());
            node.push(
                Finding::warning(node.span(), message).help("renew it: in less than two weeks clients refuse it"),
            );
            return;
        }
        Standing::Early => (
            format!("the certificate {text} is not valid before {}", validity.from()),
            "until then clients refuse it; see whether the machine's clock is right (date -u)",
        ),
        Standing::Expired => {
            let help = match certificates {
                Certificates::Strict(_) => "renew it: `sluicegate run` starts with it, and clients refuse it",
                Certificates::Lenient(_) | Certificates::Unread => "renew it: clients refuse it",
            };
            (format!("the certificate {text} has expired on {}", validity.until()), help)
        }
    };
    let finding = match certificates {
        Certificates::Strict(_) => Finding::error(node.span(), message),
        Certificates::Lenient(_) | Certificates::Unread => Finding::warning(node.span(), message),
    };
    node.push(finding.help(help));
}

/// Which certificate of a listener serves which name.
struct Served {
    by_name: HashMap<Box<str>, Range<usize>>,
    count: usize,
    reject_unknown_sni: bool,
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
        if identity.names().is_empty() && (self.count > 1 || self.reject_unknown_sni) {
            let message = "no client is ever shown this certificate: it is for no DNS name";
            node.push(
                Finding::warning(node.span(), message).help("its names have to be in subjectAltName, or remove it"),
            );
        }
    }
}

/// The authorities of a file.
#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what was read")]
fn roots(node: &Node<'_>, files: &CertificateFiles) -> Option<Option<Roots>> {
    read(node, files, Roots::read)
}

/// The machine's authorities, named by `node`.
#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what was read")]
fn system_roots(node: &Node<'_>, files: &CertificateFiles) -> Option<Option<Roots>> {
    if files.certificates() == Certificates::Unread {
        return Some(None);
    }
    let roots = files.system_roots(|| Roots::system().map_err(|error| report(node, &error)).ok());
    roots.map(Some)
}

/// Reads the file that a value names; nothing where files are not read.
#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what was read")]
fn read<T>(
    node: &Node<'_>,
    files: &CertificateFiles,
    read: impl FnOnce(&Path) -> Result<T, FileError>,
) -> Option<Option<T>> {
    let path = path(node, files)?;
    if files.certificates() == Certificates::Unread {
        return Some(None);
    }
    match read(&path) {
        Ok(read) => Some(Some(read)),
        Err(error) => {
            report(node, &error);
            None
        }
    }
}

fn path(node: &Node<'_>, files: &CertificateFiles) -> Option<PathBuf> {
    let text = node.text("a path in quotes", "\"cert.pem\"")?;
    if text.is_empty() || text.contains('\0') {
        node.error(format!("{} is no file", quoted(text)), "name a PEM file, such as \"cert.pem\"");
        return None;
    }
    Some(files.locate(text))
}

fn report(node: &Node<'_>, error: &FileError) {
    let message = match node.as_text() {
        Some(text) => format!("{} = {} cannot be used: {}", node.label(), quoted(text), error.reason()),
        None => format!("{} cannot be used: {}", node.label(), error.reason()),
    };
    node.error(message, error.remedy());
}
