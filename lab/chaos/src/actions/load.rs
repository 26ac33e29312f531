//! Adds many candidates and many elections as a load, which must cost no node the leadership.

use std::time::Duration;

use eldest::{Candidate, Leadership, Session, SessionOptions};
use etcd_client::{LeaseGrantOptions, PutOptions, Txn, TxnOp};
use futures::future::try_join_all;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::Result;
use crate::action::{Action, Card, Effect, Fault, Lasts, Realm, Side, Victim};
use crate::lab::{Lab, PREFIX};

/// The number of keys in one transaction.
const BATCH: usize = 100;
const CANDIDATES: usize = 5_000;
const ELECTIONS: usize = 10_000;
/// The number of sessions of each kind, which share the elections.
const SESSIONS: usize = 10;
/// The one lease of all keys of the load, so that all keys can be deleted at once.
const LEASE: i64 = 0x000c_0de5;
/// A TTL so long that its expiry cannot be confused with a slow takeover.
const LONG: i64 = 600;

pub(super) fn all() -> Vec<Box<dyn Action>> {
    let card = |name, about| Card {
        name,
        about,
        side: Side::Everybody,
        realm: Realm::Store,
        effect: Effect::Kept,
        lasts: Lasts::ttls(1.5),
        refuses: false,
        asks: true,
        only_by_name: true,
    };
    vec![
        Box::new(Crowd {
            card: card(
                "crowd",
                "5,000 candidates of other programs join the queue behind the nodes, and leave at once",
            ),
        }),
        Box::new(Elections {
            card: card(
                "elections",
                "ten sessions lead 10,000 more elections; ten others wait in them and take over at once",
            ),
            held: Mutex::default(),
        }),
    ]
}

struct Crowd {
    card: Card,
}

impl Fault for Crowd {
    fn card(&self) -> Card {
        self.card.clone()
    }

    async fn apply(&self, lab: &Lab, _: &Victim) -> Result {
        lab.fault("", self.card.name);
        let granted = lab.operate("the crowd's lease is granted", async |mut client| {
            let options = LeaseGrantOptions::new().with_id(LEASE);
            client.lease_grant(LONG, Some(options)).await
        });
        granted.await?;
        for first in (0..CANDIDATES).step_by(BATCH) {
            lab.operate("candidates are put", async |mut client| {
                let put = |number| {
                    let lease = PutOptions::new().with_lease(LEASE);
                    TxnOp::put(format!("{PREFIX}c{number}"), "somebody", Some(lease))
                };
                let batch: Vec<TxnOp> = (first..first + BATCH).map(put).collect();
                client.txn(Txn::new().and_then(batch)).await
            })
            .await?;
        }
        lab.fault("", self.card.name);
        Ok(())
    }

    async fn undo(&self, lab: &Lab, _: &Victim) -> Result {
        let revoked = lab.operate("the crowd's lease is revoked", async |mut client| {
            client.lease_revoke(LEASE).await
        });
        revoked.await?;
        lab.healed("", self.card.name);
        Ok(())
    }
}

struct Elections {
    card: Card,
    held: Mutex<Option<Held>>,
}

/// Sessions that lead, and others that wait in the same elections.
struct Held {
    leads: Vec<(Session, Vec<Leadership>)>,
    waits: Vec<(Session, Vec<Candidate>)>,
}

/// Opens a session, and joins its share of the elections.
async fn join_share(lab: &Lab, name: &str, share: usize) -> Result<(Session, Vec<Candidate>)> {
    let endpoints = lab.cluster.lock().await.endpoints();
    let options = SessionOptions::new(name).ttl(lab.settings.ttl);
    let session = Session::connect(endpoints, options).await?;
    let mut candidates = Vec::new();
    let numbers: Vec<usize> = (0..ELECTIONS / SESSIONS).collect();
    for batch in numbers.chunks(BATCH) {
        let joined = batch.iter().map(async |number| {
            let election = session.election(format!("many/{share}-{number}"))?;
            election.campaign().await
        });
        candidates.extend(try_join_all(joined).await?);
    }
    Ok((session, candidates))
}

async fn elected(candidates: &mut [Candidate], within: Duration) -> Result<Vec<Leadership>> {
    let elected = candidates.iter_mut().map(Candidate::elected);
    Ok(timeout(within, try_join_all(elected)).await??)
}

impl Fault for Elections {
    fn card(&self) -> Card {
        self.card.clone()
    }

    async fn apply(&self, lab: &Lab, _: &Victim) -> Result {
        lab.fault("", self.card.name);
        let mut held = Held {
            leads: Vec::new(),
            waits: Vec::new(),
        };
        for share in 0..SESSIONS {
            let (session, mut candidates) = join_share(lab, "leads", share).await?;
            let leads = elected(&mut candidates, lab.settings.takeover()).await?;
            held.leads.push((session, leads));
            held.waits.push(join_share(lab, "waits", share).await?);
        }
        *self.held.lock().await = Some(held);
        lab.fault("", self.card.name);
        Ok(())
    }

    async fn undo(&self, lab: &Lab, _: &Victim) -> Result {
        if let Some(held) = self.held.lock().await.take() {
            change_hands(lab, held).await?;
        }
        lab.healed("", self.card.name);
        Ok(())
    }
}

/// Closes the leading sessions; the waiting ones then lead all elections, until they close too.
async fn change_hands(lab: &Lab, held: Held) -> Result {
    let mut all = held.leads.iter().flat_map(|(_, leads)| leads);
    if let Some(lost) = all.find(|leadership| !leadership.is_valid()) {
        return Err(format!("{} was lost", lost.name()).into());
    }
    let since = lab.now();
    for (session, leads) in held.leads {
        drop(leads);
        session.close().await?;
    }
    let mut count = 0;
    for (session, mut waits) in held.waits {
        count += elected(&mut waits, lab.settings.takeover()).await?.len();
        session.close().await?;
    }
    let took = lab.now().saturating_sub(since).as_secs_f64();
    lab.say(&format!(
        "{count} elections changed hands within {took:.2} s"
    ));
    Ok(())
}
