//! One thread, one runtime, nothing shared with the next.

use std::collections::HashMap;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use tokio::runtime::{LocalOptions, LocalRuntime};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::build::{self, Logs};
use super::component::Component;
use super::error::BuildError;
use super::live_state::{LiveState, NewLiveState};
use super::objects;
use crate::config::{ListenAddress, Model};
use crate::proxy::{self, Feed, FlightFilter, OwnDoor, SeenFlight, Snapshot, Worker, WorkerGauges};
use crate::telemetry::Registry;
use crate::time::{Clock, Span};

/// How many commands may wait for a worker.
const INBOX: usize = 64;
/// The exit code of Rust's own panics.
const PANICKED: i32 = 101;
/// Before a worker takes the place of one that panicked: it may do so again at once.
const RESTART_PAUSE: Span = Span::from_millis(100);
/// How often a draining worker looks whether it is done.
const DRAIN_LOOK: Span = Span::from_millis(10);

/// A command to a worker.
#[derive(Debug)]
pub enum WorkerCommand {
    /// Accept on these sockets, which the configuration calls by this address.
    Listen(ListenAddress, Vec<TcpListener>),
    /// Copy the sockets, for another process.
    Copy(SyncSender<io::Result<Vec<(ListenAddress, TcpListener)>>>),
    /// Serve this connection, of the gateway's own.
    Serve(TcpStream),
    /// Tell which requests are in flight.
    List(Arc<FlightFilter>, SyncSender<Vec<SeenFlight>>),
    /// Cancel the request of this number; whether there is one.
    Cancel(u64, SyncSender<bool>),
    /// Stop accepting there; its connections finish.
    Unlisten(ListenAddress),
    /// A new snapshot was published.
    Refresh,
    /// Stop accepting everywhere, finish what is in flight for at most this long, end.
    Drain(Span),
}

/// A worker thread as the gateway holds it.
pub struct WorkerThread {
    /// The gauges of the worker, which others may read.
    pub gauges: Arc<WorkerGauges>,
    inbox: mpsc::Sender<WorkerCommand>,
    thread: Option<JoinHandle<()>>,
}

impl WorkerThread {
    /// Starts worker number `index`.
    pub fn start(
        index: usize,
        clock: Clock,
        feed: Arc<Feed>,
        registry: Arc<Registry>,
        max_connections: u64,
    ) -> io::Result<Self> {
        let gauges = Arc::new(WorkerGauges::default());
        let (inbox, commands) = mpsc::channel(INBOX);
        let shared = Arc::clone(&gauges);
        // The runtime cannot leave the thread that made it, so the thread says whether it could.
        let (tell, told) = sync_channel(1);
        let thread = thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
            let runtime = match build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(tell.send(Err(error))),
            };
            drop(tell.send(Ok(())));
            let make = || {
                let (clock, feed, registry) = (clock.clone(), Arc::clone(&feed), Arc::clone(&registry));
                Worker::new(index, clock, feed, registry, Arc::clone(&shared), max_connections)
            };
            serve(runtime, make, commands);
        })?;
        told.recv().unwrap_or_else(|_| Err(io::Error::other("the worker thread ended at once")))?;
        Ok(Self { gauges, inbox, thread: Some(thread) })
    }

    /// Tells the worker something. Must not be called from a runtime's thread: it waits for a place in the inbox.
    pub fn tell(&self, command: WorkerCommand) {
        tell(&self.inbox, command);
    }

    /// Where it is told something, for a caller that must not wait.
    pub fn inbox(&self) -> mpsc::Sender<WorkerCommand> {
        self.inbox.clone()
    }

    /// Waits for the thread to end.
    pub fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a worker thread ended by a panic");
        }
    }
}

/// Tells a worker something. Must not be called from a runtime's thread: it waits for a place in the inbox.
pub fn tell(inbox: &mpsc::Sender<WorkerCommand>, command: WorkerCommand) {
    if inbox.blocking_send(command).is_err() {
        tracing::error!("a worker thread has ended; the process should be restarted");
    }
}

/// The worker threads, and the generation that they serve.
pub struct Workers {
    /// Where they find it.
    pub feed: Arc<Feed>,
    threads: Vec<WorkerThread>,
}

