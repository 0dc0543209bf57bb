//! The servers: real ones, on a port of their own, ended when they are dropped.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{REFUSED, Seen};
use crate::support::PATIENCE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Nginx,
    Haproxy,
    Gunicorn,
}

pub struct Server {
    pub kind: Kind,
    pub address: SocketAddr,
    child: Child,
    directory: TempDir,
}

/// The outer server reads the whole body and hands it to the inner one, whose answer says how long it was.
const NGINX: &str = "
daemon off;
master_process off;
worker_processes 1;
pid nginx.pid;
error_log nginx-error.log warn;
events { worker_connections 512; }
http {
    log_format seen escape=json
        '[\"$remote_port\",\"$request_method\",\"$request_uri\",\"$http_x_request_id\",\"$upstream_http_x_length\",\"$status\"]';
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    keepalive_requests 1000000;
    keepalive_timeout 600s;
    underscores_in_headers on;
    ignore_invalid_headers off;
    server {
        listen @PORT@;
        access_log seen.log seen;
        client_max_body_size 0;
        location / { proxy_pass http://unix:@DIRECTORY@/inner.sock:; }
        location = /inner { return 404; }
    }
    server {
        listen unix:@DIRECTORY@/inner.sock;
        access_log off;
        client_max_body_size 0;
        location / { add_header X-Length $content_length always; return 200 $content_length; }
    }
}
";

const HAPROXY: &str = "
global
    log stdout len 65535 format raw local0
    tune.http.logurilen 32768
defaults
    mode http
    log global
    timeout client 600s
    timeout server 10s
    timeout connect 10s
    timeout http-request 600s
    timeout http-keep-alive 600s
    option dontlognull
frontend all
    bind @PORT@
    option http-buffer-request
    http-request set-var(txn.length) req.body_len
    http-request capture req.hdr(x-request-id) len 64
    log-format \"[\\\"%cp\\\",\\\"%[capture.req.method]\\\",\\\"%HU\\\",\\\"%[capture.req.hdr(0)]\\\",\\\"%[var(txn.length)]\\\",\\\"%ST\\\"]\"
    http-request return status 200 content-type text/plain lf-string %[var(txn.length)]
";

const GUNICORN: &str = "
import json, os
log = os.open('seen.log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def app(environ, start):
    body = environ['wsgi.input'].read()
    seen = [environ['REMOTE_PORT'], environ['REQUEST_METHOD'], environ['RAW_URI'],
            environ.get('HTTP_X_REQUEST_ID', ''), str(len(body)), '200']
    os.write(log, (json.dumps(seen) + '\\n').encode())
    start('200 OK', [('Content-Type', 'text/plain'), ('Content-Length', '2')])
    return [] if environ['REQUEST_METHOD'] == 'HEAD' else [b'ok']
";

impl Kind {
    fn program(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Gunicorn => "gunicorn",
        }
    }

    /// Where it lies. A test that needs it fails without it: nobody is to take it for passed.
    fn path(self) -> PathBuf {
        let name = self.program();
        let path = std::env::var("PATH").unwrap_or_default();
        let known = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
        let places = path.split(':').chain(known).map(|place| Path::new(place).join(name));
        places.into_iter().find(|path| path.is_file()).unwrap_or_else(|| {
            panic!(
                "{name} is missing, a server that this test is about. `make setup-tests` installs it on Debian as root; \
                 else: sudo apt-get install -y nginx haproxy gunicorn"
            )
        })
    }

    fn command(self, directory: &Path, port: u16) -> Command {
        let mut command = Command::new(self.path());
        let address = format!("127.0.0.1:{port}");
        let place = directory.to_str().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.join(name);
            fs::write(&path, text.replace("@DIRECTORY@", place).replace("@PORT@", &address)).unwrap();
            path
        };
        match self {
            Self::Nginx => {
                let file = write("nginx.conf", NGINX);
                command.args(["-e", "nginx-error.log", "-p"]).arg(directory).arg("-c").arg(file);
            }
            Self::Haproxy => {
                command.args(["-db", "-f"]).arg(write("haproxy.cfg", HAPROXY));
            }
            Self::Gunicorn => {
                write("seen_app.py", GUNICORN);
                command.args([
                    "--bind",
                    &address,
                    "--worker-class",
                    "gthread",
                    "--threads",
                    "32",
                    "--keep-alive",
                    "600",
                ]);
                command.args(["--workers", "1", "--timeout", "600", "seen_app:app"]);
            }
        }
        command.current_dir(directory);
        command
    }
}

impl Server {
    pub fn start(kind: Kind) -> Self {
        let deadline = Instant::now() + PATIENCE;
        let directory = tempfile::tempdir().unwrap();
        loop {
            // Another process may take the port in between: then this one ends, and gets another.
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let output = |name: &str| File::create(directory.path().join(name)).unwrap();
            let stdout = output(if kind == Kind::Haproxy { "seen.log" } else { "stdout.log" });
            let mut command = kind.command(directory.path(), port);
            let mut child = command.stdin(Stdio::null()).stdout(stdout).stderr(output("stderr.log")).spawn().unwrap();
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            loop {
                if child.try_wait().unwrap().is_some() {
                    break;
                }
                if TcpStream::connect(address).is_ok() && child.try_wait().unwrap().is_none() {
                    return Self { kind, address, child, directory };
                }
                assert!(Instant::now() < deadline, "{kind:?} does not start: {}", said(directory.path()));
                thread::sleep(Duration::from_millis(10));
            }
            assert!(Instant::now() < deadline, "{kind:?} does not start: {}", said(directory.path()));
        }
    }

    /// The requests that it has read on each connection, by the client's port, in order.
    pub fn seen(&self) -> BTreeMap<u16, Vec<Seen>> {
        let text = fs::read(self.directory.path().join("seen.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let mut seen = BTreeMap::<u16, Vec<Seen>>::new();
        for line in text.lines().filter(|line| line.starts_with('[')) {
            let Ok([port, method, target, id, length, status]) = serde_json::from_str::<[String; 6]>(line) else {
                panic!("{:?} has logged {line:?}", self.kind);
            };
            let method = if status == "200" { method } else { format!("{method}{REFUSED}{status}") };
            let length = length.parse().unwrap_or(0);
            seen.entry(port.parse().unwrap()).or_default().push(Seen { method, target, id, length });
        }
        seen
    }
}

fn said(directory: &Path) -> String {
    ["stderr.log", "stdout.log", "nginx-error.log", "seen.log"]
        .map(|name| fs::read_to_string(directory.join(name)).unwrap_or_default())
        .concat()
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status());
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
