use super::*;

/// The golden of the issue: three gateways, 4/s, burst 4.
#[test]
fn twelve_pass_in_a_cut_and_the_next_one_after_two_and_a_quarter_seconds() {
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
    let mut passed = 0;
    for ledger in &mut ledgers {
        assert_eq!(left(ledger, four(), at(1_000)), 4);
        passed += (0..9).filter(|_| ledger.admit(KEY, 1, at(1_000)).is_ok()).count();
    }
    assert_eq!(passed, 12);
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
