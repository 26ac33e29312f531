//! Takes the steps of the walk, waits for their expected output, and distinguishes a slow machine from a faulty
//! election.

use std::fmt;
use std::time::Duration;

use eldest::BoxError;
use eldest_testing::eventually;

use crate::composed::{Composed, ETCD_THAT_STAYS, Line, NODES, Said};
use crate::front::{Callers, now, sees_only};
use crate::lab::Result;
use crate::members::Key;
use crate::pulse::Pulse;
use crate::steps::{Step, alike, steps};

/// How long a node waits for an answer of etcd, at that TTL.
const ANSWER: Duration = Duration::from_millis(300);
/// The limit for containers and their output.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two readings of the output.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) const UP: &str = "docker-compose up -d";
/// Commands that only read, and may therefore be repeated.
const ASKS: [&str; 3] = [
    "docker-compose logs",
    "docker-compose exec -T",
    "curl -s http:",
];

/// An event that came later than the page says, which is no fault of the election if the machine was slow.
#[derive(Debug)]
pub(crate) struct Late(String);

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Late {}

/// One walk.
pub(crate) struct Walk {
    pub(crate) demo: Composed,
    pub(crate) steps: std::vec::IntoIter<Step>,
    pub(crate) pulse: Option<Pulse>,
    pub(crate) callers: Option<Callers>,
    /// When the last command was begun, how many lines there were before it, and how often a lease had been lost.
    begun: Duration,
    before: (usize, usize),
    /// The output of the last command.
    pub(crate) output: String,
    /// The frozen node, whose lease may be lost.
    pub(crate) frozen: Option<String>,
    /// The time since which no lease can be renewed.
    pub(crate) without_quorum: Option<Duration>,
}

impl Walk {
    pub(crate) async fn new(program: &str, kind: &str) -> Result<Self> {
        Ok(Self {
            demo: Composed::new(program, kind).await?,
            steps: steps().into_iter(),
            pulse: None,
            callers: None,
            begun: now(),
            before: (0, 0),
            output: String::new(),
            frozen: None,
            without_quorum: None,
        })
    }

    pub(crate) fn part(&self, name: &str) -> &str {
        &self.demo.parts[name]
    }

