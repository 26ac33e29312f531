//! Examines limits of etcd that an operator may have set too low for a session.

use eldest_http::contract::command::Level;

use super::cluster::Patient;
use super::findings::Findings;

const ABOUT: (&str, &str) = ("limits", "limits");
/// The numbers of operations in one transaction that a session needs, and what fails without them. etcd counts the longest
/// of a transaction's lists, which are its comparisons and the operations of each branch, and adds that of a transaction
/// within. A candidate puts its key and reads its queue. A member of partitions makes three comparisons when it joins: its
/// key is absent, and no key with another count lies before or after those of its own count. A guard makes two comparisons
/// of the proof, and two of each key within. An attempt at a semaphore makes four.
const OPERATIONS: [(usize, Level, &str); 3] = [
    (2, Level::Fail, "no node can become a candidate"),
    (3, Level::Fail, "no node can take a partition"),
    (
        4,
        Level::Warn,
        "no guard can delete the keys of a dead process, and `Semaphore::try_acquire` fails",
    ),
];

impl Patient<'_> {
    /// Checks that this etcd accepts the transactions of a session.
    pub(super) async fn limits(&self, findings: &mut Findings) {
        let before = findings.worst();
        for (count, level, fails) in OPERATIONS {
            // Other findings report an etcd that does not answer.
            if let Ok(false) = self.one().takes_operations(count).await {
                let message =
                    format!("etcd takes no transaction of {count} operations, so {fails}");
                let remedy = "start etcd with --max-txn-ops of 4 or more; 128 is the default";
                findings.bad(level, ABOUT, message, remedy);
                break;
            }
        }
        if let Ok(false) = self.one().takes_requests_beside_a_stream().await {
            let message = "etcd answers no request on a connection that carries a stream, so no renewal can be verified";
            let remedy = "start etcd with --max-concurrent-streams of 10 or more; there is no limit by default";
            findings.bad(Level::Fail, ABOUT, message, remedy);
        }
        if findings.worst() == before {
            findings.ok(
                ABOUT.0,
                ABOUT.1,
                "transactions and streams are as large as a session needs",
            );
        }
    }
}
