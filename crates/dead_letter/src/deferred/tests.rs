//! The store on a disk that fails on demand.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::faults::Faults;
use sluicegate_time::{ManualClock, Span};

const ROOM: StoreBounds = StoreBounds { max_requests: 1_000, max_bytes: 4 << 20, max_age: Span::from_secs(3_600) };
const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const START: Tick = Tick::from_nanos(1_767_323_045_678_901_000);

fn keys(byte: u8) -> Keys {
    Keys { seal: [byte; 32], others: Vec::new(), order: [1; 32] }
}

fn request(number: u32, client: u8) -> Deferral {
    Deferral {
        route: "api".into(),
        limit: "per-client".into(),
        order: vec![client],
        client: [192, 0, 2, client].into(),
        trusted_peer: false,
        is_https: false,
        request_id: format!("r{number}"),
        method: "POST".to_owned(),
        host: b"a.example".to_vec(),
        target: b"/jobs".to_vec(),
        headers: vec![(b"authorization".to_vec(), b"Bearer s3cret".to_vec())],
        body: format!("job {number}").into_bytes(),
        not_before: START,
        idempotency_key: format!("key-{number}"),
    }
}

struct Rig {
    directory: TempDir,
    clock: ManualClock,
    faults: Faults,
    store: Deferrals,
}

impl Rig {
    fn new(room: StoreBounds) -> Self {
        let directory = TempDir::new().unwrap();
        Self::on(directory, room)
    }

    fn on(directory: TempDir, room: StoreBounds) -> Self {
        let (clock, faults) = (ManualClock::new(), Faults::default());
        clock.advance(START.since(Tick::ZERO));
        let of_store = Clock::Manual(clock.clone());
        let store = Deferrals::start_on(directory.path(), room, keys(7), of_store, faults.disk()).unwrap();
        let rig = Self { directory, clock, faults, store };
        rig.wait_until(Deferrals::is_open);
        rig
    }

    /// The directory as a crash would leave it now, opened by another process.
    fn crashed(&self, room: StoreBounds) -> Self {
        let copy = TempDir::new().unwrap();
        copy_all(&self.store.0.directory, &copy.path().join("deferred"));
        Self::on(copy, room)
    }

    fn keep(&self, number: u32, client: u8) -> Result<u128, Unkept> {
        self.store.offer(request(number, client)).and_then(|told| told.blocking_recv().unwrap())
    }

    fn end(&self, id: u128, fate: DeferredFate) {
        let ended = Ended { fate, at: self.clock.now(), tries: 1, status: Some(200), reason: None };
        self.store.end(id, ended, None).blocking_recv().unwrap();
    }

    fn state(&self, id: u128) -> &'static str {
        self.store.status(id).map_or("unknown", |status| status.state())
    }

    fn wake(&self) {
        let _ = self.store.0.sender.try_send(Message::Wake);
    }

    fn wait_until(&self, holds: impl Fn(&Deferrals) -> bool) {
        for _ in 0..2_000 {
            if holds(&self.store) {
                return;
            }
            self.wake();
            thread::sleep(Duration::from_millis(5));
        }
        panic!("it does not come to be");
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.faults.set(|state| (state.blocked, state.room) = (false, None));
        self.store.close();
    }
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn balance(totals: Totals) -> (u64, u64, u64, u64, u64) {
    (totals.deferred, totals.sent, totals.failed, totals.expired, totals.pending())
}

