//! Sinks as a whole, without their threads: a courier, a log, and a receiver that a test plays.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;

use tempfile::TempDir;

use super::super::Draft;
use super::super::cursor::LogCursor;
use super::super::record::tests::{AT, draft};
use super::courier::{BatchOutcome, DeliveryStep};
use super::figures::SinkCount;
use super::*;
use sluicegate_config as config;
use sluicegate_config::Certificates;
use sluicegate_time::{ManualClock, Span, Wall};

fn sink() -> Sink {
    let sinks = "sinks = [{ http = \"http://u.example/x?token=SECRET\" }]";
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:80\"\n[[route]]\nname = \"all\"\nrespond = {{}}\n[dead_letter]\n{sinks}\n"
    );
    let parsed = config::parse(&text, Path::new("gateway.toml"), Certificates::Unread).unwrap();
    parsed.model.dead_letter.unwrap().sinks.remove(0)
}

/// A courier whose clock a test drives, on a directory of its own.
struct Bench {
    courier: SinkDelivery,
    figures: SinkFigures,
    clock: ManualClock,
    directory: TempDir,
    written: Vec<String>,
    number: u64,
}

impl Bench {
    fn new() -> Self {
        Self::on(tempfile::tempdir().unwrap())
    }

    fn on(directory: TempDir) -> Self {
        let clock = ManualClock::new();
        clock.advance(AT.since(Wall::EPOCH));
        let (courier, figures) = start(directory.path(), &clock);
        Self { courier, figures, clock, directory, written: Vec::new(), number: 0 }
    }

    /// Ends without a word, and begins again.
    fn kill(&mut self) {
        let elsewhere = tempfile::tempdir().unwrap();
        // The lock is free before it is taken anew.
        self.courier = start(elsewhere.path(), &self.clock).0;
        (self.courier, self.figures) = start(self.directory.path(), &self.clock);
    }

    fn segment(&self, sequence: u64) -> PathBuf {
        self.directory.path().join(format!("gw-{sequence:010}.jsonl"))
    }

    fn cursor(&self) -> PathBuf {
        self.directory.path().join("sinks/u.example.cursor")
    }

    /// Writes records into a segment.
    fn record(&mut self, sequence: u64, count: u64) {
        let mut lines = Vec::new();
        for _ in 0..count {
            self.number += 1;
            let path = format!("/{}", self.number);
            let at = Clock::Manual(self.clock.clone()).wall_now();
            Draft { at, path: path.as_str().into(), ..draft() }.write(
                "gw",
                &Redactor::new(&RedactRules::default()),
                &mut lines,
            );
        }
        let file = OpenOptions::new().create(true).append(true).open(self.segment(sequence));
        file.unwrap().write_all(&lines).unwrap();
        self.written.extend(std::str::from_utf8(&lines).unwrap().lines().map(str::to_owned));
    }

    /// The next batch, if one is due: its mark and its lines.
    fn sent(&mut self) -> Option<(Arc<str>, Vec<String>)> {
        match self.courier.step(self.clock.now()) {
            DeliveryStep::Send(flight) => {
                let text = std::str::from_utf8(&flight.body).unwrap();
                assert!(text.ends_with('\n'));
                Some((flight.mark, text.lines().map(str::to_owned).collect()))
            }
            DeliveryStep::Wait(_) => None,
        }
    }

    fn settle(&mut self, outcome: BatchOutcome) {
        self.courier.settle(outcome, self.clock.now(), u64::MAX);
    }

    fn refuse(&mut self, status: u16) {
        self.settle(BatchOutcome::Refused { status, asked: Span::ZERO });
    }

    /// Takes all that comes within a time.
    fn take_all(&mut self, within: Span) -> Vec<String> {
        let (mut all, end) = (Vec::new(), self.clock.now() + within);
        while self.clock.now() <= end {
            match self.sent() {
                Some((_, lines)) => {
                    all.extend(lines);
                    self.settle(BatchOutcome::Taken);
                }
                None => self.clock.advance(Span::from_millis(100)),
            }
        }
        all
    }

    fn count(&self, what: SinkCount) -> u64 {
        self.figures.count(what)
    }
}

