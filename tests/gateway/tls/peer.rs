//! Both ends of TLS as the tests speak it.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::{fs, thread};

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use rustls::{SideData, SupportedProtocolVersion};

use crate::support::{Answer, Gateway, PATIENCE, read_answer, read_body, read_head};
use crate::wire::Message;

pub const BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

/// An authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
    der: CertificateDer<'static>,
}

/// A certificate and its key.
pub struct Made {
    pub pem: String,
    pub der: CertificateDer<'static>,
    pub key: KeyPair,
}

/// The parameters that all certificates have in common: names, and the year's first day until which they are valid.
pub fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params
}

/// A certificate that has signed itself.
pub fn self_signed(params: &CertificateParams) -> Made {
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    Made { pem: certificate.pem(), der: certificate.der().clone(), key }
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let made = self_signed(&params);
        Self { issuer: Issuer::new(params, made.key), pem: made.pem, der: made.der }
    }

    pub fn sign(&self, params: &CertificateParams) -> Made {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Made { pem: certificate.pem(), der: certificate.der().clone(), key }
    }

    pub fn server(&self, names: &[&str]) -> Made {
        self.sign(&params(names))
    }

    pub fn client(&self, name: &str) -> Made {
        let mut params = params(&[]);
        params.distinguished_name.push(DnType::CommonName, name);
        self.sign(&params)
    }

    pub fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).unwrap();
        roots
    }
}

impl Made {
    /// Writes `NAME.pem` and `NAME-key.pem`.
    pub fn write(&self, directory: &Path, name: &str) {
        fs::write(directory.join(format!("{name}.pem")), &self.pem).unwrap();
        fs::write(directory.join(format!("{name}-key.pem")), self.key.serialize_pem()).unwrap();
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::try_from(self.key.serialize_der()).unwrap()
    }
}

/// How a client shakes hands.
pub struct Asking<'a> {
    pub roots: RootCertStore,
    pub versions: &'a [&'static SupportedProtocolVersion],
    pub alpn: &'a [&'a str],
    pub shows: Option<&'a Made>,
}

impl<'a> Asking<'a> {
    pub fn of(authority: &Authority) -> Self {
        Self { roots: authority.roots(), versions: &BOTH, alpn: &["http/1.1"], shows: None }
    }

    pub fn versions(self, versions: &'a [&'static SupportedProtocolVersion]) -> Self {
        Self { versions, ..self }
    }

    pub fn alpn(self, alpn: &'a [&'a str]) -> Self {
        Self { alpn, ..self }
    }

    pub fn build(self) -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(self.versions).unwrap();
        let builder = builder.with_root_certificates(self.roots);
        let mut config = match self.shows {
            Some(made) => builder.with_client_auth_cert(vec![made.der.clone()], made.key()).unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = self.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    /// One that never resumes.
    pub fn forgetful(self) -> Arc<ClientConfig> {
        let mut config = Arc::unwrap_or_clone(self.build());
        config.resumption = Resumption::disabled();
        Arc::new(config)
    }
}

/// One end of a connection over TLS.
pub struct End<C>
where
    StreamOwned<C, TcpStream>: Read,
{
    pub reader: BufReader<StreamOwned<C, TcpStream>>,
}

/// A client's end.
pub type Tls = End<ClientConnection>;

/// A server's end.
pub type Served = End<ServerConnection>;

impl Tls {
    /// Connects and shakes hands. In TLS 1.3 the client is done before the server has said what it thinks of it.
    pub fn try_open(address: SocketAddr, config: &Arc<ClientConfig>, name: &str) -> io::Result<Self> {
        Self::over(TcpStream::connect(address)?, config, name)
    }

    /// The same over a connection on which something else may have been said before.
    pub fn over(tcp: TcpStream, config: &Arc<ClientConfig>, name: &str) -> io::Result<Self> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        Self::shake(tcp, ClientConnection::new(Arc::clone(config), name).unwrap())
    }

    pub fn open(address: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        Self::try_open(address, config, "localhost").unwrap_or_else(|error| panic!("no handshake: {error}"))
    }

    pub fn try_get(&mut self, target: &str) -> io::Result<Answer> {
        self.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n"))?;
        self.answer()
    }

    pub fn get(&mut self, target: &str) -> Answer {
        self.try_get(target).unwrap_or_else(|error| panic!("no answer to {target}: {error}"))
    }

    pub fn answer(&mut self) -> io::Result<Answer> {
        read_answer(&mut self.reader, false)
    }

    /// The certificate that was shown.
    pub fn shown(&self) -> CertificateDer<'static> {
        self.reader.get_ref().conn.peer_certificates().unwrap()[0].clone().into_owned()
    }
}

impl Served {
    pub fn request(&mut self) -> io::Result<Message> {
        let (line, headers) = read_head(&mut self.reader)?;
        let body = read_body(&mut self.reader, &headers, false)?;
        Ok(Message { line, headers, body, ..Message::default() })
    }

    /// Answers every request with this connection's number and the target, until the client ends.
    pub fn tell(&mut self, number: usize) {
        while let Ok(request) = self.request() {
            if self.send(crate::wire::ok(&format!("{number} {}", request.target()))).is_err() {
                return;
            }
        }
    }
}

