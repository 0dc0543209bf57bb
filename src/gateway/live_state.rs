//! The parts of the gateway that outlive a generation.

use std::collections::HashMap;
use std::sync::Arc;

use super::component::Component;
use super::error::BuildError;
use super::exceptions::{Exceptions, Secrets, Tables};
use super::live::{KeyLimit, LiveLimits, counted};
use super::terms;
use super::token_keys::{NewTokenKeys, TokenKeys};
use super::weights::Weights;
use crate::config::Model;
use crate::limiter::{KeyHasher, Limit};
use crate::proxy::BlockList;
use crate::redact::Redactor;
use crate::time::Clock;
use crate::tls::Tickets;
use crate::upstream::EchoServers;

/// The parts that outlive a generation, by the names that identify them across reloads.
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
    /// The keys that penalties block.
    pub blocks: Arc<BlockList>,
    /// The keys that tokens are verified with.
    token_keys: TokenKeys,
    /// The limits that count those keys that have numbers of their own.
    pub of_keys: Vec<KeyLimit>,
    gone: Vec<Gone>,
}

/// A limit that the last model has no more.
enum Gone {
    /// Another one has its name: waiting requests of it are refused.
    Replaced(Arc<Limit>),
    /// No limit has its name: waiting requests of it go on without.
    Removed(Arc<Limit>),
}

/// The same of a new generation.
pub struct NewLiveState {
    /// The redactor.
    pub redactor: Redactor,
    /// The limits: those that stay are taken over, not yet with new numbers.
    pub limits: LiveLimits,
    /// The limits that count single keys.
    pub of_keys: Vec<KeyLimit>,
    /// The exceptions that the requests of each limit are compared with.
    pub tables: Tables,
    /// The keys that tokens are verified with.
    pub token_keys: NewTokenKeys,
    model: Arc<Model>,
}

impl LiveState {
    /// As it is before the first generation.
    pub fn new(
        (clock, workers): (Clock, usize),
        (hasher, redactor): (KeyHasher, Redactor),
        exceptions: Exceptions,
    ) -> Self {
        Self {
            limits: HashMap::new(),
            weights: Weights::default(),
            token_keys: TokenKeys::new(&clock),
            clock,
            tickets: Tickets::new(),
            echo: EchoServers::new(),
            hasher,
            redactor,
            workers,
            exceptions,
            blocks: Arc::default(),
            of_keys: Vec::new(),
            gone: Vec::new(),
        }
    }

    /// From now on the exceptions of keys hold, for the limits of this model.
    pub fn install_exceptions(&mut self, model: &Model) {
        let secrets = Secrets::of(model, &self.hasher);
        self.exceptions.install(model, &self.limits, &secrets, self.clock.wall_now());
    }
}

impl Component for LiveState {
    type Needs<'n> = ();
    type Staged = NewLiveState;

    fn stage(&self, model: &Arc<Model>, (): ()) -> Result<NewLiveState, BuildError> {
        let of_keys = self.exceptions.counted(model, self.clock.wall_now());
        Ok(NewLiveState {
            redactor: self.redactor.stage(model, ())?,
            limits: terms::live(model, &of_keys, &self.limits),
            of_keys,
            tables: self.exceptions.tables_for(model),
            token_keys: self.token_keys.stage(model, ())?,
            model: Arc::clone(model),
        })
    }

    fn commit(&mut self, staged: NewLiveState) {
        let NewLiveState { redactor, limits, of_keys, tables, token_keys, model } = staged;
        self.redactor.commit(redactor);
        self.token_keys.commit(token_keys);
        for (id, spec, _) in counted(&model, &of_keys) {
            if let Some((limit, _)) = limits.get(&id) {
                limit.reconfigure(spec.clone());
            }
        }
        let old = std::mem::replace(&mut self.limits, limits);
        self.of_keys = of_keys;
        self.exceptions.set_tables(tables);
        self.install_exceptions(&model);
        self.gone.extend(old.into_iter().filter_map(|(id, (limit, _))| match self.limits.get(&id) {
            Some((kept, _)) if Arc::ptr_eq(kept, &limit) => None,
            Some(_) => Some(Gone::Replaced(limit)),
            // The numbers of one key have ended: requests that wait by them wait on.
            None if id.key.is_some() && model.limits.iter().any(|rule| rule.spec.name == id.limit) => None,
            None => Some(Gone::Removed(limit)),
        }));
        self.weights.retain(&model);
    }

