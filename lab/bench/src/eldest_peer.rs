//! Implements the benches' candidates with this library: one campaigns in an election, the other waits for a lock.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use eldest::{Candidate, Leadership, LockGuard, Session, SessionOptions};
use tokio::task::JoinHandle;

use crate::peer::Context;
use crate::standing::Stands;

/// Opens a session of its own, as a process would have.
pub(crate) async fn session(context: &Context) -> Result<Session> {
    let options = SessionOptions::new("bench").ttl(context.ttl);
    Ok(Session::connect(&context.endpoints, options).await?)
}

/// A candidate of the library.
pub(crate) struct Standing {
    session: Session,
    candidate: Option<Candidate>,
    leadership: Option<Leadership>,
}

impl Stands for Standing {
    async fn connect(context: &Context, _: usize) -> Result<Self> {
        Ok(Self {
            session: session(context).await?,
            candidate: None,
            leadership: None,
        })
    }

    async fn join(&mut self, election: &str, _: Option<&Self>) -> Result<()> {
        self.leadership = None;
        self.candidate = Some(self.session.election(election)?.campaign().await?);
        Ok(())
    }

    async fn lead(&mut self) -> Result<Instant> {
        let candidate = self.candidate.as_mut().context("not standing")?;
        let leadership = candidate.elected().await?;
        let now = Instant::now();
        self.leadership = Some(leadership);
        Ok(now)
    }

    async fn resign(&mut self) -> Result<()> {
        let leadership = self.leadership.as_ref().context("not leading")?;
        Ok(leadership.resign().await?)
    }
}

/// A process that waits for a lock of the library, or holds it.
pub(crate) struct Holding {
    session: Session,
    acquiring: Option<JoinHandle<Result<(LockGuard, Instant)>>>,
    guard: Option<LockGuard>,
}

impl Stands for Holding {
    async fn connect(context: &Context, _: usize) -> Result<Self> {
        Ok(Self {
            session: session(context).await?,
            acquiring: None,
            guard: None,
        })
    }

    async fn join(&mut self, name: &str, _: Option<&Self>) -> Result<()> {
        let lock = self.session.lock(name)?;
        let before = lock.roster().await?.members().len();
        let acquired = lock.clone();
        self.acquiring = Some(tokio::spawn(async move {
            let guard = acquired.acquire().await?;
            Ok((guard, Instant::now()))
        }));
        // Acquiring does not report when the key exists, so the roster is read.
        while lock.roster().await?.members().len() <= before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    async fn lead(&mut self) -> Result<Instant> {
        let acquiring = self.acquiring.take().context("not waiting")?;
        let (guard, at) = acquiring.await??;
        self.guard = Some(guard);
        Ok(at)
    }

    async fn resign(&mut self) -> Result<()> {
        let guard = self.guard.take().context("not holding")?;
        Ok(guard.release().await?)
    }

    async fn alone(&mut self, name: &str) -> Result<(Duration, Duration)> {
        let lock = self.session.lock(name)?;
        let start = Instant::now();
        let guard = lock.acquire().await?;
        let held = start.elapsed();
        guard.release().await?;
        Ok((held, start.elapsed()))
    }
}
