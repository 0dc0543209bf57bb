use super::*;

#[test]
fn a_refusal_by_one_limit_is_counted_by_none() {
    let (tight, wide) = (Limit::new(spec("1/s")), Limit::new(spec("5/s")));
    let policy = policy(&[&tight, &wide]);
    assert!(admitted(&policy, 1, at(0)));
    for _ in 0..10 {
        assert_eq!(refused(check(&policy, 1, 1, at(0))).limit, 0);
    }
    assert_eq!(drain(&super::policy(&[&wide]), 1, at(0)), 4);
    let fresh = refused(policy.check(&[asks(1, 1)[0], asks(9, 1)[0]], Span::MAX, at(0), &mut Report::default()));
    assert_eq!((fresh.limit, wide.stats().keys), (0, 1), "a refused request makes no key");
}

#[test]
fn the_refusal_names_the_limit_with_the_latest_retry() {
    let limits = [Limit::new(spec("1/s")), Limit::new(spec("1/10s")), Limit::new(spec("1/2s"))];
    let policy = policy(&[&limits[0], &limits[1], &limits[2]]);
    assert!(admitted(&policy, 1, at(0)));
    let refusal = refused(check(&policy, 1, 1, at(0)));
    assert_eq!((refusal.limit, refusal.retry_at), (1, Some(at(10_000))));
    assert_eq!((refusal.quota, refusal.window), (1, Span::from_secs(10)));
    let refusal = refused(check(&policy, 1, 2, at(0)));
    assert_eq!((refusal.limit, refusal.why, refusal.retry_at), (0, RefusalReason::TooCostly, None));
}

#[test]
fn reports_are_in_the_files_order_whatever_the_order_of_locks() {
    let (older, newer) = (Limit::new(spec("1/s")), Limit::new(spec("7/s")));
    let policy = policy(&[&newer, &older]);
    let mut report = Report::default();
    assert!(matches!(policy.check(&asks(1, 1), Span::MAX, at(0), &mut report), Verdict::Admitted(_)));
    let lines: Vec<_> = report.lines().iter().map(|line| (line.limit, line.quota, line.remaining)).collect();
    assert_eq!(lines, [(0, 7, 6), (1, 1, 0)]);
}

#[test]
fn the_same_limit_twice_is_no_policy() {
    let limit = Limit::new(spec("1/s"));
    let twice = Policy::new(vec![Arc::clone(&limit), Limit::new(spec("2/s")), Arc::clone(&limit)]);
    assert_eq!(twice.unwrap_err(), PolicyError::Duplicate { name: "1/s".into() });
    let many = Policy::new((0..9).map(|_| Limit::new(spec("1/s"))).collect());
    assert_eq!(many.unwrap_err(), PolicyError::TooMany { given: 9 });
}

#[test]
fn it_waits_for_the_limit_whose_room_comes_last() {
    let (first, last) = (Limit::new(waiting("1/s", 9000)), Limit::new(waiting("1/3s", 4000)));
    let policy = policy(&[&first, &last]);
    assert!(admitted(&policy, 1, at(0)));
    let mut waiter = queued(check(&policy, 1, 1, at(0)));
    assert_eq!(waiter.ticket.waits_for(), Some(1));
    assert_eq!((first.stats().waiting, last.stats().waiting), (0, 1));
    assert_eq!(waiter.wake_at(at(0)), at(3000));
    assert_eq!(waiter.attempt(at(3000)), Attempt::Admitted(Permit::default()));
    assert_eq!(drain(&super::policy(&[&first]), 1, at(3000)), 0, "it counts in both");
}

#[test]
fn the_shortest_patience_of_those_that_refuse_holds() {
    let (first, last) = (Limit::new(waiting("1/s", 2000)), Limit::new(waiting("1/3s", 4000)));
    let policy = policy(&[&first, &last]);
    assert!(admitted(&policy, 1, at(0)));
    let refusal = refused(check(&policy, 1, 1, at(0)));
    // At 1 s the first has room again and the last one's patience of 4 s counts.
    assert_eq!((refusal.why, refusal.limit, refusal.retry_at), (RefusalReason::Rate, 0, Some(at(1000))));
    let mut waiter = queued(check(&policy, 1, 1, at(1000)));
    assert_eq!(waiter.wake_at(at(1000)), at(3000));
}

#[test]
fn a_limit_without_patience_lets_nobody_wait() {
    let (first, last) = (Limit::new(spec("1/s")), Limit::new(waiting("1/3s", 4000)));
    let policy = policy(&[&first, &last]);
    assert!(admitted(&policy, 1, at(0)));
    assert_eq!(refused(check(&policy, 1, 1, at(999))).limit, 0);
    let _ = queued(check(&policy, 1, 1, at(1000)));
}

