//! The answers of one limit to the burst that every limit of the page is offered, as SVG and as numbers.

use std::fmt::Write;

use sluicegate::config::LimitRule;
use sluicegate::time::{Span, Tick};

use super::offered::{Fate, Request, offer};
use super::page::policy;

/// How long a request is in flight: of interest where that is what is limited.
const LASTS: Span = Span::from_millis(400);

/// A column of the picture is so long, and so many pixels wide.
const COLUMN_MILLIS: u64 = 100;
const COLUMN: u64 = 8;
const COLUMNS: u64 = 80;
/// From one mark of a stack to the next.
const MARK: u64 = 6;
const LEFT: u64 = 60;
/// Where the stacks of what comes and of what passes stand.
const COMES: u64 = 112;
const PASSES: u64 = 170;
const WIDTH: u64 = LEFT + COLUMNS * COLUMN + 20;
const HEIGHT: u64 = 208;

/// A picture, and what is to be said of it.
pub struct Picture {
    /// The limit's name, and the file's.
    pub name: String,
    /// The file.
    pub svg: String,
    /// A line of the page's table.
    pub row: String,
}

/// A trickle of four a second for 2.5 s, 15 within 0.3 s, one every 20 ms, around the edge at 3 s, and 15 at 6.2 s.
pub fn burst() -> Vec<Request> {
    let trickle = (0..10).map(|nth| 125 + nth * 250);
    let spread = (0..15).map(|nth| 2_860 + nth * 20);
    let at_once = (0..15).map(|_| 6_200);
    let request = |millis| Request { at: Tick::ZERO + Span::from_millis(millis), cost: 1 };
    trickle.chain(spread).chain(at_once).map(request).collect()
}

/// Offers the burst to a limit and draws what becomes of it.
pub fn draw(rule: &LimitRule) -> Picture {
    let name = rule.spec.name.to_string();
    let requests = burst();
    let fates = offer(&policy(std::slice::from_ref(rule)), &requests, LASTS);
    let (mut comes, mut passes) = (Lane::new(COMES), Lane::new(PASSES));
    let (mut at_once, mut later, mut refused) = (0, 0, 0);
    for (request, fate) in requests.iter().zip(&fates) {
        let (mark, count) = match fate {
            Fate::Passed(at) if *at == request.at => (Mark::AtOnce, &mut at_once),
            Fate::Passed(_) => (Mark::Later, &mut later),
            Fate::Refused(..) => (Mark::Refused, &mut refused),
        };
        *count += 1;
        comes.put(request.at, mark);
        if let Fate::Passed(at) = fate {
            passes.put(*at, mark);
        }
    }
    let counts = format!("{at_once} at once, {later} later, {refused} refused");
    let bytes = rule.spec.algorithm.bytes_per_key();
    let row = format!("| `{name}` | {bytes} | {at_once} | {later} | {refused} |");
    let svg = svg(&name, &counts, &comes.marks, &passes.marks);
    Picture { name, svg, row }
}

#[derive(Clone, Copy)]
enum Mark {
    AtOnce,
    Later,
    Refused,
}

/// Stacks of marks, one for each column.
struct Lane {
    foot: u64,
    heights: [u64; COLUMNS as usize],
    marks: String,
}

impl Lane {
    fn new(foot: u64) -> Self {
        Self { foot, heights: [0; COLUMNS as usize], marks: String::new() }
    }

    fn put(&mut self, at: Tick, mark: Mark) {
        let column = at.as_nanos() / Span::from_millis(COLUMN_MILLIS).as_nanos();
        let height = &mut self.heights[usize::try_from(column).expect("a column")];
        let (x, y) = (LEFT + column * COLUMN + COLUMN / 2, self.foot - 4 - *height * MARK);
        *height += 1;
        self.marks.push_str(&mark.at(x, y));
    }
}

impl Mark {
    /// Told apart by their shapes as well as by their colours.
    fn at(self, x: u64, y: u64) -> String {
        match self {
            Self::AtOnce => format!("<circle class=\"a\" cx=\"{x}\" cy=\"{y}\" r=\"2.6\"/>\n"),
            Self::Later => format!("<circle class=\"w\" cx=\"{x}\" cy=\"{y}\" r=\"2\"/>\n"),
            Self::Refused => {
                let (left, top, right, bottom) = (x - 2, y - 2, x + 2, y + 2);
                format!("<path class=\"r\" d=\"M{left} {top}L{right} {bottom}M{left} {bottom}L{right} {top}\"/>\n")
            }
        }
    }
}

/// An image in a page takes no colour from it, so the file itself asks whether the page is dark.
const STYLE: &str = "svg{color:#24292f}\n@media(prefers-color-scheme:dark){svg{color:#d0d7de}}\n\
                     text{font:11px sans-serif;fill:currentColor}\n\
                     .l{stroke:currentColor;stroke-width:1;opacity:.35}\n.a{fill:#2da44e}\n\
                     .w{fill:none;stroke:#bf8700;stroke-width:1.4}\n.r{stroke:#e5534b;stroke-width:1.4}\n";

fn svg(name: &str, counts: &str, comes: &str, passes: &str) -> String {
    let right = LEFT + COLUMNS * COLUMN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" role=\"img\">\n<title>{name}: {counts}</title>\n<style>\n{STYLE}</style>\n"
    );
    let mut text = |x: u64, y: u64, anchor: &str, words: &str| {
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{words}</text>");
    };
    text(LEFT, 14, "start", name);
    text(right, 14, "end", counts);
    text(LEFT - 8, COMES, "end", "comes");
    text(LEFT - 8, PASSES, "end", "passes");
    let second = 1_000 / COLUMN_MILLIS * COLUMN;
    for nth in 0..=COLUMNS * COLUMN / second {
        text(LEFT + nth * second, PASSES + 15, "middle", &format!("{nth} s"));
    }
    let legend = PASSES + 30;
    for (nth, words) in [(0, "passes at once"), (1, "waits, and passes later"), (2, "is refused")] {
        text(LEFT + 12 + nth * 150, legend, "start", words);
    }
    for (nth, mark) in [(0, Mark::AtOnce), (1, Mark::Later), (2, Mark::Refused)] {
        svg.push_str(&mark.at(LEFT + 4 + nth * 150, legend - 4));
    }
    for nth in 0..=COLUMNS * COLUMN / second {
        let x = LEFT + nth * second;
        let _ = writeln!(svg, "<path class=\"l\" d=\"M{x} 22V{PASSES}\" stroke-dasharray=\"1 3\"/>");
    }
    for foot in [COMES, PASSES] {
        let _ = writeln!(svg, "<path class=\"l\" d=\"M{LEFT} {foot}H{right}\"/>");
    }
    svg.push_str(comes);
    svg.push_str(passes);
    svg.push_str("</svg>\n");
    svg
}
