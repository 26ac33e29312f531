//! Carries out the core's requests on the store, as the transactions that the library sends to etcd.

use std::sync::Arc;

use eldest_core::action::{Answer, Ask, Class, Join, Joined, Listed};
use eldest_core::batcher::Asked;
use eldest_core::kv::{ELECTED, Entry, Reach};
use eldest_core::time::Time;
use eldest_core::txn::{self, Transacted, When};
use eldest_store::{Compare, Keys, Op, OpDone, Operand, Refusal, Relation, Txn, TxnDone};

use super::{Key, Store, entry, failed, one, refused};

impl Store {
    /// Carries out a request. `lease` is that of the keepalive stream on which the request came, or the one to be
    /// granted.
    pub(crate) fn perform(&mut self, now: Time, ask: &Ask, lease: Option<i64>) -> Answer {
        match ask {
            Ask::Grant { ttl } => self.grant(now, lease.unwrap_or_default(), *ttl),
            Ask::Open { lease } => match self.renew(now, *lease) {
                Some(_) => Answer::Opened,
                None => failed(Class::LeaseGone, false),
            },
            Ask::Renew => Answer::Renewed {
                ttl: lease.and_then(|l| self.renew(now, l)).unwrap_or_default(),
                header: self.header(),
            },
            Ask::Verify { key } | Ask::Probe { key } | Ask::Find { key } => Answer::Read {
                header: self.header(),
                entry: self.entry(key),
            },
            Ask::List { prefix, reach } => self.listed(self.below(prefix, *reach)),
            Ask::Older {
                prefix,
                create_revision,
            } => {
                let mut entries = self.children(prefix);
                entries.retain(|e| e.create_revision <= *create_revision);
                self.listed(entries)
            }
            Ask::Revoke { lease } => {
                self.revoke(now, *lease);
                Answer::Revoked
            }
            Ask::Sweep { lease } => Answer::Swept {
                keys: self.keys_of(*lease),
            },
            Ask::TimeLeft { lease } => self.time_left(now, *lease),
            _ => {
                let txn = self.transaction(ask);
                match self.accept(now, &txn) {
                    Ok(done) => self.answer(ask, &done),
                    Err(refusal) => refused(refusal),
                }
            }
        }
    }

    /// Applies all requests at one revision, each under its own conditions.
    pub(crate) fn perform_together(&mut self, now: Time, asks: &[Asked]) -> Vec<Answer> {
        let each = asks.iter().map(|(_, ask)| Op::Txn(self.transaction(ask)));
        let txn = always(each);
        let done = match self.accept(now, &txn) {
            Ok(done) => done.results,
            Err(refusal) => return asks.iter().map(|_| refused(refusal)).collect(),
        };
        let answers = asks.iter().zip(&done).filter_map(|((_, ask), done)| {
            let OpDone::Txn(done) = done else { return None };
            Some(self.answer(ask, done))
        });
        answers.collect()
    }

    fn listed(&self, entries: Vec<Entry>) -> Answer {
        let header = self.header();
        Answer::Listed(Listed { header, entries })
    }

    /// Applies a node's transaction, unless it is too large.
    fn accept(&mut self, now: Time, txn: &Txn) -> Result<TxnDone, Refusal> {
        self.limits.check(now, txn)?;
        self.commit(txn)
    }

    pub(super) fn commit(&mut self, txn: &Txn) -> Result<TxnDone, Refusal> {
        if self.full > 0 && txn.puts() {
            return Err(Refusal::NoSpace);
        }
        self.state.txn(txn)
    }

    /// Returns the request as a transaction of etcd. A request without one reads nothing.
    fn transaction(&self, ask: &Ask) -> Txn {
        match ask {
            Ask::Check { keys } => always(keys.iter().map(|key| Op::read(one(key)))),
            Ask::Join(join) => self.join(join),
            Ask::Delete {
                key,
                create_revision,
                state,
            } => match state {
                Some(state) => plain(&state.saved_with(key, *create_revision)),
                None => delete_unchanged(key, *create_revision),
            },
            Ask::Release { keys } => match &keys[..] {
                [(key, create_revision)] => delete_unchanged(key, *create_revision),
                keys => {
                    let each = keys.iter();
                    always(each.map(|(key, created)| Op::Txn(delete_unchanged(key, *created))))
                }
            },
            Ask::Take {
                member,
                value,
                keys,
            } => {
                let take = |key| {
                    let put = Op::put(key, value, member.lease);
                    Op::Txn(when(created(key, 0), [put]))
                };
                let member = created(&member.key, member.create_revision);
                when(member, keys.iter().map(take))
            }
            Ask::Proclaim {
                own,
                mod_revision,
                value,
            } => Txn {
                compare: vec![
                    created(&own.key, own.create_revision),
                    equal(&own.key, Operand::Lease(own.lease)),
                    equal(&own.key, Operand::ModRevision(*mod_revision)),
                ],
                success: vec![Op::put(&own.key, value, own.lease)],
                failure: vec![Op::read(one(&own.key))],
            },
            Ask::Transact(txn) => plain(txn),
            _ => Txn::default(),
        }
    }

