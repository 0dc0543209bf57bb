use std::collections::BTreeMap as Map;
use std::fs::{File, OpenOptions};
use std::io::Write as _;

use proptest::prelude::*;
use tempfile::TempDir;

use super::super::super::Draft;
use super::super::super::record::tests::{AT, draft};
use super::super::super::tally::Drops;
use super::*;
use sluicegate_redact::{RedactRules, Redactor};

/// A directory of segments and journals.
struct Log {
    directory: TempDir,
    /// The lines of each segment, with their ids.
    segments: Map<String, Vec<(String, Vec<u8>)>>,
}

impl Log {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), segments: Map::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Appends records of so many seconds after the start; their ids.
    fn write(&mut self, segment: &str, seconds: &[u64]) -> Vec<String> {
        let redactor = Redactor::new(&RedactRules::default());
        let mut ids = Vec::new();
        for second in seconds {
            let mut line = Vec::new();
            Draft { at: AT + Span::from_secs(*second), ..draft() }.write("gw", &redactor, &mut line);
            let id = String::from_utf8(line[13..49].to_vec()).unwrap();
            append(&self.path(segment), &line);
            self.segments.entry(segment.to_owned()).or_default().push((id.clone(), line));
            ids.push(id);
        }
        ids
    }

    /// As `purge` does: written anew beside, and renamed.
    fn rewrite(&mut self, segment: &str, keep: impl Fn(&str) -> bool) {
        let lines = self.segments.get_mut(segment).unwrap();
        lines.retain(|(id, _)| keep(id));
        let text: Vec<u8> = lines.iter().flat_map(|(_, line)| line.clone()).collect();
        let (beside, path) = (self.path("new"), self.path(segment));
        fs::write(&beside, text).unwrap();
        fs::rename(beside, path).unwrap();
    }

    fn remove(&mut self, segment: &str) {
        fs::remove_file(self.path(segment)).unwrap();
        self.segments.remove(segment);
    }

    fn replayed(&self, journal: &str, ids: &[String], state: &str) {
        fs::create_dir_all(self.path("replays")).unwrap();
        for id in ids {
            let line = format!("{{\"id\":\"{id}\",\"n\":1,\"state\":\"{state}\"}}\n");
            append(&self.path("replays").join(journal), line.as_bytes());
        }
    }
}

fn append(path: &Path, bytes: &[u8]) {
    let mut file: File = OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
}

fn look(backlog: &mut Backlog) -> (u64, Option<u64>) {
    let standing = loop {
        if let Some(standing) = backlog.look_at(&mut 5_000).unwrap() {
            break standing;
        }
    };
    let start = AT.as_nanos() / 1_000_000;
    (standing.records, standing.oldest.map(|oldest| (oldest.as_nanos() / 1_000_000).saturating_sub(start) / 1_000))
}

#[test]
fn records_count_and_neither_aggregates_nor_drops_nor_damage() {
    let mut log = Log::new();
    log.write("gw-1.jsonl", &[1, 2]);
    let mut lines = Vec::new();
    Drops { queue_full: 7, disk_error: 0 }.write("gw", AT, AT, &mut lines);
    super::super::super::tally::Tally {
        reason: super::super::super::Reason::RateLimited,
        is_shadow: false,
        limit: None,
        count: 5,
        from: AT,
        to: AT,
        top: Vec::new(),
    }
    .write("gw", &Redactor::new(&RedactRules::default()), AT, &mut lines);
    let damaged = String::from_utf8(log.segments["gw-1.jsonl"][0].1.clone()).unwrap().replace("GET", "PUT");
    lines.extend(damaged.as_bytes());
    lines.extend(b"{\"v\":1}\n\n");
    append(&log.path("gw-1.jsonl"), &lines);
    append(&log.path("notes.txt"), &lines);
    let mut backlog = Backlog::new(log.directory.path());
    assert_eq!(look(&mut backlog), (2, Some(1)));
}

#[test]
fn a_directory_that_is_not_there_or_empty_has_none() {
    let log = Log::new();
    assert_eq!(look(&mut Backlog::new(&log.path("no"))), (0, None));
    assert_eq!(look(&mut Backlog::new(log.directory.path())), (0, None));
}

#[test]
fn each_look_takes_in_what_is_new() {
    let mut log = Log::new();
    let mut backlog = Backlog::new(log.directory.path());
    log.write("gw-1.jsonl", &[10, 11]);
    assert_eq!(look(&mut backlog), (2, Some(10)));
    log.write("gw-1.jsonl", &[12]);
    log.write("gw-2.jsonl", &[20; 50]);
    log.write("gw~2-1.jsonl", &[15]);
    assert_eq!(look(&mut backlog), (54, Some(10)));
    log.remove("gw-1.jsonl");
    assert_eq!(look(&mut backlog), (51, Some(15)));
    log.rewrite("gw-2.jsonl", |_| false);
    assert_eq!(look(&mut backlog), (1, Some(15)));
    log.remove("gw~2-1.jsonl");
    assert_eq!(look(&mut backlog), (0, None));
}

