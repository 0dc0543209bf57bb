use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::server::Acceptor;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, ProtocolVersion, RootCertStore, ServerConfig};
use rustls::{ServerConnection, SupportedProtocolVersion};

use super::*;

/// An authority of the test's own.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its key in PEM.
struct Made {
    cert: String,
    key: KeyPair,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn sign(&self, params: &CertificateParams) -> Made {
        let key = KeyPair::generate().unwrap();
        Made { cert: params.signed_by(&key, &self.issuer).unwrap().pem(), key }
    }

    fn server(&self, names: &[&str]) -> Made {
        self.sign(&params(names))
    }

    fn client(&self, name: &str) -> Made {
        let mut params = params(&[]);
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, "Example, Inc.");
        self.sign(&params)
    }
}

fn params(names: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
}

/// A directory with files in it.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn identity(&self, made: &Made) -> Identity {
        Identity::load(&self.write("c.pem", &made.cert), &self.write("k.pem", made.key.serialize_pem())).unwrap()
    }

    fn roots(&self, authority: &Authority) -> Roots {
        Roots::read(&self.write("ca.pem", &authority.pem)).unwrap()
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    // 64 columns, as every writer of PEM does it.
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for triple in der.chunks(3) {
        let bits = triple.iter().chain(&[0, 0]).take(3).fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place > triple.len() { '=' } else { char::from(digit) });
        }
    }
    let lines: Vec<_> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// The key inside a PKCS#8 key: PKCS#1 or SEC1. It is the last octet string but for what may follow it.
fn inside(pkcs8: &[u8]) -> Vec<u8> {
    use x509_cert::der::{Decode, Reader, SliceReader, asn1::OctetStringRef};
    let mut reader = SliceReader::new(pkcs8).unwrap();
    let inner = reader.sequence(|reader| {
        let _version = u8::decode(reader)?;
        let _algorithm = x509_cert::der::AnyRef::decode(reader)?;
        let key = OctetStringRef::decode(reader)?.as_bytes().to_vec();
        while !reader.is_finished() {
            let _more = x509_cert::der::AnyRef::decode(reader)?;
        }
        Ok(key)
    });
    inner.unwrap()
}

