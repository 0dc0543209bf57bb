//! Deadlines of connections and exchanges, filed on the worker's own timer wheel and swept together.
//!
//! An alarm is only a wake-up call: the task that waits looks at its own deadlines when it has rung. So setting a later
//! time is a store, and the wheel is touched only when the time that an alarm is filed under has come, or an earlier
//! one is set (design: "activity stores a tick, the wheel refiles lazily"). Nothing is ended before its deadline, and
//! at most one sweep after.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

use tokio::sync::Notify;

use sluicegate_time::{Handle, Span, Tick, Wheel};

/// How often deadlines are swept: the most that anything can overstay.
pub const SWEEP_EVERY: Span = Span::from_millis(50);
/// Resolution of the wheel; together with [`SWEEP_EVERY`] it stays under the promised 100 ms.
const GRANULARITY: Span = Span::from_millis(10);

/// The alarms of one worker.
pub struct Alarms {
    wheel: RefCell<Wheel<Rc<Alarm>>>,
    filed: Notify,
    /// The last clock reading that somebody took: good enough to say when a byte moved.
    coarse_now: Cell<Tick>,
    is_over: Cell<bool>,
}

/// A wake-up call for one task.
#[derive(Debug, Default)]
pub struct Alarm {
    due: Cell<Tick>,
    /// Where it is on the wheel, and under which time.
    place: Cell<Option<(Handle, Tick)>>,
    rung: Cell<bool>,
    dismissed: Cell<Option<Dismissed>>,
    cancelled: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// Why a task is asked to end before anything is overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dismissed {
    /// Another client needs the place of its handshake.
    Handshake,
    /// Somebody needs the place of its connection, over which no whole request has come for a while.
    Silent,
    /// The same; the connection has carried requests and is idle.
    Idle,
}

impl Alarms {
    /// None yet.
    pub fn new(now: Tick) -> Self {
        Self {
            wheel: RefCell::new(Wheel::new(now, GRANULARITY)),
            filed: Notify::new(),
            coarse_now: Cell::new(now),
            is_over: Cell::new(false),
        }
    }

    /// Lets `alarm` ring at `due` and not before. It stays filed until it rings or is [cancelled](Self::cancel).
    pub fn set(&self, alarm: &Rc<Alarm>, due: Tick) {
        alarm.due.set(due);
        match alarm.place.get() {
            Some((_, filed)) if filed <= due => {}
            Some((handle, _)) => {
                self.wheel.borrow_mut().refile(handle, due);
                alarm.place.set(Some((handle, due)));
            }
            None => self.file(alarm, due),
        }
    }

    /// Takes it off the wheel.
    pub fn cancel(&self, alarm: &Alarm) {
        if let Some((handle, _)) = alarm.place.take() {
            self.wheel.borrow_mut().remove(handle);
        }
    }

    /// A time at most one sweep ago, without reading the clock. It is kept fresh as long as any alarm is set.
    pub fn coarse_now(&self) -> Tick {
        self.coarse_now.get()
    }

    /// Takes note of a clock reading.
    pub fn note(&self, now: Tick) {
        self.coarse_now.set(now);
    }

    /// Rings every alarm whose time has come.
    pub fn sweep(&self, now: Tick) {
        self.note(now);
        let mut fired = Vec::new();
        self.wheel.borrow_mut().sweep(now, &mut fired);
        for alarm in fired {
            alarm.place.set(None);
            let due = alarm.due.get();
            if due > now {
                self.file(&alarm, due);
            } else {
                alarm.ring();
            }
        }
    }

    /// Rings every alarm that is set, due or not: what all have to look at has changed.
    pub fn ring_all(&self) {
        // Ringing wakes tasks and runs none: the wheel cannot change meanwhile.
        for alarm in self.wheel.borrow().values() {
            alarm.ring();
        }
    }

    /// The grace of a drain is over: the task that can end by its protocol is to do so now.
    pub fn end(&self) {
        self.is_over.set(true);
        self.ring_all();
    }

