//! Sends a batch of requests, a transaction for each of its parts.

use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::event::{BatchAnswer, Event};
use eldest_core::action::{Answer, Ask, Join, RequestError};
use eldest_core::batcher::Batch;
use eldest_etcd::{Pool, Registered};

/// Sends a batch. Its answers come as events, each as soon as it is complete, so an election with many candidates to
/// read delays no other answer.
pub(super) async fn send(pool: Arc<Pool>, mut batch: Batch, events: mpsc::UnboundedSender<Event>) {
    let (kind, begun) = (batch.kind(), pool.now());
    let (pool, unfinished) = (&*pool, FuturesUnordered::new());
    while let Some(part) = batch.next_part() {
        let asks: Vec<_> = part.iter().map(|(_, ask)| ask).collect();
        let answers = ask_together(pool, &asks).await;
        let Some(part) = batch.answered(part, answers.as_ref().err()) else {
            continue;
        };
        let answers = answers.unwrap_or_else(|failure| {
            let failed = || Partly::Answered(Answer::Failed(failure.clone()));
            part.iter().map(|_| failed()).collect()
        });
        let requests = part.into_iter().map(|(request, _)| request);
        let mut complete = Vec::new();
        for (request, answer) in requests.zip(answers) {
            match answer {
                Partly::Answered(answer) => complete.push((request, answer)),
                registered @ Partly::Registered(_) => unfinished.push(async move {
                    let answer = finish(pool, registered).await;
                    (request, answer)
                }),
            }
        }
        let answered = BatchAnswer {
            kind,
            answers: complete,
            last: batch.outcome(pool.now().since(begun)),
        };
        drop(events.send(Event::Batch(answered)));
    }
    let mut unfinished = pin!(unfinished);
    while let Some((request, answer)) = unfinished.next().await {
        drop(events.send(Event::Answered { request, answer }));
    }
}

/// A transaction's answer to one request.
pub(super) enum Partly {
    Answered(Answer),
    /// The key is registered; some of the other candidates are still to be read.
    Registered(Registered),
}

/// Completes the answer to one request.
pub(super) async fn finish(pool: &Pool, answer: Partly) -> Answer {
    let registered = match answer {
        Partly::Answered(answer) => return answer,
        Partly::Registered(registered) => registered,
    };
    match pool.finish(registered).await {
        Ok(joined) => Answer::Joined(joined),
        Err(failure) => Answer::Failed(failure),
    }
}

/// Sends requests of one kind in one transaction; returns their answers in the same order.
pub(super) async fn ask_together(pool: &Pool, asks: &[&Ask]) -> Result<Vec<Partly>, RequestError> {
    if let Some(Ask::Join(_)) = asks.first() {
        let joins: Vec<_> = asks.iter().filter_map(|ask| join(ask)).collect();
        let joined = pool.join_each(&joins).await?;
        let mut answers = Vec::with_capacity(joined.len());
        for one in joined {
            let complete = one.is_complete();
            let answer = Partly::Registered(one);
            answers.push(if complete {
                Partly::Answered(finish(pool, answer).await)
            } else {
                answer
            });
        }
        return Ok(answers);
    }
    let keys: Vec<_> = asks.iter().filter_map(|ask| deleted(ask)).collect();
    let header = pool.release(&keys).await?;
    let deleted = |_| Partly::Answered(Answer::Deleted { header });
    Ok(keys.iter().map(deleted).collect())
}

fn join(ask: &Ask) -> Option<&Join> {
    match ask {
        Ask::Join(join) => Some(join),
        _ => None,
    }
}

fn deleted(ask: &Ask) -> Option<(Arc<[u8]>, i64)> {
    match ask {
        Ask::Delete {
            key,
            create_revision,
            ..
        } => Some((Arc::clone(key), *create_revision)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eldest_core::action::Admission;
    use eldest_core::batcher::Batcher;

    /// The second election has more candidates than the transaction reads of each.
    #[tokio::test]
    async fn an_election_with_many_candidates_holds_up_no_other_answer() {
        use eldest_etcd::Access;
        use eldest_etcd::runtime::System;

        let etcd = eldest_testing::Etcd::start().await.expect("etcd");
        let mut client = etcd.client().await;
        for number in 0..600 {
            let key = format!("big/{number:03}");
            client.put(key, "somebody", None).await.expect("put");
        }
        let env = Arc::new(System::new().expect("in a runtime"));
        let endpoints = vec![etcd.endpoint()];
        let limit = std::time::Duration::from_secs(5);
        let pool =
            Arc::new(Pool::new(env, &endpoints, Access::default(), limit).expect("an endpoint"));
        let lease = pool.grant(60).await.expect("a lease").id;
        let mut batcher = Batcher::new(limit);
        for (request, election) in (1..).zip(["small", "big", "tiny"]) {
            let join = Ask::Join(Join {
                key: format!("{election}/{lease:x}").into_bytes().into(),
                value: (*b"v").into(),
                lease,
                prefix: format!("{election}/").into_bytes().into(),
                admission: Admission::default(),
            });
            assert_eq!(batcher.keep((request, join)), None);
        }
        let batch = batcher.next_batch().expect("a batch");
        let (events, mut answers) = mpsc::unbounded_channel();
        send(pool, batch, events).await;

        let Some(Event::Batch(first)) = answers.recv().await else {
            panic!("the transaction's answers come first");
        };
        let requests: Vec<_> = first.answers.iter().map(|(request, _)| *request).collect();
        assert_eq!(requests, [1, 3], "they do not wait for what is still read");
        assert!(first.last.is_some(), "another transaction may be sent");
        let Some(Event::Answered { request: 2, answer }) = answers.recv().await else {
            panic!("the big one's answer follows");
        };
        let Answer::Joined(joined) = answer else {
            panic!("it joined: {answer:?}");
        };
        assert!(joined.created && joined.entries.len() == 601);
    }
}
