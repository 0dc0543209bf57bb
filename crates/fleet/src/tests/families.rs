//! The scripts against the account, on a real server under a clock that the test drives.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::server::{Raw, Reply as Said, Server};
use crate::scripts::{Script, of_family};
use crate::shared::{Family, ScriptReply, SharedLimit};
use sluicegate_limiter::{
    Account, Algorithm, Align, Bound, FixedWindow, Gcra, Rate, Refill, Settle, SettleAnswer, SlidingCounter,
    SlidingLog, SlidingWindow, TimerWheel, TokenBucket,
};
use sluicegate_time::{Span, Tick};

/// The last argument is the time; how long a key is to be kept is written down, and the key is kept for longer, since the
/// server's own clock goes on.
pub(super) const DRIVEN: &str = "
local clock = tonumber(table.remove(ARGV))
local function keep(ms)
  redis.call('SET', 'kept', string.format('%.0f', ms))
  redis.call('PEXPIRE', KEYS[1], 3600000)
end
";
pub(super) const HOLD: Span = Span::from_millis(100);
/// In 2023.
const START: u64 = 1_700_000_000_000_000;

fn micros(micros: u64) -> Span {
    Span::from_nanos(micros * 1_000)
}

fn at(micros: u64) -> Tick {
    Tick::from_nanos(micros * 1_000)
}

/// The store's reply to the same settle, in its integers.
fn as_reply(answer: &SettleAnswer, rates: usize, clock: u64) -> Vec<i64> {
    let whole = |span: Span| span.as_nanos().div_ceil(1_000).cast_signed();
    let retry = answer.retry.map_or(-1, |retry| if retry == Span::MAX { (1 << 53) - 1 } else { whole(retry) });
    let remaining = answer.remaining.iter().take(rates).map(|remaining| remaining.cast_signed());
    let first = [answer.granted.cast_signed(), whole(answer.life), retry, whole(answer.out)];
    first.into_iter().chain(remaining).chain([clock.cast_signed()]).collect()
}

/// Calls a script that was loaded, at a time by the clock that the test drives.
pub(super) fn driven(store: &mut Raw, script: &Script, key: &str, numbers: &[i64], now: u64) -> Vec<i64> {
    let numbers: Vec<String> = numbers.iter().chain([&now.cast_signed()]).map(ToString::to_string).collect();
    let mut words = vec!["EVALSHA", script.digest(), "1", key];
    words.extend(numbers.iter().map(String::as_str));
    store.integers(&words)
}

/// One key in the store beside its account.
pub(super) struct Pair<'a> {
    store: &'a mut Raw,
    script: Script,
    key: String,
    shared: SharedLimit,
    algorithm: Algorithm,
    account: Account,
    /// When the key vanishes by itself.
    vanishes: Option<u64>,
    now: u64,
}

impl<'a> Pair<'a> {
    pub(super) fn new(store: &'a mut Raw, key: String, algorithm: Algorithm) -> Self {
        let shared = SharedLimit::new(&algorithm).unwrap();
        let script = of_family(DRIVEN, shared.family());
        assert_eq!(store.ask(&["SCRIPT", "LOAD", script.text()]), Said::Text(script.digest().to_owned()));
        let account = Account::new(&algorithm);
        Self { store, script, key, shared, algorithm, account, vanishes: None, now: START }
    }

    /// Settles both, and says what both have answered.
    pub(super) fn settle(&mut self, settle: &Settle, now: u64) -> Result<Vec<i64>, TestCaseError> {
        // The store's clock does not go back behind the last charge of a log, which may be taken out now.
        self.now = now.max(self.last_of_log().unwrap_or(0));
        if self.vanishes.is_some_and(|vanishes| vanishes <= now) {
            prop_assert!(self.account.is_idle(at(now)), "the key vanishes too early");
            self.store.ask(&["DEL", &self.key]);
            self.account = Account::new(&self.algorithm);
        }
        let numbers = self.shared.arguments(settle, HOLD, None, now);
        let reply = driven(self.store, &self.script, &self.key, &numbers, now);
        let expected = as_reply(&self.account.settle(settle, HOLD, at(now)), self.algorithm.rates().len(), now);
        prop_assert_eq!(&reply, &expected, "{:?} at {} of {:?}", settle, now, self.shared);
        prop_assert!(self.shared.reply(&reply).is_some_and(|reply| reply.answer.is_some()));
        self.look_at_expiry()?;
        Ok(reply)
    }

