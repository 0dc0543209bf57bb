//! The connection over TLS, against real servers and against peers that speak none. Each fault has its exact message.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::thread;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio::time::timeout;

use super::server::Server;
use super::store::{at, block_on, outcome};
use crate::store::{Store, StoreEndpoint, StoreError};
use sluicegate_tls::{Alpn, Roots, UpstreamSettings};

/// An authority, and files of what it has signed.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    directory: TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        let (key, directory) = (KeyPair::generate().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(directory.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { issuer: Issuer::new(params, key), directory }
    }

    fn roots(&self) -> Roots {
        Roots::read(&self.directory.path().join("ca.pem")).unwrap()
    }

    /// A store over TLS whose certificate is for this name, until 2020 if it `has_expired`; and the port for it.
    fn store(&self, name: &str, has_expired: bool, options: &[&str]) -> (Server, SocketAddr) {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        if has_expired {
            (params.not_before, params.not_after) =
                (rcgen::date_time_ymd(2019, 1, 1), rcgen::date_time_ymd(2020, 1, 1));
        }
        let key = KeyPair::generate().unwrap();
        let file = |name: &str, text: String| {
            let path = self.directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let certificate = file("cert.pem", params.signed_by(&key, &self.issuer).unwrap().pem());
        let (key, ca) = (file("key.pem", key.serialize_pem()), self.directory.path().join("ca.pem"));
        let address = free();
        let port = address.port().to_string();
        let [certificate, key, ca] = [&certificate, &key, &ca].map(|path: &std::path::PathBuf| text(path));
        let tls = ["--tls-port", &port, "--bind", "127.0.0.1", "--tls-cert-file", certificate, "--tls-key-file", key];
        let more = ["--tls-ca-cert-file", ca, "--tls-auth-clients", "no"];
        (Server::start_with(&[&tls[..], &more, options].concat()), address)
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// An address where nobody listens.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// As `rediss://` with these authorities.
fn over_tls(address: SocketAddr, roots: Roots, server_name: Option<&str>) -> StoreEndpoint {
    let server_name = server_name.map(str::to_owned);
    StoreEndpoint {
        tls: Some(UpstreamSettings { roots: Some(roots), server_name, alpn: Alpn::Nothing }),
        ..at(address)
    }
}

fn error_of(endpoint: &StoreEndpoint) -> StoreError {
    let error = block_on(outcome(endpoint)).unwrap_err();
    assert!(error.needs_connection(), "{error:?}");
    error
}

/// Of one that says nothing.
fn silence_of(endpoint: &StoreEndpoint) -> StoreError {
    let ended = block_on(Store::connect_within(endpoint, Duration::from_millis(50)));
    ended.map(|_| ()).unwrap_err()
}

const UNKNOWN: &str = "there is no TLS with the store of [fleet]: no authority that is trusted here has signed the \
                       server's certificate; name the file of the one that has, or of the certificate itself, as `ca`";
const SPEAKS_NONE: &str = "the store does not speak TLS on this port: let [fleet] store name its port for TLS \
                           (tls-port), or begin with redis://";

#[test]
fn a_store_whose_certificate_the_authority_vouches_for_is_used() {
    let authority = Authority::new();
    let (server, address) = authority.store("127.0.0.1", false, &["--requirepass", "right"]);
    let mut endpoint = over_tls(address, authority.roots(), None);
    assert!(matches!(error_of(&endpoint), StoreError::NoPassword));
    endpoint.password = Some("right".to_owned());
    assert_eq!(block_on(outcome(&endpoint)).unwrap(), 4);
    endpoint.database = 1;
    assert_eq!(block_on(outcome(&endpoint)).unwrap(), 4);
    let mut raw = server.raw();
    raw.ask(&["AUTH", "right"]);
    assert_eq!(raw.integers(&["EXISTS", "sluicegate:x"]), [1], "it is this store");
    // By the certificate itself, as `openssl req -x509` makes one.
    let itself = Roots::read(&authority.directory.path().join("cert.pem")).unwrap();
    assert_eq!(
        block_on(outcome(&StoreEndpoint { password: Some("right".to_owned()), ..over_tls(address, itself, None) }))
            .unwrap(),
        3
    );
    // TLS 1.2, too.
    let (_server, address) = authority.store("127.0.0.1", false, &["--tls-protocols", "TLSv1.2"]);
    assert_eq!(block_on(outcome(&over_tls(address, authority.roots(), None))).unwrap(), 4);
}

#[test]
fn another_authority_or_name_and_an_expired_certificate_are_told() {
    let authority = Authority::new();
    let (_server, address) = authority.store("redis.internal", false, &[]);
    for roots in [Authority::new().roots(), Roots::system().unwrap()] {
        assert_eq!(error_of(&over_tls(address, roots, Some("redis.internal"))).to_string(), UNKNOWN);
    }
    let error = error_of(&over_tls(address, Roots::none(), Some("redis.internal"))).to_string();
    assert!(error.starts_with("there is no TLS with the store of [fleet]: "), "{error}");
    for (name, expected) in [(None, "127.0.0.1"), (Some("redis.example"), "redis.example")] {
        let message = format!(
            "there is no TLS with the store of [fleet]: the server's certificate is not for {expected} but for \
             redis.internal; set `server_name` to a name that it is for"
        );
        assert_eq!(error_of(&over_tls(address, authority.roots(), name)).to_string(), message);
    }
    assert_eq!(block_on(outcome(&over_tls(address, authority.roots(), Some("redis.internal")))).unwrap(), 4);

    let (_server, address) = authority.store("127.0.0.1", true, &[]);
    let message = "there is no TLS with the store of [fleet]: the server's certificate, or an authority's, has expired on \
                   2020-01-01 00:00:00 UTC; renew it";
    assert_eq!(error_of(&over_tls(address, authority.roots(), None)).to_string(), message);
}

#[test]
fn a_store_without_tls_and_one_with_it_are_told_apart() {
    let authority = Authority::new();
    let clear = free();
    let (_server, address) = authority.store("127.0.0.1", false, &["--port", &clear.port().to_string()]);
    assert_eq!(block_on(outcome(&at(clear))).unwrap(), 4);
    // It waits for the end of a line.
    let message = "the store has not answered within 50ms where TLS begins: let [fleet] store name its port for TLS \
                   (tls-port), or begin with redis://; else check the network to it";
    assert_eq!(silence_of(&over_tls(clear, authority.roots(), None)).to_string(), message);
    // It closes without a word.
    let error = error_of(&at(address));
    let StoreError::ClosedAtOnce(why) = &error else { panic!("{error:?}") };
    let message = format!(
        "the store has closed the connection before its first answer ({why}): if that port is for TLS, let [fleet] store \
         begin with rediss://, else see the store's log"
    );
    assert_eq!(error.to_string(), message);
    // As other servers of TLS, and what stands before a store to speak it, do.
    let alert = peer(vec![21, 3, 3, 0, 2, 2, 70]);
    let message = "the store speaks TLS on this port: let [fleet] store begin with rediss://";
    assert_eq!(error_of(&at(alert)).to_string(), message);
    let http = peer(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    assert_eq!(error_of(&over_tls(http, authority.roots(), None)).to_string(), SPEAKS_NONE);
    let closes = peer(Vec::new());
    assert!(matches!(error_of(&over_tls(closes, authority.roots(), None)), StoreError::Closed(_)));
}

#[test]
fn a_store_that_wants_a_certificate_says_so() {
    let authority = Authority::new();
    let (_server, address) = authority.store("127.0.0.1", false, &["--tls-auth-clients", "yes"]);
    let message = "the store wants a certificate of the gateway, which has none: set tls-auth-clients no in the store, and \
                   let it ask for a password";
    assert_eq!(error_of(&over_tls(address, authority.roots(), None)).to_string(), message);
}

#[test]
fn no_peer_is_waited_for_longer_than_the_caller_waits() {
    let roots = Authority::new().roots();
    // One that takes connections and says nothing, and one that begins to.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for address in [silent.local_addr().unwrap(), slow(&[22, 3, 3, 0, 100, 2])] {
        let error = silence_of(&over_tls(address, roots.clone(), None));
        assert!(matches!(error, StoreError::SilentToTls { .. }), "{error:?}");
    }
    assert!(matches!(silence_of(&at(silent.local_addr().unwrap())), StoreError::Silent { .. }));
    // A caller without so much patience drops the future.
    let ended = block_on(async {
        let endpoint = over_tls(silent.local_addr().unwrap(), roots, None);
        timeout(Duration::from_millis(20), outcome(&endpoint)).await.is_err()
    });
    assert!(ended);
}

#[test]
fn whatever_a_peer_says_in_the_handshake_is_an_error() {
    let roots = Authority::new().roots();
    let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
    // Half look like a record of a handshake.
    let said = (any::<bool>(), vec(any::<u8>(), 0..200)).prop_map(|(is_record, noise)| {
        let record = [22, 3, 3, 0, noise.len() as u8, 2, 0, 0, (noise.len() as u8).saturating_sub(4)];
        [if is_record { &record[..] } else { &[] }, &noise].concat()
    });
    let done = runner.run(&said, |said| {
        let error = error_of(&over_tls(peer(said), roots.clone(), None));
        assert!(error.to_string().len() < 400, "{error}");
        Ok(())
    });
    if let Err(error) = done {
        panic!("{error}");
    }
}

/// A peer that says this to whoever speaks to it, and closes.
fn peer(says: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4_096]);
        let _ = stream.write_all(&says);
    });
    address
}

/// One that says this, and then nothing more as long as the other side waits.
fn slow(says: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(says);
        while stream.read(&mut [0; 4_096]).is_ok_and(|count| count > 0) {}
    });
    address
}
