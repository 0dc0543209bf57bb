//! The type-length-value vectors (TLVs) behind the addresses of version 2.

use super::Fault;
use super::header::Details;

pub(super) const ALPN: u8 = 0x01;
pub(super) const AUTHORITY: u8 = 0x02;
pub(super) const CRC32C: u8 = 0x03;
pub(super) const UNIQUE_ID: u8 = 0x05;
const SSL: u8 = 0x20;
const SSL_VERSION: u8 = 0x21;

/// The bit of the field `client` that says that the client has spoken TLS.
const CLIENT_SSL: u8 = 0x01;
/// `client` and `verify`, before the inner vectors.
const SSL_HEAD_BYTES: usize = 5;

pub(super) const SUM_BYTES: usize = 4;
/// Names of protocols are no longer (RFC 7301, 3.1).
pub(super) const MAX_ALPN_BYTES: usize = 255;
/// As DNS has it (RFC 1035, 2.3.4).
const MAX_AUTHORITY_BYTES: usize = 255;
pub(super) const MAX_UNIQUE_ID_BYTES: usize = 128;
const MAX_TLS_VERSION_BYTES: usize = 32;

/// The vectors that are read, where they lie.
#[derive(Default)]
pub(super) struct Vectors<'h> {
    alpn: Option<&'h [u8]>,
    authority: Option<&'h [u8]>,
    unique_id: Option<&'h [u8]>,
    ssl: Option<&'h [u8]>,
    sum: Option<Sum>,
}

struct Sum {
    /// Where in the header it is.
    at: usize,
    value: u32,
}

impl<'h> Vectors<'h> {
    /// Those of a header, from `at` to its end. Their content is not looked at before the checksum is.
    pub(super) fn of(whole: &'h [u8], at: usize) -> Result<Self, Fault> {
        let mut vectors = Self::default();
        let mut walk = Walk { rest: whole.get(at..).ok_or(Fault::Length)? };
        while let Some((kind, value)) = walk.next()? {
            let repeated = match kind {
                ALPN => vectors.alpn.replace(value).is_some(),
                AUTHORITY => vectors.authority.replace(value).is_some(),
                UNIQUE_ID => vectors.unique_id.replace(value).is_some(),
                SSL => vectors.ssl.replace(value).is_some(),
                CRC32C => {
                    let sum = <[u8; SUM_BYTES]>::try_from(value).map_err(|_| Fault::Vector)?;
                    let at = whole.len() - walk.rest.len() - SUM_BYTES;
                    vectors.sum.replace(Sum { at, value: u32::from_be_bytes(sum) }).is_some()
                }
                _ => false,
            };
            if repeated {
                return Err(Fault::VectorRepeated);
            }
        }
        Ok(vectors)
    }

    pub(super) fn check_sum(&self, whole: &[u8]) -> Result<(), Fault> {
        match &self.sum {
            Some(sum) if sum_without(whole, sum.at) != sum.value => Err(Fault::Checksum),
            _ => Ok(()),
        }
    }

    /// The content of the vectors. An empty value says nothing.
    pub(super) fn details(&self) -> Result<Option<Box<Details>>, Fault> {
        let (tls, tls_version) = self.ssl.map_or(Ok((false, None)), tls)?;
        let details = Details {
            alpn: bounded(self.alpn, MAX_ALPN_BYTES)?.map(Box::from),
            authority: host(self.authority)?.map(Box::from),
            unique_id: bounded(self.unique_id, MAX_UNIQUE_ID_BYTES)?.map(Box::from),
            tls,
            tls_version: tls_version.map(Box::from),
        };
        Ok((details != Details::default()).then(|| Box::new(details)))
    }
}

/// One vector after the other.
struct Walk<'h> {
    rest: &'h [u8],
}

impl<'h> Walk<'h> {
    fn next(&mut self) -> Result<Option<(u8, &'h [u8])>, Fault> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let ([kind, high, low], rest) = self.rest.split_first_chunk().ok_or(Fault::Vector)?;
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let (value, rest) = rest.split_at_checked(length).ok_or(Fault::Vector)?;
        self.rest = rest;
        Ok(Some((*kind, value)))
    }
}

fn bounded(value: Option<&[u8]>, most: usize) -> Result<Option<&[u8]>, Fault> {
    match value {
        Some(value) if value.len() > most => Err(Fault::Vector),
        value => Ok(value.filter(|value| !value.is_empty())),
    }
}

/// A name of a client that is no host says nothing: the connection is not refused for its words.
fn host(value: Option<&[u8]>) -> Result<Option<&str>, Fault> {
    let text = bounded(value, MAX_AUTHORITY_BYTES)?.and_then(|value| std::str::from_utf8(value).ok());
    Ok(text.filter(|text| is_host(text)))
}

/// Nothing but what names and addresses are made of, so that it can be logged and compared as it is.
pub(super) fn is_host(host: &str) -> bool {
    let is_of_host =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b':' | b'[' | b']');
    host.len() <= MAX_AUTHORITY_BYTES && host.bytes().all(is_of_host)
}

/// Whether the client has spoken TLS, and which version.
fn tls(value: &[u8]) -> Result<(bool, Option<&str>), Fault> {
    let (head, inner) = value.split_first_chunk::<SSL_HEAD_BYTES>().ok_or(Fault::Vector)?;
    let mut version = None;
    let mut walk = Walk { rest: inner };
    while let Some((kind, value)) = walk.next()? {
        if kind == SSL_VERSION {
            let is_plain = value.len() <= MAX_TLS_VERSION_BYTES && value.iter().all(u8::is_ascii_graphic);
            let text = std::str::from_utf8(value).ok().filter(|_| is_plain).ok_or(Fault::Vector)?;
            if version.replace(text).is_some() {
                return Err(Fault::VectorRepeated);
            }
        }
    }
    let [client, ..] = head;
    let is_tls = client & CLIENT_SSL != 0;
    Ok((is_tls, version.filter(|version| is_tls && !version.is_empty())))
}

/// CRC32C of the header as if the four bytes at `at` were zero.
pub(super) fn sum_without(whole: &[u8], at: usize) -> u32 {
    let (before, rest) = whole.split_at_checked(at).unwrap_or((whole, &[]));
    let sum = crc32c::crc32c_append(crc32c::crc32c(before), &[0; SUM_BYTES]);
    crc32c::crc32c_append(sum, rest.get(SUM_BYTES..).unwrap_or_default())
}
