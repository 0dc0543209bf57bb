//! The parts of the gateway that outlive a generation.

use std::collections::HashMap;

use super::exceptions::{Exceptions, Secrets};
use super::live::{KeyLimit, LiveLimits};
use super::notices::NoticeSender;
use super::weights::Weights;
use crate::config::Model;
use crate::limiter::KeyHasher;
use crate::redact::Redactor;
use crate::time::Clock;
use crate::tls::Tickets;
use crate::upstream::EchoServers;

/// The parts that outlive a snapshot, by the names that identify them across reloads.
pub struct LiveState {
    /// Live limits, and what they count by.
    pub limits: LiveLimits,
    /// The weights that an operator has given to servers.
    pub weights: Weights,
    /// Tells when servers came to their states.
    pub clock: Clock,
    /// The keys of session tickets.
    pub tickets: Tickets,
    /// The servers inside this process.
    pub echo: EchoServers,
    /// The secret of key fingerprints.
    pub hasher: KeyHasher,
    /// The redactor, which makes the marks that stand for secrets.
    pub redactor: Redactor,
    /// How many workers there are.
    pub workers: usize,
    /// The exceptions of single keys.
    pub exceptions: Exceptions,
    /// The limits that count those keys that have numbers of their own.
    pub of_keys: Vec<KeyLimit>,
    /// Hears what other gateways tell.
    pub notices: NoticeSender,
}

impl LiveState {
    /// As it is before the first generation.
    pub fn new(
        (clock, workers): (Clock, usize),
        (hasher, redactor): (KeyHasher, Redactor),
        exceptions: Exceptions,
        notices: NoticeSender,
    ) -> Self {
        Self {
            limits: HashMap::new(),
            weights: Weights::default(),
            clock,
            tickets: Tickets::new(),
            echo: EchoServers::new(),
            hasher,
            redactor,
            workers,
            exceptions,
            of_keys: Vec::new(),
            notices,
        }
    }

    /// From now on the exceptions of keys hold, for the limits of this model.
    pub fn install_exceptions(&mut self, model: &Model) {
        let secrets = Secrets::of(model, &self.hasher);
        self.exceptions.install(model, &self.limits, &secrets, self.clock.wall_now());
    }
}
