//! Conformance of the server's side of HTTP/2: tables of what a client sends, to the byte, and what it must see.
//!
//! `generic`, `states`, `http2` and `hpack` have a row for each case of the public suite that is called `h2spec`, by its
//! groups' names and numbers (those of RFC 7540, which RFC 9113 has kept but for 8.1); `strict` and its like have what
//! that suite does not ask. A row is stricter than the case: an end without a GOAWAY is no connection error, and an error
//! has the code that the RFC gives it.

mod generic;
mod hpack;
mod http2;
mod sends;
mod states;
mod strict;
mod strict_encoder;
mod strict_hpack;
mod strict_windows;

use std::io;
use std::net::SocketAddr;
use std::thread;

use crate::support::Backend;
use crate::wire::{front, ok};

use super::frames::{
    DATA, END_STREAM, Frame, GOAWAY, HEADERS, NO_ERROR, PING, RESET, Raw, SETTINGS, WHOLE, frame, request,
};
use sends::head;

/// Bytes of the answer to `/large`, more than the windows of a client that opens none.
pub const LARGE: usize = 300_000;
/// The stream on which a connection shows that it goes on: above those of the rows.
const LATER: u32 = 4097;
/// An answer whose head speaks of the connection (RFC 9110, 7.6.1).
const OF_A_CONNECTION: &str = "HTTP/1.1 200 OK\r\nUpper-Case: 1\r\nConnection: keep-alive, hop\r\nHop: 1\r\n\
                               Keep-Alive: timeout=5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
const AND_ON: &[u8] = b"and on..";

/// One thing that a row does.
pub enum Turn {
    /// Sends these bytes in one write.
    Send(Vec<u8>),
    /// Waits for the end of the answer on a stream.
    Ended(u32),
    /// Waits until this many SETTINGS were acknowledged, the preface's among them.
    Acked(usize),
    /// Waits until this much data came on a stream in all.
    Came(u32, usize),
}