    fn last_of_log(&mut self) -> Option<u64> {
        if self.shared.family() != Family::Log {
            return None;
        }
        let Said::Array(pair) = self.store.ask(&["ZRANGE", &self.key, "-1", "-1", "WITHSCORES"]) else { return None };
        if let Some(Said::Text(score)) = pair.get(1) { Some(score.parse().unwrap()) } else { None }
    }

    /// The key is there, with an end, exactly as long as its state means something.
    fn look_at_expiry(&mut self) -> Result<(), TestCaseError> {
        // The store's clock does not go back while the key is there.
        if self.store.integers(&["EXISTS", &self.key]) == [0] {
            prop_assert!(self.account.is_idle(at(self.now)));
            self.account = Account::new(&self.algorithm);
            self.vanishes = None;
            return Ok(());
        }
        prop_assert!(!self.account.is_idle(at(self.now)), "an idle key is kept");
        prop_assert!(self.store.integers(&["PTTL", &self.key])[0] > 0);
        let Said::Text(kept) = self.store.ask(&["GET", "kept"]) else { panic!("no expiry") };
        let kept: u64 = kept.parse().unwrap();
        let latest = if self.shared.family() == Family::Log {
            let most = self.algorithm.rates().iter().map(|rate| rate.limit()).max().unwrap();
            let members = self.store.integers(&["ZCARD", &self.key])[0].cast_unsigned();
            prop_assert!(members <= most + 1, "{members} of {most}");
            self.now
        } else {
            let Said::Text(latest) = self.store.ask(&["HGET", &self.key, "at"]) else { panic!("no instant") };
            latest.parse().unwrap()
        };
        prop_assert!(self.account.is_idle(at(latest + kept * 1_000)), "kept for {kept} ms: too short");
        prop_assert!(!self.account.is_idle(at(latest + kept * 1_000 - 1_000)), "kept for {kept} ms: too long");
        self.vanishes = Some(latest + kept * 1_000);
        Ok(())
    }
}

/// One settle: a pause in parts of the longest window, then counts in parts of the largest cost.
#[derive(Clone, Debug)]
struct Step {
    pause: (i64, u64),
    spent: u64,
    back: u64,
    age: u64,
    need: u64,
    want: u64,
    share_ppm: u32,
}

/// A count is of so many, or so many 64ths of the largest cost.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scale {
    Small,
    Large,
}

fn steps(scale: Scale) -> impl Strategy<Value = Vec<Step>> {
    // In thousandths of the window, and microseconds.
    let pause = prop_oneof![
        4 => (Just(0), 0u64..3),
        4 => (0i64..300, 0u64..100),
        2 => (300i64..1_100, 0u64..2),
        1 => (1_000i64..4_000, 0u64..100),
        1 => (-200i64..0, Just(0)),
    ];
    let spent = match scale {
        Scale::Small => prop_oneof![3 => Just(0u64), 4 => 1u64..4, 1 => 4u64..60].boxed(),
        Scale::Large => prop_oneof![3 => Just(0u64), 4 => 1u64..9].boxed(),
    };
    let count = || prop_oneof![3 => Just(0u64), 4 => 1u64..4, 1 => 1u64..70];
    let share = select(vec![0, 0, 1, 83_333, 333_333, 1_000_000]);
    let age = prop_oneof![Just(0u64), 0u64..300, 0u64..2_500];
    let step = (pause, spent, count(), age, count(), 0u64..20, share).prop_map(
        |(pause, spent, back, age, need, want, share_ppm)| Step { pause, spent, back, age, need, want, share_ppm },
    );
    vec(step, 30..50)
}

fn run(server: &Server, algorithms: impl Strategy<Value = (Algorithm, Scale)>) {
    run_from(server, algorithms, Just(START));
}