fn start(directory: &Path, clock: &ManualClock) -> (SinkDelivery, SinkFigures) {
    let clock = Clock::Manual(clock.clone());
    let shared = Arc::new(Figures::default());
    let redactor = Redactor::new(&RedactRules::default());
    let archive = Archive { directory: directory.to_owned(), redactor, clock: clock.clone() };
    let mut courier = SinkDelivery::new(sink(), archive, Arc::clone(&shared));
    courier.hold();
    (courier, SinkFigures { shared, clock })
}

/// As it is on the disk.
fn progress(bench: &Bench) -> LogCursor {
    match checkpoint::CheckpointFile::peek(bench.directory.path(), "u.example") {
        Ok(checkpoint::CheckpointContent::Progress(progress)) => progress.taken,
        kept => panic!("{kept:?}"),
    }
}

fn failed() -> BatchOutcome {
    BatchOutcome::Failed { cause: "503".into(), asked: Span::ZERO }
}

const SECOND: Span = Span::from_secs(1);

#[test]
fn every_line_comes_once_in_order_over_segments_and_a_batch_each_second() {
    let mut bench = Bench::new();
    bench.record(1, 3);
    assert_eq!(bench.sent().unwrap().1, bench.written);
    bench.settle(BatchOutcome::Taken);
    assert_eq!(bench.sent(), None);
    bench.record(1, 1);
    bench.record(2, 2_500);
    bench.clock.advance(Span::from_millis(999));
    assert_eq!(bench.sent(), None, "a second is not over");
    bench.clock.advance(Span::from_millis(1));
    let (mut all, mut sizes) = (bench.written[..3].to_vec(), Vec::new());
    while let Some((_, lines)) = bench.sent() {
        sizes.push(lines.len());
        all.extend(lines);
        bench.settle(BatchOutcome::Taken);
    }
    assert_eq!(all, bench.written);
    assert_eq!(sizes.iter().sum::<usize>(), 2_501);
    assert!(sizes[0] == 1 && sizes.iter().all(|size| *size <= 1_000), "{sizes:?}");
    assert_eq!((bench.count(SinkCount::Delivered), bench.count(SinkCount::Failed)), (2_504, 0));
    assert_eq!((bench.count(SinkCount::BehindLines), bench.count(SinkCount::LagSeconds)), (0, 0));
}

#[test]
fn a_batch_has_a_mebibyte_and_a_longer_line_goes_alone() {
    let mut bench = Bench::new();
    bench.record(1, 10);
    let line = bench.written[0].len();
    // As many copies as fill two batches and some.
    let copies = (5 << 19) / (line + 1);
    let bytes = fs::read(bench.segment(1)).unwrap();
    fs::write(bench.segment(1), bytes[..=line].repeat(copies)).unwrap();
    let mut sizes = Vec::new();
    while let DeliveryStep::Send(flight) = bench.courier.step(bench.clock.now()) {
        sizes.push(flight.body.len());
        bench.settle(BatchOutcome::Taken);
    }
    assert!(sizes.iter().all(|size| *size <= (1 << 20) + 1_000), "{sizes:?}");
    assert_eq!(sizes.iter().sum::<usize>(), copies * (line + 1));
}

#[test]
fn a_new_sink_begins_with_what_is_written_from_then_on() {
    let mut bench = Bench::new();
    bench.record(1, 5);
    // Its place was there before them.
    bench.kill();
    assert_eq!(bench.sent().unwrap().1.len(), 5);
    fs::remove_dir_all(bench.directory.path().join("sinks")).unwrap();
    bench.kill();
    assert_eq!(bench.sent(), None);
    bench.record(1, 1);
    bench.clock.advance(SECOND);
    assert_eq!(bench.sent().unwrap().1, bench.written[5..]);
}

