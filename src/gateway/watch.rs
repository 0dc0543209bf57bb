//! Sees that the configuration file has changed, or a file of certificates, keys or plans that it names, however it was changed.
//!
//! The directory is watched, not the file: editors and `mv` put a new file in its place, Kubernetes and certbot swap a
//! symbolic link. So the target's directory is watched too. Events are hints only; the content decides.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};

use super::control::Control;
use crate::time::{Clock, Span};

/// How long it has to be quiet after an event before the file is read: a writer may be half done.
const QUIET: Span = Span::from_millis(50);
/// How long events may go on before the file is read all the same.
const PATIENCE: Span = Span::from_millis(500);
/// How often the file is looked at where events do not come.
const POLL: Span = Span::from_secs(2);

/// A thread that reloads when the file changes.
pub struct Watcher {
    watched: Watched,
    hints: Receiver<()>,
}

impl Watcher {
    /// Watches the files of a gateway: from now on it is seen whether one is written in place or renamed to its name.
    pub fn new(control: &Control) -> Self {
        // A place for one hint is enough: a second one while the first waits says nothing new.
        let (hint, hints) = sync_channel(1);
        let mut watched = Watched::new(hint, control.path().to_owned(), control.created());
        watched.renew(&control.watched());
        Self { watched, hints }
    }

    /// Lets the gateway take over what changes, from its making on; ends with the process.
    pub fn start(self, control: &Arc<Control>) -> std::io::Result<()> {
        let Self { watched, hints } = self;
        let control = Arc::downgrade(control);
        thread::Builder::new().name("watcher".into()).spawn(move || watch(&control, watched, &hints))?;
        Ok(())
    }
}

fn watch(control: &Weak<Control>, mut watched: Watched, hints: &Receiver<()>) {
    let clock = Clock::system();
    loop {
        let next = {
            let Some(control) = control.upgrade() else { return };
            let files = control.watched();
            let listening = watched.renew(&files);
            let watches = control.watches();
            if watches {
                // Only now: what changed before the directory was watched has sent no hint.
                // A mistake has been logged, and counted, where it was found.
                drop(control.reload(false));
            }
            if control.watched() != files {
                // It names others now. What happens to them is not seen yet.
                continue;
            }
            (listening && watches, control.stands_in().filter(|_| watches))
        };
        let hinted = match next {
            (_, Some(stands_in)) => hints.recv_timeout(stands_in.into()).is_ok(),
            (true, None) => hints.recv().is_ok(),
            (false, None) => wait(hints),
        };
        if hinted {
            settle(hints, &clock);
        }
    }
}

/// Where no events come, or they mean nothing: looks every 2 s. Whether an event came after all.
fn wait(hints: &Receiver<()>) -> bool {
    match hints.recv_timeout(POLL.into()) {
        Ok(()) => true,
        Err(RecvTimeoutError::Timeout) => false,
        Err(RecvTimeoutError::Disconnected) => {
            thread::sleep(POLL.into());
            false
        }
    }
}

/// Waits until nothing has happened for a moment.
fn settle(hints: &Receiver<()>, clock: &Clock) {
    let first = clock.now();
    while clock.now().since(first) < PATIENCE {
        if hints.recv_timeout(QUIET.into()).is_err() {
            return;
        }
    }
}

/// The directories that are being watched.
struct Watched {
    watcher: Option<RecommendedWatcher>,
    directories: HashSet<PathBuf>,
}

impl Watched {
    /// `created` is told when a file is created at `path`, which is written in place then; one that is renamed to it is not.
    fn new(hint: SyncSender<()>, path: PathBuf, created: Arc<AtomicBool>) -> Self {
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.as_ref().is_ok_and(|event| {
                let is_it = |other: &PathBuf| other.file_name() == path.file_name();
                matches!(event.kind, EventKind::Create(_)) && event.paths.iter().any(is_it)
            }) {
                created.store(true, Ordering::Relaxed);
            }
            let only_access =
                event.is_ok_and(|event| matches!(event.kind, EventKind::Access(access) if !closes_write(access)));
            if !only_access {
                // A full channel holds a hint already.
                let _ = hint.try_send(());
            }
        });
        if let Err(error) = &watcher {
            tracing::warn!(%error, "file events are not available; looking at the configuration every 2 s");
        }
        Self { watcher: watcher.ok(), directories: HashSet::new() }
    }

    /// Watches the directories that matter now; false if one of them cannot be watched.
    fn renew(&mut self, files: &[PathBuf]) -> bool {
        let Some(watcher) = &mut self.watcher else { return false };
        let wanted: HashSet<PathBuf> = files.iter().flat_map(|file| directories(file)).collect();
        self.directories.retain(|old| {
            let stays = wanted.contains(old) && old.exists();
            if !stays {
                // A directory that was removed has taken its watch with it.
                drop(watcher.unwatch(old));
            }
            stays
        });
        let mut all = true;
        for directory in wanted {
            if !self.directories.contains(&directory) {
                match watcher.watch(&directory, RecursiveMode::NonRecursive) {
                    Ok(()) => {
                        self.directories.insert(directory);
                    }
                    Err(_) => all = false,
                }
            }
        }
        all
    }
}

