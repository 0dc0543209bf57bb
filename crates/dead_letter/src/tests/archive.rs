//! Readings in parts beside a writer.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use tempfile::tempdir;

use super::super::record::tests::draft;
use super::super::{Archive, ArchivePart, Bounds, Draft, Entry, Filter, LogCursor, Reason};
use super::{Bench, SECOND, redactor, settings, start, wall};
use sluicegate_config::DeadLetter;
use sluicegate_time::{Clock, ManualClock, Span};

const ALL: Bounds =
    Bounds { entries: usize::MAX, line_bytes: usize::MAX, read_bytes: u64::MAX, time: Span::from_secs(1) };

/// Paths of the requests that a part shows, and the part. Its cursor has gone through its text.
fn part(directory: &Path, from: Option<&LogCursor>, filter: &Filter, bounds: &Bounds) -> (Vec<String>, ArchivePart) {
    let clock = Clock::Manual(ManualClock::new());
    let archive = Archive { directory: directory.to_owned(), redactor: redactor(), clock };
    let mut shown = Vec::new();
    let mut part = archive
        .read(from, filter, bounds, &mut |found, _| {
            shown.push(match &found.entry {
                Entry::Record(record) => record.path.clone(),
                other => other.id().to_owned(),
            });
        })
        .unwrap();
    part.cursor = part.cursor.to_string().parse().unwrap();
    (shown, part)
}

fn rest(directory: &Path, from: Option<&LogCursor>) -> (Vec<String>, ArchivePart) {
    part(directory, from, &Filter::default(), &ALL)
}

/// A line for each second of `seconds`, whose path it is.
fn lines(seconds: std::ops::Range<u64>) -> Vec<u8> {
    let mut lines = Vec::new();
    for second in seconds {
        let at = wall(start() + Span::from_secs(second));
        Draft { at, path: second.to_string().into(), ..draft() }.write("gw", &redactor(), &mut lines);
    }
    lines
}

