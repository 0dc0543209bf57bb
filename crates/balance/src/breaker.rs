//! The breaker of an upstream: when too many of its requests fail, nothing is sent to it for a while but a few probes.
//!
//! Closed, it counts results. Open, it refuses everything until a fixed time; that time never grows. After it the
//! breaker is half-open: some requests pass as probes, and they decide.

use super::failures::{self, RecentClients};
use super::window::{Window, WindowCounts};
use sluicegate_time::{Span, Tick};

/// When a request that finds all probes under way may ask again: nobody knows when one of them ends.
const ASK_AGAIN: Span = Span::from_secs(1);

/// Probes that have no result for so long since the last one began are given up: they may be long polls, or requests whose
/// clients withhold them. Others try in their places.
const PROBES_LAPSE: Span = Span::from_secs(10);

words! {
    /// A state of a breaker.
    pub enum BreakerState {
        /// Requests pass.
        Closed = "closed",
        /// Nothing passes.
        Open = "open",
        /// Probes pass.
        HalfOpen = "half-open",
    }
}

/// When a breaker opens and closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerTerms {
    /// It opens when this many of a hundred results are errors,
    pub errors_percent: u32,
    /// of the results of this long (in ten buckets, the running one included),
    pub within: Span,
    /// if there are at least so many.
    pub at_least: u32,
    /// It stays open for this long.
    pub open: Span,
    /// So many probes are under way at most, and so many must succeed for it to close; 0 counts as 1.
    pub probes: u32,
}

/// How a request passes. It goes back to [`Breaker::done`] or [`Breaker::abandon`], once: so it cannot be copied.
#[derive(Debug, PartialEq, Eq)]
pub enum Passage {
    /// As any request.
    Normal,
    /// As one of the few that try whether the upstream works again, in the half-open period of this number.
    Probe {
        /// How often the breaker had opened.
        generation: u64,
    },
    /// Not at all.
    Refused {
        /// Until then nothing is sent.
        retry_at: Tick,
    },
}

/// The result of a request, and the client that asked: a number, equal for the requests of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// It was answered.
    Answer {
        /// The client.
        client: u64,
    },
    /// It failed.
    Failure {
        /// The client.
        client: u64,
    },
    /// No server could be connected to. That is of no client.
    Unreachable,
}

/// A change of a breaker's state by a result. That an open breaker becomes half-open is the time's doing: no event tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerEvent {
    /// Its state before.
    pub from: BreakerState,
    /// Its state now.
    pub to: BreakerState,
    /// The cause, for people.
    pub reason: String,
}

/// The breaker of one upstream.
#[derive(Debug)]
pub struct Breaker {
    terms: BreakerTerms,
    phase: BreakerPhase,
    /// How often it has opened.
    generation: u64,
    /// Results but for connects that failed, and how many of them are failures.
    window: Window,
    /// Connects that failed.
    unreachable: Window,
    failed: RecentClients,
    answered: RecentClients,
}

#[derive(Debug)]
enum BreakerPhase {
    Closed,
    Open {
        until: Tick,
    },
    HalfOpen {
        /// Probes under way.
        out: u32,
        succeeded: u32,
        since: Tick,
        /// When the last place of a probe was taken.
        taken_at: Tick,
    },
}

impl Breaker {
    /// Makes a breaker that is closed.
    pub fn new(terms: BreakerTerms) -> Self {
        let (window, unreachable) = (Window::new(terms.within), Window::new(terms.within));
        let (failed, answered) = Default::default();
        Self { terms, phase: BreakerPhase::Closed, generation: 0, window, unreachable, failed, answered }
    }

    /// Changes its terms. Its state and the time until which it is open stay; what it has counted stays if it counts
    /// over the same time.
    pub fn set_terms(&mut self, terms: BreakerTerms) {
        if terms.within != self.terms.within {
            (self.window, self.unreachable) = (Window::new(terms.within), Window::new(terms.within));
        }
        self.terms = terms;
    }

