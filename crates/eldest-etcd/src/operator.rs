//! Makes the calls that only operators need: a member's status, the list of members, a user's permissions, and the
//! deletion of a candidate's key.
#![allow(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "for crates that pin the exact version"
)]

use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, DeleteOptions, GetOptions, Txn, TxnOp};

use super::call::{CallError, header, kv};
use super::kv::{delete_unchanged, prefix_end};
use super::lane::Lane;
use super::pool::Pool;
use eldest_core::error::{Class, RequestError};

/// The status that a member reports of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdMemberStatus {
    /// The member's version, such as `3.7.2`.
    pub version: String,
    /// The member's id.
    pub member: u64,
    /// The cluster's id.
    pub cluster: u64,
    /// The id of the member that this one considers etcd's leader; 0: none.
    pub leader: u64,
    /// The member's raft term.
    pub raft_term: u64,
    /// True if the member does not vote yet, and answers no linearizable reads.
    pub learner: bool,
    /// The size of its database's file, in bytes.
    pub size: u64,
    /// How much of the database's file is in use, in bytes.
    pub size_in_use: u64,
    /// The largest size of the database, in bytes; 0: the member does not report it (before 3.6).
    pub quota: u64,
    /// The problems that the member reports, alarms above all.
    pub errors: Vec<String>,
}

/// A user's permissions for all keys below a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permissions {
    /// True if all these keys may be read.
    pub read: bool,
    /// True if all these keys may be written and deleted.
    pub write: bool,
}

/// One member, as the cluster knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdMember {
    /// The member's id.
    pub id: u64,
    /// The member's name; empty if it has not started yet.
    pub name: String,
    /// The URLs that the member announces to clients.
    pub client_urls: Vec<String>,
    /// True if the member does not vote yet, and answers no linearizable reads.
    pub learner: bool,
}

impl Pool {
    /// Deletes the key if it still has that create revision, and returns whether it did.
    pub async fn evict(&self, key: &[u8], create_revision: i64) -> Result<bool, RequestError> {
        let txn = delete_unchanged(key, create_revision);
        Ok(self.txn(txn).await?.succeeded())
    }

    /// Returns the status that the member reports of itself. Needs no permission.
    pub async fn status(&self) -> Result<EtcdMemberStatus, RequestError> {
        self.call(Lane::Data, |client| async move {
            let answer = client.maintenance_client().status().await?;
            let header = header(answer.header())?;
            Ok(EtcdMemberStatus {
                version: answer.version().to_owned(),
                member: header.member,
                cluster: header.cluster,
                leader: answer.leader(),
                raft_term: answer.raft_term(),
                learner: answer.is_learner(),
                size: bytes(answer.db_size()),
                size_in_use: bytes(answer.raft_used_db_size()),
                quota: bytes(answer.db_size_quota()),
                errors: answer.errors().to_vec(),
            })
        })
        .await
    }

    /// Returns the members of the cluster. With users enabled, every user may read them.
    pub async fn members(&self) -> Result<Vec<EtcdMember>, RequestError> {
        let asked = self.call(
            Lane::Data,
            |client| async move { members_of(&client).await },
        );
        Ok(asked.await?.0)
    }

    /// Returns the user's permissions for the keys below `prefix`. Changes nothing.
    ///
    /// etcd checks the permissions of both branches of a transaction before it chooses one. So a transaction whose
    /// condition never holds shows whether the user may write the whole range.
    pub async fn permissions(&self, prefix: &[u8]) -> Result<Permissions, RequestError> {
        let end = prefix_end(prefix);
        let all = GetOptions::new().with_range(end.clone());
        let one = &all.with_limit(1).with_keys_only();
        let read = self.call(Lane::Data, |client| async move {
            kv(&client).get(prefix, Some(one.clone())).await?;
            Ok(())
        });
        let read = allowed(read.await)?;
        let never = Compare::create_revision(prefix, CompareOp::Less, 0);
        let all = DeleteOptions::new().with_range(end);
        let delete = TxnOp::delete(prefix, Some(all));
        let txn = &Txn::new().when([never]).and_then([delete]);
        let write = self.call(Lane::Data, |client| async move {
            let answer = kv(&client).txn(txn.clone()).await?;
            if answer.succeeded() {
                return Err(CallError::Odd("a condition that cannot hold"));
            }
            Ok(())
        });
        let write = allowed(write.await)?;
        Ok(Permissions { read, write })
    }

    /// Reads the key `count` times in one transaction.
    pub async fn read_often(&self, key: &[u8], count: usize) -> Result<(), RequestError> {
        let read = TxnOp::get(key, Some(GetOptions::new().with_keys_only()));
        let txn = Txn::new().and_then(vec![read; count]);
        self.txn(txn).await.map(drop)
    }

    /// Returns the shortest term for which this etcd grants a lease. The lease is revoked.
    pub async fn shortest_term(&self) -> Result<Duration, RequestError> {
        let granted = self.grant(1).await?;
        self.revoke(granted.id).await?;
        Ok(granted.ttl)
    }
}

/// Returns the members of the cluster as this member knows them, and the cluster's id.
pub(super) async fn members_of(client: &Client) -> Result<(Vec<EtcdMember>, u64), CallError> {
    let answer = client.cluster_client().member_list().await?;
    let cluster = header(answer.header())?.cluster;
    let members = answer.members().iter().map(|member| EtcdMember {
        id: member.id(),
        name: member.name().to_owned(),
        client_urls: member.client_urls().to_vec(),
        learner: member.is_learner(),
    });
    Ok((members.collect(), cluster))
}

fn allowed(asked: Result<(), RequestError>) -> Result<bool, RequestError> {
    match asked {
        Ok(()) => Ok(true),
        Err(failure) if failure.class == Class::Denied => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Converts etcd's sizes; older versions leave some at zero.
fn bytes(size: i64) -> u64 {
    u64::try_from(size).unwrap_or(0)
}
