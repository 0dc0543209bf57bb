//! The store of deferred requests, and the thread that sends them through this process's own front door.
//!
//! Its connections are made in pairs, one end for the sender and one for a worker: no listener, no TLS and no other process is
//! between them, so that whatever the file says of listeners, what was deferred can be sent. A worker serves nothing there but
//! requests that the token of a replay vouches for.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use base16ct::lower::encode_string;
use hmac::Mac as _;
use tokio::sync::{mpsc, oneshot};

use super::component::Component;
use super::error::BuildError;
use super::worker::{WorkerCommand, Workers};
use crate::config::{DeadLetter, FileSecret, Model, OnLimit};
use crate::dead_letter::{Deferrals, DeferredKeys as Keys, MAX_KEPT_ANSWER, StoreBounds};
use crate::files;
use crate::http_client::Connect;
use crate::redact::Redactor;
use crate::replay::{Deferred, Guard, Sender};
use crate::time::Clock;

/// How long an answer may take. Routes have timeouts of their own, which are shorter.
const TIMEOUT: Duration = Duration::from_secs(600);
/// How often, and each how long after the last time, the task that sends is looked at in the end.
const END_LOOKS: u32 = 400;
const END_LOOK: Duration = Duration::from_millis(5);
/// Connections that somebody else makes to the port of a pair, before it is given up.
const MAX_STRANGERS: usize = 64;

/// The words of the file about deferred requests.
pub struct DeferringSettings {
    log: PathBuf,
    room: StoreBounds,
    keys: Keys,
}

/// Those of a model; `None`: no route defers, and nothing is there of before.
///
/// # Errors
/// There is no key, and none can be made.
fn settings(model: &Model, redactor: &Redactor) -> Result<Option<DeferringSettings>, BuildError> {
    let Some(section) = &model.dead_letter else { return Ok(None) };
    let defers = model.routes.iter().any(|route| route.on_limit == OnLimit::Defer);
    if !defers && !Deferrals::exist_in(&section.directory) {
        return Ok(None);
    }
    let keys = keys(section, redactor)
        .map_err(|source| BuildError::DeadLetters { directory: section.directory.display().to_string(), source })?;
    let room = &section.deferred;
    let room = StoreBounds { max_requests: room.max_requests, max_bytes: room.max_bytes, max_age: room.max_age };
    Ok(Some(DeferringSettings { log: section.directory.clone(), room, keys }))
}

/// The key that the file names, or the one beside the log, which is made if there is none. One that is there opens what was sealed
/// before the file named another.
fn keys(section: &DeadLetter, redactor: &Redactor) -> io::Result<Keys> {
    // That of the marks lasts, whatever becomes of the key of the seals.
    let order = redactor.mac_of(b"sluicegate deferred order\0").finalize().into_bytes().into();
    let path = DeadLetter::default_seal_file(&section.directory);
    if let Some(named) = section.seal_key_file.as_ref().and_then(FileSecret::bytes) {
        let others = load(&path).ok().flatten().into_iter().collect();
        return Ok(Keys { seal: *named, others, order });
    }
    make(&path)?;
    let seal = load(&path)?.ok_or_else(|| io::Error::other(format!("{} is gone", path.display())))?;
    Ok(Keys { seal, others: Vec::new(), order })
}

fn load(path: &Path) -> io::Result<Option<[u8; 32]>> {
    if !path.exists() {
        return Ok(None);
    }
    let secret = FileSecret::load(path).map_err(io::Error::other)?;
    Ok(secret.bytes().copied())
}

fn make(path: &Path) -> io::Result<()> {
    let named = |error: io::Error| {
        let shown = path.display();
        io::Error::new(error.kind(), format!("cannot make the key of deferred requests, {shown}: {error}"))
    };
    if path.exists() {
        return Ok(());
    }
    let parent = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(named)?;
    let mut key = [0_u8; 32];
    aws_lc_rs::rand::fill(&mut key).map_err(|_| named(io::Error::other("the machine has no random bytes")))?;
    let digits = encode_string(&key);
    // Whole under its name, or not there: whatever ends the process meanwhile. Requests last as long as it does.
    match files::create(path, digits.as_bytes()) {
        // Another process was quicker.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(named),
    }
}

