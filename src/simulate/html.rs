//! The outcome as a page: one file, with its plots in it, that asks nobody for anything.

use std::fmt::{self, Display, Write as _};

use super::outcome::{KeyOutcome, LimitOutcome, Simulated, SimulationOutcome};
use super::series::SeriesStep;
use crate::redact::is_terminal_control;

/// Width and height of a plot, in units of its own.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 140.0;

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1b2733;--soft:#5b6b7b;--paper:#fff;--card:#f4f6f8;--line:#d5dce3;--in:#2f7ebc;--out:#d1495b;--other:#1b2733}
@media (prefers-color-scheme:dark){:root{--ink:#e4eaf0;--soft:#9fb0c0;--paper:#12181f;--card:#1b242e;--line:#33414f;--in:#4a9bd6;--out:#e8697a;--other:#e4eaf0}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1rem;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.4rem;margin:.5rem 0}h2{font-size:1.1rem;margin:2rem 0 .5rem}
p{margin:.4rem 0}.soft{color:var(--soft);font-size:.9rem}
.numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.75rem;margin:1rem 0}
.number{background:var(--card);border-radius:.5rem;padding:.6rem .8rem}
.number b{display:block;font-size:1.4rem;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere;white-space:normal;min-width:10rem}
th{font-weight:600;color:var(--soft);font-size:.85rem}
.other td{color:var(--soft)}
svg{display:block;width:100%;height:9rem;background:var(--card);border-radius:.5rem}
.in{fill:var(--in)}.out{fill:var(--out)}.line{fill:none;stroke:var(--other);stroke-width:1.5;stroke-dasharray:5 3;vector-effect:non-scaling-stroke}
.axis{display:flex;justify-content:space-between;color:var(--soft);font-size:.8rem}
.key{display:inline-block;width:.8em;height:.8em;border-radius:.15em;margin:0 .3em 0 .8em}
.key.in{background:var(--in)}.key.out{background:var(--out)}
.dash{display:inline-block;width:1.4em;border-top:2px dashed var(--other);vertical-align:middle;margin:0 .3em 0 .8em}@media (max-width:34rem){table{font-size:.8rem}th,td{padding:.3rem .3rem}th:first-child,td:first-child{min-width:6rem}}
";

/// The page.
pub fn html(simulated: &Simulated) -> String {
    let mut out = String::new();
    let Simulated { candidate, baseline, notes, skipped_lines, .. } = simulated;
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>Simulation of {file}</title><style>{STYLE}</style></head><body>\
         <h1>Simulation of {file}</h1>",
        file = HtmlText(&candidate.file)
    );
    let from = simulated.from.as_ref().map(|from| format!(" from {from} on")).unwrap_or_default();
    let beside = baseline.as_ref().map(|own| format!(" Beside it: {}.", HtmlText(&own.file))).unwrap_or_default();
    let seconds = Seconds(simulated.seconds);
    let _ = write!(out, "<p class=\"soft\">{} requests in {seconds}{from}.{beside}</p>", Grouped(candidate.requests));
    write_numbers(&mut out, candidate, baseline.as_ref());
    write_plot(&mut out, simulated, &candidate.series, baseline.as_ref().map(|own| own.series.as_slice()));
    write_limits(&mut out, candidate, baseline.as_ref());
    for limit in candidate.limits.iter().filter(|own| own.admitted + own.refused > 0) {
        let other = baseline.as_ref().and_then(|own| own.limits.iter().find(|other| other.name == limit.name));
        let _ = write!(out, "<h2>{}</h2><p class=\"soft\">{}</p>", HtmlText(&limit.name), limit.algorithm);
        write_plot(&mut out, simulated, &limit.series, other.map(|own| own.series.as_slice()));
        write_keys(&mut out, limit, baseline.is_some());
    }
    if !notes.is_empty() || !skipped_lines.is_empty() {
        out.push_str("<h2>How exact it is</h2>");
    }
    for note in notes {
        let _ = write!(out, "<p>{}</p>", HtmlText(note));
    }
    for skipped in skipped_lines {
        let first = skipped.first.join(", ");
        let _ = write!(
            out,
            "<p>{} lines were skipped ({}): {}</p>",
            Grouped(skipped.count),
            skipped.reason,
            HtmlText(&first)
        );
    }
    out.push_str("</body></html>\n");
    out
}

