//! The same rules once more, written to be obviously right: whole messages, copied and split as text.

use super::*;

/// The fate of a chunked body of which `bytes` have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NaiveBody {
    Complete { content: Vec<u8>, taken: usize, trailers: Vec<(String, Vec<u8>)> },
    Incomplete { content: usize },
    Refused(Fault),
}

/// Where reading stops before the body's end.
enum Stop {
    OutOfBytes,
    Fault(Fault),
}

pub(super) fn chunked_body(bytes: &[u8]) -> NaiveBody {
    let mut reader = Reader { bytes, at: 0, extensions: 0 };
    let mut content = Vec::new();
    match reader.body(&mut content) {
        Ok(trailers) => NaiveBody::Complete { content, taken: reader.at, trailers },
        Err(Stop::OutOfBytes) => NaiveBody::Incomplete { content: content.len() },
        Err(Stop::Fault(fault)) => NaiveBody::Refused(fault),
    }
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
    extensions: usize,
}

impl Reader<'_> {
    fn body(&mut self, content: &mut Vec<u8>) -> Result<Vec<(String, Vec<u8>)>, Stop> {
        loop {
            let size = self.chunk_line()?;
            if size == 0 {
                return self.trailers();
            }
            let rest = &self.bytes[self.at..];
            let here = rest.len().min(usize::try_from(size).unwrap_or(usize::MAX));
            content.extend_from_slice(&rest[..here]);
            self.at += here;
            if (here as u64) < size {
                return Err(Stop::OutOfBytes);
            }
            self.expect(b'\r', Fault::ChunkEnd)?;
            self.expect(b'\n', Fault::ChunkEnd)?;
        }
    }

    fn chunk_line(&mut self) -> Result<u64, Stop> {
        let digits = self.take_while(|byte| byte.is_ascii_hexdigit());
        let size = u64::from_str_radix(&digits, 16).ok().filter(|size| *size < 1 << 63 && digits.len() <= 16);
        let size = match size {
            Some(size) => size,
            None if digits.is_empty() && self.at == self.bytes.len() => return Err(Stop::OutOfBytes),
            None => return Err(Stop::Fault(Fault::ChunkSize)),
        };
        match self.peek()? {
            b'\r' => {}
            b' ' | b'\t' | b';' => self.extension()?,
            _ => return Err(Stop::Fault(Fault::ChunkSize)),
        }
        self.expect(b'\r', Fault::ChunkSize)?;
        self.expect(b'\n', Fault::ChunkSize)?;
        Ok(size)
    }

    fn extension(&mut self) -> Result<(), Stop> {
        let start = self.at;
        let allowed = |byte: u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
        let extension = self.take_while(allowed);
        self.extensions += self.at - start;
        let is_begun = extension.trim_start_matches([' ', '\t']).chars().next();
        if self.at - start > 256 || self.extensions > 16 * 1024 || is_begun.is_some_and(|first| first != ';') {
            return Err(Stop::Fault(Fault::ChunkExtension));
        }
        match (self.peek()?, is_begun) {
            (b'\r', Some(_)) => Ok(()),
            _ => Err(Stop::Fault(Fault::ChunkExtension)),
        }
    }

    fn trailers(&mut self) -> Result<Vec<(String, Vec<u8>)>, Stop> {
        let start = self.at;
        let mut lines = 0;
        loop {
            let line_start = self.at;
            let is_last = self.peek()? == b'\r';
            if matches!(self.peek()?, b' ' | b'\t') {
                return Err(Stop::Fault(Fault::Trailer));
            }
            self.take_while(|byte| byte != b'\r' && byte != b'\n');
            let too_long = |end: usize| !is_last && end - start > 8192;
            if too_long(self.at) {
                return Err(Stop::Fault(Fault::Trailer));
            }
            self.expect(b'\r', Fault::Trailer)?;
            self.expect(b'\n', Fault::Trailer)?;
            if is_last {
                assert_eq!(self.at, line_start + 2);
                break;
            }
            lines += 1;
            if too_long(self.at) || lines > 32 {
                return Err(Stop::Fault(Fault::Trailer));
            }
        }
        let mut headers = [httparse::EMPTY_HEADER; 32];
        match httparse::parse_headers(&self.bytes[start..self.at], &mut headers) {
            Ok(httparse::Status::Complete((length, headers))) if length == self.at - start => {
                let written = headers.iter().map(|header| header.name.len() + header.value.len() + 4).sum::<usize>();
                if written > 8192 {
                    return Err(Stop::Fault(Fault::Trailer));
                }
                Ok(headers.iter().map(|header| (header.name.to_owned(), header.value.to_vec())).collect())
            }
            _ => Err(Stop::Fault(Fault::Trailer)),
        }
    }

    fn peek(&self) -> Result<u8, Stop> {
        self.bytes.get(self.at).copied().ok_or(Stop::OutOfBytes)
    }

    fn expect(&mut self, expected: u8, fault: Fault) -> Result<(), Stop> {
        if self.peek()? != expected {
            return Err(Stop::Fault(fault));
        }
        self.at += 1;
        Ok(())
    }

    fn take_while(&mut self, wanted: impl Fn(u8) -> bool) -> String {
        let start = self.at;
        while self.bytes.get(self.at).is_some_and(|byte| wanted(*byte)) {
            self.at += 1;
        }
        self.bytes[start..self.at].iter().map(|byte| char::from(*byte)).collect()
    }
}

