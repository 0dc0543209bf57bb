//! The lines that a purge removes, keeps and leaves alone.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use tempfile::tempdir;

use super::super::segment::Files;
use super::super::store::SegmentStore;
use super::super::{Drops, Entry, Filter, Purge, PurgePlan, Purged, Reason, SegmentName, Snapshot, StoreError};
use super::{Bench, SECOND, entries, segment_names, settings, start, told};
use sluicegate_config::DeadLetter;
use sluicegate_time::Span;

fn timeouts() -> Filter {
    Filter { reason: Some(Reason::Timeout), ..Filter::default() }
}

/// The count of what was about to go, and of what went: without a gateway that is the same.
fn purged(directory: &Path, filter: Filter) -> (PurgePlan, Purged) {
    let mut purge = Purge::open(directory, filter).unwrap();
    let plan = purge.plan().unwrap();
    (plan, purge.run().unwrap())
}

/// A segment of these reasons, one record each.
fn segment(bench: &mut Bench, reasons: &[Reason]) {
    for reason in reasons {
        bench.record_of(*reason);
    }
    bench.pass(SECOND);
}

/// Three segments: mixed, of timeouts alone, and of none.
fn log(directory: &Path) {
    use Reason::{RateLimited, Timeout};
    let mut bench = Bench::new(DeadLetter { rotate_size: 1, ..settings(directory) });
    segment(&mut bench, &[Timeout, RateLimited, Timeout, RateLimited]);
    segment(&mut bench, &[Timeout, Timeout, Timeout]);
    segment(&mut bench, &[RateLimited]);
}

fn path(directory: &Path, sequence: u64) -> PathBuf {
    directory.join(SegmentName { node: "gw".into(), sequence }.file_name())
}

fn reasons(directory: &Path) -> Vec<String> {
    let (entries, damaged) = entries(directory);
    assert_eq!(damaged, 0);
    let reason = |entry| if let Entry::Record(record) = entry { record.reason } else { panic!("a record") };
    entries.into_iter().map(reason).collect()
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

fn hidden(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| SegmentName::parse(name).is_none()).collect();
    names.sort();
    names
}

#[test]
fn what_matches_goes_and_all_else_stays_byte_for_byte() {
    let directory = tempdir().unwrap();
    log(directory.path());
    let first = path(directory.path(), 1);
    let before = lines(&first);
    let sizes = [1, 2].map(|sequence| fs::metadata(path(directory.path(), sequence)).unwrap().len());
    let old = UNIX_EPOCH + Duration::from_secs(1_000_000);
    fs::File::options().append(true).open(&first).unwrap().set_modified(old).unwrap();
    let (plan, done) = purged(directory.path(), timeouts());
    let kept = [before[1].clone(), before[3].clone()];
    assert_eq!(lines(&first), kept);
    let bytes = sizes[0] + sizes[1] - fs::metadata(&first).unwrap().len();
    let expected = Purged { records: 5, bytes, unlinked: 1, rewritten: 1, ..Purged::default() };
    assert_eq!(done, expected);
    assert_eq!(plan, PurgePlan { goes: expected, segments: 3, stays: Vec::new() });
    assert_eq!(segment_names(directory.path()), ["gw-0000000001.jsonl", "gw-0000000003.jsonl"]);
    let metadata = fs::metadata(&first).unwrap();
    assert_eq!((metadata.permissions().mode() & 0o777, metadata.modified().unwrap()), (0o600, old));
    assert_eq!(hidden(directory.path()), [".lock", ".purge"]);
    assert_eq!(purged(directory.path(), timeouts()).1, Purged::default(), "nothing is left to go");
    assert_eq!(fs::metadata(&first).unwrap().ino(), metadata.ino(), "and nothing is written");
}

