//! Shedding: refusal of requests by priority where limits cannot help any more.
//!
//! It is a pure state machine. Its caller is the task that reads the sensors once a second. It stores the level in an
//! atomic number. Each request reads that number: no lock, no shared write.
//!
//! # Level
//!
//! The level is 0 to 2. Up to 1 it is the share of `low` requests that is refused. From 1 on all `low` ones are, and
//! the rest is the share of `normal` ones. `high` is never refused.
//!
//! # Rules
//!
//! The *allowed rate* is regulated: how many requests a second pass in all. The level follows from it, and from the
//! mean counts of each priority in the last seconds (as in Uber's Cinnamon). So shedding ends as soon as fewer requests
//! come, and does not have to be found anew when they come back within a minute.
//!
//! The logarithm of the allowed rate is changed by a part of that of the excess (integral control). Where the sensor
//! grows with the load, a rate lower by 10% makes the reading lower by 10%, at any load: one gain is right for all.
//!
//! * **Above the threshold** the rate falls, once in each window of the sensor. For a window of 1 s by 0% to 26%:
//!   little where the excess is small and new, since it may be noise, and by at least 6% from the fourth time in a row,
//!   since a sensor that saturates at 100% shows no large excess. For a window of 5 s and more by 6% to 50%: queues
//!   have to drain.
//! * **Below 90%** for three readings in a row the rate grows, by up to 3% a second, or 5% each 5 s for a long window.
//!   It does not grow where fewer requests come than it allows.
//! * **Between** it holds. That band is wider than what the rate moves before a change can be read. There it comes to
//!   rest.
//! * **Bar.** A response time says nothing about the load below capacity. So with a long window the rate grows for 5
//!   minutes no further than to the geometric mean of the rate that was too high and of the one that it fell to.
//!
//! A sensor that is recovering moves nothing: it is above, but its recent value is not.
//!
//! It is no limit for one client, and no queue.

use sluicegate_time::{Span, Tick};

use crate::scale::{CALM, JITTER, LONG_WINDOW, WorstSensor};

/// One of the level, as it is published.
const ONE: u32 = 1 << 16;

/// How the logarithm of the rate changes, for sensors with a short window or a long one.
#[derive(Clone, Copy)]
struct StepRule {
    /// The part of the excess's logarithm by which it falls.
    gain: f64,
    /// The largest fall at once.
    largest: f64,
    /// The least fall at once, for the first, second and further moves down in a row.
    least: [f64; 4],
    /// The largest growth at once.
    growth: f64,
}

/// A sensor that is only just above, by chance, moves little. One that saturates at 100% says no more than "above", so
/// falls have to grow by themselves.
const SHORT: StepRule = StepRule { gain: 0.15, largest: 0.3, least: [0.0, 0.02, 0.04, 0.06], growth: 0.03 };

const LONG: StepRule = StepRule { gain: 0.7, largest: 0.7, least: [0.06; 4], growth: 0.05 };

/// With a long window: a rate that was too high is not reached again for this time.
const BAR: Span = Span::from_secs(300);

/// How often the rate grows at most, where the window is longer.
const GROWTH_EACH: Span = Span::from_secs(5);

/// A rate that was not used for so long is forgotten.
const FORGET: Span = Span::from_secs(60);

/// The newest second's part of the mean of the counts.
const NEWEST: f64 = 0.2;

/// A second may have so many times less requests than the mean by chance.
const SURGE: f64 = 1.5;

words! {
    /// How important a request is.
    #[derive(PartialOrd, Ord)]
    pub enum Priority default Normal {
        /// It is refused first.
        Low = "low",
        /// It is refused next.
        Normal = "normal",
        /// It is never refused by shedding.
        High = "high",
    }
}

/// Requests that came since the last call, by priority. Those that were shed are counted, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PriorityCounts {
    /// Of low priority.
    pub low: u64,
    /// Of normal priority.
    pub normal: u64,
    /// Of high priority.
    pub high: u64,
}

/// The shed level, as each request reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShedLevel(u32);

impl ShedLevel {
    /// Nothing is refused.
    pub const NONE: Self = Self(0);
    /// All is refused but `high`.
    pub const MOST: Self = Self(2 * ONE);

    /// Makes a level of [`bits`](Self::bits), as they were read from an atomic number.
    pub const fn from_bits(bits: u32) -> Self {
        Self(if bits > Self::MOST.0 { Self::MOST.0 } else { bits })
    }

    /// The level in parts of 65,536, to be stored in an atomic number.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The level, 0.0 to 2.0.
    pub fn value(self) -> f64 {
        f64::from(self.0) / f64::from(ONE)
    }

    /// Says whether a request is refused. `draw` is any random number, a new one for each request.
    pub fn refuses(self, priority: Priority, draw: u64) -> bool {
        let share = match priority {
            Priority::Low => self.0.min(ONE),
            Priority::Normal => self.0.saturating_sub(ONE),
            Priority::High => 0,
        };
        (draw >> 48) < u64::from(share)
    }

    /// Makes a level of 0.0 to 2.0.
    fn from_value(value: f64) -> Self {
        Self::from_bits((value.max(0.0) * f64::from(ONE)).round() as u32)
    }
}

