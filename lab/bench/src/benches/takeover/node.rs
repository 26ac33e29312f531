//! Runs processes of the library: candidates in many elections, under a guard or with challenges, and the agent.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use eldest::guard::Guard;
use eldest::{Candidate, Challenges, Leadership, Session, SessionOptions};
use futures::future::try_join_all;

use crate::peer::{Asked, Context};
use crate::standing::wall_now;

/// Answers questions until the bench closes the connection.
pub(in super::super) async fn serve(context: Context, mut asked: Asked) -> Result<()> {
    let mut node = Node {
        context,
        guard: None,
        challenges: None,
        sessions: Vec::new(),
        candidates: Vec::new(),
        leading: Vec::new(),
    };
    while let Some(words) = asked.next().await? {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        asked.answer(node.answer(&words).await)?;
    }
    // The process of the limit leaves its key to its lease, as every killed process does.
    let closing = node.sessions.iter().map(Session::close);
    try_join_all(closing).await?;
    Ok(())
}

struct Node {
    context: Context,
    guard: Option<Guard>,
    challenges: Option<Challenges>,
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
            ["challenges", level, address] => {
                let challenges = match level {
                    "fast" => Challenges::fast(),
                    _ => Challenges::steady(),
                };
                let address: IpAddr = address.parse()?;
                self.challenges = Some(challenges.listen((address, 0)));
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
                self.sessions.push(session);
                Ok(Vec::new())
            }
            // Sessions, each with a candidate of its own.
            [shape @ ("queue" | "each"), election, count] => {
                for number in 0..count.parse::<usize>()? {
                    let name = match shape {
                        "queue" => election.to_owned(),
                        _ => format!("{election}-{number}"),
                    };
                    let session = self.connect().await?;
                    let mut candidate = session.election(name)?.campaign().await?;
                    if number == 0 || shape == "each" {
                        self.leading.push(candidate.elected().await?);
                    }
                    self.candidates.push(candidate);
                    self.sessions.push(session);
                }
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
        let options = SessionOptions::new("bench").ttl(self.context.ttl);
        let options = match &self.guard {
            Some(guard) => options.guard(guard.clone()),
            None => options,
        };
        let options = match &self.challenges {
            Some(challenges) => options.challenges(challenges.clone()),
            None => options,
        };
        Ok(Session::connect(&self.context.endpoints, options).await?)
    }
}
