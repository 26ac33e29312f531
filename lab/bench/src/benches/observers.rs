//! `observers`: many observers of one election, until all know the new leader.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use eldest::{Candidate, Election, Leadership, Session};
use futures::FutureExt;
use tokio::sync::{broadcast, mpsc};

use super::Bench;
use crate::eldest_peer;
use crate::peer::{Asked, Context};
use crate::run::Run;
use crate::samples::nanos;

pub(super) const BENCH: Bench = Bench {
    name: "observers",
    about: "500 observers of one election, until all know the new leader",
    checked: false,
    run: |run| measure(run).boxed(),
    peer: |context, asked| peer(context, asked).boxed(),
};

const TO_LIMIT: f64 = 1.5;
const OBSERVERS: usize = 500;
/// The number of changes that a reader of the bare watch may be behind.
const READ_LATER: usize = 16;

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let mut peers = run.peers(&["limit", "eldest", "go"]).await?;
    for peer in &mut peers {
        peer.ask(&format!("observe {} {OBSERVERS}", peer.name))
            .await?;
    }
    let samples = run.samples(200, 60);
    let ask = || "change".to_owned();
    let pause = Duration::from_millis(30);
    let rows = run.interleave(&mut peers, samples, pause, ask).await;
    let group = run.group("", OBSERVERS, "ms");
    group.print(&rows);
    run.report
        .ratio(group, &rows, ("eldest", "limit"), TO_LIMIT);
    Ok(())
}

/// The reports of an observer: the create revision of each leader that it sees.
type Seen = mpsc::UnboundedReceiver<i64>;

async fn peer(context: Context, asked: Asked) -> Result<()> {
    match context.peer.as_str() {
        "eldest" => watched(context, asked).await,
        _ => bare(context, asked).await,
    }
}

/// Waits until all observers have seen `leader`.
async fn all(seen: &mut Seen, leader: i64, count: usize) -> Result<()> {
    let mut left = count;
    while left > 0 {
        let next = tokio::time::timeout(Duration::from_secs(30), seen.recv()).await;
        let token = next.map_err(|_| anyhow!("{left} have not seen it"))?;
        if token.context("the observers have ended")? == leader {
            left -= 1;
        }
    }
    Ok(())
}

/// The library's observers of one session, while two others lead in turns.
async fn watched(context: Context, mut asked: Asked) -> Result<()> {
    let (tell, mut seen) = mpsc::unbounded_channel();
    let observer = eldest_peer::session(&context).await?;
    let mut turns: Option<Turns> = None;
    let mut count = 0;
    while let Some(words) = asked.next().await? {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let answer = match *words {
            ["observe", name, n] => {
                count = n.parse()?;
                let ready = Turns::begin(&context, name).await?;
                let leader = ready.leader.fencing_token();
                turns = Some(ready);
                let election = observer.election(name)?;
                for _ in 0..count {
                    let mut changes = election.observe().await?;
                    let tell = tell.clone();
                    tokio::spawn(async move {
                        while let Some(Ok(roster)) = changes.next().await {
                            let leader = roster.leader();
                            let token = leader.map_or(0, eldest::Member::create_revision);
                            if tell.send(token).is_err() {
                                return;
                            }
                        }
                    });
                }
                all(&mut seen, leader, count).await?;
                Ok(Vec::new())
            }
            ["change"] => {
                let turns = turns.as_mut().context("nobody observes")?;
                let took = turns.change(&mut seen, count).await?;
                Ok(vec![nanos(took)])
            }
            _ => bail!("no question {words:?}"),
        };
        asked.answer(answer)?;
    }
    Ok(())
}

/// Two candidates that lead in turns.
struct Turns {
    leader: Leadership,
    leading: (Session, Election),
    waiting: (Session, Election),
    next: Candidate,
}

impl Turns {
    async fn begin(context: &Context, name: &str) -> Result<Self> {
        let mut sessions = Vec::new();
        for _ in 0..2 {
            let session = eldest_peer::session(context).await?;
            let election = session.election(name)?;
            sessions.push((session, election));
        }
        let (Some(waiting), Some(leading)) = (sessions.pop(), sessions.pop()) else {
            bail!("two sessions");
        };
        let leader = leading.1.campaign().await?.elected().await?;
        let next = waiting.1.campaign().await?;
        Ok(Self {
            leader,
            leading,
            waiting,
            next,
        })
    }

    async fn change(&mut self, seen: &mut Seen, count: usize) -> Result<Duration> {
        while seen.try_recv().is_ok() {}
        let start = Instant::now();
        let (resigned, elected) = tokio::join!(self.leader.resign(), self.next.elected());
        resigned?;
        self.leader = elected?;
        all(seen, self.leader.fencing_token(), count).await?;
        let took = start.elapsed();
        std::mem::swap(&mut self.leading, &mut self.waiting);
        self.next = self.waiting.1.campaign().await?;
        Ok(took)
    }
}

/// Measures one put until as many readers of one bare watch know it: the library's observers share a watch, too.
async fn bare(context: Context, mut asked: Asked) -> Result<()> {
    let mut client = context.client().await?;
    let (tell, mut seen) = mpsc::unbounded_channel();
    let (mut key, mut count) = (String::new(), 0);
    while let Some(words) = asked.next().await? {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let answer = match *words {
            ["observe", name, n] => {
                (key, count) = (format!("{name}/leader"), n.parse()?);
                let mut stream = client.watch(key.clone(), None).await?;
                let changes = broadcast::Sender::new(READ_LATER);
                for _ in 0..count {
                    let (mut changes, tell) = (changes.subscribe(), tell.clone());
                    tokio::spawn(async move {
                        while let Ok(revision) = changes.recv().await {
                            let _ = tell.send(revision);
                        }
                    });
                }
                tokio::spawn(async move {
                    while let Ok(Some(message)) = stream.message().await {
                        let created = message.created().then_some(0);
                        let pairs = message.events().iter().filter_map(|event| event.kv());
                        let revisions = pairs.map(etcd_client::KeyValue::mod_revision);
                        for revision in created.into_iter().chain(revisions) {
                            let _ = changes.send(revision);
                        }
                    }
                });
                all(&mut seen, 0, count).await?;
                Ok(Vec::new())
            }
            ["change"] => {
                let start = Instant::now();
                let put = client.put(key.clone(), "bench", None).await?;
                let revision = put.header().context("no header")?.revision();
                all(&mut seen, revision, count).await?;
                Ok(vec![nanos(start.elapsed())])
            }
            _ => bail!("no question {words:?}"),
        };
        asked.answer(answer)?;
    }
    Ok(())
}