#[test]
fn keys_of_every_form_are_read() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    for (algorithm, label) in [
        (&rcgen::PKCS_ECDSA_P256_SHA256, Some("EC PRIVATE KEY")),
        (&rcgen::PKCS_ECDSA_P384_SHA384, None),
        (&rcgen::PKCS_RSA_SHA256, Some("RSA PRIVATE KEY")),
        (&rcgen::PKCS_ED25519, None),
    ] {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let cert = params(&["a.example"]).signed_by(&key, &authority.issuer).unwrap().pem();
        let cert_file = files.write("cert.pem", &cert);
        let whole = Identity::load(&cert_file, &files.write("key.pem", key.serialize_pem())).unwrap();
        if let Some(label) = label {
            let other = files.write("other.pem", pem(label, &inside(key.serialized_der())));
            assert_eq!(Identity::load(&cert_file, &other).unwrap().names(), whole.names(), "{label}");
        }
        let both = files.write("both.pem", format!("{}{cert}", key.serialize_pem()));
        assert_eq!(Identity::load(&both, &both).unwrap(), whole, "one file may have both");
    }
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_remedy() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let made = authority.server(&["a.example"]);
    let (cert, key) = (files.write("cert.pem", &made.cert), files.write("key.pem", made.key.serialize_pem()));
    let other = files.write("other.pem", KeyPair::generate().unwrap().serialize_pem());
    let encrypted = files.write("encrypted.pem", pem("ENCRYPTED PRIVATE KEY", b"secret"));
    let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n\
               -----END RSA PRIVATE KEY-----\n";
    let old = files.write("old.pem", old);
    let der = files.write("cert.der", b"0\x82\x01\x02\x03");
    let cut = files.write("cut.pem", &made.cert[..made.cert.len() / 2]);
    let csr = files.write("csr.pem", pem("CERTIFICATE REQUEST", b"x"));
    let public = files.write("public.pem", pem("PUBLIC KEY", b"x"));
    let junk = files.write("junk.pem", pem("CERTIFICATE", b"junk"));
    let tail = files.write("tail.pem", format!("{}{}", made.cert, pem("CERTIFICATE", b"junk")));
    let junk_key = files.write("junk-key.pem", pem("PRIVATE KEY", b"junk"));
    let large = files.write("large.pem", vec![b'\n'; MAX_FILE_BYTES + 1]);
    let none = files.0.path().join("none.pem");
    let directory = files.0.path().to_owned();
    for (certificate, private_key, file, reason, remedy) in [
        (&none, &key, &none, "there is no such file", "relative paths"),
        (&cert, &none, &none, "there is no such file", "relative paths"),
        (&directory, &key, &directory, "it is not a regular file", "regular"),
        (&large, &key, &large, "it is larger than 1 MiB", "nothing but"),
        (&der, &key, &der, "it has no PEM section (-----BEGIN ...-----)", "openssl x509 -inform der"),
        (&cert, &der, &der, "it has no PEM section (-----BEGIN ...-----)", "openssl pkey -inform der"),
        (&cut, &key, &cut, "a PEM section in it is cut off or damaged", "copy it again"),
        (&key, &cert, &key, "it holds a key, not a certificate", "the private key is `key`"),
        (&encrypted, &key, &encrypted, "it holds a key, not a certificate", "the private key is `key`"),
        (&csr, &key, &csr, "it holds a request for a certificate, not the certificate", "sent back"),
        (&public, &key, &public, "there is no certificate in it", "fullchain.pem"),
        (&junk, &key, &junk, "its certificate number 1 is no X.509 certificate", "openssl"),
        (&tail, &key, &tail, "its certificate number 2 is no X.509 certificate", "openssl"),
        (&cert, &cert, &cert, "it holds a certificate, not a key", "the certificate is `cert`"),
        (&cert, &public, &public, "there is no private key in it", "privkey.pem"),
        (
            &cert,
            &encrypted,
            &encrypted,
            "its key is encrypted, and nobody is there to give the passphrase",
            "openssl pkey",
        ),
        (&cert, &old, &old, "its key is encrypted, and nobody is there to give the passphrase", "openssl pkey"),
        (&cert, &junk_key, &junk_key, "its key is damaged, or of a kind that TLS does not use", "RSA key"),
    ] {
        let error = Identity::load(certificate, private_key).unwrap_err();
        assert_eq!((&error.file, &*error.reason()), (file, reason));
        assert!(error.remedy().contains(remedy), "{}", error.remedy());
        assert!(error.to_string().starts_with(&file.display().to_string()), "{error}");
    }
    let error = Identity::load(&cert, &other).unwrap_err();
    assert_eq!(error.reason(), format!("it is not the key of the first certificate in {}", cert.display()));
    assert_eq!(error.file, other);
    assert_eq!(Roots::read(&junk).unwrap_err().reason(), "its certificate number 1 is no X.509 certificate");
    assert_eq!(Roots::read(&key).unwrap_err().reason(), "it holds a key, not a certificate");
}

