//! The thread that follows rules from elsewhere, and the change over to a text that it brings.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::reloading::{Cause, ReadTexts};
use super::{Control, ReloadState};
use crate::config::{self, Candidate, Follow, FollowedCopy};
use crate::gateway::follow::{self, Fetched, Fetcher, FollowerStatus, PollState};
use crate::rules::RuleRefusal;
use crate::telemetry::Registration;

/// A thread that follows. Dropped, it ends when it has done what it is at.
pub(super) struct Following {
    follow: Arc<Follow>,
    status: Arc<FollowerStatus>,
    _stop: SyncSender<()>,
    _gauges: [Registration; 2],
}

/// The fate of a text that came.
enum TextFate {
    /// It holds.
    Holds,
    /// It is wrong.
    Refused(String),
    /// It is right and cannot run here, which has been told.
    NotRunning(String),
    /// It cannot be kept.
    Failed(String),
    /// Nobody wants it any more.
    Unwanted,
}

impl Following {
    fn start(control: &Arc<Control>, follow: &Follow) -> io::Result<Self> {
        let (stop, told) = sync_channel(1);
        let (follow, status) = (Arc::new(follow.clone()), Arc::<FollowerStatus>::default());
        let follower = Follower {
            control: Arc::downgrade(control),
            path: follow.kept(&control.path),
            file: control.path.clone(),
            follow: Arc::clone(&follow),
            status: Arc::clone(&status),
            course: PollState::default(),
        };
        thread::Builder::new().name("follower".into()).spawn(move || follower.run(&told))?;
        let gauges = status.register(&control.registry);
        tracing::info!(url = %follow.follow, every = %follow.every, "the rules are followed");
        Ok(Self { follow, status, _stop: stop, _gauges: gauges })
    }

    /// As admin shows it.
    pub(super) fn shown(&self) -> Value {
        self.status.shown(&self.follow)
    }
}

impl Control {
    /// Follows what the model says; a thread that follows the same already goes on.
    pub(super) fn renew_following(self: &Arc<Self>, state: &mut ReloadState) {
        let Some(follow) = &state.model.follow else {
            state.following = None;
            return;
        };
        if state.following.as_ref().is_some_and(|running| *running.follow == *follow) {
            return;
        }
        // Its figures have the same names.
        state.following = None;
        state.following = Following::start(self, follow)
            .inspect_err(|error| tracing::error!(%error, "the rules are not followed: a thread cannot be started"))
            .ok();
    }

    /// Takes a text over that has come: judged whole, kept, and only then used.
    fn take_followed(self: &Arc<Self>, follow: &Follow, text: &str, etag: Option<String>) -> TextFate {
        let _one_at_a_time = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let running = Arc::clone(&self.state().model);
        if self.takes_rules().is_err() || running.follow.as_ref() != Some(follow) {
            return TextFate::Unwanted;
        }
        let path = follow.kept(&self.path);
        let former = FollowedCopy::read(&path).ok().flatten();
        let new = follow::kept(follow, text.to_owned(), etag, self.clock.wall_now());
        let runs = running.followed == Some(Sha256::digest(text).into());
        drop(running);
        let keep = |kept: &FollowedCopy| follow::keep(&path, kept).map_err(|error| follow::not_kept(&path, &error));
        if let Some(former) = former.as_ref().filter(|former| runs && former.text == text) {
            // Its tag may be another one, or its address.
            let is_same = former.origin.as_ref().is_some_and(|origin| origin.is_like(&new));
            return if is_same {
                TextFate::Holds
            } else {
                keep(&new).map_or_else(TextFate::Failed, |()| TextFate::Holds)
            };
        }
        let candidate = Candidate { text: text.to_owned(), from: follow.follow.to_string() };
        if let Err(error) = self.load(ReadTexts::Candidate(candidate)) {
            return TextFate::Refused(error.to_string());
        }
        if let Err(failure) = keep(&new) {
            return TextFate::Failed(failure);
        }
        let bring_back = || match &former {
            Some(former) => keep(former).map_err(RuleRefusal::NotWritten),
            None => std::fs::remove_file(&path).map_err(|error| RuleRefusal::NotWritten(error.to_string())),
        };
        let cause = Cause { asked: true, by: "follow", change: None };
        match self.take_over_or(cause, bring_back) {
            Ok(_) => TextFate::Holds,
            Err(refusal) => TextFate::NotRunning(refusal.to_string()),
        }
    }
}

