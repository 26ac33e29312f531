//! Runs processes of the library: candidates in many elections, under a guard or without one, and the agent.

use std::path::Path;

use anyhow::{Result, bail};
use eldest::guard::Guard;
use eldest::{Candidate, Leadership, Session, SessionOptions};
use futures::future::try_join_all;

use crate::peer::{Asked, Context};
use crate::standing::wall_now;

/// Answers questions until the bench closes the connection.
pub(super) async fn serve(context: Context, mut asked: Asked) -> Result<()> {
    let mut node = Node {
        context,
        guard: None,
        session: None,
        candidates: Vec::new(),
        leading: Vec::new(),
    };
    while let Some(words) = asked.next().await? {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        asked.answer(node.answer(&words).await)?;
    }
    // The process of the limit leaves its key to its lease, as every killed process does.
    if let Some(session) = node.session {
        session.close().await?;
    }
    Ok(())
}

struct Node {
    context: Context,
    guard: Option<Guard>,
    session: Option<Session>,
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
            ["stand", election, count] => {
                let session = self.connect().await?;
                let names = (0..count.parse()?).map(|number| format!("{election}-{number}"));
                let standing = names.map(|name| {
                    let session = session.clone();
                    async move { anyhow::Ok(session.election(name)?.campaign().await?) }
                });
                self.candidates = try_join_all(standing).await?;
                self.session = Some(session);
                Ok(Vec::new())
            }
            ["lead"] => {
                let elected = self.candidates.iter_mut().map(Candidate::elected);
                self.leading = try_join_all(elected).await?;
                Ok(vec![wall_now()?])
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

    async fn connect(&self) -> Result<Session> {
        let mut options = SessionOptions::new("bench").ttl(self.context.ttl);
        if let Some(guard) = &self.guard {
            options = options.guard(guard.clone());
        }
        Ok(Session::connect(&self.context.endpoints, options).await?)
    }
}
