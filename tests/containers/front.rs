//! Calls the demo's service `front` continuously, checks that only the leader answers, and measures gaps between
//! answers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eldest::BoxError;
use eldest_testing::eventually;
use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

type Result<T = ()> = std::result::Result<T, BoxError>;

/// The number of callers: more than one, so that a request to a frozen node does not hide when the others get answers
/// again.
const CALLERS: usize = 2;
/// The time between requests. A hundred requests each second would overload a small machine.
const BETWEEN: Duration = Duration::from_millis(50);
/// The longest wait for an answer before the next request.
const PATIENCE: Duration = Duration::from_secs(2);
/// The limit for events that should happen at once.
const SOON: Duration = Duration::from_secs(20);

/// An answer of a worker, with the permission that it reports. All times are since boot, because the worker's clock is
/// ours.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) node: String,
    pub(crate) token: i64,
    /// When the worker last read the clock.
    decided: Duration,
    /// The end of the worker's permission to act.
    until: Duration,
    sent: Duration,
    received: Duration,
}

/// Callers of the front, until this value is dropped.
pub(crate) struct Callers {
    answers: Arc<Mutex<Vec<Answer>>>,
    _calling: JoinSet<()>,
}

impl Callers {
    pub(crate) fn start(front: SocketAddr) -> Self {
        let answers = Arc::new(Mutex::new(Vec::new()));
        let mut calling = JoinSet::new();
        for _ in 0..CALLERS {
            calling.spawn(call(front, Arc::clone(&answers)));
        }
        Self {
            answers,
            _calling: calling,
        }
    }

    fn answers(&self) -> Vec<Answer> {
        self.answers.lock().expect("answers").clone()
    }

    /// Returns the number of answers up to now.
    pub(crate) fn count(&self) -> usize {
        self.answers.lock().expect("answers").len()
    }

    /// Waits until that node answers; returns its token.
    pub(crate) async fn reach(&self, node: &str) -> Result<i64> {
        Ok(
            eventually(SOON, format!("the front reaches {node}"), async || {
                let last = self.answers.lock().expect("answers").last().cloned()?;
                (last.node == node).then_some(last.token)
            })
            .await?,
        )
    }

    /// Waits until the front has answered for `long`, counted from now; returns whether that was under one token.
    pub(crate) async fn stay(&self, long: Duration) -> Result<bool> {
        let (from, begun) = (self.count(), now());
        eventually(long + SOON, "the front is answered", async || {
            let last = self.answers.lock().expect("answers").last().cloned()?;
            (last.received >= begun + long).then_some(())
        })
        .await?;
        let answers = self.answers().split_off(from.saturating_sub(1));
        Ok(answers
            .iter()
            .all(|answer| answer.token == answers[0].token))
    }

    /// Returns the longest time without an answer, from that number of answers on.
    pub(crate) fn longest_gap(&self, from: usize) -> Duration {
        let answers = self.answers().split_off(from.saturating_sub(1));
        let pairs = answers.windows(2);
        let gaps = pairs.map(|pair| pair[1].received.saturating_sub(pair[0].received));
        gaps.max().unwrap_or_default()
    }

    /// Checks that every answer came from the node that led by its own clock, and none from an earlier leader after a
    /// later one's.
    pub(crate) fn judge(&self) -> Result {
        let mut answers = self.answers();
        let mut nodes: BTreeMap<i64, String> = BTreeMap::new();
        for answer in &answers {
            let asked = answer.sent..=answer.received;
            let known = nodes.entry(answer.token).or_insert(answer.node.clone());
            let wrong = if answer.decided >= answer.until {
                "too late"
            } else if !asked.contains(&answer.decided) {
                "another's answer"
            } else if *known != answer.node {
                "two nodes answered under one token"
            } else {
                continue;
            };
            return Err(format!("{wrong}: {answer:?}").into());
        }
        answers.sort_by_key(|answer| answer.decided);
        let mut pairs = answers.windows(2);
        match pairs.find(|pair| pair[1].token < pair[0].token) {
            Some(falls) => {
                Err(format!("an earlier leader answered after a later one: {falls:?}").into())
            }
            None => Ok(()),
        }
    }

