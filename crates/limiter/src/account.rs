use super::MAX_RATES;
use super::account_log::AccountLog;
use super::algorithm::{Algorithm, CommitFacts, FitTime, Moment, Rule};
use super::quota::MAX_COUNT;
use super::settle::{Settle, SettleAnswer};
use sluicegate_time::{Span, Tick};

/// A million millionths.
const WHOLE_PPM: u32 = 1_000_000;
/// So long after its end the rest of a grant has come back: a gateway looks at its grants once in
/// [`LEASE_HOLD`](super::LEASE_HOLD), and its report has a quarter of a second.
pub const GRANT_RETURNS: Span = Span::from_millis(350);
/// For at least so long it is known how little a bucket was missing: for longer than a grant is out.
const EPOCH: Span = Span::from_millis(500);

/// One key's count as the store keeps it for several gateways: what a store has to answer to each [`Settle`].
///
/// The reference for every store. It is made of the same arithmetic that decides locally, so that a shared limit and a
/// local one count alike; and it counts debts, that is, what was spent without room. A simulated store is a map of these.
///
/// For timer wheels, greedy token buckets, GCRA, fixed windows, sliding windows, sliding counters and sliding
/// logs.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    rule: Rule,
    words: Vec<u64>,
    /// In the place of the words, of a sliding log.
    log: Option<AccountLog>,
    /// The store's clock does not go back.
    latest: Tick,
    /// When the last grant that is out has come back.
    out: Tick,
    /// Of each rate of a bucket.
    lows: Vec<Low>,
}

/// The least of a bucket that was missing, in parts.
#[derive(Clone, Debug, Default, PartialEq)]
struct Low {
    /// Since `from`.
    recent: u128,
    /// In the [`EPOCH`] before that.
    before: u128,
    from: Option<Tick>,
    /// Nothing was missing when this settle began.
    was_full: bool,
}

impl Account {
    /// The account of a key that was never seen.
    pub fn new(algorithm: &Algorithm) -> Self {
        let rule = Rule::with_debts(algorithm);
        let log = if let Algorithm::SlidingLog(log) = algorithm { Some(AccountLog::new(log.rates())) } else { None };
        Self { words: vec![0; rule.words()], rule, log, latest: Tick::ZERO, out: Tick::ZERO, lows: Vec::new() }
    }

    /// Charges `spent`, takes `back`, grants what is asked for as far as there is room, and says what is left: in this
    /// order, at `now` by the store's clock. `hold` is how long a grant may be held at most.
    pub fn settle(&mut self, settle: &Settle, hold: Span, now: Tick) -> SettleAnswer {
        let now = self.latest.max(now);
        self.latest = now;
        match &mut self.log {
            Some(log) => {
                // Nothing else says when a grant was made: the last charge may have been one.
                self.out = log.last_charge().map_or(Tick::ZERO, |at| at + hold + GRANT_RETURNS);
                log.advance(now);
            }
            None => self.rule.advance(&mut self.words, now),
        }
        self.look_at_lows(now);
        self.charge(settle.spent, now);
        self.give_back(settle.back, now - settle.back_age, now);
        let granted = self.grantable(settle, now);
        self.charge(granted, now);
        if let Some(log) = &self.log {
            self.latest = log.newest();
        }
        self.note_lows(now);
        let remaining = self.remaining(now);
        if granted > 0 {
            let life = hold.min(self.window_left(now));
            self.out = self.out.max(now + life + GRANT_RETURNS);
            return SettleAnswer { granted, life, remaining, ..SettleAnswer::default() };
        }
        let need = settle.need.max(1);
        let retry = self.full_for(need, now);
        let out = if retry.is_some() && need <= self.rule.largest() { self.out.since(now) } else { Span::ZERO };
        SettleAnswer { retry, out, remaining, ..SettleAnswer::default() }
    }

    /// Whether a key that was never seen stands as well as this one.
    pub fn is_idle(&self, now: Tick) -> bool {
        let now = self.latest.max(now);
        self.log.as_ref().map_or_else(|| self.rule.is_idle(&self.words, now), |log| log.is_idle(now))
    }

    fn charge(&mut self, cost: u64, now: Tick) {
        let cost = cost.min(MAX_COUNT);
        match &mut self.log {
            Some(log) => log.charge(cost, now),
            // Nothing opens no window.
            None if cost > 0 => self.rule.commit(&mut self.words, cost, Moment::at(now)),
            None => {}
        }
    }