fn closes_write(access: notify::event::AccessKind) -> bool {
    access == notify::event::AccessKind::Close(notify::event::AccessMode::Write)
}

/// The directories in which the way to a file can change: where it really is, and where each link on the way lies. They
/// are named without links, so that whoever swaps one is seen, and what it leads to from then on is another directory.
fn directories(path: &Path) -> HashSet<PathBuf> {
    /// As many as Linux follows.
    const MAX_LINKS: usize = 40;
    let named = |directory: &Path| {
        if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory.to_owned() }
    };
    let mut found = HashSet::new();
    let mut here = PathBuf::new();
    let mut links = 0;
    // What is still to be walked, the next step last.
    let mut steps: Vec<PathBuf> = steps(path);
    while let Some(step) = steps.pop() {
        if step.as_os_str() == ".." && here.file_name().is_some() {
            here.pop();
            continue;
        }
        let there = here.join(&step);
        match std::fs::read_link(&there) {
            Ok(target) if links < MAX_LINKS => {
                links += 1;
                found.insert(named(&here));
                steps.extend(self::steps(&target));
            }
            _ => {
                if steps.is_empty() {
                    found.insert(named(&here));
                }
                // An absolute step leaves nothing of where it was taken.
                here = there;
            }
        }
    }
    found
}

/// The steps of a path, the first one last.
fn steps(path: &Path) -> Vec<PathBuf> {
    let steps = path.components().filter(|step| *step != Component::CurDir);
    let mut steps: Vec<_> = steps.map(|step| PathBuf::from(step.as_os_str())).collect();
    steps.reverse();
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_the_directory_of_the_file_and_of_what_it_links_to() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("real")).unwrap();
        std::fs::create_dir(root.join("etc")).unwrap();
        std::fs::write(root.join("real/gateway.toml"), "").unwrap();
        std::os::unix::fs::symlink("../real", root.join("etc/data")).unwrap();
        std::os::unix::fs::symlink("data/gateway.toml", root.join("etc/gateway.toml")).unwrap();
        let found = directories(&root.join("etc/gateway.toml"));
        assert_eq!(found, HashSet::from([root.join("etc"), root.join("real")]));
    }

    #[test]
    fn watches_where_links_to_directories_on_the_way_lie() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let link = |target: &str, at: &str| std::os::unix::fs::symlink(target, root.join(at)).unwrap();
        std::fs::create_dir_all(root.join("releases/1/conf")).unwrap();
        std::fs::create_dir_all(root.join("releases/2/conf")).unwrap();
        std::fs::create_dir(root.join("etc")).unwrap();
        std::fs::write(root.join("releases/1/conf/page.html"), "").unwrap();
        link("1", "releases/now");
        link("../releases/now", "etc/current");
        let page = root.join("etc/./current/conf/../conf/page.html");
        let of_one = [root.join("etc"), root.join("releases"), root.join("releases/1/conf")];
        assert_eq!(directories(&page), HashSet::from(of_one.clone()));
        std::fs::remove_file(root.join("releases/now")).unwrap();
        link("2", "releases/now");
        let [etc, releases, _] = of_one;
        assert_eq!(directories(&page), HashSet::from([etc, releases, root.join("releases/2/conf")]), "not there yet");
        link("round", "round");
        assert!(directories(&root.join("round/x")).contains(&root), "a link to itself has an end");
    }

    #[test]
    fn a_bare_name_is_in_the_current_directory() {
        assert!(directories(Path::new("no-such-gateway.toml")).contains(Path::new(".")));
    }
}
