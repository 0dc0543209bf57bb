//! The socket that admin listens on.

use std::fs;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process;

use tokio::net;

/// The mode of a Unix socket: its owner alone may open it.
const MODE: u32 = 0o600;

/// A socket that is bound.
#[derive(Debug)]
pub enum Socket {
    /// On an IP address.
    Tcp(TcpListener),
    /// In the file system.
    Unix(UnixListener),
}

/// The file of a Unix socket. Dropping it removes the file, unless another process has taken its name.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// The name that it has until clients may come.
    draft: PathBuf,
    inode: (u64, u64),
}

pub(super) enum Listener {
    Tcp(net::TcpListener),
    Unix(net::UnixListener),
}

/// A connection that was accepted.
pub(super) enum AdminStream {
    Tcp(net::TcpStream),
    Unix(net::UnixStream),
}

impl Socket {
    /// Listens on a Unix socket, by another name until it is [published](SocketFile::publish).
    ///
    /// # Errors
    /// The name is that of a file that is no socket, or, unless it `replaces` that, of one on which a process listens.
    pub fn bind_unix(path: &Path, replaces: bool) -> io::Result<(Self, SocketFile)> {
        match fs::symlink_metadata(path) {
            Ok(known) if !known.file_type().is_socket() => {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file has this name that is no socket"));
            }
            Ok(_) if !replaces && UnixStream::connect(path).is_ok() => {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens on it"));
            }
            _ => {}
        }
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}", process::id()));
        let draft = PathBuf::from(draft);
        // One that a process of this number left behind.
        let _ = fs::remove_file(&draft);
        let listener = UnixListener::bind(&draft)?;
        let mut file = SocketFile { path: path.to_owned(), draft, inode: (0, 0) };
        fs::set_permissions(&file.draft, fs::Permissions::from_mode(MODE))?;
        listener.set_nonblocking(true)?;
        file.inode = inode(&file.draft)?;
        Ok((Self::Unix(listener), file))
    }

    /// Whether web pages in a browser of this machine reach it.
    pub(super) fn is_loopback(&self) -> bool {
        match self {
            Self::Tcp(listener) => listener.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback()),
            Self::Unix(_) => false,
        }
    }

    pub(super) fn listen(self) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                Listener::Tcp(net::TcpListener::from_std(listener)?)
            }
            Self::Unix(listener) => {
                listener.set_nonblocking(true)?;
                Listener::Unix(net::UnixListener::from_std(listener)?)
            }
        })
    }
}

impl Listener {
    /// The next connection, and the address of its other end if it has one.
    pub(super) async fn accept(&self) -> io::Result<(AdminStream, Option<IpAddr>)> {
        match self {
            Self::Tcp(listener) => {
                listener.accept().await.map(|(stream, peer)| (AdminStream::Tcp(stream), Some(peer.ip())))
            }
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| (AdminStream::Unix(stream), None)),
        }
    }
}

impl SocketFile {
    /// Gives it its name, in place of whatever socket has that: a client finds the one or the other at any time. So a process
    /// that takes over needs no copy of the socket.
    pub fn publish(&self) -> io::Result<()> {
        fs::rename(&self.draft, &self.path)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.draft);
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unix_socket_is_its_owners_and_goes_with_its_holder() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let (_first, file) = Socket::bind_unix(&path, false).unwrap();
        assert!(!path.exists(), "nobody finds it yet");
        file.publish().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(UnixStream::connect(&path).is_ok());
        let taken = Socket::bind_unix(&path, false).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        // A process that takes over has the name then, and the one before leaves it alone.
        let (_second, second_file) = Socket::bind_unix(&path, true).unwrap();
        drop(Socket::bind_unix(&path, true).unwrap());
        assert!(UnixStream::connect(&path).is_ok(), "one that gave up took nothing");
        // The draft went with the one that gave up: both have the name of this process.
        assert!(second_file.publish().is_err());
        drop(second_file);
        let (_second, second_file) = Socket::bind_unix(&path, true).unwrap();
        second_file.publish().unwrap();
        drop(file);
        assert!(UnixStream::connect(&path).is_ok());
        drop(second_file);
        assert!(!path.exists());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "no drafts are left");
    }

    #[test]
    fn one_that_was_left_behind_is_replaced_and_another_file_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(Socket::bind_unix(&path, false).is_ok());
        let other = directory.path().join("notes");
        fs::write(&other, "mine").unwrap();
        assert_eq!(Socket::bind_unix(&other, true).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
    }
}