    /// Returns the nodes that lost a lease without a cause in the walk.
    fn lost(&self, said: &Said) -> Vec<&'static str> {
        let quorum = self.without_quorum.is_none();
        let lost = said.lost.iter();
        let lost = lost.filter(|(node, gone)| {
            // Without a quorum a lost lease is expected, unless the lease was already gone when the quorum returned.
            (quorum || *gone) && self.frozen.as_deref() != Some(node)
        });
        lost.map(|(node, _)| *node).collect()
    }

    /// Returns the lines since the last command.
    pub(crate) async fn news(&self) -> Result<Vec<Line>> {
        Ok(self.demo.said().await?.lines.split_off(self.before.0))
    }

    /// Takes the page's next step, which must be that command, and waits for the output or the workers' lines that the
    /// page shows after it.
    pub(crate) async fn step(&mut self, command: &str) -> Result<Vec<Line>> {
        let step = self.steps.next().unwrap_or_default();
        assert_eq!(step.command, command, "the page and its test differ");
        self.begun = now();
        if command != UP {
            let said = self.demo.said().await?;
            self.before = (said.lines.len(), self.lost(&said).len());
        }
        let asks = ASKS.iter().any(|start| command.starts_with(start));
        if !asks {
            self.output = self.demo.run(command)?;
        }
        if command == UP {
            self.meet().await?;
        }
        let lines = step.lines.iter().map(|line| alike(&self.demo.cast(line)));
        let wanted: Vec<String> = lines.collect();
        let mut missing = wanted.clone();
        let mut refused = None;
        let found = eventually(PATIENCE, "all lines", async || {
            if asks {
                match self.demo.run(command) {
                    Ok(output) => self.output = output,
                    Err(error) => {
                        refused = Some(error);
                        return None;
                    }
                }
            }
            let said = self.demo.said().await.ok()?;
            let news = said.lines[self.before.0..].to_vec();
            let texts = news.iter().map(|line| line.text.as_str());
            let texts: Vec<String> = texts.chain(self.output.lines()).map(alike).collect();
            missing.clone_from(&wanted);
            missing.retain(|line| !texts.contains(line));
            // A leader other than the page's does not give way to it.
            let mut leads = news.iter().filter(|line| line.token().is_some());
            let astray = leads.any(|line| !wanted.contains(&alike(&line.text)));
            if missing.is_empty() || astray || self.lost(&said).len() > self.before.1 {
                return Some(news);
            }
            tokio::time::sleep(LOOK).await;
            None
        });
        match (found.await, refused) {
            (Ok(news), _) if missing.is_empty() => Ok(news),
            (Err(error), Some(refused)) => Err(format!("{error}: {refused}").into()),
            (found, None | Some(_)) => {
                let found = found.err().map(|error| format!("{error}; "));
                let (found, output) = (found.unwrap_or_default(), self.output.trim());
                let what = format!("{command}: {found}missing {missing:?}, printed {output:?}");
                Err(Late(what).into())
            }
        }
    }

    /// Waits after `up` until all three nodes are in the queue, and learns their order.
    async fn meet(&mut self) -> Result {
        self.demo.find()?;
        self.pulse = Some(Pulse::start(self.demo.client(ETCD_THAT_STAYS).await?).await?);
        let queue = eventually(PATIENCE, "three nodes are in line", async || {
            let queue = self.demo.queue().await.ok();
            queue.filter(|queue| queue.len() == NODES.len())
        });
        let queue = queue.await?.into_iter().map(|key| key.node);
        self.demo.parts = NODES.into_iter().zip(queue).collect();
        Ok(())
    }

    /// Waits until exactly the page's nodes are in the queue in that order, and the eldest is the leader with that
    /// token.
    pub(crate) async fn wait_for_queue(
        &self,
        parts: &[&str],
        token: Option<i64>,
    ) -> Result<Vec<Key>> {
        let wanted: Vec<&str> = parts.iter().map(|part| self.part(part)).collect();
        let mut last = Vec::new();
        let found = eventually(PATIENCE, format!("the queue is {wanted:?}"), async || {
            last = self.demo.queue().await.ok()?;
            let order = last.iter().map(|key| &*key.node);
            let is_so = order.eq(wanted.iter().copied());
            let is_lost = async || Some(self.lost(&self.demo.said().await.ok()?));
            if is_so || is_lost().await?.len() > self.before.1 {
                return Some(is_so);
            }
            tokio::time::sleep(LOOK).await;
            None
        });
        let found = found.await;
        let eldest = last.first().map(|key| key.create_revision);
        match found {
            Ok(true) if eldest == token => Ok(last),
            Ok(true) => Err(format!("{token:?} leads, but this is the queue: {last:?}").into()),
            Ok(false) => Err(format!("the queue is {last:?}, not {wanted:?}").into()),
            Err(error) => Err(format!("{error}; it is {last:?}").into()),
        }
    }

    pub(crate) fn callers(&self) -> &Callers {
        self.callers.as_ref().expect("callers")
    }

    /// Fails if the front gave no answer for longer than `bound`; the callers' answers count from number `from` on.
    pub(crate) fn answered(&self, what: &str, from: usize, bound: Duration) -> Result {
        let gap = self.callers().longest_gap(from);
        println!("{what}: {gap:?} without an answer");
        in_time(&format!("{what}: an answer"), gap, bound)
    }

    /// Waits until the front reaches that node, and considers only that node able to serve requests.
    pub(crate) async fn reach(&self, node: &str) -> Result {
        let stats = self.demo.port("front", 8404)?;
        let reached = async {
            self.callers().reach(node).await?;
            sees_only(stats, node).await
        };
        reached
            .await
            .map_err(|error| Late(error.to_string()).into())
    }

    /// Checks what no slow machine excuses: answers of two leaders, falling tokens, or a candidate older than the
    /// leader.
    pub(crate) async fn judge(&self) -> Result {
        if let Some(callers) = &self.callers {
            callers.judge()?;
        }
        let said = self.demo.said().await?;
        let led = said.lines.iter().filter(|line| line.token().is_some());
        let led: Vec<&Line> = led.collect();
        let mut pairs = led.windows(2);
        if let Some(pair) = pairs.find(|pair| pair[1].token() <= pair[0].token()) {
            return Err(format!("tokens fall: {pair:?}").into());
        }
        // A key older than a leader's cannot appear later: it existed when that leader was elected.
        let queue = self.demo.queue().await.unwrap_or_default();
        match (led.last(), queue.first()) {
            (Some(led), Some(key)) if led.token() > Some(key.create_revision) => {
                Err(format!("{led:?}, but somebody is older: {queue:?}").into())
            }
            _ => Ok(()),
        }
    }

    /// Describes how etcd, or this machine, was too slow for the nodes since the last command, if it was.
    fn slow(&self) -> Option<String> {
        let pulse = self.pulse.as_ref()?;
        let (late, silent) = match self.without_quorum {
            None => (pulse.lateness(self.begun), pulse.silence(self.begun)),
            // Without a quorum, silence of etcd is expected.
            Some(cut) => {
                let back = pulse.answered(self.begun.max(cut));
                let silent = back.map(|back| pulse.silence(back));
                (pulse.lateness(cut), silent.unwrap_or_default())
            }
        };
        println!(
            "since the last command etcd was silent for {silent:?}, this test late by {late:?}"
        );
        (late.max(silent) > ANSWER)
            .then(|| format!("etcd was silent for {silent:?}, this test late by {late:?}"))
    }

    /// Returns the reason if the machine may be at fault rather than the election; the caller prints it.
    pub(crate) async fn excuse(&self, error: &BoxError) -> Result<Option<String>> {
        self.judge().await?;
        let lost = self.lost(&self.demo.said().await?);
        let lost = lost.get(self.before.1..).unwrap_or_default();
        if !lost.is_empty() {
            println!("a lease was lost by {lost:?}");
        }
        let may_be = !lost.is_empty() || error.is::<Late>();
        Ok(self.slow().filter(|_| may_be))
    }
}

/// Fails if `took` exceeds `bound`.
pub(crate) fn in_time(what: &str, took: Duration, bound: Duration) -> Result {
    if took <= bound {
        return Ok(());
    }
    Err(Late(format!("{what} took {took:?}, {bound:?} at most")).into())
}

/// Fails if there is any line.
pub(crate) fn silent(what: &str, news: &[Line]) -> Result {
    if news.is_empty() {
        return Ok(());
    }
    Err(Late(format!("{what}: {news:?}")).into())
}

pub(crate) fn only<'a>(lines: &'a [Line], node: &str, words: &str) -> Result<&'a Line> {
    let says = |line: &&Line| line.node == node && line.text.contains(words);
    let found: Vec<&Line> = lines.iter().filter(says).collect();
    match found[..] {
        [line] => Ok(line),
        _ => Err(format!("{node} says {words:?} not once, but {found:?}").into()),
    }
}
