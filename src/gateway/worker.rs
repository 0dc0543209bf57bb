//! One thread, one runtime, nothing shared with the next.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};

use tokio::runtime::LocalOptions;
use tokio::sync::{mpsc, oneshot};

use crate::proxy::{self, Feed, Worker, WorkerGauges};
use crate::telemetry::Registry;
use crate::time::{Clock, Span};

/// How many commands may wait for a worker.
const INBOX: usize = 64;
/// What Rust's own panics exit with.
const PANICKED: i32 = 101;
/// How often a draining worker looks whether it is done.
const DRAIN_LOOK: Span = Span::from_millis(10);

/// What a worker is told.
#[derive(Debug)]
pub enum Command {
    /// Accept on this socket, which the configuration calls by this address.
    Listen(SocketAddr, TcpListener),
    /// Stop accepting there; its connections finish.
    Unlisten(SocketAddr),
    /// A new snapshot was published.
    Refresh,
    /// Stop accepting everywhere, finish what is in flight for at most this long, end.
    Drain(Span),
}

/// A worker thread as the gateway holds it.
pub struct WorkerThread {
    /// What others may read of it.
    pub gauges: Arc<WorkerGauges>,
    inbox: mpsc::Sender<Command>,
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
            let built = tokio::runtime::Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
            let runtime = match built {
                Ok(runtime) => runtime,
                Err(error) => return drop(tell.send(Err(error))),
            };
            drop(tell.send(Ok(())));
            let _fatal = Fatal;
            let worker = Worker::new(index, clock, feed, registry, shared, max_connections);
            runtime.block_on(obey(worker, commands));
            // Connections that the grace did not wait for are dropped here, at once.
            runtime.shutdown_background();
        })?;
        told.recv().unwrap_or_else(|_| Err(io::Error::other("the worker thread ended at once")))?;
        Ok(Self { gauges, inbox, thread: Some(thread) })
    }

    /// Tells the worker something. Must not be called from a runtime's thread: it waits for a place in the inbox.
    pub fn tell(&self, command: Command) {
        if self.inbox.blocking_send(command).is_err() {
            tracing::error!("a worker thread has ended; the process should be restarted");
        }
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

/// A worker that panics takes the process with it: whoever supervises it starts it anew, while a gateway that goes on with
/// one worker less would answer a part of its connections never.
struct Fatal;

impl Drop for Fatal {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("sluicegate: a worker thread panicked; ending");
            std::process::exit(PANICKED);
        }
    }
}

async fn obey(worker: Rc<Worker>, commands: mpsc::Receiver<Command>) {
    let mut house = tokio::task::spawn_local(Rc::clone(&worker).keep_house());
    tokio::select! {
        () = obey_commands(worker, commands) => {}
        ended = &mut house => panic!("deadlines are no longer swept: {ended:?}"),
    }
}

async fn obey_commands(worker: Rc<Worker>, mut commands: mpsc::Receiver<Command>) {
    let mut listening: HashMap<SocketAddr, oneshot::Sender<()>> = HashMap::new();
    while let Some(command) = commands.recv().await {
        match command {
            Command::Listen(address, listener) => {
                let (stop, stopped) = oneshot::channel();
                listening.insert(address, stop);
                tokio::task::spawn_local(proxy::accept(Rc::clone(&worker), address, listener, stopped));
            }
            Command::Unlisten(address) => {
                // Dropping its sender stops it.
                listening.remove(&address);
            }
            Command::Refresh => worker.refresh(),
            Command::Drain(grace) => {
                listening.clear();
                drain(&worker, grace).await;
                return;
            }
        }
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
        tracing::warn!(connections = worker.open_connections(), "the grace is over; closing what is left");
    }
}
