//! When an alert fires and when it is over: pure, with the time as an argument.
//!
//! Each figure of an alert is a [`Trigger`] with two marks. It fires when its value reaches the high one, and then says nothing
//! until the value has been below the low one, when it is over: a value that goes to and fro between both is one alert.

use std::collections::VecDeque;

use sluicegate_config::Alert;
use sluicegate_time::{Span, Tick, Wall};

/// The time in which lost records count.
pub(super) const DROPS_WINDOW: Span = Span::from_secs(60);
/// A window is looked at in so many steps.
const STEPS: u64 = 60;

/// The figure of the log that an alert is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Figure {
    /// Records that are neither replayed nor gone.
    Length,
    /// Seconds since the oldest of them.
    Age,
    /// Requests that were offered, within a time.
    Growth,
    /// Records that were lost, within a minute.
    Drops,
}

impl Figure {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Length, Self::Age, Self::Growth, Self::Drops];

    /// As messages and metrics call it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Age => "age",
            Self::Growth => "growth",
            Self::Drops => "drops",
        }
    }
}

/// Whether an alert begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlertState {
    /// Its value has reached the high mark.
    Firing,
    /// Its value has fallen below the low mark.
    Resolved,
}

impl AlertState {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Firing, Self::Resolved];

    /// As messages and metrics call it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Firing => "firing",
            Self::Resolved => "resolved",
        }
    }
}

/// The log at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogSample {
    pub(super) now: Tick,
    pub(super) wall: Wall,
    /// Requests offered since the start of the process.
    pub(super) offered: u64,
    /// Records lost since then.
    pub(super) dropped: u64,
    /// `None`: not counted yet, or not to the end.
    pub(super) backlog: Option<OpenRecords>,
}

/// The records that are neither replayed nor gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenRecords {
    pub(super) records: u64,
    pub(super) oldest: Option<Wall>,
}

/// A figure has crossed a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Crossing {
    /// Of the trigger.
    pub(super) id: u64,
    /// Its alert's place in the file.
    pub(super) alert: usize,
    pub(super) figure: Figure,
    pub(super) state: AlertState,
    pub(super) value: u64,
    /// The high mark.
    pub(super) threshold: u64,
    /// The time in which the value was counted.
    pub(super) within: Option<Span>,
}

/// High and low water.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    high: u64,
    /// It is over below this.
    low: u64,
}

impl Marks {
    /// Over below four fifths.
    pub(super) const fn wide(high: u64) -> Self {
        Self { high, low: high - high / 5 }
    }

    /// Over at nothing.
    pub(super) const fn down_to_nothing(high: u64) -> Self {
        Self { high, low: 1 }
    }

    /// The change that a value makes.
    pub(super) fn step(self, is_firing: &mut bool, value: u64) -> Option<AlertState> {
        let crossed = match *is_firing {
            false if value >= self.high => AlertState::Firing,
            true if value < self.low => AlertState::Resolved,
            _ => return None,
        };
        *is_firing = !*is_firing;
        Some(crossed)
    }
}

/// How much a counter has grown within the last window, or a sixtieth of it more.
#[derive(Clone, Debug)]
pub(super) struct Sliding {
    window: Span,
    /// The newest one that is a window old or older, and those after it; at least a sixtieth apart.
    samples: VecDeque<(Tick, u64)>,
}

impl Sliding {
    /// From a counter as it is at this moment.
    pub(super) fn new(window: Span, now: Tick, total: u64) -> Self {
        Self { window, samples: VecDeque::from([(now, total)]) }
    }

    /// Takes the counter in, and says how much it has grown.
    pub(super) fn grown(&mut self, now: Tick, total: u64) -> u64 {
        let step = Span::from_nanos(self.window.as_nanos() / STEPS);
        if self.samples.back().is_none_or(|(at, _)| now.since(*at) >= step) {
            self.samples.push_back((now, total));
        }
        while self.samples.get(1).is_some_and(|(at, _)| now.since(*at) >= self.window) {
            self.samples.pop_front();
        }
        self.samples.front().map_or(0, |(_, before)| total.saturating_sub(*before))
    }
}

