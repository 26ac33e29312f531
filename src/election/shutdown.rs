//! Accepts every kind of shutdown signal that `run` takes: a token, or any future.

use std::future::Pending;
use std::pin::pin;

use tokio_util::sync::CancellationToken;

/// A shutdown signal for [`Election::run`](crate::Election::run) and its siblings: a [`CancellationToken`], or any
/// future that completes on shutdown, as axum and tonic take it.
///
/// The type parameter only tells the two apart; callers never write it. The trait is sealed: no other type implements
/// it.
///
/// ```
/// # use eldest::{BoxError, Election, Leadership};
/// # async fn work(_: Leadership) -> Result<(), BoxError> { Ok(()) }
/// # async fn example(election: Election) -> eldest::Result<()> {
/// let ctrl_c = async {
///     let _ = tokio::signal::ctrl_c().await;
/// };
/// election.run(ctrl_c, work).await?;
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot tell `run` when to stop",
    note = "give it a `CancellationToken`, or a future whose output is `()`"
)]
pub trait Shutdown<Kind>: sealed::Shutdown<Kind> {}

impl Shutdown<Token> for CancellationToken {}
impl<F: Future<Output = ()>> Shutdown<Signal> for F {}

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
        type Signal: Future<Output = ()>;

        fn into_parts(self) -> (CancellationToken, Self::Signal);
    }

    impl Shutdown<Token> for CancellationToken {
        type Signal = Pending<()>;

        fn into_parts(self) -> (CancellationToken, Pending<()>) {
            (self, std::future::pending())
        }
    }

    impl<F: Future<Output = ()>> Shutdown<Signal> for F {
        type Signal = F;

        fn into_parts(self) -> (CancellationToken, F) {
            (CancellationToken::new(), self)
        }
    }
}

/// Runs to the end, and cancels `token` when the signal comes meanwhile.
pub(crate) async fn cancel_on<T>(
    signal: impl Future<Output = ()>,
    token: &CancellationToken,
    run: impl Future<Output = T>,
) -> T {
    let told = pin!(async {
        signal.await;
        token.cancel();
    });
    let mut run = pin!(run);
    tokio::select! {
        biased;
        () = told => {}
        done = &mut run => return done,
    }
    run.await
}
