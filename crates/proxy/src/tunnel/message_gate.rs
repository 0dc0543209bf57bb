//! Decides which bytes of a WebSocket may go on: frames are counted as they begin, and a connection that has to end
//! does so between two frames.

use super::websocket::{Frame, Frames, PROTOCOL_ERROR, Step, TOO_BIG, TRY_AGAIN_LATER};
use crate::meters::Over;
use crate::scratch::Scratch;
use sluicegate_config::{MessageOver, MessageRules};
use sluicegate_time::{Span, Tick};

/// A continuation that carries less is counted like a message, so that one message cannot be cut into crumbs without end.
const CRUMB: u64 = 1024;

/// The opcode of a close frame.
const CLOSE: u8 = 8;

/// One direction of a WebSocket.
#[derive(Debug)]
pub struct Gate {
    frames: Frames,
    /// How much of what was read has been looked at.
    at: usize,
    /// A frame that waits for its time: how much of its head came before, and how much has been looked at since.
    waiting: Option<(usize, usize)>,
    /// Counts the client's messages; `None`: the way to the client, on which nothing is counted.
    meter: Option<Meter>,
    /// Whether the next frame does not go on.
    is_closing: bool,
    is_stopped: bool,
}

/// The messages that a client has sent, as they are counted.
#[derive(Debug)]
struct Meter {
    rules: MessageRules,
    /// Until when its share is used up; the burst is so far ahead of the clock.
    until: Tick,
    /// Bytes of the message that is open.
    size: u64,
    /// Whether a message lacks its last frame.
    is_open: bool,
    /// Whether the client has said goodbye.
    has_closed: bool,
}

/// The outcome for bytes that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// All of it goes on.
    All,
    /// The bytes before a frame go on, and the rest at this time.
    Until(Tick),
    /// The bytes before a frame go on, and nothing else ever.
    Stopped(Option<Over>),
}

/// The code by which a client is told why its connection ends.
pub fn code_of(over: Over) -> u16 {
    match over {
        Over::TooLarge => TOO_BIG,
        Over::Malformed => PROTOCOL_ERROR,
        Over::Closed | Over::Paced => TRY_AGAIN_LATER,
    }
}

impl Gate {
    /// For what the client sends, by these rules.
    pub fn counting(rules: MessageRules) -> Box<Self> {
        Self::new(Some(Meter::new(rules)))
    }

    /// For what it gets: it is only known where frames begin.
    pub fn following() -> Box<Self> {
        Self::new(None)
    }

    /// For a direction that went on without one until now, with these frames: no head was cut in two just now.
    pub fn after(frames: Frames) -> Box<Self> {
        Box::new(Self { frames, ..*Self::new(None) })
    }

    fn new(meter: Option<Meter>) -> Box<Self> {
        Box::new(Self { frames: Frames::default(), at: 0, waiting: None, meter, is_closing: false, is_stopped: false })
    }

    /// Lets no other frame begin.
    pub fn close(&mut self) {
        self.is_closing = true;
    }

    /// Whether the next byte that goes on would begin a frame.
    pub fn is_between_frames(&self) -> bool {
        self.is_stopped || self.waiting.is_some() || self.frames.is_between()
    }

    /// Hands on what may go on of what is in `scratch.outbound`. To be called when the last of it has been written, until
    /// it says that it was all.
    pub fn pass(&mut self, scratch: &mut Scratch, now: Tick) -> Passed {
        let Scratch { outbound, to_client, .. } = scratch;
        let bytes = outbound.filled();
        let from = self.at;
        let mut end = from;
        if let Some((held, size)) = self.waiting.take() {
            to_client.made().extend_from_slice(self.frames.head(held));
            end = from + size;
            self.at = end;
        }
        let mut passed = Passed::All;
        while let Some(rest) = bytes.get(self.at..).filter(|rest| !rest.is_empty()) {
            let held = self.frames.partial().len();
            match self.frames.step(rest) {
                Step::Inside(size) => {
                    self.at += size;
                    end = self.at;
                }
                Step::Partial => self.at = bytes.len(),
                Step::Malformed => {
                    passed = self.stop(Some(Over::Malformed));
                    break;
                }
                Step::Frame(size, frame) => match self.judge(&frame, now) {
                    Passed::All => {
                        to_client.made().extend_from_slice(self.frames.head(held));
                        self.at += size;
                        end = self.at;
                    }
                    Passed::Until(time) => {
                        self.waiting = Some((held, size));
                        passed = Passed::Until(time);
                        break;
                    }
                    stopped @ Passed::Stopped(_) => {
                        passed = stopped;
                        break;
                    }
                },
            }
        }
        if end > from {
            to_client.add(bytes, from..end);
        }
        if passed == Passed::All {
            self.at = 0;
        }
        passed
    }