#[test]
fn without_a_filter_all_goes_with_what_is_damaged_and_torn() {
    let directory = tempdir().unwrap();
    log(directory.path());
    let mut bench = Bench::new(DeadLetter { max_record_rate: 1, ..settings(directory.path()) });
    bench.offer(5);
    bench.counters.queue_full.fetch_add(4, std::sync::atomic::Ordering::Relaxed);
    bench.writer.close(bench.now);
    drop(bench);
    let last = path(directory.path(), 3);
    fs::write(&last, fs::read_to_string(&last).unwrap() + "junk\n{\"half").unwrap();
    fs::write(directory.path().join("gw-0000000002.jsonl.torn"), "0123456789").unwrap();
    fs::write(directory.path().join("other-0000000001.jsonl"), "").unwrap();
    let bytes: u64 =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    let (plan, done) = purged(directory.path(), Filter::default());
    let aggregated = done.aggregated;
    let expected = Purged {
        records: 8 + 5 - aggregated,
        aggregates: 1,
        aggregated,
        gaps: 1,
        damaged: 2,
        bytes,
        unlinked: 4,
        rewritten: 0,
    };
    assert!((1..=4).contains(&aggregated), "{aggregated}");
    assert_eq!((done, plan.goes), (expected, expected));
    assert_eq!(hidden(directory.path()), [".lock", ".purge"]);
    assert_eq!(segment_names(directory.path()), [""; 0]);
}

#[test]
fn a_filter_takes_the_entries_that_a_list_shows_and_no_damaged_line() {
    let directory = tempdir().unwrap();
    let mut bench = Bench::new(DeadLetter { max_record_rate: 1, ..settings(directory.path()) });
    bench.record_of(Reason::Timeout);
    bench.offer(5);
    bench.counters.queue_full.fetch_add(4, std::sync::atomic::Ordering::Relaxed);
    bench.writer.close(bench.now);
    drop(bench);
    let segment = path(directory.path(), 1);
    let long = "x".repeat(300_000);
    let damaged = [lines(&segment)[0].replace("/api/x", "/api/y"), long, "{\"half".to_owned()].join("\n");
    fs::write(&segment, fs::read_to_string(&segment).unwrap() + &damaged).unwrap();
    let filter = Filter { limit: Some("per-client".into()), reason: Some(Reason::RateLimited), ..Filter::default() };
    let (_, done) = purged(directory.path(), filter);
    assert_eq!((done.records + done.aggregated, done.aggregates, done.gaps, done.damaged), (5, 1, 0, 0));
    let kept = fs::read_to_string(&segment).unwrap();
    assert!(kept.ends_with(&("\n".to_owned() + &damaged)));
    let left: Vec<_> = kept.lines().take(2).map(|line| line.get(85..).unwrap().to_owned()).collect();
    assert!(left[0].contains("\"timeout\"") && left[1].contains("\"dropped\":true"), "{left:?}");
    // Aggregates have no route: a filter by one leaves them.
    let (_, done) = purged(directory.path(), Filter { route: Some("api".into()), ..Filter::default() });
    assert_eq!((done.records, done.lines()), (1, 1));
}

#[test]
fn what_a_gateway_writes_to_stays_and_it_goes_on() {
    let directory = tempdir().unwrap();
    let settings = DeadLetter { rotate_size: 1, ..settings(directory.path()) };
    let mut bench = Bench::new(settings.clone());
    segment(&mut bench, &[Reason::Timeout, Reason::RateLimited]);
    segment(&mut bench, &[Reason::Timeout]);
    bench.record_of(Reason::Timeout);
    bench.flush();
    // Another one, in another slot; and a series that nobody writes to.
    let mut second = Bench::new(DeadLetter { rotate_size: 1 << 20, ..settings });
    segment(&mut second, &[Reason::Timeout, Reason::Timeout]);
    fs::copy(path(directory.path(), 2), directory.path().join("gw~3-0000000001.jsonl")).unwrap();
    let mut purge = Purge::open(directory.path(), timeouts()).unwrap();
    let plan = purge.plan().unwrap();
    let stays: Vec<_> = plan.stays.iter().map(|(name, purged)| (name.file_name(), purged.records)).collect();
    assert_eq!(stays, [("gw-0000000003.jsonl".to_owned(), 1), ("gw~2-0000000001.jsonl".to_owned(), 2)]);
    // It begins another segment meanwhile.
    bench.pass(SECOND);
    bench.record_of(Reason::Timeout);
    bench.flush();
    let done = purge.run().unwrap();
    assert_eq!((done.records, done.unlinked, done.rewritten), (3, 2, 1));
    drop(purge);
    let left = ["gw-0000000001.jsonl", "gw-0000000003.jsonl", "gw~2-0000000001.jsonl", "gw-0000000004.jsonl"];
    let mut names = segment_names(directory.path());
    names.sort_by_key(|name| left.iter().position(|own| own == name));
    assert_eq!(names, left);
    bench.record_of(Reason::Timeout);
    bench.writer.close(bench.now);
    second.record_of(Reason::Timeout);
    second.writer.close(second.now);
    assert_eq!(bench.counters.drops(), Drops::default());
    assert_eq!(told(directory.path()), (1 + 1 + 2 + 3, 0, Drops::default()));
    assert_eq!(reasons(directory.path()).iter().filter(|reason| *reason == "timeout").count(), 6);
}

