//! How long an exchange with a server may take, and each part of it. Pure: where the exchange stands and the time are
//! arguments.
//!
//! - The whole of it ends at its deadline, where somebody wrote a `timeout`.
//! - The head of its answer has to be there `response_timeout` after the request arrived. While the body of the request is
//!   on its way that is not asked; it has as long again from the last byte that the server took. A request whose body was
//!   here when it was sent counts from its arrival.
//! - While bytes of a body are due, one has to move within `body_timeout`.
//! - A body that the answer waits for has to come at `min_body_rate`, over each [`SLOW_AFTER`] that the client alone
//!   delays it. Once the head of the answer is there, both sides may talk as slowly as they like.
//!
//! Caller: `relay_time`, which sets the alarm for [`next`](Timers::next) and asks [`overdue`](Timers::overdue) when it rings.

use sluicegate_time::{Span, Tick};

/// The time over which the rate of a request's body is taken.
pub const SLOW_AFTER: Span = Span::from_secs(30);

/// The bounds of an exchange in time.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeTimeouts {
    /// When it has to be over.
    pub deadline: Tick,
    /// When the head of the answer has to be there, for a request that was all here when it was sent.
    pub respond_by: Tick,
    /// How long the head of the answer may take.
    pub response_timeout: Span,
    /// How long no byte of a body may move.
    pub idle: Span,
    /// Bytes a second of the request's body; 0: any.
    pub min_body_rate: u64,
}

/// Where an exchange stands.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeStage {
    /// The final head of the answer is there.
    pub is_answered: bool,
    /// The server does not have all of the request.
    pub is_uploading: bool,
    /// Only the client delays the request's body.
    pub waits_for_client: bool,
    /// Bytes of a body are due.
    pub is_moving: bool,
    /// Bytes of the request's body that have come.
    pub uploaded: u64,
    /// When a byte moved last.
    pub moved_at: Tick,
}

/// The part that has taken too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// The whole.
    Deadline,
    /// The head of the answer.
    Head,
    /// The next byte of a body.
    Idle,
    /// The request's body.
    SlowBody,
}

/// The times of one try.
#[derive(Debug, Default)]
pub struct Timers {
    /// When the head of the answer has to be there; [`Tick::MAX`] while that is not asked.
    respond_by: Tick,
    /// Since when the client alone delays its body, or the last time that its rate was taken; [`Tick::MAX`]: it does not.
    slow_since: Tick,
    /// Bytes that had come by then.
    slow_from: u64,
}

impl Timers {
    /// Those of a request that is sent now. `is_whole`: all of it is here.
    pub fn new(respond_by: Tick, is_whole: bool) -> Self {
        let respond_by = if is_whole { respond_by } else { Tick::MAX };
        Self { respond_by, slow_since: Tick::MAX, slow_from: 0 }
    }

    /// Notes where the exchange stands; when something may be overdue.
    pub fn next(&mut self, patience: &ExchangeTimeouts, standing: &ExchangeStage, now: Tick) -> Tick {
        if self.respond_by == Tick::MAX && !standing.is_uploading {
            self.respond_by = (now + patience.response_timeout).max(patience.respond_by);
        }
        if !standing.waits_for_client || standing.is_answered || patience.min_body_rate == 0 {
            self.slow_since = Tick::MAX;
        } else if self.slow_since == Tick::MAX {
            (self.slow_since, self.slow_from) = (now, standing.uploaded);
        }
        let head = if standing.is_answered || standing.is_uploading { Tick::MAX } else { self.respond_by };
        let idle = if standing.is_moving { standing.moved_at + patience.idle } else { Tick::MAX };
        patience.deadline.min(head).min(idle).min(self.slow_since + SLOW_AFTER)
    }