impl<C, S> End<C>
where
    C: std::ops::DerefMut<Target = rustls::ConnectionCommon<S>>,
    S: SideData,
{
    fn shake(tcp: TcpStream, connection: C) -> io::Result<Self> {
        tcp.set_read_timeout(Some(PATIENCE))?;
        tcp.set_nodelay(true)?;
        let mut stream = StreamOwned::new(connection, tcp);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Self { reader: BufReader::with_capacity(64 << 10, stream) })
    }

    /// Sends each of these in a record of its own, all in one write.
    pub fn send_at_once(&mut self, records: &[&str]) {
        let session = self.session();
        for record in records {
            session.writer().write_all(record.as_bytes()).unwrap();
        }
        let mut all = Vec::new();
        while session.wants_write() {
            session.write_tls(&mut all).unwrap();
        }
        self.tcp().write_all(&all).unwrap();
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes.as_ref())?;
        self.reader.get_mut().flush()
    }

    pub fn session(&mut self) -> &mut C {
        &mut self.reader.get_mut().conn
    }

    pub fn tcp(&self) -> &TcpStream {
        &self.reader.get_ref().sock
    }

    /// Sends no more, by `close_notify` alone.
    pub fn finish(&mut self) {
        let stream = self.reader.get_mut();
        stream.conn.send_close_notify();
        stream.flush().unwrap();
    }

    /// Ends the connection without `close_notify`.
    pub fn cut(&self) {
        // The other side may have been quicker.
        drop(self.tcp().shutdown(Shutdown::Both));
    }

    /// Ends the connection by a reset.
    pub fn reset(self) {
        socket2::SockRef::from(self.tcp()).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    }

    /// The bytes before an end by `close_notify`; any other end is an error.
    pub fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut rest = Vec::new();
        self.reader.read_to_end(&mut rest)?;
        Ok(rest)
    }
}

/// A server over TLS; each connection is given to the test's script, with its number from 1.
pub struct Backend {
    pub address: SocketAddr,
    pub accepted: Arc<AtomicUsize>,
    /// The name that each client has asked for.
    pub asked: Arc<Mutex<Vec<Option<String>>>>,
}

impl Backend {
    pub fn start(config: Arc<ServerConfig>, script: impl Fn(&mut Served, usize) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (accepted, asked) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (count, names, script) = (Arc::clone(&accepted), Arc::clone(&asked), Arc::new(script));
        thread::spawn(move || {
            for tcp in listener.incoming() {
                let Ok(tcp) = tcp else { return };
                let number = count.fetch_add(1, Ordering::SeqCst) + 1;
                let (config, names, script) = (Arc::clone(&config), Arc::clone(&names), Arc::clone(&script));
                thread::spawn(move || {
                    let Ok(mut served) = Served::shake(tcp, ServerConnection::new(config).unwrap()) else { return };
                    let name = served.session().server_name().map(str::to_owned);
                    names.lock().unwrap().push(name);
                    script(&mut served, number);
                });
            }
        });
        Self { address, accepted, asked }
    }

    /// Tells connections and targets, see [`Served::tell`].
    pub fn telling(made: &Made) -> Self {
        Self::start(serving(made, &[]), Served::tell)
    }

    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// How a server of the test's own shakes hands.
pub fn serving(made: &Made, alpn: &[&str]) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&BOTH).unwrap();
    // Unlike with_single_cert it does not ask whether the key fits: a thief's does not.
    let key = rustls::crypto::aws_lc_rs::default_provider().key_provider.load_private_key(made.key()).unwrap();
    let certified = SingleCertAndKey::from(CertifiedKey::new(vec![made.der.clone()], key));
    let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(certified));
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// A gateway whose listeners are the test's, with its files in its directory.
pub fn gateway(files: impl FnOnce(&Path), configuration: &str) -> Gateway {
    let directory = tempfile::tempdir().unwrap();
    files(directory.path());
    let whole = format!("{configuration}\n[admin]\naddress = \"127.0.0.1:0\"\n");
    Gateway::start_in(directory, &whole)
}

/// An https listener with `cert.pem`; `more` goes into its `tls`, with a comma before it.
pub fn https(more: &str) -> String {
    format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"https\"\n\
         tls = {{ certificates = [{{ cert = \"cert.pem\", key = \"cert-key.pem\" }}]{more} }}\n"
    )
}

/// A route that the gateway answers.
pub const LOCAL: &str = "[[route]]\nname = \"local\"\nrespond = { status = 200, body = \"local\\n\" }\n";

/// A route to a server inside the gateway.
pub const ECHO: &str = "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
                        [[route]]\nname = \"all\"\nupstream = \"app\"\n";

/// A gateway with one certificate, for `localhost`, on one worker.
pub fn front(authority: &Authority, server: &str, rules: &str) -> Gateway {
    let made = authority.server(&["localhost"]);
    gateway(
        |directory| made.write(directory, "cert"),
        &format!("{}[server]\nworkers = 1\n{server}\n{rules}", https("")),
    )
}

/// Waits until handshakes have ended so often with this result.
pub fn wait_handshakes(gateway: &Gateway, result: &str, count: usize) {
    gateway.wait_metric("sluicegate_tls_handshakes_total", &[&format!("result=\"{result}\"")], count as f64);
}
