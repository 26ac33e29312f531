//! Examines limits of etcd that an operator may have set too low for a session.

use eldest_http::contract::command::Level;

use super::cluster::Patient;
use super::findings::Findings;

const ABOUT: (&str, &str) = ("limits", "limits");
/// The numbers of operations in one transaction that a session needs, and their purpose. etcd counts the longest of a
/// transaction's lists: its comparisons, or the operations of one branch. A candidate puts its key and reads its queue.
/// A member of partitions makes three comparisons when it joins: its key is absent, and no key with another count lies
/// before or after those of its own count.
const OPERATIONS: [(usize, &str); 2] = [(2, "become a candidate"), (3, "take a partition")];

impl Patient<'_> {
    /// Checks that this etcd accepts the transactions of a session.
    pub(super) async fn limits(&self, findings: &mut Findings) {
        let before = findings.worst();
        for (count, purpose) in OPERATIONS {
            // Other findings report an etcd that does not answer.
            if let Ok(false) = self.one().takes_operations(count).await {
                let message = format!(
                    "etcd takes no transaction of {count} operations, so no node can {purpose}"
                );
                let remedy = "start etcd with --max-txn-ops of 4 or more; 128 is the default";
                findings.bad(Level::Fail, ABOUT, message, remedy);
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