/// The state of the thread.
struct Follower {
    control: Weak<Control>,
    /// The file that keeps the text.
    path: PathBuf,
    /// The configuration.
    file: PathBuf,
    follow: Arc<Follow>,
    status: Arc<FollowerStatus>,
    course: PollState,
}

impl Follower {
    fn run(mut self, told: &Receiver<()>) {
        let fetcher = match Fetcher::new(&self.follow) {
            Ok(fetcher) => fetcher,
            Err(error) => {
                tracing::error!(error, "the rules are not followed");
                self.status.bad(&error);
                return;
            }
        };
        // The first time at once: the kept text may be old.
        let mut wait = Duration::ZERO;
        while told.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            // A gateway that ends, or has handed over, leaves the rules to others.
            if !self.control.upgrade().is_some_and(|control| control.phase.is_serving()) {
                return;
            }
            self.poll(&fetcher);
            let random = RandomState::new().build_hasher().finish();
            wait = follow::pause(self.follow.every, random).into();
        }
    }

    fn poll(&mut self, fetcher: &Fetcher) {
        let Some(now) = self.control.upgrade().map(|control| control.clock.now()) else { return };
        let local = config::text_digest(&self.file);
        let kept = FollowedCopy::read(&self.path).ok().flatten();
        let origin = kept.and_then(|kept| kept.origin);
        self.status.holds(origin.as_ref().and_then(|origin| origin.etag.clone()));
        // A tag means nothing at another address.
        let of_here = origin.filter(|origin| *self.follow.follow.uri() == *origin.url);
        let tag = self.course.tag(of_here.and_then(|origin| origin.etag), local, now);
        let fetched = fetcher.fetch(tag.as_deref());
        let Some(control) = self.control.upgrade().filter(|control| control.phase.is_serving()) else { return };
        let url = self.follow.follow.to_string();
        let fetched = match fetched {
            Ok(fetched) => fetched,
            Err(cause) => {
                if self.course.away() {
                    tracing::warn!(url, cause, "the followed rules cannot be had; those that are kept go on");
                }
                return self.status.bad(&cause);
            }
        };
        if self.course.answered() {
            tracing::info!(url, "the followed rules can be had again");
        }
        match fetched {
            Fetched::Same => match self.course.unchanged(tag.as_deref().unwrap_or_default()) {
                Some(report) => self.status.bad(report),
                None => self.status.good(control.clock.now()),
            },
            Fetched::Text { text, etag } => self.judge(&control, &text, etag, local),
        }
    }

    fn judge(&mut self, control: &Arc<Control>, text: &str, etag: Option<String>, local: follow::Local) {
        let (now, digest) = (control.clock.now(), Sha256::digest(text).into());
        if let Some(report) = self.course.known(&digest, local, now) {
            return self.status.bad(report);
        }
        let url = self.follow.follow.to_string();
        match control.take_followed(&self.follow, text, etag.clone()) {
            TextFate::Holds => {
                self.course.taken();
                self.status.holds(etag);
                self.status.good(now);
            }
            TextFate::Refused(report) => {
                if self.course.refuse((etag, digest), local, &report, now) {
                    tracing::error!(url, "the followed rules are refused, the old ones go on:\n{report}");
                }
                self.status.bad(&report);
            }
            TextFate::NotRunning(report) => {
                self.course.refuse((etag, digest), local, &report, now);
                self.status.bad(&report);
            }
            TextFate::Failed(failure) => {
                if self.course.fail(&failure) {
                    tracing::error!(url, "the followed rules cannot be kept, the old ones go on: {failure}");
                }
                self.status.bad(&failure);
            }
            TextFate::Unwanted => {}
        }
    }
}
