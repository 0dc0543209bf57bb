use std::collections::HashMap;
use std::sync::Arc;

use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, ServerConfig, SupportedProtocolVersion};

use super::identity::Identity;
use super::roots::Roots;
use super::tickets::Tickets;
use super::{TlsError, provider};

/// The protocols that clients may speak in TLS, by preference (RFC 7301). Some offer the last alone.
const ALPN: [&[u8]; 3] = [b"h2", HTTP_1[0], HTTP_1[1]];
const HTTP_1: [&[u8]; 2] = [b"http/1.1", b"http/1.0"];

fn protocols(names: &[&[u8]]) -> Vec<Vec<u8>> {
    names.iter().map(|name| name.to_vec()).collect()
}

/// How a listener speaks TLS.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSettings {
    /// At least one; the first is for clients whose name none has.
    pub identities: Vec<Identity>,
    /// The oldest version that is spoken.
    pub min_version: MinVersion,
    /// Whether clients are asked who they are.
    pub clients: ClientCertificates,
    /// Clients that send no name, or one that no certificate has, get no certificate at all.
    pub reject_unknown_sni: bool,
}

words! {
    /// The oldest version that is spoken.
    pub enum MinVersion {
        /// TLS 1.2 and 1.3.
        Tls12 = "1.2",
        /// TLS 1.3 alone.
        Tls13 = "1.3",
    }
}

/// Whether clients are asked for a certificate, and who vouches for it.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientCertificates {
    /// They are not.
    Off,
    /// They may show one; one that cannot be verified ends the handshake.
    Optional(Roots),
    /// Without one there is no handshake.
    Required(Roots),
}

/// The configuration to shake hands with clients.
#[derive(Debug)]
pub struct ServerTls {
    /// Takes the cipher suite that we prefer.
    ours: Arc<ServerConfig>,
    /// Takes the one that the client prefers.
    theirs: Arc<ServerConfig>,
}

impl ServerTls {
    /// The same for those that speak HTTP/1 alone.
    pub fn for_http1(&self) -> Arc<Self> {
        let of = |config: &Arc<ServerConfig>| {
            let mut config = ServerConfig::clone(config);
            config.alpn_protocols = protocols(&HTTP_1);
            Arc::new(config)
        };
        Arc::new(Self { ours: of(&self.ours), theirs: of(&self.theirs) })
    }

    /// The configuration for a handshake, once the client has told what it can. We choose the cipher suite, unless the
    /// client would have `ChaCha20` before AES: then it has no instructions for AES, and would pay for our choice (the
    /// rule is that of Go's `crypto/tls`).
    pub fn for_client(&self, hello: &ClientHello<'_>) -> Arc<ServerConfig> {
        let known = hello.cipher_suites().iter().find_map(|suite| is_chacha(*suite));
        Arc::clone(if known == Some(true) { &self.theirs } else { &self.ours })
    }
}

/// Whether a suite is one of `ChaCha20`; `None` if it is neither that nor AES-GCM.
fn is_chacha(suite: CipherSuite) -> Option<bool> {
    use CipherSuite as Suite;
    match suite {
        Suite::TLS13_CHACHA20_POLY1305_SHA256
        | Suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
        | Suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => Some(true),
        Suite::TLS13_AES_128_GCM_SHA256
        | Suite::TLS13_AES_256_GCM_SHA384
        | Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
        | Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
        | Suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
        | Suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => Some(false),
        _ => None,
    }
}

/// Sets up TLS with clients. Sessions resume by tickets alone: nothing is kept for a client that left.
pub fn server(settings: &ServerSettings, tickets: &Tickets) -> Result<Arc<ServerTls>, TlsError> {
    let versions: &[&SupportedProtocolVersion] = match settings.min_version {
        MinVersion::Tls12 => &[&TLS13, &TLS12],
        MinVersion::Tls13 => &[&TLS13],
    };
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(versions).map_err(TlsError::Library)?;
    let verify = |roots: &Roots| WebPkiClientVerifier::builder_with_provider(Arc::clone(roots.store()), provider());
    let builder = match &settings.clients {
        ClientCertificates::Off => builder.with_no_client_auth(),
        ClientCertificates::Optional(roots) => {
            let verifier = verify(roots).allow_unauthenticated().build().map_err(TlsError::ClientRoots)?;
            builder.with_client_cert_verifier(verifier)
        }
        ClientCertificates::Required(roots) => {
            builder.with_client_cert_verifier(verify(roots).build().map_err(TlsError::ClientRoots)?)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(BySni::new(settings)?));
    config.alpn_protocols = protocols(&ALPN);
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = tickets.for_clients(&settings.clients)?;
    // One resumes a session; each further one costs an encryption and a record.
    config.send_tls13_tickets = 1;
    let theirs = config.clone();
    config.ignore_client_order = true;
    Ok(Arc::new(ServerTls { ours: Arc::new(config), theirs: Arc::new(theirs) }))
}

/// Chooses a certificate by the name that the client sends: the exact name, then a wildcard for its first label, then
/// the first certificate.
#[derive(Debug)]
struct BySni {
    exact: HashMap<Box<str>, Arc<CertifiedKey>>,
    /// By what follows `*.`.
    wildcard: HashMap<Box<str>, Arc<CertifiedKey>>,
    /// For all other clients; `None`: they are refused.
    default: Option<Arc<CertifiedKey>>,
}

impl BySni {
    fn new(settings: &ServerSettings) -> Result<Self, TlsError> {
        let first = settings.identities.first().ok_or(TlsError::NoCertificate)?;
        let default = (!settings.reject_unknown_sni).then(|| Arc::clone(first.certified()));
        let mut this = Self { exact: HashMap::new(), wildcard: HashMap::new(), default };
        for identity in &settings.identities {
            for name in identity.names() {
                let (names, name) = match name.strip_prefix("*.") {
                    Some(parent) => (&mut this.wildcard, parent),
                    None => (&mut this.exact, &**name),
                };
                // Of several with one name the first serves.
                names.entry(name.into()).or_insert_with(|| Arc::clone(identity.certified()));
            }
        }
        Ok(this)
    }

    /// `name` is in lower case.
    fn choose(&self, name: Option<&str>) -> Option<&Arc<CertifiedKey>> {
        let named = name.and_then(|name| {
            let by_wildcard = || self.wildcard.get(name.split_once('.')?.1);
            self.exact.get(name).or_else(by_wildcard)
        });
        named.or(self.default.as_ref())
    }
}

impl ResolvesServerCert for BySni {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(|name| name.trim_end_matches('.').to_ascii_lowercase());
        self.choose(name.as_deref()).cloned()
    }
}
