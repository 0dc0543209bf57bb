//! Properties that hold for every input to `http1`. The fuzz targets of `fuzz/` look for one that breaks it;
//! `cargo test` tries the committed corpus.
//!
//! An input is four bytes that say how to read, then what is read: see [`Input`]. The expectations are computed the
//! naive way, from whole lines, and share no code with the room.

use crate::http1::{
    Body, Buffer, CHUNK_ROOM, ChunkPart, Fault, Framing, HeadEnd, HeadLimits, HeadWriter, Known, MAX_FIELDS,
    RequestHead, ResponseHead, Side, Version, write_chunk_head,
};

const WIDE: HeadLimits = HeadLimits { max_bytes: 16 * 1024, max_fields: 100 };
/// Small, so that they are met.
const NARROW: HeadLimits = HeadLimits { max_bytes: 96, max_fields: 3 };
/// For what was written from something accepted.
const WIDEST: HeadLimits = HeadLimits { max_bytes: 1 << 20, max_fields: MAX_FIELDS };

/// One input, as the fuzz targets and the corpus have it.
///
/// The lowest bits of its first byte: 1 for a response, 2 if it answers HEAD, 4 for narrow limits. The next three bytes
/// are the sizes of the pieces in which the rest comes, in turn.
#[derive(Clone, Copy)]
pub struct Input<'d> {
    /// From whom the message comes.
    pub side: Side,
    /// Whether responses answer HEAD.
    pub answers_head: bool,
    /// The bytes that come over the wire.
    pub bytes: &'d [u8],
    limits: HeadLimits,
    pieces: Pieces,
}

/// The sizes of pieces, used in turn.
type Pieces = [usize; 3];
const WHOLE: Pieces = [usize::MAX; 3];
const BYTES: Pieces = [1; 3];

impl<'d> Input<'d> {
    /// `None` if it is too short.
    pub fn of(data: &'d [u8]) -> Option<Self> {
        let ([options, pieces @ ..], bytes) = data.split_first_chunk::<4>()?;
        let [a, b, c] = pieces.map(|size| usize::from(size) % 48 + 1);
        Some(Self {
            side: if options & 1 == 0 { Side::Request } else { Side::Response },
            answers_head: options & 2 != 0,
            bytes,
            limits: if options & 4 == 0 { WIDE } else { NARROW },
            pieces: [a, b, c * 16],
        })
    }

    fn written(self, bytes: &'d [u8]) -> Self {
        Self { bytes, limits: WIDEST, ..self }
    }
}

/// One head: the same verdict however it is split, read as the naive way reads it, and the same again when written.
pub fn head(data: &[u8]) {
    let Some(input) = Input::of(data) else { return };
    let whole = read_head(input, WHOLE);
    for pieces in [BYTES, input.pieces] {
        assert_eq!(read_head(input, pieces), whole, "in pieces of {pieces:?}");
    }
    let length = match whole {
        Ok(Some(length)) => length,
        Ok(None) => {
            let bytes = input.bytes.strip_prefix(b"\r\n").unwrap_or(input.bytes);
            let lines = bytes.split(|byte| *byte == b'\n').count() - 1;
            assert!(
                input.bytes.len() < input.limits.max_bytes && lines <= input.limits.max_fields + 1,
                "waits in vain"
            );
            return;
        }
        Err(_) => return,
    };
    assert!(length <= input.limits.max_bytes);
    let head = &input.bytes[..length];
    let lines = Lines::of(head, input.side);
    assert!(lines.fields.len() <= input.limits.max_fields);
    match input.side {
        Side::Request => request_is_as_written(head, &lines),
        Side::Response => response_is_as_written(head, &lines, input.answers_head),
    }
    let written = rewrite(input.side, head, input.answers_head, Rewrite::All);
    let again = input.written(&written);
    assert_eq!(read_head(again, WHOLE), Ok(Some(written.len())), "{}", written.escape_ascii());
    assert_eq!(rewrite(input.side, &written, input.answers_head, Rewrite::All), written, "not idempotent");
    let (before, after) = (framing(input.side, head, input), framing(input.side, &written, again));
    assert_eq!(before, after, "another framing when written");
}

