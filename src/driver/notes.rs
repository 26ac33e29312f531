//! Logs and counts what the core notes.

use std::sync::Arc;

use super::Driver;
use super::failures::{Line, What, list};
use crate::metrics;
use eldest_core::action::{Class, Note};

/// The number of keys from which a session logs what they cost etcd: a put of one key then takes a millisecond.
const CROWDED: usize = 1000;

impl Driver {
    pub(super) fn note(&mut self, note: &Note) {
        let identity = &*Arc::clone(&self.identity);
        match note {
            Note::LeaseGranted { lease, ttl } => {
                tracing::info!(target: "eldest::session", identity, lease = format!("{lease:x}"), ?ttl, "lease granted");
            }
            Note::RenewalFailed { error } => {
                metrics::renewal(identity, "failed");
                self.io.end_renewal("failed");
                self.failed(What::Renewal, error.class, &error.to_string(), &[]);
            }
            Note::Renewed { took } => {
                metrics::renewed(identity, *took);
                self.io.end_renewal("verified");
                tracing::trace!(target: "eldest::session", identity, ?took, "renewed");
                let lines = self.failures.renewed();
                self.log_lines(lines);
            }
            Note::RenewalRefused => {
                metrics::renewal(identity, "refused");
                self.io.end_renewal("refused");
                self.failed(What::Refusal, Class::Retry, "", &[]);
            }
            Note::RenewedLate { left } => {
                tracing::warn!(target: "eldest::session", identity, ?left, "renewed late");
            }
            Note::Joined {
                slot,
                key,
                create_revision,
                again,
            } => {
                if let Some(candidate) = self.candidates.get_mut(slot) {
                    candidate.joined(identity, key, *create_revision, *again);
                }
                self.warn_if_crowded();
            }
            Note::JoinFailed { slot, error } => {
                metrics::request_failed(identity, "join");
                let candidate = self.candidates.get(slot);
                let prefix =
                    candidate.map_or_else(Arc::default, |candidate| Arc::clone(&candidate.prefix));
                self.failed(What::Join, error.class, &error.to_string(), &prefix);
            }
            Note::Blocked { .. } | Note::HoldsBack { .. } => self.cannot_lead(note),
            Note::OrphanFound { key } => {
                tracing::info!(target: "eldest::election", identity, key = %String::from_utf8_lossy(key), "orphaned key found");
            }
            Note::Challenge(note) => self.challenge_note(*note),
            Note::RequestFailed { .. } | Note::WatchLost { .. } | Note::StoreChanged { .. } => {
                let line = self.failures.note(self.env.now(), note);
                self.log_lines(line);
            }
        }
    }

    /// Warns of a candidate that cannot lead: another client's key is ahead, or a newer version has led.
    fn cannot_lead(&self, note: &Note) {
        let identity = &*self.identity;
        let election = |slot| {
            let candidate = self.candidates.get(slot);
            candidate.map_or("", |candidate| &*candidate.election)
        };
        match note {
            Note::Blocked { slot, key } => {
                let election = election(slot);
                tracing::warn!(target: "eldest::election", identity, election, key = %String::from_utf8_lossy(key), "blocked by a key without a lease");
            }
            Note::HoldsBack {
                slot,
                version,
                newest,
            } => {
                let election = election(slot);
                tracing::warn!(target: "eldest::election", identity, election, %version, %newest, "holds back: a newer version has led");
            }
            _ => {}
        }
    }

    /// Warns of the cost: etcd checks all keys of a lease for each key that a user puts under it, and for each renewal.
    fn warn_if_crowded(&mut self) {
        let keys = self.candidates.len();
        if !self.crowded && keys >= CROWDED && self.pool.is_as_user() {
            self.crowded = true;
            let identity = &*self.identity;
            tracing::warn!(
                target: "eldest::session", identity, keys,
                "a lease with so many keys is slow on an etcd with users: use another session for some of them"
            );
        }
    }

    /// Records a failure that concerns one election, by its key or prefix, or the whole session.
    fn failed(&mut self, what: What, class: Class, why: &str, about: &[u8]) {
        let now = self.env.now();
        let line = self.failures.about(now, (what, class), why, about);
        self.log_lines(line);
    }

    pub(super) fn log_lines(&self, lines: impl IntoIterator<Item = Line>) {
        let all = || {
            list(
                self.candidates
                    .values()
                    .map(|candidate| &*candidate.election),
            )
        };
        self.failures.log_lines(lines, all);
    }
}
