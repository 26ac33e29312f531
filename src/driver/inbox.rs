//! Waits for what the driver does next, in the order of the core's [`Turns`], and bounds what handles may request.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::StreamExt;
use futures::future::{BoxFuture, poll_fn};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::Command;
use super::event::Event;
use super::io::Io;
use crate::error::{Error, Result};
use eldest_core::time::Time;
use eldest_core::turns::{IN_ONE_TURN, Source, Turns};
use eldest_etcd::runtime::SharedEnv;
use eldest_etcd::{Lane, Pool};

/// Calls that may wait for the driver at once. Further callers wait until the driver has taken some of them.
const CALLS: usize = 1024;
/// The number of campaigns that may be on their way into etcd at once, including abandoned ones: a caller that retries
/// in a loop can outpace etcd. Further campaigns wait.
const CAMPAIGNS: usize = 1024;

/// The handles' end of the command queue.
///
/// The queue's memory is bounded: it holds at most [`CALLS`] calls and [`CAMPAIGNS`] campaigns, and beside them a few
/// words for each handle that is dropped or whose term ends.
#[derive(Clone)]
pub(crate) struct Commands(mpsc::UnboundedSender<Queued>);

/// Like [`Commands`], but the driver does not count it as a handle.
#[derive(Clone)]
pub(crate) struct WeakCommands(mpsc::WeakUnboundedSender<Queued>);

/// The number of requests that users may have open in a session at once.
pub(crate) struct Room {
    calls: Arc<Semaphore>,
    campaigns: Arc<Semaphore>,
    observers: Arc<Semaphore>,
}

/// A command, with the room that it occupies until the driver takes it.
pub(super) struct Queued {
    pub(super) command: Command,
    _room: Option<OwnedSemaphorePermit>,
}

impl Commands {
    /// Both ends of a new queue.
    pub(crate) fn channel() -> (Self, CommandReceiver) {
        let (queue, receiver) = mpsc::unbounded_channel();
        (Self(queue), CommandReceiver(receiver))
    }

    /// Sends at once a command that a handle sends a few times at most. Fails only when the driver is gone.
    pub(crate) fn send_at_once(&self, command: Command) -> Result<()> {
        self.send(command, None)
    }

    /// Sends a command that a user may repeat any number of times, when there is room. Fails only when the driver is
    /// gone.
    ///
    /// # Cancellation safety
    /// If the call is dropped before it is ready, nothing is sent.
    pub(crate) async fn call(&self, room: &Room, command: Command) -> Result<()> {
        let room = Arc::clone(&room.calls).acquire_owned().await;
        self.send(command, room.ok())
    }

    fn send(&self, command: Command, room: Option<OwnedSemaphorePermit>) -> Result<()> {
        let queued = Queued {
            command,
            _room: room,
        };
        self.0.send(queued).map_err(|_| Error::closed())
    }

    pub(crate) fn downgrade(&self) -> WeakCommands {
        WeakCommands(self.0.downgrade())
    }
}

impl WeakCommands {
    pub(crate) fn upgrade(&self) -> Option<Commands> {
        self.0.upgrade().map(Commands)
    }

    /// Reports that etcd answered another task of the session. If the driver is gone, no task needs to know.
    pub(super) fn connected(&self) {
        if let Some(commands) = self.upgrade() {
            let _ = commands.send_at_once(Command::Connected);
        }
    }
}

impl Default for Room {
    fn default() -> Self {
        Self {
            calls: Arc::new(Semaphore::new(CALLS)),
            campaigns: Arc::new(Semaphore::new(CAMPAIGNS)),
            observers: Arc::new(Semaphore::new(CALLS)),
        }
    }
}

impl Room {
    /// Reserves room for one campaign, to be kept until its key is in etcd or the candidacy is over.
    ///
    /// # Cancellation safety
    /// Cancel safe.
    pub(crate) async fn campaign(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.campaigns).acquire_owned().await.ok()
    }

    /// Reserves room for one observer, to be kept until the observer task has taken its request.
    ///
    /// # Cancellation safety
    /// Cancel safe.
    pub(crate) async fn admit_observer(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.observers).acquire_owned().await.ok()
    }
}

/// The driver's end of the command queue.
pub(crate) struct CommandReceiver(mpsc::UnboundedReceiver<Queued>);

impl CommandReceiver {
    /// Returns the next command, for a test that plays the driver; `None` when every handle is gone.
    pub(crate) async fn next(&mut self) -> Option<Command> {
        Some(self.0.recv().await?.command)
    }

    pub(super) fn into_queue(self) -> mpsc::UnboundedReceiver<Queued> {
        self.0
    }
}

/// The next piece of work of a task whose users send commands `C`.
#[allow(
    clippy::large_enum_variant,
    reason = "it goes from the poll to the driver and is kept nowhere"
)]
pub(super) enum Work<C> {
    Event(Event),
    /// A timer is due.
    Due,
    /// Commands, at most [`IN_ONE_TURN`].
    Commands(Vec<C>),
    /// Every handle was dropped; this is reported once.
    HandlesGone,
    /// A request that the task polls itself has ended; its answer is an event.
    Sent,
}

