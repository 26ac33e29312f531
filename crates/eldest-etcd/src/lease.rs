//! Grants, reads and revokes leases, and renews them over keepalive streams. A keepalive answer carries nothing that
//! pairs it with a request, so a stream has one request outstanding at a time.
#![allow(
    clippy::exhaustive_structs,
    reason = "for crates that pin the exact version"
)]

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    LeaseGrantOptions, LeaseKeepAliveStream, LeaseKeeper, LeaseTimeToLiveOptions,
    LeaseTimeToLiveResponse,
};

use super::call::{CallError, header};
use super::direct;
use super::lane::{Lane, Ticket};
use super::pool::{Pool, SharedPool};
use eldest_core::error::{Class, RequestError};
use eldest_core::kv::Header;

/// A lease that was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// The lease's id.
    pub id: i64,
    /// The term that etcd chose, which may be longer than the requested one.
    pub ttl: Duration,
    /// The answer's header.
    pub header: Header,
}

/// A renewal's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// The lease's TTL, which starts again with the renewal; zero if the lease is gone.
    pub ttl: Duration,
    /// The answer's header, stamped before the renewal.
    pub header: Header,
}

/// How much of a lease's term is left, in the whole seconds that etcd reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerm {
    /// The time left, rounded down.
    pub left: Duration,
    /// The whole term.
    pub granted: Duration,
}

/// An open keepalive stream, one request at a time.
pub struct KeepAlive {
    pool: SharedPool,
    ticket: Ticket,
    id: i64,
    requests: LeaseKeeper,
    answers: LeaseKeepAliveStream,
    /// True from before a request until its answer. If it is already true before a request, an earlier answer may still
    /// arrive: it would be taken for the answer to the next request, and the deadline would be too late.
    outstanding: bool,
}

impl Pool {
    /// Grants a lease under an id that is drawn for this request alone, when it is sent: a machine and its clone would
    /// draw the same ids from a number that was drawn before. etcd refuses a taken id, and the session never adopts it.
    pub async fn grant(&self, ttl_secs: i64) -> Result<Granted, RequestError> {
        // etcd's ids are positive.
        let id = ((self.random() >> 1) as i64).max(1);
        self.grant_as(id, ttl_secs).await
    }

    pub(super) async fn grant_as(&self, id: i64, ttl_secs: i64) -> Result<Granted, RequestError> {
        self.call(Lane::Lease, |client| async move {
            let options = LeaseGrantOptions::new().with_id(id);
            let answer = client.lease_client().grant(ttl_secs, Some(options)).await?;
            let header = header(answer.header())?;
            if answer.id() != id || !answer.error().is_empty() {
                return Err(CallError::Odd("a grant of another lease"));
            }
            let ttl = seconds(answer.ttl());
            if ttl.is_zero() {
                return Err(CallError::Odd("a grant without a term"));
            }
            Ok(Granted { id, ttl, header })
        })
        .await
    }

    /// Ends the lease and deletes its keys. Returns `false` if it was gone already.
    pub async fn revoke(&self, id: i64) -> Result<bool, RequestError> {
        let revoked = self
            .call(Lane::Lease, |client| async move {
                client.lease_client().revoke(id).await?;
                Ok(true)
            })
            .await;
        match revoked {
            Err(failure) if failure.class == Class::LeaseGone => Ok(false),
            other => other,
        }
    }

    /// Returns the keys bound to the lease; none if it is gone. If etcd's single answer is larger than the client
    /// accepts, the keys below `prefix` are read in pages.
    pub async fn lease_keys(&self, id: i64, prefix: &[u8]) -> Result<Vec<Arc<[u8]>>, RequestError> {
        let options = LeaseTimeToLiveOptions::new().with_keys();
        // Not on the lane of renewals, which a large answer would delay.
        match self.time_to_live(Lane::Data, id, Some(options)).await {
            Ok(Some(answer)) => Ok(answer.keys().iter().map(|key| Arc::from(&**key)).collect()),
            Ok(None) => Ok(Vec::new()),
            Err(failure) if failure.class == Class::Invalid => self.bound(prefix, id).await,
            Err(failure) => Err(failure),
        }
    }