    /// Returns the latest time until which any worker that answered might act.
    pub(crate) fn permitted_until(&self) -> Duration {
        let answers = self.answers();
        let until = answers.iter().map(|answer| answer.until);
        until.max().unwrap_or_default()
    }
}

async fn call(front: SocketAddr, answers: Arc<Mutex<Vec<Answer>>>) {
    loop {
        let sent = now();
        let asked = async { read_answer(Asked::send(front, "/").await?, sent).await };
        if let Ok(Ok(Some(answer))) = timeout(PATIENCE, asked).await {
            answers.lock().expect("answers").push(answer);
        }
        sleep(BETWEEN).await;
    }
}

/// Returns the worker's answer, unless the worker or the front reported that it may not act.
async fn read_answer(asked: Asked, sent: Duration) -> Result<Option<Answer>> {
    let text = asked.answer().await?;
    if !text.starts_with("HTTP/1.1 200 ") {
        return Ok(None);
    }
    let (head, body) = text.split_once("\r\n\r\n").ok_or("no head")?;
    let header = |name: &str| -> Result<&str> {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        let value = lines.find_map(|(key, value)| (key == name).then_some(value));
        value.ok_or_else(|| format!("no {name} in {text}").into())
    };
    let time =
        |name: &str| -> Result<Duration> { Ok(Duration::from_nanos(header(name)?.parse()?)) };
    Ok(Some(Answer {
        node: body.split(' ').next().unwrap_or_default().to_owned(),
        token: header("fencing-token")?.parse()?,
        decided: time("answered-at")?,
        until: time("may-act-until")?,
        sent,
        received: now(),
    }))
}

/// A request that was sent, and that may be abandoned.
pub(crate) struct Asked(TcpStream);

impl Asked {
    pub(crate) async fn send(at: SocketAddr, path: &str) -> Result<Self> {
        let mut stream = TcpStream::connect(at).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        Ok(Self(stream))
    }

    /// Returns everything received until either side closes the connection; perhaps nothing.
    pub(crate) async fn answer(mut self) -> Result<String> {
        let mut text = Vec::new();
        let read = timeout(SOON, self.0.read_to_end(&mut text)).await;
        // A killed process resets its connections.
        let _ = read.map_err(|_| format!("no answer within {SOON:?}"))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Waits until the front considers only that node able to serve requests.
pub(crate) async fn sees_only(stats: SocketAddr, node: &str) -> Result {
    let mut last = String::new();
    let found = eventually(SOON, format!("the front sees {node} alone"), async || {
        last = Asked::send(stats, "/;csv")
            .await
            .ok()?
            .answer()
            .await
            .ok()?;
        let servers = last.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            (fields.first() == Some(&"leader") && fields.get(1) != Some(&"BACKEND"))
                .then(|| (fields[1].to_owned(), fields[17].to_owned()))
        });
        let up: Vec<String> = servers
            .filter(|(_, status)| status.starts_with("UP"))
            .map(|(server, _)| server)
            .collect();
        (up == [node]).then_some(())
    });
    let found = found.await;
    found.map_err(|error| format!("{error}: {last}").into())
}

/// Returns how often the front checks each node, by its configuration.
pub(crate) fn between_checks() -> Duration {
    let configuration = include_str!("../../deploy/haproxy.cfg");
    let (_, rest) = configuration.split_once(" inter ").expect("an interval");
    let (millis, _) = rest.split_once("ms").expect("in milliseconds");
    Duration::from_millis(millis.parse().expect("a number"))
}

/// Returns the time since boot, as the workers read it.
pub(crate) fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).expect("a clock after its start")
}