/// One chunked body: the same verdict however it is split, the naive decoder's content, and unchanged the second time.
pub fn chunk(data: &[u8]) {
    let Some(input) = Input::of(data) else { return };
    // One for all: what was read before must leave nothing behind.
    let mut body = Body::new(Framing::Length(7), ChunkPart::Content);
    let [as_is, content] = [ChunkPart::AsIs, ChunkPart::Content].map(|form| {
        let whole = read_body(&mut body, form, input.bytes, WHOLE);
        for pieces in [BYTES, input.pieces] {
            assert_eq!(read_body(&mut body, form, input.bytes, pieces), whole, "{form:?} in pieces of {pieces:?}");
        }
        whole
    });
    match (&as_is, &content) {
        (Err(fault), Err(other)) => assert_eq!(fault, other, "the form decides"),
        (Ok(a), Ok(b)) => assert_eq!((a.taken, a.content, a.is_complete), (b.taken, b.content, b.is_complete)),
        _ => panic!("the form decides: {as_is:?}, {content:?}"),
    }
    let naive = naive_chunked(input.bytes);
    let (Ok(as_is), Ok(content)) = (as_is, content) else {
        assert!(naive.is_none(), "refused: {naive:?}");
        return;
    };
    assert_eq!(content.written.len() as u64, content.content);
    let Some(naive) = naive.filter(|_| as_is.is_complete) else {
        assert!(!as_is.is_complete, "accepted");
        return;
    };
    assert_eq!((content.taken, &content.written), (naive.taken, &naive.content));
    let trailers =
        as_is.written.strip_prefix(naive.chunks.as_slice()).expect("chunks as they came, without extensions");
    may_be_passed_on(trailers, &naive.trailers);
    let again = read_body(&mut body, ChunkPart::AsIs, &as_is.written, input.pieces).expect("accepted the second time");
    assert_eq!((&again.written, again.taken), (&as_is.written, as_is.written.len()));
    let decoded = naive_chunked(&as_is.written).expect("well-formed");
    assert_eq!((decoded.content, decoded.taken), (naive.content, as_is.written.len()));
}

/// A whole connection, read as the proxy reads it: the same messages however it is split, and what is written on is
/// read as exactly these messages again.
pub fn framing_of_a_connection(data: &[u8]) {
    let Some(input) = Input::of(data) else { return };
    let whole = read_connection(input, WHOLE);
    for pieces in [BYTES, input.pieces] {
        assert_eq!(read_connection(input, pieces), whole, "in pieces of {pieces:?}");
    }
    let mut wire = Vec::new();
    let complete = || whole.messages.iter().filter(|message| message.is_complete);
    for message in complete() {
        write_message(input, message, &mut wire);
    }
    let again = read_connection(input.written(&wire), input.pieces);
    let contents = |messages: &[Message]| messages.iter().map(|message| message.content.clone()).collect::<Vec<_>>();
    assert_eq!(
        contents(&again.messages),
        complete().map(|message| message.content.clone()).collect::<Vec<_>>(),
        "written: {}",
        wire.escape_ascii()
    );
    assert!(again.messages.iter().all(|message| message.is_complete));
    assert_eq!(again.fault, None);
    let mut same = Vec::new();
    for message in &again.messages {
        write_message(input, message, &mut same);
    }
    assert_eq!(same, wire, "not idempotent");
}

/// Ends of the pieces of `length` bytes; the first piece is empty.
fn ends(length: usize, pieces: Pieces) -> impl Iterator<Item = usize> {
    let mut sizes = pieces.into_iter().cycle();
    std::iter::successors(Some(0), move |end: &usize| {
        let size = sizes.next().unwrap_or(1);
        (*end < length).then(|| end.saturating_add(size).min(length))
    })
}

/// The length of an accepted head; nothing if its end did not come.
fn read_head(input: Input<'_>, pieces: Pieces) -> Result<Option<usize>, Fault> {
    let mut search = HeadEnd::default();
    for end in ends(input.bytes.len(), pieces) {
        if let Some(length) = search.find(&input.bytes[..end], input.side, &input.limits)? {
            parse(input.side, &input.bytes[..length], input)?;
            return Ok(Some(length));
        }
    }
    Ok(None)
}

