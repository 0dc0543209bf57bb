//! Segments: how they are made, end, are synced, kept, and taken up again.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::tempdir;

use super::super::{Entry, Filter, Reason, Snapshot};
use super::{Bench, SECOND, entries, segment_names, settings, start, told};
use sluicegate_config::{DeadLetter, Fsync};
use sluicegate_time::Span;

#[test]
fn files_and_directory_are_for_their_owner_alone() {
    let parent = tempdir().unwrap();
    let directory = parent.path().join("a/dead-letters");
    let mut bench = Bench::new(settings(&directory));
    bench.record(1);
    bench.flush();
    assert_eq!(mode(&directory), 0o700);
    for entry in fs::read_dir(&directory).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
    assert_eq!(segment_names(&directory), ["gw-0000000001.jsonl"]);
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn segments_end_at_their_size() {
    let directory = tempdir().unwrap();
    let mut bench = Bench::new(DeadLetter { rotate_size: 2_000, ..settings(directory.path()) });
    for _ in 0..12 {
        bench.record(1);
        bench.flush();
    }
    let snapshot = Snapshot::take(directory.path()).unwrap();
    let lengths: Vec<_> = snapshot.segments().iter().map(|segment| segment.bytes).collect();
    let (last, sealed) = lengths.split_last().unwrap();
    assert!(sealed.len() >= 2 && *last > 0, "{lengths:?}");
    assert!(sealed.iter().all(|&bytes| (2_000..3_000).contains(&bytes)), "{lengths:?}");
    assert_eq!(told(directory.path()).0, 12);
}

#[test]
fn segments_end_at_their_age_and_idle_ones_leave_no_trace() {
    let directory = tempdir().unwrap();
    let mut bench = Bench::new(DeadLetter { rotate_age: Span::from_secs(60), ..settings(directory.path()) });
    bench.record(1);
    bench.pass(Span::from_secs(59));
    bench.record(1);
    bench.pass(SECOND);
    for _ in 0..300 {
        bench.pass(SECOND);
    }
    bench.record(1);
    bench.flush();
    assert_eq!(segment_names(directory.path()), ["gw-0000000001.jsonl", "gw-0000000002.jsonl"]);
    let reader = Snapshot::take(directory.path()).unwrap();
    let mut first = reader.read_one(&reader.segments()[0], &Filter::default());
    assert!(first.next_entry().unwrap().is_some() && first.next_entry().unwrap().is_some());
    assert!(first.next_entry().unwrap().is_none());
}

#[test]
fn the_oldest_sealed_segments_go_when_all_is_too_large() {
    let directory = tempdir().unwrap();
    for (name, length) in
        [("gw-0000000001.jsonl", 900), ("gw-0000000001.jsonl.torn", 100), ("other-0000000001.jsonl", 9_000)]
    {
        fs::write(directory.path().join(name), "x".repeat(length)).unwrap();
    }
    fs::write(directory.path().join("gw-0000000002.jsonl"), "").unwrap();
    let mut bench = Bench::new(DeadLetter { rotate_size: 1, max_total_size: 2_500, ..settings(directory.path()) });
    for _ in 0..5 {
        bench.record(1);
        bench.pass(SECOND);
    }
    bench.pass(SECOND);
    let names = segment_names(directory.path());
    let own: u64 = Snapshot::take(directory.path())
        .unwrap()
        .segments()
        .iter()
        .filter(|segment| segment.name.node == "gw")
        .map(|segment| segment.bytes)
        .sum();
    assert!(own <= 2_500 && own > 1_000, "{own} of {names:?}");
    assert!(names.contains(&"other-0000000001.jsonl".to_owned()), "another node's stay");
    assert!(names.contains(&"gw-0000000006.jsonl".to_owned()), "the newest stays: {names:?}");
    assert!(!directory.path().join("gw-0000000001.jsonl.torn").exists());
}

/// A flood of one reason pushes out its own records and no other's, as long as those fit their share.
#[test]
fn a_flood_of_one_reason_does_not_push_out_the_others() {
    let directory = tempdir().unwrap();
    let settings = DeadLetter { rotate_size: 20_000, max_total_size: 200_000, ..settings(directory.path()) };
    let mut bench = Bench::new(settings.clone());
    let reasons = |directory: &Path| {
        let (entries, damaged) = entries(directory);
        assert_eq!(damaged, 0);
        let mut counts = [0; 3];
        for entry in entries {
            let Entry::Record(record) = entry else { continue };
            let index =
                ["timeout", "upstream-error", "rate-limited"].iter().position(|reason| *reason == record.reason);
            counts[index.unwrap()] += 1;
        }
        counts
    };
    for _ in 0..3 {
        bench.record_of(Reason::Timeout);
    }
    for _ in 0..30 {
        bench.record_of(Reason::UpstreamError);
    }
    for round in 0..100 {
        bench.record(20);
        bench.pass(SECOND);
        if round == 50 {
            // Files of an earlier process are taken over.
            drop(bench);
            bench = Bench::new(settings.clone());
            bench.now = start() + Span::from_secs(51);
            bench.record_of(Reason::Timeout);
        }
        let size: u64 = Snapshot::take(directory.path()).unwrap().segments().iter().map(|segment| segment.bytes).sum();
        assert!(size <= 200_000 + 40_000, "{size} in round {round}");
    }
    let [timeouts, errors, flood] = reasons(directory.path());
    assert_eq!(timeouts, 4);
    assert!((3..30).contains(&errors), "{errors} of those that are more than a share: the last ones");
    assert!(flood > 150, "{flood}");
    let names = segment_names(directory.path());
    assert!(names.contains(&"gw+timeout-0000000001.jsonl".to_owned()), "{names:?}");
    assert!(!names.iter().any(|name| name.starts_with("gw+rate-limited")), "{names:?}");
    // They go at the age of the segments that they come from, after a restart too.
    drop(bench);
    let mut bench = Bench::new(DeadLetter { max_age: Span::from_secs(60), ..settings });
    bench.now = start() + Span::from_secs(101);
    bench.pass(SECOND);
    assert_eq!(reasons(directory.path())[..2], [1, 0], "the last one");
}

#[test]
fn sealed_segments_go_at_their_age_and_the_active_one_never() {
    let directory = tempdir().unwrap();
    let old = directory.path().join("gw-0000000001.jsonl");
    fs::write(&old, "").unwrap();
    let modified = std::time::UNIX_EPOCH + std::time::Duration::from_nanos((start() - Span::from_secs(50)).as_nanos());
    fs::File::options().write(true).open(&old).unwrap().set_modified(modified).unwrap();
    fs::write(directory.path().join("gw-0000000002.jsonl"), "").unwrap();
    let mut bench = Bench::new(DeadLetter { max_age: Span::from_secs(60), ..settings(directory.path()) });
    bench.record(1);
    bench.pass(Span::from_secs(10));
    assert_eq!(segment_names(directory.path()), ["gw-0000000001.jsonl", "gw-0000000002.jsonl"]);
    bench.pass(SECOND);
    assert_eq!(segment_names(directory.path()), ["gw-0000000002.jsonl"]);
    bench.pass(Span::from_secs(1_000));
    assert_eq!(segment_names(directory.path()), ["gw-0000000002.jsonl"]);
}

#[test]
fn syncs_as_the_policy_says() {
    let syncs = |fsync| {
        let directory = tempdir().unwrap();
        let mut bench = Bench::new(DeadLetter { fsync, ..settings(directory.path()) });
        let mut seen = Vec::new();
        for span in [0, 400, 700, 400] {
            bench.record(1);
            bench.pass(Span::from_millis(span));
            seen.push(bench.faults.get(|state| state.syncs));
        }
        bench.writer.close(bench.now);
        seen.push(bench.faults.get(|state| state.syncs));
        seen
    };
    assert_eq!(syncs(Fsync::Always), [1, 2, 3, 4, 5]);
    assert_eq!(syncs(Fsync::Interval(SECOND)), [0, 0, 1, 1, 2]);
    assert_eq!(syncs(Fsync::Rotate), [0, 0, 0, 0, 1]);
    assert_eq!(syncs(Fsync::Never), [0, 0, 0, 0, 0]);
}

#[test]
fn a_restart_writes_on_behind_the_last_whole_line() {
    let directory = tempdir().unwrap();
    let mut bench = Bench::new(settings(directory.path()));
    bench.record(3);
    bench.flush();
    drop(bench);
    let path = directory.path().join("gw-0000000001.jsonl");
    let mut torn = fs::read(&path).unwrap();
    torn.truncate(torn.len() - 10);
    fs::write(&path, torn).unwrap();
    let mut bench = Bench::new(settings(directory.path()));
    bench.record(2);
    bench.flush();
    assert_eq!(segment_names(directory.path()), ["gw-0000000001.jsonl"]);
    assert_eq!(told(directory.path()).0, 4);
}

#[test]
fn a_segment_keeps_its_age_across_a_restart() {
    let directory = tempdir().unwrap();
    let settings = DeadLetter { rotate_age: Span::from_secs(60), ..settings(directory.path()) };
    let mut bench = Bench::new(settings.clone());
    bench.record(1);
    bench.flush();
    drop(bench);
    let mut bench = Bench::new(settings);
    bench.pass(Span::from_secs(60));
    bench.record(1);
    bench.flush();
    assert_eq!(segment_names(directory.path()).len(), 2);
}
