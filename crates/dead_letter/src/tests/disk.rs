//! Disks that fill up, fail, vanish and come back.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use tempfile::tempdir;

use super::super::segment::{Disk, Files, SegmentFile};
use super::super::store::SegmentStore;
use super::super::{DeadLetters, Drops, Entry};
use super::{Bench, SECOND, entries, offer_to, redactor, segment_names, settings, start, told, wall};
use sluicegate_config::{DeadLetter, Fsync};
use sluicegate_time::{Clock, Span};

#[test]
fn a_full_disk_costs_records_and_the_gap_is_in_the_log() {
    let directory = tempdir().unwrap();
    let mut bench = Bench::new(settings(directory.path()));
    bench.record(10);
    bench.flush();
    bench.faults.set(|state| state.room = Some(2_500));
    bench.record(10);
    bench.flush();
    let line = fs::metadata(directory.path().join("gw-0000000001.jsonl")).unwrap().len() / bench.written();
    let fitted = 2_500 / line;
    assert_eq!(bench.written(), 10 + fitted, "whole lines that fitted stay");
    bench.record(7);
    bench.pass(Span::from_millis(900));
    assert_eq!(bench.counters.drops(), Drops { queue_full: 0, disk_error: 10 - fitted + 7 });
    bench.faults.set(|state| state.room = None);
    bench.record(1);
    bench.pass(SECOND);
    bench.record(5);
    bench.writer.close(bench.now);
    let lost = Drops { queue_full: 0, disk_error: 10 - fitted + 8 };
    assert_eq!(told(directory.path()), (15 + fitted, 0, lost));
    assert_eq!(bench.offered, 15 + fitted + lost.total());
    assert_eq!(segment_names(directory.path()), ["gw-0000000001.jsonl", "gw-0000000002.jsonl"]);
}

#[test]
fn a_torn_line_that_cannot_be_cut_off_ends_its_segment() {
    let directory = tempdir().unwrap();
    let mut bench = Bench::new(settings(directory.path()));
    bench.record(2);
    bench.flush();
    bench.faults.set(|state| (state.room, state.no_truncate) = (Some(100), true));
    bench.record(1);
    bench.flush();
    bench.faults.set(|state| (state.room, state.no_truncate) = (None, false));
    bench.pass(SECOND);
    bench.record(3);
    bench.writer.close(bench.now);
    let (entries, damaged) = entries(directory.path());
    assert_eq!(damaged, 1, "the torn line, and nothing after it");
    assert_eq!(entries.iter().filter(|entry| matches!(entry, Entry::Record(_))).count(), 5);
    assert_eq!(bench.counters.drops().disk_error, 1);
}

#[test]
fn a_failing_disk_is_tried_once_a_second_and_leaves_no_empty_files() {
    let directory = tempdir().unwrap();
    let mut bench = Bench::new(settings(directory.path()));
    bench.faults.set(|state| state.room = Some(0));
    for _ in 0..30 {
        bench.record(3);
        bench.pass(Span::from_millis(100));
    }
    assert_eq!(bench.faults.get(|state| state.opens), 3);
    assert_eq!(segment_names(directory.path()), [""; 0]);
    assert_eq!(bench.counters.drops().disk_error, 90);
    assert!(bench.writer.position().last_error.unwrap().contains("gw-0000000001.jsonl"));
    bench.faults.set(|state| (state.room, state.no_open) = (None, true));
    bench.pass(SECOND);
    assert_eq!(bench.faults.get(|state| state.writes), 3);
    bench.faults.set(|state| state.no_open = false);
    bench.pass(SECOND);
    bench.writer.close(bench.now);
    assert_eq!(told(directory.path()), (0, 0, Drops { queue_full: 0, disk_error: 90 }));
}

