//! Runs one node: a candidate in the election that acts as leader while it leads, and reports every event.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use eldest::{
    Candidate, Election, ErrorKind, Leadership, Op, Session, SessionOptions, Status, Term,
};
use eldest_testing::history::{Outcome, Recorder};
use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::args::{ELECTION, Setup, TTL};
use crate::events::{Event, Said};

/// The commands that the demo may write to a node's input, one a line. The end of the input ends the node.
pub(crate) const RESIGN: &str = "resign";
/// The command to write with the guard of the last term, without checking whether it is still valid.
pub(crate) const WRITE_LATE: &str = "write late";

/// How often a leader checks that it still leads.
const CHECK: Duration = Duration::from_millis(20);
/// How often a leader writes.
const WRITE: Duration = Duration::from_millis(200);
/// How long to wait for etcd in requests that do not use the library.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) async fn run(setup: Setup) -> Result<()> {
    die_with_the_demo();
    let options = SessionOptions::new(&setup.name)
        .namespace(&setup.namespace)
        .ttl(TTL)
        .grace(TTL / 10);
    let session = Session::connect(&setup.endpoints, options).await?;
    let election = session.election(ELECTION)?;
    let node = Node {
        client: Client::connect(&setup.endpoints, None).await?,
        clock: Recorder::boottime(),
        setup,
        value: None,
        term: None,
        said_invalid: false,
    };
    node.take_part(&election).await?;
    session.close().await?;
    Ok(())
}

struct Node {
    setup: Setup,
    client: Client,
    clock: Recorder,
    /// The last written number, if it is certain.
    value: Option<u64>,
    /// The present or last term.
    term: Option<Term>,
    said_invalid: bool,
}

impl Node {
    /// Takes part until the input ends.
    async fn take_part(mut self, election: &Election) -> Result<()> {
        let mut commands = BufReader::new(tokio::io::stdin()).lines();
        loop {
            let candidate = election.campaign().await.context("campaigning")?;
            if self.candidacy(candidate, &mut commands).await?.is_none() {
                return Ok(());
            }
            // The node resigned, and becomes a candidate again.
        }
    }

