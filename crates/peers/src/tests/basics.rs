use super::*;

/// The golden of the issue: three gateways, 4/s, burst 4.
#[test]
fn twelve_pass_in_a_cut_and_the_next_one_after_two_and_a_quarter_seconds() {
    // Whether the members' list sees the cut or not.
    for is_seen in [false, true] {
        cut_and_heal(is_seen);
    }
}

fn cut_and_heal(is_seen: bool) {
    let mut ledgers = fleet(settings(), four(), 3);
    for (ledger, tokens) in ledgers.iter_mut().zip([1, 2, 1]) {
        spend(ledger, tokens, at(0));
    }
    tell_all(&mut ledgers, at(0));
    for ledger in &mut ledgers {
        assert_eq!(left(ledger, four(), at(0)), 0);
        assert_eq!(ledger.admit(KEY, 1, at(0)), Err(at(250)));
    }
    // At four again, and cut off from each other.
    for_each_pair(&mut ledgers, |ledger, other| is_seen.then(|| ledger.peer_gone(PeerId(other))));
    let mut passed = 0;
    for ledger in &mut ledgers {
        assert_eq!(left(ledger, four(), at(1_000)), 4);
        passed += (0..9).filter(|_| ledger.admit(KEY, 1, at(1_000)).is_ok()).count();
    }
    assert_eq!(passed, 12);
    for_each_pair(&mut ledgers, |ledger, other| {
        ledger.peer_joined(PeerId(other), u64::from(other) + 1_000, Tick::ZERO)
    });
    tell_all(&mut ledgers, at(1_000));
    for ledger in &mut ledgers {
        assert_eq!(left(ledger, four(), at(1_000)), -8);
        assert_eq!(ledger.missing(KEY, at(1_000)), four().units(12));
        assert_eq!(ledger.admit(KEY, 1, at(1_000)), Err(at(3_250)));
        let just_before = Tick::from_nanos(at(3_250).as_nanos() - 1);
        assert_eq!(ledger.clone().admit(KEY, 1, just_before), Err(at(3_250)));
        assert_eq!(ledger.admit(KEY, 1, at(3_250)), Ok(()));
    }
}

/// The first count that is heard charges no more than a bucket would still remember.
#[test]
fn a_newcomer_is_charged_as_a_bucket_would_remember() {
    let mut ledgers = fleet(settings(), four(), 2);
    // A hundred tokens in 25 seconds, as they come.
    for millis in (0..25_000).step_by(250) {
        spend(&mut ledgers[0], 1, at(millis));
    }
    assert_eq!(ledgers[0].own[&KEY].count, 100);
    tell_all(&mut ledgers, at(24_750));
    // 0.4 were missing when the grace before this one began, and two were spent since.
    let missing = four().units(3) - four().refilled(Span::from_millis(150));
    assert_eq!(ledgers[1].missing(KEY, at(24_750)), missing);
    // A burst a long time ago is nothing.
    let mut ledgers = fleet(settings(), four(), 2);
    spend(&mut ledgers[0], 4, at(0));
    tell_all(&mut ledgers, at(2_000));
    assert!(ledgers.iter().all(|ledger| ledger.missing(KEY, at(2_000)) == 0 && ledger.unsettled.is_empty()));
}

#[test]
fn a_heal_charges_a_burst_and_not_all_of_the_cut() {
    let mut ledgers = fleet(settings(), four(), 2);
    // An hour at the full rate.
    for millis in (0..3_600_000).step_by(250) {
        for ledger in &mut ledgers {
            assert_eq!(ledger.admit(KEY, 1, at(millis)), Ok(()));
        }
    }
    spend(&mut ledgers[0], 3, at(3_600_000));
    tell_all(&mut ledgers, at(3_600_000));
    // Of 14,403 tokens: the level of the peer's bucket then is 3 and what came within the graces.
    let missing = ledgers[1].missing(KEY, at(3_600_000));
    assert!(missing > four().units(3) && missing <= four().units(4 + 1 + 1), "{missing}");
}