/// One figure of one alert.
#[derive(Clone, Debug)]
struct Trigger {
    id: u64,
    alert: usize,
    figure: Figure,
    marks: Marks,
    is_firing: bool,
    sliding: Option<Sliding>,
}

impl Trigger {
    fn step(&mut self, reading: &LogSample) -> Option<Crossing> {
        let LogSample { now, wall, offered, dropped, backlog } = *reading;
        let mut grown = |total| self.sliding.as_mut().map(|sliding| sliding.grown(now, total));
        let value = match self.figure {
            Figure::Length => backlog.map(|standing| standing.records),
            Figure::Age => backlog.map(|standing| {
                standing.oldest.map_or(0, |oldest| wall.since(oldest).as_nanos() / Span::from_secs(1).as_nanos())
            }),
            Figure::Growth => grown(offered),
            Figure::Drops => grown(dropped),
        }?;
        let state = self.marks.step(&mut self.is_firing, value)?;
        Some(Crossing {
            id: self.id,
            alert: self.alert,
            figure: self.figure,
            state,
            value,
            threshold: self.marks.high,
            within: self.sliding.as_ref().map(|sliding| sliding.window),
        })
    }
}

/// All figures of all alerts.
#[derive(Debug, Default)]
pub(super) struct Board {
    alerts: Vec<Alert>,
    triggers: Vec<Trigger>,
    last_id: u64,
}

impl Board {
    /// Goes on with other alerts; what is new counts from `start` on. One whose webhook stays goes on from where it is, whatever its marks: if it fires, its end is
    /// told, and not its beginning once more. Others begin anew.
    pub(super) fn renew(&mut self, alerts: Vec<Alert>, start: &LogSample) {
        let wanted: Vec<WantedTrigger> = alerts.iter().enumerate().flat_map(|(at, alert)| wanted(at, alert)).collect();
        let mut before: Vec<Option<Trigger>> = std::mem::take(&mut self.triggers).into_iter().map(Some).collect();
        let mut kept: Vec<Option<Trigger>> = wanted.iter().map(|_| None).collect();
        // One with the same marks wins over one that is sent to the same place.
        for exactly in [true, false] {
            for (wanted, place) in wanted.iter().zip(&mut kept).filter(|(_, place)| place.is_none()) {
                let webhook = alerts.get(wanted.alert).map(|alert| &alert.webhook);
                let is_same = |own: &Trigger| {
                    let old = self.alerts.get(own.alert).map(|alert| &alert.webhook);
                    own.figure == wanted.figure && old == webhook && (!exactly || own.marks == wanted.marks)
                };
                let found = before.iter_mut().find(|own| own.as_ref().is_some_and(is_same));
                *place = found.and_then(Option::take);
            }
        }
        for (WantedTrigger { alert, figure, marks, window }, kept) in wanted.into_iter().zip(kept) {
            let id = kept.as_ref().map_or_else(|| self.last_id + 1, |kept| kept.id);
            self.last_id = self.last_id.max(id);
            let is_firing = kept.as_ref().is_some_and(|kept| kept.is_firing);
            let total = if figure == Figure::Drops { start.dropped } else { start.offered };
            let sliding = kept.and_then(|kept| kept.sliding);
            let sliding = window.map(|window| {
                let same = sliding.filter(|own| own.window == window);
                same.unwrap_or_else(|| Sliding::new(window, start.now, total))
            });
            self.triggers.push(Trigger { id, alert, figure, marks, is_firing, sliding });
        }
        self.alerts = alerts;
    }

    /// The triggers by their ids, with the alert of each.
    pub(super) fn triggers(&self) -> impl Iterator<Item = (u64, &Alert)> {
        self.triggers.iter().filter_map(|own| Some((own.id, self.alerts.get(own.alert)?)))
    }

    /// Whether the records have to be counted.
    pub(super) fn counts_records(&self) -> bool {
        self.triggers.iter().any(|own| matches!(own.figure, Figure::Length | Figure::Age))
    }

    /// The changes that the log makes, as it is now.
    pub(super) fn step(&mut self, reading: &LogSample) -> Vec<Crossing> {
        self.triggers.iter_mut().filter_map(|own| own.step(reading)).collect()
    }
}