/// The same, begun at other instants, in microseconds.
pub(super) fn run_from(
    server: &Server,
    algorithms: impl Strategy<Value = (Algorithm, Scale)>,
    starts: impl Strategy<Value = u64>,
) {
    let algorithms = algorithms.prop_flat_map(|(algorithm, scale)| (Just(algorithm), Just(scale), steps(scale)));
    let algorithms = (algorithms, starts);
    let mut runner = TestRunner::new(Config { cases: 64, failure_persistence: None, ..Config::default() });
    let (mut store, mut case, mut settled, mut granted, mut refused) = (server.raw(), 0, 0, 0, 0);
    let counts = std::cell::RefCell::new((&mut store, &mut case, &mut settled, &mut granted, &mut refused));
    let done = runner.run(&algorithms, |((algorithm, scale, steps), start)| {
        let mut counts = counts.borrow_mut();
        let (store, case, settled, granted, refused) = &mut *counts;
        **case += 1;
        let longest = algorithm.rates().iter().map(|rate| rate.window().as_nanos() / 1_000).max().unwrap();
        let unit = match scale {
            Scale::Small => 1,
            Scale::Large => algorithm.largest_cost().div_ceil(64),
        };
        let mut pair = Pair::new(store, format!("key:{case}"), algorithm);
        let mut now = start + **case;
        for step in steps {
            let ((parts, more), signed) = (step.pause, longest.cast_signed());
            now = now.saturating_add_signed(signed / 1_000 * parts + signed % 1_000 * parts / 1_000) + more;
            let settle = Settle {
                spent: step.spent * unit,
                back: step.back * unit,
                back_age: micros(longest / 1_000 * step.age + step.age),
                need: step.need * unit,
                want: (step.need + step.want) * unit,
                share_ppm: step.share_ppm,
            };
            let reply = pair.settle(&settle, now)?;
            **settled += 1;
            **granted += u64::from(reply[0] > 0);
            **refused += u64::from(reply[2] >= 0);
        }
        Ok(())
    });
    if let Err(error) = done {
        panic!("{error}");
    }
    assert!(settled >= 1_900 && granted > settled / 10 && refused > settled / 10, "{settled} {granted} {refused}");
}

fn rate(limit: u64, micros_of_window: u64) -> Rate {
    Rate::new(limit, micros(micros_of_window)).unwrap()
}

/// Small numbers, so that much happens, and such that do not divide.
fn rates(unit: u64) -> impl Strategy<Value = Vec<Rate>> {
    let window = select(vec![7, 10, 97, 100, 360, 1_000, 86_400]);
    vec((1u64..13, window).prop_map(move |(limit, window)| rate(limit, window * unit)), 1..5)
}

/// Near the largest that can be shared.
fn large_rates() -> impl Strategy<Value = Vec<Rate>> {
    let limit = select(vec![4_294_967_295, 4_294_967_291, 1_000_003]);
    let window = select(vec![1_000, 1_000_000, 3_600_000_000, 86_400_000_000]);
    vec((limit, window).prop_map(|(limit, window)| rate(limit, window)), 1..4)
}

pub(super) fn either(
    small: impl Strategy<Value = Algorithm> + 'static,
    large: impl Strategy<Value = Algorithm> + 'static,
) -> impl Strategy<Value = (Algorithm, Scale)> {
    let (small, large) = (small.prop_map(|one| (one, Scale::Small)), large.prop_map(|one| (one, Scale::Large)));
    prop_oneof![3 => small, 1 => large]
}

#[test]
fn the_wheel_in_lua_counts_as_in_rust() {
    let wheel = |rates: BoxedStrategy<Vec<Rate>>| {
        let bound = select(vec![Bound::Sliding, Bound::Slot, Bound::Strict]);
        (rates, bound).prop_map(|(rates, bound)| Algorithm::TimerWheel(TimerWheel::new(&rates, None, bound).unwrap()))
    };
    run(&Server::start(), either(wheel(rates(1_000).boxed()), wheel(large_rates().boxed())));
}

#[test]
fn the_sliding_window_in_lua_counts_as_in_rust() {
    let sliding = |rates: BoxedStrategy<Vec<Rate>>, slot_limit: BoxedStrategy<Option<u64>>| {
        (rates, slot_limit).prop_map(|(rates, slot_limit)| {
            Algorithm::SlidingWindow(SlidingWindow::new(&rates, None, slot_limit).unwrap())
        })
    };
    let small = sliding(rates(1_000).boxed(), prop::option::of(1u64..13).boxed());
    run(&Server::start(), either(small, sliding(large_rates().boxed(), prop::option::of(1u64 << 29..1 << 32).boxed())));
}

