//! Unix sockets that listen, and their files.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process;

use socket2::{Domain, SockAddr, Socket, Type};

/// The file where groups stand (group(5)).
const GROUPS: &str = "/etc/group";

/// The rules of who may open a Unix socket.
#[derive(Clone, Copy, Debug)]
pub struct SocketAccess {
    /// The mode of its file.
    pub mode: u32,
    /// The number of the group of its file; `None`: as the system makes it.
    pub group: Option<u32>,
}

/// The file of a Unix socket. Dropping it removes the file, unless another process has taken its name.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// The name that it has until clients may come.
    draft: PathBuf,
    inode: (u64, u64),
}

/// Connections that wait to be accepted, at most.
const BACKLOG: i32 = 4096;

/// Listens on a Unix socket, by another name until it is [published](SocketFile::publish).
///
/// # Errors
/// The name is that of a file that is no socket, or, unless it `replaces` that, of one on which a process listens; or this
/// process may not give the file to the group.
pub fn bind(path: &Path, access: SocketAccess, replaces: bool) -> io::Result<(UnixListener, SocketFile)> {
    match fs::symlink_metadata(path) {
        Ok(known) if !known.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file has this name that is no socket"));
        }
        Ok(_) if !replaces && is_listened_on(path)? => {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens on it"));
        }
        _ => {}
    }
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}", process::id()));
    let draft = PathBuf::from(draft);
    // One that a process of this number left behind.
    let _ = fs::remove_file(&draft);
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(&draft)?)?;
    let mut file = SocketFile { path: path.to_owned(), draft, inode: (0, 0) };
    file.inode = inode(&file.draft)?;
    if let Some(group) = access.group {
        give(&file.draft, group)?;
    }
    fs::set_permissions(&file.draft, fs::Permissions::from_mode(access.mode))?;
    // Not before: until then no client can connect, whoever may open the file.
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok((socket.into(), file))
}

/// Whether a process listens there, be it one that accepts nothing.
fn is_listened_on(path: &Path) -> io::Result<bool> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Ok(()) => Ok(true),
        Err(error) => Ok(error.kind() == io::ErrorKind::WouldBlock),
    }
}

fn give(path: &Path, group: u32) -> io::Result<()> {
    chown(path, None, Some(group)).map_err(|error| {
        io::Error::new(error.kind(), format!("its group cannot be set ({error}); is the gateway's user in it?"))
    })
}

impl SocketFile {
    /// The file of a socket that another process has bound to this path, and leaves to this one.
    ///
    /// # Errors
    /// There is no such file.
    pub fn adopt(path: &Path) -> io::Result<Self> {
        let inode = inode(path)?;
        Ok(Self { path: path.to_owned(), draft: path.to_owned(), inode })
    }

    /// Gives it to another group, unless another process has taken its name.
    pub fn give(&self, group: u32) -> io::Result<()> {
        if inode(&self.path)? == self.inode { give(&self.path, group) } else { Ok(()) }
    }

    /// Leaves the file to the process that takes over.
    pub fn leave(mut self) {
        (self.draft, self.inode) = (PathBuf::new(), (0, 0));
    }

    /// Gives it its name, in place of whatever socket has that: a client finds the one or the other at any time.
    pub fn publish(&self) -> io::Result<()> {
        fs::rename(&self.draft, &self.path)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.draft != self.path {
            let _ = fs::remove_file(&self.draft);
        }
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// The number of a group.
///
/// # Errors
/// There is none of this name.
pub fn group_of(name: &str) -> io::Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let number = |text: &str| {
        text.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
        })
    };
    let lacks = || io::Error::new(io::ErrorKind::NotFound, format!("{GROUPS} has no group {name:?}; write its number"));
    number(&fs::read_to_string(GROUPS)?).ok_or_else(lacks)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn bind_own(path: &Path, replaces: bool) -> io::Result<(UnixListener, SocketFile)> {
        bind(path, SocketAccess { mode: 0o600, group: None }, replaces)
    }

    #[test]
    fn a_socket_has_the_group_and_the_mode_that_it_is_given() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("decide.sock");
        let own = fs::metadata(directory.path()).unwrap().gid();
        for group in [None, Some(own)] {
            let (_socket, file) = bind(&path, SocketAccess { mode: 0o660, group }, false).unwrap();
            file.publish().unwrap();
            let made = fs::metadata(&path).unwrap();
            assert_eq!((made.permissions().mode() & 0o777, made.gid()), (0o660, own));
        }
        assert_eq!((group_of("root").unwrap(), group_of("17").unwrap()), (0, 17));
        let error = group_of("no such group").unwrap_err();
        assert!(error.to_string().contains("has no group \"no such group\""), "{error}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn a_unix_socket_is_its_owners_and_goes_with_its_holder() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let (_first, file) = bind_own(&path, false).unwrap();
        assert!(!path.exists(), "nobody finds it yet");
        file.publish().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(UnixStream::connect(&path).is_ok());
        let taken = bind_own(&path, false).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        // A process that takes over has the name then, and the one before leaves it alone.
        let (_second, second_file) = bind_own(&path, true).unwrap();
        drop(bind_own(&path, true).unwrap());
        assert!(UnixStream::connect(&path).is_ok(), "one that gave up took nothing");
        // The draft went with the one that gave up: both have the name of this process.
        assert!(second_file.publish().is_err());
        drop(second_file);
        let (_second, second_file) = bind_own(&path, true).unwrap();
        second_file.publish().unwrap();
        drop(file);
        assert!(UnixStream::connect(&path).is_ok());
        drop(second_file);
        assert!(!path.exists());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "no drafts are left");
    }

    #[test]
    fn a_holder_that_accepts_nothing_is_one_that_listens() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("full.sock");
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        socket.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        socket.listen(0).unwrap();
        let mut waiting = Vec::new();
        for _ in 0..4 {
            let client = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            client.set_nonblocking(true).unwrap();
            let _ = client.connect(&SockAddr::unix(&path).unwrap());
            waiting.push(client);
        }
        assert_eq!(bind_own(&path, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn one_that_was_left_behind_is_replaced_and_another_file_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(bind_own(&path, false).is_ok());
        let other = directory.path().join("notes");
        fs::write(&other, "mine").unwrap();
        assert_eq!(bind_own(&other, true).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
    }
}