/// A store, and the task that sends what is in it.
pub(super) struct Deferring {
    log: PathBuf,
    store: Deferrals,
    sending: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

impl Deferring {
    /// Opens the store; nothing is sent yet.
    fn open(settings: DeferringSettings, clock: &Clock) -> Result<Self, BuildError> {
        let DeferringSettings { log, room, keys } = settings;
        let store = Deferrals::start(&log, room, keys, clock.clone()).map_err(BuildError::Thread)?;
        Ok(Self { log, store, sending: Mutex::default() })
    }

    /// A handle on the store.
    pub(super) fn store(&self) -> Deferrals {
        self.store.clone()
    }

    /// Begins to send, by way of these workers, unless it does already.
    pub(super) fn send(&self, workers: &Workers, clock: &Clock) {
        let mut sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        if sending.is_some() {
            return;
        }
        let feed = Arc::clone(&workers.feed);
        let guard: Guard = Box::new(move || feed.latest().replay_guard.clone());
        let sender = match Sender::to_self(connect(workers.inboxes()), guard, MAX_KEPT_ANSWER, TIMEOUT, clock.clone()) {
            Ok(sender) => Arc::new(sender),
            Err(error) => return tracing::error!(%error, "deferred requests cannot be sent"),
        };
        let (stop, stopped) = oneshot::channel();
        let (store, clock) = (self.store.clone(), clock.clone());
        let run = move || {
            run(&store, sender, clock, stopped);
            let _ = store.close();
        };
        match thread::Builder::new().name("deferred-send".into()).spawn(run) {
            Ok(thread) => *sending = Some((stop, thread)),
            Err(error) => tracing::error!(%error, "deferred requests cannot be sent"),
        }
    }

    /// Sends no more. When what is under way is over, the store closes, and another process may open it.
    pub(super) fn stop(&self) -> Option<JoinHandle<()>> {
        let sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((stop, thread)) = sending else {
            let _ = self.store.close();
            return None;
        };
        let _ = stop.send(());
        Some(thread)
    }
}

/// Requests that are kept for later, if there can be any.
pub(super) struct DeferredRequests {
    running: Option<Deferring>,
    clock: Clock,
}

impl DeferredRequests {
    /// There are none yet.
    pub(super) fn new(clock: &Clock) -> Self {
        Self { running: None, clock: clock.clone() }
    }

    /// The store and its sender.
    pub(super) fn get(&self) -> Option<&Deferring> {
        self.running.as_ref()
    }

    /// Takes them away, to end them.
    pub(super) fn take(&mut self) -> Option<Deferring> {
        self.running.take()
    }
}

impl Component for DeferredRequests {
    type Needs<'n> = &'n Redactor;
    type Staged = Option<DeferringSettings>;

    fn stage(&self, model: &Arc<Model>, redactor: &Redactor) -> Result<Option<DeferringSettings>, BuildError> {
        settings(model, redactor)
    }