    /// Gives back what was charged at `then` or later, as if `then` were when: the earlier it was, the less of it counts.
    /// No grant was above the largest cost.
    fn give_back(&mut self, back: u64, then: Tick, now: Tick) {
        let back = back.min(self.rule.largest());
        if back == 0 {
            return;
        }
        if let Some(log) = &mut self.log {
            return log.give_back(back, then);
        }
        if !self.lows.is_empty() {
            return self.give_back_tokens(back, then, now);
        }
        // A window has to have been open at `then` already.
        let still_open = |[opened, count]: [u64; 2]| {
            let was_open = opened <= then.as_nanos();
            if was_open { [opened, count] } else { [u64::MAX, 0] }
        };
        let words = self.rule.first_words(&self.words).map(still_open);
        let taken = words.into_iter().map(|words| CommitFacts { at: then, words, given: 0, is_about: true });
        self.rule.give_back(&mut self.words, back, taken, now);
    }

    /// Gives back all of it, unless the bucket would have been full since without it: what it could not have held is lost.
    fn give_back_tokens(&mut self, back: u64, then: Tick, now: Tick) {
        let Self { rule, words, lows, .. } = self;
        for (rate, low) in lows.iter_mut().enumerate() {
            let Some((credit, chunk)) = rule.credit_of(words, rate) else { return };
            let (missing, parts) = (credit.missing(chunk, now), credit.parts(back));
            let known = match low.from {
                Some(from) if then >= from => low.recent,
                Some(from) if then + EPOCH >= from => low.recent.min(low.before),
                _ => 0,
            };
            // It was missing at least as much as was taken, less what has been refilled since.
            let returned = parts.min(known).max(parts.saturating_sub(credit.refilled(now.since(then))));
            credit.set_missing(chunk, missing.saturating_sub(returned), now);
            low.recent = low.recent.saturating_sub(parts);
            low.before = low.before.saturating_sub(parts);
        }
    }

    /// Notes how little each bucket is missing now.
    fn look_at_lows(&mut self, now: Tick) {
        let Self { rule, words, lows, .. } = self;
        for rate in 0..rule.rates() {
            let Some((credit, chunk)) = rule.credit_of(words, rate) else { return };
            let missing = credit.missing(chunk, now);
            if lows.len() == rate {
                lows.push(Low::default());
            }
            let Some(low) = lows.get_mut(rate) else { return };
            low.was_full = missing == 0;
            low.recent = low.recent.min(missing);
            let from = *low.from.get_or_insert(now);
            if now.since(from) >= EPOCH {
                *low = Low { recent: missing, before: low.recent, from: Some(now), was_full: low.was_full };
            }
        }
    }

    /// Of a bucket that was full nothing can be given back that was charged before.
    fn note_lows(&mut self, now: Tick) {
        let Self { rule, words, lows, .. } = self;
        for (rate, low) in lows.iter_mut().enumerate().filter(|(_, low)| low.was_full) {
            let Some((credit, chunk)) = rule.credit_of(words, rate) else { return };
            *low = Low { recent: credit.missing(chunk, now), before: 0, from: Some(now), was_full: true };
        }
    }

    /// The grant: of what is left, the part that is asked for ahead, but at least what those cost that wait.
    fn grantable(&self, settle: &Settle, now: Tick) -> u64 {
        let share = settle.share_ppm.min(WHOLE_PPM);
        let left = self.remaining(now).into_iter().take(self.rule.rates()).min().unwrap_or(0);
        if (settle.need == 0 && share == 0) || left < settle.need.max(1) {
            return 0;
        }
        let ahead = u128::from(left) * u128::from(share) / u128::from(WHOLE_PPM);
        left.min(settle.want.max(settle.need).max(ahead as u64))
    }

    fn full_for(&self, cost: u64, now: Tick) -> Option<Span> {
        let room = match &self.log {
            Some(_) if cost > self.rule.largest() => return Some(Span::MAX),
            Some(log) => match log.fits_at(cost, now) {
                at if at > now => FitTime::At { at, rate: 0 },
                _ => FitTime::Now,
            },
            None => self.rule.room(&self.words, cost, now),
        };
        match room {
            FitTime::Now => None,
            FitTime::At { at, .. } => Some(at.since(now)),
            FitTime::OnRelease { .. } | FitTime::Never { .. } => Some(Span::MAX),
        }
    }