#[test]
fn who_starts_during_a_purge_takes_another_slot_and_the_first_one_after_it() {
    let directory = tempdir().unwrap();
    log(directory.path());
    let mut purge = Purge::open(directory.path(), timeouts()).unwrap();
    purge.plan().unwrap();
    let mut bench = Bench::new(settings(directory.path()));
    segment(&mut bench, &[Reason::Timeout]);
    assert_eq!(purge.run().unwrap().records, 5);
    assert_eq!(told(directory.path()).0, 4);
    assert!(segment_names(directory.path()).contains(&"gw~2-0000000001.jsonl".to_owned()));
    drop(purge);
    segment(&mut bench, &[Reason::Timeout]);
    bench.record(1);
    bench.flush();
    assert!(segment_names(directory.path()).contains(&"gw-0000000004.jsonl".to_owned()));
    assert_eq!(told(directory.path()).0, 6);
}

#[test]
fn a_gateway_counts_what_a_purge_has_left() {
    let directory = tempdir().unwrap();
    let line = {
        let other = tempdir().unwrap();
        let mut bench = Bench::new(settings(other.path()));
        segment(&mut bench, &[Reason::RateLimited]);
        fs::metadata(path(other.path(), 1)).unwrap().len()
    };
    // Room for 20 lines and some.
    let own = DeadLetter { rotate_size: 1, max_total_size: 20 * line + line / 2, ..settings(directory.path()) };
    let mut bench = Bench::new(own);
    for _ in 0..5 {
        segment(&mut bench, &[Reason::Timeout, Reason::RateLimited, Reason::Timeout]);
    }
    segment(&mut bench, &[Reason::RateLimited]);
    assert_eq!(told(directory.path()).0, 16);
    let done = purged(directory.path(), timeouts()).1;
    assert_eq!((done.records, done.rewritten), (10, 5));
    // As many as there is room for by now: none is removed to make room that is there.
    for _ in 0..14 {
        segment(&mut bench, &[Reason::RateLimited]);
    }
    bench.pass(SECOND);
    assert_eq!(told(directory.path()).0, 20);
    segment(&mut bench, &[Reason::RateLimited]);
    bench.pass(SECOND);
    assert_eq!(told(directory.path()).0, 20, "and no more");
    // All that it has sealed.
    purged(directory.path(), Filter::default());
    let left = told(directory.path()).0;
    assert!(left <= 1, "{left}");
    for _ in 0..19 {
        segment(&mut bench, &[Reason::RateLimited]);
    }
    assert_eq!(told(directory.path()).0, 19 + left);
}

#[test]
fn a_segment_that_comes_back_goes_at_its_age() {
    let directory = tempdir().unwrap();
    let mut bench =
        Bench::new(DeadLetter { rotate_size: 1, max_age: Span::from_secs(30), ..settings(directory.path()) });
    segment(&mut bench, &[Reason::Timeout]);
    let first = path(directory.path(), 1);
    let content = fs::read(&first).unwrap();
    bench.record(1);
    bench.pass(Span::from_secs(40));
    assert!(!first.exists());
    fs::write(&first, content).unwrap();
    let old = UNIX_EPOCH + Duration::from_nanos(start().as_nanos());
    fs::File::options().append(true).open(&first).unwrap().set_modified(old).unwrap();
    bench.pass(Span::from_secs(60));
    assert!(!first.exists());
}

#[test]
fn a_segment_that_retention_removes_meanwhile_is_passed_over() {
    let directory = tempdir().unwrap();
    log(directory.path());
    let mut purge = Purge::open(directory.path(), timeouts()).unwrap();
    purge.plan().unwrap();
    fs::remove_file(path(directory.path(), 1)).unwrap();
    let done = purge.run().unwrap();
    assert_eq!((done.records, done.unlinked, done.rewritten), (3, 1, 0));
    assert_eq!(segment_names(directory.path()), ["gw-0000000003.jsonl"]);
    assert_eq!(hidden(directory.path()), [".lock", ".purge"]);
}