/// Pauses grow to half a minute, nothing is kept in memory, and one line of the log tells of it.
#[test]
fn a_receiver_that_is_away_for_an_hour_misses_nothing() {
    let mut bench = Bench::new();
    let (mut tries, start) = (0, bench.clock.now());
    let mut batches = Vec::new();
    for second in 0..3_600 {
        bench.record(1 + second / 600, 1);
        bench.clock.advance(SECOND);
        if let Some((mark, lines)) = bench.sent() {
            tries += 1;
            batches.push((mark, lines));
            bench.settle(failed());
        }
    }
    // 200 ms, 400 ms, … 25.6 s, and then half a minute each.
    assert!((120..=135).contains(&tries), "{tries}");
    batches.dedup();
    assert_eq!(batches.len(), 1, "the same batch all the time");
    assert_eq!(bench.count(SinkCount::Failed), tries);
    assert_eq!(bench.count(SinkCount::BehindLines), 3_600);
    let bytes: usize = bench.written.iter().map(|line| line.len() + 1).sum();
    assert_eq!(bench.count(SinkCount::BehindBytes), bytes as u64);
    let lag = bench.clock.now().since(start).as_secs_ceil();
    assert_eq!(bench.count(SinkCount::LagSeconds), lag);
    bench.clock.advance(Span::from_secs(30));
    assert_eq!(bench.take_all(SECOND), bench.written);
    assert_eq!((bench.count(SinkCount::BehindLines), bench.count(SinkCount::LagSeconds)), (0, 0));
    assert_eq!((bench.count(SinkCount::LostLines), bench.count(SinkCount::LostSegments)), (0, 0));
}

#[test]
fn a_receiver_may_ask_for_five_minutes_and_no_more() {
    for (asked, waited) in [(7, 7), (300, 300), (100_000, 300)] {
        let mut bench = Bench::new();
        bench.record(1, 1);
        bench.sent().unwrap();
        bench.settle(BatchOutcome::Failed { cause: String::new(), asked: Span::from_secs(asked) });
        bench.clock.advance(Span::from_millis(waited * 1_000 - 1));
        assert_eq!(bench.sent(), None);
        bench.clock.advance(Span::from_millis(1));
        assert!(bench.sent().is_some());
    }
}

#[test]
fn a_restart_goes_on_where_it_was() {
    let mut bench = Bench::new();
    let mut all = Vec::new();
    for round in 0..20 {
        bench.record(1 + round / 3, 1 + round % 4);
        bench.clock.advance(SECOND);
        if round % 2 == 0 {
            bench.kill();
        }
        all.extend(bench.take_all(Span::ZERO));
    }
    assert_eq!(all, bench.written);
}

/// After a crash nobody knows whether the last batch was taken: it comes again as it was, whatever was written since.
#[test]
fn a_batch_whose_fate_is_unknown_comes_again_with_the_same_bytes_and_mark() {
    let mut bench = Bench::new();
    bench.record(1, 3);
    let first = bench.sent().unwrap();
    bench.record(1, 4);
    // Another node, whose segment begins earlier.
    fs::copy(bench.segment(1), bench.directory.path().join("a-0000000001.jsonl")).unwrap();
    for _ in 0..3 {
        bench.kill();
        assert_eq!(bench.sent().unwrap(), first);
    }
    bench.settle(BatchOutcome::Taken);
    bench.kill();
    let rest = bench.take_all(SECOND);
    assert_eq!(rest.len(), 4 + 7);
    assert!(bench.written[3..].iter().all(|line| rest.contains(line)));
}

#[test]
fn a_batch_that_is_too_large_is_halved_until_it_is_taken() {
    let mut bench = Bench::new();
    bench.record(1, 1_000);
    let (mut all, mut refused, mut marks) = (Vec::new(), 0, Vec::new());
    while let Some((mark, lines)) = bench.sent() {
        marks.push(mark);
        if lines.len() > 100 {
            refused += 1;
            bench.refuse(413);
        } else {
            all.extend(lines);
            bench.settle(BatchOutcome::Taken);
        }
    }
    assert_eq!(all, bench.written);
    // 1000, 500, 250 and 125; then one more for each eight that were taken.
    assert!((4..=7).contains(&refused), "{refused}");
    assert_eq!(bench.count(SinkCount::Refused), 0);
    assert_eq!((bench.count(SinkCount::BehindLines), bench.count(SinkCount::BehindBytes)), (0, 0));
    let count = marks.len();
    marks.sort();
    marks.dedup();
    assert_eq!(marks.len(), count, "each is another batch");
}

