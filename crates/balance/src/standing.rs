//! One server of a [`Roster`](super::Roster): its state, and how it changes.

use std::sync::Arc;

use super::gate::Eligibility;
use super::server_state::{EjectTerms, Event, HealthTerms, Member, ServerState, ServerView, Service, Terms};
use sluicegate_time::{Span, Tick};

/// A slow start's steps: a tenth of the server's part, two tenths and so on.
const STEPS: u64 = 10;

const SLOW_START_OVER: &str = "its slow start is over";

/// The servers that get the requests.
#[derive(Clone, Copy, Debug)]
pub(super) enum Serving {
    /// The primaries that are not out.
    Primaries,
    /// The backups that are not out, as all primaries are.
    Backups,
    /// All primaries, as everybody is out.
    AllPrimaries,
    /// All backups, as everybody is out and the operator has taken out the primaries.
    AllBackups,
    /// The operator has taken out everybody.
    Nobody,
}

/// All that is known of one server.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub(super) name: Arc<str>,
    pub(super) is_backup: bool,
    /// As the file has it.
    filed: Service,
    /// As the operator wants it now.
    pub(super) service: Service,
    /// Why its checks have taken it out.
    down: Option<String>,
    /// Checks in a row that speak against what `down` says.
    contrary_checks: u32,
    pub(super) ejection: Option<Ejection>,
    last_ejection: Option<PastEjection>,
    /// When its slow start began; `None` also when that is over and told.
    slow_since: Option<Tick>,
    shown: Shown,
}

#[derive(Clone, Debug)]
pub(super) struct Ejection {
    /// From then on a probe may try it.
    pub(super) until: Tick,
    lasts: Span,
    reason: String,
}

#[derive(Clone, Copy, Debug)]
struct PastEjection {
    lasted: Span,
    ended: Tick,
}

/// The state that was last told of it.
#[derive(Clone, Debug)]
struct Shown {
    state: ServerState,
    since: Tick,
    reason: String,
}

/// A step of a slow start.
pub(super) struct SlowStep {
    /// 1 to [`STEPS`].
    number: u64,
    pub(super) until: Tick,
}

impl Standing {
    pub(super) fn new(member: Member, now: Tick) -> Self {
        let Member { name, service, is_backup } = member;
        let state = match service {
            Service::Up => ServerState::Up,
            Service::Drain => ServerState::Draining,
            Service::Off => ServerState::Off,
        };
        Self {
            name,
            is_backup,
            filed: service,
            service,
            down: None,
            contrary_checks: 0,
            ejection: None,
            last_ejection: None,
            slow_since: None,
            shown: Shown { state, since: now, reason: "as configured".to_owned() },
        }
    }

    /// One that a reload has brought.
    pub(super) fn added(member: Member, slow_start: Span, now: Tick) -> Self {
        let mut standing = Self::new(member, now);
        if standing.outage().is_none() && !slow_start.is_zero() {
            standing.slow_since = Some(now);
            standing.shown.state = ServerState::SlowStart;
        }
        "added by a reload".clone_into(&mut standing.shown.reason);
        standing
    }

    /// The same server as a new file has it.
    pub(super) fn refiled(&self, member: &Member) -> Self {
        let mut standing = Self { is_backup: member.is_backup, filed: member.service, ..self.clone() };
        if member.service != self.filed {
            standing.serve(member.service);
        }
        standing
    }

    /// The operator's will. Failures of before say nothing more: who takes a server back has mended it.
    pub(super) fn serve(&mut self, service: Service) {
        self.service = service;
        self.ejection = None;
        self.last_ejection = None;
    }

    /// The first of the states that keep it from requests.
    pub(super) fn outage(&self) -> Option<ServerState> {
        match self.service {
            Service::Off => Some(ServerState::Off),
            Service::Drain => Some(ServerState::Draining),
            Service::Up if self.down.is_some() => Some(ServerState::Down),
            Service::Up => self.ejection.as_ref().map(|_| ServerState::Ejected),
        }
    }