#[test]
fn what_a_purge_that_died_left_is_no_segment_and_goes_with_the_next_one() {
    let directory = tempdir().unwrap();
    log(directory.path());
    let left = directory.path().join("gw-0000000001.jsonl.purge");
    fs::write(&left, &fs::read(path(directory.path(), 1)).unwrap()[..700]).unwrap();
    assert_eq!(told(directory.path()).0, 8);
    drop(SegmentStore::open(directory.path(), "gw", Box::new(Files)).unwrap());
    assert_eq!(told(directory.path()).0, 8);
    assert_eq!(purged(directory.path(), timeouts()).1.records, 5);
    assert!(!left.exists());
    assert_eq!(reasons(directory.path()), ["rate-limited"; 3]);
}

#[test]
fn a_follower_goes_on_behind_what_a_purge_has_left() {
    let directory = tempdir().unwrap();
    let own = DeadLetter { rotate_size: 1 << 20, ..settings(directory.path()) };
    let mut bench = Bench::new(own.clone());
    segment(&mut bench, &[Reason::Timeout, Reason::RateLimited]);
    drop(bench);
    let mut follower = Snapshot::take(directory.path()).unwrap().follow();
    let mut seen = Vec::new();
    let mut poll = |seen: &mut Vec<String>| follower.poll(&mut |found| seen.push(found.entry.id().to_owned())).unwrap();
    poll(&mut seen);
    for (filter, left) in [(timeouts(), 1), (Filter::default(), 0)] {
        assert_eq!(purged(directory.path(), filter).1.lines(), 1);
        poll(&mut seen);
        let mut bench = Bench::new(own.clone());
        let before = seen.len();
        for number in 1..=3 {
            segment(&mut bench, &[Reason::RateLimited]);
            poll(&mut seen);
            assert_eq!(seen.len(), before + number, "after a purge that left {left}");
        }
        bench.writer.close(bench.now);
        drop(bench);
        // One record is there when the next purge comes.
        fs::write(path(directory.path(), 1), lines(&path(directory.path(), 1)).remove(0) + "\n").unwrap();
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 6);
}

#[test]
fn lines_of_a_reason_are_kept_where_their_file_has_gone() {
    let directory = tempdir().unwrap();
    let own = DeadLetter { rotate_size: 20_000, max_total_size: 200_000, ..settings(directory.path()) };
    let mut bench = Bench::new(own);
    let kept = directory.path().join("gw+timeout-0000000001.jsonl");
    for round in 0..2 {
        bench.record_of(Reason::Timeout);
        for _ in 0..40 {
            bench.record(20);
            bench.pass(SECOND);
        }
        assert_eq!(lines(&kept).len(), 1, "round {round}");
        fs::remove_file(&kept).unwrap();
        bench.pass(Span::from_secs(60));
    }
    assert_eq!(bench.writer.position().last_error, None);
}

#[test]
fn one_purge_at_a_time_and_only_where_there_is_a_log() {
    let directory = tempdir().unwrap();
    let first = Purge::open(directory.path(), Filter::default()).unwrap();
    let error = Purge::open(directory.path(), Filter::default()).err().unwrap();
    assert!(matches!(&error, StoreError::Purging(path) if path == directory.path()), "{error}");
    assert!(error.to_string().contains("wait until it has ended"), "{error}");
    drop(first);
    Purge::open(directory.path(), Filter::default()).unwrap();
    let missing = directory.path().join("missing");
    assert!(Purge::open(&missing, Filter::default()).is_err());
    assert!(!missing.exists());
}

#[test]
fn a_segment_that_cannot_be_written_anew_stays_as_it_was() {
    let directory = tempdir().unwrap();
    log(directory.path());
    let before = lines(&path(directory.path(), 1));
    let mut purge = Purge::open(directory.path(), timeouts()).unwrap();
    purge.plan().unwrap();
    // Something is in the way of the new one.
    let blocked = directory.path().join("gw-0000000001.jsonl.purge");
    fs::create_dir(&blocked).unwrap();
    let error = purge.run().err().unwrap();
    assert!(error.to_string().contains("gw-0000000001.jsonl.purge"), "{error}");
    assert_eq!(lines(&path(directory.path(), 1)), before);
    assert!(!path(directory.path(), 2).exists(), "those that go whole went first");
}
