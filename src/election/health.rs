//! Runs a node's health check, one call at a time and each with a time limit, and logs when the result changes.

use std::convert::Infallible;
use std::time::Duration;

use super::Election;
use super::work_monitor::WorkMonitor;
use crate::error::{BoxError, Result};
use crate::runtime::timeout;

/// A health check and its times.
pub(crate) struct Health<C> {
    every: Duration,
    limit: Duration,
    check: C,
    ill: bool,
}

impl<C> Health<C> {
    pub(crate) fn new(every: Duration, limit: Duration, check: C) -> Self {
        Self {
            every,
            limit,
            check,
            ill: false,
        }
    }

    /// Every so often, and how long without an `Ok`.
    pub(crate) fn times(&self) -> (Duration, Duration) {
        (self.every, self.limit)
    }

    /// Asks once.
    async fn asks<F>(&mut self, election: &Election) -> bool
    where
        C: FnMut() -> F,
        F: Future<Output = Result<(), BoxError>>,
    {
        let env = &*election.handle.shared.env;
        let answer = timeout(env, self.limit, (self.check)()).await;
        let why = match answer {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(error.to_string()),
            None => Some(format!("no answer within {:?}", self.limit)),
        };
        let was_ill = std::mem::replace(&mut self.ill, why.is_some());
        let election = election.name();
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
    pub(crate) async fn wait<F>(&mut self, election: &Election)
    where
        C: FnMut() -> F,
        F: Future<Output = Result<(), BoxError>>,
    {
        while !self.asks(election).await {
            election.handle.shared.env.sleep(self.every).await;
        }
    }

    /// Asks for as long as it is polled, and tells the monitor of every `Ok`.
    pub(crate) async fn beat<F>(&mut self, election: &Election, monitor: &WorkMonitor) -> Infallible
    where
        C: FnMut() -> F,
        F: Future<Output = Result<(), BoxError>>,
    {
        loop {
            if self.asks(election).await {
                monitor.healthy();
            }
            election.handle.shared.env.sleep(self.every).await;
        }
    }
}