    pub(super) fn entry_when(&self, serving: Serving, slow_start: Span, now: Tick) -> Eligibility {
        let open_if = |is_open: bool| if is_open { Eligibility::Open } else { Eligibility::Shut };
        match serving {
            Serving::Nobody => Eligibility::Shut,
            Serving::AllPrimaries => open_if(!self.is_backup && self.service == Service::Up),
            Serving::AllBackups => open_if(self.is_backup && self.service == Service::Up),
            Serving::Primaries if self.is_backup => Eligibility::Shut,
            Serving::Primaries | Serving::Backups => self.entry(slow_start, now),
        }
    }

    fn entry(&self, slow_start: Span, now: Tick) -> Eligibility {
        match (self.outage(), &self.ejection) {
            (None, _) => match self.slow_step(slow_start, now) {
                Some(step) if step.number < STEPS => Eligibility::Share(((step.number << 32) / STEPS) as u32),
                _ => Eligibility::Open,
            },
            (Some(ServerState::Ejected), Some(ejection)) if ejection.until <= now => Eligibility::Probe,
            _ => Eligibility::Shut,
        }
    }

    pub(super) fn slow_end(&self, slow_start: Span) -> Option<Tick> {
        self.slow_since.map(|since| since + slow_start)
    }

    /// The step of its slow start; `None` when it is not in one.
    pub(super) fn slow_step(&self, slow_start: Span, now: Tick) -> Option<SlowStep> {
        let since = self.slow_since.filter(|since| *since + slow_start > now)?;
        let (length, passed) = (u128::from(slow_start.as_nanos().max(1)), u128::from(now.since(since).as_nanos()));
        // `passed` is below `length`, so this is below `STEPS`.
        let steps = (passed * u128::from(STEPS)) / length;
        let end = (length * (steps + 1)).div_ceil(u128::from(STEPS)) as u64;
        Some(SlowStep { number: steps as u64 + 1, until: since + Span::from_nanos(end) })
    }

    /// How long it is ejected if it is now.
    fn next_ejection(&self, terms: EjectTerms, now: Tick) -> Span {
        let last = match (&self.ejection, self.last_ejection) {
            (Some(ejection), _) => Some(ejection.lasts),
            (None, Some(past)) => Some(past.lasted).filter(|lasted| now.since(past.ended) < *lasted),
            (None, None) => None,
        };
        let next = last.map_or(terms.base, |lasted| Span::from_nanos(lasted.as_nanos().saturating_mul(2)));
        next.min(terms.max)
    }

    pub(super) fn end_ejection(&mut self, now: Tick) {
        if let Some(ejection) = self.ejection.take() {
            self.last_ejection = Some(PastEjection { lasted: ejection.lasts, ended: now });
        }
    }

    /// Counts a check; the reason if it makes a change.
    pub(super) fn count(&mut self, result: Result<(), &str>, terms: HealthTerms, now: Tick) -> Option<String> {
        if result.is_err() == self.down.is_some() {
            self.contrary_checks = 0;
            return None;
        }
        self.contrary_checks = self.contrary_checks.saturating_add(1);
        if self.contrary_checks < if self.down.is_some() { terms.rise } else { terms.fall } {
            return None;
        }
        let checks = std::mem::take(&mut self.contrary_checks);
        let reason = match result {
            Ok(()) if checks == 1 => "a check passed".to_owned(),
            Ok(()) => format!("{checks} checks passed in a row"),
            Err(cause) if checks == 1 => format!("a check failed: {cause}"),
            Err(cause) => format!("{checks} checks failed in a row, the last: {cause}"),
        };
        self.down = result.is_err().then(|| reason.clone());
        // Of an ejection whose time is over, the checks that passed are the probe.
        if self.down.is_none() && self.ejection.as_ref().is_some_and(|ejection| ejection.until <= now) {
            self.end_ejection(now);
        }
        Some(reason)
    }

