//! Writes that an old leader can never make: into etcd by a fenced transaction, elsewhere by the fencing token.
//!
//! No check beforehand replaces this: a process may be stopped between the check and the write.
//! etcd is at `ETCD_ENDPOINTS`, by default `http://127.0.0.1:2379`.

use eldest::{ErrorKind, Op, Session, SessionOptions, Term};

const COUNTER: &str = "eldest/example-counter";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let session = Session::connect(endpoints(), SessionOptions::new("accountant")).await?;
    let election = session.election("accounts")?;
    let mut resource = Resource::default();

    let mut candidate = election.campaign().await?;
    let leadership = candidate.elected().await?;
    // First write the token to the resource, which refuses earlier leaders from then on. Only then read its state.
    resource.write(leadership.fencing_token(), 0)?;
    let mut counter = read(&leadership).await?;
    for _ in 0..3 {
        counter += 1;
        match count(&leadership, counter).await {
            Ok(()) => println!("counter is {counter}"),
            // No answer came: the write was applied or not. Read back instead of writing again.
            Err(error) if error.kind() == ErrorKind::Ambiguous => {
                counter = read(&leadership).await?;
            }
            Err(error) => return Err(error.into()),
        }
        resource.write(leadership.fencing_token(), counter)?;
    }

    let old = leadership.term();
    leadership.resign().await?;
    let mut candidate = election.campaign().await?;
    let leadership = candidate.elected().await?;
    resource.write(leadership.fencing_token(), counter)?;
    if let Err(error) = count(&old, counter + 1).await {
        println!("etcd, to the old leader: {error}");
    }
    if let Err(error) = resource.write(old.fencing_token(), counter + 1) {
        println!("the resource, to the old leader: {error}");
    }
    println!("counter is still {}", read(&leadership).await?);
    session.close().await?;
    Ok(())
}

async fn count(term: &Term, value: i64) -> eldest::Result<()> {
    term.txn([Op::put(COUNTER, value.to_string())])
        .await
        .map(drop)
}

/// Reads under the same fence: no later leader has changed the value that a leader reads.
async fn read(term: &Term) -> anyhow::Result<i64> {
    let outcome = term.txn([Op::get(COUNTER)]).await?;
    match outcome.found().next() {
        Some(entry) => Ok(entry.value_str()?.parse()?),
        None => Ok(0),
    }
}

/// A resource outside etcd that can remember one number: a database, a file store, a device.
#[derive(Default)]
struct Resource {
    highest_token: i64,
}

impl Resource {
    fn write(&mut self, token: i64, _value: i64) -> anyhow::Result<()> {
        anyhow::ensure!(token >= self.highest_token, "token {token} is too old");
        self.highest_token = token;
        Ok(())
    }
}

fn endpoints() -> Vec<String> {
    let endpoints = std::env::var("ETCD_ENDPOINTS").unwrap_or_default();
    match endpoints.trim() {
        "" => vec!["http://127.0.0.1:2379".to_owned()],
        given => given.split(',').map(str::to_owned).collect(),
    }
}
