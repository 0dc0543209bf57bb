//! The bounds that keep one direction of a tunnel from going on as fast as it can.

use std::task::{Context, Poll, ready};

use super::message_gate::{Gate, Passed};
use super::websocket::Frames;
use crate::exchange::Exchange;
use crate::meters::Over;
use crate::scratch::{BandwidthGate, Hold, Scratch};
use sluicegate_config::MessageRules;
use sluicegate_time::{Clock, Tick};

/// The bounds of one direction.
#[derive(Default)]
pub struct TunnelLimits {
    /// Of its bytes.
    lane: BandwidthGate,
    /// Of its messages.
    gate: Option<Box<Gate>>,
    /// For the next of them.
    hold: Hold,
    /// Whether the gate holds back a part of what is carried.
    holds_back: bool,
    /// How many messages were held since somebody asked.
    paced: u64,
    /// The reason for which the connection ends.
    over: Option<Over>,
    is_stopped: bool,
    /// The words for the other side, which are said once no frame is open.
    last_words: Option<Box<[u8]>>,
    drops: bool,
}

/// The next step of a direction that carries nothing.
pub enum IdleStep {
    /// It reads on.
    Go,
    /// It has moved its share: others of the same key come first.
    Others,
    /// Nothing any more, until there are last words.
    Stopped,
    /// These bytes, and then its end.
    Say(Box<[u8]>),
}

/// The bounds of what the client sends, and of what it gets.
pub fn bounds_of(exchange: &mut Exchange) -> (Option<Box<TunnelLimits>>, Option<Box<TunnelLimits>>) {
    let (mut up, mut down) = (None, None);
    if let Some(pacing) = exchange.scratch.state.pacing.take() {
        up = Some(Box::new(TunnelLimits { lane: pacing.up, ..TunnelLimits::default() }));
        down = Some(Box::new(TunnelLimits { lane: pacing.down, ..TunnelLimits::default() }));
    }
    if let Some(rules) = message_rules(exchange) {
        up.get_or_insert_default().gate = Some(Gate::counting(rules));
        down.get_or_insert_default().gate = Some(Gate::following());
    }
    (up, down)
}

/// The rules of its messages, for a WebSocket: nothing else has messages that anybody could count.
fn message_rules(exchange: &Exchange) -> Option<MessageRules> {
    exchange.record.route.as_ref()?.spec.messages.filter(|_| exchange.is_websocket)
}

impl TunnelLimits {
    /// Takes what came before it was a tunnel.
    pub fn take_ahead(&mut self, bytes: &[u8], scratch: &mut Scratch, clock: &Clock) {
        if scratch.outbound.capacity() < bytes.len() {
            scratch.outbound.grow(bytes.len());
        }
        scratch.outbound.room()[..bytes.len()].copy_from_slice(bytes);
        scratch.outbound.advance(bytes.len());
        self.take(scratch, clock);
    }

    /// Takes what was read into `scratch.outbound`.
    pub fn take(&mut self, scratch: &mut Scratch, clock: &Clock) {
        let size = scratch.outbound.len();
        self.lane.charge(size, clock);
        if self.gate.is_some() {
            self.pass(scratch, clock);
        } else {
            scratch.to_client.add(scratch.outbound.filled(), 0..size);
        }
    }

    /// Whether a gate knows where frames begin.
    pub fn knows_frames(&self) -> bool {
        self.gate.is_some()
    }

    /// Lets a gate know it, from where these frames are.
    pub fn know_frames(&mut self, frames: Frames) {
        self.gate = Some(Gate::after(frames));
    }

    /// Ready when what was handed on may be written.
    pub fn poll_free(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.lane.poll_free(cx)
    }

    /// Hands on more of what is carried at its time, once the part before was written; false if there is none.
    pub fn poll_more(&mut self, cx: &mut Context<'_>, scratch: &mut Scratch, clock: &Clock) -> Poll<bool> {
        if !self.holds_back {
            return Poll::Ready(false);
        }
        ready!(self.hold.poll(cx));
        self.holds_back = false;
        self.pass(scratch, clock);
        Poll::Ready(true)
    }

    /// Whether messages are counted, so that an end without a close frame is one that nobody wanted.
    pub fn counts_messages(&self) -> bool {
        self.gate.is_some()
    }

    fn pass(&mut self, scratch: &mut Scratch, clock: &Clock) {
        let Some(gate) = &mut self.gate else { return };
        let now = clock.now();
        match gate.pass(scratch, now) {
            Passed::All => {}
            Passed::Until(time) => {
                self.paced += 1;
                self.holds_back = true;
                self.hold.extend(time, now);
            }
            Passed::Stopped(over) => {
                self.over = over;
                self.is_stopped = true;
            }
        }
    }

    /// Messages that were held, and what ends the connection, since this was asked last.
    pub fn take_over(&mut self) -> (u64, Option<Over>) {
        (std::mem::take(&mut self.paced), self.over.take())
    }

    /// Says these words when no frame is open any more, and lets none begin before.
    pub fn end_with(&mut self, words: &[u8]) {
        self.last_words = Some(words.into());
        // There are two seconds left, and no time for what is owed.
        self.lane = BandwidthGate::default();
        if let Some(gate) = &mut self.gate {
            gate.close();
        }
    }

    /// The next step; `ended`: its source has nothing more to say.
    pub fn turn(&mut self, ended: bool) -> IdleStep {
        let is_between = || self.gate.as_ref().is_none_or(|gate| gate.is_between_frames());
        if !ended
            && is_between()
            && let Some(words) = self.last_words.take()
        {
            self.drops = true;
            return IdleStep::Say(words);
        }
        if ended {
            return IdleStep::Go;
        }
        if self.is_stopped {
            return IdleStep::Stopped;
        }
        if self.lane.ends_turn() { IdleStep::Others } else { IdleStep::Go }
    }

    /// Whether what still comes is read and dropped.
    pub fn drops(&self) -> bool {
        self.drops
    }

    /// Until when it is held, or was.
    pub fn held_until(&self) -> Tick {
        self.lane.held_until().max(self.hold.until())
    }
}