#[test]
fn whoever_is_told_of_a_request_finds_it_after_a_crash() {
    let rig = Rig::new(ROOM);
    let ids: Vec<_> = (0..20).map(|number| rig.keep(number, 1).unwrap()).collect();
    let answer = KeptAnswer { status: 201, headers: vec![], body: b"done".to_vec(), truncated: false };
    let ended = Ended { fate: DeferredFate::Sent, at: START, tries: 2, status: Some(201), reason: None };
    rig.store.end(ids[0], ended.clone(), Some(&answer)).blocking_recv().unwrap();
    rig.end(ids[1], DeferredFate::Failed);
    let next = rig.crashed(ROOM);
    assert_eq!(balance(next.store.figures().totals), (20, 1, 1, 0, 18));
    assert_eq!((next.state(ids[0]), next.state(ids[1]), next.state(ids[2])), ("sent", "failed", "pending"));
    assert_eq!(next.store.status(ids[0]).unwrap().ended, Some(ended));
    assert_eq!(next.store.answer(ids[0], CLIENT).unwrap().blocking_recv().unwrap(), Some(answer));
    assert_eq!(next.store.answer(ids[1], CLIENT).unwrap().blocking_recv().unwrap(), None);
    let taken: Vec<_> = next.store.take_fresh().iter().map(|ticket| ticket.id).collect();
    assert_eq!(taken, ids[2..], "in the order in which they came");
    let again = next.store.take_up(ids[5]).unwrap().unwrap();
    assert_eq!((again.body.as_slice(), again.idempotency_key.as_str()), (&b"job 5"[..], "key-5"));
    assert_eq!(again.headers, request(5, 1).headers);
    let listing = Listing::read(next.directory.path()).unwrap();
    assert_eq!((listing.requests.len(), balance(listing.totals), listing.damaged), (20, (20, 1, 1, 0, 18), 0));
    let (whole, kept) = read_one(next.directory.path(), &listing.requests[0], &keys(7)).unwrap();
    assert_eq!((whole.body.as_slice(), kept.map(|kept| kept.body)), (&b"job 0"[..], Some(b"done".to_vec())));
    assert!(read_one(next.directory.path(), &listing.requests[0], &keys(8)).unwrap_err().contains("another key"));
}

#[test]
fn nothing_on_the_disk_shows_a_secret() {
    let rig = Rig::new(ROOM);
    rig.keep(0, 1).unwrap();
    for entry in fs::read_dir(rig.store.directory()).unwrap() {
        let text = String::from_utf8(fs::read(entry.unwrap().path()).unwrap()).unwrap();
        assert!(!text.contains("s3cret") && !text.contains("job") && !text.contains("key-0"), "{text}");
    }
}

#[test]
fn a_full_disk_is_never_told_as_kept() {
    let rig = Rig::new(ROOM);
    let first = rig.keep(0, 1).unwrap();
    for room in [0, 1, 100, 400] {
        rig.faults.set(|state| state.room = Some(room));
        assert_eq!(rig.keep(1, 1), Err(Unkept::Disk), "{room}");
        assert_eq!(rig.store.figures().totals.pending(), 1);
        assert_eq!(rig.store.0.index().held().0, 1, "its place is free again");
    }
    rig.faults.set(|state| (state.room, state.no_sync) = (None, true));
    assert_eq!(rig.keep(1, 1), Err(Unkept::Disk), "bytes that are not synced are not kept");
    rig.faults.set(|state| state.no_sync = false);
    let second = rig.keep(2, 1).unwrap();
    let next = rig.crashed(ROOM);
    assert_eq!(balance(next.store.figures().totals), (2, 0, 0, 0, 2));
    assert_eq!((next.state(first), next.state(second)), ("pending", "pending"));
}

#[test]
fn bytes_that_cannot_be_taken_back_are_left_behind() {
    let rig = Rig::new(ROOM);
    rig.keep(0, 1).unwrap();
    rig.faults.set(|state| (state.room, state.no_truncate) = (Some(100), true));
    assert_eq!(rig.keep(1, 1), Err(Unkept::Disk));
    rig.faults.set(|state| (state.room, state.no_truncate) = (None, false));
    rig.keep(2, 1).unwrap();
    let next = rig.crashed(ROOM);
    assert_eq!(balance(next.store.figures().totals), (2, 0, 0, 0, 2));
}

#[test]
fn an_end_that_the_disk_refuses_is_told_when_it_is_durable() {
    let rig = Rig::new(ROOM);
    let id = rig.keep(0, 1).unwrap();
    rig.faults.set(|state| state.room = Some(0));
    let ended = Ended { fate: DeferredFate::Sent, at: START, tries: 1, status: Some(200), reason: None };
    let mut told = rig.store.end(id, ended, None);
    let writes = rig.faults.get(|state| state.writes);
    rig.wait_until(|_| rig.faults.get(|state| state.writes) > writes + 1);
    assert!(told.try_recv().is_err());
    assert_eq!((rig.state(id), rig.crashed(ROOM).state(id)), ("pending", "pending"));
    rig.faults.set(|state| state.room = None);
    told.blocking_recv().unwrap();
    assert_eq!((rig.state(id), rig.crashed(ROOM).state(id)), ("sent", "sent"));
}