#[test]
fn batches_grow_again_after_one_that_was_too_large() {
    let mut bench = Bench::new();
    bench.record(1, 6_000);
    assert_eq!(bench.sent().unwrap().1.len(), 1_000);
    bench.refuse(413);
    assert_eq!(bench.count(SinkCount::BehindLines), 6_000, "nothing of it was taken");
    let mut sizes = Vec::new();
    while let Some((_, lines)) = bench.sent() {
        sizes.push(lines.len());
        bench.settle(BatchOutcome::Taken);
    }
    assert_eq!(sizes, [&[500; 8][..], &[1_000; 2]].concat());
}

#[test]
fn a_line_that_is_refused_alone_is_left_out_and_the_others_are_not() {
    for status in [400, 413, 422] {
        let mut bench = Bench::new();
        bench.record(1, 300);
        let bad = bench.written.remove(123);
        let (mut all, end) = (Vec::new(), bench.clock.now() + SECOND);
        while bench.clock.now() < end {
            match bench.sent() {
                Some((_, lines)) if lines.contains(&bad) => bench.refuse(status),
                Some((_, lines)) => {
                    all.extend(lines);
                    bench.settle(BatchOutcome::Taken);
                }
                None => bench.clock.advance(Span::from_millis(10)),
            }
        }
        assert_eq!(all, bench.written);
        assert_eq!(bench.count(SinkCount::Refused), 1);
        // A restart does not bring it back.
        bench.kill();
        assert_eq!(bench.take_all(SECOND), Vec::<String>::new());
    }
}

/// A receiver that takes nothing at all, because its address is wrong for example, costs a line each second at most; and one
/// that is made to refuse lines, by whoever sends requests, gets the others all the same.
#[test]
fn lines_that_are_refused_alone_have_a_second_between_them() {
    let mut bench = Bench::new();
    bench.record(1, 1_000);
    for _ in 0..120 {
        while bench.sent().is_some() {
            bench.refuse(400);
        }
        bench.clock.advance(SECOND);
    }
    let refused = bench.count(SinkCount::Refused);
    assert!((118..=123).contains(&refused), "{refused}");
    bench.sent().unwrap();
    bench.settle(failed());
    bench.clock.advance(Span::from_millis(6_400));
    assert!(bench.sent().is_some(), "they lengthen no pause but their own");
}

/// A batch waits in memory while retention removes its segment; then it is too large.
#[test]
fn a_batch_that_is_halved_needs_no_segment() {
    for status in [413, 400] {
        let mut bench = Bench::new();
        bench.record(1, 80);
        bench.sent().unwrap();
        bench.settle(failed());
        bench.record(2, 20);
        bench.clock.advance(SECOND);
        fs::remove_file(bench.segment(1)).unwrap();
        let (mut all, bad) = (Vec::new(), bench.written.remove(33));
        for _ in 0..1_000 {
            if all.len() == 99 {
                break;
            }
            match bench.sent() {
                Some((_, lines)) if lines.len() > 30 || lines.contains(&bad) => bench.refuse(status),
                Some((_, lines)) => {
                    all.extend(lines);
                    bench.settle(BatchOutcome::Taken);
                }
                None => bench.clock.advance(SECOND),
            }
        }
        assert_eq!(all, bench.written);
        assert_eq!((bench.count(SinkCount::Refused), bench.count(SinkCount::LostLines)), (1, 0));
        assert_eq!((bench.count(SinkCount::BehindLines), bench.count(SinkCount::LagSeconds)), (0, 0));
    }
}

/// A part of a batch is as what was read: a restart brings it again with the same bytes, and goes on behind it.
#[test]
fn a_half_comes_again_as_it_was() {
    let mut bench = Bench::new();
    bench.record(1, 40);
    // A damaged line, so that places in the file are none in the batch.
    let mut bytes = fs::read(bench.segment(1)).unwrap();
    let first = bench.written[0].len();
    bytes[first + 40] ^= 1;
    fs::write(bench.segment(1), bytes).unwrap();
    bench.written.remove(1);
    bench.sent().unwrap();
    bench.refuse(413);
    let half = bench.sent().unwrap();
    assert_eq!(half.1, bench.written[..19]);
    bench.kill();
    assert_eq!(bench.sent().unwrap(), half);
    bench.settle(BatchOutcome::Taken);
    bench.kill();
    assert_eq!(bench.take_all(SECOND), bench.written[19..]);
}