    /// Returns a join, whose last read has the keys below its prefix. The library sends a second transaction if a lock
    /// finds keys below its name, because etcd compares the values of absent keys with nothing.
    fn join(&self, join: &Join) -> Txn {
        let (prefix, admission) = (&join.prefix, &join.admission);
        let below = Keys::below(prefix);
        let mut compare = vec![created(&join.key, 0)];
        if let Some(revision) = admission.none_after {
            let older = Compare::created(below.clone(), Relation::Less, revision + 1);
            compare.push(older);
        }
        if admission.only_locks && self.select(&below).next().is_some() {
            compare.push(Compare {
                keys: below.clone(),
                relation: Relation::Less,
                operand: Operand::Value(ELECTED.into()),
            });
        }
        let candidates = Op::read(below);
        let mut failure = Vec::new();
        let others = admission.nothing_else_in.iter();
        for keys in others.flat_map(|all| around(prefix, all)) {
            compare.push(Compare::created(keys.clone(), Relation::Equal, 0));
            failure.push(Op::read(keys));
        }
        failure.push(candidates.clone());
        Txn {
            compare,
            success: vec![Op::put(&join.key, &join.value, join.lease), candidates],
            failure,
        }
    }

    /// Returns the answer to a request that was applied as a transaction.
    fn answer(&self, ask: &Ask, done: &TxnDone) -> Answer {
        let header = self.header();
        let held = done.succeeded;
        let mut found = done.results.iter().filter_map(|done| match done {
            OpDone::Range(done) => Some(done.found.iter().map(entry).collect::<Vec<_>>()),
            _ => None,
        });
        match ask {
            Ask::Check { .. } => Answer::Checked {
                header,
                entries: found.map(|mut found| found.pop()).collect(),
            },
            Ask::Join(join) => {
                let mut entries = found.next_back().unwrap_or_default();
                entries.retain(|entry| Reach::Children.covers(&join.prefix, &entry.key));
                Answer::Joined(Joined {
                    header,
                    created: held,
                    entries,
                    other: found.flatten().next().map(|entry| entry.key),
                })
            }
            Ask::Take { .. } => {
                let done = done.results.iter();
                let taken = done.map(|done| matches!(done, OpDone::Txn(put) if put.succeeded));
                Answer::Taken {
                    header,
                    taken: held.then(|| taken.collect()),
                }
            }
            Ask::Proclaim { .. } => Answer::Proclaimed {
                held: held.then_some(header.revision),
                entry: found.flatten().next(),
            },
            Ask::Transact(_) | Ask::Delete { state: Some(_), .. } => {
                Answer::Transacted(Transacted {
                    header,
                    held,
                    found: found.collect(),
                })
            }
            _ => Answer::Deleted { header },
        }
    }
}

fn equal(key: &Key, operand: Operand) -> Compare {
    Compare {
        keys: one(key),
        relation: Relation::Equal,
        operand,
    }
}

fn created(key: &Key, revision: i64) -> Compare {
    equal(key, Operand::CreateRevision(revision))
}

pub(super) fn always(ops: impl IntoIterator<Item = Op>) -> Txn {
    Txn {
        success: ops.into_iter().collect(),
        ..Txn::default()
    }
}

fn when(compare: Compare, ops: impl IntoIterator<Item = Op>) -> Txn {
    Txn {
        compare: vec![compare],
        ..always(ops)
    }
}

/// Deletes the key if it has that create revision.
fn delete_unchanged(key: &Key, create_revision: i64) -> Txn {
    when(created(key, create_revision), [Op::delete(one(key))])
}

/// Returns the keys that begin with `all`, except those that begin with `prefix`.
fn around(prefix: &Key, all: &Key) -> [Keys; 2] {
    let after = |prefix| Keys::end_of(prefix).expect("a prefix ends in a slash");
    [
        Keys::Until(Arc::clone(all), Arc::clone(prefix)),
        Keys::Until(after(prefix), after(all)),
    ]
}

/// Returns a transaction that the core describes as plain data.
fn plain(txn: &txn::Txn) -> Txn {
    Txn {
        compare: txn.when.iter().map(condition).collect(),
        success: txn.then.iter().map(operation).collect(),
        failure: txn.otherwise.iter().map(operation).collect(),
    }
}

fn condition(when: &When) -> Compare {
    match when {
        When::Created(key, revision) => created(key, *revision),
        When::NotCreated(key, revision) => {
            Compare::created(one(key), Relation::NotEqual, *revision)
        }
        When::Written(key, revision) => equal(key, Operand::ModRevision(*revision)),
    }
}

fn operation(op: &txn::Op) -> Op {
    match op {
        txn::Op::Put { key, value, lease } => Op::put(key, value, *lease),
        txn::Op::Read(key) => Op::read(one(key)),
        txn::Op::ReadBelow(prefix) => Op::read(Keys::below(prefix)),
        txn::Op::Delete(key) => Op::delete(one(key)),
        txn::Op::DeleteBelow(prefix) => Op::delete(Keys::below(prefix)),
    }
}
