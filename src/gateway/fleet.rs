//! The gateway's part in a fleet: which limits it shares, and under which keys of the store.

use std::env;
use std::sync::Arc;

use super::component::Component;
use super::error::BuildError;
use super::fleet_status;
use super::live::{KeyLimit, LiveLimits, counted};
use super::notices::NoticeSender;
use super::peers_status;
use crate::admission::KeyExpr;
use crate::config::{Fleet as Section, LimitId, Model};
use crate::fleet::{Binding, Fleet, PeerBinding, PeerFleet, PeerSettings, Settings, SharedLimit, told_rates};
use crate::limiter::{FleetView, KeyHasher, LimitSpec, Sharing};
use crate::telemetry::{Registration, Registry};
use crate::time::Clock;

/// The password for the store; it wins over the one of a file.
const PASSWORD: &str = "SLUICEGATE_FLEET_PASSWORD";

/// Makes the fingerprints of keys that are shared; `None`: there is no fleet.
pub(super) fn hasher(model: &Model) -> Option<KeyHasher> {
    hashers(model).next()
}

/// The same, and the one by a secret that is only known.
pub(super) fn hashers(model: &Model) -> impl Iterator<Item = KeyHasher> {
    model.fleet.iter().flat_map(Section::secrets).map(KeyHasher::with_secret)
}

/// Where a limit's counts lie in the store, up to the fingerprint, or by which text its gateways know it where there is none; `None`:
/// it is not shared. Another prefix, secret, key or
/// length of a window is another place, where it is counted afresh; another `L` is not.
pub(super) fn keys_of(model: &Model, id: &LimitId, spec: &LimitSpec, key: &KeyExpr) -> Option<Box<str>> {
    let section = model.fleet.as_ref()?;
    let numbers = match spec.sharing? {
        Sharing::Store(_) => SharedLimit::new(&spec.algorithm).ok()?.layout(),
        Sharing::Peers => spec.algorithm.rates().iter().map(|rate| rate.window().as_nanos()).collect(),
    };
    let LimitId { limit, plan, key: of_key } = id;
    let mut layout = hasher(model)?.start();
    let form = model.client.address_form();
    for part in [&**limit, plan.as_deref().unwrap_or_default(), spec.algorithm.name(), &key.to_string()] {
        layout.part(0, part.as_bytes());
    }
    layout.part(1, &[form.ipv6_prefix]);
    for number in numbers {
        layout.part(2, &number.to_le_bytes());
    }
    let layout = layout.finish().bits();
    let of_plan = plan.as_deref().map(|plan| format!("/{plan}")).unwrap_or_default();
    // No plan has such a name.
    let of_key = of_key.map(|key| format!("/key={:016x}", key.bits())).unwrap_or_default();
    Some(format!("{}:{limit}{of_plan}{of_key}:{layout:016x}:", section.prefix).into())
}

/// The gateway's part in a fleet, if the model has one.
pub(super) struct Membership {
    running: Option<RunningFleet>,
    clock: Clock,
    notices: NoticeSender,
    registry: Arc<Registry>,
}

struct RunningFleet {
    fleet: AnyFleet,
    _gauges: Vec<Registration>,
}

/// A fleet with a store, or one without.
enum AnyFleet {
    Store(Fleet),
    Peers(PeerFleet),
}

/// How the gateway is to take part, and what is shared.
pub(super) enum StagedFleet {
    Store(Settings, Vec<Arc<Binding>>),
    Peers(PeerSettings, Vec<Arc<PeerBinding>>),
}

impl Membership {
    /// It takes no part yet.
    pub(super) fn new(clock: &Clock, notices: &NoticeSender, registry: &Arc<Registry>) -> Self {
        Self { running: None, clock: clock.clone(), notices: notices.clone(), registry: Arc::clone(registry) }
    }

    /// The fleet with a store that it takes part in.
    pub(super) fn fleet(&self) -> Option<&Fleet> {
        match &self.running.as_ref()?.fleet {
            AnyFleet::Store(fleet) => Some(fleet),
            AnyFleet::Peers(_) => None,
        }
    }