#[test]
fn lines_that_go_before_their_turn_are_counted() {
    let mut bench = Bench::new();
    bench.record(1, 10);
    bench.sent().unwrap();
    bench.settle(failed());
    for sequence in 2..=9 {
        bench.record(sequence, 10);
        bench.clock.advance(Span::from_secs(40));
        bench.sent().unwrap();
        bench.settle(failed());
    }
    // The first is in its hands; of the second to the fifth nothing is left.
    for sequence in 1..=5 {
        fs::remove_file(bench.segment(sequence)).unwrap();
    }
    bench.clock.advance(SECOND);
    bench.sent();
    bench.courier.look(bench.clock.now());
    assert_eq!((bench.count(SinkCount::LostLines), bench.count(SinkCount::LostSegments)), (40, 4));
    assert_eq!(bench.count(SinkCount::BehindLines), 50);
    bench.clock.advance(Span::from_secs(40));
    let all = bench.take_all(SECOND);
    assert_eq!(all, [&bench.written[..10], &bench.written[50..]].concat());
    assert_eq!((bench.count(SinkCount::LostLines), bench.count(SinkCount::LostSegments)), (40, 4));
    // Those that it has had may go.
    for sequence in 6..=8 {
        fs::remove_file(bench.segment(sequence)).unwrap();
    }
    bench.record(9, 1);
    assert_eq!(bench.take_all(Span::from_secs(2)).len(), 1);
    assert_eq!((bench.count(SinkCount::LostLines), bench.count(SinkCount::LostSegments)), (40, 4));
}

#[test]
fn segments_that_nobody_has_seen_are_counted_by_their_numbers() {
    let mut bench = Bench::new();
    bench.record(1, 10);
    bench.take_all(Span::ZERO);
    // While it was away 2 to 6 came and went, and 1, of which nobody knows whether more was written into it.
    bench.kill();
    fs::remove_file(bench.segment(1)).unwrap();
    bench.record(7, 3);
    bench.clock.advance(SECOND);
    assert_eq!(bench.sent().unwrap().1, bench.written[10..]);
    assert_eq!((bench.count(SinkCount::LostLines), bench.count(SinkCount::LostSegments)), (0, 6));
    bench.settle(BatchOutcome::Taken);
    fs::remove_file(bench.segment(7)).unwrap();
    bench.record(9, 3);
    bench.clock.advance(SECOND);
    assert_eq!(bench.sent().unwrap().1, bench.written[13..]);
    // That it had 7 is known, and that there was an 8.
    assert_eq!((bench.count(SinkCount::LostLines), bench.count(SinkCount::LostSegments)), (0, 7));
}

#[test]
fn a_batch_that_went_while_its_fate_was_unknown_is_counted() {
    let mut bench = Bench::new();
    bench.record(1, 10);
    bench.sent().unwrap();
    bench.record(2, 1);
    fs::remove_file(bench.segment(1)).unwrap();
    bench.kill();
    assert_eq!(bench.count(SinkCount::LostLines), 10);
    assert_eq!(bench.take_all(SECOND), bench.written[10..]);
}

/// At least once: what is not known to have been taken is sent.
#[test]
fn a_damaged_place_sends_the_log_from_its_beginning() {
    let mut bench = Bench::new();
    bench.record(1, 10);
    bench.take_all(Span::ZERO);
    let whole = fs::read(bench.cursor()).unwrap();
    for damaged in [&b""[..], b"x", &whole[..whole.len() / 2], &vec![0; 1 << 20]] {
        fs::write(bench.cursor(), damaged).unwrap();
        bench.kill();
        assert_eq!(bench.take_all(SECOND), bench.written);
        assert_eq!(fs::read(bench.cursor()).unwrap(), whole);
    }
}

