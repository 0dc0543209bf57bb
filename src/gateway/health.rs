//! Looks after the servers of upstreams, in a thread of its own: asks those with `health` whether they work, and tells what
//! the time alone has changed. Follows the wall clock, too.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

use tokio::runtime::LocalOptions;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::component::Component;
use super::error::BuildError;
use crate::balance::Service;
use crate::config::{Health, HealthProtocol, Model};
use crate::proxy::{self, Snapshot};
use crate::time::{Clock, Span, Tick};
use crate::upstream::{Endpoint, Link, ServerStates, probe_grpc, probe_http, probe_tcp};

/// How many lists of upstreams may wait for the thread.
const INBOX: usize = 16;
/// The first checks are spread over this time, or over the interval if that is shorter.
const SPREAD: Span = Span::from_secs(1);
/// An interval is longer by up to this part of it, so that gateways do not ask all at once.
const JITTER: u64 = 10;
/// How often the wall clock is read.
const FOLLOW_EVERY: Span = Span::from_secs(1);
/// A step of it that is longer is told.
const TOLD_ABOVE: Span = Span::from_secs(1);
/// Changes by time are not looked for more often than this.
const SHORTEST: Span = Span::from_millis(1);

/// The thread. It ends when this is dropped.
pub struct HealthChecks {
    inbox: mpsc::Sender<Vec<WatchedUpstream>>,
}

/// An upstream that is looked after.
pub struct WatchedUpstream {
    name: Arc<str>,
    states: Arc<ServerStates>,
    health: Option<Health>,
    link: Link,
    servers: Vec<Endpoint>,
}

impl HealthChecks {
    /// Starts the thread.
    pub fn start(clock: Clock) -> io::Result<Self> {
        let (inbox, lists) = mpsc::channel(INBOX);
        thread::Builder::new().name("health".into()).spawn(move || {
            let built = tokio::runtime::Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
            match built {
                Ok(runtime) => runtime.block_on(look_after(lists, clock)),
                Err(error) => tracing::error!(%error, "servers are not checked"),
            }
        })?;
        Ok(Self { inbox })
    }
}

impl Component for HealthChecks {
    type Needs<'n> = &'n Snapshot;
    type Staged = Vec<WatchedUpstream>;

    fn stage(&self, _: &Arc<Model>, snapshot: &Snapshot) -> Result<Vec<WatchedUpstream>, BuildError> {
        let upstream = |upstream: &Arc<proxy::Upstream>| WatchedUpstream {
            name: Arc::clone(&upstream.spec.name),
            states: Arc::clone(&upstream.states),
            health: upstream.spec.health.clone(),
            link: upstream.link.clone(),
            servers: upstream.servers.iter().map(|(endpoint, _)| endpoint.clone()).collect(),
        };
        Ok(snapshot.upstreams.iter().map(upstream).collect())
    }

    /// Must not be called from a runtime's thread.
    fn commit(&mut self, staged: Vec<WatchedUpstream>) {
        if self.inbox.blocking_send(staged).is_err() {
            tracing::error!("servers are not checked any more; the process should be restarted");
        }
    }
}

impl WatchedUpstream {
    fn is_same(&self, other: &Self) -> bool {
        let Self { name, states, health, link, servers } = self;
        Arc::ptr_eq(states, &other.states)
            && (name, health, link, servers) == (&other.name, &other.health, &other.link, &other.servers)
    }
}

async fn look_after(mut lists: mpsc::Receiver<Vec<WatchedUpstream>>, clock: Clock) {
    let _follows = tokio::task::spawn_local(follow_wall(clock.clone()));
    // The tasks of one that goes end with their set.
    let mut running: HashMap<Arc<str>, (Rc<WatchedUpstream>, JoinSet<()>)> = HashMap::new();
    while let Some(list) = lists.recv().await {
        let mut next = HashMap::new();
        for upstream in list {
            let kept = running.remove(&upstream.name).filter(|(old, _)| old.is_same(&upstream));
            let upstream = Rc::new(upstream);
            let kept = kept.unwrap_or_else(|| (Rc::clone(&upstream), begin(&upstream, &clock)));
            next.insert(Arc::clone(&upstream.name), kept);
        }
        running = next;
    }
}

/// Follows the wall clock, which may be set. Here is a thread that is always there and never waits for a disk.
async fn follow_wall(clock: Clock) {
    loop {
        let moved = clock.follow_wall();
        let by = Span::from_nanos(moved.unsigned_abs());
        if by > TOLD_ABOVE {
            let (by_s, to) = (by.in_millis() / 1_000.0, if moved > 0 { "forward" } else { "back" });
            tracing::warn!("the wall clock was set {to} by {by_s:.3} s: times follow it, limits do not");
        }
        sleep(FOLLOW_EVERY.into()).await;
    }
}

