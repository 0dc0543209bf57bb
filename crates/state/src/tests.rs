use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use super::*;
use sluicegate_limiter::{Algorithm, Ask, Bound, Counting, Gcra, LimitSpec, Policy, Report, TimerWheel, Verdict};
use sluicegate_time::{Span, Tick, Wall, WallState};

fn at(secs: u64) -> Tick {
    Tick::ZERO + Span::from_secs(1_700_000_000 + secs)
}

fn limit(algorithm: Algorithm) -> Arc<Limit> {
    Limit::new(LimitSpec { max_keys: 1_000_000, ..LimitSpec::new("l", algorithm) })
}

fn hourly() -> Arc<Limit> {
    limit(Algorithm::TimerWheel(TimerWheel::new(&["3/h".parse().unwrap()], None, Bound::Sliding).unwrap()))
}

fn key(number: u64) -> Fingerprint {
    Fingerprint::known(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).unwrap()
}

/// How many more a key has at `now`.
fn left(limit: &Arc<Limit>, number: u64, now: Tick) -> usize {
    let policy = Policy::new(vec![Arc::clone(limit)]).unwrap();
    let ask = [Ask { key: Some(key(number)), cost: 1, counting: Counting::AtOnce, ..Ask::default() }];
    (0..100)
        .take_while(|_| matches!(policy.check(&ask, Span::MAX, now, &mut Report::default()), Verdict::Admitted(_)))
        .count()
}

fn mark() -> Mark {
    Mark::of(&KeyHasher::with_secret(&[7; 32]))
}

fn write_one(path: &Path, limit: &Limit, now: Tick) -> Written {
    write(path, mark(), (now, &WallState::default()), [Named { name: "per-client".into(), limit }]).unwrap()
}

/// A file of 1,000 keys that have one request left each.
fn file(directory: &Path) -> std::path::PathBuf {
    let (path, limit) = (directory.join("counts"), hourly());
    for number in 1..=1_000 {
        limit.charge(key(number), 2, at(0));
    }
    assert_eq!(write_one(&path, &limit, at(1)).keys, 1_000);
    path
}

fn read_into(
    path: &Path,
    limit: &Arc<Limit>,
    now: Tick,
) -> Result<RestoredKeys, (ReadError, Option<std::path::PathBuf>)> {
    read(path, mark(), now, |name| (name == "per-client").then(|| Arc::clone(limit)))
}

#[test]
fn counts_go_on_in_another_process_as_long_as_they_count() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let next = hourly();
    let taken = read_into(&path, &next, at(2)).unwrap();
    assert_eq!((taken.keys, taken.left, taken.at), (1_000, 0, at(1)));
    assert_eq!([1, 500, 1_000].map(|number| left(&next, number, at(2))), [1; 3]);
    assert_eq!(left(&next, 1_001, at(2)), 3, "a key that was not there");
    let late = hourly();
    assert_eq!(read_into(&path, &late, at(7_200)).unwrap().keys, 0);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn other_numbers_and_limits_that_are_gone_are_left_out_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path());
    let other = limit(Algorithm::Gcra(Gcra::new(&["3/h".parse().unwrap()], None).unwrap()));
    let taken = read_into(&path, &other, at(2)).unwrap();
    assert_eq!((taken.keys, taken.unknown), (0, vec!["per-client".to_owned()]));
    let taken = read(&path, mark(), at(2), |_| None).unwrap();
    assert_eq!((taken.keys, taken.unknown.len()), (0, 1));
    assert!(path.exists(), "it is no bad file");
}

#[test]
fn a_file_that_is_cut_at_any_byte_is_left_aside_and_gives_what_came_before() {
    let directory = tempfile::tempdir().unwrap();
    let whole = fs::read(file(directory.path())).unwrap();
    let path = directory.path().join("cut");
    let step = 1 + whole.len() / 400;
    for length in (0..60).chain((60..whole.len()).step_by(step)).chain(whole.len() - 30..whole.len()) {
        fs::write(&path, &whole[..length]).unwrap();
        let next = hourly();
        let (error, bad) = read_into(&path, &next, at(2)).unwrap_err();
        assert!(matches!(error, ReadError::NotOurs | ReadError::Damaged(_)), "{length}: {error}");
        assert_eq!(bad.unwrap(), directory.path().join("cut.bad"));
        assert!(!path.exists());
        if let ReadError::Damaged(taken) = error {
            assert_eq!(taken.keys, next.key_count());
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let whole = fs::read(file(directory.path())).unwrap();
    let path = directory.path().join("flipped");
    for place in (0..whole.len()).step_by(1 + whole.len() / 500) {
        let mut bytes = whole.clone();
        bytes[place] ^= 1 << (place % 8);
        fs::write(&path, bytes).unwrap();
        assert!(read_into(&path, &hourly(), at(2)).unwrap_err().0.is_bad(), "byte {place}");
    }
}

#[test]
fn files_of_others_are_left_aside_and_what_cannot_be_read_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path());
    let whole = fs::read(&path).unwrap();
    let bad = directory.path().join("counts.bad");
    let again = |change: &dyn Fn(&mut Vec<u8>), hasher: &[u8; 32], now: Tick| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let (error, moved) = read(&path, Mark::of(&KeyHasher::with_secret(hasher)), now, |_| None).unwrap_err();
        assert_eq!((moved.as_deref(), path.exists()), (Some(&*bad), false), "{error}");
        error.to_string()
    };
    assert_eq!(again(&|_| (), &[8; 32], at(2)), "its keys were made with another secret");
    assert_eq!(again(&|bytes| bytes[8] = 9, &[7; 32], at(2)), "it is of version 9, and this is 1");
    assert!(again(&|_| (), &[7; 32], Tick::ZERO).starts_with("it was written in the future"));
    assert_eq!(again(&|bytes| bytes[0] = b'x', &[7; 32], at(2)), "it is no state file, or its head is damaged");
    fs::remove_file(&bad).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(read_into(&path, &hourly(), at(2)), Err((ReadError::NotOurs, Some(_)))));
    assert!(matches!(read_into(&path, &hourly(), at(2)), Err((ReadError::NoFile, None))));
}

