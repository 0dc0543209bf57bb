use std::sync::LazyLock;

use sha1::{Digest, Sha1};

use super::shared::Family;

/// A script of the store: its text, and the digest by which it is called once it has been loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Script {
    text: String,
    digest: String,
}

/// The parts that scripts of families share, before and after the family's own part.
const HEAD: &str = include_str!("scripts/head.lua");
const HASH: &str = include_str!("scripts/hash.lua");
const SETTLE: &str = include_str!("scripts/settle.lua");

static FAMILIES: LazyLock<[Script; Family::ALL.len()]> =
    LazyLock::new(|| Family::ALL.map(|family| of_family(include_str!("scripts/clock.lua"), family)));
static MEMBERS: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/members.lua").to_owned()));

impl Script {
    fn new(text: String) -> Self {
        let digest = format!("{:x}", Sha1::digest(text.as_bytes()));
        Self { text, digest }
    }

    /// That of a family's settles.
    pub(super) fn settle(family: Family) -> &'static Self {
        &FAMILIES[family as usize]
    }

    /// That of heartbeats.
    pub(super) fn members() -> &'static Self {
        &MEMBERS
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// SHA-1 of the text, in hexadecimal.
    pub(super) fn digest(&self) -> &str {
        &self.digest
    }
}

/// A family's script under a clock: text that sets `clock` and `keep`.
pub(super) fn of_family(clock: &str, family: Family) -> Script {
    let (state, own) = match family {
        Family::Wheel => (HASH, include_str!("scripts/wheel.lua")),
        Family::Bucket => (HASH, include_str!("scripts/bucket.lua")),
        Family::Counter => (HASH, include_str!("scripts/counter.lua")),
        Family::Window => (HASH, include_str!("scripts/window.lua")),
        Family::Calendar => (HASH, include_str!("scripts/calendar.lua")),
        Family::Log => ("", include_str!("scripts/log.lua")),
    };
    Script::new([clock, HEAD, state, own, SETTLE].concat())
}
