//! The requests that a worker has in flight, as an operator sees them, and how one of them is cancelled.
//!
//! A request is entered when it waits for a limit or goes to a server: one that is refused or answered at once costs nothing
//! here. To enter copies its method, its path and its id into room that an earlier one has left, so that a warm worker
//! allocates nothing. Nothing of it is read but when somebody asks, on the worker's own thread.

use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use crate::deadlines::Alarm;
use crate::view::{RouteView, UpstreamView};
use sluicegate_time::{Span, Tick};

/// The most that is kept of a path, of a host, of an id or of a method, in bytes.
const MAX_TEXT: usize = 128;
/// Above so many requests at once a place that is left keeps no room.
const KEPT: usize = 1024;
/// No place.
const NIL: u32 = u32::MAX;

words! {
    /// Where a request is.
    pub enum FlightPhase {
        /// In the queue of a limit.
        Waiting = "waiting",
        /// On its way to a connection: it waits for its bandwidth, for a place at its upstream, or for a connect.
        Connecting = "connecting",
        /// It is sent, and the head of its answer has not come.
        Sent = "sent",
        /// The head of its answer has come, and the body has not gone out whole.
        Answering = "answering",
        /// Its connection is a tunnel, such as a WebSocket.
        Tunnel = "tunnel",
    }
}

/// The requests of one worker.
pub struct Flights {
    places: Vec<Flight>,
    /// The first place that is free.
    free: u32,
    entered: u32,
    last_number: u64,
}

impl Default for Flights {
    fn default() -> Self {
        Self { places: Vec::new(), free: NIL, entered: 0, last_number: 0 }
    }
}

/// The facts of a request when it is entered.
pub struct FlightFacts<'r> {
    /// It wakes the request's task.
    pub alarm: &'r Rc<Alarm>,
    /// Whether it came by HTTP/2.
    pub is_h2: bool,
    /// When it arrived.
    pub arrived: Tick,
    /// The client.
    pub client: IpAddr,
    /// Its method, host and path, and the id that a trusted peer gave it.
    pub texts: [&'r [u8]; 4],
    /// The numbers of its own id.
    pub id: [u64; 2],
    /// Its route.
    pub route: Option<&'r Rc<RouteView>>,
}

/// Where a request goes, as far as that is known.
pub struct Way<'r> {
    /// Where it is.
    pub phase: FlightPhase,
    /// The upstream.
    pub upstream: Option<&'r Rc<UpstreamView>>,
    /// The server there.
    pub server: Option<u32>,
}

/// Where a request is entered.
#[derive(Debug)]
pub struct FlightEntry(u32);

/// A place: a request, or room for one.
#[derive(Default)]
struct Flight {
    /// No other one of this worker has or had it.
    number: u64,
    /// It wakes the request's task; `None`: the place is free.
    alarm: Option<Rc<Alarm>>,
    is_h2: bool,
    /// The next free place, where this one is free.
    next: u32,
    arrived: Tick,
    phase: Option<FlightPhase>,
    client: Option<IpAddr>,
    route: Option<Rc<RouteView>>,
    upstream: Option<Rc<UpstreamView>>,
    server: Option<u32>,
    id: [u64; 2],
    /// Method, host, path and the id that a trusted peer gave it, one behind the other, each cut to [`MAX_TEXT`].
    text: Vec<u8>,
    ends: [u16; 4],
}

/// A request in flight, as it is told.
#[derive(Clone, Debug)]
pub struct SeenFlight {
    /// The worker that carries it.
    pub worker: usize,
    /// Its number there.
    pub number: u64,
    /// When it arrived.
    pub arrived: Tick,
    /// How long ago that was.
    pub age: Span,
    /// Where it is.
    pub phase: FlightPhase,
    /// The client.
    pub client: IpAddr,
    /// Whether it came by HTTP/2.
    pub is_h2: bool,
    /// Its method, cut to 128 bytes, as all texts are.
    pub method: String,
    /// Its host.
    pub host: String,
    /// Its path, without its query.
    pub path: String,
    /// Its id.
    pub request_id: String,
    /// Its route.
    pub route: Option<Arc<str>>,
    /// The upstream that it goes to.
    pub upstream: Option<Arc<str>>,
    /// The server there.
    pub server: Option<Arc<str>>,
}

impl SeenFlight {
    /// Its place among all.
    pub fn rank(&self) -> FlightRank {
        (self.arrived, self.worker, self.number)
    }
}

/// The requests that somebody asks for.
#[derive(Clone, Debug, Default)]
pub struct FlightFilter {
    /// Of this route.
    pub route: Option<String>,
    /// Of this upstream.
    pub upstream: Option<String>,
    /// Of this client.
    pub client: Option<IpAddr>,
    /// In this phase.
    pub phase: Option<FlightPhase>,
    /// At least so old.
    pub min_age: Span,
    /// Those that come behind the one of this rank.
    pub after: Option<FlightRank>,
    /// So many at the most, the oldest ones.
    pub max: usize,
}

/// The order in which requests are told: the oldest first. Arrival, worker, number.
pub type FlightRank = (Tick, usize, u64);