/// Parses with what other heads have filled before: nothing of them may be left.
fn parse(side: Side, head: &[u8], input: Input<'_>) -> Result<(), Fault> {
    const REQUESTS: [&[u8]; 2] = [
        b"OPTIONS http://b HTTP/1.0\r\nHost: a\r\nConnection: close, keep-alive, upgrade, x\r\nUpgrade: y\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n",
    ];
    const RESPONSES: [&[u8]; 2] = [
        b"HTTP/1.0 599 No\r\nConnection: close, keep-alive, upgrade, x\r\nUpgrade: y\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ];
    let (fresh, empty, parsed) = match side {
        Side::Request => {
            let mut fresh = RequestHead::default();
            let parsed = fresh.parse(head, &input.limits);
            (format!("{fresh:?}"), format!("{:?}", RequestHead::default()), parsed)
        }
        Side::Response => {
            let mut fresh = ResponseHead::default();
            let parsed = fresh.parse(head, &input.limits, input.answers_head);
            (format!("{fresh:?}"), format!("{:?}", ResponseHead::default()), parsed)
        }
    };
    let used = match side {
        Side::Request => REQUESTS.map(|request| {
            let mut used = parsed_request(request);
            assert_eq!(used.parse(head, &input.limits), parsed);
            format!("{used:?}")
        }),
        Side::Response => RESPONSES.map(|response| {
            let mut used = parsed_response(response, false);
            assert_eq!(used.parse(head, &input.limits, input.answers_head), parsed);
            format!("{used:?}")
        }),
    };
    assert_eq!(used, [fresh.as_str(); 2], "the head before left something");
    assert!(parsed.is_ok() || fresh == empty, "not empty after a fault");
    parsed
}

fn framing(side: Side, head: &[u8], input: Input<'_>) -> Framing {
    match side {
        Side::Request => parsed_request(head).framing(),
        Side::Response => parsed_response(head, input.answers_head).framing(),
    }
}

fn parsed_request(head: &[u8]) -> RequestHead {
    let mut request = RequestHead::default();
    request.parse(head, &WIDEST).expect("accepted before");
    request
}

fn parsed_response(head: &[u8], answers_head: bool) -> ResponseHead {
    let mut response = ResponseHead::default();
    response.parse(head, &WIDEST, answers_head).expect("accepted before");
    response
}

/// A head, read line by line.
struct Lines<'h> {
    first: &'h [u8],
    fields: Vec<(&'h [u8], &'h [u8])>,
}

impl<'h> Lines<'h> {
    /// Refuses, by panic, what may not be in an accepted head.
    fn of(head: &'h [u8], side: Side) -> Self {
        let head = if side == Side::Request { head.strip_prefix(b"\r\n").unwrap_or(head) } else { head };
        let mut rest = head.strip_suffix(b"\r\n\r\n").expect("ends in an empty line");
        let mut lines = Vec::new();
        while let Some(at) = rest.windows(2).position(|pair| pair == b"\r\n") {
            lines.push(&rest[..at]);
            rest = &rest[at + 2..];
        }
        lines.push(rest);
        assert!(lines.iter().all(|line| is_text(line)), "a control byte in a line");
        let fields = lines[1..].iter().map(|line| field(line).expect("name, colon, value")).collect();
        Self { first: lines[0], fields }
    }

    fn values(&self, name: &str) -> Vec<&'h [u8]> {
        let named = self.fields.iter().filter(|field| field.0.eq_ignore_ascii_case(name.as_bytes()));
        named.map(|field| field.1).collect()
    }

    /// The framing of the body by the fields, where they may tell it in one way only.
    fn framing(&self, version: Version) -> Framing {
        match (&self.values("content-length")[..], &self.values("transfer-encoding")[..]) {
            ([], []) => Framing::None,
            ([length], []) => {
                assert!(!length.is_empty() && length.iter().all(u8::is_ascii_digit), "accepted a length");
                Framing::Length(
                    u64::try_from(str::from_utf8(length).unwrap().parse::<i64>().expect("below 2^63")).unwrap(),
                )
            }
            ([], [coding]) if version == Version::Http11 && coding.eq_ignore_ascii_case(b"chunked") => Framing::Chunked,
            _ => panic!("accepted a framing"),
        }
    }
}

fn is_text(line: &[u8]) -> bool {
    line.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~' | 0x80..))
}

fn is_token(bytes: &[u8]) -> bool {
    let is_mark = |byte: &u8| b"!#$%&'*+-.^_`|~".contains(byte);
    !bytes.is_empty() && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || is_mark(byte))
}

fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':').filter(|at| is_token(&line[..*at]))?;
    let value = &line[colon + 1..];
    let is_seen = |byte: &u8| !matches!(byte, b' ' | b'\t');
    let value = match (value.iter().position(is_seen), value.iter().rposition(is_seen)) {
        (Some(first), Some(last)) => &value[first..=last],
        _ => &[],
    };
    Some((&line[..colon], value))
}

fn request_is_as_written(head: &[u8], lines: &Lines<'_>) {
    let parsed = parsed_request(head);
    let request = parsed.on(head);
    let words: Vec<&[u8]> = lines.first.split(|byte| *byte == b' ').collect();
    let [method, target, version] = words[..] else { panic!("three words") };
    assert!(is_token(method) && method != b"CONNECT" && method == request.method().as_bytes());
    assert!(target.iter().all(|byte| matches!(byte, 0x21..=0x7e) && !b"\"#<>".contains(byte)), "accepted a target");
    let version_read = if version == b"HTTP/1.1" { Version::Http11 } else { Version::Http10 };
    assert!(version == b"HTTP/1.1" || version == b"HTTP/1.0");
    assert_eq!(parsed.version(), version_read);
    assert_eq!(request.fields().collect::<Vec<_>>(), lines.fields);
    assert_eq!(parsed.framing(), lines.framing(version_read));
    let hosts = lines.values("host");
    assert!(hosts.len() == 1 || hosts.is_empty() && version_read == Version::Http10);
    for (name, _) in &lines.fields {
        let lower = name.to_ascii_lowercase();
        assert_eq!(request.field(&lower), lines.values(str::from_utf8(name).unwrap()).first().copied());
    }
    let query = request.query().map(|query| format!("?{query}")).unwrap_or_default();
    let resource = format!("{}{query}", request.path());
    let authority = request.authority().map(str::as_bytes);
    if target.starts_with(b"/") {
        assert_eq!((resource.as_bytes(), authority), (target, hosts.first().copied()));
        return;
    }
    if target == b"*" {
        assert_eq!(
            (method, request.path(), request.query(), authority),
            (&b"OPTIONS"[..], "*", None, hosts.first().copied())
        );
        return;
    }
    let after = target.windows(3).position(|three| three == b"://").expect("an absolute form") + 3;
    let scheme = target[..after].to_ascii_lowercase();
    assert!(scheme == b"http://" || scheme == b"https://");
    let authority = authority.expect("the target's own");
    assert!(target[after..].starts_with(authority) && !authority.is_empty());
    let written = &target[after + authority.len()..];
    let expected = match written {
        [b'/', ..] => written.to_vec(),
        [] if method == b"OPTIONS" => b"*".to_vec(),
        _ => [b"/", written].concat(),
    };
    assert_eq!(resource.as_bytes(), expected);
}

fn response_is_as_written(head: &[u8], lines: &Lines<'_>, answers_head: bool) {
    let parsed = parsed_response(head, answers_head);
    let response = parsed.on(head);
    let version = match &lines.first[..8] {
        b"HTTP/1.1" => Version::Http11,
        b"HTTP/1.0" => Version::Http10,
        other => panic!("accepted {other:?}"),
    };
    assert_eq!(parsed.version(), version);
    let status = str::from_utf8(&lines.first[9..12]).unwrap();
    assert_eq!((lines.first[8], status.parse()), (b' ', Ok(parsed.status())));
    assert!((100..1000).contains(&parsed.status()));
    let reason = lines.first.get(13..).unwrap_or_default();
    assert!(lines.first.get(12).is_none_or(|byte| *byte == b' ') && response.reason() == reason);
    assert_eq!(response.fields().collect::<Vec<_>>(), lines.fields);
    let has_none = answers_head || matches!(parsed.status(), 100..200 | 204 | 304);
    let expected = if has_none { Framing::None } else { lines.framing(version) };
    let expected = if expected == Framing::None && !has_none { Framing::UntilClose } else { expected };
    assert_eq!(parsed.framing(), expected);
    assert!(lines.values("content-length").len() < 2, "accepted two lengths");
}

/// The part of a head that is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rewrite {
    /// Every field.
    All,
    /// The part that a proxy passes on: nothing that speaks of the connection. Of an unframed body, chunks.
    PassedOn,
}

