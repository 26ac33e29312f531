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
use crate::stages;

/// How long ago a fresh successor joined.
const FRESH: Duration = Duration::from_millis(20);
/// The number of writes by other clients meanwhile.
const WRITES: u32 = 10;

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
    /// A candidate that joins now and then for a moment.
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

    /// Hands over. Returns the moment of the leader's decision to resign, the moment at which its successor knew, and
    /// the former leader.
    async fn handover(&mut self) -> Result<(Instant, Instant, S)> {
        let mut old = self.standing.pop_front().context("nobody stands")?;
        let next = self.first()?;
        let start = Instant::now();
        let (resigned, elected) = tokio::join!(old.resign(), next.lead());
        resigned?;
        Ok((start, elected?, old))
    }

    /// Returns how long a hand-over took, and its stages: until the driver has ended the term, until the successor's
    /// driver knows, and until the successor's caller knows.
    async fn stages(&mut self) -> Result<Vec<f64>> {
        stages::listen()?;
        let (start, led, old) = self.handover().await?;
        let (ended, elected) = stages::heard()?;
        self.join(old).await?;
        let moments = [start, ended, elected, led];
        let took = |pair: &[Instant]| nanos(pair[1].saturating_duration_since(pair[0]));
        let total = took(&[start, led]);
        Ok(std::iter::once(total)
            .chain(moments.windows(2).map(took))
            .collect())
    }

    /// Measures a hand-over to a candidate that joined a moment ago, while other clients wrote.
    async fn fresh(&mut self) -> Result<Duration> {
        let spare = match self.spare.take() {
            Some(spare) => spare,
            None => S::connect(&self.context, 2).await?,
        };
        let mut others = self.context.client().await?;
        self.join(spare).await?;
        for number in 0..WRITES {
            others.put(format!("others/{number}"), "", None).await?;
            tokio::time::sleep(FRESH / WRITES).await;
        }
        let (start, led, old) = self.handover().await?;
        self.spare = Some(old);
        Ok(led.saturating_duration_since(start))
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
        ["handover"] => {
            let (start, led, old) = queue.handover().await?;
            queue.join(old).await?;
            Ok(vec![nanos(led.saturating_duration_since(start))])
        }
        ["stages"] => queue.stages().await,
        ["allocations"] => Ok(vec![allocations()]),
        ["fresh"] => Ok(vec![nanos(queue.fresh().await?)]),
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
        ["resign"] => {
            let mut old = queue.standing.pop_front().context("nobody stands")?;
            let start = Instant::now();
            old.resign().await?;
            Ok(vec![wall(start)?])
        }
        _ => bail!("no question {words:?}"),
    }
}

/// Returns the number of allocations of this process.
pub(crate) fn allocations() -> f64 {
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