    fn judge(&mut self, frame: &Frame, now: Tick) -> Passed {
        if self.is_closing {
            return self.stop(None);
        }
        match self.meter.as_mut().map_or(Passed::All, |meter| meter.judge(frame, now)) {
            Passed::Stopped(over) => self.stop(over),
            other => other,
        }
    }

    fn stop(&mut self, over: Option<Over>) -> Passed {
        self.is_stopped = true;
        Passed::Stopped(over)
    }
}

impl Meter {
    fn new(rules: MessageRules) -> Self {
        Self { rules, until: Tick::ZERO, size: 0, is_open: false, has_closed: false }
    }

    fn judge(&mut self, frame: &Frame, now: Tick) -> Passed {
        let is_control = frame.opcode & 8 != 0;
        let is_more = frame.opcode == 0;
        // A control frame counts like a message: a ping or a goodbye of any length would be a way round the size.
        if is_control && self.is_too_large(frame.length) {
            return Passed::Stopped(Some(Over::TooLarge));
        }
        // It ends everything, so it costs nobody; once.
        if frame.opcode == CLOSE && !std::mem::replace(&mut self.has_closed, true) {
            return Passed::All;
        }
        if !is_control {
            // A message goes on, or another begins, where there is none, or one (RFC 6455, 5.4).
            if is_more != self.is_open {
                return Passed::Stopped(Some(Over::Malformed));
            }
            self.is_open = !frame.is_final;
            self.size = if is_more { self.size.saturating_add(frame.length) } else { frame.length };
            if self.is_too_large(self.size) {
                return Passed::Stopped(Some(Over::TooLarge));
            }
        }
        let is_counted = !is_more || !frame.is_final && frame.length < CRUMB;
        match self.rules.rate {
            Some((rate, burst)) if is_counted => {
                // The generic cell rate algorithm, as the limiter's, for one key that lives with its connection.
                let each = (rate.window().as_nanos() / rate.limit()).max(1);
                let whole = u128::from(each) * u128::from(burst);
                let taken = u128::from(self.until.since(now).as_nanos()) + u128::from(each);
                let until = now + nanos(taken);
                match taken.checked_sub(whole).filter(|excess| *excess > 0) {
                    None => {
                        self.until = until;
                        Passed::All
                    }
                    Some(excess) if self.rules.over == MessageOver::Pace => {
                        self.until = until;
                        Passed::Until(now + nanos(excess))
                    }
                    Some(_) => Passed::Stopped(Some(Over::Closed)),
                }
            }
            _ => Passed::All,
        }
    }
}

impl Meter {
    fn is_too_large(&self, size: u64) -> bool {
        self.rules.max_size.is_some_and(|most| size > most)
    }
}

