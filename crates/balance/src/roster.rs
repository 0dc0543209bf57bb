//! The states of the servers of one upstream: what has happened to them and what the operator wants in, states, events and
//! the [`Gate`] out.
//!
//! A server is kept from requests by the operator, by its health checks or by an ejection; each is remembered for itself,
//! and the state that is shown is the first of them. The operator's word is final. Of the others it is better to serve
//! badly than not at all: when all primaries are out the backups open, and when those are out too there is panic, in which
//! all primaries are open as if none were out.

use std::collections::HashMap;

use super::gate::{Door, Gate};
use super::server_state::{Event, Member, ServerView, Service, Terms};
use super::standing::{Serving, Standing};
use sluicegate_time::Tick;

/// The servers of one upstream, and the state of each.
#[derive(Clone, Debug)]
pub struct Roster {
    terms: Terms,
    standings: Vec<Standing>,
}

impl Roster {
    /// Makes a roster in which each server is as the operator wants it.
    pub fn new(terms: Terms, members: Vec<Member>, now: Tick) -> Self {
        let standings = members.into_iter().map(|member| Standing::new(member, now)).collect();
        Self { terms, standings }
    }

    /// Makes the roster of a reload. States are taken over by name. A server's service is the file's if that has changed
    /// and else stays, as it may have been set since. A new server starts slowly. No event tells of servers that come or
    /// go; those of the others have their new indexes.
    pub fn reloaded(&self, terms: Terms, members: Vec<Member>, now: Tick) -> (Self, Vec<Event>) {
        let mut old = self.clone();
        let passed = old.pass_time(now);
        let mut reloaded = Self { terms, standings: Vec::with_capacity(members.len()) };
        let by_name: HashMap<&str, usize> =
            old.standings.iter().enumerate().map(|(index, standing)| (&*standing.name, index)).collect();
        let mut places = HashMap::new();
        for member in members {
            let known = by_name.get(&*member.name).and_then(|index| Some((*index, old.standings.get(*index)?)));
            if let Some((index, _)) = known {
                places.insert(index, reloaded.standings.len());
            }
            reloaded.standings.push(match known {
                Some((_, standing)) => standing.refiled(&member),
                None => Standing::added(member, terms.slow_start, now),
            });
        }
        let passed =
            passed.into_iter().filter_map(|event| Some(Event { server: *places.get(&event.server)?, ..event }));
        let mut events: Vec<Event> = passed.collect();
        let standings = reloaded.standings.iter_mut().enumerate();
        events.extend(standings.filter_map(|(server, standing)| standing.apply_terms(server, terms, now)));
        events.extend(reloaded.pass_time(now));
        (reloaded, events)
    }

    /// Takes it that a server's requests have failed as often in a row as the terms say, or that a probe of it has. It
    /// is ejected, unless too many are; if it is ejected already, and its time is over, once more.
    pub fn failed(&mut self, server: usize, cause: &str, now: Tick) -> Vec<Event> {
        let mut events = self.pass_time(now);
        let has_room = self.has_room_to_eject(server);
        let ejection = self
            .terms
            .eject
            .and_then(|terms| self.standings.get_mut(server)?.eject(server, cause, terms, has_room, now));
        events.extend(ejection);
        events
    }

    /// Takes it that a request to an ejected server has succeeded: a probe, or any in panic mode.
    pub fn recovered(&mut self, server: usize, now: Tick) -> Vec<Event> {
        let mut events = self.pass_time(now);
        if let Some(standing) = self.standings.get_mut(server) {
            standing.end_ejection(now);
        }
        events.extend(self.update(server, "a request to it succeeded", now));
        events
    }

    /// Takes the result of a health check, whose error is for people.
    pub fn checked(&mut self, server: usize, result: Result<(), &str>, now: Tick) -> Vec<Event> {
        let mut events = self.pass_time(now);
        let reason = self.terms.health.and_then(|terms| self.standings.get_mut(server)?.count(result, terms, now));
        events.extend(reason.and_then(|reason| self.update(server, &reason, now)));
        events
    }

    /// Says whether requests fail, or go to servers that are out, once the operator takes this one out of service.
    pub fn is_last_in_service(&self, server: usize) -> bool {
        let is_last = |is_in: fn(&Standing) -> bool| {
            let others = self.standings.iter().enumerate().filter(|(place, _)| *place != server);
            self.standings.get(server).is_some_and(is_in) && !others.into_iter().any(|(_, standing)| is_in(standing))
        };
        is_last(|standing| standing.outage().is_none()) || is_last(|standing| standing.service == Service::Up)
    }