#[test]
fn an_identity_knows_its_names_its_time_and_its_like() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let mut params = params(&["A.Example", "*.B.example", "c.example"]);
    params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
    params.distinguished_name.push(DnType::CommonName, "common.example");
    (params.not_before, params.not_after) = (rcgen::date_time_ymd(2026, 1, 1), rcgen::date_time_ymd(2026, 2, 1));
    let made = authority.sign(&params);
    let identity = files.identity(&made);
    let names: Vec<&str> = identity.names().iter().map(|name| &**name).collect();
    assert_eq!(names, ["a.example", "*.b.example", "c.example"], "no address, no common name");
    assert_eq!(identity.validity().from().to_string(), "2026-01-01 00:00:00 UTC");
    assert_eq!(identity.validity().until().to_string(), "2026-02-01 00:00:00 UTC");
    let again =
        Identity::load(&files.write("x.pem", format!("# a word\n{}", made.cert)), &files.0.path().join("k.pem"));
    assert_eq!(again.unwrap(), identity, "words around it change nothing");
    assert_ne!(files.identity(&authority.sign(&params)), identity);
    let longer = files.write("long.pem", format!("{}{}", made.cert, authority.pem));
    assert_ne!(Identity::load(&longer, &files.write("k.pem", made.key.serialize_pem())).unwrap(), identity);
    assert!(!format!("{identity:?}").contains("PRIVATE"), "{identity:?}");
}

fn settings(identities: Vec<Identity>) -> ServerSettings {
    ServerSettings {
        identities,
        min_version: MinVersion::Tls12,
        clients: ClientCertificates::Off,
        reject_unknown_sni: false,
    }
}

/// A client that trusts `authority`, and shows `own` if it is asked.
fn client(authority: &Authority, own: Option<&Made>, version: &'static SupportedProtocolVersion) -> ClientConfig {
    let files = Files::new();
    let mut roots = RootCertStore::empty();
    roots.roots.extend(files.roots(authority).store().roots.iter().cloned());
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[version]).unwrap();
    let builder = builder.with_root_certificates(roots);
    match own {
        None => builder.with_no_client_auth(),
        Some(made) => {
            let chain = identity::certificates(made.cert.as_bytes()).unwrap();
            let key = PrivateKeyDer::try_from(made.key.serialize_der()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    }
}

/// A server's side at the beginning of a handshake.
trait Serves {
    /// Of a client that begins like this.
    fn config(&self, hello: &[u8]) -> Arc<ServerConfig>;
}

impl Serves for Arc<ServerConfig> {
    fn config(&self, _: &[u8]) -> Arc<ServerConfig> {
        Arc::clone(self)
    }
}

impl Serves for Arc<ServerTls> {
    fn config(&self, mut hello: &[u8]) -> Arc<ServerConfig> {
        let mut acceptor = Acceptor::default();
        acceptor.read_tls(&mut hello).unwrap();
        let accepted = acceptor.accept().ok().flatten().expect("a whole hello");
        self.for_client(&accepted.client_hello())
    }
}

/// A whole handshake in memory, and what follows it. The first error of either side is the result.
fn shake(
    client: &Arc<ClientConfig>,
    server: &impl Serves,
    name: &str,
) -> Result<(ClientConnection, ServerConnection), rustls::Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
    let mut wire = Vec::new();
    client.write_tls(&mut wire).unwrap();
    let mut server = ServerConnection::new(server.config(&wire)).unwrap();
    for _ in 0..8 {
        client.write_tls(&mut wire).unwrap();
        let mut rest = &wire[..];
        while !rest.is_empty() {
            server.read_tls(&mut rest).unwrap();
            server.process_new_packets()?;
        }
        wire.clear();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        let mut rest = &wire[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets()?;
        }
        wire.clear();
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok((client, server))
}

#[test]
fn the_cipher_suite_is_ours_unless_the_client_would_rather_have_chacha() {
    use rustls::CipherSuite as Suite;
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let server = server(&settings(vec![files.identity(&authority.server(&["a.example"]))]), &Tickets::new()).unwrap();
    let chosen = |first: &[Suite], version: &'static SupportedProtocolVersion| {
        let mut provider = (*provider()).clone();
        provider.cipher_suites.sort_by_key(|suite| first.iter().position(|one| *one == suite.suite()).unwrap_or(9));
        let builder = ClientConfig::builder_with_provider(Arc::new(provider)).with_protocol_versions(&[version]);
        let mut roots = RootCertStore::empty();
        roots.roots.extend(files.roots(&authority).store().roots.iter().cloned());
        let client = Arc::new(builder.unwrap().with_root_certificates(roots).with_no_client_auth());
        shake(&client, &server, "a.example").unwrap().0.negotiated_cipher_suite().unwrap().suite()
    };
    let (small, large) = (Suite::TLS13_AES_128_GCM_SHA256, Suite::TLS13_AES_256_GCM_SHA384);
    let chacha = Suite::TLS13_CHACHA20_POLY1305_SHA256;
    for (first, expected) in [
        // As OpenSSL has them, as browsers do, and as a phone without instructions for AES does.
        ([large, chacha, small], small),
        ([small, large, chacha], small),
        ([chacha, small, large], chacha),
    ] {
        assert_eq!(chosen(&first, &TLS13), expected, "{first:?}");
    }
    let (small, large) =
        (Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384);
    let chacha = Suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256;
    assert_eq!(chosen(&[large, chacha, small], &TLS12), small);
    assert_eq!(chosen(&[chacha, large, small], &TLS12), chacha);
}