/// A place that cannot be held, here because a file has the name of its directory, is no place where all is well.
#[test]
fn a_sink_that_cannot_hold_its_place_says_so_in_its_figures() {
    let mut bench = Bench::new();
    let sinks = bench.directory.path().join("sinks");
    fs::remove_dir_all(&sinks).unwrap();
    fs::write(&sinks, "").unwrap();
    bench.record(1, 10);
    for _ in 0..20 {
        assert_eq!(bench.sent(), None);
        bench.clock.advance(SECOND);
    }
    assert_eq!((bench.count(SinkCount::BehindLines), bench.count(SinkCount::Failed)), (10, 20));
    assert_eq!(bench.count(SinkCount::LagSeconds), 20);
    fs::remove_file(&sinks).unwrap();
    assert_eq!(bench.take_all(SECOND), bench.written);
    assert_eq!((bench.count(SinkCount::BehindLines), bench.count(SinkCount::LagSeconds)), (0, 0));
}

/// A directory has its name: it can be opened, and not read.
#[test]
fn a_place_that_cannot_be_read_is_damaged_after_some_tries() {
    let mut bench = Bench::new();
    bench.record(1, 10);
    bench.take_all(Span::ZERO);
    fs::remove_file(bench.cursor()).unwrap();
    fs::create_dir(bench.cursor()).unwrap();
    bench.kill();
    for _ in 0..3 {
        assert_eq!(bench.sent(), None, "it may be readable the next time");
        bench.clock.advance(SECOND);
    }
    assert_eq!(bench.count(SinkCount::Failed), 4);
    assert_eq!(bench.take_all(SECOND), bench.written);
}

#[test]
fn lines_that_wait_for_their_batch_have_an_age() {
    let mut bench = Bench::new();
    let sink = Sink { batch: Span::from_secs(60), ..bench.courier.sink().clone() };
    bench.courier.renew(sink);
    assert_eq!(bench.sent(), None);
    bench.clock.advance(Span::from_secs(5));
    bench.record(1, 1);
    for _ in 0..40 {
        assert_eq!(bench.sent(), None);
        bench.clock.advance(SECOND);
    }
    assert_eq!((bench.count(SinkCount::BehindLines), bench.count(SinkCount::LagSeconds)), (1, 40));
    bench.clock.advance(Span::from_secs(15));
    assert_eq!(bench.take_all(SECOND), bench.written);
    assert_eq!(bench.count(SinkCount::LagSeconds), 0);
}

/// Listing the directory is work that grows with the log: batches at one moment share a look.
#[test]
fn batches_that_follow_each_other_have_a_look_together() {
    let mut bench = Bench::new();
    bench.record(1, 3_000);
    for _ in 0..2 {
        bench.sent().unwrap();
        bench.settle(BatchOutcome::Taken);
        bench.record(1, 100);
    }
    bench.sent().unwrap();
    assert_eq!(bench.count(SinkCount::BehindLines), 1_000, "of before the others were written");
    bench.clock.advance(SECOND);
    bench.sent().unwrap();
    assert_eq!(bench.count(SinkCount::BehindLines), 1_200);
    // A segment that comes between two looks is counted before its first batch goes.
    bench.settle(BatchOutcome::Taken);
    bench.record(2, 1_500);
    for lines in [200, 1_000] {
        assert_eq!(bench.sent().unwrap().1.len(), lines);
        bench.settle(BatchOutcome::Taken);
    }
    fs::remove_file(bench.segment(2)).unwrap();
    bench.record(3, 1);
    bench.clock.advance(SECOND);
    assert_eq!(bench.sent().unwrap().1, bench.written[4_700..]);
    assert_eq!((bench.count(SinkCount::LostLines), bench.count(SinkCount::LostSegments)), (500, 1));
}

