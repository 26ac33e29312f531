//! Gives a guard its machine and its way to etcd.

use std::sync::Arc;
use std::time::Duration;

use eldest_core::error::RequestError;
use eldest_core::time::Time;
use eldest_guard::{Claim, Etcd, Extent, Machine, Proof, Proven, Release, Report, Unproven};
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::metrics;
use eldest_etcd::Pool;
use eldest_etcd::runtime::SharedEnv;

/// Returns the surroundings of a guard that reaches etcd through that pool.
pub(crate) fn of(env: SharedEnv, pool: Pool) -> (Arc<dyn Machine>, Arc<dyn Etcd>) {
    let pool = Arc::new(pool);
    if pool.is_followed() {
        // The pool's user need not have permission to read the key.
        let key = Arc::from(*b"~");
        pool.keep_near(key, tracing::Span::current());
    }
    (Arc::new(Surrounding(env)), Arc::new(Keys(pool)))
}

/// The machine of a guard.
struct Surrounding(SharedEnv);

impl Machine for Surrounding {
    fn now(&self) -> Time {
        self.0.now()
    }

    fn unix_time(&self) -> Duration {
        self.0.unix_time()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }

    fn wake_at(&self, at: Time) -> BoxFuture<'static, ()> {
        self.0.wake_at(at)
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.0.spawn(task);
    }

    fn random(&self) -> u64 {
        self.0.random()
    }

    fn measure(&self, report: Report) {
        match report {
            Report::Started => metrics::agent_started(),
            Report::Sessions(count) => metrics::agent_sessions(count),
            Report::Refused => metrics::agent_refused(),
            Report::Released(outcome) => metrics::agent_released(outcome),
            Report::Took(took) => metrics::agent_took(took),
            _ => {}
        }
    }
}

/// The keys in etcd that a guard proves and deletes.
struct Keys(Arc<Pool>);

impl Keys {
    async fn prove(&self, claim: Claim<'_>) -> Result<Proven, Unproven> {
        let Claim { key, lease, .. } = claim;
        let unknown = |unknown: String| move |failure| Unproven::Unknown { unknown, failure };
        let found = self.0.proof(key, lease).await;
        let found = found.map_err(unknown(format!("the guard cannot read {key:?}")))?;
        let proof = found.ok_or_else(|| {
            Unproven::Refused(format!(
                "the key {key:?} does not stand under lease {lease:x}"
            ))
        })?;
        if let Some(namespace) = claim.namespace {
            let allowed = self.0.permissions(namespace.as_bytes()).await;
            let allowed =
                allowed.map_err(unknown("the guard's permissions are unknown".to_owned()))?;
            if !allowed.write {
                return Err(Unproven::Refused(format!(
                    "the guard's user may not delete the keys below {namespace:?}: grant it `readwrite`"
                )));
            }
        }
        if !claim.with_ttl {
            let granted = None;
            return Ok(Proven { proof, granted });
        }
        let term = self.0.lease_term(lease).await;
        let term = term.map_err(unknown("the lease's TTL is unknown".to_owned()))?;
        let term = term.ok_or_else(|| Unproven::Refused(format!("lease {lease:x} is gone")))?;
        let granted = Some(term.granted);
        Ok(Proven { proof, granted })
    }
}

impl Etcd for Keys {
    fn prove<'a>(&'a self, claim: Claim<'a>) -> BoxFuture<'a, Result<Proven, Unproven>> {
        self.prove(claim).boxed()
    }

    fn revoke<'a>(
        &'a self,
        proof: &'a Proof,
        namespace: &'a str,
        extent: Extent,
    ) -> BoxFuture<'a, Result<Release, RequestError>> {
        self.0.release_proven(proof, namespace, extent).boxed()
    }

    fn request_timeout(&self) -> Duration {
        self.0.request_timeout()
    }
}