#[test]
fn a_repeated_an_older_and_an_overtaken_count_change_nothing() {
    let mut ledgers = fleet(settings(), four(), 2);
    let (to, from) = (PeerId(1), PeerId(0));
    spend(&mut ledgers[0], 1, at(0));
    let first = ledgers[0].next_outgoing(to, at(0), MTU).unwrap();
    spend(&mut ledgers[0], 2, at(1));
    let second = ledgers[0].next_outgoing(to, at(1), MTU).unwrap();
    assert_eq!(ledgers[1].receive(from, &second, at(2), drop), Received::Applied);
    assert_eq!(left(&ledgers[1], four(), at(2)), 1);
    let missing = ledgers[1].missing(KEY, at(2));
    assert_eq!(ledgers[1].receive(from, &first, at(2), drop), Received::Applied);
    for again in [&first, &second] {
        assert_eq!(ledgers[1].receive(from, again, at(2), drop), Received::Repeated);
    }
    assert_eq!(ledgers[1].missing(KEY, at(2)), missing);
    // The same counts under a new number, as they are sent when no acknowledgement comes.
    let again = ledgers[0].next_outgoing(to, at(61), MTU).unwrap();
    assert_eq!((again.sequence, &again.entries), (3, &second.entries));
    assert_eq!(ledgers[1].receive(from, &again, at(61), drop), Received::Applied);
    assert_eq!(ledgers[1].missing(KEY, at(61)), missing - four().refilled(Span::from_millis(59)));
    let stranger = Datagram { incarnation: 5, ..again };
    assert_eq!(ledgers[1].receive(from, &stranger, at(61), drop), Received::Stranger);
}

#[test]
fn a_count_is_told_until_it_is_acknowledged() {
    let mut ledgers = fleet(settings(), four(), 2);
    let (to, from) = (PeerId(1), PeerId(0));
    spend(&mut ledgers[0], 1, at(0));
    let lost = ledgers[0].next_outgoing(to, at(0), MTU).unwrap();
    assert_eq!((lost.sequence, lost.acknowledged, lost.entries.len()), (1, None, 1));
    assert_eq!(ledgers[0].next_outgoing(to, at(59), MTU), None, "it may be on its way");
    let told = ledgers[0].next_outgoing(to, at(60), MTU).unwrap();
    assert_eq!(ledgers[1].receive(from, &told, at(60), drop), Received::Applied);
    let answer = ledgers[1].next_outgoing(from, at(60), MTU).unwrap();
    assert!(answer.entries.is_empty());
    assert_eq!(answer.acknowledged, Some(Acknowledgement { incarnation: 1_000, highest: 2, before: 0 }));
    assert_eq!(ledgers[1].next_outgoing(from, at(60), MTU), None, "an acknowledgement is not acknowledged");
    assert_eq!(ledgers[0].receive(to, &answer, at(61), drop), Received::Applied);
    assert!(ledgers[0].unsettled.is_empty());
    assert_eq!(ledgers[0].next_outgoing(to, at(200), MTU), None);
}

#[test]
fn the_keys_with_the_most_to_tell_go_first_and_a_datagram_has_its_size() {
    let rate = RefillRate::new(100, Span::from_secs(1), 100).unwrap();
    let mut ledgers = fleet(settings(), rate, 2);
    for fingerprint in 0..100 {
        ledgers[0].admit(CountKey::new(KEY.limit, fingerprint), fingerprint + 1, at(0)).unwrap();
    }
    let mut expected = (1..=100).rev();
    let mut datagrams = 0;
    for told in ledgers[0].outgoing(PeerId(1), at(0), MTU, (9, 1_000)) {
        assert!(told.encode().len() <= MTU && !told.entries.is_empty());
        assert!(told.entries.iter().all(|entry| Some(entry.count) == expected.next()));
        datagrams += 1;
    }
    assert_eq!((expected.next(), datagrams), (None, 4));
}