fn rewrite(side: Side, head: &[u8], answers_head: bool, what: Rewrite) -> Vec<u8> {
    let mut out = Vec::new();
    let passes = |known: Known| what == Rewrite::All || known == Known::TransferEncoding || !known.is_hop_by_hop();
    match side {
        Side::Request => {
            let parsed = parsed_request(head);
            let request = parsed.on(head);
            let is_old = parsed.version() == Version::Http10;
            let mut writer =
                HeadWriter::request(&mut out, request.method().as_bytes(), request.path_bytes(), request.query_bytes());
            writer.field(b"Host", request.authority().unwrap_or_default().as_bytes());
            // What HTTP/1.0 expects does not count; in 1.1 it would.
            let keep = |known, _, _| passes(known) && known != Known::Host && !(is_old && known == Known::Expect);
            request.copy_fields(keep, |piece| writer.piece(piece));
            writer.end();
        }
        Side::Response => {
            let parsed = parsed_response(head, answers_head);
            let response = parsed.on(head);
            let mut writer = HeadWriter::response(&mut out, response.status(), response.reason());
            response.copy_fields(|known, _, _| passes(known), |piece| writer.piece(piece));
            if what == Rewrite::PassedOn && parsed.framing() == Framing::UntilClose {
                writer.field(b"Transfer-Encoding", b"chunked");
            }
            writer.end();
        }
    }
    out
}

/// The result of reading a body.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    written: Vec<u8>,
    taken: usize,
    content: u64,
    is_complete: bool,
}

fn read_body(body: &mut Body, form: ChunkPart, bytes: &[u8], pieces: Pieces) -> Result<Read, Fault> {
    body.reset(Framing::Chunked, form);
    let (mut written, mut taken, mut start) = (Vec::new(), 0, 0);
    for end in ends(bytes.len(), pieces) {
        let mut piece = bytes[start..end].to_vec();
        start = end;
        let accepted = body.accept(&mut piece).inspect_err(|fault| {
            assert!(body.accept(&mut b"0\r\n\r\n".to_owned()) == Err(*fault) && !body.is_complete(), "forgave");
        })?;
        assert!(accepted.kept <= accepted.taken && accepted.taken <= piece.len());
        assert!(accepted.taken == piece.len() || body.is_complete(), "left a part of a token");
        written.extend_from_slice(&piece[..accepted.kept]);
        taken += accepted.taken;
        if body.is_complete() {
            written.extend_from_slice(body.tail());
            break;
        }
    }
    let is_complete = body.is_complete();
    let content = body.content();
    assert_eq!(body.end(), if is_complete { Ok(()) } else { Err(Fault::Truncated) });
    if is_complete {
        assert_eq!(body.accept(&mut b"0".to_owned()).map(|accepted| accepted.taken), Ok(0));
    }
    Ok(Read { written, taken, content, is_complete })
}

/// A whole chunked body.
#[derive(Debug)]
struct NaiveChunked<'b> {
    content: Vec<u8>,
    taken: usize,
    /// As they are to be written on, up to the line of the last chunk.
    chunks: Vec<u8>,
    trailers: Vec<(&'b [u8], &'b [u8])>,
}

/// RFC 9112, 7.1, line by line, with the room's bounds; `None` for what is not a whole body.
fn naive_chunked(bytes: &[u8]) -> Option<NaiveChunked<'_>> {
    let (mut content, mut chunks, mut trailers) = (Vec::new(), Vec::new(), Vec::new());
    let (mut rest, mut extensions, mut trailer_bytes, mut written_bytes) = (bytes, 0, 0, 0);
    loop {
        let line = take_line(&mut rest)?;
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let extension = &line[digits..];
        let spaces = extension.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        extensions += extension.len();
        let is_extension = extension.is_empty() || extension.get(spaces) == Some(&b';') && is_text(extension);
        if digits > 16 || !is_extension || extension.len() > 256 || extensions > 16 * 1024 {
            return None;
        }
        let size = u64::from_str_radix(str::from_utf8(&line[..digits]).ok()?, 16).ok()?;
        let size = usize::try_from(i64::try_from(size).ok()?).ok()?;
        chunks.extend_from_slice(&line[..digits]);
        chunks.extend_from_slice(b"\r\n");
        if size == 0 {
            break;
        }
        let data = rest.get(..size.checked_add(2)?)?;
        content.extend_from_slice(data.strip_suffix(b"\r\n")?);
        chunks.extend_from_slice(data);
        rest = &rest[data.len()..];
    }
    loop {
        let line = take_line(&mut rest)?;
        if line.is_empty() {
            return Some(NaiveChunked { content, taken: bytes.len() - rest.len(), chunks, trailers });
        }
        let (name, value) = field(line).filter(|_| is_text(line))?;
        trailers.push((name, value));
        trailer_bytes += line.len() + 2;
        written_bytes += name.len() + value.len() + 4;
        if trailers.len() > 32 || trailer_bytes.max(written_bytes) > 8 * 1024 {
            return None;
        }
    }
}

