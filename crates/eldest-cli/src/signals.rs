//! Listens for signals: some end the supervisor, and the supervisor passes others on to its program.

use std::fs;
use std::io;

use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

/// Passed on to the program; without a program they say nothing, but for those that end one.
const PASSED_ON: [Signal; 7] = [
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::WINCH,
    Signal::CONT,
];
/// Of these, what is meant to end a program, and so us while there is none.
const ENDS: [Signal; 2] = [Signal::HUP, Signal::QUIT];
/// More than a program could be sent between two looks of its supervisor.
const ROOM: usize = 64;

/// What was asked of this process by signals.
#[derive(Clone)]
pub(crate) struct Signals {
    /// To end: SIGTERM or SIGINT came.
    pub(crate) stop: CancellationToken,
    /// To end now: another one came.
    pub(crate) hurry: CancellationToken,
    passed_on: broadcast::Sender<i32>,
}

impl Signals {
    /// Listens from here on.
    pub(crate) fn listen() -> io::Result<Self> {
        let signals = Self {
            stop: CancellationToken::new(),
            hurry: CancellationToken::new(),
            passed_on: broadcast::channel(ROOM).0,
        };
        // Nothing is done about it. But were it ignored, as we may have been started, no child could be waited for, by us
        // or by a keeper, which would inherit that.
        drop(signal(SignalKind::child())?);
        for end in [Signal::TERM, Signal::INT] {
            signals.clone().on(end, Self::end)?;
        }
        for other in PASSED_ON {
            // As `nohup` wants it; the program inherits that.
            if other != Signal::HUP || !is_ignored(other) {
                signals
                    .clone()
                    .on(other, move |signals| signals.pass_on(other))?;
            }
        }
        signals
            .clone()
            .on(Signal::TSTP, |signals| {
                signals.pass_on(Signal::TSTP);
                // We caught what would have stopped us.
                let _ = kill_process(getpid(), Signal::STOP);
            })
            .map(|()| signals)
    }

    /// What is to be passed on to a program from here on.
    pub(crate) fn passed_on(&self) -> broadcast::Receiver<i32> {
        self.passed_on.subscribe()
    }

    fn end(&self) {
        if self.stop.is_cancelled() {
            self.hurry.cancel();
        }
        self.stop.cancel();
    }

    fn pass_on(&self, signal: Signal) {
        let nobody = self.passed_on.send(signal.as_raw()).is_err();
        if nobody && ENDS.contains(&signal) {
            self.end();
        }
    }

    fn on(self, which: Signal, act: impl Fn(&Self) + Send + 'static) -> io::Result<()> {
        let mut came = signal(SignalKind::from_raw(which.as_raw()))?;
        tokio::spawn(async move {
            while came.recv().await.is_some() {
                act(&self);
            }
        });
        Ok(())
    }
}

/// Whether this process was started with that signal ignored.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or_default() >> (signal.as_raw() - 1) & 1 == 1
}