#[test]
fn what_was_sent_counts_no_more_and_what_is_parked_does() {
    let mut log = Log::new();
    let ids = log.write("gw-1.jsonl", &[0, 1, 100, 200]);
    let mut backlog = Backlog::new(log.directory.path());
    assert_eq!(look(&mut backlog).0, 4);
    log.replayed("a.jsonl", &ids[..2], "parked");
    assert_eq!(look(&mut backlog).0, 4);
    log.replayed("a.jsonl", &ids[..2], "sent");
    // Known to a minute.
    let (records, oldest) = look(&mut backlog);
    assert!(records == 2 && (54..=100).contains(&oldest.unwrap()), "{records} {oldest:?}");
    // Again, elsewhere.
    log.replayed("b.jsonl", &ids[..2], "sent");
    log.replayed("b.jsonl", &["019b0000-0000-7000-8000-000000000000".into(), "no-id".into()], "sent");
    append(&log.path("replays").join("b.jsonl"), b"{}\nno JSON\n");
    assert_eq!(look(&mut backlog).0, 2);
    // The next process counts the same.
    assert_eq!(look(&mut Backlog::new(log.directory.path())).0, 2);
    log.replayed("b.jsonl", &ids[2..], "sent");
    assert_eq!(look(&mut backlog), (0, None));
}

#[test]
fn a_segment_that_is_rewritten_after_a_replay_is_counted_by_what_is_in_it() {
    let mut log = Log::new();
    let ids = log.write("gw-1.jsonl", &[1, 1, 1, 1, 1, 1]);
    let mut backlog = Backlog::new(log.directory.path());
    assert_eq!(look(&mut backlog).0, 6);
    log.replayed("a.jsonl", &ids[..3], "sent");
    assert_eq!(look(&mut backlog).0, 3);
    // Two that were sent and one that was not go.
    log.rewrite("gw-1.jsonl", |id| !ids[1..4].contains(&id.to_owned()));
    assert_eq!(look(&mut backlog).0, 2);
    // In one look both: what is sent, and where it is rewritten.
    log.replayed("a.jsonl", &ids[4..5], "sent");
    log.rewrite("gw-1.jsonl", |_| true);
    assert_eq!(look(&mut backlog).0, 1);
}

#[test]
fn a_record_that_is_written_and_sent_between_two_looks_is_none() {
    let mut log = Log::new();
    log.write("gw-1.jsonl", &[1]);
    let mut backlog = Backlog::new(log.directory.path());
    assert_eq!(look(&mut backlog).0, 1);
    let ids = log.write("gw-1.jsonl", &[1]);
    log.replayed("a.jsonl", &ids, "sent");
    assert_eq!(look(&mut backlog).0, 1);
}

#[test]
fn of_what_was_sent_no_more_is_kept_than_may_be_in_the_log() {
    let mut log = Log::new();
    let ids = log.write("gw-1.jsonl", &[0; 5]);
    log.write("gw-2.jsonl", &[600]);
    log.replayed("a.jsonl", &ids, "sent");
    let mut backlog = Backlog::new(log.directory.path());
    assert_eq!((look(&mut backlog).0, backlog.sent.count), (1, 5));
    log.remove("gw-1.jsonl");
    assert_eq!((look(&mut backlog).0, backlog.sent.count), (1, 0));
    let mut sent = Sent::default();
    for print in 0..MAX_SENT as u32 + 10 {
        sent.insert(Id { minute: print / 1_000, print });
    }
    assert!(sent.count <= MAX_SENT && sent.has(Id { minute: 1_000, print: 1_000_001 }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, rng_seed: prop::test_runner::RngSeed::Fixed(7), ..ProptestConfig::default() })]

    /// Whatever is written, sent, rewritten and removed, with looks between: it is what a count of the files gives.
    #[test]
    fn the_count_is_that_of_the_files(steps in prop::collection::vec((0_u8..6, 1_u64..4, any::<prop::sample::Index>()), 1..40)) {
        let mut log = Log::new();
        let mut backlog = Backlog::new(log.directory.path());
        let (mut sent, mut second) = (BTreeSet::new(), 0);
        for (step, segment, index) in steps {
            let segment = format!("gw-{segment}.jsonl");
            let all: Vec<String> = log.segments.values().flatten().map(|(id, _)| id.clone()).collect();
            match step {
                0 | 1 => {
                    // Segments are minutes apart, as minutes are what is known of records that are gone.
                    second += 70;
                    log.write(&segment, &[second, second + 1, second + 1]);
                }
                2 if !all.is_empty() => {
                    let id = index.get(&all).clone();
                    log.replayed("a.jsonl", std::slice::from_ref(&id), "sent");
                    sent.insert(id);
                }
                3 if log.segments.contains_key(&segment) => {
                    let gone = all.get(index.index(all.len().max(1))).cloned();
                    log.rewrite(&segment, |id| Some(id) != gone.as_deref());
                }
                4 if log.segments.contains_key(&segment) && index.index(3) == 0 => log.remove(&segment),
                _ => {}
            }
            if step == 5 || index.index(2) == 0 {
                let expected = log.segments.values().flatten().filter(|(id, _)| !sent.contains(id)).count();
                prop_assert_eq!(look(&mut backlog).0, expected as u64);
            }
        }
        let expected = log.segments.values().flatten().filter(|(id, _)| !sent.contains(id)).count() as u64;
        prop_assert_eq!(look(&mut backlog).0, expected);
        prop_assert_eq!(look(&mut Backlog::new(log.directory.path())).0, expected);
    }
}
