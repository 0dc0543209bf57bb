//! The promise of a limit across reloads: the most that the strictest reading of the documentation lets through, given
//! what was let through before.

use sluicegate_limiter::time::Span;

use super::naive::NaiveRate;
use super::oracle::{BLUR, Oracle, Shape, shown};

/// One key of a limit of one rate, whose parameters change. Counts are kept, or turned into what is nearest and never
/// less strict; what a rule in force had let go may stay forgotten; another algorithm starts afresh.
#[derive(Clone, Debug)]
pub struct Promise {
    shape: Shape,
    rate: Oracle,
    past: Past,
    /// The last instant at which the limit was asked: what is taken over is taken as of then.
    latest: u64,
    /// Nothing was counted that is not known here.
    is_known: bool,
}

/// The past as the algorithm sees it.
#[derive(Clone, Debug)]
enum Past {
    /// The requests that were counted, known from an instant on.
    Log { known_from: u64, log: Vec<(u64, u64)> },
    /// A window that may be open: since when, and its count.
    Window { from: u64, count: u64 },
    /// How many requests of a bucket are taken, as of an instant, and how many by a faster pace of before.
    Level { taken: f64, at: u64, ever: Ever, faster: Option<Faster> },
    /// How many tokens are missing, and when the period began.
    Periods { missing: u64, began: u64 },
    /// How many requests are saved up, or owed if negative, as of an instant; nothing was ever seen before `Some`.
    Savings(Option<(f64, u64)>),
    /// When somebody's turn is at the earliest.
    Turn(f64),
}

/// The largest burst and the longest window that there were.
#[derive(Clone, Copy, Debug)]
struct Ever {
    most: u64,
    longest: u64,
}

/// The fastest pace of before, where more may have been taken by it than the burst of now.
#[derive(Clone, Copy, Debug)]
struct Faster {
    /// The nanoseconds of a request.
    interval: f64,
    taken: f64,
}

/// Rounding, in requests.
const SLACK: f64 = 1e-6;

impl Promise {
    pub fn new(shape: Shape) -> Self {
        let rate = shape.case().rates[0];
        Self { past: Past::new(&shape, rate), rate, shape, latest: 0, is_known: true }
    }

    /// Somebody asks: time has passed.
    pub fn look(&mut self, now: u64) {
        self.latest = self.latest.max(now);
    }

    /// Whether the past is known so well that what fits here is let in.
    pub fn is_exact(&self) -> bool {
        let is_exact = matches!(self.past, Past::Window { .. } | Past::Periods { .. });
        self.is_known && (is_exact || matches!(self.rate, Oracle::InFlight { .. }))
    }

    /// Whether `cost` may be let in.
    pub fn allows(&self, cost: u64, now: u64) -> bool {
        match &self.past {
            Past::Log { known_from, log } => {
                let log: Vec<_> = log.iter().copied().filter(|(at, _)| at >= known_from).collect();
                self.rate.fits(&log, cost, now)
            }
            // Windows and periods that began nobody knows when say nothing of any stretch of time.
            Past::Window { .. } | Past::Periods { .. } if !self.is_known => true,
            Past::Window { .. } => self.window(now).1 + cost <= self.limit(),
            Past::Level { .. } => {
                self.level(now).max(self.faster(now)) + cost as f64 <= self.shape.number as f64 + SLACK
            }
            Past::Periods { .. } => self.missing(now).0 + cost <= self.shape.number,
            Past::Savings(_) => self.savings(now) >= -SLACK,
            Past::Turn(next) => now as f64 >= next - BLUR as f64,
        }
    }

    /// It was let in and counted.
    pub fn admit(&mut self, cost: u64, now: u64) {
        self.look(now);
        let past = match &mut self.past {
            Past::Log { log, .. } => {
                log.push((now, cost));
                return;
            }
            Past::Window { .. } => {
                let (from, count) = self.window(now);
                Past::Window { from, count: count + cost }
            }
            Past::Level { faster, ever, .. } => {
                let (faster, ever) = (*faster, *ever);
                let own = self.level(now) + cost as f64;
                let faster = faster.map(|past| Faster { taken: self.faster(now) + cost as f64, ..past });
                Past::Level { taken: own, at: now, ever, faster }
            }
            Past::Periods { .. } => {
                let (missing, began) = self.missing(now);
                Past::Periods { missing: missing + cost, began }
            }
            Past::Savings(_) => Past::Savings(Some((self.savings(now) - cost as f64, now))),
            Past::Turn(next) => Past::Turn(next.max(now as f64) + cost as f64 * self.interval()),
        };
        self.past = past;
    }

