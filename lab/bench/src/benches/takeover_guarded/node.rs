//! The processes of `takeover/guarded`: one that is a candidate in many elections under a guard, one that has many
//! sessions, and the agent.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use eldest::guard::Guard;
use eldest::{Candidate, Leadership, Session, SessionOptions};
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, stream};

use crate::peer::{Asked, Context};
use crate::standing::wall_now;

/// The number of sessions that connect at the same time.
const AT_ONCE: usize = 16;

/// Answers questions until the bench closes the connection.
pub(super) async fn serve(context: Context, mut asked: Asked) -> Result<()> {
    let mut node = Node {
        context,
        guard: None,
        sessions: Vec::new(),
        candidates: Vec::new(),
        leading: Vec::new(),
    };
    while let Some(words) = asked.next().await? {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        asked.answer(node.answer(&words).await)?;
    }
    // The process of the limit leaves its key to its lease, as every killed process does.
    try_join_all(node.sessions.iter().map(Session::close)).await?;
    Ok(())
}

struct Node {
    context: Context,
    guard: Option<Guard>,
    sessions: Vec<Session>,
    candidates: Vec<Candidate>,
    leading: Vec<Leadership>,
}

impl Node {
    async fn answer(&mut self, words: &[&str]) -> Result<Vec<f64>> {
        match *words {
            ["listen", socket] => self.listen(Path::new(socket)),
            ["guard", guard] => {
                self.guard = match guard {
                    "none" => None,
                    "spawned" => Some(Guard::spawned()),
                    path => Some(Guard::agent_at(path)),
                };
                Ok(Vec::new())
            }
            ["ttl", seconds] => {
                self.context.ttl = Duration::from_secs(seconds.parse()?);
                Ok(Vec::new())
            }
            ["stand", election, count] => {
                let session = self.session().await?;
                let names = (0..count.parse()?).map(|number| format!("{election}-{number}"));
                let standing = names.map(|name| {
                    let session = session.clone();
                    async move { anyhow::Ok(session.election(name)?.campaign().await?) }
                });
                self.candidates = try_join_all(standing).await?;
                self.sessions.push(session);
                Ok(Vec::new())
            }
            ["lead"] => {
                let elected = self.candidates.iter_mut().map(Candidate::elected);
                self.leading = try_join_all(elected).await?;
                Ok(vec![wall_now()?])
            }
            ["sessions", count] => {
                self.join_apart(count.parse()?).await?;
                Ok(Vec::new())
            }
            _ => bail!("no question {words:?}"),
        }
    }

    fn listen(&self, socket: &Path) -> Result<Vec<f64>> {
        let endpoints = &self.context.endpoints;
        let options = SessionOptions::new("agent");
        let agent = eldest::internal::agent::listen(endpoints, options, socket)?;
        tokio::spawn(async move { agent.run().await });
        Ok(Vec::new())
    }

    async fn session(&self) -> Result<Session> {
        let options = SessionOptions::new("bench").ttl(self.context.ttl);
        let options = match &self.guard {
            Some(guard) => options.guard(guard.clone()),
            None => options,
        };
        Ok(Session::connect(&self.context.endpoints, options).await?)
    }

    /// Joins an election of its own with each of many sessions.
    async fn join_apart(&mut self, count: usize) -> Result<()> {
        let this = &*self;
        let standing = (0..count).map(|number| async move {
            let session = this.session().await?;
            let election = session.election(format!("apart-{number}"))?;
            let candidate = election.campaign().await.context("a session of many")?;
            anyhow::Ok((session, candidate))
        });
        let standing: Vec<_> = stream::iter(standing)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        for (session, candidate) in standing {
            self.sessions.push(session);
            self.candidates.push(candidate);
        }
        Ok(())
    }
}