#[test]
fn an_end_cut_at_any_byte_harms_no_other_line() {
    let rig = Rig::new(ROOM);
    let ids = [rig.keep(0, 1).unwrap(), rig.keep(1, 1).unwrap()];
    let path = fs::read_dir(rig.store.directory())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some())
        .unwrap();
    let bytes = fs::read(&path).unwrap();
    let last = bytes[..bytes.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    for length in (last..bytes.len()).step_by(7).chain([bytes.len() - 1]) {
        let copy = TempDir::new().unwrap();
        let folder = copy.path().join("deferred");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(path.file_name().unwrap()), &bytes[..length]).unwrap();
        let next = Rig::on(copy, ROOM);
        assert_eq!((next.state(ids[0]), next.state(ids[1])), ("pending", "unknown"), "{length} of {}", bytes.len());
        let more = next.keep(2, 1).unwrap();
        assert_eq!(next.crashed(ROOM).state(more), "pending");
    }
}

#[test]
fn whoever_is_too_old_expires_but_for_the_one_that_is_under_way() {
    let rig = Rig::new(ROOM);
    let ids = [rig.keep(0, 1).unwrap(), rig.keep(1, 1).unwrap()];
    rig.store.take_up(ids[0]).unwrap().unwrap();
    rig.clock.advance(Span::from_secs(3_601));
    rig.wait_until(|store| store.figures().totals.expired == 1);
    assert_eq!((rig.state(ids[0]), rig.state(ids[1])), ("pending", "expired"));
    rig.store.put_back(ids[0], 3, Some(503));
    rig.wait_until(|store| store.figures().totals.expired == 2);
    assert!(rig.store.take_up(ids[0]).is_none());
    assert_eq!(balance(rig.crashed(ROOM).store.figures().totals), (2, 0, 0, 2, 0));
}

#[test]
fn old_segments_go_with_what_has_its_fate_and_without_what_is_pending() {
    let room = StoreBounds { max_requests: 1_000, max_bytes: 200_000, ..ROOM };
    let rig = Rig::new(room);
    let first = rig.keep(0, 1).unwrap();
    for number in 1..1_000 {
        let mut large = request(number, 2);
        large.body = vec![0; 3_000];
        let id = rig.store.offer(large).unwrap().blocking_recv().unwrap().unwrap();
        rig.end(id, DeferredFate::Sent);
    }
    let bytes: u64 =
        fs::read_dir(rig.store.directory()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes < 2 * room.max_bytes + 2 * 64 * 1024 + 10_000, "{bytes}");
    let next = rig.crashed(room);
    assert_eq!(balance(next.store.figures().totals), (1_000, 999, 0, 0, 1));
    assert_eq!(next.store.take_up(first).unwrap().unwrap().body, b"job 0");
    next.store.put_back(first, 1, None);
    // By age too.
    next.clock.advance(Span::from_secs(2 * 3_600 + 1));
    next.wait_until(|store| store.figures().totals.expired == 1);
    next.clock.advance(Span::from_secs(3_600));
    next.wait_until(|store| store.0.index().entries.is_empty());
    assert_eq!(balance(next.crashed(room).store.figures().totals), (1_000, 999, 0, 1, 0));
}

#[test]
fn another_process_waits_until_the_directory_is_free() {
    let rig = Rig::new(ROOM);
    let id = rig.keep(0, 1).unwrap();
    let other = Deferrals::start(rig.directory.path(), ROOM, keys(7), Clock::Manual(rig.clock.clone())).unwrap();
    thread::sleep(Duration::from_millis(50));
    assert!(!other.is_open());
    assert_eq!(other.offer(request(1, 1)).unwrap_err(), Unkept::Full);
    rig.store.close();
    assert_eq!(rig.store.offer(request(1, 1)).unwrap_err(), Unkept::Full);
    rig.wait_until(|_| other.is_open());
    assert_eq!(other.status(id).unwrap().state(), "pending");
    other.close();
}

#[test]
fn what_is_sealed_under_a_key_of_before_is_opened_by_it() {
    let rig = Rig::new(ROOM);
    let id = rig.keep(0, 1).unwrap();
    rig.store.reconfigure(ROOM, keys(9));
    assert!(rig.store.take_up(id).unwrap().unwrap_err().words.contains("another key"));
    rig.store.put_back(id, 0, None);
    let order = rig.store.0.order_of(b"x");
    rig.store.reconfigure(ROOM, Keys { seal: [9; 32], others: vec![[7; 32]], order: [1; 32] });
    let second = rig.keep(1, 1).unwrap();
    assert_eq!(rig.store.0.order_of(b"x"), order, "an order outlasts the keys");
    assert_eq!(rig.store.take_up(id).unwrap().unwrap().body, b"job 0");
    assert_eq!(rig.store.take_up(second).unwrap().unwrap().body, b"job 1");
}

