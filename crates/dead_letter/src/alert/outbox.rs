//! Messages that wait for their webhook: pure, with the time as an argument.
//!
//! Each trigger has one place: a newer message takes that of an older one that has not been delivered, and waits until a try of
//! that is over, so that the last one to arrive is the newest. So there are never more than four for each alert, however long a
//! webhook is down.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::super::webhook::pause;
use sluicegate_config::{FileSecret, Webhook};
use sluicegate_time::{Span, Tick};

/// Tries of one message in all.
pub(super) const MAX_TRIES: u32 = 8;
/// The longest pause that a webhook may ask for.
const MAX_ASKED: Span = Span::from_secs(3_600);

/// Whom a message is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AlertTarget {
    pub(super) webhook: Webhook,
    pub(super) secret: Option<FileSecret>,
}

/// A message.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// The same in each try.
    pub(super) delivery: Arc<str>,
    pub(super) body: Bytes,
    /// As in the body.
    pub(super) alert: &'static str,
    /// As in the body.
    pub(super) state: &'static str,
}

/// One try of a message.
#[derive(Clone, Debug)]
pub(super) struct InFlightTry {
    pub(super) id: u64,
    pub(super) message: Message,
    pub(super) target: Arc<AlertTarget>,
}

/// The outcome of a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotifyOutcome {
    /// It has it.
    Delivered,
    /// It may have it the next time.
    Failed {
        /// Why.
        cause: String,
        /// It asks to be left alone for so long.
        asked: Span,
    },
    /// It does not want it.
    Refused(String),
}

/// A message that is given up.
#[derive(Clone, Debug)]
pub(super) struct GivenUp {
    pub(super) message: Message,
    pub(super) target: Arc<AlertTarget>,
    pub(super) tries: u32,
    pub(super) cause: String,
}

#[derive(Debug)]
struct TargetDelivery {
    target: Arc<AlertTarget>,
    message: Option<Message>,
    /// Of that message.
    tries: u32,
    due: Tick,
    /// Until when the webhook asked to be left alone, whatever there is to tell.
    quiet_until: Tick,
    /// Whether one is on its way, this or an older one.
    in_flight: bool,
}

/// The messages that wait.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    places: BTreeMap<u64, TargetDelivery>,
}

impl Outbox {
    /// Goes on with these places: what waits in others is nobody's any more.
    pub(super) fn renew(&mut self, targets: &BTreeMap<u64, Arc<AlertTarget>>) {
        self.places.retain(|id, _| targets.contains_key(id));
        for (id, target) in targets {
            let place = self.places.entry(*id).or_insert_with(|| TargetDelivery {
                target: Arc::clone(target),
                message: None,
                tries: 0,
                due: Tick::ZERO,
                quiet_until: Tick::ZERO,
                in_flight: false,
            });
            place.target = Arc::clone(target);
        }
    }

    /// Takes a message in the place of that trigger; false if nobody is to be told.
    pub(super) fn push(&mut self, id: u64, message: Message) -> bool {
        let Some(place) = self.places.get_mut(&id) else { return false };
        place.message = Some(message);
        (place.tries, place.due) = (0, place.quiet_until);
        true
    }

    /// The tries that are due; each is on its way from now on.
    pub(super) fn due(&mut self, now: Tick) -> Vec<InFlightTry> {
        let mut flights = Vec::new();
        for (id, place) in &mut self.places {
            let Some(message) = place.message.clone().filter(|_| !place.in_flight && place.due <= now) else {
                continue;
            };
            place.in_flight = true;
            place.tries += 1;
            flights.push(InFlightTry { id: *id, message, target: Arc::clone(&place.target) });
        }
        flights
    }

    /// When the next try is due that waits for its time.
    pub(super) fn next_due(&self) -> Option<Tick> {
        let waiting = self.places.values().filter(|place| place.message.is_some() && !place.in_flight);
        waiting.map(|place| place.due).min()
    }

    /// How many messages are not delivered.
    pub(super) fn waiting(&self) -> usize {
        self.places.values().filter(|place| place.message.is_some()).count()
    }

