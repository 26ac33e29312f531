//! Writes events to the history's file, and samples whether each term is valid, even while the runtime is blocked.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use anyhow::{Context, Result};
use eldest::{LostReason, Session, SessionOptions, Term};
use eldest_testing::history::{Outcome, Recorder, Resources, What};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use super::{Counter, Event, Write};
use crate::config::Config;

/// How often a term's validity is sampled.
const SAMPLE: Duration = Duration::from_millis(10);
/// How long the release of the last resources may take in the background: if a name server does not answer, the
/// system's resolver keeps its thread for two tries of five seconds.
const SETTLE: Duration = Duration::from_secs(12);

/// The history of this node, if one is wanted.
#[derive(Clone)]
pub(crate) struct History {
    book: Option<Arc<Book>>,
    /// The election whose events are recorded.
    election: Arc<str>,
}

struct Book {
    recorder: Recorder,
    node: String,
    held: Mutex<Resources>,
    joined: Mutex<BTreeSet<i64>>,
    condemned: Mutex<BTreeSet<i64>>,
    terms: Mutex<Vec<Sampled>>,
}

struct Sampled {
    election: Arc<str>,
    term: Term,
    /// True once an invalid sample was recorded; further ones would add nothing.
    ended: bool,
}

/// The endpoint of a session that is closed before it needs one.
const NOWHERE: &str = "http://127.0.0.1:1";

impl History {
    pub(crate) async fn open(config: &Config) -> Result<Self> {
        let election = config.election.as_str().into();
        let Some(path) = &config.history else {
            let book = None;
            return Ok(Self { book, election });
        };
        let recorder = Recorder::boottime().to_file(path);
        let recorder = recorder.with_context(|| format!("HISTORY={}", path.display()))?;
        // The library's watchdog is one thread per process, and stays: it belongs to the baseline.
        let first = Session::connect_lazy([NOWHERE], SessionOptions::new(&config.name))?;
        first.close().await?;
        drop(first);
        let until = Instant::now() + SETTLE;
        while held().tasks > 0 && Instant::now() < until {
            sleep(SAMPLE).await;
        }
        let book = Arc::new(Book {
            recorder,
            node: config.history_name.clone(),
            held: Mutex::default(),
            joined: Mutex::default(),
            condemned: Mutex::default(),
            terms: Mutex::default(),
        });
        let sampled = Arc::downgrade(&book);
        std::thread::Builder::new()
            .name("sampler".to_owned())
            .spawn(move || sample(&sampled))?;
        let book = Some(book);
        Ok(Self { book, election })
    }

    /// Returns the history of that partition, which is an election of its own there.
    pub(crate) fn of_partition(&self, number: u32) -> Self {
        Self {
            book: self.book.clone(),
            election: super::partition_name(&self.election, number).into(),
        }
    }

    pub(crate) fn record(&self, event: Event<'_>) {
        if let Some(book) = &self.book {
            book.record(&self.election, event);
        }
    }

    /// Records the last entry: the resources that the process holds at its end.
    pub(crate) async fn finish(self) {
        let Some(book) = self.book else {
            return;
        };
        // Terms are handles of the session, so they are dropped before the count.
        lock(&book.terms).clear();
        let before = *lock(&book.held);
        let until = Instant::now() + SETTLE;
        while exceeds(held(), before) && Instant::now() < until {
            sleep(SAMPLE).await;
        }
        book.write(&self.election, What::Final(held()));
    }
}

impl Book {
    fn record(&self, election: &Arc<str>, event: Event<'_>) {
        let note = |what| self.write(election, what);
        match event {
            Event::Baseline => {
                let held = held();
                *lock(&self.held) = held;
                note(What::Baseline(held));
            }
            Event::Joined(member) => {
                let create_revision = member.create_revision();
                if lock(&self.joined).insert(create_revision) {
                    let key = member.key().escape_ascii().to_string();
                    note(What::Joined {
                        key,
                        create_revision,
                    });
                }
            }
            Event::Elected(term) => {
                note(What::Elected {
                    token: term.fencing_token(),
                });
                let term = term.clone();
                lock(&self.terms).push(Sampled {
                    election: Arc::clone(election),
                    term,
                    ended: false,
                });
            }
            Event::Lost(term) => {
                let reason = term.lost_reason().map_or("unknown", LostReason::as_str);
                let (token, reason) = (term.fencing_token(), reason.to_owned());
                note(What::LostToken { token, reason });
            }
            Event::Released(term) => note(What::Released {
                token: term.fencing_token(),
            }),
            Event::Wrote(counter, token, write) => {
                let outcome = match write {
                    Write::Sent => Outcome::Sent,
                    Write::Admitted(value) => Outcome::Admitted { value },
                    Write::Refused => Outcome::Refused,
                    Write::Unknown => Outcome::Unknown,
                };
                let what = What::FencedWrite { token, outcome };
                match counter {
                    Counter::Etcd => note(what),
                    // A history has one counter for each election, so the register has a name of its own.
                    Counter::Register => {
                        let election = super::register_name(election);
                        self.recorder.record(self.node.as_str(), election, what);
                    }
                }
            }
            Event::Condemned(lease) => {
                if lock(&self.condemned).insert(lease) {
                    note(What::Condemned { lease });
                }
            }
            Event::Left => note(What::Left),
        }
    }

    fn write(&self, election: &str, what: What) {
        self.recorder.record(self.node.as_str(), election, what);
    }

    /// Samples a term. A valid sample has the time before the check, an invalid one the time after it: a process that
    /// is stopped in between did nothing.
    fn sample(&self, sampled: &mut Sampled) {
        let token = sampled.term.fencing_token();
        let before = self.recorder.now();
        if sampled.term.is_valid() {
            let (node, election) = (self.node.as_str(), &*sampled.election);
            self.recorder
                .record_at(before, node, election, What::Valid { token });
        } else if !sampled.ended {
            sampled.ended = true;
            let election = Arc::clone(&sampled.election);
            self.write(&election, What::Invalid { token });
        }
    }
}

/// Samples on a thread of its own, so that a node whose runtime is blocked is sampled too.
fn sample(book: &Weak<Book>) {
    while let Some(book) = book.upgrade() {
        for sampled in lock(&book.terms).iter_mut() {
            book.sample(sampled);
        }
        drop(book);
        std::thread::sleep(SAMPLE);
    }
}

/// Counts the resources that this process holds; zero for those that this system does not report.
fn held() -> Resources {
    let entries =
        |folder: &str| std::fs::read_dir(Path::new(folder)).map_or(0, |found| found.count() as u64);
    Resources {
        tasks: Handle::current().metrics().num_alive_tasks() as u64,
        threads: entries("/proc/self/task"),
        fds: entries("/proc/self/fd"),
        ..Resources::default()
    }
}

fn exceeds(now: Resources, before: Resources) -> bool {
    now.tasks > before.tasks || now.threads > before.threads || now.fds > before.fds
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