#[test]
fn a_request_whose_client_has_gone_before_it_was_written_is_not_kept() {
    let rig = Rig::new(ROOM);
    rig.faults.set(|state| state.blocked = true);
    let first = rig.store.offer(request(0, 1)).unwrap();
    rig.faults.wait_until(|state| state.writes > 0);
    drop(rig.store.offer(request(1, 1)).unwrap());
    rig.faults.set(|state| state.blocked = false);
    first.blocking_recv().unwrap().unwrap();
    rig.wait_until(|store| store.0.index().held().0 == 1);
    assert_eq!(balance(rig.store.figures().totals), (1, 0, 0, 0, 1));
}

#[test]
fn ends_share_a_sync_within_100_ms_and_none_waits_for_it() {
    let rig = Rig::new(ROOM);
    let ids: Vec<_> = (0..5).map(|number| rig.keep(number, 1).unwrap()).collect();
    let syncs = || rig.faults.get(|state| state.syncs);
    let before = syncs();
    for id in &ids[..4] {
        rig.end(*id, DeferredFate::Sent);
    }
    assert_eq!((syncs(), rig.crashed(ROOM).state(ids[3])), (before, "sent"));
    rig.clock.advance(Span::from_millis(100));
    rig.wait_until(|_| syncs() == before + 1);
    rig.end(ids[4], DeferredFate::Sent);
    rig.store.close();
    assert_eq!(syncs(), before + 2, "the end of the process is one of them");
}