    /// Takes in what became of a try; `random` draws the pause before the next one.
    pub(super) fn settle(
        &mut self,
        flight: &InFlightTry,
        outcome: NotifyOutcome,
        now: Tick,
        random: u64,
    ) -> Option<GivenUp> {
        let place = self.places.get_mut(&flight.id)?;
        place.in_flight = false;
        if let NotifyOutcome::Failed { asked, .. } = &outcome {
            place.quiet_until = now + (*asked).min(MAX_ASKED);
        }
        let is_newest = place.message.as_ref().is_some_and(|own| own.delivery == flight.message.delivery);
        if !is_newest {
            place.due = place.quiet_until;
            return None;
        }
        let cause = match outcome {
            NotifyOutcome::Delivered => {
                place.message = None;
                return None;
            }
            NotifyOutcome::Failed { .. } if place.tries < MAX_TRIES => {
                place.due = (now + pause(place.tries, random)).max(place.quiet_until);
                return None;
            }
            NotifyOutcome::Failed { cause, .. } | NotifyOutcome::Refused(cause) => cause,
        };
        let message = place.message.take()?;
        Some(GivenUp { message, target: Arc::clone(&place.target), tries: place.tries, cause })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::alert;
    use super::*;

    fn target() -> Arc<AlertTarget> {
        Arc::new(AlertTarget { webhook: alert().webhook.unwrap(), secret: None })
    }

    fn outbox(ids: &[u64]) -> Outbox {
        let mut outbox = Outbox::default();
        outbox.renew(&ids.iter().map(|id| (*id, target())).collect());
        outbox
    }

    fn message(delivery: &str) -> Message {
        Message { delivery: delivery.into(), body: Bytes::new(), alert: "length", state: "firing" }
    }

    fn failed() -> NotifyOutcome {
        NotifyOutcome::Failed { cause: "503".into(), asked: Span::ZERO }
    }

    fn at(millis: u64) -> Tick {
        Tick::from_nanos(1 << 60) + Span::from_millis(millis)
    }

    #[test]
    fn a_message_is_tried_eight_times_with_growing_pauses() {
        let mut outbox = outbox(&[1]);
        assert!(outbox.push(1, message("a")));
        let (mut now, mut pauses) = (at(0), Vec::new());
        for tries in 1..=MAX_TRIES {
            let [flight] = &outbox.due(now)[..] else { panic!("try {tries}") };
            assert!(outbox.due(now).is_empty(), "one at a time");
            let given_up = outbox.settle(flight, failed(), now, u64::MAX);
            assert_eq!(given_up.map(|own| own.tries), (tries == MAX_TRIES).then_some(MAX_TRIES));
            if let Some(due) = outbox.next_due() {
                pauses.push(due.since(now).as_millis_ceil());
                assert!(outbox.due(now).is_empty(), "not before its time");
                now = due;
            }
        }
        assert_eq!(pauses, [200, 400, 800, 1_600, 3_200, 6_400, 12_800]);
        assert_eq!((outbox.waiting(), outbox.next_due()), (0, None));
    }

    #[test]
    fn a_webhook_may_ask_for_more_time_up_to_an_hour() {
        for (asked, waited) in [(7, 7), (3_600, 3_600), (1 << 40, 3_600)] {
            let mut outbox = outbox(&[1]);
            outbox.push(1, message("a"));
            let flight = outbox.due(at(0)).remove(0);
            let failed = NotifyOutcome::Failed { cause: String::new(), asked: Span::from_secs(asked) };
            outbox.settle(&flight, failed, at(0), u64::MAX);
            assert_eq!(outbox.next_due(), Some(at(waited * 1_000)));
            outbox.push(1, message("b"));
            assert_eq!(outbox.next_due(), Some(at(waited * 1_000)), "a newer message waits too");
        }
    }

    #[test]
    fn what_is_delivered_or_not_wanted_is_tried_no_more() {
        let mut outbox = outbox(&[1, 2]);
        outbox.push(1, message("a"));
        outbox.push(2, message("b"));
        let flights = outbox.due(at(0));
        assert!(outbox.settle(&flights[0], NotifyOutcome::Delivered, at(1), 0).is_none());
        let given_up = outbox.settle(&flights[1], NotifyOutcome::Refused("410".into()), at(1), 0).unwrap();
        assert_eq!((given_up.tries, &*given_up.cause, &*given_up.message.delivery), (1, "410", "b"));
        assert_eq!((outbox.waiting(), outbox.due(at(9_999)).len()), (0, 0));
    }

    #[test]
    fn a_newer_message_replaces_an_older_one_and_does_not_overtake_it() {
        let mut outbox = outbox(&[1]);
        outbox.push(1, message("a"));
        let flight = outbox.due(at(0)).remove(0);
        outbox.push(1, message("b"));
        outbox.push(1, message("c"));
        assert!(outbox.due(at(1)).is_empty(), "the older one is on its way");
        assert!(outbox.settle(&flight, failed(), at(2), u64::MAX).is_none());
        let next = outbox.due(at(2)).remove(0);
        assert_eq!(&*next.message.delivery, "c");
    }

    #[test]
    fn a_reload_drops_what_waits_for_nobody() {
        let mut outbox = outbox(&[1, 2]);
        outbox.push(1, message("a"));
        let flight = outbox.due(at(0)).remove(0);
        outbox.push(2, message("b"));
        outbox.renew(&BTreeMap::from([(2, target())]));
        assert!(outbox.settle(&flight, failed(), at(1), 0).is_none());
        assert!(!outbox.push(1, message("c")));
        assert_eq!(outbox.due(at(1)).len(), 1);
    }

    /// An hour of a webhook that does not answer, and an alert that comes and goes each second.
    #[test]
    fn a_webhook_that_is_down_makes_nothing_grow() {
        let mut outbox = outbox(&[1, 2]);
        let (mut given_up, mut tries) = (0, 0);
        for second in 0..3_600 {
            let now = at(second * 1_000);
            outbox.push(1, message(&second.to_string()));
            if second == 0 {
                outbox.push(2, message("once"));
            }
            for flight in outbox.due(now) {
                tries += 1;
                given_up += u64::from(outbox.settle(&flight, failed(), now, u64::MAX).is_some());
            }
            assert!(outbox.waiting() <= 2);
        }
        assert_eq!((given_up, tries), (1, 3_600 + u64::from(MAX_TRIES)));
    }
}
