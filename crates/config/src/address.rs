//! Addresses: where to listen, and where servers are.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use super::findings::{Reported, quoted};
use super::kind::Context;
use super::reader::Node;
use super::token::is_name;

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerAddress {
    /// `host:port`; the host is an address or a name that is resolved at each connect.
    Tcp {
        /// An IP address (IPv6 without brackets) or a DNS name.
        host: String,
        /// 1 to 65535.
        port: u16,
    },
    /// `echo:NAME`, a server inside this process that says who it is.
    Echo(String),
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Echo(name) => write!(f, "echo:{name}"),
        }
    }
}

/// Where a listener or admin listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// An IP address and a port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// The address, if it is no Unix socket.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Longest path of a Unix socket that every system takes, with room for the name that it has until it listens.
const MAX_SOCKET_BYTES: usize = 90;

/// Longest host name, RFC 1035 section 2.3.4.
const MAX_HOST_BYTES: usize = 253;

/// Longest label of a host name, RFC 1035 section 2.3.4.
const MAX_LABEL_BYTES: usize = 63;

/// An address to listen on: IP and port, because a name may resolve to several or to none.
fn tcp(node: &Node<'_>, example: &str) -> Result<SocketAddr, Reported> {
    let text = node.string("an address in quotes", &format!("\"{example}\""))?;
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    let port = text.rsplit_once(':').map(|(_, port)| port).filter(|port| port.parse::<u16>().is_ok());
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    let help = match (host, port) {
        ("" | "*", Some(port)) => {
            format!("for all IPv4 addresses write \"0.0.0.0:{port}\", for IPv6 too \"[::]:{port}\"")
        }
        ("localhost", Some(port)) => format!("it takes an IP address, not a name: \"127.0.0.1:{port}\""),
        _ if text.parse::<Ipv6Addr>().is_ok() => {
            format!("an IPv6 address stands in brackets, and a port follows: \"[{text}]:8080\"")
        }
        (_, Some(port)) if host.parse::<Ipv6Addr>().is_ok() => {
            format!("an IPv6 address stands in brackets: \"[{host}]:{port}\"")
        }
        (_, None) if text.parse::<std::net::Ipv4Addr>().is_ok() => format!("a port is missing: \"{text}:8080\""),
        _ => format!("an address is an IP and a port from 0 to 65535, like \"{example}\" or \"[::1]:8080\""),
    };
    Err(node.error(format!("invalid listen address {}", quoted(text)), help))
}

/// Where admin or a listener listens: an IP address and a port, such as the `example`, or `unix:PATH`, such as that `file`.
pub(super) fn listening(
    node: &Node<'_>,
    context: &Context<'_>,
    (example, file): (&str, &str),
) -> Result<ListenAddress, Reported> {
    let text = node.string("an address in quotes", &format!("\"{example}\""))?;
    let Some(path) = text.strip_prefix("unix:") else {
        return tcp(node, example).map(ListenAddress::Tcp);
    };
    let located = context.files.locate(path);
    if path.is_empty() || path.ends_with('/') || path.contains('\0') {
        let help = format!("name a file: \"unix:/run/sluicegate/{file}\"");
        return Err(node.error(format!("{} is no Unix socket", quoted(text)), help));
    }
    if located.as_os_str().len() > MAX_SOCKET_BYTES {
        let message = format!("{} is too long for a Unix socket", quoted(&located.display().to_string()));
        return Err(node.error(message, format!("its path has at most {MAX_SOCKET_BYTES} bytes")));
    }
    Ok(ListenAddress::Unix(located))
}

/// Where a server is: `host:port` or `echo:NAME`.
pub(super) fn server(node: &Node<'_>, text: &str) -> Result<ServerAddress, Reported> {
    let error = |help: String| node.error(format!("invalid server address {}", quoted(text)), help);
    parse_server(text).map_err(error)
}