impl Workers {
    /// Starts so many, which serve `first` and accept nothing yet.
    pub fn start(
        count: usize,
        first: Snapshot,
        (clock, registry): (&Clock, &Arc<Registry>),
        max_connections: u64,
    ) -> io::Result<Self> {
        let feed = Feed::new(Arc::new(first));
        let start =
            |index| WorkerThread::start(index, clock.clone(), Arc::clone(&feed), Arc::clone(registry), max_connections);
        let threads = (0..count).map(start).collect::<Result<_, _>>()?;
        Ok(Self { feed, threads })
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &WorkerThread> {
        self.threads.iter()
    }

    /// Their inboxes, for callers that must not wait.
    pub fn inboxes(&self) -> Vec<mpsc::Sender<WorkerCommand>> {
        self.threads.iter().map(WorkerThread::inbox).collect()
    }

    /// Takes the threads away, to end them.
    pub fn take(&mut self) -> Vec<WorkerThread> {
        std::mem::take(&mut self.threads)
    }
}

impl Component for Workers {
    /// The live state of the new generation and that of now, the number of the generation, and the logs.
    type Needs<'n> = (&'n NewLiveState, &'n LiveState, u64, Logs);
    type Staged = Snapshot;

    fn stage(&self, model: &Arc<Model>, needs: Self::Needs<'_>) -> Result<Snapshot, BuildError> {
        let (new, lasting, generation, logs) = needs;
        build::build(model, generation, (&self.feed.latest(), lasting), new, logs)
    }

    fn commit(&mut self, snapshot: Snapshot) {
        objects::renumber(&snapshot);
        self.feed.publish(Arc::new(snapshot));
        for worker in &self.threads {
            worker.tell(WorkerCommand::Refresh);
        }
    }
}

/// Runs a worker until it was told to end. A panic of one connection costs that connection, as the runtime catches it. One
/// of the worker itself costs all of its connections: another worker takes its place, and its sockets, which go on
/// listening meanwhile.
fn serve(mut runtime: LocalRuntime, make: impl Fn() -> Rc<Worker>, mut commands: mpsc::Receiver<WorkerCommand>) {
    let mut sockets = HashMap::new();
    loop {
        let worker = make();
        // What a panic leaves half done is dropped with the worker: only the sockets and the inbox go on.
        let run = AssertUnwindSafe(|| runtime.block_on(run_commands(&worker, &mut commands, &mut sockets)));
        let ended = catch_unwind(run);
        // Connections that the grace did not wait for are dropped here, at once.
        runtime.shutdown_background();
        if ended.is_ok() {
            return;
        }
        worker.count_panic();
        thread::sleep(RESTART_PAUSE.into());
        tracing::error!("a worker ended by a panic, and its connections with it; another one takes its place");
        runtime = match build() {
            Ok(runtime) => runtime,
            Err(error) => {
                // A gateway that went on with one worker less would answer a part of its connections never.
                eprintln!("sluicegate: a worker thread panicked and cannot be replaced ({error}); ending");
                std::process::exit(PANICKED);
            }
        };
    }
}

fn build() -> io::Result<LocalRuntime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
}

/// The sockets of a worker, by what the configuration calls them.
type Sockets = HashMap<ListenAddress, Vec<TcpListener>>;

async fn run_commands(worker: &Rc<Worker>, commands: &mut mpsc::Receiver<WorkerCommand>, sockets: &mut Sockets) {
    let mut house = tokio::task::spawn_local(Rc::clone(worker).run_maintenance());
    tokio::select! {
        () = obey_commands(worker, commands, sockets) => {}
        ended = &mut house => panic!("deadlines are no longer swept: {ended:?}"),
    }
}

async fn obey_commands(worker: &Rc<Worker>, commands: &mut mpsc::Receiver<WorkerCommand>, sockets: &mut Sockets) {
    let mut listening: HashMap<ListenAddress, Vec<oneshot::Sender<()>>> = HashMap::new();
    let mut accepting = JoinSet::new();
    let own_door = OwnDoor::new();
    let listen = |address: &ListenAddress, sockets: &[TcpListener], accepting: &mut JoinSet<()>| {
        let listen = |socket: &TcpListener| {
            let (stop, stopped) = oneshot::channel();
            match socket.try_clone() {
                Ok(socket) => {
                    drop(accepting.spawn_local(proxy::accept(Rc::clone(worker), address.clone(), socket, stopped)));
                }
                Err(error) => tracing::error!(%error, "a listening socket cannot be used"),
            }
            stop
        };
        sockets.iter().map(listen).collect()
    };
    for (address, own) in &*sockets {
        listening.insert(address.clone(), listen(address, own, &mut accepting));
    }
    loop {
        let command = tokio::select! {
            command = commands.recv() => command,
            Some(ended) = accepting.join_next() => {
                // Without it nobody would be accepted there.
                assert!(!ended.is_err_and(|error| error.is_panic()), "a listener ended by a panic");
                continue;
            }
        };
        match command {
            None => return,
            Some(WorkerCommand::Listen(address, own)) => {
                listening.insert(address.clone(), listen(&address, &own, &mut accepting));
                sockets.insert(address, own);
            }
            Some(WorkerCommand::Copy(to)) => {
                let each = sockets.iter().flat_map(|(address, own)| own.iter().map(|socket| (address.clone(), socket)));
                drop(to.send(each.map(|(address, socket)| Ok((address, socket.try_clone()?))).collect()));
            }
            Some(WorkerCommand::Unlisten(address)) => {
                // Its own copy is the last one then. Dropping its sender stops it.
                sockets.remove(&address);
                listening.remove(&address);
            }
            Some(WorkerCommand::Serve(stream)) => own_door.serve(worker, stream),
            Some(WorkerCommand::Refresh) => worker.refresh(),
            Some(asked @ (WorkerCommand::List(..) | WorkerCommand::Cancel(..))) => tell_of_requests(worker, asked),
            Some(WorkerCommand::Drain(grace)) => {
                sockets.clear();
                listening.clear();
                own_door.close(worker);
                tokio::select! {
                    () = drain(worker, grace) => return,
                    () = look_on(worker, commands) => {}
                }
            }
        }
    }
}