#[test]
fn the_sliding_counter_in_lua_counts_as_in_rust() {
    let counter = |rates: BoxedStrategy<Vec<Rate>>| {
        rates.prop_map(|rates| Algorithm::SlidingCounter(SlidingCounter::new(&rates).unwrap()))
    };
    // Half a year, of which parts are taken in more digits.
    let longest = vec(select(vec![4_294_967_295, 1_000_003]).prop_map(|limit| rate(limit, (1 << 44) - 3)), 1..3);
    let large = prop_oneof![2 => large_rates(), 1 => longest];
    run(&Server::start(), either(counter(rates(1).boxed()), counter(large.boxed())));
}

#[test]
fn a_counter_weighs_the_longest_window_exactly() {
    let server = Server::start();
    let mut store = server.raw();
    let most = 4_294_967_295;
    let counter = SlidingCounter::new(&[rate(most, 1 << 51)]).unwrap();
    let mut pair = Pair::new(&mut store, "longest".to_owned(), Algorithm::SlidingCounter(counter));
    let ask = |spent, need| Settle { spent, need, want: need, ..Settle::default() };
    let quarter = 1 << 49;
    // In windows 0, 1 and 1.
    for (settle, now) in [(ask(most, 0), START), (ask(0, most / 4 + 1), 5 * quarter), (ask(0, 3), 5 * quarter + 7)] {
        pair.settle(&settle, now).unwrap();
    }
    let reply = pair.settle(&ask(0, most), 6 * quarter).unwrap();
    assert_eq!(reply[4], 1_073_741_824, "a quarter, rounded up, and a half, rounded down, are taken");
}

fn sliding_log(rates: &[Rate]) -> Algorithm {
    Algorithm::SlidingLog(SlidingLog::new(rates, Span::ZERO, false).unwrap())
}

#[test]
fn the_sliding_log_in_lua_counts_as_in_rust() {
    let limit = select(vec![4_096, 1_003]);
    let large = vec((limit, select(vec![1_000, 86_400_000_000])).prop_map(|(limit, window)| rate(limit, window)), 1..4);
    let of = |rates: BoxedStrategy<Vec<Rate>>| rates.prop_map(|rates| sliding_log(&rates));
    run(&Server::start(), either(of(rates(1).boxed()), of(large.boxed())));
}

#[test]
fn a_damaged_log_is_an_answer_all_the_same() {
    let server = Server::start();
    let mut store = server.raw();
    let shared = SharedLimit::new(&sliding_log(&[rate(5, 1_000_000), rate(9, 2_000_000)])).unwrap();
    let script = of_family(DRIVEN, shared.family());
    store.ask(&["SCRIPT", "LOAD", script.text()]);
    let settle = Settle { spent: 1, back: 2, need: 1, want: 2, share_ppm: 500_000, ..Settle::default() };
    for score in ["inf", "-inf", "-7", "1e300", "9007199254740993", "0.5", "1700000000000000", "1700000000000000.5"] {
        for member in ["-", "", "x", "nan", "9007199254740991", "0000000000000001", "1e400"] {
            store.ask(&["DEL", "damaged"]);
            store.ask(&["ZADD", "damaged", score, member, "1699999999999999", "0000000000000000"]);
            for _ in 0..8 {
                let numbers = shared.arguments(&settle, HOLD, None, START);
                let reply = driven(&mut store, &script, "damaged", &numbers, START);
                assert!(shared.reply(&reply).is_some(), "{member:?} at {score}: {reply:?}");
            }
        }
    }
}

#[test]
fn the_bucket_in_lua_counts_as_in_rust() {
    let bucket = |rates: Vec<Rate>, burst: Option<u64>, is_gcra: bool| {
        if is_gcra {
            Algorithm::Gcra(Gcra::new(&rates, burst).unwrap())
        } else {
            Algorithm::TokenBucket(TokenBucket::new(&rates, burst, Refill::Greedy).unwrap())
        }
    };
    let small = (rates(1), prop::option::of(1u64..20), any::<bool>())
        .prop_map(move |(rates, burst, is_gcra)| bucket(rates, burst, is_gcra));
    // The largest burst of each window.
    let large = (large_rates(), any::<bool>()).prop_map(move |(rates, is_gcra)| {
        let most = |rate: &Rate| (1 << 49) / (rate.window().as_nanos() / 1_000);
        let burst = rates.iter().map(most).min().unwrap().min(4_294_967_295);
        bucket(rates, Some(burst), is_gcra)
    });
    run(&Server::start(), either(small, large));
}

