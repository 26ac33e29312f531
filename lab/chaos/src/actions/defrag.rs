//! Defragments etcd's leader while it holds much data: it answers no client meanwhile.

use std::time::Duration;

use etcd_client::{Client, DeleteOptions};
use tokio::time::timeout;

use crate::Result;
use crate::action::{Action, Card, Effect, Fault, Lasts, Realm, Side, Victim};
use crate::lab::Lab;

/// A prefix for the data, outside of the election.
const DATA: &str = "chaos-data/";
/// The size of a value; etcd accepts 1.5 MiB in a request.
const MIB: usize = 1 << 20;
/// The message that the node logs when it turns to another endpoint.
const SWITCHED: &str = "endpoint switched";

const FEW: [&str; 2] = [
    "defrag-etcd-leader",
    "etcd's leader, which the leading node uses, is defragmented with 64 MiB of data (`--data-mib`)",
];
const MANY: [&str; 2] = [
    "defrag-gigabyte",
    "the same with 1,024 MiB of data (`--data-mib`)",
];

pub(super) fn all() -> Vec<Box<dyn Action>> {
    let defrag = |what, effect, only_by_name, mib| -> Box<dyn Action> {
        let expected = (Side::Everybody, effect, Lasts::MOMENT);
        let card = Card {
            asks: true,
            only_by_name,
            ..Card::new(Realm::Servers, what, expected)
        };
        Box::new(Defrag { card, mib })
    };
    vec![
        defrag(FEW, Effect::Kept, false, 64),
        defrag(MANY, Effect::KeptOrChanged, true, 1024),
    ]
}

struct Defrag {
    card: Card,
    mib: usize,
}

impl Fault for Defrag {
    fn card(&self) -> Card {
        self.card.clone()
    }

    async fn apply(&self, lab: &Lab, _: &Victim) -> Result {
        let mib = lab.settings.data_mib.unwrap_or(self.mib);
        let server = lab.server_of_leader()?;
        lab.lead_etcd_by(server).await?;
        lab.fault("", self.card.name);
        for number in 0..mib {
            lab.operate("data is put", async |mut client| {
                let key = format!("{DATA}{number}");
                client.put(key, vec![b'x'; MIB], None).await
            })
            .await?;
        }
        let client = lab.client(server);
        let least = i64::try_from(mib * MIB)?;
        // A server writes its file some time after it has answered.
        lab.until("the server holds the data", async || {
            let size = client.clone().status().await?.db_size();
            Ok((size >= least).then_some(()))
        })
        .await?;
        let (began, switched) = (lab.now(), lab.logged(SWITCHED));
        let blocked = Box::pin(blocked_by_defrag(lab, client)).await?;
        let took = lab.now().saturating_sub(began);
        let switched = lab.logged(SWITCHED) - switched;
        lab.fault("", self.card.name);
        lab.say(&format!(
            "    {mib} MiB: the defragmentation took {:.2} s, one answer {:.2} s; the nodes switched {switched} times",
            took.as_secs_f64(),
            blocked.as_secs_f64(),
        ));
        Ok(())
    }

    async fn undo(&self, lab: &Lab, _: &Victim) -> Result {
        let deleted = lab.operate("the data is deleted", async |mut client| {
            let all = DeleteOptions::new().with_prefix();
            let deleted = client.delete(DATA, Some(all)).await?;
            let now = deleted
                .header()
                .map_or(0, etcd_client::ResponseHeader::revision);
            client.compact(now, None).await
        });
        let deleted = deleted.await;
        lab.healed("", self.card.name);
        deleted.map(|_| ())
    }
}

/// Defragments that server, and returns the longest time during which it left a linearizable read unanswered.
async fn blocked_by_defrag(lab: &Lab, client: Client) -> Result<Duration> {
    // Enough for a gigabyte on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(120);
    let defragmented = async |mut client: Client| client.defragment().await;
    let defragmented = timeout(PATIENCE, defragmented(client.clone()));
    let mut defragmented = std::pin::pin!(defragmented);
    let (mut longest, mut done) = (Duration::ZERO, None);
    while done.is_none() {
        let asked = lab.now();
        let mut reader = client.clone();
        let read = timeout(PATIENCE, reader.get(DATA, None));
        let mut read = std::pin::pin!(read);
        loop {
            tokio::select! {
                _ = &mut read => break,
                result = &mut defragmented, if done.is_none() => done = Some(result),
            }
        }
        longest = longest.max(lab.now().saturating_sub(asked));
        tokio::task::yield_now().await;
    }
    done.ok_or("it was not defragmented")???;
    Ok(longest)
}
