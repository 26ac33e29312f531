//! Runs a node's health check, one call at a time and each with a time limit, and logs when the result changes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::error::{BoxError, Result};
use eldest_etcd::runtime::{SharedEnv, timeout};

/// A health check and its times.
pub(crate) struct Health<'a> {
    env: SharedEnv,
    /// The election, or the partitions, whose membership the check decides.
    name: Arc<str>,
    every: Duration,
    limit: Duration,
    check: Box<dyn FnMut() -> BoxFuture<'a, Result<(), BoxError>> + Send + 'a>,
    ill: bool,
}

impl<'a> Health<'a> {
    pub(crate) fn new<C, F, E>(
        env: &SharedEnv,
        name: &str,
        (every, limit): (Duration, Duration),
        mut check: C,
    ) -> Self
    where
        C: FnMut() -> F + Send + 'a,
        F: Future<Output = Result<(), E>> + Send + 'a,
        E: Into<BoxError>,
    {
        Self {
            env: Arc::clone(env),
            name: name.into(),
            every,
            limit,
            check: Box::new(move || {
                let answer = check();
                async { answer.await.map_err(Into::into) }.boxed()
            }),
            ill: false,
        }
    }

    /// Returns the pause between two calls, and the longest time without an `Ok`.
    pub(crate) fn times(&self) -> (Duration, Duration) {
        (self.every, self.limit)
    }

    /// Calls the check once.
    async fn asks(&mut self) -> bool {
        let answer = timeout(&*self.env, self.limit, (self.check)()).await;
        let why = match answer {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(error.to_string()),
            None => Some(format!("no answer within {:?}", self.limit)),
        };
        let was_ill = std::mem::replace(&mut self.ill, why.is_some());
        let election = &*self.name;
        match why {
            Some(why) if !was_ill => {
                tracing::warn!(target: "eldest::election", election, why, "unhealthy");
            }
            None if was_ill => {
                tracing::warn!(target: "eldest::election", election, "healthy again");
            }
            _ => {}
        }
        !self.ill
    }

    /// Waits until the check returns `Ok`.
    pub(crate) async fn wait(&mut self) {
        while !self.asks().await {
            self.env.sleep(self.every).await;
        }
    }

    /// Calls the check for as long as it is polled, and reports every `Ok`.
    pub(crate) async fn beat(&mut self, healthy: impl Fn()) -> Infallible {
        loop {
            if self.asks().await {
                healthy();
            }
            self.env.sleep(self.every).await;
        }
    }
}