    /// The fleet without a store that it takes part in.
    pub(super) fn peers(&self) -> Option<&PeerFleet> {
        match &self.running.as_ref()?.fleet {
            AnyFleet::Store(_) => None,
            AnyFleet::Peers(fleet) => Some(fleet),
        }
    }

    /// Takes it away: dropping it reports the cost that was spent.
    pub(super) fn take(&mut self) -> Option<impl Sized + use<>> {
        self.running.take()
    }

    /// The same if it has no store: a process that takes over needs its address.
    pub(super) fn take_peers(&mut self) -> Option<impl Sized + use<>> {
        self.running.take_if(|running| matches!(running.fleet, AnyFleet::Peers(_)))
    }

    fn start(&self, staged: StagedFleet) -> std::io::Result<RunningFleet> {
        Ok(match staged {
            StagedFleet::Store(settings, bindings) => {
                let (took, hears) = (fleet_status::took(&self.registry), self.notices.hears());
                let fleet = Fleet::start(settings, bindings, self.clock.clone(), took, hears)?;
                let gauges = fleet_status::register(&self.registry, &fleet);
                RunningFleet { fleet: AnyFleet::Store(fleet), _gauges: gauges }
            }
            StagedFleet::Peers(settings, bindings) => {
                let fleet =
                    PeerFleet::start(settings, bindings, self.clock.clone(), peers_status::lag(&self.registry))?;
                let gauges = peers_status::register(&self.registry, &fleet);
                RunningFleet { fleet: AnyFleet::Peers(fleet), _gauges: gauges }
            }
        })
    }
}

impl Component for Membership {
    /// The limits that live, and those of single keys.
    type Needs<'n> = (&'n LiveLimits, &'n [KeyLimit]);
    /// `None`: it takes part in none.
    type Staged = Option<StagedFleet>;

    fn stage(
        &self,
        model: &Arc<Model>,
        (limits, of_keys): (&LiveLimits, &[KeyLimit]),
    ) -> Result<Self::Staged, BuildError> {
        let Some(section) = &model.fleet else { return Ok(None) };
        Ok(Some(match (section.without_store(), settings(section)) {
            (Some(settings), _) => StagedFleet::Peers(settings, peer_bindings(model, of_keys, limits)),
            (None, Some(settings)) => StagedFleet::Store(settings, bindings(model, of_keys, limits)),
            // One of the two is written.
            (None, None) => return Ok(None),
        }))
    }

    /// Without the thread each gateway decides alone.
    fn commit(&mut self, staged: Self::Staged) {
        match (self.running.as_ref().map(|running| &running.fleet), staged) {
            (_, None) => self.running = None,
            (Some(AnyFleet::Store(fleet)), Some(StagedFleet::Store(settings, bindings))) => {
                fleet.configure(settings, bindings);
            }
            (Some(AnyFleet::Peers(fleet)), Some(StagedFleet::Peers(settings, bindings)))
                if fleet.goes_on_with(&settings) =>
            {
                fleet.configure(settings, bindings);
            }
            (_, Some(staged)) => {
                // The one before tells what was spent, and gives its address back.
                self.running = None;
                let limits = match &staged {
                    StagedFleet::Store(_, bindings) => bindings.clone(),
                    StagedFleet::Peers(..) => Vec::new(),
                };
                let started = self.start(staged);
                if let Err(error) = &started {
                    tracing::error!(%error, "the thread of the fleet cannot be started; this gateway decides shared limits alone");
                    for limit in limits.iter().map(|binding| binding.limit()) {
                        limit.set_view(FleetView { is_up: false, ..limit.view() });
                    }
                }
                self.running = started.ok();
            }
        }
    }
}

/// `None`: there is no store.
fn settings(section: &Section) -> Option<Settings> {
    let password = env::var(PASSWORD).ok().filter(|password| !password.is_empty());
    Some(Settings {
        endpoint: section.endpoint(password.as_deref())?,
        deployment: section.deployment()?,
        prefix: Arc::clone(&section.prefix),
        node: Arc::clone(&section.node),
        deadline: section.deadline,
        on_failure: section.on_failure,
    })
}

