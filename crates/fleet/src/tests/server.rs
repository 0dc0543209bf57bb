//! A Redis of a test's own.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

/// A server that holds nothing and writes nothing to disk. It ends with this value.
pub(super) struct Server {
    child: Child,
    directory: TempDir,
}

impl Server {
    pub(super) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Started with these options too, at a socket in a directory of its own, so that no two tests meet at a port.
    pub(super) fn start_with(options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--save", "", "--appendonly", "no", "--port", "0", "--daemonize", "no"]);
        command.arg("--dir").arg(directory.path()).arg("--unixsocket").arg(directory.path().join("socket"));
        command.args(options).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("redis-server does not start ({error}): `make setup-tests` installs it on Debian as root")
        });
        let mut server = Self { child, directory };
        let is_up = (0..2_000).any(|_| {
            assert!(server.child.try_wait().unwrap().is_none(), "redis-server has ended, started with {options:?}");
            thread::sleep(Duration::from_millis(5));
            UnixStream::connect(server.socket()).is_ok()
        });
        assert!(is_up, "redis-server does not listen");
        server
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    pub(super) fn raw(&self) -> Raw {
        Raw::connect(&self.socket())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A connection that speaks the protocol by hand, so that the tests have a client of their own.
pub(super) struct Raw {
    stream: UnixStream,
    buffer: Vec<u8>,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Nil,
    Int(i64),
    Text(String),
    Error(String),
    Array(Vec<Reply>),
}

impl Raw {
    fn connect(path: &Path) -> Self {
        Self { stream: UnixStream::connect(path).unwrap(), buffer: Vec::new() }
    }

    pub(super) fn ask(&mut self, words: &[&str]) -> Reply {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.extend(["$", &word.len().to_string(), "\r\n", word, "\r\n"]);
        }
        self.stream.write_all(request.as_bytes()).unwrap();
        self.reply()
    }

    /// A reply that has to be integers.
    pub(super) fn integers(&mut self, words: &[&str]) -> Vec<i64> {
        match self.ask(words) {
            Reply::Int(number) => vec![number],
            Reply::Array(all) => all
                .into_iter()
                .map(|one| if let Reply::Int(number) = one { number } else { panic!("{one:?} is no integer") })
                .collect(),
            other => panic!("{words:?}: {other:?}"),
        }
    }

    fn reply(&mut self) -> Reply {
        let line = self.line();
        let (kind, rest) = line.split_at(1);
        match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Int(rest.parse().unwrap()),
            "$" if rest == "-1" => Reply::Nil,
            "$" => {
                let length: usize = rest.parse().unwrap();
                let bytes = self.bytes(length + 2);
                Reply::Text(String::from_utf8(bytes[..length].to_vec()).unwrap())
            }
            "*" => Reply::Array((0..rest.parse().unwrap()).map(|_| self.reply()).collect()),
            other => panic!("a reply of the kind {other:?}"),
        }
    }

    fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                let line = self.bytes(end + 2);
                return String::from_utf8(line[..end].to_vec()).unwrap();
            }
            self.fill();
        }
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        while self.buffer.len() < count {
            self.fill();
        }
        self.buffer.drain(..count).collect()
    }

    fn fill(&mut self) {
        let mut more = [0; 8_192];
        let count = self.stream.read(&mut more).unwrap();
        assert!(count > 0, "the server has closed");
        self.buffer.extend_from_slice(&more[..count]);
    }
}
