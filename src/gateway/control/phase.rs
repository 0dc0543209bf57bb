use std::sync::atomic::{AtomicU8, Ordering};

/// Whether a gateway serves, drains, or has handed over. It leaves the first once, by the caller that is first.
#[derive(Debug, Default)]
pub(super) struct GatewayPhase(AtomicU8);

const SERVING: u8 = 0;
const DRAINING: u8 = 1;
const HANDED_OVER: u8 = 2;

impl GatewayPhase {
    pub(super) fn is_serving(&self) -> bool {
        self.0.load(Ordering::Acquire) == SERVING
    }

    /// Another process serves.
    pub(super) fn has_handed_over(&self) -> bool {
        self.0.load(Ordering::Acquire) == HANDED_OVER
    }

    /// It is told to end; false if another process serves already.
    pub(super) fn drain(&self) -> bool {
        self.leave(DRAINING)
    }

    /// Another process serves from now on; false if this one was told to end.
    pub(super) fn hand_over(&self) -> bool {
        self.leave(HANDED_OVER)
    }

    fn leave(&self, to: u8) -> bool {
        let left = self.0.compare_exchange(SERVING, to, Ordering::AcqRel, Ordering::Acquire);
        left.map_or_else(|now| now == to, |_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_first_decides() {
        let (ends, passes) = (GatewayPhase::default(), GatewayPhase::default());
        assert!(ends.is_serving() && ends.drain() && !ends.hand_over() && !ends.is_serving() && ends.drain());
        assert!(!ends.has_handed_over());
        assert!(passes.hand_over() && !passes.drain() && passes.has_handed_over() && !passes.is_serving());
    }
}
