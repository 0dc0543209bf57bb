//! The scale of adaptive limits: one number from 100% down to a floor, moved by the worst sensor.
//!
//! It is a pure state machine. Its caller is the task that reads all sensors once a second. It reads no sensor itself,
//! and it applies nothing: the caller publishes the scale, and the limiter multiplies its limits by it.
//!
//! # Rules
//!
//! The *excess* of a sensor is its value divided by its threshold.
//!
//! * **Down.** While the excess of a sensor is above 1, the scale goes down by a step. A reading is of a whole window.
//!   So a sensor moves the scale only where its window has passed since the last step down of any sensor. Otherwise it
//!   would answer to load that is gone already. For the same reason it does not where it is *recovering*: its value is
//!   above, but that of the last second or two is not.
//! * **Large steps.** A sensor with a window of 5 s and more takes two steps at once from an excess of 2, and three
//!   from 4. With one step each 10 s the way from 100% to 20% takes 80 s, with three it takes 30 s. A window of 1 s
//!   needs no large steps.
//! * **Up.** While the excess of all sensors is below 0.9, the scale goes up by one step each 5 s. It waits for the
//!   longest window of the sensors that were above since the last step up. It does not go up while requests are shed:
//!   the shed share goes first, otherwise the two hunt each other.
//! * **Between 0.9 and 1** it holds.
//! * **Return.** Where a step up takes a sensor above its threshold, the scale goes back to the level before. The next
//!   step down waits for two windows, and for 5 s at least: queues have to drain, and readings come late. Without this
//!   the scale falls by a step each second until the first good reading arrives, climbs again, and never rests.
//! * **Bar.** A level that was too high is not tried again for 5 minutes: one where a step up failed, and one where a
//!   sensor with a long window was still above after a whole window. Where adaptive limits have refused nothing for 5 s
//!   the bar falls: then a higher scale admits nothing more now.
//! * **Never below the floor.** A value that was set by hand may be.
//!
//! Readings that are missing, not finite or without a threshold are ignored.
//!
//! # Shown by simulation
//!
//! `tests/simulation` has a server with a queue, loads up to 5 times its capacity, and readings that come up to 2 s
//! late. For CPU, memory and response time the scale settles within 60 s, and then moves by one step at most. For
//! failures it needs up to 90 s, and up to 110 s with a timeout of 5 s: a failure is known only when its request has
//! timed out. When a bar ends the level is tried once more. With a queue behind, that moves the scale by up to two
//! steps.

use sluicegate_time::{Span, Tick};

/// 100% in basis points.
pub const FULL_SCALE: u32 = 10_000;

/// How often the scale goes up at most.
const UP_EACH: Span = Span::from_secs(5);

/// The caller comes once a second, and not to the nanosecond. A wait that ends within this time has ended.
pub(crate) const JITTER: Span = Span::from_millis(500);

/// The excess below which a sensor allows a step up.
pub(crate) const CALM: f64 = 0.9;

/// A sensor with a window of at least this length takes large steps.
pub(crate) const LONG_WINDOW: Span = Span::from_secs(5);

/// How long a level is barred that was too high.
const BAR: Span = Span::from_secs(300);

/// How long a level that was barred is tried before the next step up.
const RETRY: Span = Span::from_secs(30);

/// Where adaptive limits refuse nothing for so long, no level is too high.
const IDLE: Span = Span::from_secs(5);

/// How the scale moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleTerms {
    /// The lowest scale that sensors lead to, in percent. 1 to 100: others are taken as the nearest of these.
    pub floor_percent: u32,
    /// The size of a step in percent points. 1 to 50: others are taken as the nearest of these.
    pub step_percent: u32,
}

/// One reading of one sensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SensorReading {
    /// The number of the sensor. It means something to the caller only.
    pub sensor: usize,
    /// The value; `None` if it could not be read now.
    pub value: Option<f64>,
    /// The value of the last second or two, where the window is longer; `None`: as `value`.
    pub recent: Option<f64>,
    /// The threshold, in the unit of the value.
    pub above: f64,
    /// The time that the value is the mean of.
    pub window: Span,
}

/// How adaptive limits and shedding act now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitActivity {
    /// Some requests are refused by priority.
    pub is_shedding: bool,
    /// An adaptive limit has refused a request, or made it wait, since the last call.
    pub has_refused: bool,
}

