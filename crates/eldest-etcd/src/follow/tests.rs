#![allow(clippy::disallowed_methods)] // a runtime of the test's own

use std::io;
use std::sync::Mutex;

use etcd_client::ConnectOptions;
use tokio::sync::oneshot;

use super::*;
use crate::runtime::Scripted;

const A: &str = "http://10.0.0.1";
const B: &str = "http://10.0.0.2";
const C: &str = "http://10.0.0.3";

fn endpoints(urls: &[&str]) -> Vec<Endpoint> {
    urls.iter().map(Endpoint::from).collect()
}

fn failed(class: Class) -> Result<Usable, RequestError> {
    Err(RequestError::new(class, "no", A))
}

fn usable(urls: &[&str]) -> Usable {
    Usable {
        endpoints: endpoints(urls),
        ..Usable::default()
    }
}

#[test]
fn last_listed_members_are_used_only_while_no_member_answers() {
    // Each row has the members known before and the answer, then the endpoints used, the members known and unsettled
    // after it.
    let none: &[&str] = &[];
    for (known, answer, used, unsettled) in [
        (none, Ok(usable(&[B])), &[B][..], false),
        (&[A], Ok(usable(&[B, C])), &[B, C], false),
        (&[B], Ok(usable(&[])), &[B], false),
        (none, Ok(usable(&[])), &[A, B], false),
        (none, failed(Class::Retry), &[A, B], true),
        (&[B, C], failed(Class::Retry), &[B, C, A], true),
        (&[B, C], failed(Class::Backoff), &[B, C, A], true),
        (&[B, C], failed(Class::Denied), &[B, C], false),
        (&[B, C], failed(Class::Auth), &[B, C], false),
        (&[B, C], failed(Class::Invalid), &[B, C], false),
        (none, failed(Class::Denied), &[A, B], false),
    ] {
        let what = format!("{known:?}, {answer:?}");
        let is_failure = answer.is_err();
        let learned = answer.as_ref().ok().map(|usable| usable.endpoints.clone());
        let before = (!known.is_empty()).then(|| endpoints(known));
        let mut known = before.clone();
        let mut round = Round::default();
        let list = round.members(answer, &mut known, endpoints(&[A, B]));
        assert_eq!(list, endpoints(used), "{what}");
        assert_eq!(round.unsettled, unsettled, "{what}");
        assert_eq!(round.troubles.len(), usize::from(is_failure), "{what}");
        let learned = learned.filter(|learned| !learned.is_empty());
        assert_eq!(known, learned.or(before), "{what}");
    }
}

#[test]
fn changed_members_are_listed_soon_and_each_refusal_is_reported() {
    let usable = Usable {
        refused: vec!["a".to_owned(), "b".to_owned()],
        changing: true,
        ..usable(&[B])
    };
    let mut round = Round::default();
    round.members(Ok(usable), &mut None, Vec::new());
    let troubles = ["a", "b"].map(|why| Trouble::Members {
        why: why.to_owned(),
    });
    assert_eq!((round.troubles, round.unsettled), (troubles.into(), true));
}

/// Timers that the test completes, in their order.
#[derive(Default)]
struct Clock {
    now: Duration,
    timers: Vec<(Duration, oneshot::Sender<()>)>,
}

impl Clock {
    /// Returns the next timer up to that time, with its time.
    fn next(&mut self, until: Duration) -> Option<(Duration, oneshot::Sender<()>)> {
        self.timers.retain(|(_, timer)| !timer.is_closed());
        let timers = self.timers.iter().enumerate();
        let (index, (at, _)) = timers.min_by_key(|(_, (at, _))| *at)?;
        (*at <= until).then(|| self.timers.swap_remove(index))
    }
}

/// The background lookups of a pool with one name. The name has an address, has none, or gets no answer.
struct Lookups {
    pool: Arc<Pool>,
    clock: Arc<Mutex<Clock>>,
    /// The seconds at which the name was looked up.
    asked: Arc<Mutex<Vec<u64>>>,
    known: Arc<Mutex<Option<bool>>>,
}

impl Lookups {
    fn new(known: Option<bool>) -> Self {
        let (clock, asked) = (
            Arc::<Mutex<Clock>>::default(),
            Arc::<Mutex<Vec<_>>>::default(),
        );
        let known = Arc::new(Mutex::new(known));
        let (timers, reading) = (Arc::clone(&clock), Arc::clone(&clock));
        let (questions, answer) = (Arc::clone(&asked), Arc::clone(&known));
        let sleep = move |time| {
            let mut clock = timers.lock().unwrap();
            let (timer, ends) = oneshot::channel();
            let at = clock.now + time;
            clock.timers.push((at, timer));
            ends.map(drop).boxed()
        };
        let addresses = move |_| {
            let now = reading.lock().unwrap().now.as_secs();
            questions.lock().unwrap().push(now);
            match *answer.lock().unwrap() {
                Some(true) => std::future::ready(Ok(vec![[10, 0, 0, 1].into()])).boxed(),
                Some(false) => std::future::ready(Err(io::ErrorKind::NotFound.into())).boxed(),
                None => std::future::pending().boxed(),
            }
        };
        let env = Scripted {
            sleep: Box::new(sleep),
            spawn: Box::new(|task| drop(tokio::spawn(task))),
            // Half of the average.
            random: Box::new(|| 0),
            addresses: Box::new(addresses),
            ..Scripted::still()
        };
        let (name, options) = (["dns+http://etcd.test:1"], ConnectOptions::new());
        let pool = Pool::new(Arc::new(env), name, options, Duration::from_secs(5));
        let pool = Arc::new(pool.unwrap());
        pool.keep_near(b"k"[..].into(), tracing::Span::none());
        Self {
            pool,
            clock,
            asked,
            known,
        }
    }

    /// Returns the seconds, up to this one, at which the name was looked up since the last call.
    async fn until(&self, second: u64) -> Vec<u64> {
        let end = Duration::from_secs(second);
        loop {
            // One thread: each task runs until it waits for a timer.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            let next = self.clock.lock().unwrap().next(end);
            let Some((at, timer)) = next else { break };
            self.clock.lock().unwrap().now = at;
            drop(timer);
        }
        self.clock.lock().unwrap().now = end;
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

#[tokio::test]
async fn lookups_wait_1_to_16_s_after_failures_and_30_s_otherwise() {
    let lookups = Lookups::new(Some(false));
    assert_eq!(lookups.until(50).await, [0, 1, 3, 7, 15, 31, 47]);
    *lookups.known.lock().unwrap() = Some(true);
    // The pause before the next lookup is still the last that followed a failure.
    assert_eq!(lookups.until(116).await, [63, 79, 94, 109]);
    lookups.pool.leave(Lane::Data, "a failed request");
    assert_eq!(lookups.until(117).await, [116]);
    lookups.pool.leave(Lane::Data, "another");
    lookups.pool.leave(Lane::Data, "another");
    assert_eq!(lookups.until(120).await, [118], "once a pause");
}

#[tokio::test]
async fn a_lookup_times_out_after_5_s() {
    let lookups = Lookups::new(None);
    assert_eq!(lookups.until(15).await, [0, 6, 13]);
    let failures = lookups.pool.named(|named| named.troubles.clone());
    assert!(format!("{failures:?}").contains("no answer within 5s"));
}
