//! The time of an exchange with a server: its alarm, and the part of it that is overdue.

use super::halves::Phase;
use super::relay::{Bounds, Relay};
use crate::client::PROBE;
use crate::deadlines::{ExchangeStage, ExchangeTimeouts, Overdue};
use crate::endings::{ExchangeError, TimeoutKind};
use crate::exchange::Exchange;
use crate::flights::FlightPhase;
use crate::scratch::Scratch;
use sluicegate_http1::Version;
use sluicegate_time::{Span, Tick};

/// How soon one that has held it so long looks again whether others wait.
const HELD_AGAIN: Span = Span::from_millis(250);
/// The most zeros before the size of a chunk: some clients count digits.
const MAX_DIGITS_AHEAD: u8 = 3;

impl Relay<'_> {
    /// Sets the alarm for the first thing that may be overdue.
    pub(super) fn wait(&mut self) {
        if self.down.phase == Phase::Body {
            self.exchange.set_phase(FlightPhase::Answering);
        }
        let (patience, standing) = (self.patience(), self.standing());
        let Exchange { worker, connection, scratch, .. } = &mut *self.exchange;
        let is_unread = scratch.upload.is_complete() && scratch.inbound.room().is_empty();
        let is_held = self.up.has_failed || !scratch.to_upstream.is_empty();
        let is_unread = is_unread || !scratch.upload.is_complete() && is_held;
        let look = self.client.next_look(is_unread, worker.alarms.coarse_now());
        let look = if self.up.is_left { Tick::MAX } else { look };
        let due = scratch.timers.next(&patience, &standing, worker.alarms.coarse_now());
        let due = if holds_place(scratch, &standing) { due.min(scratch.state.held.upload_until) } else { due };
        worker.alarms.set(&connection.alarm, due.min(look).min(self.up.continue_at));
    }

    fn patience(&self) -> ExchangeTimeouts {
        let Bounds { deadline, respond_by, .. } = *self.bounds;
        let server = self.exchange.view.snapshot.server();
        let endless = respond_by == Tick::MAX;
        ExchangeTimeouts {
            deadline,
            respond_by,
            response_timeout: if endless { Span::MAX } else { respond_by.since(self.exchange.arrived) },
            idle: server.body_timeout,
            min_body_rate: server.min_body_rate.unwrap_or(0),
        }
    }

    /// Where the exchange stands.
    fn standing(&self) -> ExchangeStage {
        let Scratch { upload, to_upstream, .. } = &*self.exchange.scratch;
        let is_uploading = !upload.is_complete() || !to_upstream.is_empty();
        ExchangeStage {
            is_answered: self.down.phase != Phase::Head,
            is_uploading,
            waits_for_client: !upload.is_complete() && to_upstream.is_empty() && !self.up.has_failed,
            is_moving: is_uploading || self.down.phase == Phase::Body,
            uploaded: upload.content(),
            moved_at: self.moved_at(),
        }
    }

    /// Whether all of an answer of HTTP/1.1 is held for its pace.
    fn is_held_whole(&self) -> bool {
        let Exchange { worker, scratch, begun, .. } = &*self.exchange;
        let held_until = scratch.state.pacing.as_ref().map_or(Tick::ZERO, |pacing| pacing.down.held_until());
        let is_unsent = !begun && scratch.to_client.is_unsent();
        is_unsent && held_until > worker.alarms.coarse_now() && scratch.request.version() == Version::Http11
    }

    /// When a byte moved last, or could have: what is held for its pace is nobody's delay.
    fn moved_at(&self) -> Tick {
        self.exchange
            .scratch
            .state
            .pacing
            .as_ref()
            .map_or(self.moved_at, |pacing| pacing.held_until().max(self.moved_at))
    }

    pub(super) fn look_at_the_time(&mut self) -> Result<(), ExchangeError> {
        if self.exchange.is_cancelled() {
            return Err(ExchangeError::Cancelled);
        }
        let now = self.exchange.worker.alarms.coarse_now();
        let (patience, standing) = (self.patience(), self.standing());
        let scratch = &mut *self.exchange.scratch;
        let overdue = scratch.timers.overdue(&patience, &standing, now);
        if let Some(overdue) = overdue {
            return Err(ExchangeError::Timeout(match (overdue, self.down.phase, scratch.to_client.is_empty()) {
                (Overdue::Deadline, ..) => TimeoutKind::Deadline,
                (Overdue::Head, ..) => TimeoutKind::Head,
                (Overdue::SlowBody, ..) => TimeoutKind::ClientDrips,
                (Overdue::Idle, Phase::Body, false) => TimeoutKind::ClientReads,
                (Overdue::Idle, Phase::Body, true) if !standing.is_uploading => TimeoutKind::UpstreamSends,
                (Overdue::Idle, ..) if scratch.to_upstream.is_empty() => TimeoutKind::ClientSends,
                (Overdue::Idle, ..) => TimeoutKind::UpstreamReads,
            }));
        }
        if now >= scratch.state.held.upload_until && holds_place(scratch, &standing) {
            scratch.state.held.upload_until = now + HELD_AGAIN;
            if scratch.state.held.place.as_mut().is_some_and(|place| place.give_up(now)) {
                return Err(ExchangeError::Timeout(TimeoutKind::ClientHolds));
            }
        }
        if self.up.is_left {
            return Ok(());
        }
        let probe = self.client.look(now)?;
        let is_free = self.down.phase == Phase::Head && scratch.to_client.is_empty();
        let is_awaited = now >= self.up.continue_at;
        if (is_awaited || probe) && is_free && scratch.request.version() == Version::Http11 {
            self.up.continue_at = Tick::MAX;
            scratch.to_client.made().extend_from_slice(PROBE);
        } else if probe && self.is_held_whole() {
            self.client.probe_now()?;
        } else if probe && self.down.phase == Phase::Body {
            self.probe_in_body();
        }
        Ok(())
    }

    /// The exchange broke. A client that was asked by the digits of a size, and no more of the body came, could take these
    /// zeros and the end of the connection for the last chunk: a reset tells that the body is not complete.
    pub fn ends_in_a_size(&mut self) {
        if self.down.digits_ahead > 0 {
            self.client.stream.abort();
        }
    }

    /// Asks a client that has closed its side, between two chunks of a body that pauses: a zero before the digits of a size
    /// changes nothing (RFC 9112, 7.1), and the kernel of a client that has gone answers it with a reset.
    fn probe_in_body(&mut self) {
        let Scratch { to_client, download, request, .. } = &mut *self.exchange.scratch;
        let is_between = self.down.chunks || download.is_between_chunks();
        let is_old = request.version() == Version::Http10;
        if is_old || !is_between || self.down.digits_ahead >= MAX_DIGITS_AHEAD || !to_client.is_empty() {
            return;
        }
        self.down.digits_ahead += 1;
        let ends_chunk = std::mem::take(&mut self.down.in_chunk);
        to_client.made().extend_from_slice(if ends_chunk { b"\r\n0" } else { b"0" });
    }
}

/// Whether a place at the upstream is held for a client that sends its request.
fn holds_place(scratch: &Scratch, standing: &ExchangeStage) -> bool {
    standing.waits_for_client && !standing.is_answered && scratch.state.held.place.is_some()
}