    /// Runs one candidacy, with all its terms. Returns `None` if the input ended.
    async fn candidacy(
        &mut self,
        mut candidate: Candidate,
        commands: &mut Lines<BufReader<Stdin>>,
    ) -> Result<Option<()>> {
        let mut status = candidate.subscribe();
        status.mark_changed();
        let mut leadership: Option<Leadership> = None;
        let mut checks = interval(CHECK);
        let mut writes = interval(WRITE);
        checks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        writes.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let lost = leadership.as_ref().map(|leading| leading.lost());
            tokio::select! {
                // The order matters: a leader that was frozen first checks whether it still leads.
                biased;
                _ = checks.tick() => self.check()?,
                () = async { lost.unwrap_or_default().cancelled().await }, if leadership.is_some() => {
                    self.check()?;
                    if let Some(leading) = leadership.take() {
                        let reason = leading.lost_reason().map_or("unknown", |reason| reason.as_str());
                        self.report(Said::Lost { token: leading.fencing_token(), reason: reason.to_owned() })?;
                        // From here on the node does not act as leader, so it makes no more checks. Dropping the term
                        // lets the candidate join again.
                        self.said_invalid = true;
                    }
                }
                line = commands.next_line() => match line?.as_deref() {
                    None => return Ok(None),
                    Some(RESIGN) => if let Some(leading) = leadership.take() {
                        self.report(Said::Resigns { token: leading.fencing_token() })?;
                        self.term = None;
                        leading.resign().await.context("resigning")?;
                        return Ok(Some(()));
                    },
                    Some(WRITE_LATE) => self.write_late().await?,
                    Some(other) => self.report(Said::Error { text: format!("unknown command: {other}") })?,
                },
                changed = status.changed() => {
                    changed.context("the session is gone")?;
                    let now = *status.borrow_and_update();
                    if let Status::Waiting { ahead, .. } = now {
                        self.report(Said::Queued { ahead })?;
                    }
                }
                elected = candidate.elected(), if leadership.is_none() => {
                    let leading = elected?;
                    self.report(Said::Elected { token: leading.fencing_token() })?;
                    self.term = Some(leading.term());
                    self.said_invalid = false;
                    self.value = None;
                    leadership = Some(leading);
                    self.check()?;
                }
                _ = writes.tick(), if leadership.is_some() => self.write().await?,
            }
        }
    }

    /// Checks whether the node may act as leader, until the answer is no.
    fn check(&mut self) -> Result<()> {
        let Some(term) = self.term.as_ref().filter(|_| !self.said_invalid) else {
            return Ok(());
        };
        let before = self.clock.now();
        let valid = term.is_valid();
        // A process that is stopped between check and stamp would otherwise seem to lead while it did nothing.
        let at = if valid { before } else { self.clock.now() };
        let checked = Said::Checked {
            token: term.fencing_token(),
            valid,
            until: term.valid_until().since_boot(),
        };
        self.said_invalid = !valid;
        self.report_at(at, checked)
    }

    /// Raises the counter by one, fenced.
    async fn write(&mut self) -> Result<()> {
        let Some(term) = self.term.clone() else {
            return Ok(());
        };
        let token = term.fencing_token();
        let Some(value) = self.known_value().await else {
            return Ok(());
        };
        if !term.is_valid() {
            return self.report(Said::NotSent { token });
        }
        self.value = None;
        self.report_sent(token)?;
        let outcome = match term.txn([self.put(value + 1)]).await {
            Ok(_) => {
                self.value = Some(value + 1);
                Outcome::Admitted { value: value + 1 }
            }
            Err(error) if error.kind() == ErrorKind::FenceLost => Outcome::Refused,
            Err(_) => Outcome::Unknown,
        };
        self.report(Said::Wrote {
            token,
            outcome,
            late: false,
        })
    }

    /// Reports a write before it is sent: a node that is killed may not live to report its outcome.
    fn report_sent(&self, token: i64) -> Result<()> {
        self.report(Said::Wrote {
            token,
            outcome: Outcome::Sent,
            late: false,
        })
    }

    /// Acts like a careless leader: it writes with its last term's guard, whatever `is_valid` says.
    async fn write_late(&mut self) -> Result<()> {
        let Some(term) = self.term.clone() else {
            let text = "it never led, so it has nothing to write with".to_owned();
            return self.report(Said::Error { text });
        };
        self.check()?;
        let token = term.fencing_token();
        match term.txn([self.put(0)]).await {
            Err(error) if error.kind() == ErrorKind::LeadershipLost => {
                self.report(Said::NotSent { token })?;
            }
            Ok(_) => self.report(Said::Error {
                text: "the library sent a write of a term that has ended".to_owned(),
            })?,
            Err(error) => self.report(Said::Error {
                text: error.to_string(),
            })?,
        }
        // The write bypasses the library, so only the guard can stop it.
        let guard = Compare::create_revision(term.key(), CompareOp::Equal, token);
        let options = PutOptions::new().with_lease(self.setup.lease);
        let put = TxnOp::put(self.setup.written_key(), "0", Some(options));
        let guarded = Txn::new().when([guard]).and_then([put]);
        self.report_sent(token)?;
        let outcome = match timeout(PATIENCE, self.client.kv_client().txn(guarded)).await {
            Ok(Ok(answer)) if answer.succeeded() => Outcome::Admitted { value: 0 },
            Ok(Ok(_)) => Outcome::Refused,
            Ok(Err(_)) | Err(_) => Outcome::Unknown,
        };
        self.report(Said::Wrote {
            token,
            outcome,
            late: true,
        })
    }

    fn put(&self, value: u64) -> Op {
        Op::put_with_lease(
            self.setup.written_key(),
            value.to_string(),
            self.setup.lease,
        )
    }

    /// Returns the number that a leader wrote last.
    async fn known_value(&self) -> Option<u64> {
        if self.value.is_some() {
            return self.value;
        }
        let mut kv = self.client.kv_client();
        let read = timeout(PATIENCE, kv.get(self.setup.written_key(), None)).await;
        match read.ok()?.ok()?.kvs().first() {
            Some(kv) => kv.value_str().ok()?.parse().ok(),
            None => Some(0),
        }
    }

    fn report(&self, said: Said) -> Result<()> {
        self.report_at(self.clock.now(), said)
    }

    /// Reports an event at a time. Fails once the demo is gone, which ends the node.
    fn report_at(&self, at: Duration, said: Said) -> Result<()> {
        let node = self.setup.name.clone();
        let line = Event { at, node, said }.to_line()?;
        let mut out = std::io::stdout().lock();
        out.write_all(line.as_bytes())?;
        Ok(out.flush()?)
    }
}

/// Makes the kernel kill this process with the demo, because a frozen process would not see the end of its input.
fn die_with_the_demo() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        // Otherwise a node that is frozen when the demo is killed would stay until somebody continues it.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
}
