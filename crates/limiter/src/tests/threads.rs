use std::sync::Barrier;
use std::sync::atomic::AtomicU64;
use std::thread;

use super::*;

#[test]
fn limits_are_shared_and_tickets_are_sent() {
    fn shared<T: Send + Sync>() {}
    shared::<Policy>();
    shared::<Limit>();
    shared::<Ticket>();
}

#[test]
fn two_threads_at_one_instant_admit_exactly_the_limit() {
    let (_, policy) = one(spec("50000/s"));
    let start = Barrier::new(2);
    let admitted: usize = thread::scope(|scope| {
        let work = || {
            start.wait();
            (0..200_000).filter(|_| admitted(&policy, 1, at(0))).count()
        };
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads.map(|thread| thread.join().unwrap()).iter().sum()
    });
    assert_eq!(admitted, 50_000);
}

#[test]
fn two_threads_with_two_limits_in_either_order_stay_exact() {
    // Locks taken in two orders would soon wait for each other.
    let (one, two) = (Limit::new(spec("3000/s")), Limit::new(spec("4000/s")));
    let policies = [policy(&[&one, &two]), policy(&[&two, &one])];
    let start = Barrier::new(2);
    let admitted: usize = thread::scope(|scope| {
        let threads = policies.each_ref().map(|policy| {
            scope.spawn(|| {
                start.wait();
                (0..300_000).filter(|name| admitted(policy, name % 3, at(0))).count()
            })
        });
        threads.map(|thread| thread.join().unwrap()).iter().sum()
    });
    assert_eq!(admitted, 3 * 3_000);
    assert_eq!(drain(&policy(&[&two]), 1, at(0)), 1_000, "a refusal by the one took nothing from the other");
}

/// Clocks that are read at different moments: each thread moves a shared clock and may be overtaken before it asks, by
/// as much as the scheduler likes. Whatever was admitted, was so between its two readings of the clock.
#[test]
fn two_threads_with_a_moving_clock_never_exceed_the_limit() {
    const LIMIT: usize = 50;
    let (_, policy) = one(spec("50/100ms"));
    let clock = AtomicU64::new(0);
    let stamps: Vec<(u64, u64)> = thread::scope(|scope| {
        let work = || {
            let ask = || {
                let before = clock.fetch_add(100_000, Ordering::SeqCst);
                let admitted = admitted(&policy, 1, Tick::from_nanos(before));
                admitted.then(|| (before, clock.load(Ordering::SeqCst)))
            };
            (0..50_000).filter_map(|_| ask()).collect::<Vec<_>>()
        };
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    for (start, _) in &stamps {
        let within = stamps.iter().filter(|(before, after)| before >= start && *after < start + 90_000_000);
        assert!(within.count() <= LIMIT, "more than {LIMIT} within W - w of {start}");
    }
    // 10 s at 50 per 100 ms, saturated.
    assert!(stamps.len() <= 101 * LIMIT && stamps.len() >= 90 * LIMIT, "{}", stamps.len());
}

#[test]
fn waiters_of_two_threads_all_end_and_nobody_is_lost() {
    let (limit, policy) = one(LimitSpec { max_queue: Some(1_000), ..waiting("7/10ms", 100_000) });
    let clock = AtomicU64::new(0);
    let admitted: usize = thread::scope(|scope| {
        let work = || {
            let now = || Tick::from_nanos(clock.fetch_add(20_000, Ordering::SeqCst));
            let mut admitted = 0;
            let mut tickets: Vec<Waiting> = Vec::new();
            for turn in 0..3_000 {
                match check(&policy, turn % 2, 1, now()) {
                    Verdict::Admitted(_) => admitted += 1,
                    Verdict::Queued(ticket) => tickets.push(Waiting { ticket, woken: Arc::default() }),
                    Verdict::Refused(_) => {}
                }
                if turn % 5 == 0 && tickets.len() > 2 {
                    drop(tickets.remove(tickets.len() / 2));
                }
                tickets.retain_mut(|waiting| match waiting.attempt(now()) {
                    Attempt::Admitted(_) => {
                        admitted += 1;
                        false
                    }
                    Attempt::Pending { .. } => true,
                    Attempt::TimedOut(_) => panic!("patience is long"),
                });
            }
            while !tickets.is_empty() {
                let before = tickets.len();
                tickets.retain_mut(|waiting| waiting.attempt(now()) != Attempt::Admitted(Permit::default()));
                admitted += before - tickets.len();
            }
            admitted
        };
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads.map(|thread| thread.join().unwrap()).iter().sum()
    });
    let windows = clock.load(Ordering::SeqCst) as usize / 10_000_000 + 1;
    assert!(admitted <= 2 * 7 * windows, "{admitted} in {windows} windows");
    assert!(admitted > 1_000, "{admitted}");
    assert_eq!(limit.stats().waiting, 0);
}

/// A shard is made when it is first asked for a key, perhaps while the limit gets other parameters.
#[test]
fn shards_that_are_made_during_a_change_work_by_the_new_parameters() {
    let spec = |rate| LimitSpec { max_keys: 1_000_000, ..spec(rate) };
    for _ in 0..100 {
        let (limit, policy) = one(spec("5/s"));
        let start = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                (0..2_000).for_each(|key| drop(check(&policy, key, 1, at(0))));
            });
            start.wait();
            limit.reconfigure(spec("3/s"));
        });
        // Keys that were never asked, in every shard.
        for key in 10_000..12_000 {
            assert_eq!(drain(&policy, key, at(0)), 3, "{key}");
        }
    }
}