    /// Says how a request passes. `is_whole`: all of it is here. One that is not, and may never be, is a probe only where it
    /// is the only one, so that the places of probes cannot all be taken by a client that withholds what it asks.
    pub fn pass(&mut self, is_whole: bool, now: Tick) -> Passage {
        if let BreakerPhase::Open { until } = self.phase {
            if now < until {
                return Passage::Refused { retry_at: until };
            }
            self.phase = BreakerPhase::HalfOpen { out: 0, succeeded: 0, since: now, taken_at: now };
        }
        let probes = self.terms.probes.max(1);
        if let BreakerPhase::HalfOpen { out, taken_at, .. } = &mut self.phase
            && (*out >= probes || *out > 0 && !is_whole)
            && now.since(*taken_at) >= PROBES_LAPSE
        {
            self.generation += 1;
            *out = 0;
        }
        match &mut self.phase {
            BreakerPhase::HalfOpen { out, taken_at, .. } if *out < probes && (is_whole || *out == 0) => {
                *out += 1;
                *taken_at = now;
                Passage::Probe { generation: self.generation }
            }
            BreakerPhase::HalfOpen { .. } => Passage::Refused { retry_at: now + ASK_AGAIN },
            BreakerPhase::Closed | BreakerPhase::Open { .. } => Passage::Normal,
        }
    }

    /// Takes the result of a request that has passed. It counts only in the state that let it pass: not if it passed
    /// normally and the breaker is not closed, and not if it was a probe of an earlier half-open period.
    #[expect(clippy::needless_pass_by_value, reason = "a passage is given back once")]
    pub fn done(&mut self, passage: Passage, result: Evidence, now: Tick) -> Option<BreakerEvent> {
        match passage {
            Passage::Normal => self.count(result, now),
            Passage::Probe { generation } => self.judge(generation, result, now),
            Passage::Refused { .. } => None,
        }
    }

    /// Takes back the passage of a request that has no result, as when its client went away: a probe's place is free.
    #[expect(clippy::needless_pass_by_value, reason = "a passage is given back once")]
    pub fn abandon(&mut self, passage: Passage) {
        if let Passage::Probe { generation } = passage {
            self.leave(generation);
        }
    }

    /// Says whether a passage still holds that it was given before: its request may be sent.
    pub fn holds(&self, passage: &Passage) -> bool {
        match (passage, &self.phase) {
            // A probe, too: it has closed since.
            (Passage::Normal | Passage::Probe { .. }, BreakerPhase::Closed) => true,
            (Passage::Probe { generation }, BreakerPhase::HalfOpen { .. }) => *generation == self.generation,
            _ => false,
        }
    }