#[test]
fn a_summary_that_could_not_be_written_is_written_later_and_once() {
    let directory = tempdir().unwrap();
    let mut bench = Bench::new(settings(directory.path()));
    bench.counters.queue_full.fetch_add(4, Ordering::Relaxed);
    bench.faults.set(|state| state.room = Some(0));
    bench.pass(SECOND);
    bench.faults.set(|state| state.room = None);
    for _ in 0..3 {
        bench.pass(SECOND);
    }
    bench.writer.close(bench.now);
    let (entries, _) = entries(directory.path());
    let [Entry::Dropped(dropped)] = entries.as_slice() else { panic!("one summary: {entries:?}") };
    assert_eq!((dropped.count, dropped.queue_full), (4, 4));
    assert_eq!((dropped.from, dropped.to), (wall(start()), wall(start() + SECOND + SECOND)));
}

#[test]
fn drops_get_one_summary_a_second() {
    let directory = tempdir().unwrap();
    let mut bench = Bench::new(settings(directory.path()));
    for _ in 0..40 {
        bench.counters.queue_full.fetch_add(1, Ordering::Relaxed);
        bench.pass(Span::from_millis(100));
    }
    assert_eq!(entries(directory.path()).0.len(), 4);
    assert_eq!(told(directory.path()).2.queue_full, 40);
}

/// A device without room, with the errors of the kernel itself.
struct FullDevice;

impl Disk for FullDevice {
    fn open(&self, _: &Path, _: bool) -> std::io::Result<Box<dyn SegmentFile>> {
        Ok(Box::new(fs::OpenOptions::new().append(true).open("/dev/full")?))
    }
}

#[test]
fn a_device_without_room_costs_records_and_nothing_else() {
    let directory = tempdir().unwrap();
    let log =
        DeadLetters::start_on(settings(directory.path()), redactor(), "gw", Clock::system(), Box::new(FullDevice))
            .unwrap();
    offer_to(&log, 50, None);
    log.close();
    let stats = log.stats();
    assert_eq!((stats.written, stats.dropped), (0, Drops { queue_full: 0, disk_error: 50 }));
    assert!(stats.last_error.unwrap().contains("No space left on device"));
}

#[test]
fn a_deleted_directory_is_made_again() {
    let parent = tempdir().unwrap();
    let directory = parent.path().join("dead-letters");
    let mut bench = Bench::new(settings(&directory));
    bench.record(1);
    bench.flush();
    fs::remove_dir_all(&directory).unwrap();
    bench.record(2);
    bench.flush();
    assert_eq!(segment_names(&directory), ["gw-0000000002.jsonl"]);
    assert!(SegmentStore::open(&directory, "gw", Box::new(Files)).unwrap().0.is_second(), "its slot is taken again");
    bench.writer.close(bench.now);
    assert_eq!(told(&directory), (2, 0, Drops::default()));
}

#[test]
fn a_file_in_the_place_of_the_directory_costs_records_until_it_is_gone() {
    let parent = tempdir().unwrap();
    let directory = parent.path().join("dead-letters");
    let mut bench = Bench::new(settings(&directory));
    bench.record(1);
    bench.flush();
    fs::remove_dir_all(&directory).unwrap();
    fs::write(&directory, "").unwrap();
    bench.record(2);
    bench.flush();
    assert_eq!(bench.counters.drops().disk_error, 2);
    fs::remove_file(&directory).unwrap();
    bench.pass(SECOND);
    bench.record(3);
    bench.writer.close(bench.now);
    assert_eq!(told(&directory), (3, 0, Drops { queue_full: 0, disk_error: 2 }));
}