    fn release(&mut self) {
        for gone in self.gone.drain(..) {
            match gone {
                Gone::Replaced(limit) => limit.close(),
                Gone::Removed(limit) => limit.release(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LimitId;
    use crate::gateway::testing::{live_state, model};
    use crate::limiter::{Ask, Counting, Fingerprint, Limit, Policy, Report, Verdict};
    use crate::time::{Span, Tick};

    /// Limits with these lines.
    fn limits(all: &[(&str, &str)]) -> Arc<Model> {
        let sections: Vec<_> =
            all.iter().map(|(name, lines)| format!("[[limit]]\nname = \"{name}\"\n{lines}\n")).collect();
        let sections = sections.concat();
        let names: Vec<_> = all.iter().map(|(name, _)| format!("{name:?}")).collect();
        model(&format!(
            "[[listener]]\naddress = \"127.0.0.1:1\"\n{sections}[[route]]\nname = \"all\"\nrespond = {{}}\nlimits = [{}]\n",
            names.join(", ")
        ))
    }

    fn id(limit: &str) -> LimitId {
        LimitId { limit: limit.into(), plan: None, key: None }
    }

    fn limit(state: &LiveState, name: &str) -> Arc<Limit> {
        Arc::clone(&state.limits[&id(name)].0)
    }

    /// How many of so many requests of one key pass at once.
    fn pass(limit: &Arc<Limit>, requests: usize) -> usize {
        let policy = Policy::new(vec![Arc::clone(limit)]).unwrap();
        let key = Fingerprint::known(7);
        let ask = [Ask { key, cost: 1, counting: Counting::AtOnce, ..Ask::default() }];
        let now = Tick::ZERO + Span::from_secs(100);
        let passes =
            |_: &usize| matches!(policy.check(&ask, Span::ZERO, now, &mut Report::default()), Verdict::Admitted(_));
        (0..requests).filter(passes).count()
    }

    fn reload(state: &mut LiveState, model: &Arc<Model>) {
        let staged = state.stage(model, ()).unwrap();
        state.commit(staged);
        state.release();
    }

    #[test]
    fn counts_go_on_under_new_numbers_and_a_stage_that_is_dropped_leaves_no_trace() {
        let mut state = live_state();
        reload(&mut state, &limits(&[("l", "rate = \"3/1m\"")]));
        let l = limit(&state, "l");
        assert_eq!(pass(&l, 2), 2);

        let faster = limits(&[("l", "rate = \"5/1m\""), ("new", "rate = \"1/s\"")]);
        let staged = state.stage(&faster, ()).unwrap();
        assert!(Arc::ptr_eq(&staged.limits[&id("l")].0, &l), "it is the same table");
        drop(staged);
        assert_eq!((pass(&l, 9), state.limits.len()), (1, 1), "three in all, as before");

        reload(&mut state, &faster);
        assert!(Arc::ptr_eq(&limit(&state, "l"), &l));
        assert_eq!(pass(&l, 9), 2, "five in all");
        assert_eq!(pass(&limit(&state, "new"), 9), 1);
    }

    #[test]
    fn another_key_counts_from_zero() {
        let mut state = live_state();
        reload(&mut state, &limits(&[("l", "rate = \"3/1m\"")]));
        let old = limit(&state, "l");
        assert_eq!(pass(&old, 9), 3);
        let staged = state.stage(&limits(&[("l", "rate = \"3/1m\"\nkey = \"host\"")]), ()).unwrap();
        state.commit(staged);
        let new = limit(&state, "l");
        assert!(!Arc::ptr_eq(&old, &new));
        assert_eq!((pass(&new, 9), pass(&old, 9)), (3, 0), "requests under the old routes are still counted");
        state.release();
        assert_eq!(pass(&old, 9), 9, "the old one counts no more");
    }

    #[test]
    fn a_limit_that_is_gone_lets_all_pass_that_still_know_it() {
        let mut state = live_state();
        reload(&mut state, &limits(&[("l", "rate = \"3/1m\""), ("kept", "rate = \"9/s\"")]));
        let gone = limit(&state, "l");
        assert_eq!(pass(&gone, 9), 3);
        let staged = state.stage(&limits(&[("kept", "rate = \"9/s\"")]), ()).unwrap();
        state.commit(staged);
        assert_eq!((pass(&gone, 9), state.limits.len()), (0, 1), "requests under the old routes are still counted");
        state.release();
        assert_eq!(pass(&gone, 9), 9);
    }

    #[test]
    fn a_limit_keeps_its_table_of_exceptions() {
        let mut state = live_state();
        let one = limits(&[("l", "rate = \"3/1m\"")]);
        reload(&mut state, &one);
        let first = state.stage(&one, ()).unwrap();
        let second = state.stage(&limits(&[("l", "rate = \"9/s\""), ("m", "rate = \"9/s\"")]), ()).unwrap();
        let table = |staged: &NewLiveState, limit: &str| Arc::clone(&staged.tables[limit]);
        assert!(Arc::ptr_eq(&table(&first, "l"), &table(&second, "l")));
        assert!(!first.tables.contains_key("m") && second.tables.contains_key("m"));
    }

    #[test]
    fn a_weight_that_the_file_has_changed_is_forgotten_with_the_commit() {
        let servers = |weight: u32| {
            model(&format!(
                "[[listener]]\naddress = \"127.0.0.1:1\"\n[[upstream]]\nname = \"app\"\n\
                 servers = [{{ address = \"127.0.0.1:2\", weight = {weight} }}, \"127.0.0.1:3\"]\n\
                 [[route]]\nname = \"all\"\nupstream = \"app\"\n"
            ))
        };
        let mut state = live_state();
        reload(&mut state, &servers(2));
        state.weights.set(&servers(2), "app", "127.0.0.1:2", 9);
        let of = |state: &LiveState| state.weights.of("app", "127.0.0.1:2", 2);
        let staged = state.stage(&servers(5), ()).unwrap();
        assert_eq!(of(&state), 9);
        state.commit(staged);
        assert_eq!(of(&state), 2);
    }
}