#[test]
fn an_evicted_key_is_told_and_goes_on_until_then() {
    let mut ledgers = fleet(settings(), four(), 2);
    spend(&mut ledgers[0], 3, at(0));
    ledgers[0].evict(KEY);
    assert_eq!((ledgers[0].len(), ledgers[0].missing(KEY, at(0))), (0, 0));
    // It comes again before it is told.
    spend(&mut ledgers[0], 1, at(0));
    assert_eq!(left(&ledgers[0], four(), at(0)), 0);
    ledgers[0].evict(KEY);
    tell_all(&mut ledgers, at(0));
    assert_eq!(left(&ledgers[1], four(), at(0)), 0);
    assert!(ledgers[0].own.is_empty() && ledgers[0].unsettled.is_empty());
    // It comes again after that: another epoch, of which all is new.
    spend(&mut ledgers[0], 2, at(10));
    assert_eq!(ledgers[0].own[&KEY].epoch, 2);
    tell_all(&mut ledgers, at(10));
    assert_eq!(ledgers[1].missing(KEY, at(10)), four().units(6) - four().refilled(Span::from_millis(10)));
    assert_eq!(ledgers[0].bound_hits(), BoundHits::default());
}

#[test]
fn keys_and_leftovers_and_peers_are_bounded() {
    let settings = LedgerSettings { max_keys: 10, max_leftovers: 5, max_peers: 2, ..settings() };
    let mut ledger = SpendLedger::new(settings, [(KEY.limit, four())], 1);
    assert!(
        ledger.peer_joined(PeerId(1), 11, Tick::ZERO)
            && ledger.peer_joined(PeerId(2), 12, Tick::ZERO)
            && !ledger.peer_joined(PeerId(3), 13, Tick::ZERO)
    );
    for fingerprint in 0..100 {
        let cost = 1 + u64::from(fingerprint == 0) * 3;
        ledger.admit(CountKey::new(KEY.limit, fingerprint), cost, at(fingerprint)).unwrap();
        assert!(ledger.len() <= 10 && ledger.own.len() <= 15, "{} {}", ledger.len(), ledger.own.len());
    }
    assert!(ledger.missing(CountKey::new(KEY.limit, 0), at(99)) > 0, "of the fullest buckets the soonest goes");
    assert_eq!(ledger.bound_hits(), BoundHits { evicted: 90, untold: 85, peers: 1 });
    // One that is gone gives its place up.
    ledger.peer_gone(PeerId(2));
    assert!(ledger.peer_joined(PeerId(3), 13, Tick::ZERO));
    assert_eq!(ledger.admit(CountKey::new(8, 1), 1, at(0)), Err(Tick::MAX), "no such limit");
    assert_eq!(ledger.admit(KEY, 5, at(0)), Err(Tick::MAX), "above the burst");
}

/// A peer that is gone and comes back in the same life is not charged twice, and in another life anew.
#[test]
fn a_peer_that_is_back_is_charged_for_new_spends_only() {
    let mut ledgers = fleet(settings(), four(), 2);
    spend(&mut ledgers[0], 3, at(0));
    tell_all(&mut ledgers, at(0));
    for (id, ledger) in (0..).zip(&mut ledgers) {
        ledger.peer_gone(PeerId(1 - id));
        assert_eq!(ledger.next_outgoing(PeerId(1 - id), at(0), MTU), None);
        assert!(ledger.peer_joined(PeerId(1 - id), 1_001 - u64::from(id), Tick::ZERO));
    }
    spend(&mut ledgers[0], 1, at(0));
    tell_all(&mut ledgers, at(0));
    assert_eq!(left(&ledgers[1], four(), at(0)), 0);
    ledgers[0] = SpendLedger::new(settings(), [(KEY.limit, four())], 77);
    ledgers[0].peer_joined(PeerId(1), 1_001, Tick::ZERO);
    ledgers[1].peer_joined(PeerId(0), 77, Tick::ZERO);
    spend(&mut ledgers[0], 1, at(0));
    tell_all(&mut ledgers, at(0));
    assert_eq!(left(&ledgers[1], four(), at(0)), -1);
}

