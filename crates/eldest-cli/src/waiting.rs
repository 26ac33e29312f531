//! Shows the person at a terminal what `run` or `lock` waits for: its rank, and which candidate is first.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use eldest::{Roster, Session, SessionState};

use crate::output;
use crate::view::{self, Leases};

/// How often the queue is read. A shorter wait is not worth a line.
const EVERY: Duration = Duration::from_secs(2);

/// Writes a line when the node begins to wait, and when its rank or the first candidate changes. Never completes.
/// `what` names the resource, `does` is the verb for the first candidate. `queue` is read while the node waits.
pub(crate) async fn report_rank<T>(
    session: &Session,
    (what, does): (&str, &str),
    queue: impl AsyncFn() -> Option<Roster>,
) -> T {
    let mut printed = None;
    while stderr().is_terminal() {
        tokio::time::sleep(EVERY).await;
        let lease = match &*session.state().borrow() {
            SessionState::Live(lease) => lease.lease_id(),
            _ => continue,
        };
        let now = queue().await.and_then(|queue| {
            let ours = queue.members().iter().find(|it| it.lease_id() == lease)?;
            let first = queue.members().first().filter(|first| *first != ours)?;
            let first = view::described(&view::candidate(first, true, &Leases::new()));
            Some(format!(
                "waiting for {what}: rank {}, {first} {does}",
                ours.rank()
            ))
        });
        if let Some(line) = now.as_ref().filter(|_| now != printed) {
            output::complain(line);
        }
        printed = now;
    }
    std::future::pending().await
}
