//! The beginning of a request whose head is here, over either protocol.

use crate::exchange::Exchange;
use crate::scratch::{BUFFER_BYTES, Scratch};
use sluicegate_http1::{ChunkPart, Fault, HeadLimits};

/// Reads the head, and what came with it of the body.
pub fn begin(exchange: &mut Exchange) -> Result<(), Fault> {
    let limits = exchange.view.snapshot.head_limits();
    let Scratch { inbound, request, upload, .. } = &mut *exchange.scratch;
    // Its limits may be those of an older configuration than the exchange's: the head is here, so it is read.
    let limits = HeadLimits { max_bytes: limits.max_bytes.max(inbound.head().len()), ..limits };
    if let Err(fault) = request.parse(inbound.head(), &limits) {
        inbound.discard_head();
        return Err(fault);
    }
    upload.reset(request.framing(), ChunkPart::AsIs);
    inbound.accept(upload)?;
    if !upload.is_complete() && inbound.room().len() < BUFFER_BYTES / 4 {
        let capacity = inbound.capacity();
        inbound.grow(capacity + BUFFER_BYTES);
    }
    Ok(())
}
