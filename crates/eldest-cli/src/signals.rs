//! Listens for signals, for all commands: some end the command, and a supervisor passes others on to its program.
//!
//! A signal that was ignored when the command started stays ignored, as `nohup` and shells without job control require.
//! A signal that was blocked is unblocked.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::sync::{Arc, OnceLock};

use nix::sys::signal::SigSet;
use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::{broadcast, mpsc};
use tokio_util::sync::CancellationToken;

/// A signal that ends a command even if the command was started with the signal ignored.
const ALWAYS: Signal = Signal::TERM;
/// The signals that are passed on to the program. Without a program only those that end one have an effect.
const PASSED_ON: [Signal; 6] = [
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::WINCH,
];
/// The signals among these that end a program, and end us while there is none.
const ENDS: [Signal; 2] = [Signal::HUP, Signal::QUIT];
/// The other signals that a command listens for.
const OTHERS: [Signal; 5] = [
    Signal::TERM,
    Signal::INT,
    Signal::TSTP,
    Signal::CONT,
    Signal::CHILD,
];
/// More signals than can arrive for a program before its supervisor reads them.
const ROOM: usize = 64;

/// Unblocks all signals that a command may listen for. Call it before other threads start, because they inherit the
/// mask.
pub(crate) fn unblock() {
    let mut all = SigSet::empty();
    for signal in PASSED_ON.into_iter().chain(OTHERS) {
        let known = nix::sys::signal::Signal::try_from(signal.as_raw());
        all.extend(known.ok());
    }
    // Fails only for an unknown operation.
    let _ = all.thread_unblock();
}

/// Listens for a signal from now on. Returns `None` if this process was started with the signal ignored.
pub(crate) fn listen(which: Signal) -> io::Result<Option<unix::Signal>> {
    if which != ALWAYS && is_ignored(which) {
        return Ok(None);
    }
    unix::signal(SignalKind::from_raw(which.as_raw())).map(Some)
}

/// Waits for the signal, for ever if it is ignored.
pub(crate) async fn came(signal: &mut Option<unix::Signal>) {
    if let Some(signal) = signal
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// A signal for the program.
#[derive(Debug, Clone)]
pub(crate) struct Passed {
    pub(crate) signal: i32,
    /// Dropped when the program's keeper has been notified.
    _notified: Option<mpsc::Sender<Infallible>>,
}

/// The requests that signals made to this process.
#[derive(Clone)]
pub(crate) struct Signals {
    /// The request to end: SIGTERM or SIGINT came.
    pub(crate) stop: CancellationToken,
    /// The request to end at once: one more such signal came.
    pub(crate) hurry: CancellationToken,
    /// The request to hand over, which precedes the one to end; unset in a command that hands nothing over.
    leave: Arc<OnceLock<CancellationToken>>,
    passed_on: broadcast::Sender<Passed>,
}

impl Signals {
    fn new() -> Self {
        Self {
            stop: CancellationToken::new(),
            hurry: CancellationToken::new(),
            leave: Arc::default(),
            passed_on: broadcast::channel(ROOM).0,
        }
    }

    /// Starts to listen.
    pub(crate) fn listen() -> io::Result<Self> {
        let signals = Self::new();
        // The handler does nothing, but it replaces an inherited "ignore", with which neither we nor a keeper, which
        // inherits it, could wait for children.
        drop(unix::signal(SignalKind::child())?);
        for end in [Signal::TERM, Signal::INT] {
            signals.clone().on(end, Self::end)?;
        }
        for other in PASSED_ON {
            let pass_on = move |signals: &Self| signals.pass_on(other);
            signals.clone().on(other, pass_on)?;
        }
        let (stopped, continued) = (listen(Signal::TSTP)?, listen(Signal::CONT)?);
        tokio::spawn(signals.clone().control_job(stopped, continued));
        Ok(signals)
    }

    /// Subscribes to the signals that are passed on to a program from here on.
    pub(crate) fn passed_on(&self) -> broadcast::Receiver<Passed> {
        self.passed_on.subscribe()
    }

    /// Makes SIGTERM or SIGINT, from now on, the request to hand over, which cancels the returned token. The signal after that
    /// one is the request to end.
    pub(crate) fn leave_first(&self) -> CancellationToken {
        self.leave.get_or_init(CancellationToken::new).clone()
    }

    /// Makes the first request that has not been made. A command that ends has nothing to hand over any more.
    fn end(&self) {
        let leave = self.leave.get().filter(|_| !self.stop.is_cancelled());
        let mut requests = leave.into_iter().chain([&self.stop, &self.hurry]);
        if let Some(next) = requests.find(|it| !it.is_cancelled()) {
            next.cancel();
        }
    }

    fn pass_on(&self, signal: Signal) {
        let nobody = self.send(signal, None);
        if nobody && ENDS.contains(&signal) {
            self.end();
        }
    }

    /// Stops this process together with its programs, and later continues them together.
    ///
    /// A continuation is handled first: a shell stops a process again only after it has continued it.
    async fn control_job(
        self,
        mut stopped: Option<unix::Signal>,
        mut continued: Option<unix::Signal>,
    ) {
        loop {
            tokio::select! {
                biased;
                () = came(&mut continued) => {}
                () = came(&mut stopped) => {
                    tokio::select! {
                        biased;
                        () = came(&mut continued) => {}
                        () = self.suspend() => continue,
                    }
                }
            }
            self.send(Signal::CONT, None);
        }
    }

    /// Stops this process, as the caught signal would have, once the keepers of all programs have been notified: a
    /// stopped process cannot notify them.
    async fn suspend(&self) {
        let (notified, mut all_notified) = mpsc::channel(1);
        self.send(Signal::TSTP, Some(notified));
        // No value is ever sent. The channel closes with the last sender, and a program that has ended has none.
        let _: Option<Infallible> = all_notified.recv().await;
        let _ = kill_process(getpid(), Signal::STOP);
    }

    /// Returns `true` if there is no program.
    fn send(&self, signal: Signal, notified: Option<mpsc::Sender<Infallible>>) -> bool {
        let passed = Passed {
            signal: signal.as_raw(),
            _notified: notified,
        };
        self.passed_on.send(passed).is_err()
    }

    fn on(self, which: Signal, act: impl Fn(&Self) + Send + 'static) -> io::Result<()> {
        let Some(mut signal) = listen(which)? else {
            return Ok(());
        };
        tokio::spawn(async move {
            while signal.recv().await.is_some() {
                act(&self);
            }
        });
        Ok(())
    }
}

/// Returns true if this process was started with that signal ignored.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or_default() >> (signal.as_raw() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::Signals;

    #[test]
    fn the_first_signal_hands_over_unless_the_command_already_ends() {
        let signals = Signals::new();
        let leave = signals.leave_first();
        signals.end();
        assert!(leave.is_cancelled() && !signals.stop.is_cancelled());

        let signals = Signals::new();
        let leave = signals.leave_first();
        signals.stop.cancel();
        signals.end();
        assert!(signals.hurry.is_cancelled() && !leave.is_cancelled());
    }
}