fn take_line<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let at = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let line = &rest[..at];
    *rest = &rest[at + 2..];
    Some(line)
}

/// Checks that this may stand behind the last chunk: some of the trailers, in order, and the empty line.
fn may_be_passed_on(section: &[u8], trailers: &[(&[u8], &[u8])]) {
    const NEVER: [&str; 8] =
        ["content-length", "transfer-encoding", "host", "connection", "trailer", "te", "authorization", "set-cookie"];
    let mut candidates = trailers.iter();
    let mut rest = section;
    while let Some(line) = take_line(&mut rest).filter(|line| !line.is_empty()) {
        let passed = field(line).expect("a field");
        assert!(candidates.any(|candidate| *candidate == passed), "made up or out of order");
        assert!(NEVER.iter().all(|name| !passed.0.eq_ignore_ascii_case(name.as_bytes())), "passed on");
    }
    assert!(rest.is_empty() && section.ends_with(b"\r\n"));
}

/// A message of a connection.
#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    /// The bytes of its head.
    pub head: Vec<u8>,
    /// How its body ends.
    pub framing: Framing,
    /// The body as it is written on.
    pub body: Vec<u8>,
    /// The content of its body.
    pub content: Vec<u8>,
    /// Whether its end came.
    pub is_complete: bool,
}

/// The results of reading a connection.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Transcript {
    /// Each message whose head was accepted.
    pub messages: Vec<Message>,
    /// Why nothing more is read.
    pub fault: Option<Fault>,
    /// Whether the last message ends the connection.
    pub is_closing: bool,
}

/// Reads a connection in one piece.
pub fn transcript(input: Input<'_>) -> Transcript {
    read_connection(input, WHOLE)
}

fn read_connection(input: Input<'_>, pieces: Pieces) -> Transcript {
    let mut reader = Reader::new(input);
    let mut start = 0;
    for end in ends(input.bytes.len(), pieces) {
        let mut piece = &input.bytes[start..end];
        start = end;
        while !piece.is_empty() && reader.is_open() {
            let room = reader.buffer.room();
            let size = room.len().min(piece.len());
            room[..size].copy_from_slice(&piece[..size]);
            reader.buffer.advance(size);
            piece = &piece[size..];
            if let Err(fault) = reader.read_messages() {
                reader.refuse(fault);
            }
        }
    }
    reader.close()
}

/// Reads messages from one buffer, as the proxy does: the head stays in front while its body comes behind it.
struct Reader<'d> {
    input: Input<'d>,
    buffer: Buffer,
    search: HeadEnd,
    request: RequestHead,
    response: ResponseHead,
    body: Body,
    content: Body,
    /// Of the message whose body is coming.
    head_bytes: Option<usize>,
    transcript: Transcript,
}

impl<'d> Reader<'d> {
    fn new(input: Input<'d>) -> Self {
        Self {
            input,
            buffer: Buffer::with_capacity(32),
            search: HeadEnd::default(),
            request: RequestHead::default(),
            response: ResponseHead::default(),
            body: Body::new(Framing::None, ChunkPart::AsIs),
            content: Body::new(Framing::None, ChunkPart::Content),
            head_bytes: None,
            transcript: Transcript::default(),
        }
    }

    fn is_open(&self) -> bool {
        self.transcript.fault.is_none() && !self.transcript.is_closing
    }

