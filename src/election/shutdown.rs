//! Accepts every kind of shutdown signal that `run` takes: a token, or any future.

use std::future::Pending;
use std::pin::pin;

use tokio_util::sync::CancellationToken;

/// A shutdown signal for [`Election::run`](crate::Election::run) and its siblings: a [`CancellationToken`], or any
/// future that completes on shutdown, such as [`shutdown_signal`](crate::shutdown_signal). The output of the future is
/// ignored, an error included.
///
/// The type parameter only tells the two apart; callers never write it. The trait is sealed: no other type implements
/// it.
///
/// ```
/// # use eldest::{BoxError, Election, Leadership};
/// # async fn work(_: Leadership) -> Result<(), BoxError> { Ok(()) }
/// # async fn example(election: Election) -> eldest::Result<()> {
/// election.run(tokio::signal::ctrl_c(), work).await?;
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot tell `run` when to stop",
    note = "give it a `CancellationToken`, or a future that completes on shutdown, such as `eldest::shutdown_signal()`"
)]
pub trait Shutdown<Kind>: sealed::Shutdown<Kind> {}

impl Shutdown<Token> for CancellationToken {}
impl<F: Future> Shutdown<Signal> for F {}

/// Marks cancellation tokens.
#[doc(hidden)]
#[derive(Debug)]
pub struct Token;

/// Marks futures.
#[doc(hidden)]
#[derive(Debug)]
pub struct Signal;

pub(crate) mod sealed {
    use super::{CancellationToken, Pending, Signal, Token};

    pub trait Shutdown<Kind> {
        /// Completes when the token must be cancelled.
        type Signal: Future;

        fn into_parts(self) -> (CancellationToken, Self::Signal);
    }

    impl Shutdown<Token> for CancellationToken {
        type Signal = Pending<()>;

        fn into_parts(self) -> (CancellationToken, Pending<()>) {
            (self, std::future::pending())
        }
    }

    impl<F: Future> Shutdown<Signal> for F {
        type Signal = F;

        fn into_parts(self) -> (CancellationToken, F) {
            (CancellationToken::new(), self)
        }
    }
}

/// Runs `work` to its end, and cancels `token` if the signal comes meanwhile.
pub(crate) async fn cancel_on<T>(
    signal: impl Future,
    token: &CancellationToken,
    run: impl Future<Output = T>,
) -> T {
    let signalled = pin!(async {
        signal.await;
        token.cancel();
    });
    let mut run = pin!(run);
    tokio::select! {
        biased;
        () = signalled => {}
        done = &mut run => return done,
    }
    run.await
}

/// Completes when the process is asked to end: by SIGINT, which Ctrl-C sends, or by SIGTERM, which systemd, Docker and
/// Kubernetes send. Where there are no Unix signals, only Ctrl-C counts.
///
/// The first poll installs the signal handlers, which stay for the rest of the process: after it, the two signals no
/// longer end the process by themselves. Every call waits for a signal of its own.
///
/// ```no_run
/// # use eldest::{BoxError, Election, Leadership};
/// # async fn work(_: Leadership) -> Result<(), BoxError> { Ok(()) }
/// # async fn example(election: Election) -> eldest::Result<()> {
/// election.run(eldest::shutdown_signal(), work).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Panics
///
/// At the first poll, if the system refuses a handler, or outside of a tokio runtime whose I/O driver is enabled.
///
/// # Cancellation safety
///
/// Cancel safe, but a signal that arrives while no call waits is lost.
pub async fn shutdown_signal() {
    let received = signal_received().await;
    received.expect("handlers for SIGINT and SIGTERM");
}

#[cfg(unix)]
async fn signal_received() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

#[cfg(not(unix))]
async fn signal_received() -> std::io::Result<()> {
    tokio::signal::ctrl_c().await
}

#[cfg(all(test, unix))]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[tokio::test]
    async fn both_signals_that_ask_a_process_to_end_complete_the_future() {
        for signal in [Signal::INT, Signal::TERM] {
            let mut asked = pin!(shutdown_signal());
            assert!(futures::poll!(&mut asked).is_pending());
            kill_process(getpid(), signal).unwrap();
            asked.await;
        }
    }
}
