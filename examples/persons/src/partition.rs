//! One partition in its owner's memory, and what makes it durable.

use std::collections::BTreeMap;
use std::time::Duration;

use eldest::{BoxError, Checkpoint, ErrorKind, Partition};
use tokio::sync::oneshot;

/// The largest state of a partition. A service with more keeps it elsewhere, and its position there in the checkpoint.
const LARGEST: usize = 64 * 1024;

/// The persons of a partition, by key.
type Persons = BTreeMap<String, String>;

/// A request for one person, which waits for its answer.
pub(crate) struct Order {
    pub(crate) person: String,
    /// The value to store; `None`: the request only reads.
    pub(crate) value: Option<String>,
    pub(crate) reply: oneshot::Sender<Answer>,
}

/// The answer to an order that was carried out. An order without an answer may or may not have been carried out.
pub(crate) struct Answer {
    /// The value of the person; `None`: there is no such person.
    pub(crate) value: Option<String>,
    /// True if the partition had no room for the value, which was not stored.
    pub(crate) is_full: bool,
    /// The fencing token of the term in which the order was carried out.
    pub(crate) token: i64,
}

/// A partition as a checkpoint holds it: what a pod loads before it owns the partition.
#[derive(Clone, Default)]
pub(crate) struct Loaded {
    checkpoint: Option<Checkpoint>,
    persons: Persons,
}

impl Loaded {
    /// Reads the persons of a checkpoint.
    pub(crate) fn from(checkpoint: Option<Checkpoint>) -> Result<Self, BoxError> {
        let persons = match &checkpoint {
            Some(last) => serde_json::from_slice(last.value())?,
            None => Persons::new(),
        };
        Ok(Self {
            checkpoint,
            persons,
        })
    }

    /// Returns true if the persons are those of this checkpoint, so that they need not be read again.
    pub(crate) fn is_of(&self, checkpoint: Option<&Checkpoint>) -> bool {
        self.checkpoint.as_ref() == checkpoint
    }

    /// Begins to serve these persons.
    pub(crate) fn serve(self) -> Serving {
        Serving {
            persons: self.persons,
        }
    }
}

/// The persons of a partition that this pod owns. They are exactly those of the last checkpoint.
pub(crate) struct Serving {
    persons: Persons,
}

impl Serving {
    /// Carries out the orders, one after the other, and answers them once their writes are durable. One checkpoint holds
    /// the writes of all of them.
    pub(crate) async fn carry_out(
        &mut self,
        shard: &Partition,
        orders: &mut Vec<Order>,
    ) -> Result<(), BoxError> {
        let mut next = self.persons.clone();
        let mut answers = Vec::with_capacity(orders.len());
        for order in orders.drain(..) {
            let is_full = match order.value {
                Some(value) => !store(&mut next, &order.person, value)?,
                None => false,
            };
            let answer = Answer {
                value: next.get(&order.person).cloned(),
                is_full,
                token: shard.fencing_token(),
            };
            answers.push((order.reply, answer));
        }
        if next != self.persons {
            save(shard, &next).await?;
            self.persons = next;
        }
        // A pod that was stopped for a while may read what is no longer true.
        if shard.is_valid() {
            for (reply, answer) in answers {
                let _ = reply.send(answer); // the client may be gone
            }
        }
        Ok(())
    }
}

/// Stores a value. Returns false if there is no room for it.
fn store(persons: &mut Persons, person: &str, value: String) -> Result<bool, BoxError> {
    let before = persons.insert(person.to_owned(), value);
    if serde_json::to_vec(persons)?.len() <= LARGEST {
        return Ok(true);
    }
    match before {
        Some(before) => persons.insert(person.to_owned(), before),
        None => persons.remove(person),
    };
    Ok(false)
}

/// Saves the persons as the partition's checkpoint: fenced, so an owner whose term is over saves nothing.
async fn save(shard: &Partition, persons: &Persons) -> Result<(), BoxError> {
    let state = serde_json::to_vec(persons)?;
    loop {
        match shard.checkpoint(&state).await {
            // etcd may have saved it, or not. The same state again is right in both cases, while the term lasts.
            Err(error) if is_unanswered(&error) && shard.is_valid() => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            outcome => return Ok(outcome?),
        }
    }
}

fn is_unanswered(error: &eldest::Error) -> bool {
    error.is_transient() || error.kind() == ErrorKind::Ambiguous
}

/// Returns true if the partition's term is over, which its token may not report yet.
pub(crate) fn is_over(error: &eldest::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::FenceLost | ErrorKind::LeadershipLost
    )
}
