//! Frames that speak of the connection or of a stream and carry nothing of a message.

use super::connection::{Connection, LAST_PING};
use super::frame::{FrameHead, MAX_STREAM, MAX_WINDOW, Reason, flag, kind, put_head, put_ping};
use super::settings;
use super::stream::{SendEnd, StreamFailure, StreamIdState, StreamKey};

impl Connection {
    pub(super) fn read_settings(&mut self, head: FrameHead, payload: &[u8]) {
        if head.stream != 0 {
            return self.fail(Reason::Protocol, "SETTINGS on a stream");
        }
        if head.has(flag::ACK) {
            if !payload.is_empty() {
                self.fail(Reason::FrameSize, "an acknowledgement of settings with a payload");
            }
            self.are_settings_known = true;
            return;
        }
        let change = match settings::read(payload) {
            Ok(change) => change,
            Err((reason, what)) => return self.fail(reason, what),
        };
        if change.table {
            self.encoder.table_size_changed();
        }
        put_head(&mut self.out, 0, kind::SETTINGS, flag::ACK, 0);
        self.wake();
        if let Some(window) = change.window {
            self.change_windows(window);
        }
    }

    /// Lets all streams have another window than the one they began with (RFC 9113, 6.9.2).
    fn change_windows(&mut self, window: i64) {
        let by = window - self.stream_window;
        self.stream_window = window;
        if by == 0 {
            return;
        }
        let keys: Vec<StreamKey> = self.streams.keys().collect();
        for key in keys {
            let Some(stream) = self.streams.get_mut(key) else { continue };
            // One that is over has no window that could be too large.
            if stream.failure.is_some() || stream.end == SendEnd::Done {
                continue;
            }
            stream.send_window += by;
            if stream.send_window > MAX_WINDOW {
                return self.fail(Reason::FlowControl, "a window above 2^31 - 1");
            }
            self.enqueue(key);
        }
        self.pump();
    }

    pub(super) fn read_ping(&mut self, head: FrameHead, payload: &[u8]) {
        if payload.len() != LAST_PING.len() {
            return self.fail(Reason::FrameSize, "a ping that is not of eight bytes");
        }
        if head.stream != 0 {
            return self.fail(Reason::Protocol, "a ping on a stream");
        }
        if !head.has(flag::ACK) {
            put_ping(&mut self.out, flag::ACK, payload);
            self.wake();
        } else if payload == LAST_PING {
            self.take_no_more();
        }
    }

    pub(super) fn read_goaway(&mut self, head: FrameHead, payload: &[u8]) {
        if head.stream != 0 {
            self.fail(Reason::Protocol, "GOAWAY on a stream");
        } else if payload.len() < 8 {
            self.fail(Reason::FrameSize, "GOAWAY of less than eight bytes");
        } else {
            self.has_client_gone_away = true;
            self.wake();
        }
    }

    pub(super) fn read_priority(&mut self, head: FrameHead, payload: &[u8]) {
        if head.stream == 0 {
            return self.fail(Reason::Protocol, "PRIORITY on no stream");
        }
        let [a, b, c, d, _] = *payload else {
            return self.fail_stream(head.stream, Reason::FrameSize, "PRIORITY that is not of five bytes");
        };
        if u32::from_be_bytes([a, b, c, d]) & MAX_STREAM == head.stream {
            self.fail_stream(head.stream, Reason::Protocol, "a stream that depends on itself");
        }
    }

    pub(super) fn read_reset(&mut self, head: FrameHead, payload: &[u8]) {
        if payload.len() != 4 {
            return self.fail(Reason::FrameSize, "RST_STREAM that is not of four bytes");
        }
        let place = self.streams.place(head.stream);
        let stream = if let StreamIdState::Here(key) = place { self.streams.get(key) } else { None };
        let is_early = stream.is_some_and(|stream| stream.is_early(self.now));
        self.flood.note_reset(is_early);
        if self.flood.spent().is_some() {
            return self.fail(Reason::EnhanceYourCalm, "too many resets");
        }
        match place {
            StreamIdState::Idle => self.fail(Reason::Protocol, "RST_STREAM on a stream that is idle"),
            StreamIdState::Here(key) => {
                let unread = self.streams.fail(key, StreamFailure::ByClient).map_or(0, |stream| {
                    let unread = stream.unread().len();
                    stream.take_data(unread);
                    unread
                });
                self.give_back(unread);
                self.settle_window(key, 0);
            }
            StreamIdState::Reset | StreamIdState::Ended | StreamIdState::Forgotten => {}
        }
    }

    pub(super) fn read_window_update(&mut self, head: FrameHead, payload: &[u8]) {
        let [a, b, c, d] = *payload else {
            return self.fail(Reason::FrameSize, "WINDOW_UPDATE that is not of four bytes");
        };
        let by = i64::from(u32::from_be_bytes([a, b, c, d]) & MAX_STREAM);
        if head.stream == 0 {
            self.send_window += by;
            match by {
                0 => self.fail(Reason::Protocol, "a window that grows by nothing"),
                _ if self.send_window > MAX_WINDOW => self.fail(Reason::FlowControl, "a window above 2^31 - 1"),
                _ => self.pump(),
            }
            return;
        }
        match self.streams.place(head.stream) {
            StreamIdState::Idle => self.fail(Reason::Protocol, "WINDOW_UPDATE on a stream that is idle"),
            StreamIdState::Here(key) => {
                let Some(stream) = self.streams.get_mut(key) else { return };
                stream.send_window += by;
                match by {
                    0 => self.fail_stream(key.id, Reason::Protocol, "a window that grows by nothing"),
                    _ if stream.send_window > MAX_WINDOW => {
                        self.fail_stream(key.id, Reason::FlowControl, "a window above 2^31 - 1");
                    }
                    _ => {
                        self.enqueue(key);
                        self.pump();
                    }
                }
            }
            StreamIdState::Reset | StreamIdState::Ended | StreamIdState::Forgotten => {}
        }
    }
}