    /// Whether the grace of a drain is over.
    pub fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// Waits until there is something to sweep.
    pub async fn any(&self) {
        while self.wheel.borrow().is_empty() {
            self.filed.notified().await;
        }
    }

    fn file(&self, alarm: &Rc<Alarm>, due: Tick) {
        let mut wheel = self.wheel.borrow_mut();
        if wheel.is_empty() {
            self.filed.notify_one();
        }
        let handle = wheel.insert(due, Rc::clone(alarm));
        alarm.place.set(Some((handle, due)));
    }
}

impl Alarm {
    /// Whom to wake: the task that polls with this context, from now on.
    pub fn wakes(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }

    /// Whether it rang since this was asked last.
    pub fn take_fired(&self) -> bool {
        self.rung.get() && self.rung.replace(false)
    }

    /// Wakes the task and asks it to end.
    pub fn dismiss(&self, why: Dismissed) {
        self.dismissed.set(Some(why));
        self.ring();
    }

    /// Whether its task is asked to end.
    pub fn is_dismissed(&self) -> bool {
        self.dismissed.get().is_some()
    }

    /// Whether its task was asked to end since this was asked last.
    pub fn take_dismissal(&self) -> Option<Dismissed> {
        self.dismissed.take()
    }

    /// Wakes the task and asks it to end the request that it carries.
    pub fn cancel_request(&self) {
        self.cancelled.set(true);
        self.ring();
    }

    /// Whether its task is asked to end the request that it carries.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    /// That request is over.
    pub fn forget_cancel(&self) {
        self.cancelled.set(false);
    }

    fn ring(&self) {
        self.rung.set(true);
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Span = Span::from_secs(1);

    fn at(secs: u64) -> Tick {
        Tick::ZERO + Span::from_secs(secs)
    }

    fn one() -> (Alarms, Rc<Alarm>) {
        (Alarms::new(Tick::ZERO), Rc::default())
    }

    #[test]
    fn rings_at_its_time_and_not_before() {
        let (alarms, alarm) = one();
        alarms.set(&alarm, at(1));
        alarms.sweep(Tick::ZERO + Span::from_millis(999));
        assert!(!alarm.take_fired());
        alarms.sweep(at(1) + GRANULARITY);
        assert!(alarm.take_fired());
        assert!(!alarm.take_fired(), "once");
    }

    #[test]
    fn a_later_time_leaves_the_wheel_alone_and_is_kept_all_the_same() {
        let (alarms, alarm) = one();
        alarms.set(&alarm, at(1));
        let place = alarm.place.get();
        alarms.set(&alarm, at(5));
        assert_eq!(alarm.place.get(), place);
        alarms.sweep(at(2));
        assert!(!alarm.take_fired());
        assert_ne!(alarm.place.get(), place, "filed anew when the old time came");
        alarms.sweep(at(5) + GRANULARITY);
        assert!(alarm.take_fired());
    }

    #[test]
    fn an_earlier_time_is_kept() {
        let (alarms, alarm) = one();
        alarms.set(&alarm, at(9));
        alarms.set(&alarm, at(3));
        alarms.sweep(at(3) + GRANULARITY);
        assert!(alarm.take_fired());
        assert_eq!(alarm.place.get(), None);
    }

    #[test]
    fn a_cancelled_alarm_never_rings_and_can_be_set_again() {
        let (alarms, alarm) = one();
        alarms.set(&alarm, at(1));
        alarms.cancel(&alarm);
        alarms.cancel(&alarm);
        alarms.sweep(at(2));
        alarms.ring_all();
        assert!(!alarm.take_fired());
        alarms.set(&alarm, at(3));
        alarms.ring_all();
        assert!(alarm.take_fired());
        alarms.sweep(at(3) + SECOND);
        assert!(alarm.take_fired(), "ringing all leaves it set");
    }

    #[test]
    fn recently_is_the_last_reading() {
        let (alarms, _) = one();
        alarms.sweep(at(4));
        assert_eq!(alarms.coarse_now(), at(4));
        alarms.note(at(5));
        assert_eq!(alarms.coarse_now(), at(5));
    }
}