#[test]
fn the_name_that_a_client_asks_for_chooses_the_certificate() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let first = authority.server(&["first.example", "x.example"]);
    let second = authority.server(&["a.x.example", "*.x.example", "first.example"]);
    let identities = vec![files.identity(&first), files.identity(&second)];
    // Whether the name fits is the client's business, not this test's.
    let insecure = upstream(&UpstreamSettings { roots: None, server_name: None, alpn: Alpn::Http1 }).unwrap().config;
    let shown = |settings: &ServerSettings, name: &str| {
        let (client, _) = shake(&insecure, &server(settings, &Tickets::new()).unwrap(), name)?;
        let shown = client.peer_certificates().unwrap()[0].clone();
        let is = |made: &Made| identity::certificates(made.cert.as_bytes()).unwrap()[0] == shown;
        assert!(is(&first) != is(&second));
        Ok::<_, rustls::Error>(if is(&first) { 1 } else { 2 })
    };
    let mut settings = settings(identities);
    for (name, known, which) in [
        ("first.example", true, 1),
        ("FIRST.Example", true, 1),
        ("x.example", true, 1),
        ("a.x.example", true, 2),
        ("b.x.example", true, 2),
        ("c.b.x.example", false, 1),
        ("other.example", false, 1),
        ("example", false, 1),
        // An address is never sent as a name.
        ("127.0.0.1", false, 1),
    ] {
        settings.reject_unknown_sni = false;
        assert_eq!(shown(&settings, name).unwrap(), which, "{name}");
        settings.reject_unknown_sni = true;
        assert_eq!(shown(&settings, name).ok(), known.then_some(which), "{name}, strictly");
    }
    assert!(matches!(
        server(&ServerSettings { identities: Vec::new(), ..settings }, &Tickets::new()),
        Err(TlsError::NoCertificate)
    ));
}

const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];

#[test]
fn versions_and_protocols_are_those_that_were_chosen() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let mut settings = settings(vec![files.identity(&authority.server(&["a.example"]))]);
    let old = Arc::new(client(&authority, None, VERSIONS[0]));
    let both = server(&settings, &Tickets::new()).unwrap();
    settings.min_version = MinVersion::Tls13;
    let new = server(&settings, &Tickets::new()).unwrap();
    let version = |server| shake(&old, server, "a.example").map(|(client, _)| client.protocol_version());
    assert_eq!(version(&both), Ok(Some(ProtocolVersion::TLSv1_2)));
    assert!(version(&new).is_err());
    for (offered, agreed) in [
        (vec!["http/1.1", "h2"], Some("h2")),
        (vec!["http/1.1"], Some("http/1.1")),
        (vec!["http/1.0", "http/1.1"], Some("http/1.1")),
        (vec!["http/1.0"], Some("http/1.0")),
        (vec![], Some("")),
        (vec!["spdy/3"], None),
    ] {
        let mut client = client(&authority, None, VERSIONS[1]);
        client.alpn_protocols = offered.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let shaken = shake(&Arc::new(client), &new, "a.example");
        let got = shaken.ok().map(|(client, _)| client.alpn_protocol().unwrap_or_default().to_vec());
        assert_eq!(got.as_deref(), agreed.map(str::as_bytes), "{offered:?}");
    }
}