fn append(directory: &Path, name: &str, bytes: &[u8]) {
    let mut file = OpenOptions::new().create(true).append(true).open(directory.join(name)).unwrap();
    file.write_all(bytes).unwrap();
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn parts_go_on_where_the_one_before_ended_while_nodes_write_and_rotate() {
    let directory = tempdir().unwrap();
    let directory = directory.path();
    append(directory, "b-0000000001.jsonl", &lines(0..3));
    append(directory, "a-0000000009.jsonl", &lines(2..4));
    append(directory, "b-0000000002.jsonl", &lines(3..5));
    let two = Bounds { entries: 2, ..ALL };
    let next = |cursor: Option<&LogCursor>| part(directory, cursor, &Filter::default(), &two);
    let (shown, first) = next(None);
    assert_eq!((shown, first.is_end), (words("0 1"), false));
    let (shown, second) = next(Some(&first.cursor));
    assert_eq!((shown, second.is_end), (words("2 2"), false));
    append(directory, "a-0000000009.jsonl", &lines(5..6));
    append(directory, "a-0000000010.jsonl", &lines(6..7));
    append(directory, "c-0000000001.jsonl", &lines(1..2));
    let (shown, third) = next(Some(&second.cursor));
    assert_eq!((shown, third.is_end), (words("1 3"), false), "the new node's begins before");
    let (shown, fourth) = next(Some(&third.cursor));
    assert_eq!((shown, fourth.is_end), (words("5 3"), false));
    let (shown, fifth) = next(Some(&fourth.cursor));
    assert_eq!((shown, fifth.is_end, fifth.has_gap, fifth.damaged), (words("4 6"), true, false, 0));
    let (shown, sixth) = next(Some(&fifth.cursor));
    assert_eq!(
        (shown, &sixth),
        (words(""), &ArchivePart { cursor: fifth.cursor.clone(), is_end: true, ..ArchivePart::default() })
    );
    append(directory, "b-0000000003.jsonl", &lines(7..8));
    assert_eq!(next(Some(&sixth.cursor)).0, words("7"));
    // An old cursor still says where it was.
    assert_eq!(rest(directory, Some(&first.cursor)).0, words("2 1 2 3 5 3 4 6 7"));
}

#[test]
fn every_record_comes_once_across_rotation_and_retention() {
    let directory = tempdir().unwrap();
    let mut bench = Bench::new(DeadLetter { rotate_size: 5_000, max_total_size: 60_000, ..settings(directory.path()) });
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    let clock = Clock::Manual(ManualClock::new());
    let archive = Archive { directory: directory.path().to_owned(), redactor: redactor(), clock };
    let mut cursor = archive.end().unwrap();
    let mut gaps = 0;
    for round in 0..120 {
        bench.record(2);
        if round < 4 {
            bench.record_of(Reason::Timeout);
        }
        bench.pass(SECOND);
        let part = archive
            .read(Some(&cursor), &Filter::default(), &ALL, &mut |found, _| {
                *seen.entry(found.entry.id().to_owned()).or_default() += 1;
            })
            .unwrap();
        gaps += u64::from(part.has_gap);
        cursor = part.cursor.to_string().parse().unwrap();
    }
    assert_eq!((seen.len(), gaps), (244, 0));
    assert!(seen.values().all(|&times| times == 1));
    let kept = fs::read_dir(directory.path()).unwrap();
    assert!(
        kept.into_iter().any(|entry| entry.unwrap().file_name().to_string_lossy().starts_with("gw+timeout-")),
        "lines were moved, and not shown again"
    );
    // Whoever begins now sees these too, and the next part has none of them again.
    let (shown, first) = part(directory.path(), None, &Filter::default(), &Bounds { entries: 1, ..ALL });
    let (others, last) = rest(directory.path(), Some(&first.cursor));
    let mut all = 0;
    for entry in super::entries(directory.path()).0 {
        all += usize::from(matches!(entry, Entry::Record(_)));
    }
    assert_eq!((shown.len() + others.len(), last.is_end, last.has_gap), (all, true, false));
}

#[test]
fn where_a_segment_is_gone_the_oldest_that_is_left_comes_next() {
    let directory = tempdir().unwrap();
    let directory = directory.path();
    for (sequence, seconds) in [(1, 0..2), (2, 2..4), (3, 4..6)] {
        append(directory, &format!("gw-000000000{sequence}.jsonl"), &lines(seconds));
    }
    let one = |cursor: Option<&LogCursor>| part(directory, cursor, &Filter::default(), &Bounds { entries: 1, ..ALL });
    let (_, first) = one(None);
    fs::remove_file(directory.join("gw-0000000001.jsonl")).unwrap();
    let (shown, second) = one(Some(&first.cursor));
    assert_eq!((shown, second.has_gap, second.is_end), (words("2"), true, false));
    assert!(!one(Some(&second.cursor)).1.has_gap, "it is told once");
    // The node began anew, with lower numbers.
    let (_, end) = rest(directory, None);
    fs::remove_file(directory.join("gw-0000000002.jsonl")).unwrap();
    fs::rename(directory.join("gw-0000000003.jsonl"), directory.join("gw-0000000001.jsonl")).unwrap();
    let (shown, again) = rest(directory, Some(&end.cursor));
    assert_eq!((shown, again.has_gap), (words("4 5"), true));
    // Of the same name, with other lines.
    fs::write(directory.join("gw-0000000001.jsonl"), lines(6..9)).unwrap();
    let (shown, anew) = rest(directory, Some(&again.cursor));
    assert_eq!((shown, anew.has_gap), (words("6 7 8"), true));
    // A shorter one.
    fs::write(directory.join("gw-0000000001.jsonl"), lines(9..10)).unwrap();
    let (shown, shorter) = rest(directory, Some(&anew.cursor));
    assert_eq!((shown, shorter.has_gap), (words("9"), true));
    fs::remove_file(directory.join("gw-0000000001.jsonl")).unwrap();
    let (shown, gone) = rest(directory, Some(&shorter.cursor));
    assert_eq!((shown, gone), (words(""), ArchivePart { is_end: true, has_gap: true, ..ArchivePart::default() }));
}

#[test]
fn lines_that_were_kept_from_removal_are_read_up_to_where_they_ended_at_first() {
    let directory = tempdir().unwrap();
    let directory = directory.path();
    append(directory, "gw+timeout-0000000001.jsonl", &lines(0..2));
    append(directory, "gw-0000000001.jsonl", &lines(5..7));
    let one = Bounds { entries: 1, ..ALL };
    let (shown, first) = part(directory, None, &Filter::default(), &one);
    assert_eq!(shown, words("0"));
    append(directory, "gw+timeout-0000000001.jsonl", &lines(5..6));
    append(directory, "gw+timeout-0000000002.jsonl", &lines(6..7));
    append(directory, "gw+overload-0000000001.jsonl", &lines(6..7));
    let (shown, last) = rest(directory, Some(&first.cursor));
    assert_eq!((shown, last.is_end, last.has_gap), (words("1 5 6"), true, false));
    assert_eq!(rest(directory, Some(&last.cursor)), (words(""), ArchivePart { is_end: true, ..last }));
    // Those that were to be read go in the meantime.
    fs::remove_file(directory.join("gw+timeout-0000000001.jsonl")).unwrap();
    let (shown, gone) = rest(directory, Some(&first.cursor));
    assert_eq!((shown, gone.is_end, gone.has_gap), (words("5 6"), true, true));
    assert!(!rest(directory, Some(&gone.cursor)).1.has_gap);
}

#[test]
fn a_part_is_bounded_and_goes_on_all_the_same() {
    let directory = tempdir().unwrap();
    let directory = directory.path();
    append(directory, "gw-0000000001.jsonl", &lines(0..3));
    append(directory, "gw-0000000002.jsonl", &lines(3..5));
    let line = lines(0..1).len();
    let rare = Filter { since: Some(wall(start() + Span::from_secs(4))), ..Filter::default() };
    for (bounds, filter, expected) in [
        (Bounds { entries: 2, ..ALL }, Filter::default(), &["0 1", "2 3", "4"][..]),
        (Bounds { line_bytes: 2 * line, ..ALL }, Filter::default(), &["0 1", "2 3", "4"]),
        (Bounds { line_bytes: 1, ..ALL }, Filter::default(), &["0", "1", "2", "3", "4"]),
        (Bounds { read_bytes: line as u64 + 1, ..ALL }, Filter::default(), &["0 1", "2 3", "4"]),
        (Bounds { read_bytes: line as u64 + 1, ..ALL }, rare.clone(), &["", "", "4"]),
        (Bounds { time: Span::ZERO, ..ALL }, rare, &["", "", "", "", "", "4", ""]),
    ] {
        let (mut from, mut all) = (None, Vec::new());
        loop {
            let (shown, part) = part(directory, from.as_ref(), &filter, &bounds);
            all.push(shown.join(" "));
            from = Some(part.cursor);
            if part.is_end {
                break;
            }
        }
        assert_eq!(all, expected, "{bounds:?}");
    }
}

#[test]
fn damage_is_counted_and_a_line_that_is_being_written_waits() {
    let directory = tempdir().unwrap();
    let directory = directory.path();
    let path = directory.join("gw-0000000001.jsonl");
    let whole = lines(0..3);
    let second = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    append(directory, "gw-0000000001.jsonl", &whole[..second]);
    append(directory, "gw-0000000001.jsonl", b"{}\n");
    let (shown, first) = rest(directory, None);
    assert_eq!((shown, first.damaged, first.is_end), (words("0"), 1, true));
    // As recovery does.
    File::options().write(true).open(&path).unwrap().set_len(second as u64).unwrap();
    append(directory, "gw-0000000001.jsonl", &whole[second..whole.len() - 5]);
    let (shown, second) = rest(directory, Some(&first.cursor));
    assert_eq!((shown, second.damaged, second.has_gap), (words("1"), 0, false));
    append(directory, "gw-0000000001.jsonl", &whole[whole.len() - 5..whole.len() - 1]);
    assert_eq!(rest(directory, Some(&second.cursor)).0, words(""));
    append(directory, "gw-0000000001.jsonl", b"\n");
    assert_eq!(rest(directory, Some(&second.cursor)).0, words("2"));
    // Nobody writes the rest of one that is not the last.
    append(directory, "gw-0000000001.jsonl", b"{\"v\":1");
    append(directory, "gw-0000000002.jsonl", &lines(3..4));
    let (shown, last) = rest(directory, Some(&second.cursor));
    assert_eq!((shown, last.damaged, last.is_end), (words("2 3"), 1, true));
    let (shown, all) = rest(directory, None);
    assert_eq!((shown, all.damaged, all.is_end), (words("0 1 2 3"), 1, true));
}

#[test]
fn segments_far_outside_of_what_is_asked_for_are_not_read() {
    let directory = tempdir().unwrap();
    let directory = directory.path();
    for (sequence, second) in [(1, 0), (2, 10_000), (3, 20_000)] {
        let name = format!("gw-000000000{sequence}.jsonl");
        append(directory, &name, &lines(second..second + 1));
        // It would be counted if it were read.
        append(directory, &name, b"{}\n");
        let written = UNIX_EPOCH + Duration::from_nanos((start() + Span::from_secs(second)).as_nanos());
        File::options().append(true).open(directory.join(&name)).unwrap().set_modified(written).unwrap();
    }
    let at = |second| Some(wall(start() + Span::from_secs(second)));
    for (since, until, expected, damaged) in [
        (None, None, "0 10000 20000", 3),
        (at(10_000), None, "10000 20000", 2),
        (None, at(10_001), "0 10000", 2),
        (at(9_000), at(15_000), "10000", 1),
        (at(30_000), None, "", 0),
    ] {
        let filter = Filter { since, until, ..Filter::default() };
        let (shown, part) = part(directory, None, &filter, &ALL);
        assert_eq!((shown, part.damaged, part.is_end), (words(expected), damaged, true));
        assert!(!rest(directory, Some(&part.cursor)).1.has_gap);
    }
}

#[test]
fn the_end_is_behind_the_last_whole_line_of_each_node() {
    let directory = tempdir().unwrap();
    let directory = directory.path();
    let two = lines(1..3);
    append(directory, "gw-0000000001.jsonl", &lines(0..1));
    append(directory, "gw-0000000002.jsonl", &two[..two.len() - 3]);
    append(directory, "gw+timeout-0000000001.jsonl", &lines(0..1));
    let clock = Clock::Manual(ManualClock::new());
    let end = Archive { directory: directory.to_owned(), redactor: redactor(), clock }.end().unwrap();
    assert_eq!(rest(directory, Some(&end)).0, words(""));
    append(directory, "gw-0000000002.jsonl", &two[two.len() - 3..]);
    append(directory, "other-0000000001.jsonl", &lines(7..8));
    assert_eq!(rest(directory, Some(&end)).0, words("2 7"));
}
