//! The bound that a connection is turned away by, and how many places are kept free for the next ones.

words! {
    /// By which bound a connection was closed at once.
    pub enum ConnectionRejection {
        /// Those of a worker.
        Worker = "worker",
        /// Those of a listener.
        Listener = "listener",
        /// Those of a client.
        Client = "client",
        /// New ones of a client.
        ClientRate = "client-rate",
        /// A client's share of the last places.
        Share = "share",
    }
}

/// How many places are kept free of so many, by closing connections before the last one is taken.
pub fn headroom(places: u64) -> u64 {
    (places / 16).min(128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headroom_is_a_sixteenth_and_bounded() {
        assert_eq!([15, 16, 160, 2_048, 100_000].map(headroom), [0, 1, 10, 128, 128]);
    }
}