impl Flights {
    /// Enters a request.
    pub fn enter(&mut self, facts: &FlightFacts<'_>, way: &Way<'_>) -> FlightEntry {
        let place = match self.free {
            NIL => {
                self.places.push(Flight::default());
                self.places.len() as u32 - 1
            }
            free => {
                self.free = self.places[free as usize].next;
                free
            }
        };
        self.entered += 1;
        self.last_number += 1;
        let number = self.last_number;
        let flight = &mut self.places[place as usize];
        flight.fill(number, facts);
        flight.note(way);
        FlightEntry(place)
    }

    /// Notes where it is now.
    pub fn note(&mut self, entry: &FlightEntry, way: &Way<'_>) {
        self.places[entry.0 as usize].note(way);
    }

    /// It is over.
    pub fn leave(&mut self, entry: &FlightEntry) {
        let is_crowded = self.places.len() > KEPT;
        let flight = &mut self.places[entry.0 as usize];
        if let Some(alarm) = flight.alarm.take() {
            // Its connection may carry another request, which nobody has cancelled.
            alarm.forget_cancel();
        }
        (flight.route, flight.upstream, flight.server) = (None, None, None);
        if is_crowded {
            flight.text = Vec::new();
        }
        flight.next = self.free;
        self.free = entry.0;
        self.entered -= 1;
        if is_crowded && self.entered == 0 {
            *self = Self { last_number: self.last_number, ..Self::default() };
        }
    }

    /// Those that somebody asks for, the oldest first.
    pub fn list(&self, filter: &FlightFilter, worker: usize, now: Tick) -> Vec<SeenFlight> {
        let mut oldest = BinaryHeap::new();
        for (place, flight) in self.places.iter().enumerate() {
            let rank = (flight.arrived, worker, flight.number);
            if flight.matches(filter, now) && filter.after.is_none_or(|after| rank > after) {
                oldest.push((rank, place));
                if oldest.len() > filter.max {
                    oldest.pop();
                }
            }
        }
        let oldest = oldest.into_sorted_vec().into_iter();
        oldest.filter_map(|(_, place)| self.places.get(place)?.seen(worker, now)).collect()
    }

    /// Has the request of this number end as soon as its task runs; false if there is none.
    pub fn cancel(&self, number: u64) -> bool {
        let asked = self.places.iter().find(|flight| flight.number == number);
        let alarm = asked.and_then(|flight| flight.alarm.as_ref());
        alarm.inspect(|alarm| alarm.cancel_request()).is_some()
    }
}

impl Flight {
    fn fill(&mut self, number: u64, facts: &FlightFacts<'_>) {
        self.text.clear();
        for (text, end) in facts.texts.into_iter().zip(&mut self.ends) {
            self.text.extend_from_slice(text.get(..MAX_TEXT).unwrap_or(text));
            *end = self.text.len() as u16;
        }
        self.number = number;
        self.alarm = Some(Rc::clone(facts.alarm));
        self.is_h2 = facts.is_h2;
        self.arrived = facts.arrived;
        self.client = Some(facts.client);
        self.route = facts.route.cloned();
        self.id = facts.id;
    }

    fn note(&mut self, way: &Way<'_>) {
        self.phase = Some(way.phase);
        if self.upstream.is_none() {
            self.upstream = way.upstream.cloned();
        }
        self.server = way.server;
    }

    fn matches(&self, filter: &FlightFilter, now: Tick) -> bool {
        let is = |own: Option<&Arc<str>>, asked: &Option<String>| {
            asked.as_deref().is_none_or(|asked| own.is_some_and(|own| **own == *asked))
        };
        self.alarm.is_some()
            && now.since(self.arrived) >= filter.min_age
            && filter.phase.is_none_or(|asked| self.phase == Some(asked))
            && filter.client.is_none_or(|asked| self.client == Some(asked))
            && is(self.route_name(), &filter.route)
            && is(self.upstream_name(), &filter.upstream)
    }

    fn route_name(&self) -> Option<&Arc<str>> {
        self.route.as_ref().map(|route| &route.spec.name)
    }

    fn upstream_name(&self) -> Option<&Arc<str>> {
        self.upstream.as_ref().map(|upstream| &upstream.spec.name)
    }

    fn text(&self, range: Range<usize>) -> String {
        String::from_utf8_lossy(self.text.get(range).unwrap_or_default()).into_owned()
    }

