use sluicegate_time::{Span, Tick};

/// A reading is replaced by one that took longer once it is so old: clocks drift.
const STALE: Span = Span::from_secs(10);

/// The store's clock, as it is known here: so that a settle can name the instant, by that clock, from which on it is not to
/// be done any more.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoreClock {
    reading: Option<ClockReading>,
}

#[derive(Clone, Copy, Debug)]
struct ClockReading {
    /// When the exchange began: the store read its clock later.
    sent: Tick,
    took: Span,
    micros: u64,
}

impl StoreClock {
    /// An exchange has ended in which the store read its clock, in microseconds since 1970.
    pub(super) fn read(&mut self, sent: Tick, now: Tick, micros: u64) {
        let took = now.since(sent);
        if self.reading.is_none_or(|known| took <= known.took || sent.since(known.sent) >= STALE) {
            self.reading = Some(ClockReading { sent, took, micros });
        }
    }

    /// The store's clock has been set: other readings mean nothing any more.
    pub(super) fn reread(&mut self, sent: Tick, now: Tick, micros: u64) {
        self.reading = None;
        self.read(sent, now, micros);
    }

    /// The instant by the store's clock from which on a settle is not to be done any more that is sent at `sent`, and for whose answer
    /// is waited so long. One that is done later is charged twice, so it is the earliest that the clock can show when the wait
    /// ends. Where an exchange takes more than half of the wait it is the likely one: else nothing would be done. `None`: nothing
    /// is known of the clock.
    pub(super) fn latest(&self, sent: Tick, wait: Span) -> Option<u64> {
        let took = self.reading?.took.as_nanos();
        let back = if took.saturating_mul(2) <= wait.as_nanos() { took } else { took / 2 };
        Some(self.at_most(sent + wait)?.saturating_sub(back.div_ceil(1_000)))
    }

    /// The latest that the store's clock can show at `at`, in microseconds since 1970; `None`: nothing is known of it.
    pub(super) fn at_most(&self, at: Tick) -> Option<u64> {
        let ClockReading { sent, micros, .. } = self.reading?;
        Some(micros.saturating_add(at.since(sent).as_nanos().div_ceil(1_000)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn the_quickest_reading_of_the_last_ten_seconds_counts() {
        let mut clock = StoreClock::default();
        assert_eq!(clock.at_most(ms(5)), None);
        clock.read(ms(100), ms(104), 7_000_000);
        assert_eq!(clock.at_most(ms(110)), Some(7_010_000), "as if it had been read when it was asked");
        assert_eq!(clock.latest(ms(102), Span::from_millis(8)), Some(7_006_000), "it was read 4 ms later at the most");
        assert_eq!(
            clock.latest(ms(103), Span::from_millis(7)),
            Some(7_008_000),
            "in the middle, where there is less time"
        );
        clock.read(ms(200), ms(205), 7_104_000);
        assert_eq!(clock.at_most(ms(210)), Some(7_110_000), "one that took longer tells less");
        clock.read(ms(300), ms(301), 7_200_500);
        assert_eq!(clock.at_most(ms(310)), Some(7_210_500));
        clock.read(ms(10_299), ms(10_304), 17_200_000);
        assert_eq!(clock.at_most(ms(10_300)), Some(17_200_500));
        clock.read(ms(10_300), ms(10_305), 17_204_000);
        assert_eq!(clock.at_most(ms(10_300)), Some(17_204_000), "the other is ten seconds old");
        clock.reread(ms(10_400), ms(10_500), 5);
        assert_eq!(clock.at_most(ms(10_500)), Some(100_005), "it was set back");
    }
}
