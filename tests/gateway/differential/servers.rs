//! The real servers, and how they write down what they read.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::{REFUSED, Seen};
use crate::support::Program;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Nginx,
    Haproxy,
    Gunicorn,
}

pub struct Server {
    pub kind: Kind,
    program: Program,
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

    fn configure(self, command: &mut Command, directory: &Path, address: SocketAddr) {
        let address = address.to_string();
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
    }

    /// The file of its directory into which it writes the requests that it reads.
    fn log(self) -> &'static str {
        if self == Self::Haproxy { "stdout.log" } else { "seen.log" }
    }
}

impl Server {
    pub fn start(kind: Kind) -> Self {
        let configure = |command: &mut Command, directory: &Path, address| kind.configure(command, directory, address);
        Self { kind, program: Program::start(kind.program(), configure) }
    }

    pub fn address(&self) -> SocketAddr {
        self.program.address
    }

    /// The requests that it has read on each connection, by the client's port, in order.
    pub fn seen(&self) -> BTreeMap<u16, Vec<Seen>> {
        let text = fs::read(self.program.directory.path().join(self.kind.log())).unwrap_or_default();
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