    fn seen(&self, worker: usize, now: Tick) -> Option<SeenFlight> {
        let [method, host, path, given] = self.ends.map(usize::from);
        let [one, two] = self.id;
        let given = self.text(path..given);
        let server = self.server.and_then(|server| self.upstream.as_ref()?.server_name(server as usize).cloned());
        Some(SeenFlight {
            worker,
            number: self.number,
            arrived: self.arrived,
            age: now.since(self.arrived),
            phase: self.phase?,
            client: self.client?,
            is_h2: self.is_h2,
            method: self.text(0..method),
            host: self.text(method..host),
            path: self.text(host..path),
            request_id: if given.is_empty() { format!("{one:016x}{two:016x}") } else { given },
            route: self.route_name().cloned(),
            upstream: self.upstream_name().cloned(),
            server,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Tick = Tick::from_nanos(60_000_000_000);

    fn at(secs: u64) -> Tick {
        Tick::ZERO + Span::from_secs(secs)
    }

    fn enter(flights: &mut Flights, alarm: &Rc<Alarm>, secs: u64, path: &str) -> FlightEntry {
        let facts = FlightFacts {
            alarm,
            is_h2: secs % 2 == 1,
            arrived: at(secs),
            client: [192, 0, 2, secs as u8].into(),
            texts: [b"GET", b"a.example", path.as_bytes(), b""],
            id: [1, secs],
            route: None,
        };
        flights.enter(&facts, &Way { phase: FlightPhase::Connecting, upstream: None, server: None })
    }

    fn paths(flights: &Flights, filter: &FlightFilter) -> Vec<String> {
        flights.list(filter, 0, NOW).into_iter().map(|seen| seen.path).collect()
    }

    fn all() -> FlightFilter {
        FlightFilter { max: 100, ..FlightFilter::default() }
    }

    #[test]
    fn the_oldest_come_first_and_pages_follow_each_other() {
        let (mut flights, alarm) = (Flights::default(), Rc::default());
        let entries: Vec<_> = [5, 3, 9, 3, 7].map(|secs| enter(&mut flights, &alarm, secs, &format!("/{secs}"))).into();
        assert_eq!(paths(&flights, &all()), ["/3", "/3", "/5", "/7", "/9"]);
        let (mut after, mut pages) = (None, Vec::new());
        for _ in 0..4 {
            let page = flights.list(&FlightFilter { max: 2, after, ..all() }, 0, NOW);
            after = page.last().map(SeenFlight::rank).or(after);
            pages.push(page.len());
        }
        assert_eq!(pages, [2, 2, 1, 0], "each of two that came at once is told once");
        flights.leave(&entries[2]);
        assert_eq!(paths(&flights, &all()), ["/3", "/3", "/5", "/7"]);
    }

    #[test]
    fn what_is_asked_for_is_told() {
        let (mut flights, alarm) = (Flights::default(), Rc::default());
        let entry = enter(&mut flights, &alarm, 10, "/a");
        enter(&mut flights, &alarm, 50, "/b");
        flights.note(&entry, &Way { phase: FlightPhase::Sent, upstream: None, server: Some(1) });
        let with = |filter: FlightFilter| paths(&flights, &filter);
        assert_eq!(with(FlightFilter { phase: Some(FlightPhase::Sent), ..all() }), ["/a"]);
        assert_eq!(with(FlightFilter { client: Some([192, 0, 2, 50].into()), ..all() }), ["/b"]);
        assert_eq!(with(FlightFilter { min_age: Span::from_secs(50), ..all() }), ["/a"]);
        assert_eq!(with(FlightFilter { min_age: Span::from_secs(51), ..all() }), [""; 0]);
        assert_eq!(with(FlightFilter { route: Some("r".into()), ..all() }), [""; 0]);
        let seen = flights.list(&all(), 3, NOW).remove(0);
        assert_eq!((seen.worker, seen.number, seen.age, seen.is_h2), (3, 1, Span::from_secs(50), false));
        assert_eq!(
            (&*seen.method, &*seen.host, &*seen.request_id),
            ("GET", "a.example", "0000000000000001000000000000000a")
        );
    }

    #[test]
    fn a_cancel_reaches_its_request_and_not_the_next_one_of_the_connection() {
        let (mut flights, alarm, other) = (Flights::default(), Rc::<Alarm>::default(), Rc::<Alarm>::default());
        let entry = enter(&mut flights, &alarm, 1, "/");
        enter(&mut flights, &other, 1, "/");
        assert!(flights.cancel(1) && alarm.is_cancelled() && alarm.take_fired() && !other.is_cancelled());
        flights.leave(&entry);
        assert!(!alarm.is_cancelled());
        assert!(!flights.cancel(1), "its number is nobody's");
        enter(&mut flights, &alarm, 2, "/");
        assert!(!flights.cancel(1) && !alarm.is_cancelled() && flights.cancel(3));
    }

    #[test]
    fn long_texts_are_cut_and_room_is_given_back_after_a_crowd() {
        let (mut flights, alarm) = (Flights::default(), Rc::default());
        let long = format!("/{}", "x".repeat(500));
        let entries: Vec<_> = (0..KEPT as u64 * 2).map(|_| enter(&mut flights, &alarm, 1, &long)).collect();
        assert_eq!(paths(&flights, &FlightFilter { max: 1, ..all() })[0].len(), MAX_TEXT);
        assert_eq!(flights.places.len(), KEPT * 2);
        for entry in &entries {
            flights.leave(entry);
        }
        assert_eq!((flights.places.len(), flights.entered, flights.last_number), (0, 0, KEPT as u64 * 2));
        let small = enter(&mut flights, &alarm, 1, "/");
        flights.leave(&small);
        enter(&mut flights, &alarm, 1, "/");
        assert_eq!(flights.places.len(), 1, "a place is used again");
    }
}
