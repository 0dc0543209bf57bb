//! Counts what redaction does, so that a test can say that it is bounded. Without tests it is nothing.

#[cfg(test)]
thread_local! {
    static DONE: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// So much was done.
#[inline]
#[cfg_attr(not(test), allow(clippy::missing_const_for_fn, unused_variables, reason = "it counts for tests alone"))]
pub(super) fn done(amount: usize) {
    #[cfg(test)]
    DONE.set(DONE.get() + amount);
}

/// How much is done meanwhile.
#[cfg(test)]
pub(super) fn of(act: impl FnOnce()) -> usize {
    let before = DONE.get();
    act();
    DONE.get() - before
}