#[test]
fn a_new_refusal_moves_it_to_that_limits_tail() {
    let (mine, shared) = (Limit::new(waiting("1/s", 9000)), Limit::new(waiting("2/s", 3000)));
    let both = policy(&[&mine, &shared]);
    let alone = policy(&[&shared]);
    assert!(admitted(&both, 1, at(0)));
    let mut waiter = queued(check(&both, 1, 1, at(0)));
    assert_eq!((waiter.ticket.waits_for(), waiter.wake_at(at(0))), (Some(0), at(1000)));
    let mut behind = queued(check(&both, 1, 1, at(0)));
    let _ = behind.wake_at(at(0));
    // Others take the shared limit's room before the waiter wakes.
    assert_eq!(drain(&alone, 1, at(900)), 1);
    let mut other = queued(check(&alone, 1, 2, at(950)));
    assert_eq!(other.wake_at(at(950)), at(1900));
    assert_eq!(waiter.wake_at(at(1000)), at(3002), "the shared limit's patience, counted from the arrival");
    assert_eq!(waiter.ticket.waits_for(), Some(1));
    assert_eq!(behind.times_woken(), 1, "the head has left its first queue");
    assert_eq!(behind.wake_at(at(1000)), at(3002));
    assert_eq!(behind.ticket.waits_for(), Some(1), "and so does the next");
    assert_eq!(other.attempt(at(1900)), Attempt::Admitted(Permit::default()));
    assert_eq!(waiter.times_woken(), 1);
    assert_eq!(waiter.wake_at(at(1900)), at(2900));
    assert_eq!(waiter.attempt(at(2900)), Attempt::Admitted(Permit::default()));
    assert_eq!(behind.timed_out(at(2900)).limit, 0, "its own limit admits one a second, the next past its patience");
}

#[test]
fn a_new_refusal_without_patience_ends_it() {
    let (mine, other) = (Limit::new(waiting("1/s", 9000)), Limit::new(spec("2/s")));
    let policy = policy(&[&mine, &other]);
    assert!(admitted(&policy, 1, at(0)));
    let mut waiter = queued(check(&policy, 1, 1, at(0)));
    let _ = waiter.wake_at(at(0));
    assert_eq!(drain(&super::policy(&[&other]), 1, at(999)), 1);
    let _ = super::policy(&[&other]);
    assert_eq!(drain(&super::policy(&[&other]), 1, at(1000)), 1);
    let refusal = waiter.timed_out(at(1000));
    assert_eq!((refusal.limit, refusal.why, refusal.retry_at), (1, RefusalReason::WaitTimeout, Some(at(1900))));
    assert_eq!((refusal.quota, mine.stats().waiting), (2, 0));
    assert!(admitted(&super::policy(&[&mine]), 1, at(1000)), "nothing was counted");
}

#[test]
fn a_shadow_limit_counts_and_never_refuses() {
    let shadow = Limit::new(LimitSpec { mode: Mode::Shadow, ..spec("1/s") });
    let real = Limit::new(spec("3/s"));
    let policy = policy(&[&shadow, &real]);
    let mut report = Report::default();
    let mut check = |now| {
        let admitted = matches!(policy.check(&asks(1, 1), Span::MAX, now, &mut report), Verdict::Admitted(_));
        (admitted, report.shadow_refusals().collect::<Vec<_>>(), report.lines()[0].remaining)
    };
    assert_eq!(check(at(0)), (true, vec![], 0));
    assert_eq!(check(at(0)), (true, vec![0], 0));
    assert_eq!(check(at(999)), (true, vec![0], 0));
    assert_eq!(check(at(999)), (false, vec![0], 0));
    assert_eq!(check(at(1000)), (true, vec![], 0), "what did not fit was not counted");
    assert!(report.lines()[0].shadow && !report.lines()[1].shadow);
}

#[test]
fn a_shadow_limit_with_patience_notes_only_what_it_would_not_queue() {
    let shadow = |max_queue| Limit::new(LimitSpec { mode: Mode::Shadow, max_queue, ..waiting("1/s", 500) });
    let noted = |limit: &Arc<Limit>, timeout, now| {
        let mut report = Report::default();
        let verdict = policy(&[limit]).check(&asks(1, 1), timeout, now, &mut report);
        assert!(matches!(verdict, Verdict::Admitted(_)));
        report.shadow_refusals().count() == 1
    };
    let limit = shadow(None);
    assert!(!noted(&limit, Span::MAX, at(0)));
    assert!(noted(&limit, Span::MAX, at(499)), "room comes 501 ms later");
    assert!(!noted(&limit, Span::MAX, at(500)));
    assert!(!noted(&limit, Span::from_millis(500), at(500)));
    assert!(noted(&limit, Span::from_millis(499), at(500)), "the request may not take that long");
    let limit = shadow(Some(0));
    assert!(!noted(&limit, Span::MAX, at(0)));
    assert!(noted(&limit, Span::MAX, at(500)), "no place to wait");
}

#[test]
fn a_limit_that_is_off_is_not_looked_at() {
    let off = Limit::new(LimitSpec { mode: Mode::Off, ..spec("1/s") });
    let policy = policy(&[&off]);
    let mut report = Report::default();
    for _ in 0..5 {
        assert!(matches!(policy.check(&asks(1, 9), Span::MAX, at(0), &mut report), Verdict::Admitted(_)));
    }
    assert_eq!((report.lines().len(), off.stats().keys), (0, 0));
}