/// A request's head, if there is a whole one that is accepted.
pub(super) fn request_head(bytes: &[u8], limits: &HeadLimits) -> Option<SeenRequest> {
    let skipped = if bytes.starts_with(b"\r\n") { 2 } else { 0 };
    let (lines, length) = lines(&bytes[skipped..])?;
    let length = skipped + length;
    let [method, target, version]: [&str; 3] = lines[0].split(' ').collect::<Vec<_>>().try_into().ok()?;
    let version = version_of(version)?;
    if !is_token(method) || method.len() > 32 || method == "CONNECT" {
        return None;
    }
    let fields = fields(&lines[1..], limits)?;
    let values = |name: &str| values_of(&fields, name);
    let host = match values("host").as_slice() {
        [] if version == Version::Http10 => None,
        [host] if is_authority(host) => Some(host.clone()),
        _ => return None,
    };
    let (own_authority, path, query) = target_of(target, method == "OPTIONS")?;
    let (framing, _) = framing_of(&fields, version)?;
    let expects = values("expect");
    if version == Version::Http11 && expects.iter().any(|value| !value.eq_ignore_ascii_case("100-continue")) {
        return None;
    }
    let options = options_of(&fields);
    let has = |name: &str| options.iter().any(|option| option.eq_ignore_ascii_case(name));
    let upgrade = match values("upgrade").as_slice() {
        [one] if version == Version::Http11 && has("upgrade") && !one.is_empty() => Some(latin_bytes(one)),
        _ => None,
    };
    let common = ["close", "keep-alive", "upgrade"];
    let nominated = options.iter().filter(|option| common.iter().all(|name| !option.eq_ignore_ascii_case(name)));
    if nominated.clone().count() > 32 {
        return None;
    }
    (length <= limits.max_bytes).then(|| SeenRequest {
        length,
        method: method.to_owned(),
        path,
        query,
        authority: own_authority.or(host),
        version,
        framing: framing.unwrap_or(Framing::None),
        is_persistent: !has("close") && (version == Version::Http11 || has("keep-alive")),
        expects_continue: version == Version::Http11 && !expects.is_empty(),
        upgrade,
        nominated: nominated.map(|option| latin_bytes(option)).collect(),
        fields: fields.iter().map(|(name, value)| (latin_bytes(name), latin_bytes(value))).collect(),
    })
}

/// A response's head, if there is a whole one that is accepted.
pub(super) fn response_head(bytes: &[u8], limits: &HeadLimits, answers_head: bool) -> Option<SeenResponse> {
    let (lines, length) = lines(bytes)?;
    let mut parts = lines[0].splitn(3, ' ');
    let version = version_of(parts.next()?)?;
    let status: u16 = parts.next().filter(|digits| digits.len() == 3 && !digits.starts_with('+'))?.parse().ok()?;
    let reason = parts.next().unwrap_or_default();
    if status < 100 || !is_visible(reason) {
        return None;
    }
    let fields = fields(&lines[1..], limits)?;
    let is_bodiless = status < 200 || status == 204 || status == 304 || answers_head;
    let (framing, content_length) = if is_bodiless {
        let only_lengths: Vec<_> =
            fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("content-length")).cloned().collect();
        (Some(Framing::None), framing_of(&only_lengths, version)?.1)
    } else {
        framing_of(&fields, version)?
    };
    let framing = framing.unwrap_or(Framing::UntilClose);
    let options = options_of(&fields);
    let has = |name: &str| options.iter().any(|option| option.eq_ignore_ascii_case(name));
    let upgrade = match values_of(&fields, "upgrade").as_slice() {
        [one] if version == Version::Http11 && has("upgrade") && !one.is_empty() => Some(latin_bytes(one)),
        _ => None,
    };
    let allows_reuse = !has("close") && (version == Version::Http11 || has("keep-alive"));
    (length <= limits.max_bytes).then(|| SeenResponse {
        length,
        status,
        reason: latin_bytes(reason),
        version,
        framing,
        content_length: content_length.filter(|_| status >= 200 && status != 204),
        is_persistent: allows_reuse && framing != Framing::UntilClose,
        is_interim: status < 200 && status != 101,
        upgrade,
        fields: fields.iter().map(|(name, value)| (latin_bytes(name), latin_bytes(value))).collect(),
    })
}

