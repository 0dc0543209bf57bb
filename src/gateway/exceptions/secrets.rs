use crate::config::Model;
use crate::gateway::fleet;
use crate::limiter::KeyHasher;
use crate::state::Mark;

/// The secrets by which keys are known here.
#[derive(Clone, Debug)]
pub struct Secrets {
    own: (Mark, KeyHasher),
    /// Those of the fleet, if there is one: the one that is used first.
    fleet: Vec<(Mark, KeyHasher)>,
}

impl Secrets {
    /// Those of a gateway with this hasher of its own.
    pub fn of(model: &Model, own: &KeyHasher) -> Self {
        let with_mark = |hasher: KeyHasher| (Mark::of(&hasher), hasher);
        Self { own: with_mark(own.clone()), fleet: fleet::hashers(model).map(with_mark).collect() }
    }

    /// The one by which exceptions are made now.
    pub fn for_new(&self) -> &(Mark, KeyHasher) {
        self.fleet.first().unwrap_or(&self.own)
    }

    /// The mark of the fleet's that is used.
    pub fn mark_of_fleet(&self) -> Option<Mark> {
        self.fleet.first().map(|(mark, _)| *mark)
    }

    /// Whether it is the mark of one of the fleet's.
    pub fn is_of_fleet(&self, mark: Mark) -> bool {
        self.marks_of_fleet().any(|own| own == mark)
    }

    /// The marks of all of the fleet's.
    pub fn marks_of_fleet(&self) -> impl Iterator<Item = Mark> {
        self.fleet.iter().map(|(mark, _)| *mark)
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