    /// It was let in, and counted or not.
    pub fn may_admit(&mut self, now: u64) {
        self.is_known = false;
        if let Past::Savings(unseen @ None) = &mut self.past {
            *unseen = Some((0.0, now));
        }
    }

    /// One of those in flight has ended.
    pub fn end(&mut self, at: u64, cost: u64) {
        if let (Past::Log { log, .. }, Oracle::InFlight { .. }) = (&mut self.past, self.rate)
            && let Some(index) = log.iter().position(|known| *known == (at, cost))
        {
            log.remove(index);
        }
    }

    /// Other parameters, at `now`; `is_rewritten`: whatever the rate, what is kept of a key is written anew.
    pub fn reload(&mut self, shape: Shape, is_rewritten: bool, now: u64) {
        let (old, latest) = (self.clone(), self.latest);
        let rate = shape.case().rates[0];
        let fresh = Past::new(&shape, rate);
        let same_rate = old.shape.rates == shape.rates && !is_rewritten;
        let turn = |limit: u64, window: Span| u128::from(window.as_nanos()) * u128::from(limit);
        let (was, is) = (old.shape.rates[0], shape.rates[0]);
        let same_pace = turn(is.limit(), was.window()) == turn(was.limit(), is.window()) && !is_rewritten;
        let calendar =
            |rate| if let Oracle::OfCalendar { unit, behind, .. } = rate { Some((unit, behind)) } else { None };
        let is_same =
            old.shape.case().algorithm.name() == shape.case().algorithm.name() && calendar(old.rate) == calendar(rate);
        (self.shape, self.rate) = (shape, rate);
        self.is_known = !is_same || old.is_known;
        self.past = match (old.past.clone(), fresh) {
            (_, fresh) if !is_same => fresh,
            (Past::Log { known_from, log }, _) => old.remembered(known_from, log, now, &self.shape),
            (Past::Window { .. }, _) => {
                let (from, count) = old.window(latest);
                let from = if self.shape.is_aligned() { latest / self.span() * self.span() } else { from };
                Past::Window { from, count }
            }
            (Past::Level { faster, ever: was, .. }, Past::Level { .. }) => {
                let ever = was.and(&self.shape);
                let taken = old.level(latest).max(old.faster(latest));
                let before = Faster { interval: old.interval(), taken };
                let before = faster.map_or(before, |own| Faster { interval: own.interval.min(before.interval), taken });
                let was_faster = before.interval < self.interval();
                let faster = Some(before).filter(|_| was_faster && was.most > self.shape.number);
                let forgets = |interval| {
                    ever.kept(&self.shape, interval) + SLACK < was.kept(&old.shape, interval).min(was.most as f64)
                };
                let forgets = forgets(self.interval()) || faster.is_some_and(|own| forgets(own.interval));
                let is_kept = same_pace
                    && !forgets
                    && faster.is_some() == matches!(old.past, Past::Level { faster: Some(_), .. });
                let kept = |interval| taken.min(ever.kept(&self.shape, interval));
                let faster = faster.map(|own| Faster { taken: kept(own.interval), ..own });
                match old.past {
                    // As it stands, even above a burst that was lowered.
                    Past::Level { taken, at, faster, .. } if is_kept => Past::Level { taken, at, ever, faster },
                    _ if was_faster => {
                        Past::Level { taken: taken.min(self.shape.number as f64), at: latest, ever, faster }
                    }
                    _ => Past::Level { taken: kept(self.interval()), at: latest, ever, faster },
                }
            }
            (Past::Level { .. }, _) => {
                let missing = (old.level(latest).max(old.faster(latest)) - SLACK).ceil().max(0.0) as u64;
                Past::Periods { missing: missing.min(self.shape.number), began: latest }
            }
            // Nobody knows how many were given back by now, if nobody knows when the period began.
            (Past::Periods { .. }, Past::Level { taken, at, faster, .. }) if !old.is_known => {
                Past::Level { taken, at, ever: Ever::of(&old.shape).and(&self.shape), faster }
            }
            (Past::Periods { .. }, Past::Level { .. }) => {
                let (missing, _) = old.missing(latest);
                let before = Faster { interval: old.interval(), taken: missing as f64 };
                let matters = before.interval < self.interval() && old.shape.number > self.shape.number;
                let ever = Ever::of(&old.shape).and(&self.shape);
                let before = Faster { taken: before.taken.min(ever.kept(&self.shape, before.interval)), ..before };
                Past::Level {
                    taken: missing.min(self.shape.number) as f64,
                    at: latest,
                    ever,
                    faster: Some(before).filter(|_| matters),
                }
            }
            (Past::Periods { .. }, _) if same_rate => old.past,
            (Past::Periods { .. }, _) => {
                let (missing, began) = old.missing(latest);
                let began = if latest - began >= self.span() { latest } else { began };
                Past::Periods { missing: missing.min(self.shape.number), began }
            }
            (Past::Savings(None) | Past::Turn(_), _) => old.past,
            (Past::Savings(Some(_)), _) => Past::Savings(Some((old.savings(latest).min(self.most_saved()), latest))),
        };
    }