/// Bytes as characters of the same numbers, so that text functions see every byte.
fn latin(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

fn latin_bytes(text: &str) -> Vec<u8> {
    text.chars().map(|character| character as u8).collect()
}

/// The lines of the head and its length, if it is whole and no CR or LF is left in a line.
fn lines(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let text = latin(bytes);
    let end = text.char_indices().enumerate().find(|(_, (at, _))| text[*at..].starts_with("\r\n\r\n"));
    let (characters, (end, _)) = end?;
    let lines: Vec<String> = text[..end].split("\r\n").map(str::to_owned).collect();
    lines.iter().all(|line| !line.contains(['\r', '\n'])).then_some((lines, characters + 4))
}

/// Names in lower case only where that does not change what is compared: as they came.
fn fields(lines: &[String], limits: &HeadLimits) -> Option<Vec<(String, String)>> {
    let pairs = lines.iter().map(|line| {
        let (name, value) = line.split_once(':')?;
        (is_token(name) && is_visible(value)).then(|| (name.to_owned(), value.trim_matches([' ', '\t']).to_owned()))
    });
    let pairs: Vec<_> = pairs.collect::<Option<_>>()?;
    (pairs.len() <= limits.max_fields.min(256)).then_some(pairs)
}

fn values_of(fields: &[(String, String)], name: &str) -> Vec<String> {
    fields.iter().filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone()).collect()
}

fn options_of(fields: &[(String, String)]) -> Vec<String> {
    let lines = values_of(fields, "connection").join(",");
    lines.split(',').map(|option| option.trim_matches([' ', '\t']).to_owned()).filter(|o| !o.is_empty()).collect()
}

/// The framing of the body, if there is any, and the length that is given. Refused if there is doubt.
fn framing_of(fields: &[(String, String)], version: Version) -> Option<(Option<Framing>, Option<u64>)> {
    let length = match values_of(fields, "content-length").as_slice() {
        [] => None,
        [one] if !one.is_empty() && one.chars().all(|digit| digit.is_ascii_digit()) => {
            Some(one.parse::<u64>().ok().filter(|length| *length < 1 << 63)?)
        }
        _ => return None,
    };
    match values_of(fields, "transfer-encoding").as_slice() {
        [] => Some((length.map(Framing::Length), length)),
        [one] if one.eq_ignore_ascii_case("chunked") && length.is_none() && version == Version::Http11 => {
            Some((Some(Framing::Chunked), None))
        }
        _ => None,
    }
}

fn version_of(text: &str) -> Option<Version> {
    match text {
        "HTTP/1.1" => Some(Version::Http11),
        "HTTP/1.0" => Some(Version::Http10),
        _ => None,
    }
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic() && !"\"(),/:;<=>?@[\\]{}".contains(c))
}

fn is_visible(text: &str) -> bool {
    text.chars().all(|c| c == '\t' || (c >= ' ' && c != '\x7f'))
}

/// Authority, path, query.
fn target_of(target: &str, is_options: bool) -> Option<(Option<String>, String, Option<String>)> {
    if target.is_empty() || !target.chars().all(|c| c.is_ascii_graphic() && !"\"#<>".contains(c)) {
        return None;
    }
    if target == "*" {
        return is_options.then(|| (None, "*".to_owned(), None));
    }
    let (authority, rest) = if target.starts_with('/') {
        (None, target)
    } else {
        let (scheme, rest) = target.split_once("://")?;
        let is_ours = ["http", "https"].iter().any(|ours| scheme.eq_ignore_ascii_case(ours));
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        if !is_ours || authority.is_empty() || !is_authority(authority) {
            return None;
        }
        (Some(authority.to_owned()), rest)
    };
    let (path, query) = match rest.split_once('?') {
        Some((path, query)) => (path, Some(query.to_owned())),
        None => (rest, None),
    };
    let path = match path {
        "" if is_options && query.is_none() => "*",
        "" => "/",
        path => path,
    };
    Some((authority, path.to_owned(), query))
}

fn is_authority(text: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=".contains(c);
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    let port_is_valid = port.is_none_or(|port| {
        port.chars().all(|c| c.is_ascii_digit())
            && (port.is_empty() || port.parse::<u128>().unwrap_or(u128::MAX) < 65536)
    });
    if text.is_empty() {
        return true;
    }
    if let Some(literal) = host.strip_prefix('[') {
        let Some(inner) = literal.strip_suffix(']') else { return false };
        return port_is_valid && !inner.is_empty() && inner.chars().all(|c| c == ':' || is_name(c));
    }
    // Escapes are taken out, then no percent sign is left.
    let mut plain = host.to_owned();
    while let Some(at) = plain.find('%') {
        let Some(digits) = plain.get(at + 1..at + 3) else { return false };
        if !digits.chars().all(|c| c.is_ascii_hexdigit()) {
            return false;
        }
        plain.replace_range(at..at + 3, "x");
    }
    port_is_valid && !plain.is_empty() && plain.chars().all(is_name)
}