/// Everything that the driver, or the observer task, waits for.
pub(super) struct Inbox<C> {
    env: SharedEnv,
    urgent: mpsc::UnboundedReceiver<Event>,
    answers: mpsc::UnboundedReceiver<Event>,
    /// `None`: every handle was dropped.
    commands: Option<mpsc::UnboundedReceiver<C>>,
    turns: Turns,
    alarm: Option<Alarm>,
}

/// The timer that is set. It is kept from turn to turn, because setting a timer costs more than reading the clock.
struct Alarm {
    at: Time,
    wait: BoxFuture<'static, ()>,
}

impl<C> Inbox<C> {
    /// Makes both ends of a task: where its events and commands arrive, and what sends its requests on that lane.
    pub(super) fn with_io(
        env: SharedEnv,
        pool: Arc<Pool>,
        namespace: Arc<[u8]>,
        lane: Lane,
        commands: mpsc::UnboundedReceiver<C>,
    ) -> (Self, Io) {
        let (urgent, urgent_events) = mpsc::unbounded_channel();
        let (answers, answer_events) = mpsc::unbounded_channel();
        let inbox = Self {
            env: Arc::clone(&env),
            urgent: urgent_events,
            answers: answer_events,
            commands: Some(commands),
            turns: Turns::default(),
            alarm: None,
        };
        let io = Io::new(env, pool, namespace, lane, urgent, answers);
        (inbox, io)
    }

    /// Returns true if no command waits.
    pub(super) fn has_no_command(&self) -> bool {
        self.commands
            .as_ref()
            .is_none_or(mpsc::UnboundedReceiver::is_empty)
    }

    /// Closes the queue of commands, and returns those that wait.
    pub(super) fn close(&mut self) -> Vec<C> {
        let mut left = Vec::new();
        if let Some(mut commands) = self.commands.take() {
            commands.close();
            left.extend(std::iter::from_fn(|| commands.try_recv().ok()));
        }
        left
    }

