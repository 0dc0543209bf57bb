//! How long things take, on a machine that may be busy.
//!
//! A lower bound is exact and stands in any test: nothing that is waited for ends early, however busy the machine is. A
//! bound from above is another matter, because it holds only if the machine had time for it. So it stands on one of these:
//!
//! - a clock that the test drives itself; those tests are in `src`, beside the code;
//! - a comparison within one run: with how long the same takes that is not held up, at the same moment;
//! - [`best_of_three`]: the whole test runs again if it was late, and each try is printed.
//!
//! `tests/architecture.rs` finds assertions that compare a duration in another way, and the functions here panic outside
//! of [`best_of_three`]. A test that only waits until something has happened has `PATIENCE`, and asserts no duration.

use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::{Duration, Instant};

/// How often a test may be late before it fails.
const TRIES: u32 = 3;

thread_local! {
    static MAY_BE_LATE: Cell<bool> = const { Cell::new(false) };
}

/// The panic of a try that was late, and of nothing else.
struct Late(String);

/// Runs a test that measures time, and again if it was late; it fails if it is late three times, or for another reason
/// once.
pub fn best_of_three(test: impl Fn()) {
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

/// How long it took, which must lie in a range of milliseconds.
pub fn assert_took(started: Instant, millis: Range<u64>) {
    let range = Duration::from_millis(millis.start)..Duration::from_millis(millis.end);
    assert_lasted(started.elapsed(), range, "it");
}

/// Something lasted so long: the start of the range is exact, its end may be missed in two of three tries.
pub fn assert_lasted(took: Duration, range: Range<Duration>, what: &str) {
    assert!(MAY_BE_LATE.get(), "a bound from above stands in best_of_three");
    assert!(took >= range.start, "{what} took {took:?}, which is less than {:?}", range.start);
    if took >= range.end {
        // Not by `panic!`: whoever reads the output of a test that passes at last shall find no panic there.
        resume_unwind(Box::new(Late(format!("{what} took {took:?} and not {range:?}"))));
    }
    eprintln!("{what} took {took:?} of {range:?}");
}

/// Something lasted no less than this, unless the machine held up what it is compared with: if others had to wait for their
/// thread, the first of several that share something is rightly done sooner. It may be missed in two of three tries.
pub fn assert_shared(took: Duration, least: Duration, what: &str) {
    assert!(MAY_BE_LATE.get(), "a bound that a busy machine can break stands in best_of_three");
    if took < least {
        resume_unwind(Box::new(Late(format!("{what} took only {took:?} and not {least:?}"))));
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

#[test]
fn a_late_try_is_tried_again() {
    let tries = Cell::new(0);
    let lasting = |lasts: [u64; 3]| {
        best_of_three(|| {
            let now = lasts[tries.replace(tries.get() + 1)];
            assert_lasted(Duration::from_millis(now), Duration::from_millis(10)..Duration::from_millis(20), "it");
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
#[should_panic(expected = "a bound from above stands in best_of_three")]
fn a_bound_from_above_alone_is_a_mistake() {
    assert_took(Instant::now(), 0..60_000);
}
