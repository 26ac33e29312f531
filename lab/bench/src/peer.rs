//! Exchanges questions and answers with a peer process. A question is a line of words on its stdin, an answer is `ok`
//! and numbers on its stdout. The peer ends when its stdin closes.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines, Stdin};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// The TTL of leases, so long that renewals do not count.
pub(crate) const TTL: Duration = Duration::from_secs(60);

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// How long a peer may take to end by itself.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// The arguments with which a peer is started.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    /// The peer whose calls are measured.
    pub(crate) peer: String,
    pub(crate) endpoints: Vec<String>,
    /// The TTL of the sessions' leases.
    pub(crate) ttl: Duration,
}

impl Context {
    pub(crate) async fn client(&self) -> Result<etcd_client::Client> {
        let options = etcd_client::ConnectOptions::new()
            .with_require_leader(true)
            .with_connect_timeout(Duration::from_secs(5));
        Ok(etcd_client::Client::connect(&self.endpoints, Some(options)).await?)
    }

    /// Connects a client, and grants a lease that outlives the bench without renewals.
    pub(crate) async fn with_lease(&self) -> Result<(etcd_client::Client, i64)> {
        let mut client = self.client().await?;
        let ttl = TTL.as_secs() as i64 * 60;
        let lease = client.lease_grant(ttl, None).await?.id();
        Ok((client, lease))
    }
}

/// Returns the first number of an answer.
pub(crate) fn first(answer: &[f64]) -> Result<f64> {
    answer.first().copied().context("an answer without numbers")
}

/// The peer's side: receives questions.
pub(crate) struct Asked {
    lines: Lines<BufReader<Stdin>>,
    answers: std::io::Stdout,
}

impl Asked {
    /// Reads questions from this process' stdin and answers on its stdout.
    pub(crate) fn by_stdio() -> Self {
        Self {
            lines: BufReader::new(tokio::io::stdin()).lines(),
            answers: std::io::stdout(),
        }
    }

    /// Returns the words of the next question, or `None` at the end of the input.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<String>>> {
        let line = self.lines.next_line().await?;
        Ok(line.map(|line| line.split(' ').map(str::to_owned).collect()))
    }

    /// Answers the last question.
    pub(crate) fn answer(&mut self, numbers: Result<Vec<f64>>) -> Result<()> {
        let line = match numbers {
            Ok(numbers) => {
                let numbers = numbers.iter().map(|number| format!(" {number}"));
                format!("ok{}", numbers.collect::<String>())
            }
            Err(error) => format!("error {}", format!("{error:#}").replace('\n', " ")),
        };
        writeln!(self.answers, "{line}")?;
        Ok(self.answers.flush()?)
    }
}

/// The bench's side: a peer's process.
pub(crate) struct Peer {
    pub(crate) name: String,
    child: Child,
    questions: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    /// Starts `program` for that bench against these endpoints.
    pub(crate) async fn start(name: &str, program: OsString, words: &[&str]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(words).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let questions = child.stdin.take();
        let answers = child.stdout.take().context("its stdout")?;
        let mut peer = Self {
            name: name.to_owned(),
            child,
            questions,
            answers: BufReader::new(answers).lines(),
        };
        peer.answer().await?;
        Ok(peer)
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends a question, and waits for the answer.
    pub(crate) async fn ask(&mut self, question: &str) -> Result<Vec<f64>> {
        self.question(question).await?;
        let answer = self.answer().await;
        answer.with_context(|| format!("{}: {question}", self.name))
    }

    /// Does the same, and returns the first number of the answer.
    pub(crate) async fn number(&mut self, question: &str) -> Result<f64> {
        first(&self.ask(question).await?)
    }

    /// Sends a question; [`Peer::answer`] waits for the answer.
    pub(crate) async fn question(&mut self, question: &str) -> Result<()> {
        let questions = self.questions.as_mut().context("it has ended")?;
        questions
            .write_all(format!("{question}\n").as_bytes())
            .await?;
        Ok(questions.flush().await?)
    }

    pub(crate) async fn answer(&mut self) -> Result<Vec<f64>> {
        let line = tokio::time::timeout(PATIENCE, self.answers.next_line());
        let line = line
            .await
            .map_err(|_| anyhow!("no answer within {PATIENCE:?}"))??;
        let line = line.context("it has ended")?;
        let mut words = line.split(' ');
        match words.next() {
            Some("ok") => Ok(words.map(str::parse).collect::<Result<_, _>>()?),
            Some("error") => bail!("{}", line.trim_start_matches("error ")),
            _ => bail!("it said {line:?}"),
        }
    }

    /// Kills the process (SIGKILL).
    pub(crate) async fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Lets the process end by itself.
    pub(crate) async fn end(mut self) -> Result<()> {
        drop(self.questions.take());
        let ended = tokio::time::timeout(LAST_WORDS, self.child.wait()).await;
        if ended.is_err() {
            self.kill().await?;
        }
        Ok(())
    }
}

/// Lets the process end by itself if it can: a killed one leaves behind the programs that it has started.
impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.questions.take());
        let deadline = Instant::now() + LAST_WORDS;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
