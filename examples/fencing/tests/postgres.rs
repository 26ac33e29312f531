//! Tests fenced writes to a real `PostgreSQL`: an old leader is refused, whenever its write arrives.
#![cfg(unix)] // the server listens on a socket in a folder
#![allow(clippy::disallowed_methods)] // tests run in real time

mod common;

use std::time::Duration;

use eldest::BoxError;
use eldest_fencing_example::{CLAIM, Ledger, PAY, Refused, SCHEMA};
use eldest_fixtures::postgres::Postgres;
use eldest_testing::eventually;
use tokio_postgres::{Client, NoTls};

use common::{ELECTION, Nodes};

type Result<T = ()> = std::result::Result<T, BoxError>;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

async fn connect(server: &Postgres) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(&server.connection(), NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn ledger(server: &Postgres) -> Result<Ledger> {
    Ok(Ledger::open(connect(server).await?, ELECTION).await?)
}

fn is_refused<T>(answer: anyhow::Result<T>, token: i64) -> bool {
    let error = answer.err();
    error.and_then(|error| error.downcast().ok()) == Some(Refused { token })
}

#[tokio::test]
async fn an_old_leader_cannot_pay_after_its_successor_has_claimed_the_ledger() -> Result {
    let Some(server) = Postgres::start() else {
        return Ok(());
    };
    let server = server?;
    let nodes = Nodes::start().await?;
    let (first, second) = (ledger(&server).await?, ledger(&server).await?);

    let leader = nodes.leader().await?;
    let old = leader.fencing_token();
    first.claim(old).await?;
    first.pay(old, "4711").await?;

    let successor = nodes.successor(&leader).await?;
    let new = successor.fencing_token();
    assert!(new > old, "{new} > {old}");
    second.claim(new).await?;
    assert!(is_refused(first.pay(old, "4712").await, old));
    assert!(is_refused(first.claim(old).await, old));
    second.pay(new, "4712").await?;
    // Already paid: repeating a write whose answer was lost does no harm.
    assert!(second.pay(new, "4711").await.is_err());

    let paid = [("4711".to_owned(), old), ("4712".to_owned(), new)];
    assert_eq!(second.payments().await?, paid);
    // The tokens of another election do not count.
    let other = Ledger::open(connect(&server).await?, "shipping").await?;
    other.claim(1).await?;
    Ok(())
}

/// Waits until a statement waits for the lock of another one.
async fn one_waits(server: &Postgres) -> Result {
    let observer = connect(server).await?;
    let waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let seen = eventually(LONG, "a statement waits", async || {
        let rows = observer.query(waiting, &[]).await.ok()?;
        (rows.len() == 1).then_some(())
    });
    Ok(seen.await?)
}

#[tokio::test]
async fn a_write_that_meets_the_claim_comes_before_it_or_is_refused() -> Result {
    let Some(server) = Postgres::start() else {
        return Ok(());
    };
    let server = server?;
    let (first, second) = (ledger(&server).await?, ledger(&server).await?);
    let mut slow = connect(&server).await?;
    first.claim(7).await?;

    // The claim is in flight: the old leader's write waits for it, and is refused.
    let claim = slow.transaction().await?;
    assert_eq!(claim.execute(CLAIM, &[&ELECTION, &8_i64]).await?, 1);
    let (paid, committed) = tokio::join!(first.pay(7, "4711"), async {
        one_waits(&server).await?;
        Result::Ok(claim.commit().await?)
    });
    committed?;
    assert!(is_refused(paid, 7));

    // The old leader's write is in flight: the claim waits for it, and the new leader reads it.
    let write = slow.transaction().await?;
    assert_eq!(write.execute(PAY, &[&ELECTION, &8_i64, &"4711"]).await?, 1);
    let (claimed, committed) = tokio::join!(second.claim(9), async {
        one_waits(&server).await?;
        Result::Ok(write.commit().await?)
    });
    committed?;
    claimed?;
    assert_eq!(second.payments().await?, [("4711".to_owned(), 8)]);
    Ok(())
}

#[tokio::test]
async fn the_tokens_of_admitted_writes_never_fall() -> Result {
    const TOKENS: i64 = 8;
    const WRITES: i64 = 25;
    let Some(server) = Postgres::start() else {
        return Ok(());
    };
    let server = server?;
    ledger(&server).await?;
    let mut writers = Vec::new();
    for token in 1..=TOKENS {
        let ledger = ledger(&server).await?;
        writers.push(tokio::spawn(async move {
            for write in 0..WRITES {
                let answer = ledger.pay(token, &format!("{token}/{write}")).await;
                assert!(answer.is_ok() || is_refused(answer, token));
            }
        }));
    }
    for writer in writers {
        writer.await?;
    }
    let payments = ledger(&server).await?.payments().await?;
    assert!(
        payments.is_sorted_by_key(|(_, token)| *token),
        "{payments:?}"
    );
    let last = payments.iter().filter(|(_, token)| *token == TOKENS);
    assert_eq!(
        last.count() as i64,
        WRITES,
        "the highest token is never refused"
    );
    Ok(())
}

#[test]
fn the_page_shows_these_statements() {
    let page = include_str!("../../../docs/fencing.md");
    for statement in [SCHEMA, CLAIM, PAY] {
        assert!(page.contains(statement), "{statement}");
    }
}