fn write_numbers(out: &mut String, candidate: &SimulationOutcome, baseline: Option<&SimulationOutcome>) {
    let numbers = |own: &SimulationOutcome| own.fates().into_iter().chain([("lines skipped", own.skipped)]);
    let mut others = baseline.into_iter().flat_map(numbers).map(|(_, number)| number);
    out.push_str("<div class=\"numbers\">");
    for (at, (name, own)) in numbers(candidate).enumerate() {
        let other = others.next();
        // The first two are always shown.
        if at >= 2 && own == 0 && other.unwrap_or(0) == 0 {
            continue;
        }
        let beside = other.map(|other| format!(", {} in the baseline", Grouped(other))).unwrap_or_default();
        let share = PercentOf(own, candidate.requests);
        let _ = write!(out, "<div class=\"number\"><b>{}</b>{name} {share}", Grouped(own));
        let _ = write!(out, "<span class=\"soft\">{beside}</span></div>");
    }
    out.push_str("</div>");
}

fn write_limits(out: &mut String, candidate: &SimulationOutcome, baseline: Option<&SimulationOutcome>) {
    out.push_str(
        "<h2>Limits</h2><div class=\"scroll\"><table><tr><th>limit</th><th>admitted</th><th>refused</th><th>share</th>\
         <th>waited</th><th>p99 wait</th></tr>",
    );
    for limit in &candidate.limits {
        write_limit(out, "", &limit.name, limit);
        let other = baseline.and_then(|own| own.limits.iter().find(|other| other.name == limit.name));
        if let Some(other) = other {
            write_limit(out, " class=\"other\"", "in the baseline", other);
        }
    }
    for gone in baseline.into_iter().flat_map(|own| &own.limits) {
        if !candidate.limits.iter().any(|own| own.name == gone.name) {
            write_limit(out, " class=\"other\"", &format!("{} (in the baseline only)", gone.name), gone);
        }
    }
    out.push_str("</table></div>");
}

fn write_limit(out: &mut String, class: &str, name: &str, limit: &LimitOutcome) {
    let LimitOutcome { mode, admitted, refused, waited, p99_wait_ms, .. } = limit;
    let mode = if *mode == "enforce" { String::new() } else { format!(" ({mode})") };
    let wait = wait(*waited, *p99_wait_ms);
    let _ = write!(
        out,
        "<tr{class}><td>{}{mode}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{wait}</td></tr>",
        HtmlText(name),
        Grouped(*admitted),
        Grouped(*refused),
        PercentOf(*refused, admitted + refused),
        Grouped(*waited)
    );
}

fn wait(waited: u64, p99_wait_ms: f64) -> String {
    if waited == 0 { "–".to_owned() } else { Seconds(p99_wait_ms / 1e3).to_string() }
}

fn write_keys(out: &mut String, limit: &LimitOutcome, has_baseline: bool) {
    if limit.keys.is_empty() {
        return;
    }
    let other = if has_baseline { "<th>baseline</th>" } else { "" };
    let _ = write!(
        out,
        "<div class=\"scroll\"><table><tr><th>hurt most</th><th>refused</th><th>admitted</th><th>waited</th><th>p99 wait</th>{other}</tr>"
    );
    for KeyOutcome { key, refused, excess, admitted, waited, p99_wait_ms, baseline_refused, .. } in &limit.keys {
        let parts: Vec<String> = key.iter().map(|(source, value)| format!("{source}={value}")).collect();
        let about = if *excess > 0 { "≤ " } else { "" };
        let admitted = admitted.map(|own| Grouped(own).to_string()).unwrap_or_default();
        let wait = wait(*waited, *p99_wait_ms);
        let other = baseline_refused.map(|own| format!("<td>{}</td>", Grouped(own))).unwrap_or_default();
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{about}{}</td><td>{admitted}</td><td>{}</td><td>{wait}</td>{other}</tr>",
            HtmlText(&parts.join(" ")),
            Grouped(*refused),
            Grouped(*waited)
        );
    }
    out.push_str("</table></div>");
}