#[test]
fn many_that_come_at_once_share_a_sync() {
    let rig = Rig::new(ROOM);
    rig.faults.set(|state| state.blocked = true);
    let mut all: Vec<_> = vec![rig.store.offer(request(0, 1)).unwrap()];
    rig.faults.wait_until(|state| state.writes > 0);
    all.extend((1..200).map(|number| rig.store.offer(request(number, 1)).unwrap()));
    rig.faults.set(|state| state.blocked = false);
    for told in all {
        told.blocking_recv().unwrap().unwrap();
    }
    assert_eq!(rig.faults.get(|state| state.syncs), 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever happens, in memory and for whoever opens a copy of the disk: each request has one state, and the sums are right.
    #[test]
    fn the_balance_holds_at_any_crash(steps in proptest::collection::vec((0_u8..8, any::<u16>()), 1..60)) {
        let room = StoreBounds { max_requests: 40, max_bytes: 20_000, ..ROOM };
        let mut rig = Rig::new(room);
        let mut model: Vec<(u128, &'static str)> = Vec::new();
        for (step, pick) in steps {
            let pending: Vec<_> = model.iter().filter(|(_, state)| *state == "pending").map(|(id, _)| *id).collect();
            let picked = pending.get(usize::from(pick) % pending.len().max(1)).copied();
            match (step, picked) {
                (0..=2, _) => {
                    rig.faults.set(|state| state.room = (pick % 5 == 0).then_some(usize::from(pick) % 900));
                    if let Ok(id) = rig.keep(u32::from(pick), pick as u8 % 3) {
                        model.push((id, "pending"));
                    }
                    rig.faults.set(|state| state.room = None);
                }
                (3..=5, Some(id)) => {
                    let (fate, word) = if step == 5 { (DeferredFate::Failed, "failed") } else { (DeferredFate::Sent, "sent") };
                    rig.end(id, fate);
                    model.iter_mut().filter(|(own, _)| *own == id).for_each(|(_, state)| *state = word);
                }
                (6, _) => rig = rig.crashed(room),
                _ => {}
            }
            let count = |word: &str| model.iter().filter(|(_, state)| *state == word).count() as u64;
            let totals = rig.store.figures().totals;
            prop_assert_eq!(
                balance(totals),
                (model.len() as u64, count("sent"), count("failed"), 0, count("pending"))
            );
            prop_assert_eq!(Listing::read(rig.directory.path()).unwrap().totals, totals);
            for (id, state) in &model {
                let shown = rig.state(*id);
                prop_assert!(shown == *state || shown == "unknown" && *state != "pending", "{} is not {}", shown, state);
            }
        }
    }
}

#[test]
fn a_request_that_expires_while_the_disk_fails_is_sent_by_nobody() {
    let rig = Rig::new(ROOM);
    let id = rig.keep(0, 1).unwrap();
    rig.faults.set(|state| state.room = Some(0));
    rig.clock.advance(Span::from_secs(3_601));
    let writes = rig.faults.get(|state| state.writes);
    rig.wait_until(|_| rig.faults.get(|state| state.writes) > writes);
    assert!(rig.store.take_up(id).is_none());
    assert_eq!((rig.state(id), rig.store.take_woken().len()), ("pending", 1));
    rig.faults.set(|state| state.room = None);
    rig.wait_until(|store| store.figures().totals.expired == 1);
    assert_eq!(balance(rig.crashed(ROOM).store.figures().totals), (1, 0, 0, 1, 0));
}

#[test]
fn a_request_whose_client_goes_while_it_is_written_is_not_sent() {
    let rig = Rig::new(ROOM);
    rig.faults.set(|state| state.blocked = true);
    let told = rig.store.offer(request(0, 1)).unwrap();
    rig.faults.wait_until(|state| state.writes > 0);
    drop(told);
    rig.faults.set(|state| state.blocked = false);
    rig.wait_until(|store| store.figures().totals.failed == 1);
    assert_eq!(balance(rig.store.figures().totals), (1, 0, 1, 0, 0));
    assert!(rig.store.take_fresh().is_empty());
}

#[test]
fn a_segment_that_cannot_be_read_stays_with_what_is_pending() {
    let room = StoreBounds { max_requests: 1_000, max_bytes: 200_000, ..ROOM };
    let rig = Rig::new(room);
    let pending = rig.keep(0, 1).unwrap();
    let first = rig.store.directory().join("deferred-0000000001.jsonl");
    let aside = rig.directory.path().join("aside");
    let fill = |count: u32| {
        for number in 1..=count {
            let mut large = request(number, 2);
            large.body = vec![0; 3_000];
            let id = rig.store.offer(large).unwrap().blocking_recv().unwrap().unwrap();
            rig.end(id, DeferredFate::Sent);
        }
    };
    fs::rename(&first, &aside).unwrap();
    fill(150);
    assert_eq!(rig.state(pending), "pending", "it is not given up");
    assert!(rig.store.take_up(pending).unwrap().is_err_and(|error| !error.is_final));
    rig.store.put_back(pending, 0, None);
    fs::rename(&aside, &first).unwrap();
    fill(1);
    rig.wait_until(|_| !first.exists());
    assert_eq!(rig.store.take_up(pending).unwrap().unwrap().body, b"job 0");
    assert_eq!(balance(rig.store.figures().totals), (152, 151, 0, 0, 1));
}

#[test]
fn a_pending_request_whose_line_is_damaged_fails_and_is_counted() {
    let room = StoreBounds { max_requests: 1_000, max_bytes: 200_000, ..ROOM };
    let rig = Rig::new(room);
    let pending = rig.keep(0, 1).unwrap();
    let first = rig.store.directory().join("deferred-0000000001.jsonl");
    let mut bytes = fs::read(&first).unwrap();
    let at = bytes.windows(6).position(|window| window == b"\"data\"").unwrap() + 20;
    bytes[at] ^= 1;
    fs::write(&first, bytes).unwrap();
    for number in 1..150 {
        let mut large = request(number, 2);
        large.body = vec![0; 3_000];
        let id = rig.store.offer(large).unwrap().blocking_recv().unwrap().unwrap();
        rig.end(id, DeferredFate::Sent);
    }
    rig.wait_until(|_| !first.exists());
    assert_eq!(balance(rig.store.figures().totals), (150, 149, 1, 0, 0));
    assert_eq!(rig.state(pending), "unknown", "it went with its segment");
}

#[test]
fn answers_are_read_for_each_client_by_its_share() {
    let rig = Rig::new(ROOM);
    let id = rig.keep(0, 1).unwrap();
    let answer = KeptAnswer { status: 200, headers: vec![], body: vec![b'x'; 60_000], truncated: false };
    let ended = Ended { fate: DeferredFate::Sent, at: START, tries: 1, status: Some(200), reason: None };
    rig.store.end(id, ended, Some(&answer)).blocking_recv().unwrap();
    // The thread that reads waits for the lock.
    let index = rig.store.0.index();
    let asked: Vec<_> = (0..20).filter_map(|_| rig.store.answer(id, CLIENT)).collect();
    assert_eq!(asked.len(), MAX_READS_OF_CLIENT);
    let other = rig.store.answer(id, [192, 0, 2, 9].into()).unwrap();
    drop(index);
    assert!(asked.into_iter().chain([other]).all(|told| told.blocking_recv().unwrap().is_some()));
    rig.wait_until(|store| lock(&store.0.reads).is_empty());
}