#[test]
fn the_window_in_lua_counts_as_in_rust() {
    let window = |rates: BoxedStrategy<Vec<Rate>>| {
        let align = select(vec![Align::Epoch, Align::First]);
        (rates, align).prop_map(|(rates, align)| Algorithm::FixedWindow(FixedWindow::new(&rates, align).unwrap()))
    };
    run(&Server::start(), either(window(rates(7).boxed()), window(large_rates().boxed())));
}

fn token_bucket(text: &str) -> Algorithm {
    Algorithm::TokenBucket(TokenBucket::new(&[text.parse().unwrap()], None, Refill::Greedy).unwrap())
}

#[test]
fn a_bucket_that_was_spent_three_times_while_cut_off_refills_from_below_zero() {
    let server = Server::start();
    let mut store = server.raw();
    let mut pair = Pair::new(&mut store, "golden".to_owned(), token_bucket("4/s"));
    let mut after = |spent, now| {
        let reply = pair.settle(&Settle { spent, ..Settle::default() }, START + now).unwrap();
        (reply[2], reply[4])
    };
    assert_eq!(after(1, 0), (-1, 3));
    assert_eq!(after(1, 0), (-1, 2));
    assert_eq!(after(2, 0), (250_000, 0));
    assert_eq!(after(12, 1_000_000), (2_250_000, 0));
    assert_eq!(pair.vanishes, Some(START + 4_000_000), "12 tokens at 4 a second");
}

#[test]
fn the_state_can_be_read_by_a_person() {
    let server = Server::start();
    let mut store = server.raw();
    let mut read = |algorithm: Algorithm| {
        let key = algorithm.name().to_owned();
        let mut pair = Pair::new(&mut store, key.clone(), algorithm);
        for after in [0, 150_000] {
            pair.settle(&Settle { spent: 3, ..Settle::default() }, START + after).unwrap();
        }
        let Said::Array(fields) = pair.store.ask(&["HGETALL", &key]) else { panic!("no hash") };
        let mut pairs: Vec<String> =
            fields.chunks(2).map(|two| format!("{two:?}").replace("Text", "").replace(['(', ')', '"'], "")).collect();
        pairs.sort();
        pairs.join(" ")
    };
    let five = ["5/s".parse().unwrap()];
    let at = "[at, 1700000000150000]";
    assert_eq!(
        read(Algorithm::TimerWheel(TimerWheel::new(&five, None, Bound::Sliding).unwrap())),
        format!("[0:17000000000, 3] [0:17000000001, 3] {at}")
    );
    assert_eq!(
        read(token_bucket("5/s")),
        format!("[0:before, 0] [0:from, 1700000000000000] [0:low, 2250000] [0:missing, 5250000] {at}"),
        "5.25 tokens of a million parts are missing, and 2.25 were at the least"
    );
    assert_eq!(
        read(Algorithm::FixedWindow(FixedWindow::new(&five, Align::Epoch).unwrap())),
        format!("[0:count, 6] [0:from, 1700000000000000] {at}")
    );
}

#[test]
fn a_settle_that_comes_too_late_is_not_done() {
    let server = Server::start();
    let mut store = server.raw();
    let wheel = Algorithm::TimerWheel(
        TimerWheel::new(&["5/s".parse().unwrap(), "50/m".parse().unwrap()], None, Bound::Sliding).unwrap(),
    );
    let shared = SharedLimit::new(&wheel).unwrap();
    let script = of_family(DRIVEN, shared.family());
    store.ask(&["SCRIPT", "LOAD", script.text()]);
    let mut settle = |latest| {
        let settle = Settle { spent: 1, need: 1, want: 1, ..Settle::default() };
        let numbers = shared.arguments(&settle, HOLD, Some(latest), START);
        let reply = driven(&mut store, &script, "late", &numbers, START);
        (shared.reply(&reply).unwrap(), store.integers(&["HLEN", "late"]))
    };
    let late = (ScriptReply { answer: None, clock: START }, vec![0]);
    assert_eq!(settle(START - 1), late);
    assert_eq!(settle(0), late);
    let (reply, fields) = settle(START);
    let answer = reply.answer.unwrap();
    assert_eq!((answer.granted, answer.remaining[..2].to_vec(), reply.clock, fields), (1, vec![3, 48], START, vec![4]));
}