    /// Shows what has become of it. If it has come back it starts slowly.
    pub(super) fn update(&mut self, server: usize, reason: &str, slow_start: Span, now: Tick) -> Option<Event> {
        let was = self.shown.state;
        let outage = self.outage();
        if outage.is_some() {
            self.slow_since = None;
        } else if was.is_out() && !slow_start.is_zero() {
            self.slow_since = Some(now);
        }
        let is_slow = self.slow_since.is_some();
        let to = outage.unwrap_or(if is_slow { ServerState::SlowStart } else { ServerState::Up });
        if to == was {
            return None;
        }
        let own = match to {
            ServerState::Down => self.down.as_deref(),
            ServerState::Ejected => self.ejection.as_ref().map(|ejection| ejection.reason.as_str()),
            _ => None,
        };
        let reason = match own.filter(|own| *own != reason) {
            Some(own) => format!("{reason}; still {}: {own}", to.word()),
            None => reason.to_owned(),
        };
        Some(self.enter(server, to, &reason, now))
    }

    /// Ejects it, once more if it is waiting for a probe. `has_room` says whether one more may be ejected.
    pub(super) fn eject(
        &mut self,
        server: usize,
        cause: &str,
        terms: EjectTerms,
        has_room: bool,
        now: Tick,
    ) -> Option<Event> {
        // One that is down gets requests in panic only; its checks bring it back, whatever becomes of those.
        if self.service != Service::Up || self.down.is_some() {
            return None;
        }
        let what = match &self.ejection {
            Some(ejection) if now < ejection.until => return None,
            Some(_) => format!("failed when it was tried again: {cause}"),
            None if !has_room => return None,
            None if terms.failures <= 1 => format!("a failure: {cause}"),
            None => format!("{} failures in a row, the last: {cause}", terms.failures),
        };
        let lasts = self.next_ejection(terms, now);
        let reason = format!("{what}; out for {lasts}");
        self.ejection = Some(Ejection { until: now + lasts, lasts, reason: reason.clone() });
        self.slow_since = None;
        Some(self.enter(server, ServerState::Ejected, &reason, now))
    }

    /// Lets the terms of a reload, and the service of its file, act on it.
    pub(super) fn apply_terms(&mut self, server: usize, terms: Terms, now: Tick) -> Option<Event> {
        let mut reason = format!("set to {} in the file", self.service.word());
        let is_in_service = self.service == Service::Up && !self.shown.state.is_by_operator();
        let mut because = |what: &str| {
            if is_in_service {
                what.clone_into(&mut reason);
            }
        };
        if terms.health.is_none() {
            self.contrary_checks = 0;
            if self.down.take().is_some() {
                because("it is not checked any more");
            }
        }
        if terms.eject.is_none() && self.ejection.is_some() {
            self.end_ejection(now);
            because("servers are not ejected any more");
        }
        if terms.slow_start.is_zero() && self.slow_since.take().is_some() {
            because("servers do not start slowly any more");
        }
        self.update(server, &reason, terms.slow_start, now)
    }

    /// Ends its slow start if that is over.
    pub(super) fn pass_time(&mut self, server: usize, slow_start: Span, now: Tick) -> Option<Event> {
        let end = self.slow_end(slow_start).filter(|end| *end <= now)?;
        self.slow_since = None;
        Some(self.enter(server, ServerState::Up, SLOW_START_OVER, end))
    }

    fn enter(&mut self, server: usize, to: ServerState, reason: &str, at: Tick) -> Event {
        let from = self.shown.state;
        let since = if from == to { self.shown.since } else { at };
        self.shown = Shown { state: to, since, reason: reason.to_owned() };
        Event { server, from, to, reason: reason.to_owned() }
    }

    pub(super) fn view(&self, slow_start: Span, now: Tick) -> ServerView<'_> {
        let Shown { mut state, mut since, .. } = self.shown;
        let mut reason = self.shown.reason.as_str();
        // The time may have passed without having been told.
        if let Some(end) = self.slow_end(slow_start).filter(|end| *end <= now) {
            (state, since, reason) = (ServerState::Up, end, SLOW_START_OVER);
        }
        let share = match self.slow_step(slow_start, now) {
            _ if state.is_out() => 0,
            Some(step) => step.number * 100 / STEPS,
            None => 100,
        };
        let out_until = self.ejection.as_ref().filter(|_| state == ServerState::Ejected).map(|ejection| ejection.until);
        let Self { name, service, is_backup, .. } = self;
        let (service, is_backup) = (*service, *is_backup);
        ServerView { name, state, reason, since, service, is_backup, share: share as u32, out_until }
    }
}