    /// Waits for the next piece of work; `due` is the time of the earliest timer.
    ///
    /// # Cancellation safety
    /// Nothing is lost.
    pub(super) async fn next(&mut self, due: Option<Time>, io: &mut Io) -> Work<C> {
        poll_fn(|cx| self.poll(cx, due, io)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>, due: Option<Time>, io: &mut Io) -> Poll<Work<C>> {
        let mut turns = self.turns;
        let work = turns.take(|source| match self.poll_source(cx, source, due, io) {
            Poll::Ready(work) => Some(work),
            Poll::Pending => None,
        });
        self.turns = turns;
        work.map_or(Poll::Pending, Poll::Ready)
    }

    /// The clock decides, not the timer: a timer that is rarely polled, or was suspended, is late.
    fn poll_due(&mut self, cx: &mut Context<'_>, due: Option<Time>) -> Poll<()> {
        let Some(at) = due else {
            self.alarm = None;
            return Poll::Pending;
        };
        loop {
            if self.env.now() >= at {
                self.alarm = None;
                return Poll::Ready(());
            }
            if self.alarm.as_ref().is_none_or(|alarm| alarm.at != at) {
                let wait = self.env.wake_at(at);
                self.alarm = Some(Alarm { at, wait });
            }
            if let Some(alarm) = &mut self.alarm {
                ready!(alarm.wait.as_mut().poll(cx));
            }
            self.alarm = None;
        }
    }

    fn poll_source(
        &mut self,
        cx: &mut Context<'_>,
        source: Source,
        due: Option<Time>,
        io: &mut Io,
    ) -> Poll<Work<C>> {
        match source {
            Source::Urgent => match ready!(self.urgent.poll_recv(cx)) {
                Some(event) => Poll::Ready(Work::Event(event)),
                None => Poll::Pending,
            },
            Source::Timers => self.poll_due(cx, due).map(|()| Work::Due),
            Source::Sending => match ready!(io.sending.poll_next_unpin(cx)) {
                Some(()) => Poll::Ready(Work::Sent),
                None => Poll::Pending,
            },
            Source::Commands => self.poll_commands(cx),
            Source::Answers => match ready!(self.answers.poll_recv(cx)) {
                Some(event) => Poll::Ready(Work::Event(event)),
                None => Poll::Pending,
            },
            Source::Watches => {
                let Some(watches) = &mut io.watches else {
                    return Poll::Pending;
                };
                let message = pin!(watches.next()).poll(cx);
                message.map(|message| Work::Event(Event::Watched(message)))
            }
        }
    }

    fn poll_commands(&mut self, cx: &mut Context<'_>) -> Poll<Work<C>> {
        let Some(commands) = &mut self.commands else {
            return Poll::Pending;
        };
        let mut taken = Vec::new();
        if ready!(commands.poll_recv_many(cx, &mut taken, IN_ONE_TURN)) == 0 {
            self.commands = None;
            return Poll::Ready(Work::HandlesGone);
        }
        Poll::Ready(Work::Commands(taken))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use tokio::task::unconstrained;

    use super::*;
    use eldest_core::action::Answer;
    use eldest_etcd::Access;
    use eldest_etcd::runtime::System;

    struct Stage {
        env: SharedEnv,
        urgent: mpsc::UnboundedSender<Event>,
        answers: mpsc::UnboundedSender<Event>,
        commands: Commands,
        inbox: Inbox<Queued>,
        io: Io,
    }

    impl Stage {
        fn new() -> Self {
            let env: SharedEnv = Arc::new(System::new().expect("in a runtime"));
            let (commands, received) = Commands::channel();
            let endpoints = vec!["http://127.0.0.1:1".to_owned()];
            let limit = Duration::from_secs(1);
            let pool = Pool::new(Arc::clone(&env), &endpoints, Access::default(), limit);
            let pool = Arc::new(pool.expect("an endpoint"));
            let (namespace, received) = ((*b"ns/").into(), received.into_queue());
            let (inbox, io) =
                Inbox::with_io(Arc::clone(&env), pool, namespace, Lane::Data, received);
            let (urgent, answers) = io.events();
            Self {
                env,
                urgent,
                answers,
                commands,
                inbox,
                io,
            }
        }

        fn flood(&self, commands: usize) {
            for _ in 0..commands {
                self.commands
                    .send_at_once(Command::Connected)
                    .expect("received");
            }
        }

        /// Returns a letter for the next piece of work: `u`rgent, `a`nswer, `t`imer, `c`ommands or `-`.
        fn next(&mut self, due: Option<Time>) -> char {
            match self.inbox.next(due, &mut self.io).now_or_never() {
                Some(Work::Event(Event::Answered { request: 0, .. })) => 'u',
                Some(Work::Event(_)) => 'a',
                Some(Work::Due) => 't',
                Some(Work::Commands(commands)) => {
                    assert!(commands.len() <= IN_ONE_TURN, "a turn is bounded");
                    'c'
                }
                Some(_) => '?',
                None => '-',
            }
        }
    }

    /// Fills the queue with as many calls as may wait.
    fn fill(commands: &Commands, room: &Room) {
        for _ in 0..CALLS {
            let call = unconstrained(commands.call(room, Command::Connected));
            call.now_or_never().expect("room").expect("received");
        }
    }

    fn answer(request: u64) -> Event {
        let answer = Answer::Opened;
        Event::Answered { request, answer }
    }

    #[tokio::test]
    async fn urgent_answers_and_due_timers_come_before_a_flood() {
        let mut stage = Stage::new();
        stage.flood(10 * IN_ONE_TURN);
        let due = Some(stage.env.now());
        assert_eq!(stage.next(due), 't');
        assert_eq!(stage.next(None), 'c');
        assert_eq!(stage.next(due), 't', "in the midst of the flood as well");
        drop(stage.urgent.send(answer(0)));
        assert_eq!(stage.next(due), 'u');
        assert_eq!(stage.next(due), 't');
    }

    #[tokio::test]
    async fn a_flood_of_commands_leaves_answers_their_turn() {
        let mut stage = Stage::new();
        stage.flood(3 * IN_ONE_TURN);
        for request in 1..=3 {
            drop(stage.answers.send(answer(request)));
        }
        let order: String = (0..7).map(|_| stage.next(None)).collect();
        assert_eq!(order, "cacaca-");
    }

    #[tokio::test]
    async fn a_timer_is_kept_from_turn_to_turn_and_fires() {
        let mut stage = Stage::new();
        let due = stage.env.now().after(Duration::from_millis(20));
        stage.flood(1);
        assert_eq!([stage.next(Some(due)), stage.next(Some(due))], ['c', '-']);
        let work = stage.inbox.next(Some(due), &mut stage.io).await;
        assert!(matches!(work, Work::Due) && stage.env.now() >= due);
    }

    #[tokio::test]
    async fn calls_beyond_capacity_wait_until_the_driver_takes_some() {
        let mut stage = Stage::new();
        let room = Room::default();
        fill(&stage.commands, &room);
        let commands = stage.commands.clone();
        let mut waiting = pin!(unconstrained(commands.call(&room, Command::Connected)));
        assert!(waiting.as_mut().now_or_never().is_none(), "it is full");
        stage
            .commands
            .send_at_once(Command::Connected)
            .expect("received");
        assert_eq!(stage.next(None), 'c');
        let sent = waiting.now_or_never().expect("there is room again");
        sent.expect("received");
    }

    #[tokio::test]
    async fn callers_waiting_for_room_get_an_error_when_the_driver_ends() {
        let stage = Stage::new();
        let room = Room::default();
        let Stage {
            commands, inbox, ..
        } = stage;
        fill(&commands, &room);
        let mut waiting = pin!(unconstrained(commands.call(&room, Command::Connected)));
        assert!(waiting.as_mut().now_or_never().is_none(), "it is full");
        drop(inbox);
        assert!(waiting.await.is_err());
    }
}