/// The result that has to be seen then.
pub enum Must {
    /// A connection error: GOAWAY with one of these codes, and the end of the connection (5.4.1).
    End(&'static [u32]),
    /// The end of a connection whose preface was none. GOAWAY may be left out (3.4).
    Refuse,
    /// A stream error: `RST_STREAM` with one of these codes, and a connection that goes on (5.4.2).
    Reset(u32, &'static [u32]),
    /// Either of them, where the RFC leaves the choice.
    Fail(u32, &'static [u32]),
    /// A whole answer: 200 and this body.
    Answer(u32, &'static str),
    /// This much data on a stream and no more, and a connection that goes on.
    Bytes(u32, usize),
    /// Acknowledgements of PING with just these bytes, in this order, and a connection that goes on.
    Pongs(&'static [&'static [u8]]),
    /// No error of any kind, and a connection that goes on.
    GoOn,
    /// The same, or an end that is not for an error: for a client that has said GOAWAY itself.
    GoOnOrEnd,
    /// Something of the row's own.
    Hold(fn(&mut Case) -> Result<(), String>),
}

/// One case: its name, which tells what is sent, what is done, and what must be seen.
pub struct Row {
    pub name: &'static str,
    is_silent: bool,
    turns: Vec<Turn>,
    must: Must,
}

/// A row that sends this on a connection whose settings are exchanged.
pub fn row(name: &'static str, sent: Vec<u8>, must: Must) -> Row {
    rows(name, vec![Turn::Send(sent)], must)
}

/// A row of several turns.
pub fn rows(name: &'static str, turns: Vec<Turn>, must: Must) -> Row {
    Row { name, is_silent: false, turns, must }
}

/// A row that sends this on a connection on which nothing was said.
pub fn first(name: &'static str, sent: Vec<u8>, must: Must) -> Row {
    Row { name, is_silent: true, turns: vec![Turn::Send(sent)], must }
}

/// The connection of a row, and what came on it beside what [`Raw`] keeps.
pub struct Case {
    pub raw: Raw,
    acks: usize,
    pongs: Vec<Vec<u8>>,
    is_over: bool,
}

impl Case {
    /// Reads until `found` has something to give.
    pub fn until<T>(&mut self, found: impl Fn(&Self) -> Option<T>) -> Result<T, String> {
        loop {
            if let Some(found) = found(self) {
                return Ok(found);
            }
            if self.is_over {
                return Err(format!("the connection has ended; {}", self.story()));
            }
            self.read()?;
        }
    }

    /// The data that came on a stream.
    pub fn came(&self, stream: u32) -> usize {
        self.raw.body(stream).len()
    }

    /// The answer on a stream has come whole.
    pub fn answer(&mut self, stream: u32) -> Result<(u16, String), String> {
        self.until(|case| {
            let ends = |frame: &Frame| matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0;
            let is_reset = !case.raw.resets(stream).is_empty();
            (is_reset || case.raw.seen.iter().any(|frame| frame.stream == stream && ends(frame))).then_some(())
        })?;
        let (status, body) = (self.raw.status(stream), self.raw.body(stream));
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// All that was sent is read, a new request is answered, and no error was said but a stream's that is expected.
    pub fn goes_on(&mut self, but: Option<u32>) -> Result<(), String> {
        let asked = head(WHOLE, LATER, &request("GET", "/local"));
        self.raw.send_bytes(&[frame(PING, 0, 0, AND_ON), asked].concat());
        self.until(|case| {
            let is_answered = case.raw.seen.iter().any(|frame| frame.kind == HEADERS && frame.stream == LATER);
            (is_answered && case.pongs.iter().any(|pong| pong == AND_ON)).then_some(())
        })?;
        let said = |frame: &&Frame| frame.kind == GOAWAY || frame.kind == RESET && Some(frame.stream) != but;
        match self.raw.seen.iter().find(said) {
            None => Ok(()),
            Some(frame) => Err(format!("{frame:?} came; {}", self.story())),
        }
    }

    /// To the end of the connection; the code of its last GOAWAY.
    fn end(&mut self) -> Result<Option<u32>, String> {
        while !self.is_over {
            self.read()?;
        }
        Ok(self.raw.seen.iter().rev().find(|frame| frame.kind == GOAWAY).map(Frame::code))
    }

    fn read(&mut self) -> Result<(), String> {
        match self.raw.event() {
            Ok(frame) if frame.kind == SETTINGS && frame.flags & 1 != 0 => {
                self.acks += 1;
                let is_right = frame.payload.is_empty() && frame.stream == 0;
                if is_right { Ok(()) } else { Err(format!("{frame:?} is no acknowledgement")) }
            }
            Ok(frame) if frame.kind == PING && frame.flags & 1 != 0 => {
                self.pongs.push(frame.payload);
                if frame.stream == 0 { Ok(()) } else { Err("a PING on a stream came".to_owned()) }
            }
            Ok(_) => Ok(()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Err(format!("nothing more comes; {}", self.story()))
            }
            Err(_) => {
                self.is_over = true;
                Ok(())
            }
        }
    }

    /// The frames that came, in short form.
    fn story(&self) -> String {
        let frames = self.raw.seen.iter().map(|frame| match frame.kind {
            RESET => format!("RST_STREAM {} of {}", frame.code(), frame.stream),
            GOAWAY => format!("GOAWAY {}", frame.code()),
            HEADERS => format!("HEADERS {:#x} of {}: {}", frame.flags, frame.stream, self.raw.status(frame.stream)),
            kind => format!("kind {kind}, flags {:#x}, {} bytes of {}", frame.flags, frame.payload.len(), frame.stream),
        });
        format!("seen: {}", frames.collect::<Vec<_>>().join("; "))
    }

    fn take(&mut self, turn: &Turn) -> Result<(), String> {
        match turn {
            Turn::Send(bytes) => {
                self.raw.send_bytes(bytes);
                Ok(())
            }
            Turn::Ended(stream) => self.answer(*stream).map(drop),
            Turn::Acked(count) => self.until(|case| (case.acks >= *count).then_some(())),
            Turn::Came(stream, size) => self.until(|case| (case.came(*stream) >= *size).then_some(())),
        }
    }

    fn see(&mut self, must: &Must) -> Result<(), String> {
        match must {
            Must::End(codes) => match self.end()? {
                Some(code) if codes.contains(&code) => Ok(()),
                other => Err(format!("GOAWAY {other:?}, and not of {codes:?}; {}", self.story())),
            },
            Must::Refuse => self.end().map(drop),
            Must::Reset(stream, codes) => {
                let code = self.until(|case| case.raw.resets(*stream).first().copied())?;
                if !codes.contains(&code) {
                    return Err(format!("RST_STREAM {code}, and not of {codes:?}; {}", self.story()));
                }
                self.goes_on(Some(*stream))
            }
            Must::Fail(stream, codes) => {
                self.until(|case| (case.is_over || !case.raw.resets(*stream).is_empty()).then_some(()))?;
                let code = match self.raw.resets(*stream).first() {
                    Some(code) => Some(*code),
                    None => self.end()?,
                };
                match code {
                    Some(code) if codes.contains(&code) => Ok(()),
                    other => Err(format!("{other:?}, and not of {codes:?}; {}", self.story())),
                }
            }
            Must::Answer(stream, body) => {
                let answer = self.answer(*stream)?;
                if answer == (200, (*body).to_owned()) { Ok(()) } else { Err(format!("{answer:?}; {}", self.story())) }
            }
            Must::Bytes(stream, size) => {
                self.until(|case| (case.came(*stream) >= *size).then_some(()))?;
                self.goes_on(None)?;
                let came = self.came(*stream);
                if came == *size { Ok(()) } else { Err(format!("{came} bytes; {}", self.story())) }
            }
            Must::Pongs(bytes) => {
                self.goes_on(None)?;
                let came: Vec<&[u8]> = self.pongs.iter().map(Vec::as_slice).collect();
                let is_so = came.split_last() == Some((&AND_ON, *bytes));
                if is_so { Ok(()) } else { Err(format!("pongs {came:x?}; {}", self.story())) }
            }
            Must::GoOn => self.goes_on(None),
            Must::GoOnOrEnd => {
                self.raw.send(PING, 0, 0, AND_ON);
                self.until(|case| (case.is_over || !case.pongs.is_empty()).then_some(()))?;
                let is_error = |frame: &Frame| frame.kind == GOAWAY && frame.code() != NO_ERROR;
                if self.raw.seen.iter().any(is_error) { Err(self.story()) } else { Ok(()) }
            }
            Must::Hold(holds) => holds(self),
        }
    }
}

fn run(row: &Row, address: SocketAddr) -> Result<(), String> {
    let mut raw = if row.is_silent { Raw::silent(address) } else { Raw::open(address) };
    raw.credits = false;
    let mut case = Case { raw, acks: 0, pongs: Vec::new(), is_over: false };
    for turn in &row.turns {
        case.take(turn)?;
    }
    case.see(&row.must)
}

/// Runs all rows at once, each over a connection of its own to one gateway; tells all that fail by their names.
pub fn check(rows: &[Row]) {
    let backend = echoing();
    let gateway = front(&backend);
    let address = gateway.address();
    let wrong: Vec<String> = thread::scope(|scope| {
        let running: Vec<_> = rows.iter().map(|row| (row.name, scope.spawn(move || run(row, address)))).collect();
        let end = |(name, run): (&str, thread::ScopedJoinHandle<'_, Result<(), String>>)| match run.join() {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some(format!("{name}: {why}")),
            Err(_) => Some(format!("{name}: a panic")),
        };
        running.into_iter().filter_map(end).collect()
    });
    assert!(wrong.is_empty(), "{} of {} fail\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    assert_eq!(Raw::open(address).ask("/echo"), (200, "0;".to_owned()));
}

/// Answers with the size of the body and the values of `x-a`, of `user-agent` and of the trailers' `x-a`; `/large` with
/// [`LARGE`] bytes, `/fields` with fields of a connection of HTTP/1; `/held` never.
fn echoing() -> Backend {
    Backend::scripted(|wire, _| {
        while let Ok(mut request) = wire.head() {
            if request.target() == "/held" {
                drop(wire.rest());
                return;
            }
            let Ok(()) = wire.body_of(&mut request) else { return };
            match request.target() {
                "/large" => {
                    wire.send(ok(&"x".repeat(LARGE)));
                    continue;
                }
                "/fields" => {
                    wire.send(OF_A_CONNECTION);
                    continue;
                }
                _ => {}
            }
            let trailing = request.trailers.iter().filter(|(name, _)| name == "x-a").map(|(_, value)| value.as_str());
            let values: Vec<&str> =
                request.all("x-a").into_iter().chain(request.all("user-agent")).chain(trailing).collect();
            wire.send(ok(&format!("{};{}", request.body.len(), values.join(","))));
        }
    })
}

/// A test for each section of a table, and [`all`] their rows.
macro_rules! sections {
    ($($test:ident: $rows:ident,)*) => {
        pub fn all() -> Vec<super::Row> {
            vec![$($rows()),*].into_iter().flatten().collect()
        }

        $(
            #[test]
            fn $test() {
                super::check(&$rows());
            }
        )*
    };
}
use sections;

#[test]
fn there_is_a_row_for_each_case_of_the_public_suite_and_one_for_its_strict_one() {
    let all: Vec<Row> = [generic::all(), states::all(), http2::all(), hpack::all()].into_iter().flatten().collect();
    for (group, count) in [("generic ", 44), ("http2 ", 95), ("hpack ", 8)] {
        assert_eq!(all.iter().filter(|row| row.name.starts_with(group)).count(), count, "{group}");
    }
    assert_eq!(all.len(), 146 + 1);
}

#[test]
fn no_two_rows_have_one_name() {
    let tables = [generic::all(), states::all(), http2::all(), hpack::all()];
    let strict = [strict::all(), strict_windows::all(), strict_hpack::all(), strict_encoder::all()];
    assert!(strict.iter().flatten().all(|row| row.name.starts_with("strict ")));
    let mut names: Vec<&str> = tables.iter().chain(&strict).flatten().map(|row| row.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}
