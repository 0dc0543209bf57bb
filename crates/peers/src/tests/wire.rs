use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn entry() -> impl Strategy<Value = KeyCount> {
    (any::<u64>(), any::<u64>(), 1..=u64::MAX, 1..=u64::MAX, any::<u64>()).prop_map(
        |(limit, fingerprint, epoch, count, level)| {
            let key = CountKey::new(limit, fingerprint);
            KeyCount { key, epoch, count, level: Span::from_nanos(level) }
        },
    )
}

fn datagram() -> impl Strategy<Value = Datagram> {
    let acknowledged = proptest::option::of((any::<u64>(), 1..=u64::MAX, any::<u64>()));
    (any::<u64>(), 1..=u64::MAX, acknowledged, vec(entry(), 0..40)).prop_map(
        |(incarnation, sequence, acknowledged, entries)| Datagram {
            incarnation,
            sequence,
            acknowledged: acknowledged.map(|(incarnation, highest, before)| Acknowledgement {
                incarnation,
                highest,
                before,
            }),
            entries,
        },
    )
}

#[test]
fn the_form_is_as_documented() {
    let key = CountKey::new(0x0102_0304, 5);
    let datagram = Datagram {
        incarnation: 6,
        sequence: 7,
        acknowledged: Some(Acknowledgement { incarnation: 8, highest: 9, before: 10 }),
        entries: vec![KeyCount { key, epoch: 11, count: 12, level: Span::from_nanos(13) }],
    };
    let bytes = datagram.encode();
    let mut expected = vec![1];
    for number in [6_u64, 7] {
        expected.extend(number.to_be_bytes());
    }
    expected.push(1);
    for number in [8_u64, 9, 10] {
        expected.extend(number.to_be_bytes());
    }
    expected.extend([0, 1]);
    for number in [0x0102_0304, 5_u64, 11, 12, 13] {
        expected.extend(number.to_be_bytes());
    }
    assert_eq!(bytes, expected);
    assert_eq!(Datagram::capacity(MTU), 28);
    assert_eq!((Datagram::capacity(0), Datagram::capacity(83), Datagram::capacity(84)), (0, 0, 1));
}

#[test]
fn an_acknowledgement_names_the_highest_and_64_before_it() {
    let acknowledged = Acknowledgement { incarnation: 1, highest: 100, before: 1 | 1 << 63 };
    let covered: Vec<_> = (0..200).filter(|number| acknowledged.covers(*number)).collect();
    assert_eq!(covered, [36, 99, 100]);
    assert!(!acknowledged.covers(u64::MAX));
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(datagram in datagram()) {
        prop_assert_eq!(Datagram::decode(&datagram.encode()), Ok(datagram));
    }

    /// Any bytes that are taken are the one form of that datagram.
    #[test]
    fn random_bytes_do_no_harm(mut bytes in vec(any::<u8>(), 0..300), version in any::<bool>()) {
        if let Some(first) = bytes.first_mut().filter(|_| version) {
            *first = 1;
        }
        if let Ok(datagram) = Datagram::decode(&bytes) {
            prop_assert_eq!(datagram.encode(), bytes);
        }
    }

    #[test]
    fn cut_and_longer_ones_are_refused_and_changed_ones_do_no_harm(
        datagram in datagram(),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let bytes = datagram.encode();
        prop_assert_eq!(Datagram::decode(&bytes[..place.index(bytes.len())]), Err(DatagramError::Length));
        let longer = [bytes.as_slice(), &[byte]].concat();
        prop_assert_eq!(Datagram::decode(&longer), Err(DatagramError::Length));
        let mut changed = bytes;
        let place = place.index(changed.len());
        changed[place] = byte;
        if let Ok(datagram) = Datagram::decode(&changed) {
            prop_assert_eq!(datagram.encode(), changed);
            let mut ledger = fleet(settings(), four(), 2).remove(0);
            ledger.peer_joined(PeerId(1), datagram.incarnation, Tick::ZERO);
            ledger.receive(PeerId(1), &datagram, at(5), drop);
            ledger.receive(PeerId(1), &datagram, Tick::MAX, drop);
            while ledger.next_outgoing(PeerId(1), Tick::MAX, MTU).is_some() {}
        }
    }
}
