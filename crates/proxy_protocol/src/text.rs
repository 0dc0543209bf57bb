//! Version 1: `PROXY TCP4 192.0.2.1 198.51.100.2 56324 443` and CRLF.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::{self, FromStr};

use super::header::{Endpoints, Header, Version};
use super::{Fault, Stop, begins_with};

/// The longest line with its CRLF: `PROXY UNKNOWN`, two addresses of 39 and two ports of 5.
const MAX_LINE_BYTES: usize = 107;
/// The longest address: IPv6 with the end of IPv4.
const MAX_ADDRESS_BYTES: usize = 45;
pub(super) const BEGIN: &[u8] = b"PROXY ";

/// The texts that make an address of the beginning of one, if any does: the rest of its numbers as IPv4 writes them, or
/// `::`, which leaves out what is missing of IPv6.
const COMPLETIONS: [&str; 10] = ["", "0", ".0", "0.0", ".0.0", "0.0.0", ".0.0.0", "0.0.0.0", ":", "::"];

pub(super) fn read(bytes: &[u8]) -> Result<(Header, usize), Stop> {
    // Of the longest line CR is the byte before the last. If it is not there, nothing behind it matters.
    let is_longest = bytes.get(MAX_LINE_BYTES - 2) == Some(&b'\r');
    let most = if is_longest { MAX_LINE_BYTES } else { MAX_LINE_BYTES - 1 };
    let line = bytes.get(..most).unwrap_or(bytes);
    begins_with(line, BEGIN)?;
    let mut fields = TextFields { line, at: BEGIN.len() };
    let endpoints = match fields.all() {
        Err(Stop::OutOfBytes) if !is_longest && line.len() == most => return Err(Fault::TooLong.into()),
        endpoints => endpoints?,
    };
    Ok((Header { version: Version::V1, endpoints, details: None }, fields.at))
}

struct TextFields<'l> {
    line: &'l [u8],
    /// Where the next field begins.
    at: usize,
}

impl TextFields<'_> {
    fn all(&mut self) -> Result<Option<Endpoints>, Stop> {
        let rest = self.rest();
        if rest.starts_with(b"TCP4 ") {
            self.at += 5;
            self.endpoints::<Ipv4Addr>().map(Some)
        } else if rest.starts_with(b"TCP6 ") {
            self.at += 5;
            self.endpoints::<Ipv6Addr>().map(Some)
        } else if rest.starts_with(b"UNKNOWN") {
            self.at += 7;
            self.ignored().map(|()| None)
        } else if [&b"TCP4 "[..], b"TCP6 ", b"UNKNOWN"].iter().any(|family| family.starts_with(rest)) {
            Err(Stop::OutOfBytes)
        } else {
            Err(Fault::Family.into())
        }
    }

    fn endpoints<A: FromStr + Into<IpAddr>>(&mut self) -> Result<Endpoints, Stop> {
        let source = self.field(b' ', Fault::Address, address::<A>, begins_address::<A>)?;
        let destination = self.field(b' ', Fault::Address, address::<A>, begins_address::<A>)?;
        let source_port = self.field(b' ', Fault::Port, port, begins_port)?;
        let destination_port = self.field(b'\r', Fault::Port, port, begins_port)?;
        self.line_feed()?;
        Ok(Endpoints {
            source: SocketAddr::new(source, source_port),
            destination: SocketAddr::new(destination, destination_port),
        })
    }

    /// The next field, which `end` ends; it is not taken for whole before that has come.
    fn field<T>(
        &mut self,
        end: u8,
        fault: Fault,
        parse: impl Fn(&str) -> Option<T>,
        begins: impl Fn(&str) -> bool,
    ) -> Result<T, Stop> {
        let rest = self.rest();
        let length = rest.iter().position(|byte| matches!(byte, b' ' | b'\r' | b'\n'));
        let text = str::from_utf8(rest.get(..length.unwrap_or(rest.len())).unwrap_or_default()).map_err(|_| fault)?;
        let Some(length) = length else {
            return Err(if begins(text) { Stop::OutOfBytes } else { fault.into() });
        };
        if length == 0 {
            return Err(Fault::Line.into());
        }
        let value = parse(text).ok_or(fault)?;
        if rest.get(length) != Some(&end) {
            return Err(Fault::Line.into());
        }
        self.at += length + 1;
        Ok(value)
    }

    /// Whatever else the line says; only its end is looked for. A CR or LF alone could be taken for that, and is refused.
    fn ignored(&mut self) -> Result<(), Stop> {
        let rest = self.rest();
        if rest.first().is_some_and(|byte| !matches!(byte, b' ' | b'\r' | b'\n')) {
            return Err(Fault::Family.into());
        }
        let end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')).ok_or(Stop::OutOfBytes)?;
        if rest.get(end) != Some(&b'\r') {
            return Err(Fault::Line.into());
        }
        self.at += end + 1;
        self.line_feed()
    }

    fn line_feed(&mut self) -> Result<(), Stop> {
        match self.rest().first() {
            Some(b'\n') => {
                self.at += 1;
                Ok(())
            }
            Some(_) => Err(Fault::Line.into()),
            None => Err(Stop::OutOfBytes),
        }
    }

    fn rest(&self) -> &[u8] {
        self.line.get(self.at..).unwrap_or_default()
    }
}

fn address<A: FromStr + Into<IpAddr>>(text: &str) -> Option<IpAddr> {
    text.parse::<A>().ok().map(|address| address.into().to_canonical())
}

fn begins_address<A: FromStr>(text: &str) -> bool {
    let mut room = [0; MAX_ADDRESS_BYTES];
    COMPLETIONS.iter().any(|completion| {
        let (begin, end) = (text.as_bytes(), completion.as_bytes());
        let Some(whole) = room.get_mut(..begin.len() + end.len()) else { return false };
        let (left, right) = whole.split_at_mut(begin.len());
        left.copy_from_slice(begin);
        right.copy_from_slice(end);
        str::from_utf8(whole).is_ok_and(|whole| whole.parse::<A>().is_ok())
    })
}

/// Digits only: the standard parser takes a sign and leading zeros.
fn port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

fn begins_port(text: &str) -> bool {
    text.is_empty() || port(text).is_some()
}
