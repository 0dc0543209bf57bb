use crate::config::Model;
use crate::gateway::fleet;
use crate::limiter::KeyHasher;
use crate::state::Mark;

/// The secrets by which keys are known here.
#[derive(Clone, Debug)]
pub struct Secrets {
    own: (Mark, KeyHasher),
    /// Those of the fleet, if there is one.
    fleet: Option<(Mark, KeyHasher)>,
}

impl Secrets {
    /// Those of a gateway with this hasher of its own.
    pub fn of(model: &Model, own: &KeyHasher) -> Self {
        let with_mark = |hasher: KeyHasher| (Mark::of(&hasher), hasher);
        Self { own: with_mark(own.clone()), fleet: fleet::hasher(model).map(with_mark) }
    }

    /// The one by which exceptions are made now.
    pub fn for_new(&self) -> &(Mark, KeyHasher) {
        self.fleet.as_ref().unwrap_or(&self.own)
    }

    /// The mark of the fleet's.
    pub fn mark_of_fleet(&self) -> Option<Mark> {
        Some(self.fleet.as_ref()?.0)
    }

    /// All of them, that of the fleet first.
    pub fn all(&self) -> impl Iterator<Item = &(Mark, KeyHasher)> {
        self.fleet.iter().chain([&self.own])
    }

    /// The one of this mark; `None`: nobody here has it, and exceptions that were made by it hold for nobody.
    pub fn by_mark(&self, mark: Mark) -> Option<&KeyHasher> {
        self.all().find(|(own, _)| *own == mark).map(|(_, own)| own)
    }
}
