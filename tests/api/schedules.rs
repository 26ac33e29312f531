//! Tests `Election::every`: which due times are run, on which node and how often, across hand-overs at the worst
//! moments.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use crate::common::{
    OnPort, Result, SOON, WHILE, keys, nothing_under, only_key, short, soon, stays,
};
use crate::running::Broken;
use eldest::sim::Scripted;
use eldest::{
    BoxError, CancellationToken, CatchUp, Delivery, Due, ErrorKind, Every, LostReason, Schedule,
    Session, Term,
};
use eldest_testing::{Proxy, eventually};
use etcd_client::Client;
use futures::future::try_join_all;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

const HOUR: Duration = Duration::from_secs(3600);
const RECORD: &str = "eldest/~schedule/e";

/// The wall clock of one or several nodes, in milliseconds.
#[derive(Clone)]
struct Wall(Arc<AtomicU64>);

impl Wall {
    fn at(hour: u64) -> Self {
        let wall = Self(Arc::default());
        wall.set(hour);
        wall
    }

    /// Sets the clock to one minute past that hour.
    fn set(&self, hour: u64) {
        let time = HOUR * u32::try_from(hour).expect("soon after 1970") + Duration::from_secs(60);
        let ms = u64::try_from(time.as_millis()).expect("soon after 1970");
        self.0.store(ms, Ordering::SeqCst);
    }

    fn env(&self) -> Scripted {
        let wall = Arc::clone(&self.0);
        Scripted {
            unix_time: Box::new(move || Duration::from_millis(wall.load(Ordering::SeqCst))),
            ..Scripted::real()
        }
    }
}

/// A due time whose work began, as the hour since 1970.
struct Began {
    hour: u64,
    repeated: bool,
    term: Term,
}

/// A node with an hourly schedule. Its work ends when the test permits it.
struct Node {
    proxy: Proxy,
    shutdown: CancellationToken,
    task: JoinHandle<eldest::Result<()>>,
    begins: mpsc::UnboundedReceiver<Began>,
    ends: Arc<Semaphore>,
}