    /// Returns how much is left of any lease; `None` if it is gone. Needs no permission on its keys.
    pub async fn lease_term(&self, id: i64) -> Result<Option<LeaseTerm>, RequestError> {
        let asked = self.time_to_live(Lane::Data, id, None).await?;
        Ok(asked.map(|answer| LeaseTerm {
            left: seconds(answer.ttl()),
            granted: seconds(answer.granted_ttl()),
        }))
    }

    pub(super) async fn time_to_live(
        &self,
        lane: Lane,
        id: i64,
        options: Option<LeaseTimeToLiveOptions>,
    ) -> Result<Option<LeaseTimeToLiveResponse>, RequestError> {
        let options = &options;
        let asked = self
            .call(lane, |client| async move {
                Ok(client
                    .lease_client()
                    .time_to_live(id, options.clone())
                    .await?)
            })
            .await;
        match asked {
            // A lease that outlived its term and is not revoked yet may have a negative rest as well; only a lease that
            // is gone has no granted term.
            Ok(answer) => Ok((answer.granted_ttl() > 0).then_some(answer)),
            Err(failure) if failure.class == Class::LeaseGone => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Opens a keepalive stream. Opening renews the lease once, but its answer cannot be read, so it does not count as
    /// a renewal.
    pub async fn keepalive(self: &SharedPool, id: i64) -> Result<KeepAlive, RequestError> {
        let ((requests, answers), ticket) = self
            .call_with_ticket(Lane::Lease, |client| async move {
                let opened = client.lease_client().keep_alive(id).await?;
                // tonic may have reconnected since the connection was checked. The stream ends with its connection, so
                // either this check uses the stream's connection, or no renewal will be answered.
                direct::check(&client).await?;
                Ok(opened)
            })
            .await?;
        Ok(KeepAlive {
            pool: SharedPool::clone(self),
            ticket,
            id,
            requests,
            answers,
            outstanding: false,
        })
    }
}

impl KeepAlive {
    /// Renews the lease: one request, one answer.
    ///
    /// # Cancellation safety
    /// Safe to drop, but the stream cannot be used again, as after an error: open another.
    pub async fn renew(&mut self) -> Result<Ack, RequestError> {
        if self.outstanding {
            let endpoint = self.ticket.url();
            let used_up = "this keepalive stream was given up";
            return Err(RequestError::new(Class::Retry, used_up, endpoint).unsent());
        }
        self.follow_lane().await;
        self.outstanding = true;
        let (requests, answers, id) = (&mut self.requests, &mut self.answers, self.id);
        let ack = self
            .pool
            .follow_up(&self.ticket, async {
                requests.keep_alive().await?;
                let answer = answers.message().await?;
                let answer = answer.ok_or(CallError::Odd("the keepalive stream ended"))?;
                if answer.id() != id {
                    return Err(CallError::Odd("a renewal of another lease"));
                }
                Ok(Ack {
                    ttl: seconds(answer.ttl()),
                    header: header(answer.header())?,
                })
            })
            .await?;
        self.outstanding = false;
        Ok(ack)
    }

    /// Returns the endpoint at which the last renewal was sent.
    #[cfg(test)]
    pub(super) fn endpoint(&self) -> &str {
        self.ticket.url()
    }

    /// Continues at the preferred endpoint to which the lane has moved. If no stream can be opened there, this one
    /// still renews the lease.
    async fn follow_lane(&mut self) {
        if self.pool.has_moved(&self.ticket) {
            let opened = self.pool.keepalive(self.id).await;
            if let Ok(there) = opened {
                *self = there;
            }
        }
    }
}

/// Converts etcd's seconds; negative ones count as zero.
fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