    /// Takes the operator's will about a server, and forgets its ejections: one that is taken out starts with a clean sheet when
    /// it is put back, and one that is told to be up is up.
    pub fn set_service(&mut self, server: usize, service: Service, now: Tick) -> Vec<Event> {
        let mut events = self.pass_time(now);
        if let Some(standing) = self.standings.get_mut(server) {
            standing.serve(service);
        }
        events.extend(self.update(server, &format!("set to {} by the operator", service.word()), now));
        events
    }

    /// Tells what the time has changed: slow starts that are over.
    pub fn pass_time(&mut self, now: Tick) -> Vec<Event> {
        let slow_start = self.terms.slow_start;
        let standings = self.standings.iter_mut().enumerate();
        standings.filter_map(|(server, standing)| standing.pass_time(server, slow_start, now)).collect()
    }

    /// Makes the gate that holds now.
    pub fn gate(&self, now: Tick) -> Gate {
        let serving = self.serving();
        let door = |standing: &Standing| Door {
            entry: standing.entry_when(serving, self.terms.slow_start, now),
            is_ejected: standing.ejection.is_some(),
        };
        Gate::new(self.standings.iter().map(door).collect(), self.is_panic(), self.next_step(now))
    }

    /// Returns the next instant at which [`Roster::pass_time`] may have something to tell or the gate may be another;
    /// `now` if it has something to tell already, [`Tick::MAX`] if nothing changes by time.
    pub fn next_change(&self, now: Tick) -> Tick {
        let mut ends = self.standings.iter().filter_map(|standing| standing.slow_end(self.terms.slow_start));
        if ends.any(|end| end <= now) { now } else { self.next_step(now) }
    }

