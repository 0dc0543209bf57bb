//! `dead-letters purge`: says what it will remove, asks, and removes it.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use super::super::safe::Safe;
use super::{DeadLettersError, PurgeArgs, Screen};
use crate::dead_letter::{Purge, PurgePlan, Purged};
use crate::time::Wall;

impl Screen<'_> {
    pub(super) fn purge(&mut self, args: &PurgeArgs, directory: &Path, now: Wall) -> Result<(), DeadLettersError> {
        let mut purge = Purge::open(directory, args.filter.resolve(now, self.redactor))?;
        let plan = purge.plan()?;
        self.out.write_all(in_words(&plan).as_bytes())?;
        if plan.goes.unlinked + plan.goes.rewritten == 0 {
            return Ok(());
        }
        if !args.yes && !self.ask()? {
            return Ok(writeln!(self.notes, "nothing was removed")?);
        }
        self.out.flush()?;
        let purged = purge.run()?;
        Ok(writeln!(self.out, "removed {}", lines_in_words(&purged))?)
    }

    fn ask(&mut self) -> Result<bool, DeadLettersError> {
        self.out.flush()?;
        let Some(answers) = &mut self.answers else { return Err(DeadLettersError::NobodyToAsk) };
        write!(self.notes, "Remove them? [y/N] ")?;
        self.notes.flush()?;
        let mut answer = String::new();
        match answers.read_line(&mut answer) {
            // No text is no yes.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(false),
            read => read?,
        };
        Ok(["y", "yes"].contains(&&*answer.trim().to_ascii_lowercase()))
    }
}

fn in_words(plan: &PurgePlan) -> String {
    let PurgePlan { goes, segments, stays } = plan;
    let mut text = String::new();
    // Writing into a String cannot fail.
    let _ = if goes.unlinked + goes.rewritten == 0 {
        writeln!(text, "nothing to remove in {}", some(*segments, "segment"))
    } else {
        let from = some(goes.unlinked + goes.rewritten, "segment");
        let (lines, size, fate) = (lines_in_words(goes), size(goes.bytes), fate(goes.unlinked, goes.rewritten));
        writeln!(text, "to remove: {lines}\nfrom {from}, {size}: {fate}")
    };
    for (name, matching) in stays.iter().filter(|(_, matching)| matching.lines() > 0) {
        let (name, lines) = (name.to_string(), lines_in_words(matching));
        let _ = writeln!(text, "{} is being written by a gateway and stays; matching in it: {lines}", Safe(&name));
    }
    text
}

fn fate(unlinked: u64, rewritten: u64) -> String {
    let whole = format!("{unlinked} {} whole", if unlinked == 1 { "goes" } else { "go" });
    let part = format!("{rewritten} {} written anew", if rewritten == 1 { "is" } else { "are" });
    match (unlinked, rewritten) {
        (_, 0) => whole,
        (0, _) => part,
        _ => format!("{whole}, {part}"),
    }
}

fn lines_in_words(purged: &Purged) -> String {
    let Purged { records, aggregates, aggregated, gaps, damaged, .. } = *purged;
    let mut parts = Vec::new();
    if records > 0 || purged.lines() == 0 {
        parts.push(some(records, "record"));
    }
    if aggregates > 0 {
        parts.push(format!("{} of {}", some(aggregates, "aggregate"), some(aggregated, "request")));
    }
    if gaps > 0 {
        parts.push(some(gaps, "note") + " of lost records");
    }
    if damaged > 0 {
        parts.push(some(damaged, "damaged line"));
    }
    let last = parts.pop().unwrap_or_default();
    if parts.is_empty() { last } else { format!("{} and {last}", parts.join(", ")) }
}

fn some(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, shift)| bytes >> shift > 0);
    unit.map_or_else(
        || some(bytes, "byte"),
        |(unit, shift)| format!("{:.1} {unit}", bytes as f64 / f64::from(1 << shift)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letter::SegmentName;

    #[test]
    fn a_plan_says_what_goes_and_what_stays() {
        let goes = Purged { records: 1, aggregates: 2, aggregated: 40, gaps: 1, bytes: 5 << 20, ..Purged::default() };
        let name = SegmentName { node: "gw".into(), sequence: 3 };
        let one = Purged { records: 1, ..Purged::default() };
        let plan =
            |unlinked, rewritten, stays| PurgePlan { goes: Purged { unlinked, rewritten, ..goes }, segments: 4, stays };
        assert_eq!(
            in_words(&plan(2, 1, vec![(name.clone(), one), (name.clone(), Purged::default())])),
            "to remove: 1 record, 2 aggregates of 40 requests and 1 note of lost records\n\
             from 3 segments, 5.0 MiB: 2 go whole, 1 is written anew\n\
             gw-0000000003.jsonl is being written by a gateway and stays; matching in it: 1 record\n"
        );
        assert_eq!(
            in_words(&plan(0, 0, vec![(name, one)])),
            "nothing to remove in 4 segments\n\
             gw-0000000003.jsonl is being written by a gateway and stays; matching in it: 1 record\n"
        );
        assert_eq!([fate(1, 0), fate(0, 2)], ["1 goes whole", "2 are written anew"]);
        let damaged = Purged { damaged: 2, bytes: 1, ..Purged::default() };
        assert_eq!(
            (lines_in_words(&damaged), size(1), size(1 << 10)),
            ("2 damaged lines".into(), "1 byte".into(), "1.0 KiB".into())
        );
        assert_eq!((lines_in_words(&Purged::default()), size(3 << 30)), ("0 records".into(), "3.0 GiB".into()));
    }
}
