use sluicegate_time::{Span, Tick};

/// So many exchanges that failed one after the other, with no answer between them, open the circuit.
const FAILURES: u32 = 3;
/// So many results within 100 ms (the slots together), half of them failures, open it.
const RESULTS: u64 = 10;
const SLOTS: usize = 10;
const SLOT: Span = Span::from_millis(10);
/// The time to the next probe: at least so long, and up to `JITTER` longer. 250 ms, 20% up or down.
const PROBE_AFTER: Span = Span::from_millis(200);
const JITTER: Span = Span::from_millis(100);

/// Whether the store is asked at all: it is not while it fails, so that no request waits for it in vain.
///
/// Pure: time and random numbers are arguments. Three failures in a row, or ten results or more within 100 ms of which half
/// are failures, open it. Exchanges that were on their way together and fail are one failure: several of them wait where a busy
/// machine lets the store, or this gateway, wait for a core for once. While it is open one probe goes out about every 250 ms, at
/// an instant that differs from gateway to gateway; the first that is answered closes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circuit {
    state: CircuitState,
    failures: u32,
    /// When the last one was known.
    failed_at: Tick,
    recent: Recent,
}

/// The state of a [`Circuit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitState {
    /// The store is asked.
    Closed,
    /// It is not, until a probe is due.
    Open {
        /// When that is.
        next_probe: Tick,
    },
    /// A probe is out.
    Probing {
        /// When it is given up, and another one may go out.
        until: Tick,
    },
}

impl CircuitState {
    /// As circuit breakers name it: `closed`, `open` or `half-open`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open { .. } => "open",
            Self::Probing { .. } => "half-open",
        }
    }
}

/// The exchanges that are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Whatever there is.
    All,
    /// One probe, whose result is told by [`Circuit::probed`].
    Probe,
    /// Nothing.
    Nothing,
}

/// How an exchange with the store has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeOutcome {
    /// It answered. Also where it answered that one key is of another type: that is no failure of the store.
    Answered,
    /// It did not within the deadline.
    TimedOut,
    /// There is no connection, or it refuses everything.
    Failed,
}

/// A change of state that is worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitChange {
    /// From now on the store is not asked.
    Opened,
    /// It is asked again.
    Closed,
}

impl Default for Circuit {
    fn default() -> Self {
        Self { state: CircuitState::Closed, failures: 0, failed_at: Tick::ZERO, recent: Recent::default() }
    }
}

impl Circuit {
    /// A closed one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Its state, as it was left.
    pub fn state(&self) -> CircuitState {
        self.state
    }

    /// Says what may be sent now. A probe that is allowed counts as sent.
    pub fn pass(&mut self, now: Tick) -> Pass {
        match self.state {
            CircuitState::Closed => Pass::All,
            CircuitState::Open { next_probe: due } | CircuitState::Probing { until: due } if now >= due => {
                self.state = CircuitState::Probing { until: now + PROBE_AFTER + JITTER };
                Pass::Probe
            }
            CircuitState::Open { .. } | CircuitState::Probing { .. } => Pass::Nothing,
        }
    }

    /// Counts the result of an exchange that was no probe, and was sent at `sent`. While the circuit is not closed it changes
    /// nothing: it was sent before. `random` is any number, of which the jitter is made.
    pub fn settled(
        &mut self,
        outcome: ExchangeOutcome,
        (sent, now): (Tick, Tick),
        random: u32,
    ) -> Option<CircuitChange> {
        let is_failure = outcome != ExchangeOutcome::Answered;
        if self.state != CircuitState::Closed || is_failure && sent < self.failed_at {
            return None;
        }
        if is_failure {
            self.failed_at = now;
        }
        self.failures = if is_failure { self.failures + 1 } else { 0 };
        self.recent.add(is_failure, now);
        let (results, failures) = self.recent.sums();
        let fails_often = results >= RESULTS && failures * 2 >= results;
        if outcome == ExchangeOutcome::Answered || (self.failures < FAILURES && !fails_often) {
            return None;
        }
        self.open(now, random);
        Some(CircuitChange::Opened)
    }

    /// Counts the result of a probe. One that comes when the circuit is closed is like any other.
    pub fn probed(
        &mut self,
        outcome: ExchangeOutcome,
        (sent, now): (Tick, Tick),
        random: u32,
    ) -> Option<CircuitChange> {
        if self.state == CircuitState::Closed {
            return self.settled(outcome, (sent, now), random);
        }
        if outcome == ExchangeOutcome::Answered {
            // Exchanges of before that still fail say nothing of the store as it is now.
            *self = Self { failed_at: now, ..Self::default() };
            return Some(CircuitChange::Closed);
        }
        self.open(now, random);
        None
    }

