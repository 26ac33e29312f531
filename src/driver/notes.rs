//! Logs and counts what the core notes.

use std::sync::Arc;

use super::Driver;
use super::failures::{Line, What, list};
use crate::core::action::{Class, Note};
use crate::metrics;

impl Driver {
    pub(super) fn note(&mut self, note: &Note) {
        let identity = &*Arc::clone(&self.identity);
        match note {
            Note::LeaseGranted { lease, ttl } => {
                tracing::info!(target: "eldest::session", identity, lease = format!("{lease:x}"), ?ttl, "lease granted");
            }
            Note::RenewalFailed { trouble } => {
                metrics::renewal(identity, "failed");
                self.failed(What::Renewal, trouble.class, &trouble.message, &[]);
            }
            Note::Renewed { took } => {
                metrics::renewed(identity, *took);
                tracing::trace!(target: "eldest::session", identity, ?took, "renewed");
                let lines = self.failures.renewed();
                self.tell(lines);
            }
            Note::RenewalRefused => {
                metrics::renewal(identity, "refused");
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
                if let Some(seat) = self.seats.get(slot) {
                    seat.joined(identity, key, *create_revision, *again);
                }
            }
            Note::JoinFailed { slot, trouble } => {
                let seat = self.seats.get(slot);
                let prefix = seat.map_or_else(Arc::default, |seat| Arc::clone(&seat.prefix));
                self.failed(What::Join, trouble.class, &trouble.message, &prefix);
            }
            Note::RequestFailed {
                what,
                about,
                trouble,
            } => {
                metrics::request_failed(identity, what);
                self.failed(What::Request(what), trouble.class, &trouble.message, about);
            }
            Note::Blocked { slot, key } => {
                let election = self.seats.get(slot).map_or("", |seat| &*seat.election);
                tracing::warn!(target: "eldest::election", identity, election, key = %String::from_utf8_lossy(key), "blocked by a key without a lease");
            }
            Note::OrphanFound { key } => {
                tracing::info!(target: "eldest::election", identity, key = %String::from_utf8_lossy(key), "orphaned key found");
            }
            Note::StoreChanged { was, is } => {
                tracing::error!(target: "eldest::session", identity, ?was, ?is, "etcd is another cluster or was restored from a backup: tokens may repeat");
            }
            Note::WatchLost { why } => {
                metrics::watch_lost(identity);
                self.failed(What::Watch, Class::Retry, why, &[]);
            }
        }
    }

    /// A failure that concerns one election, by its key or prefix, or the whole session.
    fn failed(&mut self, what: What, class: Class, why: &str, about: &[u8]) {
        let now = self.env.now();
        let name = (!about.is_empty()).then(|| name_of(&self.namespace, about));
        let line = self.failures.failed(now, (what, class), why, name);
        self.tell(line);
    }

    pub(super) fn tell(&self, lines: impl IntoIterator<Item = Line>) {
        for mut line in lines {
            if line.elections.is_empty() {
                line.elections = list(self.seats.values().map(|seat| &*seat.election));
            }
            line.tell(&self.identity);
        }
    }
}

/// What a key or prefix belongs to, by its name within the namespace.
pub(super) fn name_of(namespace: &[u8], about: &[u8]) -> String {
    let name = about.strip_prefix(namespace).unwrap_or(about);
    let end = name.iter().rposition(|byte| *byte == b'/');
    let name = &name[..end.unwrap_or(name.len())];
    String::from_utf8_lossy(name)
        .trim_start_matches('/')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_prefixes_are_called_by_the_name_of_their_election() {
        for about in ["eldest/team/jobs/", "eldest/team/jobs/7f", "team/jobs/"] {
            for namespace in ["eldest", "eldest/"] {
                assert_eq!(name_of(namespace.as_bytes(), about.as_bytes()), "team/jobs");
            }
        }
    }
}
