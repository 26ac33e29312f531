//! Keeps a queue of candidates of any kind and answers the benches' questions: the leader resigns and rejoins at the
//! back.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail};

use futures::FutureExt;
use futures::future::BoxFuture;
use stats_alloc::INSTRUMENTED_SYSTEM;

use crate::peer::{Asked, Context};
use crate::samples::nanos;

/// A candidate with a connection and a lease of its own.
pub(crate) trait Stands: Sized + Send + 'static {
    /// Connects, for a queue of that length.
    fn connect(context: &Context, queue: usize) -> impl Future<Output = Result<Self>> + Send;
    /// Joins behind all others, of whom `ahead` is the last; returns once the key exists.
    fn join(
        &mut self,
        election: &str,
        ahead: Option<&Self>,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Waits until the candidate leads, and returns the moment at which it knew.
    fn lead(&mut self) -> impl Future<Output = Result<Instant>> + Send;
    /// Resigns the leadership.
    fn resign(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Campaigns without competitors. Returns how long it took to lead, and to resign again.
    fn alone(
        &mut self,
        election: &str,
    ) -> impl Future<Output = Result<(Duration, Duration)>> + Send {
        async {
            let start = Instant::now();
            self.join(election, None).await?;
            let led = self.lead().await?.saturating_duration_since(start);
            self.resign().await?;
            Ok((led, start.elapsed()))
        }
    }
}

/// Candidates in the order of the queue; of the whole queue or of this process' share of it.
struct Queue<S> {
    context: Context,
    election: String,
    standing: VecDeque<S>,
    /// A candidate that leads elections without competitors.
    spare: Option<S>,
}

impl<S: Stands> Queue<S> {
    fn new(context: &Context, election: &str) -> Self {
        Self {
            context: context.clone(),
            election: election.to_owned(),
            standing: VecDeque::new(),
            spare: None,
        }
    }

    async fn join(&mut self, mut candidate: S) -> Result<()> {
        let ahead = self.standing.back();
        candidate.join(&self.election, ahead).await?;
        self.standing.push_back(candidate);
        Ok(())
    }

    fn first(&mut self) -> Result<&mut S> {
        self.standing.front_mut().context("nobody stands")
    }

    async fn gather(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            let candidate = S::connect(&self.context, count.max(2)).await?;
            self.join(candidate).await?;
        }
        self.first()?.lead().await?;
        Ok(())
    }

    /// Returns how long a hand-over took, from the leader's decision to resign until its successor knew. The former
    /// leader joins again.
    async fn handover(&mut self) -> Result<Duration> {
        let mut old = self.standing.pop_front().context("nobody stands")?;
        let next = self.first()?;
        let start = Instant::now();
        let (resigned, elected) = tokio::join!(old.resign(), next.lead());
        resigned?;
        let took = elected?.saturating_duration_since(start);
        self.join(old).await?;
        Ok(took)
    }

    async fn alone(&mut self, election: &str) -> Result<(Duration, Duration)> {
        let mut candidate = match self.spare.take() {
            Some(spare) => spare,
            None => S::connect(&self.context, 1).await?,
        };
        let took = candidate.alone(election).await?;
        self.spare = Some(candidate);
        Ok(took)
    }
}

/// Answers the questions of all benches in which candidates follow one another.
pub(crate) fn serve<S: Stands>(
    context: Context,
    mut asked: Asked,
) -> BoxFuture<'static, Result<()>> {
    async move {
        let mut queue = Queue::<S>::new(&context, "");
        while let Some(words) = asked.next().await? {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            asked.answer(answer(&mut queue, &words).await)?;
        }
        Ok(())
    }
    .boxed()
}

async fn answer<S: Stands>(queue: &mut Queue<S>, words: &[&str]) -> Result<Vec<f64>> {
    match *words {
        ["gather", election, count] => {
            // The former queue ends with its connections.
            *queue = Queue::new(&queue.context, election);
            queue.gather(count.parse()?).await?;
            Ok(Vec::new())
        }
        ["ttl", seconds] => {
            queue.context.ttl = Duration::from_secs(seconds.parse()?);
            Ok(Vec::new())
        }
        ["handover"] => Ok(vec![nanos(queue.handover().await?)]),
        ["allocations"] => Ok(vec![allocations()]),
        ["alone", election] => {
            let (elected, resigned) = queue.alone(election).await?;
            Ok(vec![nanos(elected), nanos(resigned)])
        }
        // A queue can be shared by many processes. Moments are read from the wall clock, which the processes share too.
        ["stand", election, count] => {
            election.clone_into(&mut queue.election);
            let candidate = S::connect(&queue.context, count.parse()?).await?;
            queue.join(candidate).await?;
            Ok(Vec::new())
        }
        ["lead"] => {
            let at = queue.first()?.lead().await?;
            Ok(vec![wall(at)?])
        }
        _ => bail!("no question {words:?}"),
    }
}

/// Returns the number of allocations of this process.
fn allocations() -> f64 {
    let stats = INSTRUMENTED_SYSTEM.stats();
    (stats.allocations + stats.reallocations) as f64
}

/// Converts a moment of this process to the wall clock, in nanoseconds; a quarter of a microsecond is lost.
fn wall(at: Instant) -> Result<f64> {
    let ago = nanos(at.elapsed());
    Ok(wall_now()? - ago)
}

/// Returns the present moment by the clock that all processes share, in nanoseconds.
pub(crate) fn wall_now() -> Result<f64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(nanos(now))
}
