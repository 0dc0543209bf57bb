//! Readers and followers beside a writer.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use tempfile::tempdir;

use super::super::flood::Flood;
use super::super::queue::Counters;
use super::super::record::tests::draft;
use super::super::segment::Files;
use super::super::store::SegmentStore;
use super::super::writer::Writer;
use super::super::{Draft, Entry, Filter, Reason, Snapshot};
use super::{Bench, SECOND, entries, redactor, segment_names, settings, start, wall};
use sluicegate_config::DeadLetter;
use sluicegate_time::{Span, WallOffset};

#[test]
fn a_follower_sees_every_record_once_across_rotation_and_retention() {
    let directory = tempdir().unwrap();
    let mut bench = Bench::new(DeadLetter { rotate_size: 3_000, max_total_size: 9_000, ..settings(directory.path()) });
    bench.record(5);
    bench.flush();
    let snapshot = Snapshot::take(directory.path()).unwrap();
    let mut before = snapshot.read();
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    while let Some(found) = before.next_entry().unwrap() {
        *seen.entry(found.entry.id().to_owned()).or_default() += 1;
    }
    assert_eq!(seen.len(), 5);
    let mut follower = snapshot.follow();
    for _ in 0..40 {
        bench.record(3);
        bench.pass(SECOND);
        follower.poll(&mut |found| *seen.entry(found.entry.id().to_owned()).or_default() += 1).unwrap();
    }
    assert_eq!((seen.len(), follower.damaged()), (125, 0));
    assert!(seen.values().all(|&times| times == 1));
    assert!(segment_names(directory.path())[0].as_str() > "gw-0000000005.jsonl", "retention was at work");
}

#[test]
fn a_follower_waits_for_the_end_of_a_line_and_finds_new_nodes() {
    let directory = tempdir().unwrap();
    let mut bench = Bench::new(settings(directory.path()));
    bench.record(3);
    bench.flush();
    let whole = fs::read(directory.path().join("gw-0000000001.jsonl")).unwrap();
    let path = directory.path().join("new-0000000001.jsonl");
    let mut follower = Snapshot::take(directory.path()).unwrap().follow();
    let mut seen = 0;
    for length in [0, 10, whole.len() / 2, whole.len() - 1, whole.len()] {
        fs::write(&path, &whole[..length]).unwrap();
        follower.poll(&mut |_| seen += 1).unwrap();
        let feeds = whole[..length].split(|&byte| byte == b'\n').count() - 1;
        assert_eq!(seen, feeds, "{length} bytes");
    }
    assert_eq!((seen, follower.damaged()), (3, 0));
}

#[test]
fn a_follower_goes_on_behind_what_recovery_cut_off() {
    let directory = tempdir().unwrap();
    let mut bench = Bench::new(settings(directory.path()));
    bench.record(1);
    bench.flush();
    drop(bench);
    let path = directory.path().join("gw-0000000001.jsonl");
    let good = fs::read(&path).unwrap();
    let mut follower = Snapshot::take(directory.path()).unwrap().follow();
    fs::write(&path, [good.as_slice(), b"junk\n"].concat()).unwrap();
    let mut seen = 0;
    follower.poll(&mut |_| seen += 1).unwrap();
    assert_eq!((seen, follower.damaged()), (0, 1));
    let mut bench = Bench::new(settings(directory.path()));
    follower.poll(&mut |_| seen += 1).unwrap();
    bench.record(2);
    bench.flush();
    follower.poll(&mut |_| seen += 1).unwrap();
    assert_eq!((seen, follower.damaged()), (2, 1));
}

#[test]
fn a_reader_counts_damage_and_loses_nothing_around_it() {
    let directory = tempdir().unwrap();
    let mut bench = Bench::new(settings(directory.path()));
    bench.record(4);
    bench.flush();
    drop(bench);
    let path = directory.path().join("gw-0000000001.jsonl");
    let mut content = fs::read(&path).unwrap();
    let second = content.iter().position(|&byte| byte == b'\n').unwrap() + 50;
    content[second] ^= 1;
    content.splice(0..0, [vec![0; 200_000], b"\n{}\n".to_vec()].concat());
    content.extend_from_slice(b"{\"unfinished");
    fs::write(&path, content).unwrap();
    let (entries, damaged) = entries(directory.path());
    assert_eq!((entries.len(), damaged), (3, 3));
}

#[test]
fn with_a_filter_damage_is_counted_among_the_lines_that_may_be_meant() {
    let directory = tempdir().unwrap();
    let mut bench = Bench::new(settings(directory.path()));
    for reason in [Reason::Timeout, Reason::RateLimited, Reason::RateLimited, Reason::Timeout, Reason::Timeout] {
        bench.record_of(reason);
    }
    bench.flush();
    drop(bench);
    let path = directory.path().join("gw-0000000001.jsonl");
    let mut lines: Vec<String> = fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
    for line in &mut lines[1..4] {
        *line = line.replace("/api/x", "/api/y");
    }
    fs::write(&path, lines.join("\n") + "\nno line of ours\n").unwrap();
    let read = |reason| {
        let filter = Filter { reason, ..Filter::default() };
        let mut reader = Snapshot::take(directory.path()).unwrap().read_matching(&filter);
        let found = std::iter::from_fn(|| reader.next_entry().unwrap()).count();
        (found, reader.damaged())
    };
    assert_eq!(read(None), (2, 4));
    assert_eq!(read(Some(Reason::Timeout)), (2, 2));
    assert_eq!(read(Some(Reason::RateLimited)), (0, 3));
    assert_eq!(read(Some(Reason::Breaker)), (0, 1));
}

#[test]
fn a_reader_passes_over_what_retention_removes_under_it() {
    let directory = tempdir().unwrap();
    let mut bench = Bench::new(DeadLetter { rotate_size: 1, ..settings(directory.path()) });
    for _ in 0..4 {
        bench.record(1);
        bench.pass(SECOND);
    }
    let snapshot = Snapshot::take(directory.path()).unwrap();
    let mut reader = snapshot.read();
    assert!(reader.next_entry().unwrap().is_some());
    fs::remove_file(&snapshot.segments()[1].path).unwrap();
    assert!(reader.next_entry().unwrap().is_some());
    assert!(reader.next_entry().unwrap().is_some());
    assert!(reader.next_entry().unwrap().is_none());
    assert_eq!(reader.damaged(), 0);
}

#[test]
fn segments_of_all_nodes_are_read_in_the_order_of_their_first_lines() {
    let directory = tempdir().unwrap();
    for (node, offset) in [("b", 0), ("a", 1), ("b", 2)] {
        let own = DeadLetter { rotate_size: 1, ..settings(directory.path()) };
        let (store, _) = SegmentStore::open(directory.path(), node, Box::new(Files)).unwrap();
        let (flood, counters) = (Arc::new(Flood::new(&own).unwrap()), Arc::new(Counters::default()));
        let now = start() + Span::from_secs(offset);
        let mut writer = Writer::new(own, redactor(), store, flood, counters, (now, WallOffset::default()));
        writer.tick(now);
        writer.take(&Draft { at: wall(now), ..draft() }, u64::MAX, now);
        writer.close(now);
    }
    let nodes: Vec<_> = entries(directory.path())
        .0
        .into_iter()
        .map(|entry| if let Entry::Record(record) = entry { record.node } else { panic!("a record") })
        .collect();
    assert_eq!(nodes, ["b", "a", "b"]);
}
