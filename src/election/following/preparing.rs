//! Runs the work that prepares a node for its term while the node is next in line, and announces that the node is warm.

use std::convert::Infallible;

use tokio_util::sync::CancellationToken;

use super::{Caught, Fault, Follow, Following, call, fault, wind_up};
use crate::election::Election;
use crate::error::ErrorKind;

/// The preparation of a node for its next term.
pub(super) struct Preparation<'f, 'a> {
    election: Election,
    /// The input of the work, which lasts until the follower's work must end.
    following: Following,
    work: &'f mut Follow<'a>,
    /// The running work, and the token that stops it.
    running: Option<(CancellationToken, Caught<'a>)>,
}

impl<'f, 'a> Preparation<'f, 'a> {
    pub(super) fn new(election: Election, following: Following, work: &'f mut Follow<'a>) -> Self {
        Self {
            election,
            following,
            work,
            running: None,
        }
    }

    /// Returns the running work, whose token the caller has cancelled.
    pub(super) fn running(self) -> Option<Caught<'a>> {
        self.running.map(|(_, work)| work)
    }

    /// Prepares the node whenever it is next in line; completes only when the work has failed.
    pub(super) async fn fails(&mut self) -> Fault {
        loop {
            let key = self.following.next_key().await;
            let stop = self.following.stopped();
            let work = call(self.work, self.following.until(stop.clone()));
            let (stop, work) = self.running.insert((stop, work));
            let ended = tokio::select! {
                biased;
                ended = &mut *work => Some(ended),
                () = self.following.superseded(key) => None,
            };
            let fault = if let Some(ended) = ended {
                fault(ended)
            } else {
                stop.cancel();
                let grace = self.election.handle.shared.settings.grace;
                let panic = wind_up(&self.election, Some(work), grace).await;
                panic.map(Fault::Panicked)
            };
            self.running = None;
            match fault {
                Some(fault) => return fault,
                // Not for another key, which may be next in line by now.
                None => stay_warm(&self.election, &self.following, key).await,
            }
        }
    }
}

/// Announces that the node is warm until that key is no longer next in line. Its next key says by itself that the node is not.
async fn stay_warm(election: &Election, following: &Following, key: i64) {
    let announced = async {
        if election.warm_within.is_some() {
            announce(election).await;
        }
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        biased;
        () = following.superseded(key) => {}
        never = announced => match never {},
    }
}

/// Announces that the node is warm, again and again until etcd has the announcement: without it, a hand-over waits for its whole
/// limit.
async fn announce(election: &Election) {
    let shared = &election.handle.shared;
    let mut is_logged = false;
    while let Err(error) = election.set_warm(true).await {
        // The roster may show a key before the session knows that it waits.
        if error.kind() != ErrorKind::Ended && !std::mem::replace(&mut is_logged, true) {
            let (identity, election) = (&*shared.settings.identity, election.name());
            tracing::warn!(target: "eldest::election", identity, election, %error, "cannot announce that the node is warm");
        }
        shared.env.sleep(shared.settings.request_timeout / 4).await;
    }
}
