//! Passes won leaderships to one receiver, through an unbounded channel. An item without a receiver is dropped at once,
//! but never under the channel's own lock.
//!
//! The channel resembles tokio's unbounded channel, but takes only a few words of memory. A session that leads
//! thousands of elections has one for each, nearly always empty.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Makes the two ends of a new channel.
pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared(Mutex::new(State {
        waiting: VecDeque::new(),
        senders: 1,
        received: true,
        waker: None,
    })));
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

/// The sending end. When the last one is dropped, the channel ends once its messages are taken.
pub(crate) struct Sender<T>(Arc<Shared<T>>);

/// The receiving end. Items that it has not taken are dropped with it.
pub(crate) struct Receiver<T>(Arc<Shared<T>>);

struct Shared<T>(Mutex<State<T>>);

struct State<T> {
    waiting: VecDeque<T>,
    senders: usize,
    /// True while the receiver exists.
    received: bool,
    /// The waker of the last caller that found no message.
    waker: Option<Waker>,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Sender<T> {
    /// Sends an item. If the receiver is gone, the item is dropped here at once.
    pub(crate) fn send(&self, item: T) {
        let mut state = self.0.lock();
        if !state.received {
            // Dropping the item may send commands, which must not happen under the lock.
            drop(state);
            drop(item);
            return;
        }
        state.waiting.push_back(item);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.senders -= 1;
        let waker = (state.senders == 0).then(|| state.waker.take()).flatten();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<T> Receiver<T> {
    /// Waits for the eldest item; `None`: every sender is gone, and no item is left.
    ///
    /// # Cancellation safety
    /// An item is taken only when it is returned.
    pub(crate) async fn recv(&mut self) -> Option<T> {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&self, context: &Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.lock();
        if let Some(item) = state.waiting.pop_front() {
            return Poll::Ready(Some(item));
        }
        if state.senders == 0 {
            return Poll::Ready(None);
        }
        // A waker, and its drop, run the executor's code.
        let former = state.waker.replace(context.waker().clone());
        drop(state);
        drop(former);
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.received = false;
        let left = mem::take(&mut state.waiting);
        let waker = state.waker.take();
        drop(state);
        drop((left, waker));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::task::{ArcWake, waker};
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Counts its wake-ups.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl ArcWake for Woken {
        fn wake_by_ref(woken: &Arc<Self>) {
            woken.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Polls a wait that finds no message, and abandons it.
    fn wait(receiver: &mut Receiver<u8>) -> Arc<Woken> {
        let woken = Arc::new(Woken::default());
        let waker = waker(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        assert!(pin!(receiver.recv()).poll(&mut context).is_pending());
        woken
    }

    /// Records, when it is dropped, whether its channel is locked.
    struct Dropped {
        of: Arc<Shared<Dropped>>,
        unlocked: Arc<AtomicUsize>,
    }

    impl Drop for Dropped {
        fn drop(&mut self) {
            assert!(self.of.0.try_lock().is_ok(), "dropped under the lock");
            self.unlocked.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn watched() -> (Sender<Dropped>, Receiver<Dropped>, Arc<AtomicUsize>) {
        let (sender, receiver) = channel();
        (sender, receiver, Arc::default())
    }

    fn item(sender: &Sender<Dropped>, unlocked: &Arc<AtomicUsize>) -> Dropped {
        Dropped {
            of: Arc::clone(&sender.0),
            unlocked: Arc::clone(unlocked),
        }
    }

    #[test]
    fn messages_are_received_in_order_and_then_the_end() {
        let (sender, mut receiver) = channel();
        sender.send(1);
        sender.send(2);
        drop(sender);
        let mut next = || receiver.recv().now_or_never();
        assert_eq!(
            [next(), next(), next()],
            [Some(Some(1)), Some(Some(2)), Some(None)]
        );
    }

    #[test]
    fn the_end_comes_with_the_last_of_several_senders() {
        let (sender, mut receiver) = channel::<u8>();
        let other = sender.clone();
        drop(sender);
        let woken = wait(&mut receiver);
        other.send(1);
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert_eq!(receiver.recv().now_or_never(), Some(Some(1)));
        let woken = wait(&mut receiver);
        drop(other);
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert_eq!(receiver.recv().now_or_never(), Some(None));
    }

    #[test]
    fn abandoned_receive_loses_no_message() {
        let (sender, mut receiver) = channel();
        let first = wait(&mut receiver);
        let second = wait(&mut receiver);
        sender.send(1);
        let woken = [first, second].map(|woken| woken.0.load(Ordering::SeqCst));
        assert_eq!(woken, [0, 1], "who waits now is woken");
        assert_eq!(receiver.recv().now_or_never(), Some(Some(1)));
    }

    #[test]
    fn queued_messages_are_dropped_with_the_receiver_outside_of_the_lock() {
        let (sender, receiver, dropped) = watched();
        sender.send(item(&sender, &dropped));
        sender.send(item(&sender, &dropped));
        assert_eq!(dropped.load(Ordering::SeqCst), 0);
        drop(receiver);
        assert_eq!(dropped.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn message_sent_too_late_is_dropped_at_once_outside_of_the_lock() {
        let (sender, receiver, dropped) = watched();
        drop(receiver);
        sender.send(item(&sender, &dropped));
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    }

    /// No message is lost between the receiver's last check and its end, or a sender's.
    #[test]
    fn no_message_stays_queued_when_sender_and_receiver_race() {
        for _ in 0..1000 {
            let (sender, receiver, dropped) = watched();
            let sent = item(&sender, &dropped);
            std::thread::scope(|scope| {
                scope.spawn(|| drop(receiver));
                sender.send(sent);
            });
            assert_eq!(
                dropped.load(Ordering::SeqCst),
                1,
                "while the sender is there"
            );
        }
    }

    #[tokio::test]
    async fn a_task_that_waits_is_woken_from_another_thread() {
        let (sender, mut receiver) = channel();
        let sending = std::thread::spawn(move || (0..100).for_each(|n| sender.send(n)));
        let mut taken = Vec::new();
        while let Some(n) = receiver.recv().await {
            taken.push(n);
        }
        assert!(taken.into_iter().eq(0..100));
        sending.join().unwrap();
    }
}