    /// Returns its state.
    pub fn state(&self, now: Tick) -> BreakerState {
        match self.phase {
            BreakerPhase::Closed => BreakerState::Closed,
            BreakerPhase::Open { until } if now < until => BreakerState::Open,
            BreakerPhase::Open { .. } | BreakerPhase::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// Failures that do not count are no results at all.
    fn count(&mut self, result: Evidence, now: Tick) -> Option<BreakerEvent> {
        if !matches!(self.phase, BreakerPhase::Closed) {
            return None;
        }
        match result {
            Evidence::Answer { client } => {
                self.window.add(WindowCounts { all: 1, marked: 0 }, now);
                self.answered.note(client, now);
            }
            Evidence::Failure { client } => {
                self.window.add(WindowCounts { all: 1, marked: 1 }, now);
                self.failed.note(client, now);
            }
            Evidence::Unreachable => self.unreachable.add(WindowCounts { all: 1, marked: 1 }, now),
        }
        let WindowCounts { mut all, marked: mut errors } = self.window.total(now);
        let WindowCounts { marked: unreachable, .. } = self.unreachable.total(now);
        let since = now - self.terms.within;
        if errors > 0 && !failures::count(&self.failed.since(since), self.answered.since(since)) {
            (all, errors) = (all - errors, 0);
        }
        (all, errors) = (all + unreachable, errors + unreachable);
        let is_enough = all >= u64::from(self.terms.at_least);
        // Without the first condition 0% would open a breaker none of whose requests has failed.
        if errors == 0 || !is_enough || errors * 100 < all * u64::from(self.terms.errors_percent) {
            return None;
        }
        let what = format!("{errors} of {all} requests failed within {}", self.terms.within);
        Some(self.open(BreakerState::Closed, &what, now))
    }

    fn judge(&mut self, generation: u64, result: Evidence, now: Tick) -> Option<BreakerEvent> {
        let answered = self.answered;
        let (succeeded, since) = self.leave(generation)?;
        match result {
            Evidence::Failure { client } => {
                // A client whose probe fails while that of another is answered says nothing of the upstream.
                let is_counted = failures::count(&std::iter::once(client), answered.since(since));
                return is_counted.then(|| self.open(BreakerState::HalfOpen, "a probe failed", now));
            }
            Evidence::Unreachable => return Some(self.open(BreakerState::HalfOpen, "a probe failed", now)),
            Evidence::Answer { .. } => *succeeded += 1,
        }
        let succeeded = *succeeded;
        if let Evidence::Answer { client } = result {
            self.answered.note(client, now);
        }
        if succeeded < self.terms.probes.max(1) {
            return None;
        }
        self.phase = BreakerPhase::Closed;
        (self.window, self.unreachable) = (Window::new(self.terms.within), Window::new(self.terms.within));
        self.failed = RecentClients::default();
        let reason =
            if succeeded == 1 { "a probe succeeded".to_owned() } else { format!("{succeeded} probes succeeded") };
        Some(BreakerEvent { from: BreakerState::HalfOpen, to: BreakerState::Closed, reason })
    }

    /// Frees the place of a probe of the running half-open period; how many have succeeded in it, and since when it runs.
    fn leave(&mut self, generation: u64) -> Option<(&mut u32, Tick)> {
        match &mut self.phase {
            BreakerPhase::HalfOpen { out, succeeded, since, .. } if generation == self.generation => {
                *out = out.saturating_sub(1);
                Some((succeeded, *since))
            }
            _ => None,
        }
    }

    fn open(&mut self, from: BreakerState, what: &str, now: Tick) -> BreakerEvent {
        self.phase = BreakerPhase::Open { until: now + self.terms.open };
        self.generation += 1;
        BreakerEvent { from, to: BreakerState::Open, reason: format!("{what}; open for {}", self.terms.open) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TERMS: BreakerTerms = BreakerTerms {
        errors_percent: 50,
        within: Span::from_secs(10),
        at_least: 20,
        open: Span::from_secs(5),
        probes: 3,
    };

    /// Of the one client that there is.
    const GOOD: Evidence = Evidence::Answer { client: 1 };
    const BAD: Evidence = Evidence::Failure { client: 1 };

    fn of(is_success: bool) -> Evidence {
        if is_success { GOOD } else { BAD }
    }

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    /// Requests that pass normally and end at once.
    fn feed(breaker: &mut Breaker, results: &[(usize, bool)], now: Tick) -> Option<BreakerEvent> {
        let results = results.iter().flat_map(|(count, is_success)| std::iter::repeat_n(*is_success, *count));
        results.filter_map(|is_success| breaker.done(Passage::Normal, of(is_success), now)).last()
    }

    /// One that opened at 0.
    fn opened() -> Breaker {
        let mut breaker = Breaker::new(TERMS);
        feed(&mut breaker, &[(20, false)], at(0)).unwrap();
        breaker
    }

    fn probes<const N: usize>(breaker: &mut Breaker, now: Tick) -> [Passage; N] {
        std::array::from_fn(|_| breaker.pass(true, now))
    }

    #[test]
    fn opens_when_enough_results_are_there_and_enough_of_them_are_errors() {
        let mut breaker = Breaker::new(TERMS);
        assert_eq!(feed(&mut breaker, &[(9, true), (10, false)], at(0)), None);
        assert_eq!(breaker.pass(true, at(0)), Passage::Normal);
        let event = feed(&mut breaker, &[(1, true)], at(1)).unwrap();
        assert_eq!(event.reason, "10 of 20 requests failed within 10s; open for 5s");
        assert_eq!((event.from, event.to), (BreakerState::Closed, BreakerState::Open));
        assert_eq!(breaker.pass(true, at(5_000)), Passage::Refused { retry_at: at(5_001) });
        let mut breaker = Breaker::new(TERMS);
        assert_eq!(feed(&mut breaker, &[(11, true), (10, false)], at(0)), None);
        assert!(feed(&mut breaker, &[(1, false)], at(0)).is_some());
    }

    #[test]
    fn what_one_client_alone_cannot_have_opens_it_for_nobody() {
        let mut breaker = Breaker::new(TERMS);
        let failure = |client| Evidence::Failure { client };
        breaker.done(Passage::Normal, Evidence::Answer { client: 2 }, at(0));
        assert!((0..500).all(|_| breaker.done(Passage::Normal, failure(1), at(10)).is_none()));
        // For the other one none were.
        assert!((0..18).all(|_| breaker.done(Passage::Normal, Evidence::Unreachable, at(20)).is_none()));
        let event = breaker.done(Passage::Normal, Evidence::Unreachable, at(20)).unwrap();
        assert_eq!(event.reason, "19 of 20 requests failed within 10s; open for 5s");
        // Where it fails, too, all count.
        let mut breaker = Breaker::new(TERMS);
        breaker.done(Passage::Normal, Evidence::Answer { client: 2 }, at(0));
        assert!((0..40).all(|_| breaker.done(Passage::Normal, failure(1), at(10)).is_none()));
        assert!(breaker.done(Passage::Normal, failure(2), at(20)).is_some());
    }

    #[test]
    fn a_probe_that_fails_for_one_client_while_another_is_answered_is_given_back() {
        let mut breaker = opened();
        let [a, b, c] = probes(&mut breaker, at(5_000));
        assert_eq!(breaker.done(a, Evidence::Answer { client: 2 }, at(5_000)), None);
        assert_eq!(breaker.done(b, BAD, at(5_000)), None);
        assert_eq!(breaker.state(at(5_000)), BreakerState::HalfOpen);
        assert!(breaker.done(c, Evidence::Failure { client: 2 }, at(5_000)).is_some());
    }

    #[test]
    fn old_results_do_not_count() {
        let mut breaker = Breaker::new(TERMS);
        assert_eq!(feed(&mut breaker, &[(19, false)], at(500)), None);
        assert_eq!(feed(&mut breaker, &[(19, false)], at(10_000)), None);
        assert!(feed(&mut breaker, &[(1, false)], at(19_999)).is_some());
    }

    #[test]
    fn no_errors_never_open_it() {
        let mut breaker = Breaker::new(BreakerTerms { errors_percent: 0, at_least: 0, ..TERMS });
        assert_eq!(feed(&mut breaker, &[(100, true)], at(0)), None);
        assert!(feed(&mut breaker, &[(1, false)], at(0)).is_some());
    }

    #[test]
    fn enough_probes_that_succeed_close_it_and_it_starts_to_count_anew() {
        let mut breaker = opened();
        assert_eq!((breaker.state(at(4_999)), breaker.state(at(5_000))), (BreakerState::Open, BreakerState::HalfOpen));
        let [a, b, c] = probes(&mut breaker, at(5_000));
        assert_eq!(breaker.pass(true, at(5_100)), Passage::Refused { retry_at: at(6_100) });
        assert_eq!(breaker.done(a, GOOD, at(5_200)), None);
        assert_eq!(breaker.pass(true, at(5_200)), Passage::Probe { generation: 1 });
        assert_eq!(breaker.done(b, GOOD, at(5_200)), None);
        let event = breaker.done(c, GOOD, at(5_300)).unwrap();
        assert_eq!((event.from, event.to), (BreakerState::HalfOpen, BreakerState::Closed));
        assert_eq!(event.reason, "3 probes succeeded");
        assert_eq!(breaker.pass(true, at(5_300)), Passage::Normal);
        // The fourth probe ends when it has closed: it is of no account.
        assert_eq!(breaker.done(Passage::Probe { generation: 1 }, BAD, at(5_300)), None);
        assert_eq!(feed(&mut breaker, &[(19, false)], at(5_300)), None);
    }

    #[test]
    fn one_probe_that_fails_opens_it_again_for_the_same_time() {
        let mut breaker = opened();
        for start in [5_000, 10_000, 15_000] {
            let [a] = probes(&mut breaker, at(start));
            let event = breaker.done(a, BAD, at(start)).unwrap();
            assert_eq!((event.from, event.to), (BreakerState::HalfOpen, BreakerState::Open));
            assert_eq!(event.reason, "a probe failed; open for 5s");
            assert_eq!(breaker.pass(true, at(start)), Passage::Refused { retry_at: at(start + 5_000) });
        }
    }

    #[test]
    fn a_probe_counts_in_its_own_half_open_period_only() {
        let mut breaker = opened();
        let [first, second, third] = probes(&mut breaker, at(5_000));
        breaker.done(first, BAD, at(5_000));
        let [later, last, closing] = probes(&mut breaker, at(10_000));
        assert_eq!(breaker.done(second, BAD, at(10_000)), None);
        breaker.abandon(third);
        assert!(matches!(breaker.pass(true, at(10_000)), Passage::Refused { .. }), "no place has become free");
        assert_eq!([breaker.done(later, GOOD, at(10_000)), breaker.done(last, GOOD, at(10_000))], [None, None]);
        assert!(breaker.done(closing, GOOD, at(10_000)).is_some());
    }

    #[test]
    fn requests_that_began_before_it_opened_do_not_count_until_it_closes() {
        let mut breaker = opened();
        assert_eq!(feed(&mut breaker, &[(50, true), (50, false)], at(4_000)), None);
        let [a, _b] = probes(&mut breaker, at(5_000));
        assert_eq!(feed(&mut breaker, &[(50, true), (50, false)], at(5_000)), None);
        breaker.abandon(a);
        assert_eq!(breaker.state(at(5_000)), BreakerState::HalfOpen);
    }

    #[test]
    fn probes_without_a_result_are_given_up_and_withheld_requests_do_not_take_all_places() {
        let mut breaker = opened();
        assert_eq!(breaker.pass(false, at(5_000)), Passage::Probe { generation: 1 }, "uploads alone can close it, too");
        assert_eq!(breaker.pass(false, at(5_000)), Passage::Refused { retry_at: at(6_000) });
        let [a, b] = probes(&mut breaker, at(6_000));
        assert!(matches!(breaker.pass(true, at(15_999)), Passage::Refused { .. }));
        assert_eq!(breaker.pass(true, at(16_000)), Passage::Probe { generation: 2 });
        assert_eq!([breaker.done(a, BAD, at(16_000)), breaker.done(b, GOOD, at(16_000))], [None, None]);
        assert_eq!(probes::<2>(&mut breaker, at(16_000)), [2, 2].map(|generation| Passage::Probe { generation }));
        assert!(matches!(breaker.pass(true, at(16_000)), Passage::Refused { .. }));
    }

    #[test]
    fn a_withheld_probe_keeps_uploads_out_for_ten_seconds_and_no_longer() {
        let mut breaker = opened();
        breaker.pass(false, at(5_000));
        assert!(matches!(breaker.pass(false, at(14_999)), Passage::Refused { .. }));
        let probe = breaker.pass(false, at(15_000));
        assert_eq!(probe, Passage::Probe { generation: 2 });
        breaker.done(probe, GOOD, at(15_000));
        for _ in 0..2 {
            let probe = breaker.pass(false, at(15_000));
            breaker.done(probe, GOOD, at(15_000));
        }
        assert_eq!(breaker.state(at(15_000)), BreakerState::Closed);
    }

    #[test]
    fn a_passage_holds_until_the_breaker_opens_again() {
        let mut breaker = Breaker::new(TERMS);
        let normal = breaker.pass(true, at(0));
        feed(&mut breaker, &[(20, false)], at(0));
        assert!(!breaker.holds(&normal));
        let [a, b] = probes(&mut breaker, at(5_000));
        assert!(breaker.holds(&a) && breaker.holds(&b));
        breaker.done(a, BAD, at(5_000));
        assert!(!breaker.holds(&b));
    }

    #[test]
    fn new_terms_hold_from_then_on() {
        let mut breaker = opened();
        breaker.set_terms(BreakerTerms { probes: 1, open: Span::from_secs(1), ..TERMS });
        assert_eq!(breaker.pass(true, at(4_999)), Passage::Refused { retry_at: at(5_000) });
        let [a, b] = probes(&mut breaker, at(5_000));
        assert_eq!(b, Passage::Refused { retry_at: at(6_000) });
        assert_eq!(breaker.done(a, GOOD, at(5_000)).unwrap().reason, "a probe succeeded");
        feed(&mut breaker, &[(19, false)], at(5_000));
        breaker.set_terms(BreakerTerms { within: Span::from_secs(20), ..TERMS });
        assert_eq!(feed(&mut breaker, &[(19, false)], at(5_000)), None);
    }

    #[derive(Clone, Copy, Debug)]
    enum Act {
        Pass,
        Done { index: prop::sample::Index, is_success: bool },
        Abandon { index: prop::sample::Index },
    }

    fn acts() -> impl Strategy<Value = Vec<(u64, Act)>> {
        let wait = prop_oneof![5 => Just(0u64), 3 => 0u64..2_000, 1 => 4_000u64..12_000];
        let done = (any::<prop::sample::Index>(), prop::bool::weighted(0.7));
        let act = prop_oneof![
            5 => Just(Act::Pass),
            4 => done.prop_map(|(index, is_success)| Act::Done { index, is_success }),
            1 => any::<prop::sample::Index>().prop_map(|index| Act::Abandon { index }),
        ];
        prop::collection::vec((wait, act), 0..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn never_too_many_probes_are_out_and_open_refuses_everything(acts in acts(), limit in 1u32..4) {
            let terms = BreakerTerms { at_least: 3, probes: limit, ..TERMS };
            let (mut breaker, mut now) = (Breaker::new(terms), at(0));
            let mut under_way: Vec<Passage> = Vec::new();
            let (mut opened_at, mut openings) = (None, 0);
            let (mut latest, mut last_probe, mut opened_before) = (0, now, 0);
            for (wait, act) in acts {
                now = now + Span::from_millis(wait);
                match act {
                    Act::Pass => {
                        let passage = breaker.pass(true, now);
                        if let Some(until) = opened_at.map(|opened: Tick| opened + TERMS.open).filter(|until| now < *until) {
                            prop_assert_eq!(&passage, &Passage::Refused { retry_at: until });
                        }
                        match &passage {
                            Passage::Refused { retry_at } => prop_assert!(now < *retry_at),
                            Passage::Probe { generation } => {
                                let has_lapsed = now.since(last_probe) >= PROBES_LAPSE;
                                prop_assert!(*generation == latest || *generation > latest && (openings > opened_before || has_lapsed));
                                (latest, last_probe, opened_before) = (*generation, now, openings);
                            }
                            Passage::Normal => prop_assert_eq!(breaker.state(now), BreakerState::Closed),
                        }
                        under_way.push(passage);
                        let probe = Passage::Probe { generation: latest };
                        let probes = under_way.iter().filter(|passage| **passage == probe).count();
                        // Those that a closing left behind are past: no more of their number are let pass.
                        prop_assert!(probes as u32 <= limit, "{probes} of {limit}");
                    }
                    Act::Done { .. } | Act::Abandon { .. } if under_way.is_empty() => {}
                    Act::Done { index, is_success } => {
                        let passage = under_way.swap_remove(index.index(under_way.len()));
                        let before = breaker.state(now);
                        if let Some(event) = breaker.done(passage, of(is_success), now) {
                            prop_assert_eq!((event.from, event.to), (before, breaker.state(now)));
                            opened_at = (event.to == BreakerState::Open).then_some(now);
                            openings += u64::from(event.to == BreakerState::Open);
                        }
                    }
                    Act::Abandon { index } => breaker.abandon(under_way.swap_remove(index.index(under_way.len()))),
                }
            }
        }
    }
}