    /// Goes on in the same directory; in another one, or not at all, if the file says so.
    fn commit(&mut self, settings: Option<DeferringSettings>) {
        self.running = match (self.running.take(), settings) {
            (Some(running), Some(settings)) if running.log == settings.log => {
                running.store.reconfigure(settings.room, settings.keys);
                Some(running)
            }
            (running, settings) => {
                if let Some(running) = running {
                    let pending = running.store.figures().totals.pending();
                    if pending > 0 {
                        let directory = running.store.directory().display();
                        tracing::warn!(%directory, pending, "deferred requests stay behind in a directory that is used no longer");
                    }
                    running.stop();
                }
                let opened = settings.map(|settings| Deferring::open(settings, &self.clock)).transpose();
                opened.unwrap_or_else(|error| {
                    tracing::error!(%error, "deferred requests are not kept");
                    None
                })
            }
        };
    }
}

/// Waits for the end of what was [stopped](Deferring::stop), once the workers have ended: their connections are broken then. A
/// disk that fails, or hangs, does not keep the process.
pub(super) fn wait_for_end(deferring: &Deferring, sending: JoinHandle<()>) {
    for _ in 0..END_LOOKS {
        if sending.is_finished() {
            break;
        }
        thread::sleep(END_LOOK);
    }
    if deferring.store.close() {
        let _ = sending.join();
    }
}

fn run(store: &Deferrals, sender: Arc<Sender>, clock: Clock, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match (runtime, Deferred::new(store.clone(), sender, clock)) {
        (Ok(runtime), Some(deferred)) => runtime.block_on(deferred.run(async {
            let _ = stopped.await;
        })),
        (Err(error), _) => tracing::error!(%error, "deferred requests cannot be sent"),
        (Ok(_), None) => {}
    }
}

/// Makes connections to one worker after the other.
fn connect(workers: Vec<mpsc::Sender<WorkerCommand>>) -> Connect {
    let turn = AtomicUsize::new(0);
    Arc::new(move || {
        let turn = turn.fetch_add(1, Ordering::Relaxed);
        let worker = workers.get(turn % workers.len().max(1)).ok_or(io::ErrorKind::NotConnected)?;
        let (near, far) = pair()?;
        worker.try_send(WorkerCommand::Serve(far)).map_err(|error| io::Error::other(error.to_string()))?;
        near.set_nonblocking(true)?;
        near.set_nodelay(true)?;
        tokio::net::TcpStream::from_std(near)
    })
}

/// Two ends of one connection. A process that connects in that moment, too, is not taken for one of them.
fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let own = near.local_addr()?;
    for _ in 0..MAX_STRANGERS {
        let (far, peer) = listener.accept()?;
        if peer == own {
            return Ok((near, far));
        }
    }
    Err(io::Error::other("strangers connect to a port that is nobody's"))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt as _;

    use std::io::Write as _;

    use super::*;
    use crate::gateway::testing::model;
    use crate::redact::RedactRules;

    #[test]
    fn a_store_is_opened_by_the_commit_and_goes_on_in_its_directory() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let redactor = Redactor::new(&RedactRules::default());
        let in_directory = |directory: &Path, on_limit: &str| {
            model(&format!(
                "[[listener]]\naddress = \"127.0.0.1:1\"\n[dead_letter]\ndirectory = {directory:?}\n\
                 [[limit]]\nname = \"l\"\nrate = \"9/s\"\n[[upstream]]\nname = \"app\"\nservers = [\"127.0.0.1:2\"]\n\
                 [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\non_limit = \"{on_limit}\"\n"
            ))
        };
        let mut requests = DeferredRequests::new(&Clock::system());
        let staged = requests.stage(&in_directory(one.path(), "refuse"), &redactor).unwrap();
        assert!(staged.is_none(), "no route defers");
        requests.commit(staged);

        let staged = requests.stage(&in_directory(one.path(), "defer"), &redactor).unwrap();
        assert!(requests.get().is_none() && !Deferrals::exist_in(one.path()));
        requests.commit(staged);
        let directory = |requests: &DeferredRequests| requests.get().unwrap().store().directory().to_owned();
        assert!(directory(&requests).starts_with(one.path()));
        let staged = requests.stage(&in_directory(one.path(), "defer"), &redactor).unwrap();
        requests.commit(staged);
        assert!(directory(&requests).starts_with(one.path()));
        let staged = requests.stage(&in_directory(other.path(), "defer"), &redactor).unwrap();
        assert!(directory(&requests).starts_with(one.path()), "it is not committed yet");
        requests.commit(staged);
        assert!(directory(&requests).starts_with(other.path()));
        drop(requests.take().unwrap().stop());
    }

    #[test]
    fn a_pair_is_two_ends_of_one_connection() {
        let (mut near, mut far) = pair().unwrap();
        near.write_all(b"x").unwrap();
        drop(near);
        let mut text = String::new();
        far.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
    }

    #[test]
    fn a_key_is_made_once_for_its_owner_alone() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("new").join("dead-letters.seal");
        assert_eq!(load(&path).unwrap(), None);
        make(&path).unwrap();
        let first = load(&path).unwrap().unwrap();
        make(&path).unwrap();
        assert_eq!(load(&path).unwrap(), Some(first));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "short").unwrap();
        assert!(load(&path).unwrap_err().to_string().contains("is no key"));
    }
}