#[test]
fn what_could_not_be_synced_does_not_count_as_written_where_it_must_be() {
    let directory = tempdir().unwrap();
    let mut bench = Bench::new(DeadLetter { fsync: Fsync::Always, ..settings(directory.path()) });
    bench.record(2);
    bench.flush();
    bench.faults.set(|state| state.no_sync = true);
    bench.record(3);
    bench.flush();
    assert_eq!((bench.written(), bench.counters.drops().disk_error), (2, 3));
    bench.faults.set(|state| state.no_sync = false);
    bench.pass(SECOND);
    bench.writer.close(bench.now);
    assert_eq!(told(directory.path()), (2, 0, Drops { queue_full: 0, disk_error: 3 }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever the disk does, the three add up, in the counters and in the log.
    #[test]
    fn accounts_balance_on_any_disk(
        steps in proptest::collection::vec((0_u64..40, proptest::option::of(0_usize..9_000), 0_u64..1_500, any::<u8>()), 1..25),
        always in any::<bool>(),
    ) {
        let directory = tempdir().unwrap();
        let fsync = if always { Fsync::Always } else { Fsync::Interval(SECOND) };
        let mut bench =
            Bench::new(DeadLetter { max_record_rate: 200, rotate_size: 10_000, fsync, ..settings(directory.path()) });
        for (events, room, millis, trouble) in steps {
            bench.faults.set(|state| {
                state.room = room;
                state.no_open = trouble % 7 == 0;
                state.no_sync = trouble % 5 == 0;
            });
            bench.offer(events);
            bench.pass(Span::from_millis(millis));
        }
        bench.faults.set(|state| (state.room, state.no_open, state.no_sync) = (None, false, false));
        bench.pass(SECOND);
        bench.writer.close(bench.now);
        let (records, aggregated, drops) = told(directory.path());
        prop_assert_eq!(bench.written(), records);
        prop_assert_eq!(bench.counters.aggregated.load(Ordering::Relaxed), aggregated);
        prop_assert_eq!(bench.counters.drops(), drops);
        prop_assert_eq!(bench.offered, records + aggregated + drops.total());
    }
}

#[test]
fn two_processes_share_a_directory_and_the_one_that_stays_takes_over() {
    let directory = tempdir().unwrap();
    let mut old = Bench::new(DeadLetter { max_total_size: 1 << 20, ..settings(directory.path()) });
    old.record(3);
    old.flush();
    let mut new = Bench::new(DeadLetter { max_total_size: 1 << 20, ..settings(directory.path()) });
    new.record(2);
    new.flush();
    old.record(4);
    old.flush();
    assert_eq!(segment_names(directory.path()), ["gw-0000000001.jsonl", "gw~2-0000000001.jsonl"]);
    new.now = new.now + Span::from_secs(2);
    new.writer.tick(new.now);
    old.writer.close(old.now);
    drop(old);
    assert_eq!(told(directory.path()), (9, 0, Drops::default()), "each in segments of its own");
    // It goes on in the first series, and removes what is too old of both.
    new.now = new.now + Span::from_secs(1);
    new.writer.tick(new.now);
    new.record(1);
    new.flush();
    let all = ["gw-0000000001.jsonl", "gw~2-0000000001.jsonl", "gw-0000000002.jsonl"];
    assert_eq!(segment_names(directory.path()), all);
    assert_eq!(told(directory.path()), (10, 0, Drops::default()));
    new.writer.close(new.now);
    drop(new);
    // A crash of the second one leaves a series that the next start takes, and mends.
    let holder = SegmentStore::open(directory.path(), "gw", Box::new(Files)).unwrap();
    let mut second = Bench::new(settings(directory.path()));
    second.record(2);
    second.flush();
    drop((second, holder));
    let torn = directory.path().join("gw~2-0000000002.jsonl");
    fs::OpenOptions::new().append(true).open(&torn).unwrap().write_all(b"{\"v\":1,\"half").unwrap();
    let mut next = Bench::new(DeadLetter { max_age: Span::from_secs(1), ..settings(directory.path()) });
    assert!(fs::read(&torn).unwrap().ends_with(b"}\n"));
    next.now = next.now + Span::from_secs(40 * 365 * 86_400);
    next.writer.tick(next.now);
    assert!(
        segment_names(directory.path()).iter().all(|name| !name.starts_with("gw~2")),
        "{:?}",
        segment_names(directory.path())
    );
}