    /// The rest of a log under `new`: what the old rate has let go may be forgotten.
    fn remembered(&self, known_from: u64, mut log: Vec<(u64, u64)>, now: u64, new: &Shape) -> Past {
        let slots = |slot: u64, summed: u64| (now / slot + 1).saturating_sub(summed) * slot;
        let known_from = match self.rate {
            Oracle::Slots { rate: NaiveRate { slot, summed, .. }, .. } => known_from.max(slots(slot, summed)),
            Oracle::Counter { window, .. } => known_from.max(slots(window, 2)),
            _ => known_from,
        };
        if let Oracle::Stamps { window, apart, .. } = self.rate {
            let newest = log.last().copied().filter(|(at, _)| at + apart > now);
            log.retain(|(at, _)| at + window > now);
            if log.is_empty() {
                log.extend(newest);
            }
            // Of the newest stamps as many as the largest log so far holds: no fewer than this one.
            let mut places = new.rates[0].limit().max(self.shape.rates[0].limit());
            for (_, cost) in log.iter_mut().rev() {
                *cost = (*cost).min(places);
                places -= *cost;
            }
            log.retain(|(_, cost)| *cost > 0);
        }
        Past::Log { known_from, log }
    }

    fn limit(&self) -> u64 {
        self.shape.rates[0].limit()
    }

    fn span(&self) -> u64 {
        self.shape.rates[0].window().as_nanos()
    }

    fn interval(&self) -> f64 {
        self.span() as f64 / self.limit() as f64
    }

    /// The window at `now`.
    fn window(&self, now: u64) -> (u64, u64) {
        let Past::Window { from, count } = self.past else { return (now, 0) };
        let opens = if self.shape.is_aligned() { now / self.span() * self.span() } else { now };
        let is_open = match self.rate {
            Oracle::OfCalendar { unit, behind, .. } => shown(unit, behind, from) == shown(unit, behind, now),
            _ => now < from + self.span(),
        };
        if count > 0 && is_open { (from, count) } else { (opens, 0) }
    }

    fn level(&self, now: u64) -> f64 {
        let Past::Level { taken, at, .. } = self.past else { return 0.0 };
        (taken - (now - at) as f64 / self.interval()).max(0.0)
    }

    /// The same by a faster pace of before.
    fn faster(&self, now: u64) -> f64 {
        let Past::Level { at, faster: Some(Faster { interval, taken, .. }), .. } = self.past else { return 0.0 };
        (taken - (now - at) as f64 / interval).max(0.0)
    }

    fn missing(&self, now: u64) -> (u64, u64) {
        let Past::Periods { mut missing, mut began } = self.past else { return (0, now) };
        while missing > 0 && began + self.span() <= now {
            missing = missing.saturating_sub(self.limit());
            began += self.span();
        }
        (missing, if missing == 0 { now } else { began })
    }

    fn savings(&self, now: u64) -> f64 {
        let Past::Savings(Some((savings, at))) = self.past else { return 0.0 };
        (savings + (now - at) as f64 / self.interval()).min(self.most_saved().max(0.0))
    }

    fn most_saved(&self) -> f64 {
        let Oracle::Turns { saved, .. } = self.rate else { return 0.0 };
        saved as f64 / self.interval()
    }
}

impl Ever {
    fn of(shape: &Shape) -> Self {
        Self { most: shape.number, longest: shape.rates[0].window().as_nanos() }
    }

    fn and(self, shape: &Shape) -> Self {
        let other = Self::of(shape);
        Self { most: self.most.max(other.most), longest: self.longest.max(other.longest) }
    }

    /// So much of what is taken stays so: what is above the burst drains in the longest window.
    fn kept(self, shape: &Shape, interval: f64) -> f64 {
        shape.number as f64 - 1.0 + self.longest as f64 / interval
    }
}

impl Past {
    fn new(shape: &Shape, rate: Oracle) -> Self {
        match rate {
            _ if shape.case().algorithm.name() == "fixed-window" => Self::Window { from: 0, count: 0 },
            Oracle::Curve { .. } => Self::Level { taken: 0.0, at: 0, ever: Ever::of(shape), faster: None },
            Oracle::Periods { .. } => Self::Periods { missing: 0, began: 0 },
            Oracle::Turns { .. } => Self::Savings(None),
            Oracle::Warm { .. } => Self::Turn(0.0),
            _ => Self::Log { known_from: 0, log: Vec::new() },
        }
    }
}