#[test]
fn what_cannot_be_written_is_an_error_and_leaves_the_last_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path());
    let before = fs::read(&path).unwrap();
    fs::create_dir(directory.path().join("counts.new")).unwrap();
    let limit = hourly();
    let limits = || [Named { name: "per-client".into(), limit: &limit }];
    assert!(write(&path, mark(), (at(3), &WallState::default()), limits()).is_err());
    assert_eq!(fs::read(&path).unwrap(), before);
    assert!(write(&directory.path().join("none/counts"), mark(), (at(3), &WallState::default()), limits()).is_err());
}

#[test]
fn another_process_takes_over_the_keys_and_then_what_is_counted_meanwhile() {
    let (limit, next) = (hourly(), hourly());
    let (mark, mut sent) = (Mark(7), Vec::new());
    assert_eq!([left(&limit, 1, at(0)), left(&limit, 1, at(0))], [3, 0]);
    let named = [Named { name: "l, by client".into(), limit: &limit }];
    assert_eq!(send(&mut sent, mark, at(1), named).unwrap().keys, 1);
    assert_eq!(left(&limit, 2, at(2)), 3);
    let mut followed = Vec::new();
    limit.take_followed(&mut followed);
    for _ in 0..2 {
        send_followed(&mut sent, "l, by client", &followed).unwrap();
        followed.clear();
    }
    let mut from = sent.as_slice();
    let find = |name: &str| (name == "l, by client").then(|| Arc::clone(&next));
    assert_eq!(receive(&mut from, mark, at(3), find).unwrap().keys, 1);
    let (name, followed) = receive_followed(&mut from).unwrap();
    assert_eq!((name.as_str(), followed.len()), ("l, by client", 3));
    next.count_followed(&followed);
    assert_eq!((receive_followed(&mut from), [1, 2, 3].map(|name| left(&next, name, at(4)))), (None, [0, 0, 3]));
    // Cut off, or damaged: nothing comes of it.
    let block = &sent[sent.len() - 3 * 24 - 30..];
    for cut in 0..block.len() {
        let _ = receive_followed(&mut &block[..cut]);
    }
}

#[test]
fn a_file_tells_how_ticks_and_the_wall_clock_stood() {
    let directory = tempfile::tempdir().unwrap();
    let (path, limit) = (directory.path().join("counts"), hourly());
    assert_eq!(left(&limit, 1, at(0)), 3);
    let kept = |state: &WallState| {
        write(&path, mark(), (at(1), state), [Named { name: "per-client".into(), limit: &limit }]).unwrap();
        let taken = read(&path, mark(), at(2), |_| Some(hourly())).unwrap();
        assert_eq!(taken.keys, 1);
        // The time by the wall clock at which it is read.
        |ahead: i64, after: Span| {
            let now = Wall::from_nanos((at(1) + after).as_nanos().saturating_add_signed(ahead));
            wall_of(&path, mark(), now)
        }
    };
    let (hour, secs) = (3_600_000_000_000, Span::from_secs);
    // Then it is the file that a version before it wrote.
    for ahead in [0, 999_999_999, -999_999_999] {
        assert_eq!(kept(&WallState { ahead, ..WallState::default() })(ahead, secs(5)), None);
    }
    for ahead in [hour, -hour, i64::from(i32::MIN)] {
        let state = WallState { ahead, ..WallState::default() };
        assert_eq!(kept(&state)(ahead, secs(5)), Some(state).filter(|_| ahead.unsigned_abs() >= 1_000_000_000));
    }
    let highest = Wall::from_nanos(at(9_000).as_nanos());
    let state = WallState { ahead: -hour, highest, highest_for: secs(100) };
    let read_later = kept(&state);
    assert_eq!(read_later(-hour, secs(40)), Some(WallState { highest_for: secs(60), ..state }));
    assert_eq!(read_later(-hour, secs(200)), Some(WallState { highest_for: Span::ZERO, ..state }));
    // Put right while no process ran: the file is five seconds old, whatever it says.
    for ahead in [hour, -2 * hour] {
        let right = kept(&WallState { ahead, ..WallState::default() })(0, secs(5)).unwrap();
        assert_eq!((right.ahead, right.highest_for > secs(0)), (0, ahead > 0), "{ahead}");
        let later = Wall::from_nanos((at(1) + Span::from_nanos(hour.unsigned_abs())).as_nanos());
        assert_eq!(
            right.highest,
            if ahead > 0 { later } else { Wall::EPOCH },
            "a calendar's window does not end twice"
        );
    }
    // It was put right while the process ran, and stays so.
    for (ahead, down) in [(hour, 5), (hour, 100_000), (-hour, 5), (-hour, 3_500)] {
        let state = WallState { ahead, ..WallState::default() };
        assert_eq!(kept(&state)(ahead, secs(down)), Some(state), "{ahead}, {down} s later");
    }
    assert_eq!(wall_of(&path, Mark(1), Wall::EPOCH), None, "of another secret");
    assert_eq!(wall_of(&directory.path().join("none"), mark(), Wall::EPOCH), None);
}
