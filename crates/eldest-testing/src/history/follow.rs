//! Records one term from inside the leading node: its election, its validity every 10 ms, and the cancellation of its
//! token.

// The observer's timers use real time, even if the library under test has another clock.
#![allow(clippy::disallowed_methods)]

use std::time::Duration;

use super::{Recorder, What};
use eldest::{LostReason, Term};

/// The pause between two checks of the term's validity.
const EVERY: Duration = Duration::from_millis(10);

impl Recorder {
    /// Records one term from the node's side: its election, now; then every 10 ms its validity, until it ends; and the
    /// cancellation of its token, with the reason. Run the returned future in its own task, started as the first step
    /// of the work:
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # use eldest_testing::history::{Recorder, What};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("n1")).await?;
    /// # let election = session.election("jobs")?;
    /// # let shutdown = eldest::CancellationToken::new();
    /// let recorder = Recorder::boottime(); // or `.to_file(path)?`, to be read by the test
    /// # let stop = &shutdown;
    /// let work = async |leadership: eldest::Leadership| {
    ///     tokio::spawn(recorder.follow("n1", leadership.term()));
    ///     // ... the work ...
    /// #   let valid = |event: &eldest_testing::history::Event| matches!(event.what, What::Valid { .. });
    /// #   while !recorder.history()?.events().iter().any(valid) { tokio::task::yield_now().await; }
    /// #   stop.cancel();
    ///     Ok::<_, eldest::BoxError>(())
    /// };
    /// election.run(shutdown.clone(), work).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Do not use [`Leadership::spawn`](eldest::Leadership::spawn): its tasks are awaited before the key is released,
    /// and this one ends only then. Work that blocks every thread of the runtime also blocks these checks; what they
    /// did not see is not checked.
    ///
    /// If a test measures how fast the service hands over, the service itself records [`What::Left`] before it shuts
    /// down, and [`What::FencedWrite`] for its writes.
    ///
    /// # Panics
    ///
    /// As [`record`](Recorder::record), now or in the task.
    pub fn follow(&self, node: &str, term: Term) -> impl Future<Output = ()> + Send + use<> {
        let (recorder, node) = (self.clone(), node.to_owned());
        let token = term.fencing_token();
        recorder.record(&*node, term.name(), What::Elected { token });
        async move {
            let election = term.name();
            let lost = term.lost();
            let record_loss = || {
                let reason = term.lost_reason().map_or("unknown", LostReason::as_str);
                let reason = reason.to_owned();
                recorder.record(&*node, election, What::LostToken { token, reason });
            };
            let mut is_lost = false;
            while recorder.sample(&*node, election, token, || term.is_valid()) {
                tokio::select! {
                    biased;
                    () = lost.cancelled(), if !is_lost => {
                        is_lost = true;
                        record_loss();
                    }
                    () = tokio::time::sleep(EVERY) => {}
                }
            }
            if !is_lost {
                lost.cancelled().await; // the recording follows the end of validity at once
                record_loss();
            }
        }
    }
}
