//! The pods and the router of a test, and clients that check what they are answered.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use eldest::{Announcement, BoxError, CancellationToken, Session, SessionOptions};
use eldest_persons_example::{COUNT, PARTITIONS, route};
use eldest_testing::{Etcd, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

type Result<T = ()> = std::result::Result<T, BoxError>;

pub(crate) const TTL: Duration = Duration::from_secs(5);
const SOON: Duration = Duration::from_secs(40);
const CLIENTS: usize = 8;
const PERSONS: usize = 24;

/// Returns the options of a pod with that address.
pub(crate) fn options(name: &str, me: Announcement) -> SessionOptions {
    SessionOptions::new(name).ttl(TTL).announcement(me)
}

/// The etcd and the router that the pods share.
pub(crate) struct Town {
    pub(crate) etcd: Etcd,
    observer: Session,
    router: SocketAddr,
}

impl Town {
    pub(crate) async fn start(etcd: Etcd) -> Result<Self> {
        let options = SessionOptions::new("router").ttl(TTL);
        let observer = Session::connect([etcd.endpoint()], options).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let router = listener.local_addr()?;
        let session = observer.clone();
        tokio::spawn(async move {
            let never = CancellationToken::new();
            route(&session, listener, never)
                .await
                .expect("the router runs");
        });
        Ok(Self {
            etcd,
            observer,
            router,
        })
    }

    /// Waits until so many pods share all partitions.
    pub(crate) async fn settled(&self, pods: usize) -> Result {
        let shards = self.observer.partitions(PARTITIONS, COUNT)?;
        let least = COUNT as usize / pods;
        let settled = async || {
            let map = shards.map().await.ok()?;
            let mut all = map.members().iter();
            let each = all.all(|pod| map.partitions_of(pod).count() >= least);
            let is_whole = map.unowned().count() == 0;
            (map.members().len() == pods && each && is_whole).then_some(())
        };
        Ok(eventually(SOON, format!("{pods} pods share all"), settled).await?)
    }

    /// Waits until these pods have begun that many partitions prepared, and returns their status.
    pub(crate) async fn prepared(&self, pods: [&Pod; 2], begun: usize) -> Result<[Status; 2]> {
        let what = format!("{begun} partitions began prepared");
        Ok(eventually(SOON, what, async || {
            let status = [pods[0].status().await.ok()?, pods[1].status().await.ok()?];
            let prepared: usize = status.iter().map(|pod| pod.prepared).sum();
            (prepared >= begun).then_some(status)
        })
        .await?)
    }
}

/// A pod that runs.
pub(crate) struct Pod {
    pub(crate) session: Session,
    pub(crate) task: JoinHandle<anyhow::Result<()>>,
    address: SocketAddr,
    shutdown: CancellationToken,
}

impl Pod {
    pub(crate) async fn start(town: &Town, name: &str) -> Result<Self> {
        let endpoint = [town.etcd.endpoint()];
        Self::with(async |me| Session::connect(endpoint, options(name, me)).await).await
    }

    /// Starts a pod with the session that `connect` returns for an announcement.
    pub(crate) async fn with(
        connect: impl AsyncFnOnce(Announcement) -> eldest::Result<Session>,
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let session = connect(Announcement::default().with_address(address.to_string())).await?;
        let shutdown = CancellationToken::new();
        let (of_pod, stop) = (session.clone(), shutdown.clone());
        let task =
            tokio::spawn(
                async move { eldest_persons_example::Pod::run(&of_pod, listener, stop).await },
            );
        Ok(Self {
            session,
            task,
            address,
            shutdown,
        })
    }

    /// Asks the pod which partitions it serves.
    pub(crate) async fn status(&self) -> Result<Status> {
        let answer = ask(self.address, "GET", "/status", "").await?;
        let number = |name: &str| -> Result<usize> {
            let line = answer.body.lines().find_map(|line| line.strip_prefix(name));
            Ok(line.ok_or("it is missing")?.trim().parse()?)
        };
        Ok(Status {
            open: number("open")?,
            prepared: number("prepared")?,
            unprepared: number("unprepared")?,
        })
    }

    /// Waits until the pod has begun that many partitions.
    pub(crate) async fn begun(&self, partitions: usize) -> Result {
        let begun = async || {
            let status = self.status().await.ok()?;
            (status.prepared + status.unprepared >= partitions).then_some(())
        };
        Ok(eventually(SOON, format!("{partitions} have begun"), begun).await?)
    }

    pub(crate) async fn stop(self) -> Result {
        self.shutdown.cancel();
        self.task.await??;
        Ok(self.session.close().await?)
    }
}

/// The partitions of a pod.
pub(crate) struct Status {
    pub(crate) open: usize,
    pub(crate) prepared: usize,
    pub(crate) unprepared: usize,
}

struct Answer {
    status: u16,
    token: Option<i64>,
    body: String,
}

/// Sends one request over a connection of its own.
async fn ask(to: SocketAddr, method: &str, path: &str, body: &str) -> Result<Answer> {
    let mut stream = TcpStream::connect(to).await?;
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.0\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all((head + body).as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or("no answer")?;
    let status = head.split(' ').nth(1).ok_or("no status")?;
    let token = head.lines().find_map(|h| h.strip_prefix("fencing-token: "));
    Ok(Answer {
        status: status.parse()?,
        token: token.map(str::parse).transpose()?,
        body: body.to_owned(),
    })
}

/// An owner's answer, as a client saw it.
struct Seen {
    partition: u32,
    token: i64,
    sent: Instant,
    at: Instant,
}

/// The value of a person, as the only client that writes it knows it.
#[derive(Clone, Copy, Default)]
struct Known {
    /// The last value that was acknowledged, or read since; 0: none.
    acknowledged: u64,
    /// The last value that was sent: it may be stored.
    sent: u64,
}

/// Clients that write and read their persons all the time, and the answers that they saw.
pub(crate) struct Clients {
    tasks: Vec<JoinHandle<Result<Record>>>,
    answers: Arc<AtomicUsize>,
    stop: CancellationToken,
}

/// The answers that clients saw.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) failures: Vec<String>,
    seen: Vec<Seen>,
    known: BTreeMap<String, Known>,
}

impl Clients {
    pub(crate) fn start(town: &Town) -> Self {
        let (answers, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        let shards = town.observer.partitions(PARTITIONS, COUNT);
        let shards = shards.expect("the name and the count are valid");
        let tasks = (0..CLIENTS).map(|client| {
            let (answers, stop) = (Arc::clone(&answers), stop.clone());
            let (shards, router) = (shards.clone(), town.router);
            tokio::spawn(async move {
                let mut record = Record::default();
                for turn in 0.. {
                    if stop.is_cancelled() {
                        break;
                    }
                    let person = format!("{client}-{}", turn % PERSONS);
                    let partition = shards.partition_for(&person);
                    record.write(router, partition, &person).await?;
                    record.read(router, partition, &person).await?;
                    answers.fetch_add(2, Ordering::Relaxed);
                }
                Ok(record)
            })
        });
        Self {
            tasks: tasks.collect(),
            answers,
            stop,
        }
    }

    /// Waits until so many further requests have been answered.
    pub(crate) async fn answered(&self, more: usize) -> Result {
        let end = self.answers.load(Ordering::Relaxed) + more;
        let answered = async || (self.answers.load(Ordering::Relaxed) >= end).then_some(());
        Ok(eventually(SOON, format!("{more} more answers"), answered).await?)
    }

    pub(crate) async fn stop(self) -> Result<Record> {
        self.stop.cancel();
        let mut all = Record::default();
        for task in self.tasks {
            let one = task.await??;
            all.failures.extend(one.failures);
            all.seen.extend(one.seen);
            all.known.extend(one.known);
        }
        Ok(all)
    }
}

impl Record {
    async fn write(&mut self, router: SocketAddr, partition: u32, person: &str) -> Result {
        let known = self.known.entry(person.to_owned()).or_default();
        known.sent += 1;
        let value = known.sent;
        let body = value.to_string();
        let answer = self.send(router, partition, "PUT", person, &body);
        if let Some(answer) = answer.await? {
            assert_eq!((answer.status, answer.body), (200, body));
            self.knows(person, value);
        }
        Ok(())
    }

    async fn read(&mut self, router: SocketAddr, partition: u32, person: &str) -> Result {
        let Some(answer) = self.send(router, partition, "GET", person, "").await? else {
            return Ok(());
        };
        let value = match answer.status {
            404 => 0,
            _ => answer.body.parse()?,
        };
        let known = self.known[person];
        let possible = known.acknowledged..=known.sent;
        assert!(
            possible.contains(&value),
            "{person} is {value}, not {possible:?}"
        );
        self.knows(person, value);
        Ok(())
    }

    fn knows(&mut self, person: &str, value: u64) {
        self.known
            .entry(person.to_owned())
            .or_default()
            .acknowledged = value;
    }

    /// Returns the owner's answer; `None` after a failure, which it records.
    async fn send(
        &mut self,
        router: SocketAddr,
        partition: u32,
        method: &str,
        person: &str,
        body: &str,
    ) -> Result<Option<Answer>> {
        let sent = Instant::now();
        let answer = ask(router, method, &format!("/persons/{person}"), body).await?;
        if let Some(token) = answer.token {
            self.seen.push(Seen {
                partition,
                token,
                sent,
                at: Instant::now(),
            });
            return Ok(Some(answer));
        }
        let Answer { status, body, .. } = answer;
        let took = sent.elapsed();
        let failure = format!("{method} {person} after {took:?}: {status} {body}");
        self.failures.push(failure);
        Ok(None)
    }

    /// Checks that every acknowledged write is there, and that no two pods served a partition at once: once a client has an
    /// answer of a later owner, no request that is sent then is answered by an earlier one.
    pub(crate) async fn check(&self, town: &Town) -> Result {
        assert_eq!(self.known.len(), CLIENTS * PERSONS, "each was written");
        for (person, known) in &self.known {
            let answer = ask(town.router, "GET", &format!("/persons/{person}"), "").await?;
            let value: u64 = answer.body.parse()?;
            let possible = known.acknowledged..=known.sent;
            assert!(
                possible.contains(&value),
                "{person} is {value}, not {possible:?}"
            );
        }
        let mut moved = 0;
        for partition in 0..COUNT {
            let of_it = self.seen.iter().filter(|one| one.partition == partition);
            let mut by_answer: Vec<&Seen> = of_it.collect();
            let mut by_request = by_answer.clone();
            by_answer.sort_by_key(|one| one.at);
            by_request.sort_by_key(|one| one.sent);
            let mut answered = by_answer.iter().peekable();
            let mut newest = 0;
            for request in by_request {
                while let Some(earlier) = answered.next_if(|one| one.at < request.sent) {
                    newest = newest.max(earlier.token);
                }
                let token = request.token;
                assert!(
                    token >= newest,
                    "{partition}: {token} served after {newest}"
                );
            }
            let tokens = by_answer.iter().map(|one| one.token);
            let first = tokens.clone().min();
            moved += usize::from(first.is_some() && first != tokens.max());
        }
        println!("{} answers, {moved} partitions moved", self.seen.len());
        assert!(moved >= 4, "{moved} partitions moved under requests");
        Ok(())
    }
}
