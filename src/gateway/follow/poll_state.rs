//! The decisions of a follower: when it asks again, with which tag, and what is worth a line in the log.

use crate::time::{Span, Tick};

/// How long a text that was refused is not judged again. A file that it names may have been mended meanwhile.
const REFUSED_FOR: Span = Span::from_secs(60);

/// The pause before the next request: `every`, a fifth shorter or longer by a random number, so that gateways which were started
/// together do not ask together.
pub fn pause(every: Span, random: u64) -> Span {
    let (all, fifth) = (every.as_nanos(), every.as_nanos() / 5);
    Span::from_nanos(all - fifth + random % (2 * fifth + 1))
}

/// Everything here that a judgement of a text hangs on: the digest of the configuration.
pub type Local = Option<[u8; 32]>;

/// The memory of a follower from one request to the next.
#[derive(Debug, Default)]
pub struct PollState {
    is_away: bool,
    refused: Option<RefusedText>,
    /// The last failure here, such as of a full disk.
    failure: Option<String>,
}

#[derive(Debug)]
struct RefusedText {
    etag: Option<String>,
    digest: [u8; 32],
    local: Local,
    at: Tick,
    report: String,
}

impl RefusedText {
    fn holds(&self, local: Local, now: Tick) -> bool {
        self.local == local && now.since(self.at) < REFUSED_FOR
    }
}

impl PollState {
    /// The tag of the text that need not come again: that of a refused one, or else of the one that is kept.
    pub fn tag(&self, kept: Option<String>, local: Local, now: Tick) -> Option<String> {
        let refused = self.refused.as_ref().filter(|refused| refused.holds(local, now));
        refused.and_then(|refused| refused.etag.clone()).or(kept)
    }

    /// There was no answer; whether that is news.
    pub fn away(&mut self) -> bool {
        !std::mem::replace(&mut self.is_away, true)
    }

    /// There was an answer; whether that is news.
    pub fn answered(&mut self) -> bool {
        std::mem::take(&mut self.is_away)
    }

    /// The text has the tag that was sent; the report, if that is the tag of a refused one.
    pub fn unchanged(&mut self, sent: &str) -> Option<&str> {
        self.refused = self.refused.take().filter(|refused| refused.etag.as_deref() == Some(sent));
        self.failure = None;
        self.refused.as_ref().map(|refused| &*refused.report)
    }

    /// The report about a text that was refused not long ago.
    pub fn known(&self, digest: &[u8; 32], local: Local, now: Tick) -> Option<&str> {
        let known = self.refused.as_ref().filter(|refused| refused.digest == *digest && refused.holds(local, now));
        known.map(|refused| &*refused.report)
    }

    /// A text is refused; whether that is news.
    pub fn refuse(
        &mut self,
        (etag, digest): (Option<String>, [u8; 32]),
        local: Local,
        report: &str,
        now: Tick,
    ) -> bool {
        let is_news = self.refused.as_ref().is_none_or(|refused| refused.digest != digest || refused.report != report);
        self.refused = Some(RefusedText { etag, digest, local, at: now, report: report.to_owned() });
        self.failure = None;
        is_news
    }

    /// A text could not be kept; whether that is news.
    pub fn fail(&mut self, failure: &str) -> bool {
        let is_news = self.failure.as_deref() != Some(failure);
        self.failure = Some(failure.to_owned());
        self.refused = None;
        is_news
    }

    /// A text holds.
    pub fn taken(&mut self) {
        (self.refused, self.failure) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::ManualClock;

    proptest! {
        #[test]
        fn a_pause_is_within_a_fifth(secs in 1..=3_600_u64, random: u64) {
            let pause = pause(Span::from_secs(secs), random);
            prop_assert!(pause >= Span::from_millis(800 * secs) && pause <= Span::from_millis(1_200 * secs));
        }
    }

    #[test]
    fn pauses_reach_both_ends() {
        let every = Span::from_secs(5);
        assert_eq!(pause(every, 0), Span::from_secs(4));
        assert_eq!(pause(every, 2_000_000_000), Span::from_secs(6));
        assert_eq!(pause(every, 1_000_000_000), every);
    }

    #[test]
    fn a_source_that_is_away_is_told_once_and_so_is_its_return() {
        let mut course = PollState::default();
        assert_eq!([course.answered(), course.away(), course.away(), course.away()], [false, true, false, false]);
        assert_eq!([course.answered(), course.answered(), course.away()], [true, false, true]);
    }

    #[test]
    fn a_bad_text_is_told_once_and_judged_again_when_something_has_changed() {
        let (clock, mut course) = (ManualClock::new(), PollState::default());
        let (bad, other, here) = ([1; 32], [2; 32], Some([9; 32]));
        let kept = || Some("\"good\"".to_owned());
        assert_eq!(course.tag(kept(), here, clock.now()), kept());
        let refused = (Some("\"bad\"".to_owned()), bad);
        assert!(course.refuse(refused.clone(), here, "wrong", clock.now()), "news");
        assert_eq!(course.tag(kept(), here, clock.now()).as_deref(), Some("\"bad\""));
        assert_eq!(course.known(&bad, here, clock.now()), Some("wrong"));
        assert_eq!(course.known(&other, here, clock.now()), None);
        assert_eq!(course.known(&bad, Some([8; 32]), clock.now()), None, "the configuration is another one");
        assert_eq!(course.tag(kept(), None, clock.now()), kept());
        assert_eq!(course.unchanged("\"bad\""), Some("wrong"));
        clock.advance(Span::from_secs(59));
        assert_eq!(course.known(&bad, here, clock.now()), Some("wrong"));
        clock.advance(Span::from_secs(1));
        assert_eq!((course.known(&bad, here, clock.now()), course.tag(kept(), here, clock.now())), (None, kept()));
        assert!(!course.refuse(refused.clone(), here, "wrong", clock.now()), "no news");
        assert!(course.refuse(refused.clone(), here, "otherwise wrong", clock.now()));
        assert_eq!(course.unchanged("\"good\""), None, "the source has the good one again");
        assert!(course.refuse(refused, here, "otherwise wrong", clock.now()), "and again the bad one");
        course.taken();
        assert_eq!(course.known(&bad, here, clock.now()), None);
    }

    #[test]
    fn a_refused_text_without_a_tag_is_known_by_its_digest() {
        let mut course = PollState::default();
        course.refuse((None, [1; 32]), None, "wrong", Tick::ZERO);
        assert_eq!(course.tag(Some("k".into()), None, Tick::ZERO).as_deref(), Some("k"));
        assert_eq!(course.known(&[1; 32], None, Tick::ZERO), Some("wrong"));
    }

    #[test]
    fn a_failure_here_is_told_once_and_tried_again() {
        let mut course = PollState::default();
        assert_eq!([course.fail("full"), course.fail("full"), course.fail("read-only")], [true, false, true]);
        course.taken();
        assert!(course.fail("read-only"));
    }
}
