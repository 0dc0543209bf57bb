//! Refusals over time, drawn with characters.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::print::Style;
use crate::dead_letter::{Reason, Steps};
use crate::time::{Span, Wall};

/// Lines of the bars of all reasons.
const HEIGHT: u64 = 6;
/// The most steps, and characters of one.
const MAX_STEPS: usize = 200;
const MAX_WIDE: usize = 6;
/// The least room for bars: on a terminal that is narrower, lines break.
const MIN_ROOM: usize = 20;
/// Levels of a line for one reason, and of the topmost character of a bar, from nothing to a full one.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII: [char; 9] = [' ', '.', '.', ':', '-', '=', '+', '*', '#'];

/// Places between times at the axis, in seconds.
const PLACES: [u64; 20] = [
    1, 5, 10, 15, 30, 60, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800,
    1_209_600, 2_419_200,
];

/// How many steps a picture of such a width has room for.
pub(super) fn room(style: Style) -> usize {
    style.width.saturating_sub(LABEL + 1).clamp(MIN_ROOM, MAX_STEPS)
}

/// Characters at the left: the longest reason and its highest count.
const LABEL: usize = 24;

/// Bars of all reasons, and, if there are several, a line for each to its own scale.
pub(super) fn write_picture(out: &mut dyn Write, style: Style, steps: &Steps) -> io::Result<()> {
    let totals: Vec<u64> =
        steps.counts.iter().map(|counts| counts.iter().fold(0, |sum, own| u64::saturating_add(sum, *own))).collect();
    let highest = totals.iter().copied().max().unwrap_or_default();
    let wide = (room(style) / totals.len().max(1)).clamp(1, MAX_WIDE);
    let title = format!("refused per {}", in_words(steps.length));
    let about = format!("  ({}UTC)", date(steps).map_or_else(String::new, |date| date + ", "));
    writeln!(out, "\n{}{}", style.bold(title), style.dim(about))?;
    let [corner, line, tick, side] = if style.utf8 { ['└', '─', '┴', '│'] } else { ['+', '-', '+', '|'] };
    for row in (0..HEIGHT).rev() {
        let number = if row + 1 == HEIGHT { highest.to_string() } else { String::new() };
        let cells = totals.iter().map(|total| level(*total, highest, HEIGHT * 8).saturating_sub(row * 8).min(8));
        writeln!(out, "{number:>LABEL$}{side}{}", drawn(cells, wide, style).trim_end())?;
    }
    let marks = marks(steps, wide, room(style));
    let is_mark = |at: usize| marks.iter().any(|(place, _)| *place == at);
    let axis: String = (0..totals.len() * wide).map(|at| if is_mark(at) { tick } else { line }).collect();
    writeln!(out, "{:>LABEL$}{corner}{axis}", 0)?;
    let mut times = String::new();
    for (place, time) in &marks {
        let _ = write!(times, "{}{time}", " ".repeat(place.saturating_sub(times.len())));
    }
    writeln!(out, "{:LABEL$} {times}", "")?;
    write_reasons(out, style, steps, wide)
}

fn write_reasons(out: &mut dyn Write, style: Style, steps: &Steps, wide: usize) -> io::Result<()> {
    let names = Reason::ALL.iter().map(|reason| reason.word()).chain(["other"]);
    let of = |at: usize| steps.counts.iter().map(move |counts| counts.get(at).copied().unwrap_or_default());
    let mut rows: Vec<_> = names.enumerate().map(|(at, name)| (of(at).max().unwrap_or_default(), at, name)).collect();
    rows.retain(|(highest, ..)| *highest > 0);
    if rows.len() < 2 {
        return Ok(());
    }
    rows.sort_by_key(|(highest, ..)| std::cmp::Reverse(*highest));
    for (highest, at, name) in rows {
        let line = drawn(of(at).map(|count| level(count, highest, 8)), wide, style);
        let number = LABEL - name.len();
        writeln!(out, "{name}{highest:>number$} {}", style.of_reason(name, line.trim_end()))?;
    }
    Ok(())
}

/// The part of the highest, rounded up: what has happened is seen.
fn level(count: u64, highest: u64, levels: u64) -> u64 {
    let level = (u128::from(count) * u128::from(levels)).div_ceil(u128::from(highest.max(1)));
    u64::try_from(level).unwrap_or(levels)
}

fn drawn(levels: impl Iterator<Item = u64>, wide: usize, style: Style) -> String {
    let characters = if style.utf8 { BLOCKS } else { ASCII };
    let character = |level: u64| characters.get(level as usize).copied().unwrap_or(' ');
    levels.flat_map(|level| std::iter::repeat_n(character(level), wide)).collect()
}

/// Round times at the axis, and where each stands: none reaches into the next one, or over the end of the line.
fn marks(steps: &Steps, wide: usize, most: usize) -> Vec<(usize, String)> {
    let (start, length) = (in_seconds(steps.start), steps.length.as_nanos() / 1_000_000_000);
    let end = start + length * steps.counts.len() as u64;
    let form = AxisFormat::of(start, end, length);
    let room = |places: u64| (places / length) as usize * wide >= form.width() + 2;
    let whole = PLACES.into_iter().find(|places| places.is_multiple_of(length) && room(*places));
    let places = whole.unwrap_or(length * ((form.width() + 2).div_ceil(wide) as u64));
    let times = (start.next_multiple_of(places)..end).step_by(places as usize);
    let mut marks: Vec<_> = times.map(|time| (((time - start) / length) as usize * wide, form.show(time))).collect();
    marks.retain(|(place, time)| place + time.len() <= most);
    if marks.is_empty() {
        marks.push((0, form.show(start)));
    }
    marks
}

/// How times at the axis look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AxisFormat {
    Second,
    Minute,
    DayAndMinute,
    Day,
}