/// The sensor with the largest excess.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorstSensor {
    /// Its number.
    pub sensor: usize,
    /// Its value divided by its threshold.
    pub excess: f64,
    /// It is above its threshold, but its recent value is not: what was done already is enough.
    pub is_recovering: bool,
    /// The time that its value is the mean of.
    pub window: Span,
}

/// The scale after a round of readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleState {
    /// The scale in basis points: 10,000 is 100%.
    pub basis_points: u32,
    /// The worst sensor. `None`: none could be read.
    pub worst: Option<WorstSensor>,
    /// The scale is at the floor, a sensor is above its threshold, and its window has passed since the last step: there
    /// is nothing left but to shed requests. Never while the scale is set by hand.
    pub needs_shedding: bool,
    /// The scale is set by hand.
    pub is_by_hand: bool,
}

/// The scale of all adaptive limits.
#[derive(Debug)]
pub struct LimitScale {
    terms: ScaleTerms,
    level: u32,
    by_hand: Option<HandSetting>,
    last_down: Option<Tick>,
    last_up: Option<Tick>,
    /// The longest window of the sensors that were above since the last step up.
    rest: Span,
    /// The last move went back to a level that was good: the next step down waits longer.
    has_returned: bool,
    /// The level before the last step up, while that step is on trial.
    good: Option<u32>,
    barred: Option<BarredLevel>,
    /// When an adaptive limit last refused a request.
    last_refused: Option<Tick>,
}

/// A scale set by hand.
#[derive(Clone, Copy, Debug)]
struct HandSetting {
    level: u32,
    until: Option<Tick>,
}

/// The lowest level that was too high.
#[derive(Clone, Copy, Debug)]
struct BarredLevel {
    level: u32,
    until: Tick,
}

impl LimitScale {
    /// Makes a scale at 100%.
    pub fn new(terms: ScaleTerms) -> Self {
        Self {
            terms,
            level: FULL_SCALE,
            by_hand: None,
            last_down: None,
            last_up: None,
            rest: Span::ZERO,
            has_returned: false,
            good: None,
            barred: None,
            last_refused: None,
        }
    }

    /// Changes its terms. The scale stays, but not below a new floor.
    pub fn set_terms(&mut self, terms: ScaleTerms) {
        self.terms = terms;
        self.level = self.level.max(self.floor());
    }

    /// Sets the scale by hand, to 0..=100 percent. Sensors do not move it until `until`, or until
    /// [`clear`](Self::clear). It may be below the floor.
    pub fn set_by_hand(&mut self, percent: u32, until: Option<Tick>) {
        self.by_hand = Some(HandSetting { level: percent.min(100) * 100, until });
    }

    /// Ends a setting by hand. Sensors move the scale on from the value that was set, or from the floor if that is
    /// higher. So the scale does not jump to a value that was right long ago.
    pub fn clear(&mut self) {
        if let Some(hand) = self.by_hand.take() {
            self.level = hand.level.max(self.floor());
            (self.good, self.barred, self.has_returned) = (None, None, false);
        }
    }

    /// Takes the readings of all sensors, once a second.
    pub fn observe(&mut self, now: Tick, readings: &[SensorReading], activity: LimitActivity) -> ScaleState {
        if self.by_hand.is_some_and(|hand| hand.until.is_some_and(|until| until <= now)) {
            self.clear();
        }
        if activity.has_refused {
            self.last_refused = Some(now);
        } else if self.last_refused.is_none_or(|last| has_passed(last, IDLE, now)) {
            self.barred = None;
        }
        // One that recovers comes after all others that are above.
        let weight = |judged: &WorstSensor| if judged.is_recovering { 1.0 } else { judged.excess };
        let worst = readings.iter().filter_map(judge).max_by(|a, b| weight(a).total_cmp(&weight(b)));
        if let Some(hand) = self.by_hand {
            return ScaleState { basis_points: hand.level, worst, needs_shedding: false, is_by_hand: true };
        }
        let mut needs_shedding = false;
        if worst.is_some_and(|worst| worst.excess > 1.0) {
            needs_shedding = self.step_down(now, readings);
        } else if !activity.is_shedding && worst.is_none_or(|worst| worst.excess < CALM) {
            self.step_up(now);
        }
        ScaleState { basis_points: self.level, worst, needs_shedding, is_by_hand: false }
    }

