//! Counts the repetitions of each request, because a session that repeats one in a tight loop overloads etcd.

use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};
use std::sync::Arc;
use std::time::Duration;

use super::World;
use super::promise::Invariant;
use super::store::Key;
use eldest_core::action::Ask;
use eldest_core::time::Time;
use eldest_core::txn::Op;

/// The time for which a request counts.
const WINDOW: Duration = Duration::from_secs(1);
/// The most requests of one kind about one key within [`WINDOW`]. A watch stream that breaks whenever it is open is opened
/// seven times in the first second, and each time the session reads every prefix twice.
const MOST: u32 = 20;
/// The requests that each further reader of the same prefix may add: it reads on every one of those openings too.
const MORE: u32 = 10;

/// The requests of one session, by their kind and key.
#[derive(Debug, Default)]
pub(crate) struct Pace(HashMap<(Discriminant<Ask>, Key), Sent>);

/// The requests of one kind about one key that were sent since then.
#[derive(Debug)]
struct Sent {
    since: Time,
    count: u32,
    /// The most readers of the key at any of them: a reader may have left since.
    further_readers: u32,
}

impl World {
    /// Checks that a session pauses before it repeats a request again and again.
    pub(super) fn check_pace(&mut self, node: usize, ask: &Ask) {
        let (now, key) = (self.now, subject(ask));
        let further_readers = self.further_readers(node, &key);
        let start = || Sent {
            since: now,
            count: 0,
            further_readers: 0,
        };
        let kind = (discriminant(ask), key);
        let sent = self.nodes[node].pace.0.entry(kind).or_insert_with(start);
        if now.since(sent.since) > WINDOW {
            *sent = start();
        }
        sent.count += 1;
        sent.further_readers = sent.further_readers.max(further_readers);
        let count = sent.count;
        if count > MOST + MORE * sent.further_readers {
            let what = format!(
                "node {node} repeats a request {count} times within {WINDOW:?}: {}",
                super::trace::ask(ask)
            );
            self.broken(Invariant::Paced, what);
        }
    }

    /// Counts the candidates and observers of a session that read a prefix, but for the first.
    fn further_readers(&self, node: usize, prefix: &Key) -> u32 {
        let node = &self.nodes[node];
        let candidates = node.candidates.values().filter(|c| c.ended.is_none());
        let candidates = candidates.map(|candidate| &candidate.prefix);
        let observers = node.looks.values().map(|look| self.looks_at(look));
        let readers = candidates.chain(observers).filter(|read| *read == prefix);
        (readers.count() as u32).saturating_sub(1)
    }
}

/// Returns the first key that a request is about; an empty one for a request about leases.
fn subject(ask: &Ask) -> Key {
    let key = match ask {
        Ask::Verify { key } | Ask::Probe { key } | Ask::Find { key } | Ask::Delete { key, .. } => {
            Some(key)
        }
        Ask::Join(join) => Some(&join.key),
        Ask::List { prefix, .. } | Ask::Older { prefix, .. } => Some(prefix),
        Ask::Check { keys } | Ask::Take { keys, .. } => keys.first(),
        Ask::Release { keys } => keys.first().map(|(key, _)| key),
        Ask::Proclaim { own, .. } => Some(&own.key),
        Ask::Transact(txn) => txn.then.first().map(|op| match op {
            Op::Put { key, .. }
            | Op::Read(key)
            | Op::ReadBelow(key)
            | Op::Delete(key)
            | Op::DeleteBelow(key) => key,
        }),
        Ask::Grant { .. }
        | Ask::Open { .. }
        | Ask::Renew
        | Ask::Revoke { .. }
        | Ask::Sweep { .. }
        | Ask::TimeLeft { .. } => None,
    };
    key.map_or_else(Key::default, Arc::clone)
}