impl AxisFormat {
    fn of(start: u64, end: u64, length: u64) -> Self {
        let day = 86_400;
        match () {
            () if length >= day => Self::Day,
            () if start / day != (end - 1) / day => Self::DayAndMinute,
            () if length < 60 => Self::Second,
            () => Self::Minute,
        }
    }

    fn width(self) -> usize {
        self.show(0).len()
    }

    fn show(self, second: u64) -> String {
        let text = format!("{:.0}", (Wall::EPOCH + Span::from_secs(second)).timestamp());
        let range = match self {
            Self::Second => 11..19,
            Self::Minute => 11..16,
            Self::DayAndMinute => 5..16,
            Self::Day => 0..10,
        };
        text.get(range).unwrap_or_default().replace('T', " ")
    }
}

/// The day, if it is one, and the times at the axis do not say it.
fn date(steps: &Steps) -> Option<String> {
    let (start, length) = (in_seconds(steps.start), steps.length.as_nanos() / 1_000_000_000);
    let form = AxisFormat::of(start, start + length * steps.counts.len() as u64, length);
    matches!(form, AxisFormat::Second | AxisFormat::Minute).then(|| AxisFormat::Day.show(start))
}

fn in_seconds(at: Wall) -> u64 {
    at.as_nanos() / 1_000_000_000
}

fn in_words(length: Span) -> String {
    let seconds = length.as_nanos() / 1_000_000_000;
    let units = [(86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")];
    let (unit, name) = units.into_iter().find(|(unit, _)| seconds.is_multiple_of(*unit)).unwrap_or((1, "second"));
    match seconds / unit {
        1 => name.to_owned(),
        number => format!("{number} {name}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letter::Timeline;

    fn picture(utf8: bool, width: usize, timeline: &Timeline) -> String {
        let style = Style { colour: false, utf8, width };
        let steps = timeline.steps((None, None), room(style)).unwrap();
        let mut out = Vec::new();
        write_picture(&mut out, style, &steps).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// 2026-01-02T03:04:05Z and so many seconds.
    fn at(second: u64) -> Wall {
        Wall::EPOCH + Span::from_secs(1_767_323_045 + second)
    }

    /// A flood that grows for two minutes, and a few timeouts after it.
    fn flood() -> Timeline {
        let mut timeline = Timeline::default();
        for second in 0..120 {
            timeline.add(at(second), "rate-limited", second / 10);
        }
        timeline.add(at(140), "timeout", 3);
        timeline
    }

    #[test]
    fn a_flood_is_seen_with_its_beginning_its_height_and_its_reasons() {
        let expected = "
refused per 5 seconds  (2026-01-02, UTC)
                      55│                    ▄▄██
                        │                ▃▃██████
                        │            ▃▃▇▇████████
                        │        ▂▂▆▆████████████
                        │    ▁▁▆▆████████████████
                        │  ▅▅████████████████████    ▃
                       0└───────────┴───────────┴─────
                                    03:05:00    03:06:00
rate-limited          55   ▁▁▂▂▃▃▃▃▄▄▅▅▆▆▆▆▇▇████
timeout                3                             █
";
        assert_eq!(picture(true, 80, &flood()), expected);
    }

    #[test]
    fn without_utf8_it_is_ascii() {
        let text = picture(false, 60, &flood());
        assert!(text.is_ascii());
        let expected = "
refused per 5 seconds  (2026-01-02, UTC)
                      55|                    --##
                        |                ::######
                        |            ::**########
                        |        ..++############
                        |    ..++################
                        |  ==####################    :
                       0+-----------+-----------+-----
                                    03:05:00    03:06:00
rate-limited          55   ....::::--==++++**####
timeout                3                             #
";
        assert_eq!(text, expected);
    }

    #[test]
    fn it_fits_the_width_of_the_terminal_for_any_stretch_of_time() {
        for width in [60, 80, 81, 137, 220] {
            for (seconds, offset) in [0, 1, 50, 68, 3_600, 86_400, 90_000, 40 * 86_400, 4_000 * 86_400]
                .into_iter()
                .flat_map(|seconds| (0..30).map(move |offset| (seconds, offset)))
            {
                let mut timeline = Timeline::default();
                timeline.add(at(offset), "rate-limited", u64::MAX);
                timeline.add(at(offset + seconds), "upstream-error", 1);
                let text = picture(true, width, &timeline);
                for line in text.lines() {
                    assert!(line.chars().count() <= width, "{width} {seconds} {offset}: {line}");
                }
                assert!(text.contains(&u64::MAX.to_string()), "{text}");
            }
        }
    }

    #[test]
    fn times_at_the_axis_are_round_and_say_what_the_title_does_not() {
        let times = |seconds: u64| {
            let mut timeline = Timeline::default();
            timeline.add(at(0), "breaker", 1);
            timeline.add(at(seconds), "breaker", 1);
            let text = picture(true, 80, &timeline);
            let lines: Vec<&str> = text.lines().collect();
            (lines[1].to_owned(), lines.last().unwrap().trim().split("  ").next().unwrap().to_owned())
        };
        let is = |title: &str, time: &str| (title.to_owned(), time.to_owned());
        assert_eq!(times(0), is("refused per second  (2026-01-02, UTC)", "03:04:05"));
        assert_eq!(times(600), is("refused per 15 seconds  (2026-01-02, UTC)", "03:05:00"));
        assert_eq!(times(7_200), is("refused per 5 minutes  (2026-01-02, UTC)", "03:00"));
        assert_eq!(times(90_000), is("refused per 30 minutes  (UTC)", "01-02 12:00"));
        assert_eq!(times(40 * 86_400), is("refused per day  (UTC)", "2026-01-15"));
    }
}
