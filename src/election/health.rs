//! Runs a node's health check, one call at a time and each with a time limit, and logs when the result changes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{BoxError, Result};
use crate::runtime::{SharedEnv, timeout};

/// A health check and its times.
pub(crate) struct Health<C> {
    env: SharedEnv,
    /// The election, or the partitions, of which it decides.
    name: Arc<str>,
    every: Duration,
    limit: Duration,
    check: C,
    ill: bool,
}

impl<C> Health<C> {
    pub(crate) fn new(
        env: &SharedEnv,
        name: &str,
        (every, limit): (Duration, Duration),
        check: C,
    ) -> Self {
        Self {
            env: Arc::clone(env),
            name: name.into(),
            every,
            limit,
            check,
            ill: false,
        }
    }

    /// Returns the pause between two calls, and the longest time without an `Ok`.
    pub(crate) fn times(&self) -> (Duration, Duration) {
        (self.every, self.limit)
    }

    /// Calls the check once.
    async fn asks<F, E>(&mut self) -> bool
    where
        C: FnMut() -> F,
        F: Future<Output = Result<(), E>>,
        E: Into<BoxError>,
    {
        let answer = timeout(&*self.env, self.limit, (self.check)()).await;
        let why = match answer {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(error.into().to_string()),
            None => Some(format!("no answer within {:?}", self.limit)),
        };
        let was_ill = std::mem::replace(&mut self.ill, why.is_some());
        let election = &*self.name;
        match why {
            Some(why) if !was_ill => {
                tracing::warn!(target: "eldest::election", election, why, "unhealthy");
            }
            None if was_ill => {
                tracing::info!(target: "eldest::election", election, "healthy again");
            }
            _ => {}
        }
        !self.ill
    }

    /// Waits for an `Ok`.
    pub(crate) async fn wait<F, E>(&mut self)
    where
        C: FnMut() -> F,
        F: Future<Output = Result<(), E>>,
        E: Into<BoxError>,
    {
        while !self.asks().await {
            self.env.sleep(self.every).await;
        }
    }

    /// Calls the check for as long as it is polled, and reports every `Ok`.
    pub(crate) async fn beat<F, E>(&mut self, healthy: impl Fn()) -> Infallible
    where
        C: FnMut() -> F,
        F: Future<Output = Result<(), E>>,
        E: Into<BoxError>,
    {
        loop {
            if self.asks().await {
                healthy();
            }
            self.env.sleep(self.every).await;
        }
    }
}