/// Finds the shed level.
#[derive(Debug, Default)]
pub struct Shedding {
    /// Means of the counts a second.
    low: f64,
    normal: f64,
    high: f64,
    /// All requests of the last second.
    newest: f64,
    last_call: Option<Tick>,
    /// Requests a second that pass; `None`: any number.
    allowed: Option<f64>,
    last_move: Option<Tick>,
    last_fall: Option<Tick>,
    /// Moves in a row that went down.
    falls: usize,
    /// Calls in a row in which the sensor was well below its threshold.
    calm: u32,
    /// A rate that is not exceeded until then.
    barred: Option<(f64, Tick)>,
    last_used: Option<Tick>,
    level: ShedLevel,
}

impl Shedding {
    /// Makes one that refuses nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the worst sensor (`None`: none could be read) and the requests since the last call, once a second.
    /// `may_begin`: where nothing is shed yet it may begin now. That is where the scale is at the floor and still over
    /// ([`needs_shedding`](crate::ScaleState::needs_shedding)), or where no limit is adaptive.
    pub fn observe(
        &mut self,
        now: Tick,
        worst: Option<WorstSensor>,
        counts: PriorityCounts,
        may_begin: bool,
    ) -> ShedLevel {
        self.count(now, counts);
        let offered = self.low + self.normal + self.high;
        let excess = worst.map_or(0.0, |worst| worst.excess);
        let window = worst.map_or(Span::from_secs(1), |worst| worst.window);
        let is_over = excess > 1.0 && worst.is_some_and(|worst| !worst.is_recovering);
        if self.allowed.is_none() && may_begin && is_over {
            self.allowed = Some(offered);
            self.last_used = Some(now);
        }
        let Some(mut allowed) = self.allowed else { return ShedLevel::NONE };
        let has_passed = |length| move |last| now + JITTER >= last + length;
        let is_due = self.last_move.is_none_or(has_passed(window));
        let is_growth_due = self.last_fall.is_none_or(has_passed(window))
            && self.last_move.is_none_or(has_passed(window.min(GROWTH_EACH)));
        // Where the scale can still go down, it goes first.
        let may_fall = may_begin || self.level > ShedLevel::NONE;
        let rule = if window < LONG_WINDOW { SHORT } else { LONG };
        if excess <= 1.0 {
            self.falls = 0;
        }
        self.calm = if excess < CALM { self.calm + 1 } else { 0 };
        if is_due && is_over && may_fall {
            // The reading is the result of no more than passes now.
            allowed = allowed.min(offered);
            let least = rule.least.get(self.falls).copied().unwrap_or(rule.least[3]);
            let fall = (rule.gain * excess.ln()).clamp(least, rule.largest);
            if window >= LONG_WINDOW {
                // The fall is large, so that queues drain. The right rate is somewhere between.
                let most = self.barred_rate(now).min(allowed * (-fall / 2.0).exp());
                self.barred = Some((most, now + BAR));
            }
            allowed *= (-fall).exp();
            self.falls += 1;
            (self.last_move, self.last_fall) = (Some(now), Some(now));
        } else if is_growth_due && self.calm >= 3 && allowed < offered {
            let growth = (rule.gain * (CALM / excess.max(0.01)).ln()).min(rule.growth);
            allowed = (allowed * growth.exp()).min(self.barred_rate(now).max(allowed));
            self.last_move = Some(now);
        }
        // High priority passes in any case: a lower rate would only have a longer way back.
        allowed = allowed.max(self.high).max(1.0);
        self.allowed = Some(allowed);
        self.level = self.level_for(allowed, offered);
        if self.level > ShedLevel::NONE {
            self.last_used = Some(now);
        } else if self.last_used.is_some_and(|used| now.since(used) >= FORGET) {
            (self.allowed, self.barred) = (None, None);
        }
        self.level
    }

    /// Returns the level of the last call.
    pub fn level(&self) -> ShedLevel {
        self.level
    }

    fn count(&mut self, now: Tick, counts: PriorityCounts) {
        let second = Span::from_secs(1).as_nanos() as f64;
        let length = self.last_call.map_or(1.0, |last| (now.since(last).as_nanos() as f64 / second).max(0.1));
        let part = if self.last_call.is_none() { 1.0 } else { NEWEST };
        let mean = |mean: f64, count: u64| mean + part * (count as f64 / length - mean);
        self.low = mean(self.low, counts.low);
        self.normal = mean(self.normal, counts.normal);
        self.high = mean(self.high, counts.high);
        self.newest = (counts.low + counts.normal + counts.high) as f64 / length;
        self.last_call = Some(now);
    }

    /// The rate that growth does not exceed now.
    fn barred_rate(&self, now: Tick) -> f64 {
        self.barred.filter(|(_, until)| now < *until).map_or(f64::INFINITY, |(rate, _)| rate)
    }

    fn level_for(&self, allowed: f64, offered: f64) -> ShedLevel {
        // Where the load goes, the mean says so too late.
        let newest = if offered > 0.0 { (self.newest * SURGE / offered).min(1.0) } else { 1.0 };
        let (low, normal) = (self.low * newest, self.normal * newest);
        let refused = offered * newest - allowed;
        if refused <= 0.0 {
            ShedLevel::NONE
        } else if refused < low {
            ShedLevel::from_value(refused / low)
        } else if normal > 0.0 {
            ShedLevel::from_value(1.0 + ((refused - low) / normal).min(1.0))
        } else {
            ShedLevel::from_value(1.0)
        }
    }
}

#[cfg(test)]
mod tests;