fn begin(upstream: &Rc<WatchedUpstream>, clock: &Clock) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn_local(pass_time(Arc::clone(&upstream.states), clock.clone()));
    if upstream.health.is_some() {
        for place in 0..upstream.servers.len() {
            tasks.spawn_local(check(Rc::clone(upstream), place, clock.clone()));
        }
    }
    tasks
}

async fn pass_time(states: Arc<ServerStates>, clock: Clock) {
    loop {
        let now = clock.now();
        match states.pass_time(now) {
            Tick::MAX => states.changed().await,
            due => tokio::select! {
                () = sleep(due.since(now).max(SHORTEST).into()) => {}
                () = states.changed() => {}
            },
        }
    }
}

/// Checks one server, again and again.
async fn check(upstream: Rc<WatchedUpstream>, place: usize, clock: Clock) {
    let (Some(health), Some(server)) = (&upstream.health, upstream.servers.get(place)) else { return };
    let random = RandomState::new();
    let part = |of: Span, number: u64| Span::from_nanos(random.hash_one(number) % of.as_nanos().max(1));
    sleep(part(health.interval.min(SPREAD), 0).into()).await;
    let endpoint = Endpoint { port: health.port.unwrap_or(server.port), ..server.clone() };
    for round in 1.. {
        let began = clock.now();
        if upstream.states.with_roster(|roster| roster.service_of(place)) != Some(Service::Off) {
            let result = match timeout(health.timeout.into(), ask(health, &endpoint, &upstream.link)).await {
                Ok(result) => result,
                Err(_) => Err(format!("no answer within {}", health.timeout)),
            };
            upstream.states.checked(place, result.as_ref().copied().map_err(String::as_str), clock.now());
        }
        let jitter = Span::from_nanos(health.interval.as_nanos() / JITTER);
        let next = began + health.interval + part(jitter, round);
        sleep(next.since(clock.now()).into()).await;
    }
}

/// Asks once.
async fn ask(health: &Health, endpoint: &Endpoint, link: &Link) -> Result<(), String> {
    let host = || match &health.host {
        Some(host) => host.to_string(),
        None if endpoint.host.contains(':') => format!("[{}]:{}", endpoint.host, endpoint.port),
        None => format!("{}:{}", endpoint.host, endpoint.port),
    };
    match health.protocol {
        HealthProtocol::Tcp => probe_tcp(endpoint, link).await.map_err(|error| error.to_string()),
        HealthProtocol::Grpc => probe_grpc(endpoint, link, &host()).await.map_err(|error| error.to_string()),
        HealthProtocol::Http => {
            let path = health.path.as_deref().unwrap_or("/");
            let status = probe_http(endpoint, link, &host(), path).await.map_err(|error| error.to_string())?;
            if health.expect.contains(status) { Ok(()) } else { Err(format!("status {status}")) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::build::{self, Logs};
    use crate::gateway::testing::{live_state, model};

    #[test]
    fn the_upstreams_of_a_generation_are_looked_after_from_the_commit_on() {
        let state = live_state();
        let of = |more: &str| {
            model(&format!(
                "[[listener]]\naddress = \"127.0.0.1:1\"\n[[upstream]]\nname = \"app\"\nservers = [\"127.0.0.1:2\"]\n{more}\n\
                 [[route]]\nname = \"all\"\nupstream = \"app\"\n"
            ))
        };
        let snapshot = |model: &Arc<Model>, old: &Snapshot| {
            let logs = Logs { dead_letters: None, access_log: None };
            build::build(model, 1, (old, &state), &state.stage(model, ()).unwrap(), logs).unwrap()
        };
        let (inbox, mut lists) = mpsc::channel(1);
        let mut health = HealthChecks { inbox };
        let plain = of("");
        let first = snapshot(&plain, &build::nothing(&plain, &state));
        let staged = health.stage(&plain, &first).unwrap();
        assert!(lists.try_recv().is_err(), "it is not committed yet");
        health.commit(staged);
        let [before] = <[WatchedUpstream; 1]>::try_from(lists.try_recv().unwrap()).ok().unwrap();
        assert_eq!((&*before.name, before.health.is_none(), before.servers.len()), ("app", true, 1));

        let again = snapshot(&plain, &first);
        health.commit(health.stage(&plain, &again).unwrap());
        let same = lists.try_recv().unwrap();
        assert!(same[0].is_same(&before), "its checks go on");
        let checked = of("health = { path = \"/ok\" }");
        let next = snapshot(&checked, &again);
        health.commit(health.stage(&checked, &next).unwrap());
        assert!(!lists.try_recv().unwrap()[0].is_same(&before), "its checks begin anew");
    }
}
