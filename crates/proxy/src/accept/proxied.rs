//! Connections that a proxy in front passes on, each with a PROXY header before its first byte.
//!
//! Whether there is one is the listener's to say and never guessed: on a listener that requires it everything else is
//! closed, and on one that does not a header is a fault like any other bytes that are no HTTP.

use std::net::SocketAddr;
use std::rc::Rc;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::first_byte::{Spoken, first_byte, in_time};
use crate::client::{ClientAccount, Listening};
use crate::deadlines::Alarm;
use crate::meters::HeaderResult;
use crate::worker::Worker;
use sluicegate_proxy_protocol as proxy_protocol;
use sluicegate_proxy_protocol::{Fault, Header, HeaderRead, MAX_HEADER_BYTES};
use sluicegate_time::Tick;

/// Why there is no header.
enum NoHeader {
    Gone,
    Fault(Fault),
}

/// The header of a connection, if it comes before `due`; the operator is told why if not.
pub async fn read_header(
    worker: &Rc<Worker>,
    stream: &mut TcpStream,
    peer: SocketAddr,
    account: &ClientAccount,
    listening: &Listening,
    due: Tick,
) -> Option<Rc<Header>> {
    let alarm = Rc::<Alarm>::default();
    // A silent connection has no room for a header yet, and no part in a listener that closes.
    let spoken = first_byte(worker, &alarm, due, account, listening, stream).await;
    let read = match spoken {
        Spoken::Yes => in_time(worker, &alarm, due, None, read(stream)).await,
        Spoken::NotInTime | Spoken::Dismissed => None,
    };
    worker.alarms.cancel(&alarm);
    if spoken == Spoken::Dismissed || spoken == Spoken::NotInTime && listening.is_closing() {
        return None;
    }
    worker.connections.header_read(match &read {
        None => HeaderResult::Timeout,
        Some(Err(NoHeader::Gone)) => HeaderResult::ClientGone,
        Some(Err(NoHeader::Fault(_))) => HeaderResult::Malformed,
        Some(Ok(header)) if header.endpoints.is_none() => HeaderResult::Local,
        Some(Ok(_)) => HeaderResult::Proxied,
    });
    let (reason, text) = match read {
        Some(Ok(header)) => return Some(Rc::new(header)),
        // Balancers look in this way whether somebody listens: that is no news.
        Some(Err(NoHeader::Gone)) => return None,
        Some(Err(NoHeader::Fault(fault))) => (fault.word(), fault.to_string()),
        None => ("timeout", "No PROXY header came within handshake_timeout.".to_owned()),
    };
    if let Some(more) = worker.proxy_reports.due(worker.clock.now()) {
        let listener = listening.name();
        tracing::warn!(
            target: "sluicegate::proxy::accept::proxied", %peer, %listener, reason, more,
            "closed a connection to a listener with proxy_protocol = \"required\": {text}"
        );
    }
    // Nothing is answered: who does not speak as was agreed is no client.
    drop(stream.set_zero_linger());
    None
}

/// Closes a connection of somebody who may not say for whom it is.
#[cold]
pub fn turn_away(worker: &Worker, stream: &TcpStream, peer: SocketAddr, listener: &str) {
    worker.connections.header_read(HeaderResult::Unlisted);
    if let Some(more) = worker.proxy_reports.due(worker.clock.now()) {
        tracing::warn!(
            target: "sluicegate::proxy::accept::proxied", %peer, %listener, more,
            "closed a connection to a listener with proxy_protocol = \"required\": proxy_protocol_from does not list its peer"
        );
    }
    drop(stream.set_zero_linger());
}

/// Takes the header from the socket, and no byte of what follows it: that is for TLS or HTTP to read.
async fn read(stream: &mut TcpStream) -> Result<Header, NoHeader> {
    let mut bytes = vec![0; MAX_HEADER_BYTES];
    let mut taken = 0;
    loop {
        let room = bytes.get_mut(taken..).unwrap_or_default();
        let come = stream.peek(room).await.map_err(|_| NoHeader::Gone)?;
        if come == 0 {
            return Err(NoHeader::Gone);
        }
        let here = bytes.get(..taken + come).unwrap_or_default();
        let (header, end) = match proxy_protocol::read(here).map_err(NoHeader::Fault)? {
            HeaderRead::Complete { header, length } => (Some(header), length),
            // All of it is of the header. It is taken, or the socket would be readable for ever.
            HeaderRead::Partial => (None, here.len()),
        };
        let part = bytes.get_mut(taken..end).unwrap_or_default();
        stream.read_exact(part).await.map_err(|_| NoHeader::Gone)?;
        taken = end;
        if let Some(header) = header {
            return Ok(header);
        }
    }
}