#[test]
fn clients_are_asked_for_certificates_as_the_listener_says() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let (known, stranger) = (Authority::new("known"), Authority::new("stranger"));
    let identity = files.identity(&authority.server(&["a.example"]));
    let roots = files.roots(&known);
    let (billing, foe) = (known.client("billing"), stranger.client("billing"));
    for version in VERSIONS {
        for (clients, own, expected) in [
            (ClientCertificates::Off, Some(&billing), Some(None)),
            (ClientCertificates::Optional(roots.clone()), None, Some(None)),
            (ClientCertificates::Optional(roots.clone()), Some(&billing), Some(Some("O=Example\\, Inc.,CN=billing"))),
            (ClientCertificates::Optional(roots.clone()), Some(&foe), None),
            (ClientCertificates::Required(roots.clone()), None, None),
            (ClientCertificates::Required(roots.clone()), Some(&billing), Some(Some("O=Example\\, Inc.,CN=billing"))),
            (ClientCertificates::Required(roots.clone()), Some(&foe), None),
        ] {
            let what = format!("{clients:?} {} {version:?}", own.is_some());
            let server = server(&ServerSettings { clients, ..settings(vec![identity.clone()]) }, &Tickets::new());
            let shaken = shake(&Arc::new(client(&authority, own, version)), &server.unwrap(), "a.example");
            let subject = shaken.ok().map(|(_, server)| {
                server.peer_certificates().map(|chain| PeerCertificate::of(&chain[0]).subject.unwrap().into_string())
            });
            assert_eq!(subject.as_ref().map(Option::as_deref), expected, "{what}");
        }
    }
}

#[test]
fn sessions_resume_after_a_reload_and_at_other_listeners_alike() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let tickets = Tickets::new();
    let build = || {
        let identity = files.identity(&authority.server(&["a.example"]));
        server(&settings(vec![identity]), &tickets).unwrap()
    };
    for version in VERSIONS {
        let client = Arc::new(client(&authority, None, version));
        let (first, second) = (build(), build());
        let kind = |server| shake(&client, server, "a.example").unwrap().1.handshake_kind().unwrap();
        assert_eq!(kind(&first), HandshakeKind::Full, "{version:?}");
        assert_eq!(kind(&first), HandshakeKind::Resumed, "{version:?}");
        assert_eq!(kind(&second), HandshakeKind::Resumed, "another certificate, {version:?}");
    }
    let client = Arc::new(client(&authority, None, VERSIONS[1]));
    let stranger = server(&settings(vec![files.identity(&authority.server(&["a.example"]))]), &Tickets::new()).unwrap();
    shake(&client, &build(), "a.example").unwrap();
    let kind = shake(&client, &stranger, "a.example").unwrap().1.handshake_kind();
    assert_eq!(kind, Some(HandshakeKind::Full), "keys of another process");
}