    /// How long until the first of the fixed windows ends that something is counted in, or the first sub-window or
    /// window of a counter.
    fn window_left(&self, now: Tick) -> Span {
        let Rule::FixedWindow(_) = self.rule else {
            return self.rule.grant_ends(&self.words).map_or(Span::MAX, |end| end.since(now));
        };
        let ends = (0..self.rule.rates()).filter_map(|rate| self.rule.standing(&self.words, rate, now).grows_at);
        ends.map(|end| end.since(now)).min().unwrap_or(Span::MAX)
    }

    fn remaining(&self, now: Tick) -> [u64; MAX_RATES] {
        if let Some(log) = &self.log {
            return log.remaining(now);
        }
        let mut all = [0; MAX_RATES];
        for (rate, remaining) in all.iter_mut().enumerate().take(self.rule.rates()) {
            *remaining = self.rule.standing(&self.words, rate, now).remaining;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Align, Bound, FixedWindow, Gcra, Rate, Refill, SlidingCounter, SlidingLog, SlidingWindow, TimerWheel,
        TokenBucket,
    };

    const HOLD: Span = Span::from_millis(100);

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    fn rates(texts: &[&str]) -> Vec<Rate> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn wheel(texts: &[&str], bound: Bound) -> Account {
        Account::new(&Algorithm::TimerWheel(TimerWheel::new(&rates(texts), None, bound).unwrap()))
    }

    fn bucket(text: &str, burst: u64) -> Account {
        let bucket = TokenBucket::new(&rates(&[text]), Some(burst), Refill::Greedy).unwrap();
        Account::new(&Algorithm::TokenBucket(bucket))
    }

    fn window(texts: &[&str], align: Align) -> Account {
        Account::new(&Algorithm::FixedWindow(FixedWindow::new(&rates(texts), align).unwrap()))
    }

    fn sliding(texts: &[&str], slots: u32, slot_limit: u64) -> Account {
        let window = SlidingWindow::new(&rates(texts), Some(slots), Some(slot_limit)).unwrap();
        Account::new(&Algorithm::SlidingWindow(window))
    }

    fn counter(text: &str) -> Account {
        Account::new(&Algorithm::SlidingCounter(SlidingCounter::new(&rates(&[text])).unwrap()))
    }

    fn log(texts: &[&str]) -> Account {
        Account::new(&Algorithm::SlidingLog(SlidingLog::new(&rates(texts), Span::ZERO, false).unwrap()))
    }

    fn spent(spent: u64) -> Settle {
        Settle { spent, ..Settle::default() }
    }

    fn need(need: u64) -> Settle {
        Settle { need, want: need, ..Settle::default() }
    }

    fn back(back: u64, age_millis: u64) -> Settle {
        Settle { back, back_age: Span::from_millis(age_millis), ..Settle::default() }
    }

    fn ms(millis: u64) -> Span {
        Span::from_millis(millis)
    }

    /// The rest of the first rate, and for how long it is full, after a settle.
    fn after(account: &mut Account, settle: Settle, now: u64) -> (u64, Option<Span>) {
        let answer = account.settle(&settle, HOLD, at(now));
        (answer.remaining[0], answer.retry)
    }

    #[test]
    fn a_bucket_that_was_spent_three_times_while_cut_off_refills_from_below_zero() {
        let mut account = bucket("4/s", 4);
        assert_eq!(after(&mut account, spent(1), 0), (3, None));
        assert_eq!(after(&mut account, spent(1), 0), (2, None));
        assert_eq!(after(&mut account, spent(2), 0), (0, Some(ms(250))));
        assert_eq!(after(&mut account, spent(12), 1_000), (0, Some(ms(2_250))), "4 - 12 = -8");
        assert_eq!(after(&mut account, need(1), 3_249), (0, Some(ms(1))));
        assert_eq!(account.settle(&need(1), HOLD, at(3_250)).granted, 1);
        assert!(!account.is_idle(at(4_249)) && account.is_idle(at(4_250)));
    }

    #[test]
    fn a_share_of_what_is_left_is_granted_ahead_and_at_least_what_those_cost_that_wait() {
        let mut account = wheel(&["100/s"], Bound::Sliding);
        let ask = |need, want, share_ppm| Settle { need, want, share_ppm, ..Settle::default() };
        for (settle, granted, left) in [
            (ask(0, 0, 0), 0, 100),
            (ask(0, 0, 83_333), 8, 92),
            (ask(1, 1, 83_333), 7, 85),
            (ask(1, 20, 83_333), 20, 65),
            (ask(66, 66, 1_000_000), 0, 65),
            (ask(1, 66, 0), 65, 0),
        ] {
            let answer = account.settle(&settle, HOLD, at(30));
            assert_eq!((answer.granted, answer.remaining[0]), (granted, left), "{settle:?}");
            assert_eq!(answer.life, if granted > 0 { HOLD } else { Span::ZERO }, "{settle:?}");
        }
        assert_eq!(after(&mut account, ask(0, 0, 83_333), 30), (0, Some(ms(970))), "full for 1");
        assert_eq!(after(&mut account, need(100), 230), (0, Some(ms(770))));
        assert_eq!(after(&mut account, need(101), 230), (0, Some(Span::MAX)), "never");
    }

    #[test]
    fn debts_of_several_limits_are_counted_whole() {
        let mut account = wheel(&["100/s"], Bound::Sliding);
        assert_eq!(after(&mut account, spent(100_000), 0), (0, Some(ms(1_000))));
        assert_eq!(after(&mut account, spent(50), 500), (0, Some(ms(500))));
        assert_eq!(after(&mut account, back(101, 500), 500), (0, Some(ms(500))), "99,900 and 50 are above 100 still");
        for _ in 0..998 {
            after(&mut account, back(100, 500), 500);
        }
        assert_eq!(after(&mut account, back(51, 500), 500), (1, None), "49 of 100,000 stay, and 50");
        let mut account = window(&["3/s"], Align::Epoch);
        assert_eq!(after(&mut account, spent(1_000_000), 100), (0, Some(ms(900))));
        assert_eq!(after(&mut account, back(3, 0), 100), (0, Some(ms(900))));
        assert_eq!(after(&mut account, spent(0), 1_000), (3, None), "a window's debt ends with it");
    }

    #[test]
    fn what_was_not_spent_goes_back_to_the_slot_that_it_was_charged_to() {
        let mut account = wheel(&["10/s"], Bound::Sliding);
        after(&mut account, spent(4), 50);
        assert_eq!(after(&mut account, spent(6), 250), (0, Some(ms(750))));
        assert_eq!(after(&mut account, back(3, 100), 320), (3, None), "of the slot at 220 ms");
        assert_eq!(
            after(&mut account, back(5, 270), 320),
            (8, None),
            "four of the slot at 50 ms, which had no more, and one that was charged later"
        );
        assert_eq!(after(&mut account, spent(0), 1_199), (8, None));
        assert_eq!(after(&mut account, back(3, 1_000), 1_200), (10, None), "its slot has gone");
    }

    #[test]
    fn a_bucket_gets_no_tokens_back_that_have_been_refilled() {
        let mut account = bucket("10/s", 10);
        after(&mut account, spent(5), 0);
        assert_eq!(after(&mut account, back(4, 100), 100), (10, None), "1 was spent, and has been refilled since");
        assert_eq!(after(&mut account, back(1, 100), 100), (10, None));
        after(&mut account, spent(9), 100);
        assert_eq!(after(&mut account, back(90, 0), 100), (10, None), "never above full");
        let mut gcra = Account::new(&Algorithm::Gcra(Gcra::new(&rates(&["3/s"]), Some(3)).unwrap()));
        after(&mut gcra, need(3), 2_000);
        let third = Some(Span::from_nanos(333_333_334));
        assert_eq!(after(&mut gcra, back(3, 1_000), 2_000), (0, third), "a second refills three");
        assert_eq!(after(&mut gcra, back(3, 666), 2_000), (1, None), "not quite two");
    }

    #[test]
    fn a_bucket_gets_all_back_that_it_could_have_held() {
        let mut account = bucket("10/s", 10);
        after(&mut account, spent(6), 0);
        assert_eq!(after(&mut account, need(4), 0), (0, None));
        assert_eq!(after(&mut account, back(4, 100), 100), (5, None), "it had never been full without them");
        let mut account = bucket("10/s", 10);
        after(&mut account, need(5), 0);
        after(&mut account, spent(5), 300);
        assert_eq!(after(&mut account, back(4, 350), 350), (5, None), "2 of 4: it had been full from 100 ms to 300 ms");
        // For half a second and more it is known how little was missing.
        let mut account = bucket("10/s", 100);
        for second in 0..4 {
            after(&mut account, spent(30), second * 1_000);
        }
        assert_eq!(account.settle(&need(8), HOLD, at(3_010)).granted, 8);
        after(&mut account, spent(3), 3_500);
        let (left, _) = after(&mut account, spent(0), 3_900);
        assert_eq!(after(&mut account, back(8, 890), 3_900).0, left + 8);
    }

    #[test]
    fn a_full_key_says_how_long_grants_may_still_come_back() {
        let mut all =
            [wheel(&["5/h"], Bound::Sliding), bucket("5/h", 5), window(&["5/h"], Align::Epoch), log(&["5/h"])];
        for account in &mut all {
            assert_eq!(account.settle(&need(5), HOLD, at(30)).granted, 5);
            for (now, out) in [(30, 450), (130, 350), (479, 1), (480, 0), (9_000, 0)] {
                let answer = account.settle(&need(1), HOLD, at(now));
                assert!(answer.retry.is_some());
                assert_eq!(answer.out, ms(out), "at {now} ms");
            }
        }
        let mut account = wheel(&["5/h"], Bound::Sliding);
        assert_eq!(account.settle(&spent(5), HOLD, at(30)).out, Span::ZERO, "what was spent does not come back");
    }

    #[test]
    fn a_grant_is_not_held_beyond_its_window() {
        for (align, opened) in [(Align::Epoch, 0), (Align::First, 20)] {
            let mut account = window(&["5/s", "7/10s"], align);
            let answer = account.settle(&need(1), HOLD, at(20));
            assert_eq!((answer.granted, answer.life, answer.remaining), (1, HOLD, [4, 6, 0, 0]));
            let answer = account.settle(&need(4), HOLD, at(opened + 960));
            assert_eq!((answer.granted, answer.life, answer.remaining), (4, ms(40), [0, 2, 0, 0]));
            assert_eq!(after(&mut account, need(1), opened + 990), (0, Some(ms(10))));
            assert_eq!(after(&mut account, back(2, 50), opened + 999), (2, None), "in the window of the grant");
            assert_eq!(account.settle(&need(3), HOLD, at(opened + 1_010)).remaining, [2, 1, 0, 0]);
            let answer = account.settle(&back(3, 11), HOLD, at(opened + 1_010));
            assert_eq!(answer.remaining, [2, 4, 0, 0], "charged in the second before, and in these ten");
        }
    }

    #[test]
    fn a_sub_window_grants_no_more_than_its_cap_and_its_grants_end_with_it() {
        let mut account = sliding(&["10/s"], 5, 4);
        let answer = account.settle(&need(3), HOLD, at(150));
        assert_eq!((answer.granted, answer.life, answer.remaining[0]), (3, ms(50), 1), "the sub-window ends at 200 ms");
        assert_eq!(after(&mut account, need(2), 150), (1, Some(ms(50))), "3 and 2 are above 4");
        assert_eq!(after(&mut account, spent(5), 190), (0, Some(ms(10))), "8 in it: a debt of 4");
        assert_eq!(after(&mut account, spent(0), 200), (2, None));
        assert_eq!(after(&mut account, need(3), 200), (2, Some(ms(800))), "8 and 3 are above the window's 10");
        assert_eq!(after(&mut account, back(2, 110), 260), (4, None), "of the sub-window at 150 ms");
        assert_eq!(account.settle(&need(2), HOLD, at(260)).granted, 2);
        assert_eq!(after(&mut account, need(5), 260), (2, Some(Span::MAX)), "never: a sub-window takes 4");
        assert_eq!(after(&mut account, spent(0), 1_000), (4, None));
        assert!(!account.is_idle(at(1_199)) && account.is_idle(at(1_200)));
    }

    #[test]
    fn a_counter_weighs_the_window_before_and_its_grants_end_with_their_window() {
        let mut account = counter("10/s");
        let answer = account.settle(&need(8), HOLD, at(950));
        assert_eq!((answer.granted, answer.life, answer.remaining[0]), (8, ms(50), 2));
        assert_eq!(after(&mut account, spent(0), 1_000), (2, None), "all 8 weigh");
        assert_eq!(after(&mut account, need(5), 1_250), (4, Some(Span::from_nanos(1))), "6 weigh, and then less");
        assert_eq!(
            after(&mut account, spent(9), 1_500),
            (0, Some(Span::from_nanos(375_000_001))),
            "4 weigh: a debt of 3, until less than 1 does"
        );
        assert_eq!(
            after(&mut account, back(4, 550), 1_500),
            (0, Some(Span::from_nanos(250_000_001))),
            "of the window before: 2 of 4 weigh"
        );
        assert_eq!(
            after(&mut account, spent(20), 1_600),
            (0, Some(Span::from_nanos(1_055_172_414))),
            "29 weigh less than 10 in the next"
        );
        assert_eq!(after(&mut account, spent(0), 2_999), (10, None), "29 thousandths");
        assert!(!account.is_idle(at(2_999)) && account.is_idle(at(3_000)));
    }

    #[test]
    fn a_log_lets_each_go_a_window_after_it_was_charged() {
        let mut account = log(&["3/s", "5/10s"]);
        assert_eq!(after(&mut account, need(2), 100), (1, None));
        assert_eq!(account.settle(&need(1), HOLD, at(400)).life, HOLD);
        assert_eq!(after(&mut account, need(1), 1_099), (0, Some(ms(1))));
        assert_eq!(
            after(&mut account, need(2), 1_100),
            (0, None),
            "the two of 100 ms have left, and 5 of ten seconds are in"
        );
        assert_eq!(after(&mut account, need(1), 1_400), (1, Some(ms(8_700))));
        assert_eq!(after(&mut account, back(1, 1_301), 1_400), (1, Some(ms(8_700))), "nothing was charged at 99 ms");
        assert_eq!(account.settle(&back(1, 1_000), HOLD, at(1_400)).remaining, [1, 1, 0, 0], "that of 400 ms");
        assert_eq!(
            account.settle(&spent(4), HOLD, at(1_500)).remaining,
            [0, 0, 0, 0],
            "a debt: three of five are lost"
        );
        assert_eq!(after(&mut account, back(3, 0), 1_600), (0, Some(ms(9_500))), "nothing is given back");
        assert_eq!(after(&mut account, spent(0), 11_099), (3, Some(ms(1))), "of 10 s none, of a second 3");
        assert_eq!(after(&mut account, need(2), 11_100), (3, Some(ms(400))));
        assert_eq!(after(&mut account, back(3, 9_600), 11_100), (3, None), "what was lost has left");
        assert!(!account.is_idle(at(11_499)) && account.is_idle(at(11_500)));
    }

    #[test]
    fn a_clock_that_goes_back_stands_still() {
        let mut account = bucket("10/s", 10);
        after(&mut account, spent(10), 1_000);
        assert_eq!(after(&mut account, spent(0), 900), (0, Some(ms(100))));
        assert_eq!(after(&mut account, spent(0), 1_100), (1, None));
    }

    /// A grant, how much of it is spent, and when it is given back.
    fn grants() -> impl Strategy<Value = Vec<(u64, u64, u64, u64)>> {
        vec((0u64..400, 1u64..5, 0u64..5, 0u64..300), 1..20)
    }

    proptest! {
        /// Giving back leaves a bucket no better than if it had never been taken.
        #[test]
        fn giving_back_gains_nothing(grants in grants(), burst in 5u64..12) {
            let (mut with, mut without) = (bucket("10/s", burst), bucket("10/s", burst));
            let (mut now, mut events) = (0, Vec::new());
            for (pause, granted, unspent, age) in grants {
                now += pause;
                let unspent = unspent.min(granted);
                events.push((now, 0, spent(granted), spent(granted - unspent)));
                events.push((now + age, 1, back(unspent, age), spent(0)));
            }
            events.sort_by_key(|(when, order, ..)| (*when, *order));
            for (when, _, taken, ideal) in events {
                let (with, _) = after(&mut with, taken, when);
                let (without, _) = after(&mut without, ideal, when);
                prop_assert!(with <= without, "{with} of {without} at {when} ms");
            }
        }

        /// No numbers of a message overflow.
        #[test]
        fn no_number_is_too_large(numbers in vec(any::<[u64; 6]>(), 1..20), share_ppm: u32) {
            let mut accounts = [
                wheel(&["1000000000000/s", "7/3ms"], Bound::Strict),
                bucket("1000000000000/1ns", 1_000_000_000_000),
                bucket("1/36500d", 1),
                window(&["1000000000000/1ns", "1/36500d"], Align::Epoch),
                window(&["1000000000000/1ns", "1/36500d"], Align::First),
                log(&["4096/1ns", "1/36500d"]),
                counter("1000000000000/1ns"),
                counter("1000000000000/36500d"),
                sliding(&["1000000000000/s", "7/4s"], 2, 1_000_000_000_000),
            ];
            for [spent, back, age, need, want, now] in numbers {
                let settle = Settle { spent, back, back_age: Span::from_nanos(age), need, want, share_ppm };
                for account in &mut accounts {
                    let answer = account.settle(&settle, Span::MAX, Tick::from_nanos(now));
                    prop_assert!(answer.granted <= MAX_COUNT);
                }
            }
        }
    }
}