    /// Answers whether a step was due and the scale was at the floor already.
    fn step_down(&mut self, now: Tick, readings: &[SensorReading]) -> bool {
        let mut steps = 0;
        let mut is_trial = false;
        let mut longest = Span::ZERO;
        for judged in readings.iter().filter_map(judge).filter(|judged| judged.excess > 1.0) {
            self.rest = self.rest.max(judged.window);
            if judged.is_recovering || !self.is_down_due(now, judged.window) {
                continue;
            }
            longest = longest.max(judged.window);
            steps = steps.max(step_count(judged.excess, judged.window));
            let trial = if self.is_retrying() { RETRY } else { trial_length(judged.window) };
            is_trial |= self.last_up.is_some_and(|up| now.since(up) <= trial);
        }
        if steps == 0 {
            return false;
        }
        if self.level <= self.floor() {
            return true;
        }
        let good = self.good.take().filter(|_| is_trial);
        // The whole window was at this level: it is the level that is too high, and not one before.
        let has_held = longest >= LONG_WINDOW && self.last_down.is_some();
        if good.is_some() || has_held {
            self.barred = Some(BarredLevel { level: self.level, until: now + BAR });
        }
        if let Some(good) = good {
            self.level = good;
        } else {
            self.level = self.level.saturating_sub(steps * self.step()).max(self.floor());
        }
        self.has_returned = good.is_some();
        self.last_down = Some(now);
        false
    }

    fn step_up(&mut self, now: Tick) {
        if self.level >= FULL_SCALE {
            return;
        }
        let rests = |since: Option<Tick>, length| since.is_some_and(|since| !has_passed(since, length, now));
        if rests(self.last_down, self.rest.max(UP_EACH)) || rests(self.last_up, UP_EACH) {
            return;
        }
        let next = (self.level + self.step()).min(FULL_SCALE);
        if self.barred.is_some_and(|barred| next >= barred.level && now < barred.until) {
            return;
        }
        if self.is_retrying() {
            if rests(self.last_up, RETRY) {
                return;
            }
            self.barred = None;
        }
        self.good = Some(self.level);
        self.level = next;
        self.last_up = Some(now);
        self.rest = Span::ZERO;
    }

    /// The level now was barred, and is tried again.
    fn is_retrying(&self) -> bool {
        self.barred.is_some_and(|barred| self.level >= barred.level)
    }

    fn is_down_due(&self, now: Tick, window: Span) -> bool {
        // After a return the queues of the failed level have to drain, too.
        let wait = if self.has_returned { twice(window).max(UP_EACH) } else { window };
        self.last_down.is_none_or(|down| has_passed(down, wait, now))
    }

    fn floor(&self) -> u32 {
        self.terms.floor_percent.clamp(1, 100) * 100
    }

    fn step(&self) -> u32 {
        self.terms.step_percent.clamp(1, 50) * 100
    }
}

/// Sets a reading against its threshold; `None`: it is ignored.
fn judge(reading: &SensorReading) -> Option<WorstSensor> {
    let SensorReading { sensor, above, window, .. } = *reading;
    let excess = reading.value? / above;
    let is_recovering = excess > 1.0 && reading.recent.is_some_and(|recent| recent <= above);
    (above > 0.0 && excess.is_finite()).then_some(WorstSensor { sensor, excess, is_recovering, window })
}

/// How many steps a reading is worth.
fn step_count(excess: f64, window: Span) -> u32 {
    if window < LONG_WINDOW || excess < 2.0 {
        1
    } else if excess < 4.0 {
        2
    } else {
        3
    }
}

/// How long after a step up a reading above its threshold is taken as the result of that step.
fn trial_length(window: Span) -> Span {
    twice(window).max(Span::from_secs(10))
}

fn twice(span: Span) -> Span {
    Span::from_nanos(span.as_nanos().saturating_mul(2))
}

fn has_passed(since: Tick, length: Span, now: Tick) -> bool {
    now + JITTER >= since + length
}

#[cfg(test)]
mod tests;