#[test]
fn a_session_is_not_resumed_where_clients_are_asked_otherwise() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let (one, two) = (Authority::new("one"), Authority::new("two"));
    let (roots_one, roots_two) = (files.roots(&one), files.roots(&two));
    let identity = files.identity(&authority.server(&["a.example"]));
    let tickets = Tickets::new();
    let listener = |clients| server(&ServerSettings { clients, ..settings(vec![identity.clone()]) }, &tickets).unwrap();
    let of_one = one.client("billing");
    let off = listener(ClientCertificates::Off);
    let optional_one = listener(ClientCertificates::Optional(roots_one.clone()));
    let required_one = listener(ClientCertificates::Required(roots_one.clone()));
    let optional_two = listener(ClientCertificates::Optional(roots_two.clone()));
    let required_two = listener(ClientCertificates::Required(roots_two));
    for version in VERSIONS {
        // What a client of `one` was verified for is nothing to a listener that trusts `two`.
        for (first, second) in
            [(&optional_one, &optional_two), (&optional_one, &required_two), (&required_one, &optional_two)]
        {
            let client = Arc::new(client(&authority, Some(&of_one), version));
            assert!(shake(&client, first, "a.example").is_ok());
            assert!(shake(&client, second, "a.example").is_err(), "{version:?}");
        }
        // Who has shown none where it was optional, or not asked for, gets in nowhere else by it.
        for first in [&off, &optional_one] {
            let client = Arc::new(client(&authority, None, version));
            assert!(shake(&client, first, "a.example").is_ok());
            assert!(shake(&client, &required_one, "a.example").is_err(), "{version:?}");
        }
        // Where nothing differs it resumes, and the client is who it was.
        let client = Arc::new(client(&authority, Some(&of_one), version));
        let again = listener(ClientCertificates::Required(roots_one.clone()));
        let (_, full) = shake(&client, &required_one, "a.example").unwrap();
        let (_, resumed) = shake(&client, &again, "a.example").unwrap();
        assert_eq!(resumed.handshake_kind(), Some(HandshakeKind::Resumed));
        assert_eq!(resumed.peer_certificates(), full.peer_certificates());
        assert!(resumed.peer_certificates().is_some());
    }
}

#[test]
fn keys_of_tickets_go_with_the_last_listener_that_used_them() {
    let (files, tickets) = (Files::new(), Tickets::new());
    let keys =
        |name: &str| tickets.for_clients(&ClientCertificates::Required(files.roots(&Authority::new(name)))).unwrap();
    for name in 0..20 {
        drop(keys(&name.to_string()));
    }
    let kept = keys("kept");
    let other = keys("other");
    assert!(!Arc::ptr_eq(&kept, &other));
    assert!(format!("{tickets:?}").matches("Required").count() <= 3, "{tickets:?}");
}

#[test]
fn servers_are_verified_unless_that_is_turned_off() {
    let (files, authority, stranger) = (Files::new(), Authority::new("ca"), Authority::new("stranger"));
    let settings = settings(vec![files.identity(&authority.server(&["app.internal"]))]);
    let server = server(&settings, &Tickets::new()).unwrap();
    let (roots, others) = (files.roots(&authority), files.roots(&stranger));
    let try_it = |roots: Option<&Roots>, server_name: Option<&str>| {
        let settings =
            UpstreamSettings { roots: roots.cloned(), server_name: server_name.map(str::to_owned), alpn: Alpn::Http1 };
        let UpstreamTls { config, name } = upstream(&settings).unwrap();
        let name = name.map_or("10.0.0.1".to_owned(), |name| name.to_str().into_owned());
        shake(&config, &server, &name).is_ok()
    };
    assert!(try_it(Some(&roots), Some("app.internal")));
    assert!(!try_it(Some(&roots), None), "its address is not in the certificate");
    assert!(!try_it(Some(&roots), Some("other.internal")));
    assert!(!try_it(Some(&others), Some("app.internal")));
    assert!(try_it(None, None));
    for (alpn, agreed) in [(Alpn::Http1, "http/1.1"), (Alpn::Http2, "h2")] {
        let settings = UpstreamSettings { roots: Some(roots.clone()), server_name: None, alpn };
        let config = upstream(&settings).unwrap().config;
        let (client, _) = shake(&config, &server, "app.internal").unwrap();
        assert_eq!(client.alpn_protocol(), Some(agreed.as_bytes()));
        let (_, again) = shake(&config, &server, "app.internal").unwrap();
        assert_eq!(again.handshake_kind(), Some(HandshakeKind::Resumed));
    }
    assert!(is_server_name("app.internal") && is_server_name("10.0.0.1") && is_server_name("::1"));
    assert!(!is_server_name("a b") && !is_server_name("app.internal:443") && !is_server_name(""));
}

