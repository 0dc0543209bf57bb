//! The way from the thread of a fleet to the control of its gateway, which may have to wait for a reload: the fleet's thread waits
//! for nobody.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::fleet::{Heard, Hears};

/// The notices that were heard last, and not taken over yet. The newest one is the whole of what is known, so there is one place for it.
type NoticeSlot = Arc<Mutex<Option<Heard>>>;

/// Takes what is heard.
#[derive(Clone, Debug)]
pub struct NoticeSender {
    slot: NoticeSlot,
    wake: SyncSender<()>,
}

/// The other end.
#[derive(Debug)]
pub struct NoticeReceiver {
    slot: NoticeSlot,
    woken: Receiver<()>,
}

/// A sender, and the end at which what it hears is taken over.
pub fn channel() -> (NoticeSender, NoticeReceiver) {
    let (wake, woken) = sync_channel(1);
    let slot = NoticeSlot::default();
    (NoticeSender { slot: Arc::clone(&slot), wake }, NoticeReceiver { slot, woken })
}

impl NoticeSender {
    /// For a fleet.
    pub fn hears(&self) -> Hears {
        let Self { slot, wake } = self.clone();
        Box::new(move |heard| {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(heard);
            // Where it is full, who takes it over is about to look.
            let _ = wake.try_send(());
        })
    }
}

impl NoticeReceiver {
    /// Has `take` take over what is heard, in a thread of its own, until all senders are gone or `take` says that it is over. It is
    /// given a way to the newest that was heard, which it takes when it can take it over: one that it held while it waited would
    /// be old.
    pub fn listen(self, take: impl Fn(&dyn Fn() -> Option<Heard>) -> bool + Send + 'static) -> std::io::Result<()> {
        let Self { slot, woken } = self;
        let newest = move || slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        let listen = move || while woken.recv().is_ok() && take(&newest) {};
        thread::Builder::new().name("exceptions".into()).spawn(listen).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn the_newest_is_taken_over_and_an_older_one_that_waits_is_not() {
        let (notices, inner) = channel();
        let hears = notices.hears();
        for text in ["old", "new"] {
            hears(Heard { fields: [("a".to_owned(), text.to_owned())].into(), is_nothing: false });
        }
        let (tell, told) = sync_channel(8);
        inner.listen(move |newest| tell.send(newest().unwrap().fields["a"].clone()).is_ok()).unwrap();
        assert_eq!(told.recv().unwrap(), "new");
        drop((hears, notices));
        assert!(told.recv().is_err(), "the thread ends with the last sender");
    }
}