fn nanos(nanos: u128) -> Span {
    Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_limiter::Rate;

    fn meter(rate: &str, burst: u64, over: MessageOver) -> Meter {
        let rate: Rate = rate.parse().unwrap();
        Meter::new(MessageRules { rate: Some((rate, burst)), over, max_size: None })
    }

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    const TEXT: Frame = Frame { is_final: true, opcode: 1, length: 5 };

    #[test]
    fn a_burst_passes_and_then_one_at_each_interval() {
        let mut meter = meter("10/s", 3, MessageOver::Close);
        for _ in 0..3 {
            assert_eq!(meter.judge(&TEXT, at(1_000)), Passed::All);
        }
        assert_eq!(meter.judge(&TEXT, at(1_099)), Passed::Stopped(Some(Over::Closed)));
        assert_eq!(meter.judge(&TEXT, at(1_100)), Passed::All);
        assert_eq!(meter.judge(&TEXT, at(1_150)), Passed::Stopped(Some(Over::Closed)));
        for _ in 0..3 {
            assert_eq!(meter.judge(&TEXT, at(1_400)), Passed::All);
        }
        assert_eq!(meter.judge(&TEXT, at(1_400)), Passed::Stopped(Some(Over::Closed)));
    }

    #[test]
    fn paced_ones_get_their_times_in_order() {
        let mut meter = meter("10/s", 1, MessageOver::Pace);
        assert_eq!(meter.judge(&TEXT, at(1_000)), Passed::All);
        assert_eq!(meter.judge(&TEXT, at(1_000)), Passed::Until(at(1_100)));
        assert_eq!(meter.judge(&TEXT, at(1_100)), Passed::Until(at(1_200)));
        assert_eq!(meter.judge(&TEXT, at(1_300)), Passed::All);
    }

    #[test]
    fn messages_and_control_frames_count_and_fragments_only_where_they_are_crumbs() {
        let mut meter = meter("1/h", 100, MessageOver::Close);
        let mut counts = |is_final, opcode, length| {
            let before = meter.until.max(at(1_000));
            assert_eq!(meter.judge(&Frame { is_final, opcode, length }, at(1_000)), Passed::All);
            meter.until > before
        };
        assert!(!counts(true, 8, 5), "a goodbye is free");
        for opcode in [1, 2, 3, 8, 9, 10] {
            assert!(counts(true, opcode, 5), "{opcode}");
        }
        assert!(counts(false, 2, 5000), "by its first frame");
        assert!(!counts(false, 0, CRUMB));
        assert!(counts(false, 0, CRUMB - 1));
        assert!(counts(false, 0, 0));
        assert!(!counts(true, 0, 0), "its last frame, of which it has one");
    }

    #[test]
    fn a_size_is_that_of_all_fragments_or_of_a_control_frame() {
        let rules = MessageRules { rate: None, over: MessageOver::Pace, max_size: Some(100) };
        let mut meter = Meter::new(rules);
        assert_eq!(meter.judge(&Frame { is_final: true, opcode: 1, length: 100 }, at(1)), Passed::All);
        let mut judge = |opcode, length| meter.judge(&Frame { is_final: false, opcode, length }, at(1));
        assert_eq!(judge(1, 60), Passed::All, "the next one");
        assert_eq!(judge(9, 100), Passed::All);
        assert_eq!(judge(0, 40), Passed::All);
        assert_eq!(judge(9, 101), Passed::Stopped(Some(Over::TooLarge)));
        assert_eq!(judge(0, 1), Passed::Stopped(Some(Over::TooLarge)));
        assert_eq!(judge(0, u64::MAX >> 1), Passed::Stopped(Some(Over::TooLarge)));
        for opcode in [8, 9, 10] {
            let mut meter = Meter::new(rules);
            for _ in 0..3 {
                assert_eq!(meter.judge(&Frame { is_final: true, opcode: 9, length: 100 }, at(1)), Passed::All);
            }
            let large = Frame { is_final: true, opcode, length: 101 };
            assert_eq!(meter.judge(&large, at(1)), Passed::Stopped(Some(Over::TooLarge)), "{opcode}");
        }
    }

    #[test]
    fn a_message_does_not_go_on_where_there_is_none_nor_begin_in_another() {
        let frame = |is_final, opcode| Frame { is_final, opcode, length: 1 };
        let malformed = Passed::Stopped(Some(Over::Malformed));
        for (before, next) in [(&[][..], frame(true, 0)), (&[TEXT], frame(false, 0)), (&[frame(false, 1)], TEXT)] {
            let mut meter = meter("1/h", 100, MessageOver::Close);
            for frame in before {
                assert_eq!(meter.judge(frame, at(1_000)), Passed::All);
            }
            assert_eq!(meter.judge(&frame(true, 9), at(1_000)), Passed::All, "pings stand anywhere");
            assert_eq!(meter.judge(&next, at(1_000)), malformed, "{before:?} {next:?}");
        }
    }
}