    /// The part that is overdue, if any.
    pub fn overdue(&mut self, patience: &ExchangeTimeouts, standing: &ExchangeStage, now: Tick) -> Option<Overdue> {
        if now >= patience.deadline {
            return Some(Overdue::Deadline);
        }
        if !standing.is_answered && !standing.is_uploading && now >= self.respond_by {
            return Some(Overdue::Head);
        }
        if standing.is_moving && now >= standing.moved_at + patience.idle {
            return Some(Overdue::Idle);
        }
        if !standing.is_answered && now >= self.slow_since + SLOW_AFTER {
            let least = u128::from(patience.min_body_rate) * u128::from(SLOW_AFTER.as_nanos()) / 1_000_000_000;
            if u128::from(standing.uploaded.saturating_sub(self.slow_from)) < least {
                return Some(Overdue::SlowBody);
            }
            (self.slow_since, self.slow_from) = (now, standing.uploaded);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: ExchangeTimeouts = ExchangeTimeouts {
        deadline: Tick::MAX,
        respond_by: at(60),
        response_timeout: Span::from_secs(60),
        idle: Span::from_secs(60),
        min_body_rate: 240,
    };

    /// A request without a body, or with all of it sent.
    const SENT: ExchangeStage = ExchangeStage {
        is_answered: false,
        is_uploading: false,
        waits_for_client: false,
        is_moving: false,
        uploaded: 0,
        moved_at: Tick::ZERO,
    };

    const fn at(secs: u64) -> Tick {
        Tick::from_nanos(secs * 1_000_000_000)
    }

    /// Goes on from `now` in steps of a second until something is overdue or `end` has come, where `standing` says how
    /// the exchange stands at each.
    fn run(
        timers: &mut Timers,
        patience: &ExchangeTimeouts,
        (now, end): (u64, u64),
        standing: impl Fn(u64) -> ExchangeStage,
    ) -> Option<(u64, Overdue)> {
        let mut due = timers.next(patience, &standing(now), at(now));
        for secs in now..end {
            if at(secs) >= due
                && let Some(overdue) = timers.overdue(patience, &standing(secs), at(secs))
            {
                return Some((secs, overdue));
            }
            due = timers.next(patience, &standing(secs), at(secs));
        }
        None
    }

    #[test]
    fn a_head_has_60_seconds_from_the_arrival() {
        let mut timers = Timers::new(PATIENCE.respond_by, true);
        assert_eq!(timers.next(&PATIENCE, &SENT, at(50)), at(60), "a wait before it was sent counts");
        assert_eq!(run(&mut timers, &PATIENCE, (50, 100), |_| SENT), Some((60, Overdue::Head)));
    }

    #[test]
    fn a_stream_with_an_event_each_30_seconds_lasts_an_hour() {
        let mut timers = Timers::new(PATIENCE.respond_by, true);
        let stream =
            |secs: u64| ExchangeStage { is_answered: true, is_moving: true, moved_at: at(secs / 30 * 30), ..SENT };
        assert_eq!(run(&mut timers, &PATIENCE, (1, 3_600), stream), None);
        let quiet = |_| ExchangeStage { moved_at: at(3_570), ..stream(3_570) };
        assert_eq!(run(&mut timers, &PATIENCE, (3_600, 9_999), quiet), Some((3_630, Overdue::Idle)));
    }

    #[test]
    fn a_total_that_is_written_ends_a_stream_all_the_same() {
        let patience = ExchangeTimeouts { deadline: at(300), ..PATIENCE };
        let stream =
            |secs: u64| ExchangeStage { is_answered: true, is_moving: true, moved_at: at(secs / 30 * 30), ..SENT };
        let mut timers = Timers::new(patience.respond_by, true);
        assert_eq!(run(&mut timers, &patience, (1, 3_600), stream), Some((300, Overdue::Deadline)));
        let early = ExchangeTimeouts { deadline: at(60), ..PATIENCE };
        let ended = run(&mut Timers::new(early.respond_by, true), &early, (1, 100), |_| SENT);
        assert_eq!(ended, Some((60, Overdue::Deadline)), "of two at once it is the total");
    }

    #[test]
    fn an_upload_of_five_minutes_is_answered_within_a_minute_of_its_last_byte() {
        let upload = |secs: u64| ExchangeStage {
            is_uploading: secs < 300,
            waits_for_client: secs < 300,
            is_moving: secs < 300,
            uploaded: secs * 10_000,
            moved_at: at(secs),
            ..SENT
        };
        let mut timers = Timers::new(PATIENCE.respond_by, false);
        assert_eq!(run(&mut timers, &PATIENCE, (1, 1_000), upload), Some((360, Overdue::Head)));
        // A short one has what is left of the minute from its arrival, if that is more.
        let patience = ExchangeTimeouts { respond_by: at(90), ..PATIENCE };
        let short =
            |secs: u64| ExchangeStage { is_uploading: secs < 2, is_moving: secs < 2, moved_at: at(secs), ..SENT };
        let mut timers = Timers::new(patience.respond_by, false);
        assert_eq!(run(&mut timers, &patience, (1, 1_000), short), Some((90, Overdue::Head)));
    }

    #[test]
    fn an_upload_below_the_least_rate_ends_after_30_seconds() {
        let drip = |rate: u64| {
            move |secs: u64| ExchangeStage {
                is_uploading: true,
                waits_for_client: true,
                is_moving: true,
                uploaded: secs * rate,
                moved_at: at(secs),
                ..SENT
            }
        };
        let ended = |patience: &ExchangeTimeouts, rate| {
            run(&mut Timers::new(patience.respond_by, false), patience, (0, 3_600), drip(rate))
        };
        assert_eq!(ended(&PATIENCE, 239), Some((30, Overdue::SlowBody)));
        assert_eq!(ended(&PATIENCE, 240), None);
        assert_eq!(ended(&ExchangeTimeouts { min_body_rate: 0, ..PATIENCE }, 1), None, "off");
        let slows = |secs: u64| ExchangeStage {
            uploaded: secs.min(100) * 240 + 60 * secs.saturating_sub(100),
            ..drip(1)(secs)
        };
        let ended = run(&mut Timers::new(PATIENCE.respond_by, false), &PATIENCE, (0, 3_600), slows);
        assert_eq!(ended, Some((120, Overdue::SlowBody)), "each half a minute is taken by itself");
    }

    #[test]
    fn a_slow_upload_that_is_not_its_clients_fault_goes_on() {
        let held = |secs: u64| ExchangeStage {
            is_uploading: true,
            // The server takes a byte each second.
            waits_for_client: false,
            is_moving: true,
            uploaded: secs,
            moved_at: at(secs),
            ..SENT
        };
        assert_eq!(run(&mut Timers::new(PATIENCE.respond_by, false), &PATIENCE, (0, 3_600), held), None);
        let answered = |secs: u64| ExchangeStage { is_answered: true, waits_for_client: true, ..held(secs) };
        assert_eq!(run(&mut Timers::new(PATIENCE.respond_by, false), &PATIENCE, (0, 3_600), answered), None);
    }

    #[test]
    fn without_a_bound_a_head_may_take_for_ever() {
        let endless = ExchangeTimeouts { respond_by: Tick::MAX, response_timeout: Span::MAX, ..PATIENCE };
        assert_eq!(run(&mut Timers::new(endless.respond_by, true), &endless, (0, 9_999), |_| SENT), None);
    }
}
