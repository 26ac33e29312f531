//! Deletes the keys of a session whose processes have ended, so that the next candidates lead.
//!
//! Each transaction compares the proof of the lease and each key. So no key of another session is deleted, whatever has
//! happened since the proof was given. The lease is not revoked, because etcd compares nothing in a revocation: it
//! expires.

use std::time::Duration;

use crate::agent::Agent;
use crate::limits::Share;
use crate::wire::hex;
use crate::{Extent, Proof, Release, Report};
use eldest_core::error::RequestError;
use eldest_core::pause::pause;
use eldest_core::time::Time;

/// The longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A session whose processes have ended.
pub(crate) struct Dead<'a> {
    pub(crate) agent: &'a Agent,
    pub(crate) identity: &'a str,
    /// The prefix of the session's keys.
    pub(crate) namespace: &'a str,
    /// The time at which the guard saw the processes end.
    pub(crate) seen: Time,
    pub(crate) share: &'a Share,
    /// How long the guard tries.
    pub(crate) patience: Duration,
}

impl Dead<'_> {
    /// Deletes the session's keys under the leases of these proofs.
    pub(crate) async fn release(&self, proofs: impl IntoIterator<Item = Proof>) {
        let machine = &self.agent.machine;
        let until = machine.now().after(self.patience);
        let mut released = Vec::new();
        for proof in proofs {
            let Some(release) = self.try_until(until, &proof).await else {
                continue;
            };
            self.report_release(&proof, release);
            if matches!(release, Release::Released { .. }) {
                released.push(proof);
            }
        }
        if released.is_empty() {
            return;
        }
        // Requests that the process left in the buffers of its sockets may still put a key, for as long as a request
        // may take.
        tokio::select! {
            () = machine.sleep(self.agent.etcd.request_timeout()) => {}
            () = self.agent.hurry.cancelled() => {}
        }
        for proof in released {
            if let Err(error) = self.once(&proof, Extent::All).await {
                // The proof key is deleted with the lease.
                tracing::debug!(target: "eldest::guard", identity = self.identity, %error, "proof key not deleted");
            }
        }
    }

    async fn once(&self, proof: &Proof, extent: Extent) -> Result<Release, RequestError> {
        let etcd = &self.agent.etcd;
        etcd.revoke(proof, self.namespace, extent).await
    }

    /// Tries until etcd has confirmed the outcome for the keys; `None` if the time is over.
    async fn try_until(&self, until: Time, proof: &Proof) -> Option<Release> {
        let machine = &self.agent.machine;
        let (identity, lease) = (self.identity, hex(proof.lease));
        let mut failures = 0;
        loop {
            let failure = match self.once(proof, Extent::AllButProof).await {
                Ok(release) => return Some(release),
                Err(failure) => failure,
            };
            failures += 1;
            machine.measure(Report::Released("failed"));
            if failures == 1 && self.may_log() {
                tracing::warn!(
                    target: "eldest::guard", identity, lease, error = %failure,
                    "the keys of a dead process could not be deleted; the guard tries again"
                );
            }
            if machine.now() >= until {
                if self.may_log() {
                    tracing::warn!(
                        target: "eldest::guard", identity, lease, error = %failure,
                        "the keys of a dead process could not be deleted; the guard gives up"
                    );
                }
                return None;
            }
            machine.sleep(pause(failures, LONGEST_PAUSE)).await;
        }
    }

    fn may_log(&self) -> bool {
        self.agent.may_log_of(self.share)
    }

    /// Counts and logs the outcome for the keys.
    fn report_release(&self, proof: &Proof, release: Release) {
        let machine = &self.agent.machine;
        let took = machine.now().since(self.seen);
        machine.measure(Report::Released(match release {
            Release::Gone => "gone",
            Release::Unproven => "unproven",
            Release::Released { .. } => "released",
        }));
        if matches!(release, Release::Released { .. }) {
            self.agent.count_released();
            machine.measure(Report::Took(took));
        }
        if !self.may_log() {
            return;
        }
        let (identity, lease) = (self.identity, hex(proof.lease));
        match release {
            Release::Gone => {
                tracing::info!(
                    target: "eldest::guard", identity, lease,
                    "the process of a session is dead: its lease was gone already"
                );
            }
            Release::Unproven => {
                tracing::warn!(
                    target: "eldest::guard", identity, lease,
                    "the process of a session is dead: its proof is no longer bound to the lease, so no key is deleted"
                );
            }
            Release::Released { outside } => {
                tracing::info!(
                    target: "eldest::guard", identity, lease, ?took, outside,
                    "the process of a session is dead: its keys are deleted"
                );
            }
        }
    }
}