/// Admitted and refused over time, one on the other; a dashed line for what the other file admits.
fn write_plot(out: &mut String, simulated: &Simulated, steps: &[SeriesStep], other: Option<&[SeriesStep]>) {
    let most = steps.iter().map(|[admitted, refused]| admitted + refused).max().unwrap_or(0);
    if most == 0 {
        return;
    }
    let x = |at: usize| at as f64 * WIDTH / steps.len() as f64;
    let y = |count: u64| HEIGHT - count as f64 * (HEIGHT - 6.0) / most as f64;
    // The outline of steps, from left to right.
    let outline = |steps: &[SeriesStep], count: &dyn Fn(&SeriesStep) -> u64| {
        let mut path = String::new();
        for (at, step) in steps.iter().enumerate() {
            let verb = if at == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{verb}{:.1} {:.1}H{:.1}", x(at), y(count(step)), x(at + 1));
        }
        path
    };
    let area = |count: &dyn Fn(&SeriesStep) -> u64| format!("{}V{HEIGHT}H0Z", outline(steps, count));
    let per_second = most as f64 / simulated.step_seconds;
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"Admitted and refused requests over time\">\
         <path class=\"out\" d=\"{}\"/><path class=\"in\" d=\"{}\"/>",
        area(&|step| step[0] + step[1]),
        area(&|step| step[0])
    );
    if let Some(other) = other {
        let _ = write!(out, "<path class=\"line\" d=\"{}\"/>", outline(other, &|step| step[0]));
    }
    let dash = if other.is_some() { "<span class=\"dash\"></span>admitted in the baseline" } else { "" };
    let end = simulated.step_seconds * steps.len() as f64;
    let _ = write!(
        out,
        "</svg><div class=\"axis\"><span>0</span><span>{}</span></div>\
         <p class=\"soft\">At most {per_second:.1} requests a second in a step of {}.\
         <span class=\"key in\"></span>admitted<span class=\"key out\"></span>refused{dash}</p>",
        Seconds(end),
        Seconds(simulated.step_seconds)
    );
}

/// A text that stands between tags, or in an attribute.
struct HtmlText<'t>(&'t str);

impl Display for HtmlText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                other if is_terminal_control(other) => write!(f, "\\u{{{:x}}}", u32::from(other))?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// A number with commas between thousands.
pub struct Grouped(pub u64);

impl Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                f.write_char(',')?;
            }
            f.write_char(digit)?;
        }
        Ok(())
    }
}

/// A part of a whole in percent; nothing of no whole.
struct PercentOf(u64, u64);

impl Display for PercentOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            0 => Ok(()),
            of => write!(f, "{:.1}%", self.0 as f64 * 100.0 / of as f64),
        }
    }
}

/// A length of time.
struct Seconds(f64);

impl Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ..1.0 => write!(f, "{:.0} ms", self.0 * 1e3),
            ..120.0 => write!(f, "{:.1} s", self.0),
            ..7_200.0 => write!(f, "{:.1} min", self.0 / 60.0),
            ..172_800.0 => write!(f, "{:.1} h", self.0 / 3_600.0),
            _ => write!(f, "{:.1} d", self.0 / 86_400.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_strangers_are_texts() {
        assert_eq!(HtmlText("<a href='x'>&\"\u{202e}").to_string(), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;\\u{202e}");
        assert_eq!([0, 999, 1_000, 1_234_567].map(|own| Grouped(own).to_string()), ["0", "999", "1,000", "1,234,567"]);
        let seconds = [0.0015, 59.95, 3_600.0, 36_000.0, 1e6].map(|own| Seconds(own).to_string());
        assert_eq!(seconds, ["2 ms", "60.0 s", "60.0 min", "10.0 h", "11.6 d"]);
        assert_eq!((PercentOf(1, 3).to_string(), PercentOf(0, 0).to_string()), ("33.3%".to_owned(), String::new()));
    }
}