const FIELDS: [&str; 8] =
    ["at", "0:missing", "0:17000000000", "0:99999999999999999999", "0:from", "0:count", "0:before", "other"];

/// A key into which somebody else has written is no reason to stop.
#[test]
fn a_damaged_state_is_an_answer_all_the_same() {
    let server = Server::start();
    let mut store = server.raw();
    let wheel = Algorithm::TimerWheel(TimerWheel::new(&["5/s".parse().unwrap()], None, Bound::Sliding).unwrap());
    let window = Algorithm::FixedWindow(FixedWindow::new(&["5/s".parse().unwrap()], Align::First).unwrap());
    let sliding = Algorithm::SlidingWindow(SlidingWindow::new(&["5/s".parse().unwrap()], None, None).unwrap());
    let counter = Algorithm::SlidingCounter(SlidingCounter::new(&["5/s".parse().unwrap()]).unwrap());
    for algorithm in [wheel, sliding, counter, token_bucket("5/s"), window] {
        let shared = SharedLimit::new(&algorithm).unwrap();
        let script = of_family(DRIVEN, shared.family());
        store.ask(&["SCRIPT", "LOAD", script.text()]);
        let settle = Settle { spent: 1, back: 2, need: 1, want: 2, share_ppm: 500_000, ..Settle::default() };
        for value in ["", "nan", "inf", "-7", "1e300", "9007199254740993", "x", "0x10", "1.5"] {
            for field in FIELDS {
                store.ask(&["DEL", "damaged"]);
                store.ask(&["HSET", "damaged", field, value]);
                let numbers = shared.arguments(&settle, HOLD, None, START);
                let reply = driven(&mut store, &script, "damaged", &numbers, START);
                assert!(shared.reply(&reply).is_some(), "{field} {value:?}: {reply:?}");
            }
        }
    }
}

#[test]
fn under_the_servers_own_clock_an_idle_key_vanishes_and_a_debt_is_kept() {
    let server = Server::start();
    let mut store = server.raw();
    let window = |rate: &str, align| Algorithm::FixedWindow(FixedWindow::new(&[rate.parse().unwrap()], align).unwrap());
    let wheel = Algorithm::TimerWheel(TimerWheel::new(&["5/50ms".parse().unwrap()], None, Bound::Strict).unwrap());
    // A window that begins when it begins is longer, and met in its first half: else its end may come between two questions.
    let aligned = window("5/s", Align::Epoch);
    let into_second = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_millis();
    for (index, algorithm) in
        [wheel, token_bucket("50/50ms"), window("5/50ms", Align::First), aligned.clone()].into_iter().enumerate()
    {
        let most = if algorithm == aligned { 1_065 } else { 115 };
        while algorithm == aligned && into_second() >= 500 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let shared = SharedLimit::new(&algorithm).unwrap();
        let script = Script::settle(shared.family());
        let mut settle = |key: &str, spent| {
            let numbers = shared.arguments(&Settle { spent, ..Settle::default() }, HOLD, None, START);
            let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
            let mut words = vec!["EVAL", script.text(), "1", key];
            words.extend(numbers.iter().map(String::as_str));
            let reply = store.integers(&words);
            (shared.reply(&reply).unwrap().answer.unwrap(), store.integers(&["PTTL", key])[0])
        };
        let key = format!("key:{index}");
        let (answer, ends) = settle(&key, 100);
        assert_eq!(answer.remaining[0], 0, "{algorithm:?}");
        assert!((1..=most).contains(&ends), "{algorithm:?} ends in {ends} ms");
        let (_, ends) = settle(&key, 0);
        assert!(ends > -2, "it asks for nothing, and the debt is there: {ends}");
    }
    assert!((0..2_000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        store.integers(&["DBSIZE"]) == [0]
    }));
    assert_eq!(Family::ALL.map(Script::settle).map(|script| script.digest().len()), [40; 6]);
}
