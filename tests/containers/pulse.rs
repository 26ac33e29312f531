//! Measures, without the library, how slow etcd and this machine are for the nodes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use eldest::BoxError;
use etcd_client::Client;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::front::now;

/// The time between requests: short enough for several within a node's request timeout, long enough to cost little.
const BETWEEN: Duration = Duration::from_millis(100);
/// The time after which a request that was lost with a connection is abandoned and sent again.
const PATIENCE: Duration = Duration::from_secs(1);
/// A key outside every session's namespace.
const KEY: &str = "pulse";

/// Writes to etcd continuously, as any client might, until it is dropped.
pub(crate) struct Pulse {
    felt: Arc<Mutex<Felt>>,
    _feeling: JoinSet<()>,
}

/// The measurements. All times are since boot.
#[derive(Debug, Default)]
struct Felt {
    /// The times of etcd's answers.
    answers: Vec<Duration>,
    /// When this process continued after each pause that it had requested, and how late it was.
    late: Vec<(Duration, Duration)>,
}

impl Pulse {
    /// Returns after the first answer.
    pub(crate) async fn start(mut client: Client) -> Result<Self, BoxError> {
        client.put(KEY, "", None).await?;
        let felt = Arc::new(Mutex::new(Felt {
            answers: vec![now()],
            late: Vec::new(),
        }));
        let mut feeling = JoinSet::new();
        feeling.spawn(feel(client, Arc::clone(&felt)));
        Ok(Self {
            felt,
            _feeling: feeling,
        })
    }

    /// Returns the longest time without an answer of etcd since then, beyond the pause between two requests.
    pub(crate) fn silence(&self, since: Duration) -> Duration {
        let now = now();
        self.felt.lock().expect("what was felt").silence(since, now)
    }

    /// Returns when etcd first answered after that.
    pub(crate) fn answered(&self, after: Duration) -> Option<Duration> {
        let felt = self.felt.lock().expect("what was felt");
        felt.answers.iter().copied().find(|at| *at > after)
    }

    /// Returns the worst lateness of this process since then.
    pub(crate) fn lateness(&self, since: Duration) -> Duration {
        let felt = self.felt.lock().expect("what was felt");
        let late = felt.late.iter().filter(|(at, _)| *at >= since);
        late.map(|(_, late)| *late).max().unwrap_or_default()
    }
}

impl Felt {
    fn silence(&self, since: Duration, now: Duration) -> Duration {
        // Includes the last answer before it: a silence that began a moment before lasts since then.
        let from = self.answers.partition_point(|at| *at < since);
        let answers = self.answers[from.saturating_sub(1)..].iter().copied();
        let answers: Vec<Duration> = answers.chain([now]).collect();
        let pairs = answers
            .windows(2)
            .map(|pair| pair[1].saturating_sub(pair[0].max(since)));
        pairs.max().unwrap_or_default().saturating_sub(BETWEEN)
    }
}

async fn feel(mut client: Client, felt: Arc<Mutex<Felt>>) {
    loop {
        let asleep = Instant::now();
        sleep(BETWEEN).await;
        let late = asleep.elapsed().saturating_sub(BETWEEN);
        felt.lock().expect("what was felt").late.push((now(), late));
        let answer = timeout(PATIENCE, client.put(KEY, "", None)).await;
        if let Ok(Ok(_)) = answer {
            felt.lock().expect("what was felt").answers.push(now());
        }
    }
}

#[test]
fn silence_counts_before_the_first_and_after_the_last_answer() {
    let seconds = Duration::from_secs;
    let felt = Felt {
        answers: [10, 11, 14, 15].map(seconds).to_vec(),
        late: Vec::new(),
    };
    let silence = |since, now| felt.silence(seconds(since), seconds(now)) + BETWEEN;
    assert_eq!(silence(10, 15), seconds(3), "in between");
    assert_eq!(silence(13, 15), seconds(1), "counted from then on only");
    assert_eq!(silence(14, 15), seconds(1));
    assert_eq!(silence(14, 19), seconds(4), "it is silent still");
    assert_eq!(silence(17, 19), seconds(2), "and was before");
}
