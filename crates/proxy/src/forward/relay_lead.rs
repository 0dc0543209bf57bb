//! An exchange that equal requests follow, and the end of any.

use std::task::{Context, Waker};

use super::halves::Phase;
use super::relay::{ConnectionFate, Left, Relay, RelayEnd};
use crate::scratch::Scratch;

impl Relay<'_> {
    /// Its client has left. Whether the exchange goes on without it, because others wait for the answer.
    #[cold]
    pub fn goes_on_alone(&mut self) -> bool {
        // Whoever polls it next is told when that changes.
        if self.up.is_left || !self.is_followed(&Context::from_waker(Waker::noop())) {
            return false;
        }
        self.up.is_left = true;
        let Scratch { to_client, download, state, .. } = &mut *self.exchange.scratch;
        state.left_with = Some(download.content().saturating_sub(to_client.pending() as u64));
        to_client.clear();
        true
    }

    /// Whether equal requests wait for the answer to this one.
    pub(super) fn is_followed(&self, cx: &Context<'_>) -> bool {
        self.exchange.scratch.state.leads.as_ref().is_some_and(|leads| leads.is_followed(cx))
    }

    /// Whether the answer is read on although the client has not taken the part that came before: others wait for it. The part is
    /// kept, as far as there is room for bodies; it is no more than `max_body` of `collapse`: above that nobody waits.
    #[inline(never)]
    pub(super) fn runs_ahead(&mut self, cx: &Context<'_>) -> bool {
        if self.down.phase != Phase::Body || !self.is_followed(cx) {
            return false;
        }
        let room = self.exchange.body_room();
        let Scratch { outbound, to_client, state, .. } = &mut *self.exchange.scratch;
        let room = state.ahead.get_or_insert(room);
        if !room.hold(to_client.pending()) {
            return false;
        }
        to_client.keep_apart(outbound.filled());
        true
    }

    pub(super) fn end(&mut self) -> Option<RelayEnd> {
        let Scratch { download, upload, to_client, to_upstream, response, .. } = &*self.exchange.scratch;
        if !to_client.is_empty() {
            return None;
        }
        match self.down.phase {
            Phase::Switched => return Some(RelayEnd::Switched),
            Phase::Body if download.is_complete() => {}
            Phase::Head | Phase::Body => return None,
        }
        self.exchange.bytes_sent = download.content();
        let is_tail_sent = upload.tail().is_empty() || self.up.has_tail;
        let uploaded = upload.is_complete() && to_upstream.is_empty() && is_tail_sent && !self.up.has_failed;
        let client = match (self.down.keep, upload.is_complete()) {
            (true, true) => ConnectionFate::Keep,
            (true, false) => ConnectionFate::Drain,
            (false, true) => ConnectionFate::Close,
            (false, false) => ConnectionFate::Linger,
        };
        let upstream = Left {
            is_clean: uploaded && !self.down.has_stray && response.is_persistent(),
            is_drained: self.down.is_drained,
            is_doubtful: self.is_doubtful(),
        };
        Some(RelayEnd::Answered { upstream, client })
    }

    fn is_doubtful(&self) -> bool {
        let Scratch { upload, request, response, .. } = &*self.exchange.scratch;
        request.is_head() && response.states_length()
            || upload.content() > 0 && self.exchange.request().method() == "GET"
    }
}