    /// Reads as many messages as are there, and makes room for more.
    fn read_messages(&mut self) -> Result<(), Fault> {
        while self.is_open() {
            let Some(head_bytes) = self.read_head()? else { return Ok(()) };
            let piece = &mut self.buffer.filled_mut()[head_bytes..];
            let mut copy = piece.to_vec();
            let accepted = self.body.accept(piece)?;
            let of_content = self.content.accept(&mut copy)?;
            assert_eq!(accepted.taken, of_content.taken);
            let message = self.transcript.messages.last_mut().expect("it began");
            message.body.extend_from_slice(&piece[..accepted.kept]);
            message.content.extend_from_slice(&copy[..of_content.kept]);
            if !self.body.is_complete() {
                self.buffer.truncate(head_bytes);
                if self.buffer.room().is_empty() {
                    let capacity = self.buffer.capacity();
                    self.buffer.grow(capacity * 2);
                }
                return Ok(());
            }
            message.body.extend_from_slice(self.body.tail());
            message.is_complete = true;
            self.buffer.consume(head_bytes + accepted.taken);
            self.head_bytes = None;
            self.transcript.is_closing = match self.input.side {
                Side::Request => !self.request.is_persistent(),
                Side::Response => !self.response.is_persistent() || self.response.status() == 101,
            };
        }
        Ok(())
    }

    /// How long the current head is; `None` if its end is not there, and then there is room for more.
    fn read_head(&mut self) -> Result<Option<usize>, Fault> {
        if self.head_bytes.is_some() {
            return Ok(self.head_bytes);
        }
        if let Some(head_bytes) = self.search.find(self.buffer.filled(), self.input.side, &self.input.limits)? {
            return self.begin(head_bytes).map(Some);
        }
        if self.buffer.room().is_empty() {
            self.buffer.compact();
            let more = self.buffer.capacity() * 4;
            self.buffer.grow(more.min(self.input.limits.max_bytes + 1));
        }
        assert!(!self.buffer.room().is_empty(), "no room for what may still come");
        Ok(None)
    }

    fn begin(&mut self, head_bytes: usize) -> Result<usize, Fault> {
        self.search.reset();
        let head = &self.buffer.filled()[..head_bytes];
        let framing = match self.input.side {
            Side::Request => self.request.parse(head, &self.input.limits).map(|()| self.request.framing())?,
            Side::Response => {
                let parsed = self.response.parse(head, &self.input.limits, self.input.answers_head);
                parsed.map(|()| self.response.framing())?
            }
        };
        self.body.reset(framing, ChunkPart::AsIs);
        self.content.reset(framing, ChunkPart::Content);
        let head = head.to_vec();
        let (body, content) = (Vec::new(), Vec::new());
        self.transcript.messages.push(Message { head, framing, body, content, is_complete: false });
        self.head_bytes = Some(head_bytes);
        Ok(head_bytes)
    }

    fn refuse(&mut self, fault: Fault) {
        self.transcript.fault = Some(fault);
        // How much of a body comes before a fault in it depends on the pieces. It is not written on.
        if let Some(message) = self.transcript.messages.last_mut().filter(|message| !message.is_complete) {
            message.body.clear();
            message.content.clear();
        }
    }

    /// The sender closes.
    fn close(mut self) -> Transcript {
        if self.head_bytes.is_some() && self.transcript.fault.is_none() {
            let ended = self.body.end();
            let message = self.transcript.messages.last_mut().expect("it began");
            message.is_complete = message.framing == Framing::UntilClose;
            assert_eq!(ended, if message.is_complete { Ok(()) } else { Err(Fault::Truncated) });
        }
        self.transcript
    }
}

/// Writes a whole message as it is passed on.
fn write_message(input: Input<'_>, message: &Message, wire: &mut Vec<u8>) {
    wire.extend(rewrite(input.side, &message.head, input.answers_head, Rewrite::PassedOn));
    if message.framing != Framing::UntilClose {
        wire.extend_from_slice(&message.body);
        return;
    }
    let mut room = [0; CHUNK_ROOM];
    if !message.body.is_empty() {
        let used = write_chunk_head(&mut room, message.body.len() as u32);
        wire.extend_from_slice(&room[CHUNK_ROOM - used..]);
        wire.extend_from_slice(&message.body);
        wire.extend_from_slice(b"\r\n");
    }
    let used = write_chunk_head(&mut room, 0);
    wire.extend_from_slice(&room[CHUNK_ROOM - used..]);
    wire.extend_from_slice(b"\r\n");
}