fn bindings(model: &Model, of_keys: &[KeyLimit], limits: &LiveLimits) -> Vec<Arc<Binding>> {
    let binding = |(id, spec, _): (LimitId, &LimitSpec, &KeyExpr)| {
        let (limit, place) = limits.get(&id)?;
        let (keys, sharing) = (place.keys.clone()?, spec.sharing.and_then(Sharing::store)?);
        let shared = SharedLimit::new(&spec.algorithm).ok()?;
        Some(Arc::new(Binding::new(Arc::clone(limit), shared, keys, sharing.hold)))
    };
    counted(model, of_keys).filter_map(binding).collect()
}

/// The limits that gateways tell each other. Each of their rates has a number, which all of them find by what the limit is.
fn peer_bindings(model: &Model, of_keys: &[KeyLimit], limits: &LiveLimits) -> Vec<Arc<PeerBinding>> {
    let Some(hasher) = hasher(model) else { return Vec::new() };
    let binding = |(id, spec, _): (LimitId, &LimitSpec, &KeyExpr)| {
        let (limit, place) = limits.get(&id)?;
        let (keys, rates) = (place.keys.as_deref()?, told_rates(&spec.algorithm).ok()?);
        let number = |rate: u64| {
            let mut number = hasher.start();
            number.part(0, keys.as_bytes());
            number.part(1, &rate.to_le_bytes());
            number.finish().bits()
        };
        let rates = (0..).zip(rates).map(|(index, rate)| (number(index), rate));
        Some(Arc::new(PeerBinding::new(Arc::clone(limit), rates.collect())))
    };
    counted(model, of_keys).filter(|(_, spec, _)| spec.sharing == Some(Sharing::Peers)).filter_map(binding).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::gateway::live_state::LiveState;
    use crate::gateway::notices;
    use crate::gateway::testing::{live_state, model_at};
    use crate::time::Clock;

    fn fleet(directory: &Path, fleet: &str) -> Arc<Model> {
        std::fs::write(directory.join("fleet.key"), "5e".repeat(32)).unwrap();
        let shared = if fleet.is_empty() { "" } else { "shared = \"lease\"" };
        model_at(
            &directory.join("gateway.toml"),
            &format!(
                "[[listener]]\naddress = \"127.0.0.1:1\"\n{fleet}\n\
                 [[limit]]\nname = \"l\"\nrate = \"9/s\"\n{shared}\n[[limit]]\nname = \"own\"\nrate = \"9/s\"\n\
                 [[route]]\nname = \"all\"\nrespond = {{}}\nlimits = [\"l\", \"own\"]\n"
            ),
        )
    }

    #[test]
    fn it_takes_part_from_the_commit_on_until_the_section_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        // Nothing listens there.
        let section = "[fleet]\nstore = \"redis://127.0.0.1:1\"\nsecret_file = \"fleet.key\"\n";
        let (with, without) = (fleet(directory.path(), section), fleet(directory.path(), ""));
        let (sender, _receiver) = notices::channel();
        let mut membership = Membership::new(&Clock::system(), &sender, &Registry::new());
        let mut state = live_state();
        let stage = |membership: &Membership, state: &mut LiveState, model: &Arc<Model>| {
            let live = state.stage(model, ()).unwrap();
            let staged = membership.stage(model, (&live.limits, &live.of_keys)).unwrap();
            state.commit(live);
            staged
        };
        let staged = stage(&membership, &mut state, &without);
        assert!(staged.is_none());
        membership.commit(staged);
        let staged = stage(&membership, &mut state, &with);
        let Some(StagedFleet::Store(_, bindings)) = &staged else { panic!("it has a store") };
        assert_eq!(bindings.len(), 1, "one of the two limits is shared");
        assert!(membership.fleet().is_none(), "it is not committed yet");
        membership.commit(staged);
        assert!(membership.fleet().is_some());
        let staged = stage(&membership, &mut state, &with);
        membership.commit(staged);
        assert!(membership.fleet().is_some());
        let staged = stage(&membership, &mut state, &without);
        membership.commit(staged);
        assert!(membership.fleet().is_none());
    }
}