    /// Shows its servers, by index.
    pub fn servers(&self, now: Tick) -> impl Iterator<Item = ServerView<'_>> {
        self.standings.iter().map(move |standing| standing.view(self.terms.slow_start, now))
    }

    /// Returns how many servers it has.
    pub fn len(&self) -> usize {
        self.standings.len()
    }

    /// Says whether it has none.
    pub fn is_empty(&self) -> bool {
        self.standings.is_empty()
    }

    /// Returns the index of the server of this name.
    pub fn place_of(&self, name: &str) -> Option<usize> {
        self.standings.iter().position(|standing| &*standing.name == name)
    }

    /// Returns the operator's will about a server.
    pub fn service_of(&self, server: usize) -> Option<Service> {
        self.standings.get(server).map(|standing| standing.service)
    }

    /// Returns the name of a server; an empty one if there is none with this index.
    pub fn name_of(&self, server: usize) -> &str {
        self.standings.get(server).map_or("", |standing| &standing.name)
    }

    /// Says whether all servers are out that the operator has not taken out, and requests go to them nevertheless.
    pub fn is_panic(&self) -> bool {
        matches!(self.serving(), Serving::AllPrimaries | Serving::AllBackups)
    }

    fn serving(&self) -> Serving {
        let is_any = |is_backup: bool, is_fit: fn(&Standing) -> bool| {
            self.standings.iter().any(|standing| standing.is_backup == is_backup && is_fit(standing))
        };
        let is_in = |standing: &Standing| standing.outage().is_none();
        let is_wanted = |standing: &Standing| standing.service == Service::Up;
        if is_any(false, is_in) {
            Serving::Primaries
        } else if is_any(true, is_in) {
            Serving::Backups
        } else if is_any(false, is_wanted) {
            Serving::AllPrimaries
        } else if is_any(true, is_wanted) {
            Serving::AllBackups
        } else {
            Serving::Nobody
        }
    }

    /// The first instant after `now` at which a door or a state may change by time.
    fn next_step(&self, now: Tick) -> Tick {
        let steps = self.standings.iter().flat_map(|standing| {
            let probe = standing.ejection.as_ref().map(|ejection| ejection.until);
            let share = standing.slow_step(self.terms.slow_start, now).map(|step| step.until);
            [probe, share].into_iter().flatten()
        });
        steps.filter(|step| *step > now).min().unwrap_or(Tick::MAX)
    }

    /// Whether one more of its group may be ejected. The operator's outages are no matter of this share; those that are
    /// down are, as servers that could be up.
    fn has_room_to_eject(&self, server: usize) -> bool {
        let (Some(terms), Some(standing)) = (self.terms.eject, self.standings.get(server)) else {
            return false;
        };
        let is_backup = standing.is_backup;
        let (mut members, mut ejected, mut has_other) = (0u64, 0u64, false);
        for (place, standing) in self.standings.iter().enumerate() {
            has_other |= place != server && standing.outage().is_none();
            if standing.is_backup == is_backup && standing.service == Service::Up {
                members += 1;
                ejected += u64::from(standing.ejection.is_some());
            }
        }
        // The last one that works is better than none.
        has_other && members > 1 && ejected < members * u64::from(terms.at_most_percent.min(100)) / 100
    }

    fn update(&mut self, server: usize, reason: &str, now: Tick) -> Option<Event> {
        self.standings.get_mut(server)?.update(server, reason, self.terms.slow_start, now)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::gate::Eligibility;
    use super::super::server_state::{EjectTerms, HealthTerms, ServerState};
    use super::*;
    use sluicegate_time::Span;

    const EJECT: EjectTerms =
        EjectTerms { failures: 5, base: Span::from_secs(5), max: Span::from_secs(60), at_most_percent: 50 };
    const HEALTH: HealthTerms = HealthTerms { rise: 2, fall: 3 };
    /// Only ejections.
    const TERMS: Terms = Terms { eject: Some(EJECT), slow_start: Span::ZERO, health: None };
    const ALL: Terms = Terms { eject: Some(EJECT), slow_start: Span::from_secs(10), health: Some(HEALTH) };

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    fn secs(secs: u64) -> Tick {
        at(secs * 1_000)
    }

    /// `p` is a primary, `b` a backup; named by their letters and indexes.
    fn members(kinds: &str) -> Vec<Member> {
        let member = |(index, kind)| Member {
            name: format!("{kind}{index}").into(),
            service: Service::Up,
            is_backup: kind == 'b',
        };
        kinds.chars().enumerate().map(member).collect()
    }

    fn roster(terms: Terms, kinds: &str) -> Roster {
        Roster::new(terms, members(kinds), at(0))
    }

    /// `o` open, `s` a share, `p` probe, `x` shut.
    fn entries(roster: &Roster, now: Tick) -> String {
        let gate = roster.gate(now);
        let letter = |server| match gate.entry(server) {
            Eligibility::Open => 'o',
            Eligibility::Share(_) => 's',
            Eligibility::Probe => 'p',
            Eligibility::Shut => 'x',
        };
        (0..roster.standings.len()).map(letter).collect()
    }

    fn states(roster: &Roster, now: Tick) -> Vec<ServerState> {
        roster.servers(now).map(|server| server.state).collect()
    }

    fn reasons(events: &[Event]) -> Vec<&str> {
        events.iter().map(|event| event.reason.as_str()).collect()
    }

    fn fail_checks(roster: &mut Roster, server: usize, now: Tick) -> Vec<Event> {
        (0..3).flat_map(|_| roster.checked(server, Err("timeout"), now)).collect()
    }

    fn pass_checks(roster: &mut Roster, server: usize, now: Tick) -> Vec<Event> {
        (0..2).flat_map(|_| roster.checked(server, Ok(()), now)).collect()
    }

    #[test]
    fn an_ejected_server_is_shut_until_a_probe_may_try_it_and_up_when_that_succeeds() {
        let mut roster = roster(TERMS, "pp");
        let events = roster.failed(0, "connection refused", secs(1));
        let reason = "5 failures in a row, the last: connection refused; out for 5s".to_owned();
        assert_eq!(events, [Event { server: 0, from: ServerState::Up, to: ServerState::Ejected, reason }]);
        assert_eq!((entries(&roster, secs(1)), roster.gate(secs(1)).until()), ("xo".into(), secs(6)));
        assert_eq!(entries(&roster, at(5_999)), "xo");
        assert_eq!((entries(&roster, secs(6)), roster.gate(secs(6)).until()), ("po".into(), Tick::MAX));
        assert!(roster.gate(secs(6)).wants_verdict(0) && !roster.gate(secs(6)).wants_verdict(1));
        assert_eq!(roster.servers(secs(6)).next().unwrap().out_until, Some(secs(6)));
        assert_eq!(roster.recovered(0, secs(7))[0].reason, "a request to it succeeded");
        assert_eq!((entries(&roster, secs(7)), states(&roster, secs(7))), ("oo".into(), vec![ServerState::Up; 2]));
        assert!(roster.gate(secs(7)).is_plain());
        assert_eq!(roster.recovered(0, secs(7)), []);
    }

    #[test]
    fn each_further_ejection_in_a_row_lasts_twice_as_long_up_to_the_longest() {
        let mut roster = roster(TERMS, "pp");
        let mut now = secs(1);
        for lasts in [5, 10, 20, 40, 60, 60] {
            assert_eq!(roster.failed(0, "refused", now).len(), 1);
            assert_eq!(roster.failed(0, "refused", now), [], "it was under way");
            now = now + Span::from_secs(lasts);
            assert_eq!(roster.failed(0, "refused", now - Span::from_nanos(1)), []);
            assert_eq!(entries(&roster, now - Span::from_nanos(1)), "xo");
            assert_eq!(entries(&roster, now), "po");
        }
        let event = &roster.failed(0, "refused", now)[0];
        assert_eq!((event.from, event.to), (ServerState::Ejected, ServerState::Ejected));
        assert_eq!(event.reason, "failed when it was tried again: refused; out for 1m");
        assert_eq!(roster.servers(now).next().unwrap().since, secs(1));
    }

    #[test]
    fn a_row_of_ejections_ends_when_a_server_was_back_for_as_long_as_it_was_out() {
        for (back_for, lasts) in [(4_999, 10), (5_000, 5)] {
            let mut roster = roster(TERMS, "pp");
            roster.failed(0, "refused", secs(1));
            roster.recovered(0, secs(8));
            let now = secs(8) + Span::from_millis(back_for);
            roster.failed(0, "refused", now);
            assert_eq!(roster.next_change(now), now + Span::from_secs(lasts));
        }
    }

    #[test]
    fn the_last_server_in_service_is_not_ejected() {
        let eject = Some(EjectTerms { at_most_percent: 100, ..EJECT });
        let mut roster = roster(Terms { eject, ..ALL }, "pp");
        for _ in 0..HEALTH.fall {
            roster.checked(0, Err("refused"), secs(1));
        }
        assert_eq!(states(&roster, secs(1)), [ServerState::Down, ServerState::Up]);
        assert_eq!(roster.failed(1, "status 503", secs(2)), []);
        assert_eq!(states(&roster, secs(2)), [ServerState::Down, ServerState::Up]);
    }

    #[test]
    fn only_so_many_of_a_group_are_ejected_and_the_only_one_never() {
        for (kinds, percent, limit) in [
            ("pp", 50, 1),
            ("p", 50, 0),
            ("p", 100, 0),
            ("ppp", 50, 1),
            ("ppp", 100, 2),
            ("ppb", 50, 1),
            ("ppp", 33, 0),
        ] {
            let eject = Some(EjectTerms { at_most_percent: percent, ..EJECT });
            let mut roster = roster(Terms { eject, ..TERMS }, kinds);
            let ejected: usize = (0..kinds.len()).map(|server| roster.failed(server, "refused", secs(1)).len()).sum();
            assert_eq!(ejected, limit, "{kinds} at {percent}%");
        }
    }

    #[test]
    fn those_the_operator_has_taken_out_are_no_part_of_the_group() {
        let mut roster = roster(TERMS, "ppp");
        roster.set_service(1, Service::Off, secs(1));
        roster.set_service(2, Service::Drain, secs(1));
        assert_eq!(roster.failed(0, "refused", secs(1)), []);
        assert_eq!(roster.failed(1, "refused", secs(1)), []);
        roster.set_service(2, Service::Up, secs(1));
        assert_eq!(roster.failed(0, "refused", secs(1)).len(), 1);
    }

    #[test]
    fn checks_in_a_row_take_a_server_down_and_bring_it_back() {
        let mut roster = roster(Terms { slow_start: Span::ZERO, ..ALL }, "pp");
        for result in [Err("timeout"), Err("timeout"), Ok(()), Err("timeout"), Err("status 500")] {
            assert_eq!(roster.checked(0, result, secs(1)), []);
        }
        let events = roster.checked(0, Err("status 503"), secs(2));
        assert_eq!(reasons(&events), ["3 checks failed in a row, the last: status 503"]);
        assert_eq!((events[0].to, entries(&roster, secs(2))), (ServerState::Down, "xo".into()));
        assert_eq!(roster.failed(0, "refused", secs(2)), []);
        for result in [Ok(()), Err("timeout"), Ok(())] {
            assert_eq!(roster.checked(0, result, secs(3)), []);
        }
        assert_eq!(reasons(&roster.checked(0, Ok(()), secs(4))), ["2 checks passed in a row"]);
        assert_eq!(entries(&roster, secs(4)), "oo");
    }

    #[test]
    fn checks_do_not_shorten_an_ejection_and_count_as_the_probe_after_it() {
        let terms = Terms { slow_start: Span::ZERO, ..ALL };
        let mut early = roster(terms, "pp");
        early.failed(0, "refused", secs(1));
        assert_eq!(fail_checks(&mut early, 0, secs(2))[0].to, ServerState::Down);
        let mut late = early.clone();
        let event = &pass_checks(&mut early, 0, at(5_999))[0];
        assert_eq!((event.from, event.to), (ServerState::Down, ServerState::Ejected));
        let reason = "2 checks passed in a row; still ejected: 5 failures in a row, the last: refused; out for 5s";
        assert_eq!(event.reason, reason);
        assert_eq!(entries(&early, secs(6)), "po");
        assert_eq!(pass_checks(&mut late, 0, secs(6))[0].to, ServerState::Up);
    }

    #[test]
    fn a_slow_start_goes_up_in_ten_even_steps() {
        let mut roster = roster(ALL, "pp");
        roster.failed(0, "refused", secs(1));
        assert_eq!(roster.recovered(0, secs(10))[0].to, ServerState::SlowStart);
        for tenth in 1..=10u64 {
            let (start, last) = (secs(9 + tenth), at((10 + tenth) * 1_000 - 1));
            for now in [start, last] {
                let gate = roster.gate(now);
                let share = Eligibility::Share(((tenth << 32) / 10) as u32);
                assert_eq!(gate.entry(0), if tenth == 10 { Eligibility::Open } else { share });
                assert_eq!((gate.until(), roster.next_change(now)), (secs(10 + tenth), secs(10 + tenth)));
                assert_eq!(u64::from(roster.servers(now).next().unwrap().share), tenth * 10);
            }
        }
        let view = roster.servers(secs(25)).next().unwrap();
        assert_eq!((view.state, view.since, view.reason), (ServerState::Up, secs(20), "its slow start is over"));
        assert_eq!((roster.gate(secs(25)).until(), roster.next_change(secs(25))), (Tick::MAX, secs(25)));
        let events = roster.pass_time(secs(25));
        assert_eq!((events.len(), events[0].to, roster.next_change(secs(25))), (1, ServerState::Up, Tick::MAX));
        assert_eq!(roster.servers(secs(25)).next().unwrap().since, secs(20));
    }

    #[test]
    fn backups_are_open_only_while_all_primaries_are_out_whose_probes_stay() {
        let eject = Some(EjectTerms { at_most_percent: 100, ..EJECT });
        let mut roster = roster(Terms { eject, ..TERMS }, "ppbb");
        assert_eq!(entries(&roster, secs(0)), "ooxx");
        roster.failed(0, "refused", secs(1));
        assert_eq!(entries(&roster, secs(1)), "xoxx");
        roster.failed(1, "refused", secs(2));
        assert_eq!(entries(&roster, secs(2)), "xxoo");
        assert_eq!(entries(&roster, secs(6)), "pxoo");
        roster.recovered(0, secs(7));
        assert_eq!(entries(&roster, secs(7)), "opxx");
        assert!(!roster.is_panic());
    }

    #[test]
    fn when_all_are_out_all_primaries_are_open_but_those_the_operator_has_taken_out() {
        let eject = Some(EjectTerms { at_most_percent: 100, ..EJECT });
        let mut roster = roster(Terms { eject, ..ALL }, "pppb");
        roster.set_service(2, Service::Drain, secs(0));
        roster.failed(0, "refused", secs(1));
        fail_checks(&mut roster, 1, secs(1));
        assert_eq!((entries(&roster, secs(1)), roster.is_panic()), ("xxxo".into(), false));
        fail_checks(&mut roster, 3, secs(1));
        assert_eq!((entries(&roster, secs(1)), roster.is_panic()), ("ooxx".into(), true));
        let gate = roster.gate(secs(1));
        assert!(gate.is_panic() && gate.wants_verdict(0) && !gate.wants_verdict(1) && !gate.is_plain());
        assert_eq!(roster.recovered(0, secs(2))[0].to, ServerState::SlowStart);
        assert_eq!((entries(&roster, secs(2)), roster.is_panic()), ("sxxx".into(), false));
    }

    #[test]
    fn without_primaries_panic_opens_the_backups_and_without_anybody_nobody() {
        let mut roster = roster(ALL, "pb");
        roster.set_service(0, Service::Off, secs(0));
        assert_eq!(entries(&roster, secs(0)), "xo");
        fail_checks(&mut roster, 1, secs(1));
        assert_eq!((entries(&roster, secs(1)), roster.is_panic()), ("xo".into(), true));
        roster.set_service(1, Service::Drain, secs(1));
        assert_eq!((entries(&roster, secs(1)), roster.is_panic()), ("xx".into(), false));
        assert_eq!((entries(&Roster::new(ALL, vec![], secs(0)), secs(0)), roster.is_panic()), (String::new(), false));
    }

    #[test]
    fn a_server_put_back_by_the_operator_starts_slowly_with_a_clean_sheet() {
        let mut roster = roster(ALL, "pp");
        roster.failed(0, "refused", secs(1));
        assert_eq!(reasons(&roster.set_service(0, Service::Drain, secs(2))), ["set to drain by the operator"]);
        assert_eq!(roster.set_service(0, Service::Drain, secs(2)), []);
        assert_eq!(roster.set_service(0, Service::Off, secs(2))[0].to, ServerState::Off);
        assert_eq!(roster.set_service(0, Service::Up, secs(3))[0].to, ServerState::SlowStart);
        roster.failed(0, "refused", secs(3));
        assert_eq!(roster.servers(secs(3)).next().unwrap().out_until, Some(secs(8)));
    }

    #[test]
    fn the_operator_ends_an_ejection_whose_failures_are_forgotten() {
        let mut roster = roster(ALL, "pp");
        roster.failed(0, "refused", secs(1));
        assert_eq!(states(&roster, secs(1)), [ServerState::Ejected, ServerState::Up]);
        assert_eq!(roster.set_service(0, Service::Up, secs(2))[0].to, ServerState::SlowStart);
        assert_eq!(roster.set_service(0, Service::Up, secs(2)), [], "nothing is changed twice");
        roster.failed(0, "refused", secs(3));
        assert_eq!(roster.servers(secs(3)).next().unwrap().out_until, Some(secs(8)), "as long as the first time");
    }

    #[test]
    fn the_last_in_service_is_the_one_that_leaves_servers_that_are_out_or_none() {
        let eject = Some(EjectTerms { at_most_percent: 100, ..EJECT });
        let mut roster = roster(Terms { eject, ..ALL }, "ppb");
        let last = |roster: &Roster| (0..3).filter(|server| roster.is_last_in_service(*server)).collect::<Vec<usize>>();
        assert!(last(&roster).is_empty());
        roster.set_service(2, Service::Off, secs(1));
        assert!(last(&roster).is_empty());
        roster.failed(0, "refused", secs(1));
        assert_eq!(last(&roster), [1], "the other one is ejected");
        fail_checks(&mut roster, 1, secs(2));
        assert!(last(&roster).is_empty(), "both are out, and get requests nevertheless");
        roster.set_service(0, Service::Drain, secs(3));
        assert_eq!(last(&roster), [1]);
        roster.set_service(2, Service::Up, secs(4));
        assert_eq!(last(&roster), [2], "a backup that works");
        assert!(!roster.is_last_in_service(3));
    }

    #[test]
    fn a_server_put_back_is_down_if_its_checks_say_so() {
        let mut roster = roster(ALL, "pp");
        roster.set_service(0, Service::Off, secs(1));
        assert_eq!(fail_checks(&mut roster, 0, secs(2)), []);
        let events = roster.set_service(0, Service::Up, secs(3));
        assert_eq!(events[0].to, ServerState::Down);
        let reason = "set to up by the operator; still down: 3 checks failed in a row, the last: timeout";
        assert_eq!(reasons(&events), [reason]);
    }

    #[test]
    fn a_reload_keeps_the_states_of_the_servers_it_keeps() {
        let mut old = roster(ALL, "ppppp");
        old.failed(0, "refused", secs(1));
        fail_checks(&mut old, 1, secs(1));
        old.set_service(2, Service::Off, secs(1));
        old.set_service(3, Service::Off, secs(1));
        let mut listed = members("ppppp");
        listed[3].service = Service::Drain;
        listed.rotate_left(1);
        listed[3] = Member { name: "new".into(), service: Service::Up, is_backup: false };
        let (new, events) = old.reloaded(ALL, listed, secs(2));
        let expected = [
            ("p1", ServerState::Down),
            ("p2", ServerState::Off),
            ("p3", ServerState::Draining),
            ("new", ServerState::SlowStart),
            ("p0", ServerState::Ejected),
        ];
        let shown: Vec<_> = new.servers(secs(2)).map(|server| (server.name, server.state)).collect();
        assert_eq!(shown, expected);
        assert_eq!(reasons(&events), ["set to drain in the file"]);
        assert_eq!((events[0].server, events[0].from, events[0].to), (2, ServerState::Off, ServerState::Draining));
        assert_eq!(entries(&new, secs(6)), "xxxsp");
    }

    #[test]
    fn a_reload_that_ends_checks_or_ejections_brings_their_servers_back() {
        let mut old = roster(ALL, "pppp");
        old.failed(0, "refused", secs(1));
        fail_checks(&mut old, 1, secs(1));
        old.set_service(2, Service::Off, secs(1));
        old.set_service(2, Service::Up, secs(1));
        let none = Terms { eject: None, slow_start: Span::ZERO, health: None };
        let (new, events) = old.reloaded(none, members("pppp"), secs(2));
        let expected =
            ["servers are not ejected any more", "it is not checked any more", "servers do not start slowly any more"];
        assert_eq!(reasons(&events), expected);
        assert!(new.gate(secs(2)).is_plain());
        let (_, events) = old.reloaded(none, members("p"), secs(30));
        assert_eq!(reasons(&events), ["servers are not ejected any more"], "the slow start was of one that is gone");
        let (new, events) = old.reloaded(ALL, members("ppp"), secs(30));
        assert_eq!(reasons(&events), ["its slow start is over"]);
        assert_eq!(new.servers(secs(30)).nth(2).unwrap().since, secs(11));
    }

    #[test]
    fn a_server_that_is_not_there_is_nobody() {
        let mut roster = roster(ALL, "pp");
        let service = roster.set_service(2, Service::Off, secs(1));
        let events = [roster.failed(2, "x", secs(1)), roster.recovered(2, secs(1)), roster.checked(2, Ok(()), secs(1))];
        assert!(service.is_empty() && events.iter().all(Vec::is_empty));
    }

    #[derive(Clone, Copy, Debug)]
    enum Act {
        Failed,
        Recovered,
        Checked(bool),
        Service(Service),
        Reload,
        Nothing,
    }

    fn acts(with_operator: bool) -> impl Strategy<Value = Vec<(u64, usize, Act)>> {
        let wait = prop_oneof![5 => Just(0u64), 4 => 0u64..3_000, 2 => 0u64..15_000, 1 => 0u64..200_000];
        let service = prop::sample::select(Service::ALL.to_vec()).prop_map(Act::Service);
        let act = prop_oneof![
            8 => Just(Act::Failed),
            4 => Just(Act::Recovered),
            10 => prop::bool::weighted(0.4).prop_map(Act::Checked),
            if with_operator { 3 } else { 0 } => service,
            1 => Just(Act::Reload),
            2 => Just(Act::Nothing),
        ];
        prop::collection::vec((wait, 0usize..6, act), 0..120)
    }

    fn terms() -> impl Strategy<Value = Terms> {
        let slow_start = prop_oneof![Just(0u64), Just(7), 1_000u64..20_000];
        (prop::bool::weighted(0.8), slow_start, any::<bool>(), 1u32..=100).prop_map(
            |(ejects, slow, checks, percent)| {
                let eject = ejects.then_some(EjectTerms { at_most_percent: percent, ..EJECT });
                Terms { eject, slow_start: Span::from_millis(slow), health: checks.then_some(HEALTH) }
            },
        )
    }

    /// Plays acts and looks at everything after each; `look` gets the roster before and after.
    fn play(
        terms: Terms,
        kinds: &str,
        acts: &[(u64, usize, Act)],
        mut look: impl FnMut(&Roster, &Roster, &[Event], Tick) -> Result<(), TestCaseError>,
    ) -> Result<(Roster, Tick), TestCaseError> {
        let (mut roster, mut now) = (roster(terms, kinds), secs(0));
        for (wait, server, act) in acts {
            now = now + Span::from_millis(*wait);
            let before = roster.clone();
            let server = server % kinds.len();
            let events = match act {
                Act::Failed => roster.failed(server, "refused", now),
                Act::Recovered => roster.recovered(server, now),
                Act::Checked(passes) => roster.checked(server, if *passes { Ok(()) } else { Err("timeout") }, now),
                Act::Service(service) => roster.set_service(server, *service, now),
                Act::Nothing => roster.pass_time(now),
                Act::Reload => {
                    let (reloaded, events) = roster.reloaded(terms, members(kinds), now);
                    roster = reloaded;
                    events
                }
            };
            look(&before, &roster, &events, now)?;
        }
        Ok((roster, now))
    }

    /// The ejected of a group that the operator has not taken out, and how many may be.
    fn ejected_and_limit(roster: &Roster, is_backup: bool) -> (usize, usize) {
        let wanted = roster.standings.iter().filter(|own| own.is_backup == is_backup && own.service == Service::Up);
        let members = wanted.clone().count();
        let ejected = wanted.filter(|own| own.ejection.is_some()).count();
        let percent = roster.terms.eject.map_or(0, |terms| terms.at_most_percent as usize);
        (ejected, if members <= 1 { 0 } else { members * percent / 100 })
    }

    fn kinds() -> impl Strategy<Value = String> {
        "p{0,5}b{0,3}".prop_filter("nobody", |kinds| !kinds.is_empty())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn never_more_are_ejected_than_may_be(terms in terms(), kinds in kinds(), acts in acts(false)) {
            play(terms, &kinds, &acts, |_, roster, _, _| {
                for is_backup in [false, true] {
                    let (ejected, limit) = ejected_and_limit(roster, is_backup);
                    prop_assert!(ejected <= limit, "{ejected} of {limit}");
                }
                Ok(())
            })?;
        }

        #[test]
        fn where_the_operator_makes_a_group_smaller_its_ejected_do_not_become_more(
            terms in terms(), kinds in kinds(), acts in acts(true),
        ) {
            play(terms, &kinds, &acts, |before, roster, _, _| {
                for is_backup in [false, true] {
                    let (ejected, limit) = ejected_and_limit(roster, is_backup);
                    prop_assert!(ejected <= limit.max(ejected_and_limit(before, is_backup).0), "{ejected} of {limit}");
                }
                Ok(())
            })?;
        }

        #[test]
        fn somebody_is_admitted_unless_the_operator_has_taken_out_all_and_those_never(
            terms in terms(), kinds in kinds(), acts in acts(true),
        ) {
            play(terms, &kinds, &acts, |_, roster, _, now| {
                let gate = roster.gate(now);
                let mut is_anybody_wanted = false;
                for (server, view) in roster.servers(now).enumerate() {
                    is_anybody_wanted |= view.service == Service::Up;
                    prop_assert!(view.service == Service::Up || gate.entry(server) == Eligibility::Shut);
                    prop_assert_eq!(view.service != Service::Up, view.state.is_by_operator());
                    let is_ejected = view.state == ServerState::Ejected;
                    prop_assert!(gate.entry(server) != Eligibility::Probe || (is_ejected && gate.wants_verdict(server)));
                    prop_assert!(!is_ejected || gate.wants_verdict(server) == (gate.entry(server) != Eligibility::Shut));
                }
                let is_for_all = |server| matches!(gate.entry(server), Eligibility::Open | Eligibility::Share(_));
                prop_assert_eq!((0..kinds.len()).any(is_for_all), is_anybody_wanted);
                Ok(())
            })?;
        }

        #[test]
        fn a_backup_is_admitted_only_while_no_primary_is_in(terms in terms(), kinds in kinds(), acts in acts(true)) {
            play(terms, &kinds, &acts, |_, roster, _, now| {
                let is_in = |view: ServerView<'_>| !view.is_backup && !view.state.is_out();
                if roster.servers(now).any(is_in) {
                    let mut backups = roster.servers(now).enumerate().filter(|(_, view)| view.is_backup);
                    prop_assert!(backups.all(|(server, _)| roster.gate(now).entry(server) == Eligibility::Shut));
                }
                Ok(())
            })?;
        }

        #[test]
        fn events_tell_every_change_and_each_begins_where_the_one_before_ended(
            terms in terms(), kinds in kinds(), acts in acts(true),
        ) {
            let mut told = vec![ServerState::Up; kinds.len()];
            play(terms, &kinds, &acts, |_, roster, events, now| {
                for event in events {
                    prop_assert_eq!(event.from, told[event.server]);
                    prop_assert!(event.from != event.to || event.to == ServerState::Ejected);
                    told[event.server] = event.to;
                }
                prop_assert_eq!(&states(roster, now), &told);
                let mut views = roster.servers(now);
                prop_assert!(events.iter().rev().take(1).all(|event| views.nth(event.server).unwrap().reason == event.reason));
                Ok(())
            })?;
        }

        #[test]
        fn a_gate_holds_until_its_time_and_that_is_never_past(
            terms in terms(), kinds in kinds(), acts in acts(true), part in 0u64..1_000,
        ) {
            play(terms, &kinds, &acts, |_, roster, _, now| {
                let gate = roster.gate(now);
                prop_assert!(gate.until() > now);
                prop_assert_eq!(roster.next_change(now), gate.until());
                let length = gate.until().since(now).as_nanos().min(1 << 50);
                for passed in [length / 1_000 * part, length - 1] {
                    let later = now + Span::from_nanos(passed);
                    prop_assert_eq!(&roster.gate(later), &gate);
                    prop_assert_eq!(roster.clone().pass_time(later), []);
                    prop_assert_eq!(states(roster, later), states(roster, now));
                }
                // Late by any time, and never told: what is shown is the same as if it had been.
                let late = now + Span::from_millis(part * 30);
                let mut told = roster.clone();
                let events = told.pass_time(late);
                prop_assert_eq!(events.is_empty(), roster.next_change(late) > late);
                prop_assert_eq!(roster.gate(late), told.gate(late));
                prop_assert!(roster.servers(late).eq(told.servers(late)));
                Ok(())
            })?;
        }

        #[test]
        fn an_ejected_server_comes_to_its_probe_by_time_alone_and_up_by_its_success(
            terms in terms(), kinds in kinds(), acts in acts(true),
        ) {
            let (roster, now) = play(terms, &kinds, &acts, |_, _, _, _| Ok(()))?;
            for (server, view) in roster.servers(now).enumerate().filter(|(_, view)| view.state == ServerState::Ejected) {
                let out_until = view.out_until.unwrap().max(now);
                prop_assert!(out_until <= now + EJECT.max);
                let gate = roster.gate(out_until);
                let is_in_panic = gate.is_panic() && gate.entry(server) == Eligibility::Open;
                let is_idle_backup = view.is_backup && gate.entry(server) == Eligibility::Shut;
                prop_assert!(gate.entry(server) == Eligibility::Probe || is_in_panic || is_idle_backup);
                let mut roster = roster.clone();
                let events = roster.recovered(server, out_until);
                let expected = if terms.slow_start.is_zero() { ServerState::Up } else { ServerState::SlowStart };
                prop_assert_eq!(events.last().map(|event| event.to), Some(expected));
                let after = out_until + terms.slow_start;
                roster.pass_time(after);
                prop_assert_eq!(states(&roster, after)[server], ServerState::Up);
            }
        }
    }
}