    fn open(&mut self, now: Tick, random: u32) {
        let jitter = (u128::from(JITTER.as_nanos()) * u128::from(random)) >> u32::BITS;
        let after = Span::from_nanos(PROBE_AFTER.as_nanos() + jitter as u64);
        *self = Self { state: CircuitState::Open { next_probe: now + after }, ..Self::default() };
    }
}

/// Results of the last slots: how many, and how many failures of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Recent {
    newest: u64,
    slots: [(u64, u64); SLOTS],
}

impl Recent {
    fn add(&mut self, is_failure: bool, now: Tick) {
        let slot = self.newest.max(now.as_nanos() / SLOT.as_nanos());
        let skipped = (slot - self.newest).min(SLOTS as u64) as usize;
        self.slots.rotate_right(skipped);
        for (results, failures) in self.slots.iter_mut().take(skipped) {
            (*results, *failures) = (0, 0);
        }
        self.newest = slot;
        if let Some((results, failures)) = self.slots.first_mut() {
            *results = results.saturating_add(1);
            *failures = failures.saturating_add(u64::from(is_failure));
        }
    }

    fn sums(&self) -> (u64, u64) {
        self.slots.iter().fold((0, 0), |(all, failed), (results, failures)| {
            (u64::saturating_add(all, *results), u64::saturating_add(failed, *failures))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    /// Opened at 1 s, with a probe at 1.2 s.
    fn opened() -> Circuit {
        let mut circuit = Circuit::new();
        for _ in 0..3 {
            circuit.settled(ExchangeOutcome::TimedOut, (at(1_000), at(1_000)), 0);
        }
        assert_eq!(circuit.state(), CircuitState::Open { next_probe: at(1_200) });
        circuit
    }

    #[test]
    fn three_failures_in_a_row_open_it() {
        let mut circuit = Circuit::new();
        let mut told = |outcome, now| circuit.settled(outcome, (at(now), at(now)), u32::MAX);
        for (now, outcome) in
            [ExchangeOutcome::TimedOut, ExchangeOutcome::TimedOut, ExchangeOutcome::Answered].into_iter().enumerate()
        {
            assert_eq!(told(outcome, now as u64), None);
        }
        // They may lie far apart, and be of several kinds: a store that refuses everything is as good as none.
        assert_eq!(told(ExchangeOutcome::TimedOut, 5_000), None);
        assert_eq!(told(ExchangeOutcome::Failed, 8_000), None);
        assert_eq!(told(ExchangeOutcome::TimedOut, 12_000), Some(CircuitChange::Opened));
        let CircuitState::Open { next_probe } = circuit.state() else { panic!("{circuit:?}") };
        assert!(next_probe > at(12_299) && next_probe < at(12_300), "{next_probe:?}");
    }

    #[test]
    fn half_of_ten_within_a_tenth_of_a_second_open_it() {
        for (apart, opens) in [(1, true), (10, true), (12, false), (20, false)] {
            let mut circuit = Circuit::new();
            let told = (0..10).map(|index| {
                let outcome = if index % 2 == 0 { ExchangeOutcome::Answered } else { ExchangeOutcome::Failed };
                circuit.settled(outcome, (at(3_000 + index * apart), at(3_000 + index * apart)), 0)
            });
            let changes: Vec<_> = told.collect();
            assert_eq!(changes[..9], [None; 9], "{apart} ms apart");
            assert_eq!(changes[9], opens.then_some(CircuitChange::Opened), "{apart} ms apart");
        }
        let mut circuit = Circuit::new();
        let mut told = |outcome| circuit.settled(outcome, (at(0), at(0)), 0);
        let two_of_three = [ExchangeOutcome::Answered, ExchangeOutcome::Failed, ExchangeOutcome::Failed];
        assert!(
            two_of_three.repeat(3).into_iter().all(|outcome| told(outcome).is_none()),
            "6 of 9 are too few to tell"
        );
        assert_eq!(told(ExchangeOutcome::Answered), None, "an answer opens nothing");
        assert_eq!(told(ExchangeOutcome::Failed), Some(CircuitChange::Opened), "7 of 11");
    }

    #[test]
    fn exchanges_that_were_on_their_way_together_are_one_failure_and_old_ones_none() {
        let mut circuit = Circuit::new();
        let mut told = |sent, now| circuit.settled(ExchangeOutcome::TimedOut, (at(sent), at(now)), 0);
        assert_eq!(
            [told(0, 10), told(5, 15), told(8, 18), told(9, 19)],
            [None; 4],
            "one moment in which it stood still"
        );
        assert_eq!([told(10, 20), told(15, 25)], [None; 2], "a second one");
        assert_eq!(told(20, 30), Some(CircuitChange::Opened));
        assert_eq!(circuit.pass(at(230)), Pass::Probe);
        circuit.probed(ExchangeOutcome::Answered, (at(230), at(231)), 0);
        let mut told = |sent, now| circuit.settled(ExchangeOutcome::TimedOut, (at(sent), at(now)), 0);
        for sent in 200..231 {
            assert_eq!(told(sent, 240), None, "sent before it was back");
        }
        assert_eq!([told(231, 241), told(241, 251)], [None; 2]);
        assert_eq!(told(251, 261), Some(CircuitChange::Opened));
    }

    #[test]
    fn one_probe_at_a_time_and_one_answer_closes_it() {
        let mut circuit = opened();
        assert_eq!(circuit.pass(at(1_199)), Pass::Nothing);
        assert_eq!(circuit.settled(ExchangeOutcome::Answered, (at(1_199), at(1_199)), 0), None, "sent before");
        assert_eq!(circuit.pass(at(1_200)), Pass::Probe);
        assert_eq!(circuit.pass(at(1_499)), Pass::Nothing);
        assert_eq!(circuit.probed(ExchangeOutcome::TimedOut, (at(1_210), at(1_210)), 1 << 31), None);
        assert_eq!(circuit.state(), CircuitState::Open { next_probe: at(1_460) });
        assert_eq!(circuit.pass(at(1_460)), Pass::Probe);
        assert_eq!(circuit.pass(at(1_760)), Pass::Probe, "nobody has told of the last one");
        assert_eq!(circuit.probed(ExchangeOutcome::Answered, (at(1_761), at(1_761)), 0), Some(CircuitChange::Closed));
        assert_eq!((circuit.pass(at(1_761)), circuit.state()), (Pass::All, CircuitState::Closed));
    }

    proptest! {
        /// Whatever happens: a store that fails is asked at most once in 200 ms once the circuit has opened; one that answers
        /// again is used within 300 ms and the time of a probe; and no answer opens it.
        #[test]
        fn a_failing_store_is_left_alone_and_one_that_is_back_is_used(
            steps in vec((0u64..40, select(vec![ExchangeOutcome::Answered, ExchangeOutcome::TimedOut, ExchangeOutcome::Failed]), any::<u32>()), 1..200),
        ) {
            let mut circuit = Circuit::new();
            let (mut now, mut last_probe) = (0, None);
            for (pause, outcome, random) in steps {
                now += pause;
                match circuit.pass(at(now)) {
                    Pass::All => {
                        let change = circuit.settled(outcome, (at(now), at(now)), random);
                        if change == Some(CircuitChange::Opened) {
                            prop_assert_ne!(outcome, ExchangeOutcome::Answered);
                            last_probe = Some(now);
                        }
                    }
                    Pass::Probe => {
                        prop_assert!(last_probe.is_none_or(|last| now - last >= 200));
                        last_probe = Some(now);
                        let change = circuit.probed(outcome, (at(now), at(now)), random);
                        prop_assert_eq!(change == Some(CircuitChange::Closed), outcome == ExchangeOutcome::Answered);
                    }
                    Pass::Nothing => {
                        let CircuitState::Open { next_probe } = circuit.state() else { panic!("{circuit:?}") };
                        prop_assert!(next_probe > at(now) && next_probe.since(at(now)) < Span::from_millis(300));
                    }
                }
            }
            // Back: within 300 ms it is asked, and closed.
            let back = (now..now + 301).find(|millis| circuit.pass(at(*millis)) != Pass::Nothing);
            prop_assert!(back.is_some());
            if circuit.state() != CircuitState::Closed {
                prop_assert_eq!(circuit.probed(ExchangeOutcome::Answered, (at(now + 301), at(now + 301)), 0), Some(CircuitChange::Closed));
            }
        }
    }

    #[test]
    fn the_end_of_time_does_not_overflow() {
        let mut circuit = Circuit::new();
        for _ in 0..3 {
            circuit.settled(ExchangeOutcome::TimedOut, (Tick::MAX, Tick::MAX), u32::MAX);
        }
        assert_eq!(circuit.state(), CircuitState::Open { next_probe: Tick::MAX });
        assert_eq!(circuit.pass(Tick::MAX), Pass::Probe);
        assert_eq!(circuit.settled(ExchangeOutcome::Answered, (Tick::ZERO, Tick::ZERO), 0), None);
    }
}