/// A trigger that the file asks for.
struct WantedTrigger {
    alert: usize,
    figure: Figure,
    marks: Marks,
    /// The time in which it is counted.
    window: Option<Span>,
}

/// Those of one alert.
fn wanted(at: usize, alert: &Alert) -> impl Iterator<Item = WantedTrigger> {
    let length = alert.length.map(|high| (Figure::Length, Marks::wide(high), None));
    let age = alert.age.map(|age| (Figure::Age, Marks::wide(age.as_secs_ceil()), None));
    let growth = alert.growth.map(|rate| (Figure::Growth, Marks::wide(rate.limit()), Some(rate.window())));
    let drops = alert.drops.map(|high| (Figure::Drops, Marks::down_to_nothing(high), Some(DROPS_WINDOW)));
    let all = [length, age, growth, drops].into_iter().flatten();
    all.map(move |(figure, marks, window)| WantedTrigger { alert: at, figure, marks, window })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::alert;
    use super::*;

    fn second(at: u64) -> Tick {
        Tick::from_nanos(1_000_000_000_000) + Span::from_secs(at)
    }

    fn wall(at: u64) -> Wall {
        Wall::from_nanos(second(at).as_nanos())
    }

    fn with_records(at: u64, records: u64) -> LogSample {
        let backlog = Some(OpenRecords { records, oldest: (records > 0).then(|| wall(0)) });
        LogSample { now: second(at), wall: wall(at), offered: 0, dropped: 0, backlog }
    }

    fn board(alerts: Vec<Alert>) -> Board {
        let mut board = Board::default();
        board.renew(alerts, &LogSample { offered: 1_000, ..with_records(0, 0) });
        board
    }

    fn states(board: &mut Board, readings: impl IntoIterator<Item = LogSample>) -> Vec<(AlertState, u64)> {
        let crossings = readings.into_iter().flat_map(|reading| board.step(&reading));
        crossings.map(|crossing| (crossing.state, crossing.value)).collect()
    }

    #[test]
    fn fires_once_at_the_high_mark_and_ends_below_the_low_one() {
        let mut board = board(vec![Alert { length: Some(10), ..alert() }]);
        let values = [0, 9, 10, 11, 9, 10, 8, 10, 7, 9, 10, 0];
        let readings = values.into_iter().enumerate().map(|(at, records)| with_records(at as u64, records));
        let found = states(&mut board, readings);
        let expected =
            [(AlertState::Firing, 10), (AlertState::Resolved, 7), (AlertState::Firing, 10), (AlertState::Resolved, 0)];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_least_marks_end_at_nothing() {
        for high in 1..=4 {
            assert_eq!(Marks::wide(high), Marks { high, low: high });
        }
        assert_eq!(Marks::wide(5), Marks { high: 5, low: 4 });
        assert_eq!(Marks::wide(1), Marks::down_to_nothing(1));
    }

    #[test]
    fn an_age_is_that_of_the_oldest_record() {
        let mut board = board(vec![Alert { age: Some(Span::from_secs(100)), ..alert() }]);
        let readings = [with_records(99, 1), with_records(100, 1), with_records(500, 1), with_records(501, 0)];
        assert_eq!(states(&mut board, readings), [(AlertState::Firing, 100), (AlertState::Resolved, 0)]);
    }

    #[test]
    fn what_is_not_counted_yet_changes_nothing() {
        let mut board = board(vec![Alert { length: Some(1), ..alert() }]);
        let unknown = LogSample { backlog: None, ..with_records(0, 0) };
        assert_eq!(states(&mut board, [unknown, with_records(1, 1), unknown, unknown]), [(AlertState::Firing, 1)]);
    }

    #[test]
    fn lost_records_fire_once_until_a_minute_has_lost_none() {
        let mut board = board(vec![Alert { drops: Some(2), ..alert() }]);
        let mut found = Vec::new();
        for at in 0..400_u64 {
            // One at 10 s, one at 20 s, then one each 30 s up to 200 s.
            let dropped = u64::from(at >= 10) + u64::from(at >= 20) + (at.min(200) / 30).saturating_sub(1);
            let reading = LogSample { now: second(at), wall: wall(at), offered: 0, dropped, backlog: None };
            found.extend(board.step(&reading).into_iter().map(|crossing| (at, crossing.state, crossing.value)));
        }
        assert_eq!(found, [(20, AlertState::Firing, 2), (240, AlertState::Resolved, 0)]);
    }

    #[test]
    fn growth_is_that_of_the_last_window() {
        let rate = "60/m".parse().unwrap();
        let mut board = board(vec![Alert { growth: Some(rate), ..alert() }]);
        let mut found = Vec::new();
        for at in 0..600_u64 {
            // Up to 300 s one a second, then nothing.
            let reading =
                LogSample { now: second(at), wall: wall(at), offered: 1_000 + at.min(300), dropped: 0, backlog: None };
            found.extend(board.step(&reading).into_iter().map(|crossing| (at, crossing.state, crossing.value)));
        }
        assert_eq!(found, [(60, AlertState::Firing, 60), (313, AlertState::Resolved, 47)]);
    }

    #[test]
    fn a_window_holds_few_samples_however_often_it_is_looked_at() {
        let mut sliding = Sliding::new(Span::from_secs(86_400), second(0), 0);
        for at in 0..200_000 {
            sliding.grown(second(at), at);
            assert!(sliding.samples.len() <= STEPS as usize + 2);
        }
        assert!((86_400..=86_400 + 1_440).contains(&sliding.grown(second(200_000), 200_000)));
    }

    #[test]
    fn a_reload_keeps_what_fires() {
        let alerts = |lengths: &[u64]| lengths.iter().map(|high| Alert { length: Some(*high), ..alert() }).collect();
        let start = with_records(0, 0);
        let mut board = board(alerts(&[10, 100]));
        assert_eq!(states(&mut board, [with_records(0, 50)]), [(AlertState::Firing, 50)]);
        // In another order, and one more.
        board.renew(alerts(&[100, 40, 10]), &start);
        assert_eq!(states(&mut board, [with_records(1, 50)]), [(AlertState::Firing, 50)], "the new one alone");
        // A mark that is above the value ends it.
        board.renew(alerts(&[100, 40, 1_000]), &start);
        let crossings = board.step(&with_records(2, 50));
        assert_eq!(crossings.iter().map(|own| (own.alert, own.state)).collect::<Vec<_>>(), [(2, AlertState::Resolved)]);
        board.renew(Vec::new(), &start);
        assert!(!board.counts_records() && board.step(&with_records(3, 5_000)).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: prop::test_runner::RngSeed::Fixed(7), ..ProptestConfig::default() })]

        /// However a value moves: messages alternate, and between two of a kind it was beyond the other mark.
        #[test]
        fn no_value_makes_it_flap(high in 1_u64..50, values in prop::collection::vec(0_u64..60, 1..200)) {
            let marks = Marks::wide(high);
            let (mut is_firing, mut last) = (false, None);
            for value in values {
                let before = is_firing;
                match marks.step(&mut is_firing, value) {
                    Some(AlertState::Firing) => prop_assert!(value >= high && last != Some(AlertState::Firing)),
                    Some(AlertState::Resolved) => prop_assert!(value * 5 < high * 4 && last == Some(AlertState::Firing)),
                    None => {
                        prop_assert_eq!(before, is_firing);
                        let is_between = if is_firing { value * 5 >= high * 4 } else { value < high };
                        prop_assert!(is_between);
                        continue;
                    }
                }
                last = Some(if is_firing { AlertState::Firing } else { AlertState::Resolved });
            }
        }

        /// The sum of a window is that of the calls in it, but for one step at its far end.
        #[test]
        fn a_window_is_right_to_a_step(steps in prop::collection::vec((1_u64..30, 0_u64..9), 1..300)) {
            let mut sliding = Sliding::new(Span::from_secs(60), second(0), 0);
            let (mut at, mut total, mut seen) = (0, 0, vec![(0_u64, 0_u64)]);
            for (pause, more) in steps {
                at += pause;
                total += more;
                seen.push((at, total));
                let grown = sliding.grown(second(at), total);
                let since = |edge: u64| total - seen.iter().rev().find(|(then, _)| *then <= edge).map_or(0, |own| own.1);
                prop_assert_eq!(grown, since(at.saturating_sub(60)));
            }
        }
    }
}