/// Of a file that was written anew, by `purge`, nobody knows which of its lines were sent.
#[test]
fn a_file_that_is_written_anew_comes_once_more() {
    let mut bench = Bench::new();
    bench.record(1, 10);
    bench.take_all(Span::ZERO);
    let before = progress(&bench);
    let kept = bench.written[3..].join("\n") + "\n";
    fs::write(bench.segment(1), kept).unwrap();
    let archive = Archive {
        directory: bench.directory.path().to_owned(),
        redactor: Redactor::new(&RedactRules::default()),
        clock: Clock::Manual(bench.clock.clone()),
    };
    let next = batch::next(&archive, &before, 1_000).unwrap();
    assert_eq!(batch::written_anew(&before, &next), [("gw", 1)]);
    bench.clock.advance(SECOND);
    assert_eq!(bench.sent().unwrap().1, bench.written[3..]);
    bench.settle(BatchOutcome::Taken);
    let behind = progress(&bench);
    let next = batch::next(&archive, &behind, 1_000).unwrap();
    assert_eq!(batch::written_anew(&behind, &next), []);
}

/// Between the lines of a batch may be damaged ones, and its last line may begin just before the bytes that are read end.
#[test]
fn a_batch_of_more_bytes_than_are_read_at_once_comes_again_whole() {
    let mut bench = Bench::new();
    bench.record(1, 1);
    let damaged = format!("{}\n", "x".repeat(1_023)).repeat(4 * 1_024 - 1);
    let mut file = OpenOptions::new().append(true).open(bench.segment(1)).unwrap();
    file.write_all(damaged.as_bytes()).unwrap();
    bench.record(1, 3);
    let first = bench.sent().unwrap();
    assert!(first.1.len() > 1, "it has lines of both sides");
    bench.kill();
    assert_eq!(bench.sent().unwrap(), first);
    assert_eq!(bench.take_all(SECOND), bench.written);
}

/// Two gateways on one directory, as during an upgrade: the second one waits, and goes on where the first one was.
#[test]
fn one_process_sends_at_a_time() {
    let mut bench = Bench::new();
    let (mut second, figures) = start(bench.directory.path(), &bench.clock);
    bench.record(1, 10);
    assert!(matches!(second.step(bench.clock.now()), DeliveryStep::Wait(_)));
    assert_eq!(figures.count(SinkCount::BehindLines), 10, "it shows what the first one does not send");
    assert_eq!(bench.take_all(Span::ZERO).len(), 10);
    bench.record(1, 2);
    bench.clock.advance(SECOND);
    assert!(matches!(second.step(bench.clock.now()), DeliveryStep::Wait(_)));
    assert_eq!((figures.count(SinkCount::BehindLines), figures.count(SinkCount::LagSeconds)), (2, 1));
    assert_eq!(figures.count(SinkCount::Failed), 0, "that is no fault");
    let elsewhere = tempfile::tempdir().unwrap();
    bench.courier = start(elsewhere.path(), &bench.clock).0;
    bench.courier = second;
    assert_eq!(bench.take_all(SECOND), bench.written[10..]);
}

#[test]
fn a_directory_that_was_removed_is_made_again_and_costs_no_place() {
    let mut bench = Bench::new();
    bench.record(1, 5);
    bench.take_all(Span::ZERO);
    fs::remove_dir_all(bench.directory.path().join("sinks")).unwrap();
    bench.record(1, 5);
    bench.clock.advance(SECOND);
    assert_eq!(bench.take_all(Span::ZERO), bench.written[5..]);
    assert!(bench.cursor().exists());
    let (mut second, _) = start(bench.directory.path(), &bench.clock);
    assert!(!second.hold(), "it is held as before");
    bench.kill();
    bench.record(1, 5);
    assert_eq!(bench.take_all(SECOND), bench.written[10..]);
}

#[test]
fn damaged_lines_are_not_sent_and_stop_nothing() {
    let mut bench = Bench::new();
    bench.record(1, 3);
    let mut text = fs::read_to_string(bench.segment(1)).unwrap().into_bytes();
    let first = bench.written[0].len();
    text[first + 40] ^= 1;
    fs::write(bench.segment(1), &text).unwrap();
    bench.record(2, 2);
    bench.written.remove(1);
    assert_eq!(bench.take_all(SECOND), bench.written);
    assert_eq!(bench.count(SinkCount::BehindLines), 0);
}