impl Node {
    async fn start(
        etcd: &OnPort,
        identity: &str,
        wall: &Wall,
        rules: impl FnOnce(Every<'static>) -> Every<'static>,
    ) -> Result<Self> {
        let proxy = Proxy::start(etcd.endpoint()).await?;
        let options = short(identity).env(Arc::new(wall.env()));
        let session = Session::connect([proxy.endpoint()], options).await?;
        let every = rules(session.election("e")?.every(Schedule::interval(HOUR)?));
        let (tell, begins) = mpsc::unbounded_channel();
        let ends = Arc::new(Semaphore::new(0));
        let end = Arc::clone(&ends);
        let work = move |due: Due| {
            let since = due.at().duration_since(UNIX_EPOCH).expect("after 1970");
            let began = Began {
                hour: since.as_secs() / HOUR.as_secs(),
                repeated: due.is_repeated(),
                term: due.term(),
            };
            let (_, end) = (tell.send(began), Arc::clone(&end));
            async move {
                end.acquire().await?.forget();
                drop(due);
                Ok::<_, BoxError>(())
            }
        };
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(every.run(shutdown.clone(), work));
        Ok(Self {
            proxy,
            shutdown,
            task,
            begins,
            ends,
        })
    }

    /// Sets the wall clock to that hour, and to later ones until one is run: on a busy machine, a node that begins to
    /// lead only then may skip a due time.
    async fn begins_from(&mut self, wall: &Wall, first: u64) -> Result<Began> {
        for hour in first..first + 10 {
            wall.set(hour);
            let begins = tokio::time::timeout(SOON / 4, self.begins.recv());
            if let Ok(began) = begins.await {
                let began = began.ok_or("it runs")?;
                assert_eq!((began.hour, began.repeated), (hour, false));
                return Ok(began);
            }
        }
        Err("nothing is run at any hour".into())
    }

    async fn begins(&mut self) -> (u64, bool) {
        let began = soon("a due time begins", self.begins.recv()).await;
        let began = began.expect("it runs");
        (began.hour, began.repeated)
    }

    fn end(&self) {
        self.ends.add_permits(1);
    }

    async fn runs_nothing(&mut self) -> Result {
        // Longer than the time between two readings of the wall clock.
        let begins = &mut self.begins;
        stays(4 * WHILE, "nothing is run", async || begins.is_empty()).await
    }

    async fn stop(self) -> Result {
        self.shutdown.cancel();
        self.end();
        Ok(soon("run returns", self.task).await??)
    }
}

/// Waits until the record has that hour and progress.
async fn recorded(client: &mut Client, hour: u64, progress: &str) -> Result {
    let wanted = format!("{hour} {progress}");
    eventually(SOON, format!("the record is {wanted}"), async || {
        (record(client).await? == wanted).then_some(())
    })
    .await?;
    Ok(())
}

/// Returns the hour and the progress in the record.
async fn record(client: &mut Client) -> Option<String> {
    let key = keys(client, RECORD).await.pop()?;
    let value: serde_json::Value = serde_json::from_str(&key.value).ok()?;
    let hour = value["due_unix_ms"].as_u64()? / 3_600_000;
    Some(format!("{hour} {}", value["progress"].as_str()?))
}

/// Starts two nodes, of which the first leads, at hour 100.
async fn two(
    etcd: &OnPort,
    rules: impl Fn(Every<'static>) -> Every<'static>,
) -> Result<(Wall, Client, Node, Node)> {
    let (wall, mut client) = (Wall::at(100), etcd.client().await);
    let a = Node::start(etcd, "a", &wall, &rules).await?;
    recorded(&mut client, 100, "finished").await?;
    let b = Node::start(etcd, "b", &wall, &rules).await?;
    eventually(SOON, "b is a candidate", async || {
        (keys(&mut client, "eldest/e/").await.len() == 2).then_some(())
    })
    .await?;
    Ok((wall, client, a, b))
}

/// The successor repeats the interrupted hour 101 if the delivery rule requires it, and runs the next one.
async fn succeeds(b: &mut Node, wall: &Wall, delivery: Delivery) -> Result {
    if delivery == Delivery::AtLeastOnce {
        assert_eq!(b.begins().await, (101, true));
        b.end();
    }
    wall.set(102);
    assert_eq!(b.begins().await, (102, false), "{delivery:?}");
    b.end();
    Ok(())
}

const BOTH: [Delivery; 2] = [Delivery::AtMostOnce, Delivery::AtLeastOnce];

#[tokio::test]
async fn leader_runs_a_due_time_once_and_its_record_outlives_the_nodes() -> Result {
    let etcd = OnPort::start().await?;
    let (wall, mut client, mut a, mut b) = two(&etcd, |every| every).await?;
    wall.set(101);
    assert_eq!(a.begins().await, (101, false));
    recorded(&mut client, 101, "begun").await?;
    a.end();
    recorded(&mut client, 101, "finished").await?;
    a.stop().await?;
    b.runs_nothing().await?;
    wall.set(102);
    assert_eq!(b.begins().await, (102, false));
    b.end();
    recorded(&mut client, 102, "finished").await?;
    b.stop().await?;
    nothing_under(&mut client, "eldest/e/").await?;
    let record = only_key(&mut client, "eldest/").await;
    assert_eq!((&*record.path, record.lease), (RECORD, 0));
    Ok(())
}

#[tokio::test]
async fn a_run_whose_end_was_not_recorded_counts_as_interrupted() -> Result {
    let each = BOTH.map(|delivery| async move {
        let etcd = OnPort::start().await?;
        let (wall, mut client, mut a, mut b) = two(&etcd, |every| every.delivery(delivery)).await?;
        wall.set(101);
        assert_eq!(a.begins().await, (101, false));
        // The leader dies between the end of the work and the record.
        a.proxy.hold();
        a.end();
        succeeds(&mut b, &wall, delivery).await?;
        recorded(&mut client, 102, "finished").await?;
        // The delayed write arrives now, and changes nothing.
        a.proxy.heal();
        stays(WHILE, "the record is the successor's", async || {
            record(&mut client).await.as_deref() == Some("102 finished")
        })
        .await?;
        a.stop().await?;
        b.stop().await?;
        Ok::<_, BoxError>(())
    });
    try_join_all(each).await?;
    Ok(())
}

#[tokio::test]
async fn leader_without_confirmation_of_its_record_runs_nothing() -> Result {
    let each = BOTH.map(|delivery| async move {
        let etcd = OnPort::start().await?;
        let (wall, mut client, a, mut b) = two(&etcd, |every| every.delivery(delivery)).await?;
        a.proxy.hold_responses();
        wall.set(101);
        recorded(&mut client, 101, "begun").await?;
        succeeds(&mut b, &wall, delivery).await?;
        assert!(a.begins.is_empty(), "nobody ran what was not confirmed");
        a.proxy.heal();
        a.stop().await?;
        b.stop().await?;
        Ok::<_, BoxError>(())
    });
    try_join_all(each).await?;
    Ok(())
}

#[tokio::test]
async fn due_times_during_an_outage_are_caught_up_by_the_rule() -> Result {
    let rules = [
        (CatchUp::Skip, &[][..]),
        (CatchUp::Latest, &[2]),
        (CatchUp::All(2), &[1, 2]),
    ];
    let each = rules.map(|(rule, caught_up)| async move {
        let etcd = OnPort::start().await?;
        let (wall, mut client) = (Wall::at(100), etcd.client().await);
        let mut a = Node::start(&etcd, "a", &wall, |every| every.catch_up(rule)).await?;
        recorded(&mut client, 100, "finished").await?;
        a.ends.add_permits(10);
        let Began { hour, term, .. } = a.begins_from(&wall, 101).await?;
        recorded(&mut client, hour, "finished").await?;
        etcd.pause();
        soon("the term is lost", term.lost().cancelled()).await;
        wall.set(hour + 2);
        etcd.resume();
        eventually(SOON, "it leads again", async || {
            let keys = keys(&mut client, "eldest/e/").await;
            let [key] = &keys[..] else { return None };
            (key.created > term.fencing_token()).then_some(())
        })
        .await?;
        for later in caught_up {
            assert_eq!(a.begins().await, (hour + later, false), "{rule:?}");
        }
        a.runs_nothing().await?;
        a.begins_from(&wall, hour + 3).await?;
        a.stop().await?;
        Ok::<_, BoxError>(())
    });
    try_join_all(each).await?;
    Ok(())
}

#[tokio::test]
async fn wall_clock_jump_back_repeats_nothing_and_jump_forward_catches_up() -> Result {
    let etcd = OnPort::start().await?;
    let (wall, mut client) = (Wall::at(100), etcd.client().await);
    let mut a = Node::start(&etcd, "a", &wall, |every| every).await?;
    recorded(&mut client, 100, "finished").await?;
    a.ends.add_permits(10);
    wall.set(101);
    assert_eq!(a.begins().await, (101, false));
    recorded(&mut client, 101, "finished").await?;
    wall.set(50);
    a.runs_nothing().await?;
    wall.set(101);
    a.runs_nothing().await?;
    wall.set(200);
    assert_eq!(a.begins().await, (200, false), "the latest");
    recorded(&mut client, 200, "finished").await?;
    a.stop().await?;
    // The next leader's clock is behind.
    let behind = Wall::at(199);
    let mut b = Node::start(&etcd, "b", &behind, |every| every).await?;
    b.runs_nothing().await?;
    behind.set(201);
    assert_eq!(b.begins().await, (201, false));
    b.stop().await
}

#[tokio::test]
async fn a_record_changed_by_others_is_adopted_and_not_replaced() -> Result {
    let etcd = OnPort::start().await?;
    let (wall, mut client) = (Wall::at(100), etcd.client().await);
    let mut a = Node::start(&etcd, "a", &wall, |every| every).await?;
    recorded(&mut client, 100, "finished").await?;
    let due = 150 * HOUR.as_millis();
    let changed = format!(r#"{{"due_unix_ms":{due},"progress":"finished"}}"#);
    client.put(RECORD, changed, None).await?;
    wall.set(101);
    a.runs_nothing().await?;
    recorded(&mut client, 150, "finished").await?;
    wall.set(151);
    assert_eq!(a.begins().await, (151, false));
    a.stop().await
}

#[tokio::test]
async fn work_stopped_early_has_not_finished_its_due_time() -> Result {
    let etcd = OnPort::start().await?;
    let rules = |every: Every<'static>| every.delivery(Delivery::AtLeastOnce);
    let (wall, _, mut a, mut b) = two(&etcd, rules).await?;
    wall.set(101);
    let began = soon("a due time begins", a.begins.recv()).await;
    let term = began.ok_or("it runs")?.term;
    a.shutdown.cancel();
    soon("the token", term.lost().cancelled()).await;
    assert_eq!(term.lost_reason(), Some(LostReason::Shutdown));
    a.end();
    assert_eq!(b.begins().await, (101, true));
    b.stop().await?;
    a.stop().await
}

#[tokio::test]
async fn failed_work_ends_the_run_and_another_node_repeats_it() -> Result {
    let etcd = OnPort::start().await?;
    let (wall, mut client) = (Wall::at(100), etcd.client().await);
    let options = short("a").env(Arc::new(wall.env()));
    let session = Session::connect([etcd.endpoint()], options).await?;
    let rules = |every: Every<'static>| every.delivery(Delivery::AtLeastOnce);
    let every = rules(session.election("e")?.every(Schedule::interval(HOUR)?));
    let run = every.run(CancellationToken::new(), async |_due| {
        Err::<(), _>(Broken(7))
    });
    let failing = tokio::spawn(run);
    recorded(&mut client, 100, "finished").await?;
    wall.set(101);
    let error = soon("run returns", failing).await?.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Work);
    assert!(error.report().to_string().contains("broken 7"), "{error:?}");
    let mut b = Node::start(&etcd, "b", &wall, rules).await?;
    assert_eq!(b.begins().await, (101, true));
    b.stop().await
}

#[tokio::test]
async fn waiting_for_a_due_time_is_no_stall_but_silent_work_is() -> Result {
    let etcd = OnPort::start().await?;
    let session = Session::connect([etcd.endpoint()], short("a")).await?;
    let limit = Duration::from_millis(800);
    let runner = session.election("e")?.runner().stall_timeout(limit);
    let every = runner.every(Schedule::interval(3 * limit)?);
    let (begin, mut begins) = mpsc::unbounded_channel();
    let work = move |due: Due| {
        let begin = begin.clone();
        async move {
            begin.send(due.term())?;
            if due.at().duration_since(UNIX_EPOCH)?.as_millis() % 4800 == 0 {
                due.lost().cancelled().await;
            }
            Ok::<_, BoxError>(())
        }
    };
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(every.run(shutdown.clone(), work));
    let mut last: Option<Term> = None;
    // In every second due time the work hangs, and the term ends. The next due time begins in another term.
    loop {
        let term = soon("a due time begins", begins.recv()).await;
        let term = term.ok_or("it runs")?;
        let same = |last: &Term| last.fencing_token() == term.fencing_token();
        if last.as_ref().is_some_and(same) {
            soon("the term is lost", term.lost().cancelled()).await;
            assert_eq!(term.lost_reason(), Some(LostReason::Stalled));
            break;
        }
        last = Some(term);
    }
    shutdown.cancel();
    Ok(soon("run returns", task).await??)
}

#[tokio::test]
async fn invalid_schedule_is_refused_with_the_rule_and_leaves_nothing() -> Result {
    let etcd = OnPort::start().await?;
    let mut client = etcd.client().await;
    let session = Session::connect([etcd.endpoint()], short("a")).await?;
    let every = |election: eldest::Election| -> Result<Every> {
        Ok(election.every(Schedule::interval(HOUR)?))
    };
    let refused = async |every: Every<'static>, rule: &str| -> Result {
        let work = async |_due: Due| Ok::<_, BoxError>(());
        let run = every.run(CancellationToken::new(), work);
        let error = soon("run returns", run).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(rule), "{error}");
        Ok(())
    };
    for most in [0, 1001] {
        let every = every(session.election("e")?)?.catch_up(CatchUp::All(most));
        refused(every, "from 1 to 1000").await?;
    }
    refused(every(session.election_at("elsewhere/e")?)?, "namespace").await?;
    assert_eq!(keys(&mut client, "").await, []);
    client.put(RECORD, "no record", None).await?;
    refused(every(session.election("e")?)?, RECORD).await?;
    nothing_under(&mut client, "eldest/e/").await?;
    assert!(
        session.election("~schedule/e").is_err(),
        "a level of its own"
    );
    Ok(())
}