/// A server that shows a certificate and has not its key, which even `verify = false` does not take.
#[test]
fn whoever_has_not_the_key_of_its_certificate_is_nobody() {
    #[derive(Debug)]
    struct Shows(Arc<rustls::sign::CertifiedKey>);
    impl rustls::server::ResolvesServerCert for Shows {
        fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<rustls::sign::CertifiedKey>> {
            Some(Arc::clone(&self.0))
        }
    }
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let made = authority.server(&["a.example"]);
    let (stolen, own) = (files.identity(&made), files.identity(&authority.server(&[])));
    let key = Arc::clone(&own.certified().key);
    let certified = rustls::sign::CertifiedKey::new(stolen.certified().cert.clone(), key);
    // Nor where the certificate itself is trusted, because the file of roots has it.
    let named = Roots::read(&files.write("named.pem", &made.cert)).unwrap();
    let clients = [None, Some(named)]
        .map(|roots| upstream(&UpstreamSettings { roots, server_name: None, alpn: Alpn::Http1 }).unwrap().config);
    for version in VERSIONS {
        let serve = |certified: &rustls::sign::CertifiedKey| {
            let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[version]).unwrap();
            let resolver = Shows(Arc::new(certified.clone()));
            Arc::new(builder.with_no_client_auth().with_cert_resolver(Arc::new(resolver)))
        };
        let (thief, owner) = (serve(&certified), serve(stolen.certified()));
        assert!(clients.iter().all(|client| shake(client, &thief, "a.example").is_err()), "{version:?}");
        assert!(clients.iter().all(|client| shake(client, &owner, "a.example").is_ok()), "{version:?}");
    }
}

#[test]
fn a_peer_is_its_subject_and_its_fingerprint() {
    let authority = Authority::new("ca");
    let made = authority.client("billing \"#1\"");
    let der = &identity::certificates(made.cert.as_bytes()).unwrap()[0];
    let peer = PeerCertificate::of(der);
    assert_eq!(peer.subject.as_deref(), Some("O=Example\\, Inc.,CN=billing \\\"#1\\\""));
    assert_eq!(peer.fingerprint.len(), 64);
    // sha256sum of nothing.
    let nobody = PeerCertificate::of(b"");
    assert_eq!(nobody.subject, None);
    assert_eq!(&*nobody.fingerprint, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    let unnamed = authority.server(&["a.example"]);
    let der = &identity::certificates(unnamed.cert.as_bytes()).unwrap()[0];
    assert_eq!(PeerCertificate::of(der).subject, None, "an empty subject is none");
    for (length, has) in [(900, true), (1_100, false)] {
        let long = authority.client(&"x".repeat(length));
        let der = &identity::certificates(long.cert.as_bytes()).unwrap()[0];
        assert_eq!(PeerCertificate::of(der).subject.is_some(), has, "{length}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_bytes_of_a_peer_make_it_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        static GOOD: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
            identity::certificates(Authority::new("ca").client("x").cert.as_bytes()).unwrap()[0].to_vec()
        });
        PeerCertificate::of(&bytes);
        let mut good = GOOD.clone();
        for (at, byte) in edits {
            *at.get_mut(&mut good) = byte;
        }
        let peer = PeerCertificate::of(&good);
        prop_assert!(peer.subject.is_none_or(|subject| subject.len() <= 1_024));
    }

    #[test]
    fn no_text_of_a_file_makes_it_panic(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "-----BEGIN CERTIFICATE-----\n", "-----END CERTIFICATE-----\n", "-----BEGIN PRIVATE KEY-----\n",
            "-----END PRIVATE KEY-----\n", "MIIB\n", "====\n", "-----BEGIN ", "\n", "Proc-Type: 4,ENCRYPTED\n", "\0",
        ]), 0..12),
    ) {
        let files = Files::new();
        let path = files.write("x.pem", pieces.concat());
        prop_assert!(Identity::load(&path, &path).is_err());
        drop(Roots::read(Path::new(&path)));
    }
}