/// The bound that is often given, a burst for each further gateway, does not hold: what is spent while nobody hears it has its
/// refill beside its burst.
#[test]
fn a_cut_costs_its_refill_beside_the_bursts() {
    let mut ledgers = fleet(settings(), four(), 2);
    let mut passed = 0;
    for millis in 0..=1_000 {
        for ledger in &mut ledgers {
            passed += u64::from(ledger.admit(KEY, 1, at(millis)).is_ok());
            passed += (0..4).filter(|_| ledger.admit(KEY, 1, at(millis)).is_ok()).count() as u64;
        }
    }
    let (burst, refill) = (4, 4);
    assert_eq!(passed, (burst + refill) + (burst + refill));
}

#[test]
fn a_count_of_an_older_epoch_that_was_overtaken_changes_nothing() {
    let settings = LedgerSettings { max_leftovers: 0, ..settings() };
    let mut ledgers = fleet(settings, four(), 2);
    spend(&mut ledgers[0], 3, at(0));
    let older = ledgers[0].next_outgoing(PeerId(1), at(0), MTU).unwrap();
    ledgers[0].evict(KEY);
    assert_eq!(ledgers[0].bound_hits().untold, 3);
    spend(&mut ledgers[0], 1, at(0));
    let newer = ledgers[0].next_outgoing(PeerId(1), at(0), MTU).unwrap();
    for datagram in [&newer, &older] {
        assert_eq!(ledgers[1].receive(PeerId(0), datagram, at(0), drop), Received::Applied);
        assert_eq!(left(&ledgers[1], four(), at(0)), 3);
    }
    spend(&mut ledgers[0], 1, at(0));
    tell_all(&mut ledgers, at(0));
    assert_eq!(left(&ledgers[1], four(), at(0)), 2);
}

#[test]
fn an_acknowledgement_of_an_earlier_life_settles_nothing() {
    let mut ledgers = fleet(settings(), four(), 2);
    spend(&mut ledgers[0], 1, at(0));
    let told = ledgers[0].next_outgoing(PeerId(1), at(0), MTU).unwrap();
    ledgers[1].receive(PeerId(0), &told, at(0), drop);
    let of_earlier = ledgers[1].next_outgoing(PeerId(0), at(0), MTU).unwrap();
    ledgers[0] = SpendLedger::new(settings(), [(KEY.limit, four())], 77);
    ledgers[0].peer_joined(PeerId(1), 1_001, Tick::ZERO);
    spend(&mut ledgers[0], 1, at(0));
    assert_eq!(ledgers[0].next_outgoing(PeerId(1), at(0), MTU).unwrap().sequence, 1);
    assert_eq!(ledgers[0].receive(PeerId(1), &of_earlier, at(0), drop), Received::Applied);
    assert!(ledgers[0].unsettled.contains(&KEY), "nobody knows its count");
}

#[test]
fn a_datagram_says_what_to_charge_and_since_when_counts_were_on_their_way() {
    let mut ledgers = fleet(settings(), four(), 2);
    spend(&mut ledgers[0], 3, at(0));
    let lost = ledgers[0].next_outgoing(PeerId(1), at(5), MTU).unwrap();
    let told = ledgers[0].next_outgoing(PeerId(1), at(65), MTU).unwrap();
    let mut says = Vec::new();
    ledgers[1].receive(PeerId(0), &told, at(70), |event| says.push(event));
    ledgers[1].receive(PeerId(0), &lost, at(71), |event| says.push(event));
    let within = four().time_for(four().units(3));
    assert_eq!(says, [PeerEvent::Charged { key: KEY, cost: 3, within, is_first: true }], "once");
    let answer = ledgers[1].next_outgoing(PeerId(0), at(72), MTU).unwrap();
    let mut says = Vec::new();
    ledgers[0].receive(PeerId(1), &answer, at(73), |event| says.push(event));
    assert_eq!(says, [PeerEvent::Acknowledged { since: at(0) }], "it was spent then");
}