/// Answers about requests in flight, which somebody may want to know most while they hold up the end of the process.
async fn look_on(worker: &Rc<Worker>, commands: &mut mpsc::Receiver<WorkerCommand>) {
    while let Some(command) = commands.recv().await {
        tell_of_requests(worker, command);
    }
    std::future::pending::<()>().await;
}

/// The caller may have gone: the answer is dropped then.
fn tell_of_requests(worker: &Worker, asked: WorkerCommand) {
    match asked {
        WorkerCommand::List(filter, to) => drop(to.try_send(worker.list_flights(&filter))),
        WorkerCommand::Cancel(number, to) => drop(to.try_send(worker.cancel_flight(number))),
        _ => {}
    }
}

async fn drain(worker: &Rc<Worker>, grace: Span) {
    let finished = async {
        // The first look comes after the accept tasks have taken what the kernel had queued.
        loop {
            tokio::time::sleep(DRAIN_LOOK.into()).await;
            if worker.open_connections() == 0 {
                return;
            }
        }
    };
    if tokio::time::timeout(grace.into(), finished).await.is_err() {
        let tunnels = worker.open_tunnels();
        tracing::warn!(
            connections = worker.open_connections(),
            tunnels,
            "shutdown grace period over; closing what is left"
        );
        if tunnels > 0 {
            worker.alarms.end();
            let silent = async {
                while worker.open_tunnels() > 0 {
                    tokio::time::sleep(DRAIN_LOOK.into()).await;
                }
            };
            let _ = tokio::time::timeout(proxy::LAST_WORDS.into(), silent).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::testing::{live_state, model};

    #[test]
    fn a_generation_is_served_from_the_commit_on() {
        let of = |rate: &str| {
            model(&format!(
                "[[listener]]\naddress = \"127.0.0.1:1\"\n[[limit]]\nname = \"l\"\nrate = \"{rate}\"\n\
                 [[route]]\nname = \"all\"\nrespond = {{}}\nlimits = [\"l\"]\n"
            ))
        };
        let (mut state, registry) = (live_state(), Registry::new());
        let first = of("9/s");
        let nothing = build::nothing(&first, &state);
        let mut workers = Workers::start(2, nothing, (&state.clock, &registry), 9).unwrap();
        let stage = |workers: &Workers, state: &LiveState, model: &Arc<Model>, generation: u64| {
            let live = state.stage(model, ()).unwrap();
            let logs = Logs { dead_letters: None, access_log: None };
            let snapshot = workers.stage(model, (&live, state, generation, logs)).unwrap();
            (live, snapshot)
        };
        let (live, snapshot) = stage(&workers, &state, &first, 1);
        assert_eq!((workers.feed.generation(), workers.feed.latest().limits.len()), (0, 0));
        workers.commit(snapshot);
        state.commit(live);
        assert_eq!((workers.feed.generation(), workers.feed.latest().limits.len()), (1, 1));

        drop(stage(&workers, &state, &of("5/s"), 2));
        assert_eq!(workers.feed.generation(), 1, "it was dropped");
        let (live, snapshot) = stage(&workers, &state, &of("5/s"), 2);
        workers.commit(snapshot);
        state.commit(live);
        assert_eq!(workers.feed.latest().model.limits[0].spec.algorithm.rates()[0].to_string(), "5/s");
        for mut worker in workers.take() {
            worker.tell(WorkerCommand::Drain(Span::ZERO));
            worker.join();
        }
    }
}
