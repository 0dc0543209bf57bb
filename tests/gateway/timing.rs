//! How long things take, on a machine that may be busy.
//!
//! A lower bound is exact and stands in any test: nothing that is waited for ends early, however busy the machine is. A
//! bound from above is another matter, because it holds only if the machine had time for it. So it stands on one of these:
//!
//! - a clock that the test drives itself; those tests are in `src`, beside the code;
//! - a comparison within one run: with how long the same takes that is not held up, at the same moment;
//! - [`best_of_three`]: the whole test runs again if it was late, and each try is printed.
//!
//! In both cases a bound is longer by as much as the machine was late itself meanwhile, which is next to nothing on a
//! quiet one, and three times the bound at the most. So such a test needs no silence: others run beside it.
//!
//! `tests/architecture.rs` finds assertions that compare a duration in another way, and the functions here panic outside
//! of [`best_of_three`]. A test that only waits until something has happened has `PATIENCE`, and asserts no duration.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often a test may be late before it fails.
const TRIES: u32 = 3;

thread_local! {
    static MAY_BE_LATE: Cell<bool> = const { Cell::new(false) };
}

/// The panic of a try that was late, and of nothing else.
struct Late(String);

/// Between two looks at how late the machine is.
const STEP: Duration = Duration::from_millis(5);
/// A look that took no longer than this beyond its step tells of no lateness: timers and the way to another thread and
/// back are part of what tests measure.
const USUAL: Duration = Duration::from_millis(2);
/// A bound is no longer than so many times itself more, however late the machine was.
const MOST_EXCUSED: u32 = 3;
/// So many looks that were late are remembered.
const REMEMBERED: usize = 20_000;

/// Looks all the time at how late the machine is.
struct Pulse {
    /// When the look began that goes on.
    began: Instant,
    /// When a look ended that was late, and by how much.
    late: VecDeque<(Instant, Duration)>,
}

static PULSE: LazyLock<Mutex<Pulse>> = LazyLock::new(|| {
    thread::spawn(beat);
    Mutex::new(Pulse { began: Instant::now(), late: VecDeque::new() })
});

/// A sleep, and a byte that another thread sends back, as everything is waited for that a test measures.
fn beat() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    thread::spawn(move || {
        let mut byte = [0];
        while far.read_exact(&mut byte).and_then(|()| far.write_all(&byte)).is_ok() {}
    });
    loop {
        PULSE.lock().unwrap_or_else(PoisonError::into_inner).began = Instant::now();
        thread::sleep(STEP);
        near.write_all(&[0]).and_then(|()| near.read_exact(&mut [0])).unwrap();
        let mut pulse = PULSE.lock().unwrap_or_else(PoisonError::into_inner);
        let late = pulse.began.elapsed().saturating_sub(STEP);
        if late > USUAL {
            pulse.late.truncate(REMEMBERED - 1);
            pulse.late.push_front((Instant::now(), late));
        }
    }
}

impl Pulse {
    /// For how long between two instants the machine did not do at once what it was to do.
    fn late(&self, since: Instant, now: Instant) -> Duration {
        let looks = self.late.iter().take_while(|(ended, _)| *ended > since).map(|(_, late)| *late);
        looks.sum::<Duration>() + now.saturating_duration_since(self.began).saturating_sub(STEP + USUAL)
    }
}

/// Runs a test that measures time, and again if it was late; it fails if it is late three times, or for another reason
/// once.
pub fn best_of_three(test: impl Fn()) {
    LazyLock::force(&PULSE);
    for number in 1..=TRIES {
        MAY_BE_LATE.set(true);
        let result = catch_unwind(AssertUnwindSafe(&test));
        MAY_BE_LATE.set(false);
        match result.map_err(<Box<dyn Any + Send>>::downcast::<Late>) {
            Ok(()) => return,
            Err(Ok(late)) => eprintln!("try {number} of {TRIES}: {}", late.0),
            Err(Err(cause)) => resume_unwind(cause),
        }
    }
    panic!("late {TRIES} times");
}

/// Something that has a deadline of its own in what is tested has missed it: the try counts as late.
pub fn was_late(what: &str) -> ! {
    assert!(MAY_BE_LATE.get(), "{what}, outside of best_of_three");
    resume_unwind(Box::new(Late(what.to_owned())))
}

/// How long it took, which must lie in a range of milliseconds.
pub fn assert_took(started: Instant, millis: Range<u64>) {
    let range = Duration::from_millis(millis.start)..Duration::from_millis(millis.end);
    assert_lasted(started.elapsed(), range, "it");
}