fn parse_server(text: &str) -> Result<ServerAddress, String> {
    if let Some(name) = text.strip_prefix("echo:") {
        return if is_name(name) {
            Ok(ServerAddress::Echo(name.to_owned()))
        } else {
            Err("the name after echo: is 1 to 64 of A-Z a-z 0-9 . _ -".to_owned())
        };
    }
    if text.starts_with("unix:") || text.starts_with('/') || text.contains("://unix:") {
        return Err(
            "a server is a host and a port, not a Unix socket: let it listen on 127.0.0.1 too, \"127.0.0.1:8000\""
                .to_owned(),
        );
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        let rest = rest.split('/').next().unwrap_or_default();
        return Err(match scheme {
            "http" if has_port(rest) => format!("leave the scheme out: \"{rest}\""),
            "http" => format!("leave the scheme out and add a port: \"{rest}:80\""),
            "https" if has_port(rest) => format!("write \"{rest}\", and tls = true in its [[upstream]]"),
            "https" => format!("write \"{rest}:443\", and tls = true in its [[upstream]]"),
            _ => "write \"host:port\", without a scheme".to_owned(),
        });
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(format!("an IPv6 address stands in brackets, and a port follows: \"[{text}]:80\""));
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(format!("a port is missing: \"{text}:80\""));
    };
    let port = match port.parse::<u16>() {
        Ok(number) if number > 0 && port.bytes().all(|byte| byte.is_ascii_digit()) => number,
        _ => return Err("the port after the last colon goes from 1 to 65535".to_owned()),
    };
    let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inner) => match inner.parse::<Ipv6Addr>() {
            Ok(address) => address.to_string(),
            Err(_) => return Err("in brackets stands an IPv6 address, like \"[::1]:80\"".to_owned()),
        },
        None if is_host(host) => host.to_ascii_lowercase(),
        None => return Err("write \"host:port\" with an IP address or a DNS name, or \"echo:NAME\"".to_owned()),
    };
    Ok(ServerAddress::Tcp { host, port })
}

fn has_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

/// A DNS name or an IPv4 address. Underscores are no part of a host name, yet container networks use them.
fn is_host(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        (1..=MAX_LABEL_BYTES).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    // A name whose last label is all digits can only be meant as an IPv4 address (WHATWG URL, "ends in a number").
    let numeric =
        text.rsplit('.').next().is_some_and(|last| !last.is_empty() && last.bytes().all(|b| b.is_ascii_digit()));
    if numeric {
        return text.parse::<std::net::Ipv4Addr>().is_ok();
    }
    text.len() <= MAX_HOST_BYTES && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_as_they_are_printed() {
        for text in ["127.0.0.1:9001", "[::1]:80", "app.internal:8080", "my_app:1", "echo:a", "localhost:65535"] {
            assert_eq!(parse_server(text).map(|address| address.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(parse_server("APP:80").unwrap().to_string(), "app:80");
        assert_eq!(parse_server("[0:0::1]:80").unwrap().to_string(), "[::1]:80", "one spelling of one address");
    }

    #[test]
    fn refuses_what_is_no_server_with_a_remedy() {
        for (text, remedy) in [
            ("app", "a port is missing: \"app:80\""),
            ("http://app:8080/x", "leave the scheme out: \"app:8080\""),
            ("http://app", "leave the scheme out and add a port: \"app:80\""),
            ("https://app:8443/x", "write \"app:8443\", and tls = true in its [[upstream]]"),
            ("https://app", "write \"app:443\", and tls = true in its [[upstream]]"),
            (
                "unix:/run/app.sock",
                "a server is a host and a port, not a Unix socket: let it listen on 127.0.0.1 too, \"127.0.0.1:8000\"",
            ),
            (
                "http://unix:/run/app.sock",
                "a server is a host and a port, not a Unix socket: let it listen on 127.0.0.1 too, \"127.0.0.1:8000\"",
            ),
            (
                "/run/app.sock",
                "a server is a host and a port, not a Unix socket: let it listen on 127.0.0.1 too, \"127.0.0.1:8000\"",
            ),
            ("app:0", "the port after the last colon goes from 1 to 65535"),
            ("app:65536", "the port after the last colon goes from 1 to 65535"),
            ("app:+80", "the port after the last colon goes from 1 to 65535"),
            ("app:", "the port after the last colon goes from 1 to 65535"),
            ("::1", "an IPv6 address stands in brackets, and a port follows: \"[::1]:80\""),
            ("[::1:80", "write \"host:port\" with an IP address or a DNS name, or \"echo:NAME\""),
            ("[x]:80", "in brackets stands an IPv6 address, like \"[::1]:80\""),
            ("256.0.0.1:80", "write \"host:port\" with an IP address or a DNS name, or \"echo:NAME\""),
            ("a b:80", "write \"host:port\" with an IP address or a DNS name, or \"echo:NAME\""),
            (":80", "write \"host:port\" with an IP address or a DNS name, or \"echo:NAME\""),
            ("echo:", "the name after echo: is 1 to 64 of A-Z a-z 0-9 . _ -"),
        ] {
            assert_eq!(parse_server(text), Err(remedy.to_owned()), "{text:?}");
        }
    }
}