fn tidy(ledgers: &mut [SpendLedger], now: Tick, most: usize) {
    for ledger in ledgers {
        ledger.tidy(now, most);
    }
}

#[test]
fn buckets_that_have_long_been_full_are_forgotten() {
    let mut ledgers = fleet(settings(), four(), 2);
    for fingerprint in 0..10 {
        ledgers[0].spend(CountKey::new(KEY.limit, fingerprint), 4, (at(0), at(0)));
    }
    tell_all(&mut ledgers, at(0));
    // Full after a second, and then for two graces of 200 ms.
    tidy(&mut ledgers, at(1_400), 100);
    assert_eq!([ledgers[0].len(), ledgers[1].len()], [10, 10]);
    tidy(&mut ledgers, at(1_401), 7);
    assert_eq!([ledgers[0].len(), ledgers[1].len(), ledgers[0].own.len()], [3, 3, 3]);
    tidy(&mut ledgers, at(1_401), 7);
    assert!(ledgers.iter().all(|ledger| ledger.is_empty() && ledger.own.is_empty() && ledger.unsettled.is_empty()));
    assert_eq!(ledgers[0].bound_hits(), BoundHits::default());
}

#[test]
fn limits_may_change_their_numbers_come_and_go() {
    let mut ledgers = fleet(settings(), four(), 2);
    let (gone, half) = (CountKey::new(8, 1), RefillRate::new(2, Span::from_secs(1), 2).unwrap());
    for ledger in &mut ledgers {
        ledger.set_limits([(KEY.limit, four()), (8, four())]);
    }
    spend(&mut ledgers[0], 2, at(0));
    ledgers[0].spend(gone, 2, (at(0), at(0)));
    tell_all(&mut ledgers, at(0));
    for ledger in &mut ledgers {
        ledger.set_limits([(KEY.limit, half)]);
        assert_eq!((ledger.len(), left(ledger, half, at(0)), left(ledger, half, at(500))), (1, 0, 1));
        ledger.spend(gone, 1, (at(0), at(0)));
        assert_eq!(ledger.len(), 1, "it is not known any more");
    }
    spend(&mut ledgers[0], 1, at(500));
    tell_all(&mut ledgers, at(500));
    assert_eq!(left(&ledgers[1], half, at(500)), 0);
    // Two seconds at two a second until all three are back, by the numbers of now.
    tidy(&mut ledgers, at(3_000), 9);
    assert!(ledgers.iter().all(SpendLedger::is_empty));
}

#[test]
fn of_many_keys_all_have_their_turn_and_the_work_of_a_turn_is_bounded() {
    let rate = RefillRate::new(100, Span::from_secs(1), 100).unwrap();
    let mut ledgers = fleet(LedgerSettings { max_keys: 20_000, ..settings() }, rate, 2);
    let keys = 10_000_u64;
    for fingerprint in 0..keys {
        ledgers[0].spend(CountKey::new(KEY.limit, fingerprint), 1 + fingerprint % 7, (at(0), at(0)));
    }
    let mut told = std::collections::BTreeSet::new();
    for turn in 0..=keys / 28 {
        // All within the time in which none is sent again.
        let datagram = ledgers[0].next_outgoing(PeerId(1), at(turn / 10), MTU);
        let entries = datagram.map(|datagram| datagram.entries).unwrap_or_default();
        assert!(entries.len() <= 28 && (told.len() as u64 + 28 > keys || entries.len() == 28));
        assert!(entries.iter().all(|entry| told.insert(entry.key)), "none twice");
    }
    assert_eq!(told.len() as u64, keys);
    assert_eq!(ledgers[0].next_outgoing(PeerId(1), at(36), MTU), None);
    let again = ledgers[0].next_outgoing(PeerId(1), at(60), MTU).unwrap();
    assert_eq!(again.entries.len(), 28, "those that were sent first are due again");
}