/// Something lasted so long, until now: the start of the range is exact, its end may be missed in two of three tries.
pub fn assert_lasted(took: Duration, range: Range<Duration>, what: &str) {
    let now = Instant::now();
    let pulse = PULSE.lock().unwrap_or_else(PoisonError::into_inner);
    let late = now.checked_sub(took).map(|since| pulse.late(since, now)).unwrap_or_default();
    drop(pulse);
    // What makes the machine busy for ever is no excuse: it may be what is measured.
    let late = late.min(range.end * MOST_EXCUSED);
    judge(took, range, late, what);
}

fn judge(took: Duration, range: Range<Duration>, late: Duration, what: &str) {
    assert!(MAY_BE_LATE.get(), "a bound from above stands in best_of_three");
    assert!(took >= range.start, "{what} took {took:?}, which is less than {:?}", range.start);
    if took >= range.end + late {
        // Not by `panic!`: whoever reads the output of a test that passes at last shall find no panic there.
        let text = format!("{what} took {took:?} and not {range:?}, with {late:?} for the machine");
        resume_unwind(Box::new(Late(text)));
    }
    eprintln!("{what} took {took:?} of {range:?}, with {late:?} for the machine");
}

/// Something lasted no less than this, unless the machine held up what it is compared with: if others had to wait for their
/// thread, the first of several that share something is rightly done sooner. It may be missed in two of three tries.
pub fn assert_shared(took: Duration, least: Duration, what: &str) {
    assert_in_time(took >= least, &format!("{what} took only {took:?} and not {least:?}"));
}

/// Something is so where the machine was in time. It may be missed in two of three tries.
pub fn assert_in_time(is_so: bool, otherwise: &str) {
    assert!(MAY_BE_LATE.get(), "a bound that a busy machine can break stands in best_of_three");
    if !is_so {
        resume_unwind(Box::new(Late(otherwise.to_owned())));
    }
}

/// Sleeps for the start of a range of milliseconds. A test that is to be in time with what follows is late if the machine
/// made more of it than the end.
pub fn pause(millis: Range<u64>) {
    let started = Instant::now();
    thread::sleep(Duration::from_millis(millis.start));
    assert_took(started, millis);
}

/// Something took less than this.
pub fn assert_below(took: Duration, most: Duration, what: &str) {
    assert_lasted(took, Duration::ZERO..most, what);
}

const TEN_TO_TWENTY: Range<Duration> = Duration::from_millis(10)..Duration::from_millis(20);

#[test]
fn a_late_try_is_tried_again() {
    let tries = Cell::new(0);
    let lasting = |lasts: [u64; 3]| {
        best_of_three(|| {
            let now = lasts[tries.replace(tries.get() + 1)];
            judge(Duration::from_millis(now), TEN_TO_TWENTY, Duration::ZERO, "it");
        });
    };
    let panic_of = |lasts| {
        catch_unwind(AssertUnwindSafe(|| lasting(lasts))).err().map(|cause| {
            let cause = cause.downcast_ref::<String>().cloned();
            cause.expect("words")
        })
    };
    for (lasts, made, expected) in [
        ([10, 0, 0], 1, None),
        ([19, 0, 0], 1, None),
        ([20, 99, 15], 3, None),
        ([20, 99, 30], 3, Some("late 3 times")),
        // Too early is wrong at once, whatever the machine does.
        ([9, 15, 15], 1, Some("it took 9ms, which is less than 10ms")),
        ([20, 9, 15], 2, Some("it took 9ms, which is less than 10ms")),
    ] {
        tries.set(0);
        assert_eq!(panic_of(lasts).as_deref(), expected, "{lasts:?}");
        assert_eq!(tries.get(), made, "{lasts:?}");
    }
}

#[test]
fn a_bound_is_longer_by_as_much_as_the_machine_was_late_meanwhile() {
    let is_late = |took, late| {
        MAY_BE_LATE.set(true);
        let judged =
            catch_unwind(|| judge(Duration::from_millis(took), TEN_TO_TWENTY, Duration::from_millis(late), "it"));
        MAY_BE_LATE.set(false);
        judged.is_err()
    };
    assert_eq!([(24, 5), (25, 5)].map(|(took, late)| is_late(took, late)), [false, true]);
    let start = Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    let late = [(at(900), Duration::from_millis(30)), (at(500), Duration::from_millis(4))];
    let pulse = Pulse { began: at(900), late: late.into() };
    for (since, now, millis) in [(0, 907, 34), (499, 907, 34), (500, 907, 30), (900, 907, 0), (900, 1907, 1000)] {
        assert_eq!(pulse.late(at(since), at(now)), Duration::from_millis(millis), "{since} to {now}");
    }
}

#[test]
#[should_panic(expected = "a bound from above stands in best_of_three")]
fn a_bound_from_above_alone_is_a_mistake() {
    assert_took(Instant::now(), 0..60_000);
}
